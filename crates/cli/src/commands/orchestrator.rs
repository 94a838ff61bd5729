//! `solehold orchestrator`: turns job commands into tasks for workers, stage by stage.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use solehold_api::problem::ErrorCode;
use solehold_stream::{
    orchestrator,
    running::{BegunAnew, Flags, RunError},
};

use crate::{
    client::ServerArgs,
    ending::EndingSignals,
    error::{CommandError, CommandResult},
    global::GlobalArgs,
    output,
};

/// Where the configuration is.
#[derive(Debug, Args)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
pub struct OrchestratorArgs {
    #[command(subcommand)]
    other: Option<Other>,
    /// The configuration file, as described in docs/guides/orchestrator.md
    #[arg(long, value_name = "FILE", required = true)]
    config: Option<PathBuf>,
    /// Check the configuration against the brokers, the database and the workers' brokers, and exit
    #[arg(long)]
    check: bool,
}

/// What else can be done with an orchestrator.
#[derive(Debug, Subcommand)]
enum Other {
    /// Begin with the first command of a topic that was deleted and made anew
    ///
    /// An orchestrator ends with an error when its topic is not the one that it was. If that is meant, this lets all
    /// partitions begin with the first command that is there. Jobs, dead letters and inbox marks are kept. Processes
    /// that still run need not be stopped: what they have not committed yet is dropped, and they begin again.
    BeginAnew {
        /// The configuration file of the orchestrator
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Do so even if the topic is, or may be, the one that it was: its commands come again
        #[arg(long)]
        force: bool,
    },
}

/// Runs an orchestrator until SIGTERM or Ctrl-C, and then hands its partitions over.
pub async fn run(args: OrchestratorArgs, server: &ServerArgs, global: &GlobalArgs) -> CommandResult {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let flags = Flags {
        server: given(&server.server),
        api_key: given(&server.api_key),
        tenant: given(&server.tenant),
        ca_cert: server.ca_cert.clone().filter(|path| !path.is_empty()).map(PathBuf::from),
    };
    if let Some(Other::BeginAnew { config, force }) = args.other {
        global.logs("warn,librdkafka=off,rdkafka=off")?.start("orchestrator").map_err(CommandError::usage)?;
        let begun = orchestrator::begin_anew(&config, flags, force).await.map_err(of_error)?;
        return show(&begun, global);
    }
    let config = args.config.unwrap_or_default();
    if args.check {
        // What the Kafka client has to say is in the answer.
        global.logs("warn,librdkafka=off,rdkafka=off")?.start("orchestrator").map_err(CommandError::usage)?;
        let remarks = orchestrator::check(&config, flags).await.map_err(of_error)?;
        return remarks.iter().try_for_each(output::line);
    }
    global.logs("info")?.start("orchestrator").map_err(CommandError::usage)?;
    let mut signals = EndingSignals::new()?;
    let (end, ending) = tokio::sync::oneshot::channel::<()>();
    tokio::spawn(async move {
        signals.next().await;
        let _ = end.send(());
        // A second signal does not wait.
        signals.next().await;
        std::process::exit(crate::exit::Exit::Interrupted.code().into());
    });
    let ending = async move { drop(ending.await) };
    orchestrator::run(&config, flags, |line| output::say(line), ending).await.map_err(of_error)?;
    output::say("solehold orchestrator stopped");
    Ok(())
}

/// Says what was done, and what was not touched.
fn show(begun: &BegunAnew, global: &GlobalArgs) -> CommandResult {
    if global.json {
        return output::json(begun);
    }
    let BegunAnew { topic, group, partitions, dead, parked } = begun;
    output::line(format!(
        "{partitions} partitions of {topic} begin with their first command, in group {group}"
    ))?;
    output::line(format!(
        "letters of the former topic that are kept: {dead} dead, {parked} parked; `solehold job letters` lists them"
    ))
}

fn of_error(error: RunError) -> CommandError {
    let code = match &error {
        RunError::Usage(_) => ErrorCode::BadRequest,
        RunError::Unavailable(_) => ErrorCode::Unavailable,
        RunError::Failed(_) => ErrorCode::Internal,
    };
    CommandError::new(code, error.to_string())
}
