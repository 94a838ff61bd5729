//! `solehold-chaos`: runs every fault in a world of its own, then pairs of them, then the lock-set workload, and prints
//! what was seen. It fails if anything happened that must not.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use solehold_chaos::{
    broken::Broken,
    fault::Fault,
    lock_set::{self, ClientOptions, StoreOptions, Subject},
    plot, power_loss, report,
    section::{self, Section},
    sink::{self, SinkOptions},
    world::Setup,
    writer::{self, WriterOptions},
};

#[derive(Parser)]
#[command(about = "Hurt real servers, writers and sinks, and judge what happened")]
struct Cli {
    #[command(subcommand)]
    command: Option<Task>,
    #[command(flatten)]
    options: Options,
}

#[derive(Subcommand)]
enum Task {
    /// Count the updates that a lock loses whose clients are paused
    LockSet(LockSetOptions),
    /// Open every state that a power loss could have left of an embedded store
    PowerLoss(PowerLossOptions),
    #[command(hide = true)]
    PowerLossClient(power_loss::ClientOptions),
    #[command(hide = true)]
    Writer(WriterOptions),
    #[command(hide = true)]
    Sink(SinkOptions),
    #[command(hide = true)]
    LockSetClient(ClientOptions),
    #[command(hide = true)]
    LockSetStore(StoreOptions),
}

#[derive(Args)]
struct Options {
    /// Only the faults whose name has this in it
    #[arg(long)]
    only: Option<String>,
    /// Strike with each fault again until this has passed
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// How many random pairs of faults follow
    #[arg(long, default_value_t = 4)]
    pairs: usize,
    /// Decides the pairs, and who is paused in the lock-set workload; random if not given
    #[arg(long)]
    seed: Option<u64>,
    /// How long leases outlive their holders, in milliseconds
    #[arg(long, default_value_t = 3_000)]
    ttl_ms: u64,
    /// Write the picture here
    #[arg(long)]
    plot: Option<PathBuf>,
    /// Break the system on purpose: the run then has to fail
    #[arg(long = "break")]
    broken: Option<Broken>,
    /// An older `solehold` binary, to which servers are changed back one by one
    #[arg(long)]
    older: Option<PathBuf>,
    /// Leave the lock-set workload out
    #[arg(long)]
    no_lock_set: bool,
}

#[derive(Args)]
struct LockSetOptions {
    /// How long to run against each lock
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Decides who is paused; random if not given
    #[arg(long)]
    seed: Option<u64>,
}

#[derive(Args)]
struct PowerLossOptions {
    #[command(flatten)]
    selection: power_loss::Selection,
    /// Decides what is asked for, when the power is lost, and what survives; random if not given
    #[arg(long)]
    seed: Option<u64>,
    /// Keep the recordings in this folder; those that are there are judged again
    #[arg(long)]
    recordings: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let Cli { command, options } = Cli::parse();
    match command {
        None => chaos(options).await,
        Some(Task::LockSet(options)) => lock_set(&std::env::current_exe()?, &options).await,
        Some(Task::PowerLoss(options)) => power_loss(options).await,
        Some(Task::PowerLossClient(options)) => {
            power_loss::run_client(options).await.map(|()| ExitCode::SUCCESS)
        }
        Some(Task::Writer(options)) => writer::run(options).await.map(|()| ExitCode::SUCCESS),
        Some(Task::Sink(options)) => sink::run(options).await.map(|()| ExitCode::SUCCESS),
        Some(Task::LockSetClient(options)) => lock_set::run_client(options).await.map(|()| ExitCode::SUCCESS),
        Some(Task::LockSetStore(options)) => lock_set::run_store(options).await.map(|()| ExitCode::SUCCESS),
    }
}

async fn chaos(options: Options) -> Result<ExitCode> {
    let seed = options.seed.unwrap_or_else(rand::random);
    eprintln!("chaos: --seed {seed}");
    let program = std::env::current_exe()?;
    let ttl = Duration::from_millis(options.ttl_ms);
    let older = options.older.clone();
    let setup = Setup { older, ..Setup::new(program.clone(), ttl, options.broken) };
    let lasts = Duration::from_secs(options.seconds);
    let mut sections = Vec::new();
    let mut is_right = true;
    for faults in plan(&options, &setup, seed) {
        match section::run(setup.clone(), &faults, lasts).await {
            Ok(section) => {
                tell(&section);
                is_right &= section.violations.is_empty();
                sections.push(section);
            }
            // Such as a world that did not recover. The others are worth knowing.
            Err(error) => {
                eprintln!("chaos: {error:#}");
                is_right = false;
            }
        }
    }
    println!("{}", report::table(&sections));
    if let Some(path) = &options.plot {
        fs::write(path, plot::svg(&sections, ttl))
            .with_context(|| format!("cannot write {}", path.display()))?;
        println!("picture: {}\n", path.display());
    }
    if options.no_lock_set {
        return Ok(verdict(is_right));
    }
    let locks = lock_set(&program, &LockSetOptions { seconds: 20, seed: Some(seed) }).await?;
    Ok(if is_right { locks } else { ExitCode::FAILURE })
}

async fn power_loss(options: PowerLossOptions) -> Result<ExitCode> {
    let PowerLossOptions { selection, seed, recordings } = options;
    let seed = seed.unwrap_or_else(rand::random);
    eprintln!("power-loss: --seed {seed}");
    let program = std::env::current_exe()?;
    Ok(verdict(power_loss::run(&program, &selection, seed, recordings).await?))
}

/// Each fault alone, and then pairs that a seed chooses. What this machine has not installed is left out and named.
fn plan(options: &Options, setup: &Setup, seed: u64) -> Vec<Vec<Fault>> {
    let is_wanted = |fault: &Fault| options.only.as_ref().is_none_or(|only| fault.name().contains(only));
    let mut plan: Vec<Vec<Fault>> = Vec::new();
    for fault in Fault::ALL.into_iter().filter(is_wanted) {
        match fault.lacks(setup) {
            None => plan.push(vec![fault]),
            Some(what) => eprintln!("chaos: {}: left out, {what}", fault.name()),
        }
    }
    if options.only.is_some() {
        return plan;
    }
    let mut chance = StdRng::seed_from_u64(seed);
    let mut any = || Fault::ALL[chance.random_range(0..Fault::ALL.len())];
    let pairs = std::iter::repeat_with(|| [any(), any()]).filter(|[one, other]| {
        one.goes_with(*other) && one.lacks(setup).is_none() && other.lacks(setup).is_none()
    });
    plan.extend(pairs.take(options.pairs).map(Vec::from));
    plan
}

/// A line for each section as it ends, and one for each violation.
fn tell(section: &Section) {
    let Section { name, strikes, figures, violations } = section;
    eprintln!(
        "chaos: {name}: {strikes} times, {} operations, {} wrong",
        figures.operations,
        violations.len()
    );
    for violation in violations {
        eprintln!("chaos: {name}: {violation}");
    }
}

async fn lock_set(program: &Path, options: &LockSetOptions) -> Result<ExitCode> {
    let seed = options.seed.unwrap_or_else(rand::random);
    eprintln!("lock-set: --seed {seed}");
    let mut is_right = true;
    println!("| lock | updates acknowledged | refused | lost |\n|---|---|---|---|");
    for subject in Subject::ALL {
        let name = subject.name();
        match lock_set::run(program, subject, Duration::from_secs(options.seconds), seed).await? {
            Some(updates) => {
                println!("| {name} | {} | {} | {} |", updates.acknowledged, updates.refused, updates.lost);
                is_right &= subject != Subject::Fenced || updates.lost == 0;
            }
            None => {
                println!("| {name} | skipped: etcd is not installed (Debian's package etcd-server) | | |")
            }
        }
    }
    Ok(verdict(is_right))
}

fn verdict(is_right: bool) -> ExitCode {
    if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
