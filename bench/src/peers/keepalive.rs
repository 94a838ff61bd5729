//! Leases kept alive: ours by the heartbeats of sessions that have a thousand leases each, those of etcd one by one, a
//! thousand over each stream.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use solehold_client::{
    Http, LOCK_KIND, Metrics, ResourceName, SessionId,
    authority::{Authority as _, Beat, HeartbeatAttempt},
};

use super::{
    etcd::{EtcdClient, KeepAlive, LeaseNumber},
    ours,
    servers::{EtcdServer, Ours, Servers},
    system::System,
};
use crate::round::{Round, Turn, Turned, measure};

pub const SYSTEMS: &[System] = &[System::Embedded, System::Postgres, System::Etcd];
/// Sessions of ours, and clients of etcd, that renew side by side.
pub const TASKS: usize = 8;
/// Leases of each.
pub const LEASES: usize = 1_000;

/// How long one heartbeat may take.
const PATIENCE: Duration = Duration::from_secs(30);

pub async fn round(servers: &Servers, system: System, duration: Duration) -> Result<Round> {
    let meter = servers.meter(system)?;
    if system.is_ours() {
        let server = servers.ours(system)?;
        let sessions = server.sessions.get_or_try_init(|| open(server)).await?;
        let task = |session: &SessionId| Heartbeats {
            authority: server.authority.clone(),
            session: *session,
            last: None,
        };
        return measure(&meter, sessions.iter().map(task).collect(), duration).await;
    }
    let server = servers.etcd()?;
    let mut tasks = Vec::new();
    for leases in server.leases.get_or_try_init(|| grant(server)).await? {
        let mut client = server.connect().await?;
        tasks.push(KeepAlives { stream: client.keep_alive(leases).await?, _client: client });
    }
    measure(&meter, tasks, duration).await
}

/// Opens the sessions and acquires their leases.
async fn open(server: &Ours) -> Result<Vec<SessionId>> {
    let mut sessions = Vec::new();
    for task in 0..TASKS {
        let holder = format!("bench-keeper-{task}");
        let session = ours::open(&server.authority, &holder).await?;
        let name = |lease| ResourceName::new(LOCK_KIND, format!("kept-{task}-{lease}"));
        let resources = (0..LEASES).map(name).collect::<Result<Vec<_>, _>>()?;
        ours::acquire(&server.authority, ours::acquires(&resources, &holder, session)?).await?;
        sessions.push(session);
    }
    Ok(sessions)
}

/// Renews one session, and with it all of its leases.
struct Heartbeats {
    authority: Arc<Http>,
    session: SessionId,
    /// The last answer: each heartbeat names the set in it, and shows its sealed cursor, as our own sessions do.
    last: Option<Beat>,
}

impl Turn for Heartbeats {
    async fn turn(&mut self) -> Result<Turned> {
        let metrics = Metrics::new();
        let last = self.last.as_ref();
        let cursor = last.and_then(|beat| beat.sealed_cursor.as_deref());
        let began = Instant::now();
        let attempt = HeartbeatAttempt::within(PATIENCE);
        let beat = ours::done(self.authority.heartbeat(self.session, &metrics, cursor, last, attempt).await)?;
        let latency = began.elapsed();
        ensure!(beat.leases.len() == LEASES, "a session has {} of {LEASES} leases", beat.leases.len());
        self.last = Some(beat);
        Ok(Turned::whole(LEASES as u64, latency))
    }
}

/// The leases of each client of etcd.
async fn grant(server: &EtcdServer) -> Result<Vec<Vec<LeaseNumber>>> {
    let leases = server.client.grant_all(TASKS * LEASES, ours::TTL).await?;
    Ok(leases.chunks(LEASES).map(<[_]>::to_vec).collect())
}

struct KeepAlives {
    stream: KeepAlive,
    _client: EtcdClient,
}

impl Turn for KeepAlives {
    async fn turn(&mut self) -> Result<Turned> {
        let began = Instant::now();
        self.stream.renew_all().await?;
        Ok(Turned::whole(LEASES as u64, began.elapsed()))
    }
}
