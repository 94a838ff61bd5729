//! A private Mosquitto.

use std::{fs, net::TcpStream, path::PathBuf, process::Command, time::Duration};

use anyhow::{Context, Result};

use crate::{port::Port, program::on_path, server::Server};

const START: Duration = Duration::from_secs(60);

/// A running Mosquitto, which keeps sessions and messages across restarts.
#[derive(Debug)]
pub struct Mosquitto {
    server: Server,
    port: Port,
}

impl Mosquitto {
    /// Starts one, and waits until it takes clients.
    pub async fn start() -> Result<Self> {
        let server = Server::new("mosquitto", "TERM")?;
        let port = Port::reserve()?;
        let folder = server.folder().display().to_string();
        // By default it persists nothing and drops messages beyond a thousand.
        let config = format!(
            "listener {} 127.0.0.1\nallow_anonymous true\nuser root\npersistence true\npersistence_location {folder}/\n\
             autosave_interval 1\nautosave_on_changes true\nmax_queued_messages 0\nmax_inflight_messages 1000\n",
            port.number
        );
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

    /// Stops it, as an administrator would: what it has is written to its file.
    pub async fn stop(&self) -> Result<()> {
        self.server.end_by(rustix::process::Signal::TERM, START).await.map(|_| ())
    }

    /// Starts it again, with what it had.
    pub async fn restart(&self) -> Result<()> {
        self.spawn().await
    }
}
