//! What a heartbeat costs in the store, for a runner that holds few leases and one that holds many.

use std::time::{Duration, Instant};

use anyhow::Result;
use solehold_core::{
    command::{AskedTenure, Command},
    key::SessionId,
};
use solehold_engine::Engine;
use uuid::Uuid;

use crate::commands;

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
            let heartbeat = commands::heartbeat(sessions[runner]);
            let began = Instant::now();
            commands::submit(engine, heartbeat).await?;
            times[runner].push(began.elapsed());
        }
    }
    for session in sessions {
        commands::submit(engine, Command::CloseSession { tenant: commands::tenant(), session }).await?;
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
    let holder = commands::name(format!("bench-runner-{leases}"));
    let session = SessionId(Uuid::now_v7());
    commands::submit(engine, commands::open_session(session, holder.clone(), 300_000)).await?;
    let acquire = |index: usize| {
        let key = commands::resource(format!("{leases}-{index}-{session}"));
        Command::Acquire(commands::acquire(key, holder.clone(), AskedTenure::Session(session)))
    };
    commands::submit_all(engine, (0..leases).map(acquire).collect()).await?;
    Ok(session)
}
