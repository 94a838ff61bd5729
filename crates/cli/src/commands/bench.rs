//! `solehold bench`: what this machine can do.

use std::time::Duration;

use clap::{Args, Subcommand};

use crate::{
    error::{CommandError, CommandResult},
    store::EngineUrl,
};

/// What to measure.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which").required(true).multiple(true))]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    other: Option<Other>,
    /// The embedded engine, in a temporary folder
    #[arg(long, group = "which")]
    embedded: bool,
    /// PostgreSQL, beside the hand-written SQL on the same server: postgres://USER@HOST/DATABASE
    #[arg(long, value_name = "URL", group = "which")]
    engine: Option<String>,
    /// How many connections; each number is one measurement
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "64,256")]
    connections: Vec<std::num::NonZeroUsize>,
    /// How long each round is
    #[arg(long, value_name = "N", default_value = "5")]
    seconds: std::num::NonZeroU32,
    /// How many rounds
    #[arg(long, value_name = "N", default_value = "3")]
    rounds: std::num::NonZeroUsize,
}

/// What else can be measured.
#[derive(Debug, Subcommand)]
enum Other {
    /// How long placement takes to plan, how much it moves, and how even the loads are. Needs no store
    Placement,
}

/// Runs it.
pub async fn run(args: BenchArgs) -> CommandResult {
    if let Some(Other::Placement) = args.other {
        solehold_bench::placement::run();
        return Ok(());
    }
    let engine = args.engine.as_deref().map(EngineUrl::of_flag).transpose()?;
    let options = solehold_bench::Options {
        embedded: args.embedded,
        postgres: engine.map(|url| url.reveal().to_owned()),
        connections: args.connections.iter().map(|connections| connections.get()).collect(),
        round: Duration::from_secs(args.seconds.get().into()),
        rounds: args.rounds.get(),
    };
    solehold_bench::run(options)
        .await
        .map_err(|error| CommandError::broken(format!("cannot measure: {error:#}")))
}
