//! A private Redis.

use std::{fs, net::TcpStream, path::PathBuf, process::Command, time::Duration};

use anyhow::{Context, Result};

use crate::{port::Port, program::on_path, server::Server};

const START: Duration = Duration::from_secs(60);

/// A running Redis, which keeps everything in memory.
#[derive(Debug)]
pub struct Redis {
    _server: Server,
    port: Port,
    tls_port: Port,
}

impl Redis {
    /// Starts one, and waits until it takes clients.
    pub async fn start() -> Result<Self> {
        Self::start_with(None).await
    }

    /// The same, which also speaks TLS with this certificate and its key, both PEM.
    pub async fn start_tls(certificate: &str, key: &str) -> Result<Self> {
        Self::start_with(Some([certificate, key])).await
    }

    async fn start_with(tls: Option<[&str; 2]>) -> Result<Self> {
        let server = Server::new("redis-server", "TERM")?;
        let port = Port::reserve()?;
        let tls_port = Port::reserve()?;
        let program: PathBuf = on_path("redis-server", &["/usr/bin"])
            .context("Redis is not here: install the Debian package `redis-server`")?;
        let mut command = Command::new(program);
        command.args(["--port", &port.number.to_string(), "--bind", "127.0.0.1"]);
        command.args(["--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction", "--dir"]);
        command.arg(server.folder());
        if let Some([certificate, key]) = tls {
            let [certificate_file, key_file] = ["cert.pem", "key.pem"].map(|file| server.folder().join(file));
            fs::write(&certificate_file, certificate)?;
            fs::write(&key_file, key)?;
            command.args(["--tls-port", &tls_port.number.to_string(), "--tls-auth-clients", "no"]);
            command.arg("--tls-ca-cert-file").arg(&certificate_file);
            command.arg("--tls-cert-file").arg(certificate_file).arg("--tls-key-file").arg(key_file);
        }
        server.spawn(&command, None)?;
        let listens = || TcpStream::connect(("127.0.0.1", port.number)).is_ok().then_some(());
        server.wait_ready(START, listens).await?;
        Ok(Self { _server: server, port, tls_port })
    }

    /// Such as `127.0.0.1:21234`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port.number)
    }

    /// The same over TLS, by the name `localhost`.
    pub fn tls_address(&self) -> String {
        format!("localhost:{}", self.tls_port.number)
    }
}
