//! `solehold orchestrator`: turns job commands into tasks for workers, stage by stage.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use solehold_api::problem::ErrorCode;
use solehold_orchestrator::{
    self as orchestrator, BegunAnew, Drained, ExportedMarks, Flags, ImportedMarks, MarkOrders, RunError,
    SkippedKey,
};

use super::ending_signals;
use crate::{
    client::ServerArgs,
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
    /// Take over what another system has marked as processed in its Redis
    ///
    /// For moving over from a hand-written consumer: stop it, run this, and start the orchestrator under the same
    /// consumer group. A command that the other system has processed is then not done again, although its offset was
    /// not committed. It may be run again. See docs/guides/moving-over.md.
    ImportMarks {
        #[command(flatten)]
        keys: KeyArgs,
    },
    /// Tell another system, in its Redis, which commands have taken effect here
    ///
    /// For moving back to a hand-written consumer: stop the orchestrator, run this, start the other system under the
    /// same consumer group, and run `drain`. It may be run again. See docs/guides/moving-over.md.
    ExportMarks {
        #[command(flatten)]
        keys: KeyArgs,
        /// How long the other system keeps a key
        #[arg(long, value_name = "TIME", default_value = "7days", value_parser = humantime::parse_duration)]
        ttl: Duration,
    },
    /// Finish the jobs that were begun, take no commands, and exit
    ///
    /// It works for all partitions outside of the consumer group, and answers on http.listen as an orchestrator does.
    /// Stop every other process of the orchestrator first.
    Drain {
        /// The configuration file of the orchestrator
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
}

/// Where the keys of the other system are.
#[derive(Debug, Args)]
struct KeyArgs {
    /// The configuration file of the orchestrator
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The other system's Redis, as in redis://HOST:PORT/DATABASE
    #[arg(long, value_name = "URL", env = "SOLEHOLD_REDIS", hide_env_values = true)]
    redis: String,
    /// The form of its keys, with {job_id}, {command_id} and {type} of the command that was processed
    #[arg(long, value_name = "FORM", default_value = "job:processed:{job_id}")]
    pattern: String,
    /// Only count: write nothing
    #[arg(long)]
    dry_run: bool,
}

impl KeyArgs {
    fn orders(self) -> (PathBuf, MarkOrders) {
        let Self { config, redis, pattern, dry_run } = self;
        (config, MarkOrders { redis, pattern, dry_run })
    }
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
    // What the Kafka client has to say is in the answer.
    let quiet = || {
        let logs = global.logs("warn,librdkafka=off,rdkafka=off")?;
        logs.start("orchestrator").map_err(CommandError::usage)
    };
    match args.other {
        Some(Other::BeginAnew { config, force }) => {
            quiet()?;
            let begun = orchestrator::begin_anew(&config, flags, force).await.map_err(of_error)?;
            return show(&begun, global);
        }
        Some(Other::ImportMarks { keys }) => {
            quiet()?;
            let (config, orders) = keys.orders();
            let imported =
                orchestrator::import_marks(&config, flags, orders, |line| output::note(line)).await;
            return show_import(&imported.map_err(of_error)?, global);
        }
        Some(Other::ExportMarks { keys, ttl }) => {
            quiet()?;
            let (config, orders) = keys.orders();
            let say = |line: &str| output::note(line);
            let exported = orchestrator::export_marks(&config, flags, orders, ttl, say).await;
            return show_export(&exported.map_err(of_error)?, global);
        }
        Some(Other::Drain { config }) => {
            global.logs("info")?.start("orchestrator").map_err(CommandError::usage)?;
            let say = |line: &str| output::note(line);
            let drained = orchestrator::drain(&config, flags, say, ending()?).await.map_err(of_error)?;
            return show_drain(&drained, global);
        }
        None => {}
    }
    let config = args.config.unwrap_or_default();
    if args.check {
        quiet()?;
        let remarks = orchestrator::check(&config, flags).await.map_err(of_error)?;
        return remarks.iter().try_for_each(output::line);
    }
    global.logs("info")?.start("orchestrator").map_err(CommandError::usage)?;
    let ending = ending()?;
    orchestrator::run(&config, flags, |line| output::say(line), ending).await.map_err(of_error)?;
    output::say("solehold orchestrator stopped");
    Ok(())
}

/// The first signal to end. A second one does not wait.
fn ending() -> Result<impl Future<Output = ()>, CommandError> {
    let mut signals = ending_signals()?;
    let (end, ending) = tokio::sync::oneshot::channel::<()>();
    tokio::spawn(async move {
        signals.next().await;
        let _ = end.send(());
        signals.next().await;
        std::process::exit(crate::exit::Exit::Interrupted.code().into());
    });
    Ok(async move { drop(ending.await) })
}

fn show_import(imported: &ImportedMarks, global: &GlobalArgs) -> CommandResult {
    if global.json {
        return output::json(imported);
    }
    let ImportedMarks { dry_run, pattern, found, imported, known, skipped, examples } = imported;
    output::line(match dry_run {
        true => {
            format!("found {found} keys: {imported} name a command, {skipped} do not; nothing was written")
        }
        false => format!("found {found} keys: imported {imported}, {known} known before, skipped {skipped}"),
    })?;
    for SkippedKey { key, reason } in examples {
        output::note(format!("skipped {key:?}: {reason}"));
    }
    if *found == 0 {
        output::note(format!("no key is like {pattern}: are --pattern and the database of --redis right?"));
    }
    Ok(())
}

fn show_export(exported: &ExportedMarks, global: &GlobalArgs) -> CommandResult {
    if global.json {
        return output::json(exported);
    }
    let ExportedMarks { dry_run, marks, exported, known, skipped } = exported;
    output::line(match dry_run {
        true => format!("found {marks} marks: {exported} have a key, {skipped} do not; nothing was written"),
        false => format!("found {marks} marks: exported {exported}, {known} known before, skipped {skipped}"),
    })
}

fn show_drain(drained: &Drained, global: &GlobalArgs) -> CommandResult {
    if global.json {
        return output::json(drained);
    }
    let Drained { running, unsent, letters } = drained;
    output::line(format!(
        "jobs under way: {running}; messages to send: {unsent}; letters to decide on: {letters}"
    ))
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
