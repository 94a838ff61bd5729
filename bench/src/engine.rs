//! Acquire and release cycles per second of an engine in this process. Each task acquires and releases a resource of
//! its own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use clap::Args;
use solehold_core::{
    command::{Acquire, AskedTenure, Claim, Command, Target, Undeclared},
    key::{Document, LeaseId, Name, ResourceKey},
    outcome::Answer,
};
use solehold_engine::{
    Engine, EngineOptions,
    clock::BootTime,
    observe::{Lane, Observer},
};

/// Counts batches and the time that the store took for them.
#[derive(Default)]
struct Batches {
    count: AtomicU64,
    micros: AtomicU64,
}

impl Observer for Batches {
    fn batch(&self, _: Lane, _: usize, took: Duration) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
    }
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a short name")
}

/// Acquires and releases one resource. A request has a name where our own client would give it one.
async fn cycle(engine: &Engine, key: &ResourceKey, is_named: bool) {
    let lease = LeaseId::new(key, uuid::Uuid::new_v4());
    let acquire = Command::Acquire(Acquire {
        key: key.clone(),
        lease,
        holder: name("bench"),
        tenure: AskedTenure::Own { ttl_ms: 30_000 },
        request: is_named.then(|| name(&lease.to_string())),
        attributes: Document::default(),
        undeclared: Undeclared::Allow,
        wait: None,
        holds_at_most: None,
    });
    let granted = engine.submit(acquire).await.expect("the store answers");
    assert!(matches!(granted, Ok(Answer::Granted(_))), "{granted:?}");
    let target = Target::Lease { tenant: key.tenant.clone(), id: lease };
    let claim = Claim { target, token: None, session: None, holder: None };
    let released = engine.submit(Command::Release { claim, state: None }).await.expect("the store answers");
    assert!(released.is_ok(), "{released:?}");
}

async fn measure(place: &str, tasks: usize, options: &Options) {
    let store = solehold_engine::open(place).await.expect("a store");
    let batches = Arc::new(Batches::default());
    let engine = Engine::start(store, EngineOptions::default(), batches.clone());
    let cycles = Arc::new(AtomicU64::new(0));
    let began = BootTime::now();
    let long = Duration::from_secs(options.seconds);
    let is_named = options.named;
    let workers: Vec<_> = (0..tasks)
        .map(|n| {
            let engine = engine.clone();
            let cycles = cycles.clone();
            let key =
                ResourceKey { tenant: name("default"), kind: name("bench"), key: name(&format!("job-{n}")) };
            tokio::spawn(async move {
                while BootTime::now().since(began) < long {
                    cycle(&engine, &key, is_named).await;
                    cycles.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.expect("no panic");
    }
    let took = BootTime::now().since(began).as_secs_f64();
    let cycles = cycles.load(Ordering::Relaxed);
    let count = batches.count.load(Ordering::Relaxed).max(1);
    let store_ms = batches.micros.load(Ordering::Relaxed) as f64 / 1_000.0 / count as f64;
    println!(
        "{tasks:4} tasks: {:8.0} cycles/s, {:8.0} ops/s, {:6.1} commands per batch, {store_ms:5.2} ms in the store",
        cycles as f64 / took,
        2.0 * cycles as f64 / took,
        2.0 * cycles as f64 / count as f64,
    );
    engine.stop().await;
}

#[derive(Debug, Args)]
pub struct Options {
    /// Length of each measurement
    #[arg(long, value_name = "N", default_value_t = 5)]
    seconds: u64,
    /// The folder to make temporary data folders in, or `memory`
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    store: String,
    /// Numbers of tasks; each is one measurement
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,64,256")]
    tasks: Vec<usize>,
    /// Give each request a name, as our own client does, by which a repeat is recognised
    #[arg(long)]
    named: bool,
}

pub async fn run(options: Options) -> Result<()> {
    for &tasks in &options.tasks {
        if options.store == "memory" {
            measure("memory:", tasks, &options).await;
            continue;
        }
        let folder = tempfile::tempdir_in(&options.store).context("a temporary folder")?;
        measure(folder.path().to_str().context("a path in UTF-8")?, tasks, &options).await;
    }
    Ok(())
}
