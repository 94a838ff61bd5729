//! A private Redis.

use std::{net::TcpStream, path::PathBuf, process::Command, time::Duration};

use anyhow::{Context, Result};

use crate::{port::Port, program::on_path, server::Server};

const START: Duration = Duration::from_secs(60);

/// A running Redis, which keeps everything in memory.
#[derive(Debug)]
pub struct Redis {
    _server: Server,
    port: Port,
}

impl Redis {
    /// Starts one, and waits until it takes clients.
    pub async fn start() -> Result<Self> {
        let server = Server::new("redis-server", "TERM")?;
        let port = Port::reserve()?;
        let program: PathBuf = on_path("redis-server", &["/usr/bin"])
            .context("Redis is not here: install the Debian package `redis-server`")?;
        let mut command = Command::new(program);
        command.args(["--port", &port.number.to_string(), "--bind", "127.0.0.1"]);
        command.args(["--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction", "--dir"]);
        command.arg(server.folder());
        server.spawn(&command, None)?;
        let listens = || TcpStream::connect(("127.0.0.1", port.number)).is_ok().then_some(());
        server.wait_ready(START, listens).await?;
        Ok(Self { _server: server, port })
    }

    /// Such as `127.0.0.1:21234`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port.number)
    }
}
