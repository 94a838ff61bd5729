//! Runners: heartbeats per second and core, of more and more sessions with one lease each.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use solehold_core::{
    command::{AskedTenure, Command},
    key::SessionId,
};
use solehold_engine::Engine;
use uuid::Uuid;

use super::{AT_ONCE, LONG_TTL_MS, Options, TASKS, count, cpu_of_each, head, micros, quantile_ms};
use crate::{
    commands,
    engine::{start_in, temporary_folder},
    round::{Turn, Turned, measure_here},
    table::thousands,
};

const SIZES: [usize; 5] = [10, 100, 1_000, 10_000, 100_000];
/// How often a runner with a ttl of 30 s sends one: our own client renews after a third of the ttl.
const BEAT_EVERY: Duration = Duration::from_secs(10);

pub async fn rows(options: &Options) -> Result<Vec<Vec<String>>> {
    let mut rows = vec![head([
        "runners",
        "heartbeats/s",
        "p50, ms",
        "p99, ms",
        "CPU per heartbeat, µs",
        "heartbeats/s and core",
        "runners per core, ttl 30 s",
    ])];
    for runners in options.sizes(&SIZES) {
        eprintln!("{} runners ...", count(runners));
        let folder = temporary_folder(&options.store)?;
        let engine = start_in(folder.path(), Arc::new(())).await?;
        let sessions = register(&engine, runners).await?;
        let share = runners.div_ceil(TASKS);
        let task =
            |sessions: &[SessionId]| Rounds { engine: engine.clone(), sessions: sessions.into(), next: 0 };
        let round = measure_here(sessions.chunks(share).map(task).collect(), options.duration()).await?;
        let cpu = cpu_of_each(&round);
        let per_core = 1.0 / cpu.as_secs_f64().max(1e-9);
        rows.push(vec![
            count(runners),
            thousands(round.rate()),
            quantile_ms(&round.latency_us, 0.5),
            quantile_ms(&round.latency_us, 0.99),
            micros(cpu),
            thousands(per_core),
            thousands(per_core * BEAT_EVERY.as_secs_f64()),
        ]);
        engine.stop().await;
    }
    Ok(rows)
}

/// Opens sessions and acquires one lease for each.
async fn register(engine: &Engine, runners: usize) -> Result<Vec<SessionId>> {
    let mut sessions = Vec::with_capacity(runners);
    for from in (0..runners).step_by(AT_ONCE) {
        let mut opens = Vec::with_capacity(AT_ONCE);
        let mut acquires = Vec::with_capacity(AT_ONCE);
        for number in from..runners.min(from + AT_ONCE) {
            let session = SessionId(Uuid::now_v7());
            let holder = commands::name(format!("runner-{number:06}"));
            let key = commands::resource(format!("held-{number:06}"));
            opens.push(commands::open_session(session, holder.clone(), LONG_TTL_MS));
            let acquire = commands::acquire(key, holder, AskedTenure::Session(session));
            acquires.push(Command::Acquire(commands::named(acquire)));
            sessions.push(session);
        }
        commands::submit_all(engine, opens).await?;
        commands::submit_all(engine, acquires).await?;
    }
    Ok(sessions)
}

/// Heartbeats of some sessions in turn.
struct Rounds {
    engine: Engine,
    sessions: Vec<SessionId>,
    next: usize,
}

impl Turn for Rounds {
    async fn turn(&mut self) -> Result<Turned> {
        let session = self.sessions[self.next];
        self.next = (self.next + 1) % self.sessions.len();
        let began = Instant::now();
        commands::submit(&self.engine, commands::heartbeat(session)).await?;
        Ok(Turned::whole(1, began.elapsed()))
    }
}
