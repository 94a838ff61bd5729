//! One HTTP request per operation, over a connection that each task keeps.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use solehold_api::paths;

use super::Keys;
use crate::{
    cycles::load::{HAND_WRITTEN_SCENES, Wire, request},
    round::{Turn, Turned},
};

/// A lock of ours: the holder asks for it, and shows the token to release it.
pub struct Cycle {
    wire: Wire,
    keys: Keys,
    holder: String,
}

#[derive(Deserialize)]
struct Granted {
    token: u64,
}

impl Cycle {
    pub async fn open(server: SocketAddr, task: usize) -> Result<Self> {
        let holder = format!(r#"{{"holder":"bench-{task}"}}"#);
        Ok(Self { wire: Wire::open(server).await?, keys: Keys::of(task), holder })
    }
}

impl Turn for Cycle {
    async fn turn(&mut self) -> Result<Turned> {
        let path = paths::lock(self.keys.next());
        let latency = ask(&mut self.wire, &request("POST", &path, &self.holder), 201).await?;
        let granted: Granted = serde_json::from_slice(self.wire.body()).context("a grant")?;
        let proof = format!(r#"{{"token":{}}}"#, granted.token);
        ask(&mut self.wire, &request("DELETE", &path, &proof), 204).await?;
        Ok(Turned::whole(1, latency))
    }
}

/// A scene of the hand-written SQL: the holder's name is enough to release it.
pub struct SceneCycle {
    wire: Wire,
    keys: Keys,
    holder: String,
}

impl SceneCycle {
    pub async fn open(server: SocketAddr, task: usize) -> Result<Self> {
        let holder = format!(r#"{{"holder_id":"bench-{task}"}}"#);
        Ok(Self { wire: Wire::open(server).await?, keys: Keys::of(task), holder })
    }
}

impl Turn for SceneCycle {
    async fn turn(&mut self) -> Result<Turned> {
        let path = format!("{HAND_WRITTEN_SCENES}/{}/lease", self.keys.next());
        let latency = ask(&mut self.wire, &request("POST", &path, &self.holder), 201).await?;
        ask(&mut self.wire, &request("DELETE", &path, &self.holder), 204).await?;
        Ok(Turned::whole(1, latency))
    }
}

async fn ask(wire: &mut Wire, request: &[u8], expected: u16) -> Result<Duration> {
    let began = Instant::now();
    let status = wire.ask(request).await?;
    let latency = began.elapsed();
    ensure!(status == expected, "the server answered {status} where {expected} was due: {}", wire.text());
    Ok(latency)
}
