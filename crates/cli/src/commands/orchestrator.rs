//! `solehold orchestrator`: runs jobs of several stages.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, Subcommand};
use serde_json::json;
use solehold_api::problem::ErrorCode;
use solehold_orchestrator::{
    self as orchestrator, BegunAnew, Difference, ExportedMarks, Flags, ImportedMarks, MarkOrders,
    RemainingWork, RunError, ShadowOrders, ShadowReport, SkippedKey,
};

use solehold_process::manager::{self, ServiceManager};

use super::ending_signals;
use crate::{
    client::ServerArgs,
    error::{CommandError, CommandResult},
    global::GlobalArgs,
    human, output,
};

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

#[derive(Debug, Subcommand)]
enum Other {
    /// Start at the first command of a topic that was deleted and created again
    ///
    /// An orchestrator ends with an error when its topic was replaced by another one. If that was intended, this
    /// command resets all partitions to their first command. Jobs, dead letters and inbox marks are kept. Running
    /// processes need not be stopped: they drop commands that are not committed yet, and start over.
    #[command(after_help = examples!("orchestrator begin-anew --config orchestrator.yaml"))]
    BeginAnew {
        /// The configuration file of the orchestrator
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Do so even if the topic is, or may be, the same: its commands are consumed again
        #[arg(long)]
        force: bool,
    },
    /// Decide what another system has processed, without any effect, and show where it would differ
    ///
    /// Before moving over from a hand-written consumer: reads the commands below the offsets that its consumer group
    /// has committed, decides each as the orchestrator would, and compares that with the marks in its Redis. It does
    /// not join the group, commits no offsets and sends no tasks. Decisions are made in the schema SCHEMA_shadow, which
    /// is dropped at the end. Runs until it is interrupted, unless --until-caught-up or --for is given. Exits with 3 if
    /// there are differences. See docs/guides/moving-over.md.
    #[command(after_help = examples!(
        "orchestrator shadow --config orchestrator.yaml --redis redis://10.0.0.5:6379/0 --until-caught-up",
    ))]
    Shadow {
        #[command(flatten)]
        former: FormerArgs,
        /// How long the other system keeps its keys
        #[arg(long, value_name = "TIME", default_value = "7days", value_parser = humantime::parse_duration)]
        ttl: Duration,
        /// Begin this many commands before the committed offset of each partition, instead of with the first
        #[arg(long, value_name = "N")]
        last: Option<u64>,
        /// End when everything was compared that was committed at the start
        #[arg(long)]
        until_caught_up: bool,
        /// End after this time
        #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
        within: Option<Duration>,
        /// End after this many commands
        #[arg(long, value_name = "N", default_value = "1000000", value_parser = clap::value_parser!(u64).range(1..))]
        commands_max: u64,
    },
    /// Import the marks of processed commands from another system's Redis
    ///
    /// For moving over from a hand-written consumer: stop it, run this command, and start the orchestrator under the
    /// same consumer group. Commands that the other system has processed do not take effect again, even if their
    /// offsets were not committed. The command may be repeated. See docs/guides/moving-over.md.
    #[command(after_help = examples!(
        "orchestrator import-marks --config orchestrator.yaml --redis redis://10.0.0.5:6379/0",
    ))]
    ImportMarks {
        #[command(flatten)]
        keys: KeyArgs,
    },
    /// Export the marks of commands that took effect here to another system's Redis
    ///
    /// For moving back to a hand-written consumer: stop the orchestrator, run this command, start the other system
    /// under the same consumer group, and run `drain`. The command may be repeated. See docs/guides/moving-over.md.
    #[command(after_help = examples!(
        "orchestrator export-marks --config orchestrator.yaml --redis redis://10.0.0.5:6379/0",
    ))]
    ExportMarks {
        #[command(flatten)]
        keys: KeyArgs,
        /// The time to live of the keys
        #[arg(long, value_name = "TIME", default_value = "7days", value_parser = humantime::parse_duration)]
        ttl: Duration,
    },
    /// Finish the running jobs without consuming commands, and exit
    ///
    /// It owns all partitions outside of the consumer group, and serves the HTTP API on http.listen. Stop every other
    /// process of the orchestrator first.
    #[command(after_help = examples!("orchestrator drain --config orchestrator.yaml"))]
    Drain {
        /// The configuration file of the orchestrator
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
}

/// The other system, and what is to take its place.
#[derive(Debug, Args)]
struct FormerArgs {
    /// The configuration file of the orchestrator
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The other system's Redis, as in redis://HOST:PORT/DATABASE
    #[arg(long, value_name = "URL", env = "SOLEHOLD_REDIS", hide_env_values = true)]
    redis: String,
    /// The form of its keys, with the placeholders {job_id}, {command_id} and {type}
    #[arg(long, value_name = "FORM", default_value = "job:processed:{job_id}")]
    pattern: String,
}

#[derive(Debug, Args)]
struct KeyArgs {
    #[command(flatten)]
    former: FormerArgs,
    /// Count only; write nothing
    #[arg(long)]
    dry_run: bool,
}

impl KeyArgs {
    fn orders(self) -> (PathBuf, MarkOrders) {
        let Self { former: FormerArgs { config, redis, pattern }, dry_run } = self;
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
    // Errors of the Kafka client are in the error message.
    let quiet = || {
        let logs = global.logs("warn,librdkafka=off,rdkafka=off")?;
        logs.start("orchestrator").map_err(CommandError::usage)
    };
    match args.other {
        Some(Other::BeginAnew { config, force }) => {
            quiet()?;
            let begun = orchestrator::begin_anew(&config, flags, force).await.map_err(command_error)?;
            let BegunAnew { topic, group, partitions, dead, parked } = &begun;
            return output::show(global, &begun, || {
                format!(
                    "{partitions} partitions of {topic} start at their first command, in group {group}\n\
                     kept letters of the former topic: {dead} dead, {parked} parked; `solehold job letters` lists them"
                )
            });
        }
        Some(Other::Shadow { former, ttl, last, until_caught_up, within, commands_max }) => {
            quiet()?;
            let FormerArgs { config, redis, pattern } = former;
            let orders = ShadowOrders { redis, pattern, ttl, last, until_caught_up, within, commands_max };
            return shadow(&config, flags, orders, global).await;
        }
        Some(Other::ImportMarks { keys }) => {
            quiet()?;
            let (config, orders) = keys.orders();
            let imported =
                orchestrator::import_marks(&config, flags, orders, |line| output::note(line)).await;
            return show_import(&imported.map_err(command_error)?, global);
        }
        Some(Other::ExportMarks { keys, ttl }) => {
            quiet()?;
            let (config, orders) = keys.orders();
            let say = |line: &str| output::note(line);
            let done = orchestrator::export_marks(&config, flags, orders, ttl, say).await;
            let done = done.map_err(command_error)?;
            let ExportedMarks { dry_run, marks, exported, known, skipped } = &done;
            return output::show(global, &done, || {
                if *dry_run {
                    format!(
                        "found {marks} marks: {exported} have a key, {skipped} do not; nothing was written"
                    )
                } else {
                    format!(
                        "found {marks} marks: exported {exported}, {known} already known, skipped {skipped}"
                    )
                }
            });
        }
        Some(Other::Drain { config }) => {
            global.logs("info")?.start("orchestrator").map_err(CommandError::usage)?;
            let say = |line: &str| output::note(line);
            let drained = orchestrator::drain(&config, flags, say, ending()?).await.map_err(command_error)?;
            let RemainingWork { running, unsent, letters } = &drained;
            return output::show(global, &drained, || {
                format!("jobs running: {running}; messages to send: {unsent}; unresolved letters: {letters}")
            });
        }
        None => {}
    }
    let config = args.config.unwrap_or_default();
    if args.check {
        quiet()?;
        let remarks = orchestrator::check(&config, flags).await.map_err(command_error)?;
        return remarks.iter().try_for_each(output::line);
    }
    global.logs("info")?.start("orchestrator").map_err(CommandError::usage)?;
    let traces = global.traces("solehold-orchestrator", "orchestrator")?;
    let manager = ServiceManager::of_process();
    let ending = {
        let ending = ending()?;
        let manager = manager.clone();
        async move {
            ending.await;
            manager.stopping("handing partitions over");
        }
    };
    let say = |line: &str| {
        output::say(line);
        manager.status(line);
    };
    let ready = || manager.ready("consuming commands");
    tokio::select! {
        ended = orchestrator::run(&config, flags, say, ready, ending) => ended.map_err(command_error)?,
        never = manager.keep_alive(manager::turns) => match never {},
    }
    traces.flush().await;
    output::say("solehold orchestrator stopped");
    Ok(())
}

/// Resolves at the first signal to end. A second signal exits at once.
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

/// Shows each difference when it is found, and then the counts.
async fn shadow(config: &Path, flags: Flags, orders: ShadowOrders, global: &GlobalArgs) -> CommandResult {
    let show = |difference: &Difference| {
        let shown = if global.json {
            output::json_line(difference)
        } else {
            output::line(human::one_line(&difference.to_string()))
        };
        if let Err(error) = shown {
            output::note(error.message);
        }
    };
    let say = |line: &str| output::note(line);
    let done = orchestrator::shadow(config, flags, orders, show, say, ending()?).await;
    let done = done.map_err(command_error)?;
    let ShadowReport { compared, undecided, tasks_not_sent, not_passed, .. } = &done;
    let differ = done.differ();
    output::show(global, &json!({ "summary": &done }), || {
        let kinds = done.differences.iter().map(|(kind, count)| format!("{} {count}", kind.name()));
        let kinds = kinds.collect::<Vec<_>>().join(", ");
        let kinds = if kinds.is_empty() { String::new() } else { format!(" ({kinds})") };
        format!(
            "compared {compared} commands: {differ} differ{kinds}, {undecided} cannot be compared\n\
             tasks not sent: {tasks_not_sent}; commands that the other system has not passed: {not_passed}"
        )
    })?;
    if differ == 0 {
        return Ok(());
    }
    let message = format!("the orchestrator would differ from the other system in {differ} commands");
    Err(CommandError::new(ErrorCode::Conflict, message))
}

fn show_import(done: &ImportedMarks, global: &GlobalArgs) -> CommandResult {
    let ImportedMarks { dry_run, pattern, found, imported, known, skipped, examples } = done;
    output::show(global, done, || {
        if *dry_run {
            format!(
                "found {found} keys: {imported} identify a command, {skipped} do not; nothing was written"
            )
        } else {
            format!("found {found} keys: imported {imported}, {known} already known, skipped {skipped}")
        }
    })?;
    if global.json {
        return Ok(());
    }
    for SkippedKey { key, reason } in examples {
        output::note(format!("skipped {key:?}: {reason}"));
    }
    if *found == 0 {
        output::note(format!("no key matches {pattern}: check --pattern and the database of --redis"));
    }
    Ok(())
}

fn command_error(error: RunError) -> CommandError {
    let code = match &error {
        RunError::Usage(_) => ErrorCode::BadRequest,
        RunError::Unavailable(_) => ErrorCode::Unavailable,
        RunError::Failed(_) => ErrorCode::Internal,
    };
    CommandError::new(code, error.to_string())
}
