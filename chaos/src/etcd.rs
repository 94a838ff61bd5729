//! etcd as a server of one member, durable as it is by default.

use std::{net::SocketAddr, path::Path, process::Command, time::Duration};

use anyhow::Result;
use solehold_testkit::{Program, free_port, wait_for};

const START: Duration = Duration::from_secs(60);

/// An etcd that runs.
pub struct EtcdServer {
    /// It ends with this value.
    _program: Program,
    clients: SocketAddr,
    url: String,
}

/// Whether it is on this machine.
pub fn is_installed() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder: std::path::PathBuf| Path::is_file(&folder.join("etcd")))
}

impl EtcdServer {
    /// One that has elected itself.
    pub async fn start() -> Result<Self> {
        let clients = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let url = format!("http://{clients}");
        let peers = format!("http://127.0.0.1:{}", free_port()?);
        let mut command = Command::new("etcd");
        command.args(["--name", "chaos", "--data-dir", "data", "--log-outputs", "stderr"]);
        command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--initial-cluster", &format!("chaos={peers}")]);
        let program = Program::start("etcd", &command, "").await?;
        let health = format!("{url}/health");
        let is_healthy =
            async || reqwest::get(&health).await.is_ok_and(|answer| answer.status().is_success());
        wait_for("etcd to elect itself", START, is_healthy).await?;
        Ok(Self { _program: program, clients, url })
    }

    /// Where it answers clients.
    pub fn addr(&self) -> SocketAddr {
        self.clients
    }

    /// The same as a URL.
    pub fn url(&self) -> &str {
        &self.url
    }
}
