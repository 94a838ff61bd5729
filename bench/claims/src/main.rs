//! Claims and completions per second: ours, hand-written SQL, graphile-worker and pg-boss, on one PostgreSQL in one
//! run.
//!
//! ```text
//!   claims-bench compare [--peers]     a queue of rows, drained by each
//!   claims-bench scale                 1 process with 64 tasks, 4 processes with 16
//!   claims-bench pinned --minutes 10   throughput while a reader pins a snapshot
//! ```

mod compare;
mod drain;
mod pinned;
mod queue;
mod scale;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

/// Row claims beside hand-written SQL, graphile-worker and pg-boss.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// A queue drained by each, in turn.
    Compare(compare::Options),
    /// The same number of tasks in one process and in four.
    Scale(scale::Options),
    /// Throughput over time while a reader pins a snapshot.
    Pinned(pinned::Options),
    /// One process of `scale`: drains until nothing is left.
    #[command(hide = true)]
    Worker(scale::Worker),
}

/// What all of them share.
#[derive(Debug, Clone, Args)]
struct Load {
    /// Rows of a batch.
    #[arg(long, default_value_t = 100)]
    batch: usize,
    /// Tasks, each with its own connection.
    #[arg(long, default_value_t = 8)]
    tasks: usize,
}

#[tokio::main]
async fn main() -> Result<()> {
    match Cli::parse().what {
        What::Compare(options) => compare::run(options).await,
        What::Scale(options) => scale::run(options).await,
        What::Pinned(options) => pinned::run(options).await,
        What::Worker(worker) => scale::work(worker).await,
    }
}
