//! A lock that many tasks wait for in line: its holder releases it and joins the line again. Measured is the time
//! from before a release until the next in line knows that it has the lock.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Result;
use solehold_client::Locks;

use super::{
    etcd::{EtcdClient, LeaseNumber},
    ours,
    servers::Servers,
    system::System,
};
use crate::round::{Round, Turn, Turned, measure};

pub const SYSTEMS: &[System] = &[System::Embedded, System::Postgres, System::Etcd];

const LOCK: &str = "handed-over";
/// How long a task waits for its turn.
const PATIENCE: Duration = Duration::from_secs(600);

pub async fn round(servers: &Servers, system: System, tasks: usize, duration: Duration) -> Result<Round> {
    let meter = servers.meter(system)?;
    let released = LastRelease::default();
    if system.is_ours() {
        let locks = &servers.ours(system)?.locks;
        let task = |_| OurTurn { locks: locks.clone(), released: released.clone() };
        return measure(&meter, (0..tasks).map(task).collect(), duration).await;
    }
    let server = servers.etcd()?;
    let leases = server.waiters.get_or_try_init(|| server.client.grant_all(tasks, ours::TTL)).await?;
    let task = |lease: &LeaseNumber| EtcdTurn {
        client: server.client.clone(),
        lease: *lease,
        released: released.clone(),
    };
    measure(&meter, leases.iter().map(task).collect(), duration).await
}

/// When the last holder began to release, in microseconds since the round began.
#[derive(Clone)]
struct LastRelease {
    began: Instant,
    at_us: Arc<AtomicU64>,
}

impl Default for LastRelease {
    fn default() -> Self {
        Self { began: Instant::now(), at_us: Arc::default() }
    }
}

impl LastRelease {
    fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    /// How long ago it was.
    fn elapsed(&self) -> Duration {
        Duration::from_micros(self.now_us().saturating_sub(self.at_us.load(Ordering::SeqCst)))
    }

    fn begins(&self) {
        self.at_us.store(self.now_us(), Ordering::SeqCst);
    }
}

struct OurTurn {
    locks: Locks,
    released: LastRelease,
}

impl Turn for OurTurn {
    async fn turn(&mut self) -> Result<Turned> {
        let guard = self.locks.acquire_within(LOCK, PATIENCE).await?;
        let latency = self.released.elapsed();
        self.released.begins();
        guard.release().await?;
        Ok(Turned::whole(1, latency))
    }
}

/// The mutex of etcd's lock service, which is that of its Go client.
struct EtcdTurn {
    client: EtcdClient,
    lease: LeaseNumber,
    released: LastRelease,
}

impl Turn for EtcdTurn {
    async fn turn(&mut self) -> Result<Turned> {
        let key = self.client.lock(LOCK, self.lease).await?;
        let latency = self.released.elapsed();
        self.released.begins();
        self.client.unlock(&key).await?;
        Ok(Turned::whole(1, latency))
    }
}
