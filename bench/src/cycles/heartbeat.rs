//! What a heartbeat costs in the store, for a runner that holds few leases and one that holds many.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use solehold_core::{
    command::{Acquire, AskedTenure, Command, OpenSession, Undeclared},
    key::{Document, HolderKey, LeaseId, Name, ResourceKey, SessionId},
};
use solehold_engine::Engine;
use uuid::Uuid;

/// Leases of the small runner and of the large one.
pub const LEASES: [usize; 2] = [10, 1_000];
/// Heartbeats of each, one after the other in turn.
const BEATS: usize = 400;

/// The median time of a heartbeat of each runner.
pub async fn medians(engine: &Engine) -> Result<[Duration; 2]> {
    let mut sessions = Vec::new();
    for leases in LEASES {
        sessions.push(runner(engine, leases).await?);
    }
    let mut times = [Vec::new(), Vec::new()];
    for beat in 0..BEATS {
        // The order changes, so that neither always follows the other.
        for runner in [beat % 2, 1 - beat % 2] {
            let heartbeat = Command::Heartbeat {
                tenant: name("bench")?,
                session: sessions[runner],
                holder: None,
                metrics: None,
            };
            let began = Instant::now();
            engine.submit(heartbeat).await?.map_err(|refusal| anyhow!(refusal))?;
            times[runner].push(began.elapsed());
        }
    }
    for session in sessions {
        let close = Command::CloseSession { tenant: name("bench")?, session };
        engine.submit(close).await?.map_err(|refusal| anyhow!(refusal))?;
    }
    let median = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2]
    };
    let [few, many] = &mut times;
    Ok([median(few), median(many)])
}

/// A runner with a session that has `leases` leases.
async fn runner(engine: &Engine, leases: usize) -> Result<SessionId> {
    let holder = name(&format!("bench-runner-{leases}"))?;
    let session = SessionId(Uuid::now_v7());
    let open = Command::OpenSession(OpenSession {
        id: session,
        holder: HolderKey { tenant: name("bench")?, name: holder.clone() },
        ttl_ms: 300_000,
        replace: None,
        fenced: true,
        follows: None,
        registration: None,
        metrics: None,
    });
    engine.submit(open).await?.map_err(|refusal| anyhow!(refusal))?;
    let mut commands = Vec::with_capacity(leases);
    for index in 0..leases {
        let key = name(&format!("{leases}-{index}-{session}"))?;
        commands.push(Command::Acquire(Acquire {
            key: ResourceKey { tenant: name("bench")?, kind: name("bench")?, key },
            lease: LeaseId(Uuid::now_v7()),
            holder: holder.clone(),
            tenure: AskedTenure::Session(session),
            request: None,
            attributes: Document::default(),
            undeclared: Undeclared::Allow,
            wait: None,
            holds_at_most: None,
        }));
    }
    for outcome in engine.submit_all(commands).await {
        outcome?.map_err(|refusal| anyhow!(refusal))?;
    }
    Ok(session)
}

fn name(text: &str) -> Result<Name> {
    Name::new(text).context("a short name")
}
