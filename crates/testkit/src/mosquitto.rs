//! A private Mosquitto.

use std::{
    fs,
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result};

use crate::{port::Port, program::on_path, server::Server};

const START: Duration = Duration::from_secs(60);

/// A running Mosquitto.
#[derive(Debug)]
pub struct Mosquitto {
    server: Server,
    port: Port,
}

impl Mosquitto {
    /// Starts one that loses nothing when it is stopped, and waits until it takes clients. By default Mosquitto
    /// persists nothing, drops messages beyond a thousand, and has twenty in flight.
    pub async fn start() -> Result<Self> {
        let lines = "allow_anonymous true\nautosave_interval 1\nmax_queued_messages 0\n\
             max_inflight_messages 1000\n";
        Self::configured(|folder, port| {
            let folder = folder.display();
            Ok(format!(
                "listener {port} 127.0.0.1\npersistence true\npersistence_location {folder}/\n{lines}"
            ))
        })
        .await
    }

    /// Starts one with the lines of a configuration of its own, given its folder and its port.
    pub async fn configured(config: impl FnOnce(&Path, u16) -> Result<String>) -> Result<Self> {
        let server = Server::new("mosquitto", "TERM")?;
        let port = Port::reserve()?;
        let config = format!("user root\n{}", config(server.folder(), port.number)?);
        fs::write(server.folder().join("mosquitto.conf"), config)?;
        let broker = Self { server, port };
        broker.spawn().await?;
        Ok(broker)
    }

    async fn spawn(&self) -> Result<()> {
        let program: PathBuf = on_path("mosquitto", &["/usr/sbin"])
            .context("Mosquitto is not here: install the Debian package `mosquitto`")?;
        let config = self.server.folder().join("mosquitto.conf");
        self.server.spawn(Command::new(program).arg("-c").arg(config), None)?;
        let listens = || TcpStream::connect(("127.0.0.1", self.port.number)).is_ok().then_some(());
        self.server.wait_ready(START, listens).await
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port.number
    }

    /// Such as `mqtt://127.0.0.1:21234`.
    pub fn url(&self) -> String {
        format!("mqtt://127.0.0.1:{}", self.port.number)
    }

    /// The process, if it runs.
    pub fn pid(&self) -> Result<u32> {
        Ok(self.server.pid()?.as_raw_nonzero().get().unsigned_abs())
    }

    /// Stops it, as an administrator would: what it has is written to its file.
    pub async fn stop(&self) -> Result<()> {
        self.server.end_by(rustix::process::Signal::TERM, START).await.map(|_| ())
    }

    /// Ends it at once (SIGKILL): it has only what it had saved.
    pub async fn kill9(&self) -> Result<()> {
        self.server.kill9().await
    }

    /// Starts it again, with what it had.
    pub async fn restart(&self) -> Result<()> {
        self.spawn().await
    }
}
