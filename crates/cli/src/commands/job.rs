//! `solehold job`: shows and controls the jobs of an orchestrator through its HTTP API.

use std::{collections::BTreeMap, num::NonZeroUsize};

use clap::{Args, Subcommand, ValueEnum};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    client::{Client, Method, Peer, Query, ServerArgs},
    error::{CommandError, CommandResult},
    global::GlobalArgs,
    output::{self, or_dash},
};

/// The default of the orchestrator's `http.listen`.
const DEFAULT: &str = "127.0.0.1:7073";
/// The most entries of a page.
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
    Ls {
        /// Only jobs in this state
        #[arg(long, value_name = "STATE")]
        state: Option<State>,
        /// At most N jobs [default: all]
        #[arg(long, value_name = "N")]
        limit: Option<NonZeroUsize>,
    },
    /// Show a job and its stages
    Get {
        /// Its id
        job: String,
    },
    /// Cancel a job: its tasks are revoked, and later reports do not count
    Cancel {
        /// Its id
        job: String,
    },
    /// Retry the failed and cancelled stages of a job
    Retry {
        /// Its id
        job: String,
    },
    /// List dead letters: rejected commands, and commands that are parked behind them
    Letters {
        /// At most N letters [default: all]
        #[arg(long, value_name = "N")]
        limit: Option<NonZeroUsize>,
    },
    /// Apply a dead letter again, then the commands that are parked behind it, in order
    Redrive {
        /// Its id, as shown by `job letters`
        letter: String,
    },
    /// Drop a dead letter; the commands that are parked behind it are applied, in order
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
    Ls {
        /// Only marks of this job or command_id
        #[arg(long, value_name = "ID")]
        id: Option<String>,
        /// At most N marks [default: all]
        #[arg(long, value_name = "N")]
        limit: Option<NonZeroUsize>,
    },
    /// Delete marks: if their commands are sent again, they take effect again
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

/// Runs it.
pub async fn run(args: JobArgs, server: &ServerArgs, global: &GlobalArgs) -> CommandResult {
    let asked = args.orchestrator.filter(|text| !text.is_empty()).unwrap_or_else(|| DEFAULT.to_owned());
    let peer = Peer::Orchestrator;
    let client = Client::new(&ServerArgs { server: Some(asked), tenant: None, peer, ..server.clone() })?;
    match args.command {
        JobCommand::Ls { state, limit } => ls(state, limit, &client, global).await,
        JobCommand::Get { job } => get(&job, &client, global).await,
        JobCommand::Cancel { job } => {
            let told = format!("asked the owner of job {job} to cancel it");
            steer(&client, global, &["jobs", &job, "cancel"], told).await
        }
        JobCommand::Retry { job } => {
            let told = format!("asked the owner of job {job} to try it again");
            steer(&client, global, &["jobs", &job, "retry"], told).await
        }
        JobCommand::Letters { limit } => letters(limit, &client, global).await,
        JobCommand::Redrive { letter } => {
            let told = format!("asked the owner of letter {letter} to apply it again");
            steer(&client, global, &["letters", &letter, "redrive"], told).await
        }
        JobCommand::Discard { letter } => {
            let told = format!("asked the owner of letter {letter} to drop it");
            steer(&client, global, &["letters", &letter, "discard"], told).await
        }
        JobCommand::Marks(MarksCommand::Ls { id, limit }) => marks(id, limit, &client, global).await,
        JobCommand::Marks(MarksCommand::Clear { id, kind }) => clear(&id, kind, &client, global).await,
    }
}

/// A path, each part of it encoded.
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
    let (mut items, mut after) = (Vec::new(), None::<String>);
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

fn read<T: serde::de::DeserializeOwned>(value: Value) -> CommandResult<T> {
    serde_json::from_value(value).map_err(|error| {
        let message = format!("the orchestrator gave an unexpected answer ({error})");
        CommandError::broken(message).hint("is it a solehold orchestrator of the same version?")
    })
}

fn read_all<T: serde::de::DeserializeOwned>(values: Vec<Value>) -> CommandResult<Vec<T>> {
    values.into_iter().map(read).collect()
}

fn percent(fraction: f64) -> String {
    format!("{:.0}%", fraction * 100.0)
}

fn word(value: impl ValueEnum) -> Option<String> {
    value.to_possible_value().map(|value| value.get_name().to_owned())
}

async fn ls(
    state: Option<State>,
    limit: Option<NonZeroUsize>,
    client: &Client,
    global: &GlobalArgs,
) -> CommandResult {
    let query = [("state", state.and_then(word))];
    let jobs = list(client, "jobs", &query, limit).await;
    let jobs = jobs.map_err(|failure| failure.doing("list the jobs"))?;
    if global.json {
        return output::json(&json!({ "jobs": jobs }));
    }
    if jobs.is_empty() {
        output::note("there are no such jobs");
        return Ok(());
    }
    let row = |job: Job| {
        let created = or_dash(job.created_at);
        [job.job_id, job.key, job.state, percent(job.progress), created, or_dash(job.reason)]
    };
    let rows = read_all::<Job>(jobs)?.into_iter().map(row).collect();
    output::print(&output::table(
        ["JOB", "KEY", "STATE", "PROGRESS", "CREATED", "REASON"],
        &["PROGRESS"],
        rows,
    ))
}

async fn get(id: &str, client: &Client, global: &GlobalArgs) -> CommandResult {
    let found = client.get::<Value>(&path(&["jobs", id]), &[]).await;
    let found = found.map_err(|failure| failure.doing(format!("show job {id}")))?;
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

async fn steer(client: &Client, global: &GlobalArgs, parts: &[&str], told: String) -> CommandResult {
    let answer = client.call::<Value>(Method::POST, &path(parts), &[], None::<&()>).await;
    let answer = answer.map_err(|failure| {
        let (what, id) =
            (parts.last().copied().unwrap_or_default(), parts.get(1).copied().unwrap_or_default());
        let kind = if parts.first() == Some(&"jobs") { "job" } else { "letter" };
        failure.doing(format!("{what} {kind} {id}"))
    })?;
    if global.json {
        return output::json(&answer);
    }
    output::line(told)
}

async fn letters(limit: Option<NonZeroUsize>, client: &Client, global: &GlobalArgs) -> CommandResult {
    let letters = list(client, "letters", &[], limit).await;
    let letters = letters.map_err(|failure| failure.doing("list the letters"))?;
    if global.json {
        return output::json(&json!({ "letters": letters }));
    }
    if letters.is_empty() {
        output::note("there are no dead letters");
        return Ok(());
    }
    let row =
        |letter: Letter| [letter.letter, letter.key, letter.state, or_dash(letter.since), letter.reason];
    let rows = read_all::<Letter>(letters)?.into_iter().map(row).collect();
    output::print(&output::table(["LETTER", "KEY", "STATE", "SINCE", "REASON"], &[], rows))
}

async fn marks(
    id: Option<String>,
    limit: Option<NonZeroUsize>,
    client: &Client,
    global: &GlobalArgs,
) -> CommandResult {
    let marks = list(client, "marks", &[("id", id)], limit).await;
    let marks = marks.map_err(|failure| failure.doing("list the marks"))?;
    if global.json {
        return output::json(&json!({ "marks": marks }));
    }
    if marks.is_empty() {
        output::note("there are no such marks");
        return Ok(());
    }
    let row = |mark: Mark| {
        [mark.job_id, mark.id, mark.kind, mark.partition, or_dash(mark.offset), or_dash(mark.at)]
    };
    let rows = read_all::<Mark>(marks)?.into_iter().map(row).collect();
    let headings = ["JOB", "ID", "TYPE", "PARTITION", "OFFSET", "AT"];
    output::print(&output::table(headings, &["PARTITION", "OFFSET"], rows))
}

async fn clear(id: &str, kind: Option<Kind>, client: &Client, global: &GlobalArgs) -> CommandResult {
    let query = [("type", kind.and_then(word))];
    let cleared = client.call::<Value>(Method::DELETE, &path(&["marks", id]), &query, None::<&()>).await;
    let cleared = cleared.map_err(|failure| failure.doing(format!("clear the marks of {id}")))?;
    if global.json {
        return output::json(&cleared);
    }
    let count = cleared["cleared"].as_u64().unwrap_or_default();
    output::line(format!("cleared {count} of {id}: its commands take effect again if they come again"))
}
