//! Batches: leases per second when more and more acquires are submitted together. The release does not count.

use std::{sync::Arc, time::Instant};

use anyhow::Result;
use solehold_core::{
    command::{AskedTenure, Command},
    key::{Name, ResourceKey, SessionId},
};
use solehold_engine::Engine;
use uuid::Uuid;

use super::{LONG_TTL_MS, Options, count, cpu_of_each, head, micros, quantile_ms};
use crate::{
    commands,
    engine::{start, start_in, temporary_folder},
    round::{Turn, Turned, measure_here},
    table::thousands,
};

/// The driver splits the last one: a batch has at most 1,024 commands.
const SIZES: [usize; 5] = [1, 10, 100, 1_000, 5_000];

pub async fn rows(options: &Options) -> Result<Vec<Vec<String>>> {
    let mut rows = vec![head([
        "acquires submitted together",
        "store",
        "leases/s",
        "p50 of all, ms",
        "p99, ms",
        "CPU per lease with its release, µs",
    ])];
    for leases in options.sizes(&SIZES) {
        let folder = temporary_folder(&options.store)?;
        let engine = start_in(folder.path(), Arc::new(())).await?;
        rows.push(measure(options, engine, leases).await?);
        if let Some(url) = &options.postgres {
            rows.push(measure(options, start(url, Arc::new(())).await?, leases).await?);
        }
    }
    Ok(rows)
}

async fn measure(options: &Options, engine: Engine, leases: usize) -> Result<Vec<String>> {
    let store = engine.store_name();
    eprintln!("{} acquires together, {store} ...", count(leases));
    let session = SessionId(Uuid::now_v7());
    let holder = commands::name(format!("batch-{session}"));
    commands::submit(&engine, commands::open_session(session, holder.clone(), LONG_TTL_MS)).await?;
    let keys = (0..leases).map(|lease| commands::resource(format!("batch-{lease:04}"))).collect();
    let mut task = Batch { engine: engine.clone(), session, holder, keys };
    // The first one makes rows that later ones find.
    task.turn().await?;
    let round = measure_here(vec![task], options.duration()).await?;
    let close = Command::CloseSession { tenant: commands::tenant(), session };
    commands::submit(&engine, close).await?;
    engine.stop().await;
    Ok(vec![
        count(leases),
        store.to_owned(),
        thousands(round.rate()),
        quantile_ms(&round.latency_us, 0.5),
        quantile_ms(&round.latency_us, 0.99),
        micros(cpu_of_each(&round)),
    ])
}

/// Acquires all of its resources together, then releases them.
struct Batch {
    engine: Engine,
    session: SessionId,
    holder: Name,
    keys: Vec<ResourceKey>,
}

impl Turn for Batch {
    async fn turn(&mut self) -> Result<Turned> {
        let prepared = Instant::now();
        let tenure = AskedTenure::Session(self.session);
        let acquire = |key: &ResourceKey| commands::acquire(key.clone(), self.holder.clone(), tenure);
        let acquires: Vec<_> = self.keys.iter().map(|key| commands::named(acquire(key))).collect();
        let releases = acquires.iter().map(|acquire| commands::release(acquire.lease)).collect();
        let acquires = acquires.into_iter().map(Command::Acquire).collect();
        let began = Instant::now();
        commands::submit_all(&self.engine, acquires).await?;
        let latency = began.elapsed();
        commands::submit_all(&self.engine, releases).await?;
        Ok(Turned { units: self.keys.len() as u64, latency, aside: prepared.elapsed() - latency })
    }
}
