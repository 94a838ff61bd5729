//! nisshi: Kafka's protocol as current brokers speak it, which the Apache Kafka of these tests predates.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::{START, listens, loopback};
use crate::{port::Port, server::Server};

#[derive(Debug)]
pub(super) struct Nisshi {
    pub server: Server,
    program: PathBuf,
    port: Port,
    advertised: SocketAddr,
}

impl Nisshi {
    pub async fn start(program: PathBuf, port: Port, advertised: SocketAddr) -> Result<Self> {
        let nisshi = Self { server: Server::new("nisshi", "KILL")?, program, port, advertised };
        nisshi.spawn().await?;
        Ok(nisshi)
    }

    pub async fn spawn(&self) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.arg("broker").arg("--listener-url").arg(format!("tcp://{}", loopback(&self.port)));
        command.arg("--advertised-listener-url").arg(format!("tcp://{}", self.advertised));
        // In its folder, where it outlives the process.
        command.args(["--storage-engine", "sqlite://nisshi.db"]);
        command.args(["--group-initial-rebalance-delay", "100ms", "--group-poll-interval", "50ms"]);
        self.server.spawn(&command, None)?;
        self.server.wait_ready(START, || listens(&self.port).then_some(())).await
    }
}
