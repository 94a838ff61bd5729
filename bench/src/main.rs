//! Benchmarks of the server, the engines, placement, the gate and the agent. Each prints its own figures; the ones in
//! `docs/benchmarks.md` come from here.
//!
//! ```text
//!   solehold-bench --embedded --engine URL   acquire and release cycles over HTTP, beside hand-written SQL
//!   solehold-bench placement                 planning time, moves and balance
//!   solehold-bench engine                    cycles of an engine in this process
//!   solehold-bench memory                    resident memory per lease of the embedded store
//!   solehold-bench growth                    how cost grows with leases, runners, batches, watchers and replicas
//!   solehold-bench batches URL               batches per second of the PostgreSQL store
//!   solehold-bench pinned URL                batches and renewals under a long snapshot
//!   solehold-bench judgements                judgements per second of a gate
//!   solehold-bench peers                     beside Redis, etcd and hand-written SQL, each a process of its own
//!   solehold-bench survivors                 processes left at the deadline of a worker's lease
//! ```

mod commands;
mod cpu;
mod cycles;
mod engine;
mod growth;
mod judgements;
mod machine;
mod memory;
mod peers;
mod placement;
mod postgres;
mod round;
mod survivors;
mod table;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// The allocator of the `solehold` binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measure acquire and release cycles per second, or one of the benchmarks below
#[derive(Debug, Parser)]
#[command(name = "solehold-bench", version, max_term_width = 110)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    benchmark: Option<Benchmark>,
    #[command(flatten)]
    cycles: cycles::Options,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// Measure how long placement takes to plan, how much it moves, and how even the loads are; needs no store
    Placement,
    /// Measure cycles per second of an engine in this process, without HTTP
    Engine(engine::Options),
    /// Measure resident memory per lease of the embedded store
    Memory(memory::Options),
    /// Measure how cost grows with leases, runners, the size of a batch, watchers and replicas
    Growth(growth::Options),
    /// Measure batches per second of the PostgreSQL store, without HTTP or engine
    Batches(postgres::batches::Options),
    /// Measure what a long snapshot costs batches and renewals in PostgreSQL
    Pinned(postgres::pinned::Options),
    /// Measure judgements per second of a gate on one core
    Judgements(judgements::Options),
    /// Measure Solehold beside Redis, etcd and hand-written SQL, all of them started privately
    Peers(peers::Options),
    /// The hand-written SQL of `peers` behind HTTP
    #[command(hide = true)]
    PeersHandWritten(peers::HandWrittenOptions),
    /// Count the processes of workers that are left at the deadline of their lease
    Survivors(survivors::Options),
    /// One agent of `survivors`
    #[command(hide = true)]
    SurvivorsAgent(survivors::Agent),
}

fn main() -> Result<()> {
    // Before there are threads: the keepers of `survivors` are processes of this binary.
    solehold_agent::keep::play_role();
    let Cli { benchmark, cycles } = Cli::parse();
    match benchmark {
        Some(Benchmark::Placement) => placement::run(),
        Some(Benchmark::Judgements(options)) => judgements::run(&options)?,
        Some(Benchmark::Survivors(options)) => survivors::run(&options),
        Some(Benchmark::SurvivorsAgent(agent)) => survivors::run_agent(&agent),
        other => tokio::runtime::Runtime::new()?.block_on(async {
            match other {
                Some(Benchmark::Engine(options)) => engine::run(options).await,
                Some(Benchmark::Memory(options)) => memory::run(options).await,
                Some(Benchmark::Growth(options)) => growth::run(options).await,
                Some(Benchmark::Batches(options)) => postgres::batches::run(options).await,
                Some(Benchmark::Pinned(options)) => postgres::pinned::run(options).await,
                Some(Benchmark::Peers(options)) => peers::run(options).await,
                Some(Benchmark::PeersHandWritten(options)) => peers::serve_hand_written(options).await,
                _ => cycles::run(cycles).await,
            }
        })?,
    }
    Ok(())
}
