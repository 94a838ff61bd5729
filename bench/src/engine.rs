//! Acquire and release cycles per second of an engine in this process. Each task acquires and releases a resource of
//! its own.

use std::{
    fs::Permissions,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::Args;
use solehold_core::{
    command::{AskedTenure, Command},
    key::{Name, ResourceKey},
};
use solehold_engine::{
    Engine, EngineOptions,
    observe::{Lane, Observer},
};
use tempfile::TempDir;

use crate::{
    commands,
    round::{Turn, Turned, measure_here},
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

/// Acquires and releases one resource.
pub struct Cycle {
    engine: Engine,
    key: ResourceKey,
    holder: Name,
    /// Whether requests have names, as those of our own client do.
    is_named: bool,
}

impl Cycle {
    /// The cycle of task number `task`, on a resource of its own.
    pub fn new(engine: &Engine, task: usize, is_named: bool) -> Self {
        let key = commands::resource(format!("cycle-{task}"));
        Self { engine: engine.clone(), key, holder: commands::name("bench"), is_named }
    }
}

impl Turn for Cycle {
    async fn turn(&mut self) -> Result<Turned> {
        let tenure = AskedTenure::Own { ttl_ms: 30_000 };
        let mut acquire = commands::acquire(self.key.clone(), self.holder.clone(), tenure);
        if self.is_named {
            acquire = commands::named(acquire);
        }
        let lease = acquire.lease;
        let began = Instant::now();
        commands::submit(&self.engine, Command::Acquire(acquire)).await?;
        let latency = began.elapsed();
        commands::submit(&self.engine, commands::release(lease)).await?;
        Ok(Turned::whole(1, latency))
    }
}

/// Starts an engine over the store that `place` names.
pub async fn start(place: &str, observer: Arc<dyn Observer>) -> Result<Engine> {
    let store = solehold_engine::open(place).await.with_context(|| format!("opening {place}"))?;
    Ok(Engine::start(store, EngineOptions::default(), observer))
}

/// Starts an engine over the embedded store in `folder`.
pub async fn start_in(folder: &Path, observer: Arc<dyn Observer>) -> Result<Engine> {
    start(folder.to_str().context("a path in UTF-8")?, observer).await
}

/// A temporary data folder that only this user can read: the engine warns about any other.
pub fn temporary_folder(parent: &Path) -> Result<TempDir> {
    let private = Permissions::from_mode(0o700);
    let folder = tempfile::Builder::new().permissions(private).tempdir_in(parent);
    folder.with_context(|| format!("a temporary folder in {}", parent.display()))
}

async fn measure(engine: Engine, batches: &Batches, tasks: usize, options: &Options) -> Result<()> {
    let cycles = (0..tasks).map(|task| Cycle::new(&engine, task, options.named)).collect();
    let round = measure_here(cycles, Duration::from_secs(options.seconds)).await?;
    let count = batches.count.load(Ordering::Relaxed).max(1);
    let store_ms = batches.micros.load(Ordering::Relaxed) as f64 / 1_000.0 / count as f64;
    println!(
        "{tasks:4} tasks: {:8.0} cycles/s, {:8.0} ops/s, {:6.1} commands per batch, {store_ms:5.2} ms in the store",
        round.rate(),
        2.0 * round.rate(),
        2.0 * round.units as f64 / count as f64,
    );
    engine.stop().await;
    Ok(())
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
        let batches = Arc::new(Batches::default());
        if options.store == "memory" {
            let engine = start("memory:", batches.clone()).await?;
            measure(engine, &batches, tasks, &options).await?;
            continue;
        }
        let folder = temporary_folder(options.store.as_ref())?;
        let engine = start_in(folder.path(), batches.clone()).await?;
        measure(engine, &batches, tasks, &options).await?;
    }
    Ok(())
}
