//! `solehold job`: shows and controls the jobs of an orchestrator through its HTTP API.

use std::{collections::BTreeMap, num::NonZeroUsize};

use clap::{Args, Subcommand, ValueEnum};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    client::{Client, Method, Peer, Query, ServerArgs},
    error::{CommandError, CommandResult, Doing},
    global::GlobalArgs,
    output::{self, or_dash},
};

/// The default of the orchestrator's `http.listen`.
const DEFAULT: &str = "127.0.0.1:7073";
const PAGE_MAX: usize = 1_000;

#[derive(Debug, Args)]
pub struct JobArgs {
    #[command(subcommand)]
    command: JobCommand,
    /// Any process of the orchestrator: HOST:PORT or a URL; several with commas between [default: 127.0.0.1:7073]
    #[arg(long, global = true, env = "SOLEHOLD_ORCHESTRATOR", value_name = "URL")]
    orchestrator: Option<String>,
}

#[derive(Debug, Subcommand)]
enum JobCommand {
    /// List jobs
    #[command(after_help = examples!(
        "job ls --state failed",
        "job ls --orchestrator 10.0.0.7:7073 --limit 20",
    ))]
    Ls {
        /// Only jobs in this state
        #[arg(long, value_name = "STATE")]
        state: Option<State>,
        /// At most N jobs [default: all]
        #[arg(long, value_name = "N")]
        limit: Option<NonZeroUsize>,
    },
    /// Show a job and its stages
    #[command(after_help = examples!("job get video-17"))]
    Get {
        /// Its id
        job: String,
    },
    /// Cancel a job: its tasks are revoked, and later reports do not count
    #[command(after_help = examples!("job cancel video-17"))]
    Cancel {
        /// Its id
        job: String,
    },
    /// Retry the failed and cancelled stages of a job
    #[command(after_help = examples!("job retry video-17"))]
    Retry {
        /// Its id
        job: String,
    },
    /// List dead letters: rejected commands, and commands that are parked behind them
    #[command(after_help = examples!("job letters --limit 20"))]
    Letters {
        /// At most N letters [default: all]
        #[arg(long, value_name = "N")]
        limit: Option<NonZeroUsize>,
    },
    /// Apply a dead letter again, then the commands that are parked behind it, in order
    #[command(after_help = examples!("job redrive 41"))]
    Redrive {
        /// Its id, as shown by `job letters`
        letter: String,
    },
    /// Drop a dead letter; the commands that are parked behind it are applied, in order
    #[command(after_help = examples!("job discard 41"))]
    Discard {
        /// Its id, as shown by `job letters`
        letter: String,
    },
    /// List and clear inbox marks: the commands that have taken effect
    #[command(subcommand)]
    Marks(MarksCommand),
}

#[derive(Debug, Subcommand)]
enum MarksCommand {
    /// List marks
    #[command(after_help = examples!("job marks ls --id video-17"))]
    Ls {
        /// Only marks of this job or command_id
        #[arg(long, value_name = "ID")]
        id: Option<String>,
        /// At most N marks [default: all]
        #[arg(long, value_name = "N")]
        limit: Option<NonZeroUsize>,
    },
    /// Delete marks: if their commands are sent again, they take effect again
    #[command(after_help = examples!("job marks clear video-17 --type RETRY"))]
    Clear {
        /// The job, or the command_id
        id: String,
        /// Only the mark of this type of command
        #[arg(long = "type", value_name = "TYPE")]
        kind: Option<Kind>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum State {
    /// Stages remain
    Running,
    /// All its stages have succeeded
    Succeeded,
    /// A stage has no attempt left
    Failed,
    /// It was cancelled
    Cancelled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "UPPER")]
enum Kind {
    /// Create a job
    Create,
    /// Cancel a job
    Cancel,
    /// Retry a job
    Retry,
}

#[derive(Debug, Deserialize)]
struct Job {
    job_id: String,
    key: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    state: String,
    progress: f64,
    reason: Option<String>,
    partition: i32,
    created_at: Option<String>,
    finished_at: Option<String>,
    #[serde(default)]
    stages: Vec<Stage>,
}

#[derive(Debug, Deserialize)]
struct Stage {
    stage: String,
    state: String,
    progress: f64,
    attempt: u32,
    reason: Option<String>,
    started_at: Option<String>,
    finished_at: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Letter {
    letter: String,
    key: String,
    state: String,
    reason: String,
    since: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Mark {
    job_id: String,
    id: String,
    #[serde(rename = "type")]
    kind: String,
    partition: String,
    offset: Option<i64>,
    at: Option<String>,
}

pub async fn run(args: JobArgs, server: &ServerArgs, global: &GlobalArgs) -> CommandResult {
    let asked = args.orchestrator.filter(|text| !text.is_empty()).unwrap_or_else(|| DEFAULT.to_owned());
    let peer = Peer::Orchestrator;
    let client = Client::new(&ServerArgs { server: Some(asked), tenant: None, peer, ..server.clone() })?;
    match args.command {
        JobCommand::Ls { state, limit } => {
            let jobs = list(&client, "jobs", &[("state", state.and_then(word))], limit).await;
            let headings = ["JOB", "KEY", "STATE", "PROGRESS", "CREATED", "REASON"];
            show_list(
                jobs,
                "jobs",
                "there are no such jobs",
                global,
                (headings, &["PROGRESS"]),
                |job: Job| {
                    let created = or_dash(job.created_at);
                    [job.job_id, job.key, job.state, percent(job.progress), created, or_dash(job.reason)]
                },
            )
        }
        JobCommand::Get { job } => get(&job, &client, global).await,
        JobCommand::Cancel { job } => steer(&client, global, ("job", &job), "cancel", "cancel it").await,
        JobCommand::Retry { job } => steer(&client, global, ("job", &job), "retry", "try it again").await,
        JobCommand::Letters { limit } => {
            let letters = list(&client, "letters", &[], limit).await;
            let table = (["LETTER", "KEY", "STATE", "SINCE", "REASON"], [].as_slice());
            show_list(letters, "letters", "there are no dead letters", global, table, |letter: Letter| {
                [letter.letter, letter.key, letter.state, or_dash(letter.since), letter.reason]
            })
        }
        JobCommand::Redrive { letter } => {
            steer(&client, global, ("letter", &letter), "redrive", "apply it again").await
        }
        JobCommand::Discard { letter } => {
            steer(&client, global, ("letter", &letter), "discard", "drop it").await
        }
        JobCommand::Marks(MarksCommand::Ls { id, limit }) => {
            let marks = list(&client, "marks", &[("id", id)], limit).await;
            let headings = ["JOB", "ID", "TYPE", "PARTITION", "OFFSET", "AT"];
            let table = (headings, ["PARTITION", "OFFSET"].as_slice());
            show_list(marks, "marks", "there are no such marks", global, table, |mark: Mark| {
                [mark.job_id, mark.id, mark.kind, mark.partition, or_dash(mark.offset), or_dash(mark.at)]
            })
        }
        JobCommand::Marks(MarksCommand::Clear { id, kind }) => clear(&id, kind, &client, global).await,
    }
}

fn path(parts: &[&str]) -> String {
    parts.iter().map(|part| format!("/{}", solehold_api::paths::segment(part))).collect()
}

/// All entries of a list, page by page, as they came.
async fn list(
    client: &Client,
    what: &str,
    query: Query<'_>,
    limit: Option<NonZeroUsize>,
) -> CommandResult<Vec<Value>> {
    let limit = limit.map_or(usize::MAX, NonZeroUsize::get);
    let mut items = Vec::new();
    let mut after = None::<String>;
    while items.len() < limit {
        let size = (limit - items.len()).min(PAGE_MAX);
        let mut query = query.to_vec();
        query.extend([("limit", Some(size.to_string())), ("after", after.clone())]);
        let mut page: Value = client.get(&format!("/{what}"), &query).await?;
        let Value::Array(some) = page[what].take() else {
            return Err(CommandError::broken(format!("the orchestrator gave no list of {what}")));
        };
        items.extend(some);
        after = page["next"].as_str().map(str::to_owned);
        if after.is_none() {
            break;
        }
    }
    items.truncate(limit);
    Ok(items)
}

fn read<T: DeserializeOwned>(value: Value) -> CommandResult<T> {
    serde_json::from_value(value).map_err(|error| {
        let message = format!("the orchestrator gave an unexpected answer ({error})");
        CommandError::broken(message).hint("is it a solehold orchestrator of the same version?")
    })
}

fn percent(fraction: f64) -> String {
    format!("{:.0}%", fraction * 100.0)
}

fn word(value: impl ValueEnum) -> Option<String> {
    value.to_possible_value().map(|value| value.get_name().to_owned())
}

/// Shows a list, with a row for each entry.
fn show_list<T: DeserializeOwned, const N: usize>(
    found: CommandResult<Vec<Value>>,
    name: &str,
    none: &str,
    global: &GlobalArgs,
    table: ([&str; N], &[&str]),
    row: fn(T) -> [String; N],
) -> CommandResult {
    let found = found.doing(format!("list the {name}"))?;
    if global.json {
        return output::json(&BTreeMap::from([(name, found)]));
    }
    if found.is_empty() {
        output::note(none);
        return Ok(());
    }
    let rows = found.into_iter().map(|entry| Ok(row(read(entry)?))).collect::<CommandResult<_>>()?;
    output::print(&output::table(table.0, table.1, rows))
}

async fn get(id: &str, client: &Client, global: &GlobalArgs) -> CommandResult {
    let found = client.get::<Value>(&path(&["jobs", id]), &[]).await.doing(format!("show job {id}"))?;
    if global.json {
        return output::json(&found);
    }
    let job: Job = read(found)?;
    let labels = job.labels.iter().map(|(name, value)| format!("{name}={value}"));
    let labels = Some(labels.collect::<Vec<_>>().join(" ")).filter(|labels| !labels.is_empty());
    let facts = output::facts(&[
        ("key", Some(job.key)),
        ("labels", labels),
        ("state", Some(format!("{}, {} done", job.state, percent(job.progress)))),
        ("reason", job.reason),
        ("created", job.created_at),
        ("finished", job.finished_at),
        ("partition", Some(job.partition.to_string())),
    ]);
    let row = |stage: Stage| {
        [
            stage.stage,
            stage.state,
            percent(stage.progress),
            stage.attempt.to_string(),
            or_dash(stage.started_at),
            or_dash(stage.finished_at),
            or_dash(stage.reason),
        ]
    };
    let rows = job.stages.into_iter().map(row).collect();
    let headings = ["STAGE", "STATE", "PROGRESS", "ATTEMPT", "STARTED", "FINISHED", "REASON"];
    let stages = output::table(headings, &["PROGRESS", "ATTEMPT"], rows);
    output::print(&format!("job {}\n{facts}\n{stages}", job.job_id))
}

/// Asks the owner of a job or letter to do something with it.
async fn steer(
    client: &Client,
    global: &GlobalArgs,
    (noun, id): (&str, &str),
    verb: &str,
    asked: &str,
) -> CommandResult {
    let path = path(&[&format!("{noun}s"), id, verb]);
    let answer = client.call::<Value>(Method::POST, &path, &[], None::<&()>).await;
    let answer = answer.doing(format!("{verb} {noun} {id}"))?;
    output::show(global, &answer, || format!("asked the owner of {noun} {id} to {asked}"))
}

async fn clear(id: &str, kind: Option<Kind>, client: &Client, global: &GlobalArgs) -> CommandResult {
    let query = [("type", kind.and_then(word))];
    let cleared = client.call::<Value>(Method::DELETE, &path(&["marks", id]), &query, None::<&()>).await;
    let cleared = cleared.doing(format!("clear the marks of {id}"))?;
    let count = cleared["cleared"].as_u64().unwrap_or_default();
    output::show(global, &cleared, || {
        format!("cleared {count} of {id}: its commands take effect again if they come again")
    })
}
