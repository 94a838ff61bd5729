//! A private PgBouncer.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::Postgres;
use crate::port::Port;
use crate::postgres::install;
use crate::program::on_path;
use crate::server::Server;

const START: Duration = Duration::from_secs(60);

/// When PgBouncer gives a connection to PostgreSQL to another client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolMode {
    /// When the client has disconnected.
    Session,
    /// After each transaction.
    Transaction,
}

/// A running PgBouncer in front of a [`Postgres`].
#[derive(Debug)]
pub struct PgBouncer {
    _server: Server,
    port: Port,
}

impl PgBouncer {
    /// Starts one in transaction mode with at most `connections` connections to `postgres`, and waits until it takes
    /// clients.
    pub async fn start(postgres: &Postgres, connections: usize) -> Result<Self> {
        Self::start_in(PoolMode::Transaction, postgres, connections).await
    }

    /// As [`Self::start`], in the given mode.
    pub async fn start_in(mode: PoolMode, postgres: &Postgres, connections: usize) -> Result<Self> {
        let server = Server::new("pgbouncer", "TERM")?;
        let port = Port::reserve()?;
        let config = server.folder().join("pgbouncer.ini");
        fs::write(&config, configuration(mode, postgres, &port, connections))?;
        let user = install::user();
        if let Some(user) = user {
            chown(server.folder(), Some(user.uid), Some(user.gid))?;
            chown(&config, Some(user.uid), Some(user.gid))?;
        }
        server.spawn(Command::new(program()?).arg(&config), user)?;
        let listens = || TcpStream::connect(("127.0.0.1", port.number)).is_ok().then_some(());
        server.wait_ready(START, listens).await?;
        Ok(Self { _server: server, port })
    }

    /// The connection string of a database behind it; `url` is that of the database itself.
    pub fn url_for(&self, url: &str) -> String {
        let database = url.rsplit('/').next().unwrap_or("postgres");
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port.number)
    }
}

fn configuration(mode: PoolMode, postgres: &Postgres, port: &Port, connections: usize) -> String {
    let mode = match mode {
        PoolMode::Session => "session",
        PoolMode::Transaction => "transaction",
    };
    // With `any` everybody is the user that the database's line names.
    format!(
        "[databases]\n* = user=postgres host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\nunix_socket_dir =\n\
         auth_type = any\npool_mode = {mode}\nmax_client_conn = 500\ndefault_pool_size = {connections}\n\
         ignore_startup_parameters = extra_float_digits\n",
        postgres.addr().port(),
        port.number,
    )
}

fn program() -> Result<PathBuf> {
    on_path("pgbouncer", &["/usr/sbin"])
        .context("PgBouncer is not here: install the Debian package `pgbouncer`")
}
