//! How cost grows: with leases, runners, the size of a batch, watchers, and replicas over one PostgreSQL. Each curve is
//! a table in Markdown for `docs/benchmarks.md`, and the physical limits stand beside them. The engine runs in this
//! process, without HTTP.
//!
//! ```text
//!   leases     cycle, heartbeat, memory, start, mass expiry     one process per size, since memory is measured
//!   runners    heartbeats per second and core                   batch      leases per second, submitted together
//!   watchers   from the commit to the last watcher              replicas   cycles per second over one PostgreSQL
//!   floor      one fsync, one round trip over loopback
//! ```

mod batch;
mod floor;
mod leases;
mod replicas;
mod runners;
mod watchers;

use std::{path::PathBuf, time::Duration};

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use solehold_engine::Engine;

use crate::{
    engine::Cycle,
    machine,
    round::{Round, measure_here},
    table::{figure, table, thousands},
};

/// Tasks that run cycles or heartbeats side by side.
const TASKS: usize = 64;
/// Commands that are submitted together where only their number matters.
const AT_ONCE: usize = 1_000;
/// Longer than a measurement takes: sessions that are not measured themselves need no heartbeat. The longest that a
/// store allows unless it is told otherwise.
const LONG_TTL_MS: u64 = 5 * 60 * 1_000;

/// What cost grows with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Curve {
    /// Leases that are held beside a cycle
    Leases,
    /// Sessions that send heartbeats, with one lease each
    Runners,
    /// Acquires that are submitted together
    Batch,
    /// Watchers of everything
    Watchers,
    /// Engines over one PostgreSQL
    Replicas,
}

#[derive(Debug, Args)]
pub struct Options {
    /// Curves to measure; all if not given
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<Curve>,
    /// Length of each measurement
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Largest number on any curve: sizes above it are left out
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    most: usize,
    /// The folder to make temporary data folders in
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    store: PathBuf,
    /// Let all leases of the curve over leases expire at once, and time acquires meanwhile
    #[arg(long)]
    expire: bool,
    /// A database for the curves over batches and replicas: postgres://USER@HOST/DATABASE
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,
    /// One size of the curve over leases, in a process of its own
    #[arg(long, hide = true)]
    one_size: Option<usize>,
}

impl Options {
    fn wants(&self, curve: Curve) -> bool {
        self.only.is_empty() || self.only.contains(&curve)
    }

    fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    /// Those sizes of a curve that are not too large.
    fn sizes(&self, all: &[usize]) -> Vec<usize> {
        all.iter().copied().filter(|size| *size <= self.most).collect()
    }
}

pub async fn run(options: Options) -> Result<()> {
    if let Some(leases) = options.one_size {
        return leases::measure_one(&options, leases).await;
    }
    let needs_postgres = options.only.contains(&Curve::Replicas);
    ensure!(!needs_postgres || options.postgres.is_some(), "the curve over replicas needs --postgres URL");
    println!("engine in this process, {} cores, {} s per measurement", machine::cores(), options.seconds);
    for note in machine::notes(&options.store, "name a folder on a disk with --store") {
        println!("{note}");
    }
    println!("\n{}", table(&floor::rows(&options.store)?));
    if options.wants(Curve::Leases) {
        println!("{}", table(&leases::rows(&options)?));
    }
    if options.wants(Curve::Runners) {
        println!("{}", table(&runners::rows(&options).await?));
    }
    if options.wants(Curve::Batch) {
        println!("{}", table(&batch::rows(&options).await?));
    }
    if options.wants(Curve::Watchers) {
        println!("{}", table(&watchers::rows(&options).await?));
    }
    match &options.postgres {
        Some(url) if options.wants(Curve::Replicas) => {
            println!("{}", table(&replicas::rows(&options, url).await?));
        }
        None if options.wants(Curve::Replicas) => println!("replicas: left out without --postgres URL"),
        _ => {}
    }
    Ok(())
}

/// Named cycles of many tasks, divided among the engines.
async fn cycles(engines: &[Engine], tasks: usize, duration: Duration) -> Result<Round> {
    let cycle = |task: usize| Cycle::new(&engines[task % engines.len()], task, true);
    // The first ones make rows that later ones find.
    measure_here((0..tasks).map(cycle).collect(), duration / 5).await?;
    measure_here((0..tasks).map(cycle).collect(), duration).await
}

/// The head of a table.
fn head<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

fn count(number: usize) -> String {
    thousands(number as f64)
}

fn micros(took: Duration) -> String {
    figure(took.as_secs_f64() * 1e6)
}

/// The quantile of a histogram of microseconds, in milliseconds.
fn quantile_ms(latency_us: &Histogram<u64>, quantile: f64) -> String {
    figure(latency_us.value_at_quantile(quantile) as f64 / 1_000.0)
}

/// Wall time per unit of one task.
fn each(round: &Round) -> Duration {
    round.took.div_f64(round.units.max(1) as f64)
}

/// Processor time of this process per unit.
fn cpu_of_each(round: &Round) -> Duration {
    round.client.div_f64(round.units.max(1) as f64)
}
