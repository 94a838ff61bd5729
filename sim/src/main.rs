//! `solehold-sim`: runs worlds, shows what went wrong in one, and shrinks it.

use std::process::ExitCode;

use clap::Parser;
use solehold_clock::BootTime;
use solehold_sim::{Report, shrink};

/// Simulate the whole system under many seeds
#[derive(Parser)]
struct Args {
    /// How many worlds to run, from the first seed on
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first seed of many
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Run the world of this seed alone
    #[arg(long)]
    seed: Option<u64>,
    /// Stop after so many seconds, however many worlds were run
    #[arg(long)]
    seconds: Option<u64>,
    /// Leave out the steps of these numbers of the plan, as in `--without 3,17`
    #[arg(long, value_delimiter = ',', requires = "seed")]
    without: Vec<usize>,
    /// Show all that happens in the world of `--seed`
    #[arg(long, requires = "seed")]
    log: bool,
    /// Leave out as many steps as a failure of `--seed` does not need
    #[arg(long, requires = "seed")]
    shrink: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match args.seed {
        Some(seed) if args.shrink => fail(seed),
        Some(seed) => one(seed, &args),
        None => many(&args),
    }
}

/// Runs one world in this process, which is what the others are made of.
fn one(seed: u64, args: &Args) -> ExitCode {
    let story = solehold_sim::run(seed, &args.without);
    if args.log {
        story.log.iter().for_each(|line| println!("{line}"));
    }
    let report = Report::of(&story);
    println!("{report}");
    if report.violation.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn many(args: &Args) -> ExitCode {
    let began = BootTime::now();
    let seconds = || BootTime::now().since(began).as_secs_f64();
    let mut count = 0;
    let mut steps = 0;
    for seed in args.first..args.first.saturating_add(args.seeds) {
        if args.seconds.is_some_and(|most| seconds() >= most as f64) {
            break;
        }
        let report = match shrink::world(seed, &[]) {
            Ok(report) => report,
            Err(error) => {
                println!("seed {seed}: {error}");
                return ExitCode::FAILURE;
            }
        };
        count += 1;
        steps += report.steps;
        if report.violation.is_some() {
            println!("seed {seed} fails, after {count} seeds in {:.0} s", seconds());
            return fail(seed);
        }
    }
    println!("{count} seeds, {steps} steps, {:.0} seeds per minute", count as f64 * 60.0 / seconds());
    ExitCode::SUCCESS
}

/// Shrinks the world of a seed, and tells its story.
fn fail(seed: u64) -> ExitCode {
    match shrink::shrunk(seed) {
        Ok(Some(shrunk)) => println!("{shrunk}"),
        Ok(None) => {
            println!("seed {seed} breaks no invariant");
            return ExitCode::SUCCESS;
        }
        Err(error) => println!("seed {seed}: {error}"),
    }
    ExitCode::FAILURE
}
