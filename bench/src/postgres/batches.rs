//! Batches per second of the PostgreSQL store.
//!
//! A round acquires a batch of declared resources in one commit and releases them in the next. With `--heartbeats`, the
//! quiet lane renews that many sessions at a time beside it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use clap::Args;
use solehold_core::{command::*, key::*, lease::Declaration, outcome::Answer};
use solehold_engine::{
    clock::BootTime,
    postgres::{PostgresOptions, PostgresStore},
};
use uuid::Uuid;

use super::commit;
use crate::commands::{self, name};

fn key(n: usize) -> ResourceKey {
    commands::resource(format!("job-{n:06}"))
}

fn acquire(n: usize) -> Command {
    let acquire = commands::acquire(key(n), name("worker-17"), AskedTenure::Own { ttl_ms: 30_000 });
    Command::Acquire(Acquire { undeclared: Undeclared::Refuse, ..acquire })
}

/// Opens sessions and renews all of them, one batch after the other, until told to stop.
async fn beat(store: Arc<PostgresStore>, sessions: usize, stop: Arc<AtomicBool>, beats: Arc<AtomicU64>) {
    let mut ids = Vec::new();
    for n in 0..sessions {
        let id = SessionId(Uuid::now_v7());
        ids.push(id);
        let open = commands::open_session(id, name(format!("holder-{n}")), 30_000);
        commit(&*store, vec![open]).await.expect("opened");
    }
    while !stop.load(Ordering::Relaxed) && sessions > 0 {
        commit(&*store, ids.iter().copied().map(commands::heartbeat)).await.expect("renewed");
        beats.fetch_add(sessions as u64, Ordering::Relaxed);
    }
}

#[derive(Debug, Args)]
pub struct Options {
    /// The database: postgres://USER@HOST/DATABASE
    url: String,
    /// Number of resources
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    resources: usize,
    /// Resources per batch
    #[arg(long, value_name = "N", default_value_t = 64)]
    batch: usize,
    /// Length of the measurement
    #[arg(long, value_name = "N", default_value_t = 5)]
    seconds: u64,
    /// Sessions to renew beside the batches
    #[arg(long, value_name = "N", default_value_t = 0)]
    heartbeats: usize,
}

pub async fn run(options: Options) -> Result<()> {
    let Options { url, resources, batch, seconds, heartbeats } = options;
    let store = PostgresStore::open(&url, PostgresOptions::default()).await?;
    let declare = |n| Command::Declare { key: key(n), declaration: Declaration::default(), only_new: false };
    for from in (0..resources).step_by(1_000) {
        commit(&*store, (from..resources.min(from + 1_000)).map(declare)).await?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let beats = Arc::new(AtomicU64::new(0));
    let beating = tokio::spawn(beat(store.clone(), heartbeats, stop.clone(), beats.clone()));
    let began = BootTime::now();
    let mut batches = 0_u32;
    let mut slowest = Duration::ZERO;
    let mut at = 0;
    while BootTime::now().since(began) < Duration::from_secs(seconds) {
        let round = BootTime::now();
        let keys: Vec<_> = (0..batch).map(|n| (at + n * 7) % resources).collect();
        at = (at + batch * 7 + 1) % resources;
        let mut granted: Vec<_> = Vec::new();
        for outcome in commit(&*store, keys.into_iter().map(acquire)).await? {
            if let Ok(Answer::Granted(grant)) = outcome {
                granted.push((grant.lease.key, grant.lease.lease.token));
            }
        }
        let release = |(key, token)| {
            let claim =
                Claim { target: Target::Resource(key), token: Some(token), session: None, holder: None };
            Command::Release { claim, state: None }
        };
        commit(&*store, granted.into_iter().map(release)).await?;
        slowest = slowest.max(BootTime::now().since(round));
        batches += 2;
    }
    let took = BootTime::now().since(began).as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    beating.await?;
    let batches_s = f64::from(batches) / took;
    let beats = beats.load(Ordering::Relaxed) as f64 / took;
    println!(
        "{batches_s:.0} batches/s of {batch}: {:.0} acquire+release cycles/s; slowest round {slowest:?}; {beats:.0} heartbeats/s",
        batches_s * batch as f64 / 2.0
    );
    Ok(())
}
