//! A private PostgreSQL.

pub(crate) mod install;
mod template;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use tokio::sync::OnceCell;
use tokio_postgres::NoTls;

use crate::FakeClock;
use crate::port::Port;
use crate::server::Server;
use crate::wait_for;
use install::Install;

/// Crash recovery on a busy machine is the longest start.
const START: Duration = Duration::from_secs(120);
const END: Duration = Duration::from_secs(60);
/// How often a start is tried again on another port, when somebody outside these tests took the first.
const PORTS: usize = 5;

/// A running PostgreSQL in a folder of its own, durable (`fsync=on`) unless a setting says otherwise.
///
/// It ends, and its data goes, when this value is dropped or the test process ends.
#[derive(Debug)]
pub struct Postgres {
    server: Server,
    install: Install,
    port: Port,
    launch: Mutex<PostgresBuilder>,
    databases: AtomicU32,
}

impl Postgres {
    /// A server with the usual settings.
    pub async fn start() -> Result<Self> {
        Self::builder().start().await
    }

    /// A server with settings of its own.
    pub fn builder() -> PostgresBuilder {
        PostgresBuilder::default()
    }

    /// The one server of this test process, for tests that need no more than a database each.
    pub async fn shared() -> Result<&'static Self> {
        static SHARED: OnceCell<Postgres> = OnceCell::const_new();
        SHARED.get_or_try_init(Self::start).await
    }

    /// Where it listens, also while it is stopped.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port.number).into()
    }

    /// The connection string of the `postgres` database.
    pub fn url(&self) -> String {
        self.url_for("postgres")
    }

    /// The connection string of another database.
    pub fn url_for(&self, database: &str) -> String {
        let launch = self.launch.lock().unwrap_or_else(PoisonError::into_inner);
        let password = launch.password.iter().map(|password| format!(":{password}")).collect::<String>();
        format!("postgres://postgres{password}@{}/{database}", self.addr())
    }

    /// Trusts nobody from now on who does not know the password.
    async fn ask_for(&self, password: &str) -> Result<()> {
        let client = self.connect().await?;
        client.batch_execute(&format!("ALTER ROLE postgres PASSWORD '{password}'")).await?;
        fs::write(self.data().join("pg_hba.conf"), "host all all 127.0.0.1/32 scram-sha-256\n")?;
        client.batch_execute("SELECT pg_reload_conf()").await?;
        // It is read again a moment later.
        wait_for("the password to be asked for", START, async || self.connect().await.is_err()).await?;
        self.launch.lock().unwrap_or_else(PoisonError::into_inner).password = Some(password.to_owned());
        Ok(())
    }

    /// Makes a new database, whose name starts with `prefix`, and gives its connection string.
    pub async fn create_database(&self, prefix: &str) -> Result<String> {
        let number = self.databases.fetch_add(1, Ordering::Relaxed) + 1;
        let name = format!("{prefix}_{number}");
        let sql = format!("CREATE DATABASE \"{}\"", name.replace('"', "\"\""));
        self.connect()
            .await?
            .batch_execute(&sql)
            .await
            .with_context(|| format!("cannot make database {name}"))?;
        Ok(self.url_for(&name))
    }

    /// A connection to the `postgres` database, as its superuser.
    pub async fn connect(&self) -> Result<tokio_postgres::Client> {
        let (client, connection) = tokio_postgres::connect(&self.url(), NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// Where a program of this PostgreSQL is, such as `pg_dump`.
    pub fn tool(&self, name: &str) -> PathBuf {
        self.install.program(name)
    }

    /// The postmaster, if it runs.
    pub fn pid(&self) -> Result<u32> {
        Ok(self.server.pid()?.as_raw_nonzero().get().unsigned_abs())
    }

    /// Its last thousands of log lines.
    pub fn logs(&self) -> String {
        self.server.output().text()
    }

    /// Fast shutdown: connections are ended, the data is kept.
    pub async fn stop(&self) -> Result<()> {
        self.server.end_by(Signal::INT, END).await?;
        Ok(())
    }

    /// Starts it after [`stop`](Self::stop) or [`kill9`](Self::kill9): the same data on the same port.
    pub async fn start_again(&self) -> Result<()> {
        let command = self.launch.lock().unwrap_or_else(PoisonError::into_inner).command(self);
        self.server.spawn(&command, self.install.user)?;
        let pid = self.pid()?.to_string();
        self.server.wait_ready(START, || self.postmaster_file_says_ready(&pid).then_some(())).await
    }

    /// Stops it and starts it with these settings and environment variables added.
    pub async fn restart_with(&self, settings: &[(&str, &str)], env: &[(&str, &str)]) -> Result<()> {
        self.stop().await?;
        {
            let mut launch = self.launch.lock().unwrap_or_else(PoisonError::into_inner);
            let owned = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
            launch.settings.extend(settings.iter().map(owned));
            launch.env.extend(env.iter().map(owned));
        }
        self.start_again().await
    }

    /// Makes a standby the primary, and waits until it is.
    pub async fn promote(&self) -> Result<()> {
        let promoted = self.connect().await?.query_one("SELECT pg_promote(true)", &[]).await?;
        anyhow::ensure!(promoted.get::<_, bool>(0), "PostgreSQL did not become the primary in a minute");
        Ok(())
    }

    /// SIGKILL to all its processes, as when the machine loses power; waits until all have ended.
    pub async fn kill9(&self) -> Result<()> {
        self.server.kill9().await?;
        self.remove_shared_memory();
        Ok(())
    }

    /// Stops all its processes in their tracks (SIGSTOP): connections stay open and nothing answers.
    pub async fn pause(&self) -> Result<()> {
        self.server.pause().await
    }

    /// Lets it go on after [`pause`](Self::pause).
    pub fn resume(&self) -> Result<()> {
        self.server.resume()
    }

    /// Its wall clock, if it was built with one.
    pub fn clock(&self) -> Option<FakeClock> {
        self.launch.lock().unwrap_or_else(PoisonError::into_inner).clock.clone()
    }

    /// Sets its wall clock this far from real time, while it runs or while it is stopped.
    pub fn set_clock_offset(&self, seconds: i64) -> Result<()> {
        let clock = self.clock().context("this PostgreSQL was built without `fake_clock()`")?;
        clock.set_offset_seconds(seconds)
    }

    fn data(&self) -> PathBuf {
        self.server.folder().join("data")
    }

    /// The way of `pg_ctl -w`: the postmaster writes its pid first and its status in line eight.
    fn postmaster_file_says_ready(&self, pid: &str) -> bool {
        let file = fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        let mut lines = file.lines().map(str::trim);
        lines.next() == Some(pid) && lines.nth(6) == Some("ready")
    }

    /// A killed postmaster leaves one small segment of System V memory, whose id is in line seven.
    fn remove_shared_memory(&self) {
        let file = fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        if let Some(id) = file.lines().nth(6).and_then(|line| line.split_whitespace().nth(1)) {
            let _ = Command::new("ipcrm").args(["-m", id]).output();
        }
    }
}

/// How a [`Postgres`] is to run.
#[derive(Clone, Debug, Default)]
pub struct PostgresBuilder {
    settings: Vec<(String, String)>,
    env: Vec<(String, String)>,
    own_clock: bool,
    clock: Option<FakeClock>,
    primary: Option<SocketAddr>,
    password: Option<String>,
}

impl PostgresBuilder {
    /// A setting, as in `postgresql.conf`; of two with one name the later counts.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Runs it by a wall clock of its own; see [`Postgres::set_clock_offset`] and [`Postgres::clock`].
    pub fn fake_clock(mut self) -> Self {
        self.own_clock = true;
        self
    }

    /// Asks everyone who connects for this password (`scram-sha-256`). It has letters and digits only, and is part of
    /// [`Postgres::url`].
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Makes it a hot standby of that server, which streams to it. [`Postgres::promote`] makes a primary of it.
    pub fn standby_of(mut self, primary: &Postgres) -> Self {
        self.primary = Some(primary.addr());
        self
    }

    /// Starts it, and waits until it takes connections.
    pub async fn start(&self) -> Result<Postgres> {
        let mut launch = self.clone();
        if launch.own_clock {
            launch.clock = Some(FakeClock::new()?);
        }
        let mut tried = 1;
        loop {
            let postgres = launch.prepare().await?;
            match postgres.start_again().await {
                Ok(()) => {
                    if let Some(password) = &self.password {
                        postgres.ask_for(password).await?;
                    }
                    return Ok(postgres);
                }
                Err(_) if tried < PORTS && postgres.logs().contains("could not bind") => tried += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// A folder with fresh data, or with that of the primary, and a port.
    async fn prepare(&self) -> Result<Postgres> {
        let server = Server::new("postgres", "QUIT")?;
        let folder = server.folder().to_owned();
        let primary = self.primary;
        let install = tokio::task::spawn_blocking(move || {
            let install = Install::find()?;
            match primary {
                Some(primary) => template::follow(&install, primary, &folder)?,
                None => template::copy_into(&install, &folder)?,
            }
            anyhow::Ok(install)
        });
        Ok(Postgres {
            server,
            install: install.await??,
            port: Port::reserve()?,
            launch: Mutex::new(Self { password: None, ..self.clone() }),
            databases: AtomicU32::new(0),
        })
    }

    fn command(&self, postgres: &Postgres) -> Command {
        let port = postgres.port.number.to_string();
        let ours = [
            ("port", port.as_str()),
            ("listen_addresses", "127.0.0.1"),
            ("unix_socket_directories", ""),
            ("max_connections", "200"),
            // In the data folder, so that it goes with it.
            ("dynamic_shared_memory_type", "mmap"),
            ("timezone", "UTC"),
        ];
        let theirs = self.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let mut command = Command::new(postgres.install.program("postgres"));
        command.arg("-D").arg(postgres.data());
        for (name, value) in ours.into_iter().chain(theirs) {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        command.env("LC_ALL", "C.UTF-8");
        if let Some(clock) = &self.clock {
            clock.apply_without_threads(&mut command);
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }
}
