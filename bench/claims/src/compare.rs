//! The same queue, drained by each in turn.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use solehold_testkit::Postgres;
use tokio::process::Command;

use crate::drain::{Task, Way};
use crate::{Load, queue};

/// What to compare.
#[derive(Debug, clap::Args)]
pub struct Options {
    #[command(flatten)]
    load: Load,
    /// Rows of the queue.
    #[arg(long, default_value_t = 30_000)]
    rows: i64,
    /// Rounds of each; the median counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only the crate and its SQL functions.
    #[arg(long)]
    only_functions: bool,
    /// The peers too: needs node and npm.
    #[arg(long)]
    peers: bool,
    /// How many jobs graphile-worker works on at once; it fetches one a task.
    #[arg(long, default_value_t = 24)]
    graphile_concurrency: usize,
}

/// A peer: its name in the table, its script, its module.
const PEERS: [(&str, &str, &str); 3] = [
    ("graphile-worker 0.16.6", "graphile.mjs", "graphile-worker"),
    ("graphile-worker 0.17.3, local queue and batched completion", "graphile.mjs", "graphile-worker-17"),
    ("pg-boss 10.4.2, fetch and complete in batches", "pgboss.mjs", "pg-boss"),
];

#[derive(Debug, Deserialize)]
struct DrainResult {
    jobs: i64,
    seconds: f64,
}

/// Drains, and prints the table.
pub async fn run(options: Options) -> Result<()> {
    let postgres = Postgres::start().await?;
    let peers = if options.peers { Some(install()?) } else { None };
    let mut results: Vec<(String, Vec<f64>)> = Vec::new();
    for _ in 0..options.rounds {
        let ways = [Way::Ours, Way::Functions, Way::HandWritten, Way::HandWrittenBatched];
        for way in ways.into_iter().filter(|way| !(options.only_functions && way.is_hand_written())) {
            note(&mut results, way.name(), ours(&postgres, &options, way).await?);
        }
        for (name, script, module) in PEERS.iter().filter(|_| peers.is_some()) {
            let folder = peers.as_ref().context("installed above")?;
            let rate = peer(&postgres, &options, folder.path(), script, module).await?;
            note(&mut results, name, rate);
        }
    }
    let Load { batch, tasks } = options.load;
    println!("{} rows, batches of {batch}, {tasks} tasks, median of {} rounds", options.rows, options.rounds);
    println!("| | rows claimed and completed per second | ours, as a multiple |\n|---|---|---|");
    // Before the rates are sorted: both of a round.
    let mut ratios: Vec<f64> = results[1].1.iter().zip(&results[0].1).map(|(one, ours)| one / ours).collect();
    let ours = median(&mut results[0].1);
    for (name, rates) in &mut results {
        let rate = median(rates);
        println!("| {name} | {rate:.0} | {:.1} |", ours / rate);
    }
    let middle = median(&mut ratios);
    let least = ratios[0];
    let most = ratios[ratios.len() - 1];
    println!(
        "the functions beside the crate, round by round: {middle:.2} of its rate, {least:.2} to {most:.2}"
    );
    Ok(())
}

fn note(results: &mut Vec<(String, Vec<f64>)>, name: &str, rate: f64) {
    eprintln!("{name}: {rate:.0}/s");
    match results.iter_mut().find(|(known, _)| known == name) {
        Some((_, rates)) => rates.push(rate),
        None => results.push((name.to_owned(), vec![rate])),
    }
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

async fn ours(postgres: &Postgres, options: &Options, way: Way) -> Result<f64> {
    let url = postgres.create_database("bench").await?;
    let client = queue::connect(&url).await?;
    queue::prepare(&client, options.rows, way.is_hand_written()).await?;
    let claims = Arc::new(queue::claims()?);
    let mut tasks = Vec::new();
    for i in 0..options.load.tasks {
        tasks.push(Task::new(&url, &format!("task-{i}"), way).await?);
    }
    let began = Instant::now();
    let batch = options.load.batch;
    let running: Vec<_> = tasks
        .into_iter()
        .map(|task| {
            let claims = claims.clone();
            tokio::spawn(async move {
                while task.turn(&claims, batch).await? > 0 {}
                anyhow::Ok(())
            })
        })
        .collect();
    for task in running {
        task.await??;
    }
    let seconds = began.elapsed().as_secs_f64();
    ensure!(queue::open(&client).await? == 0, "rows are left");
    Ok(options.rows as f64 / seconds)
}

/// Into a temporary folder, with the versions that the manifest pins.
fn install() -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    for (name, text) in [
        ("package.json", include_str!("../peers/package.json")),
        ("graphile.mjs", include_str!("../peers/graphile.mjs")),
        ("pgboss.mjs", include_str!("../peers/pgboss.mjs")),
    ] {
        std::fs::write(folder.path().join(name), text)?;
    }
    let mut npm = std::process::Command::new("npm");
    npm.args(["install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]);
    let status = npm.current_dir(folder.path()).stdout(Stdio::null()).status().context("npm is not here")?;
    ensure!(status.success(), "npm install ended with {status}");
    Ok(folder)
}

async fn peer(
    postgres: &Postgres,
    options: &Options,
    folder: &Path,
    script: &str,
    module: &str,
) -> Result<f64> {
    let url = postgres.create_database("peer").await?;
    let tasks = if script == "graphile.mjs" { options.graphile_concurrency } else { options.load.tasks };
    let numbers = [options.rows.to_string(), tasks.to_string(), options.load.batch.to_string()];
    let mut node = Command::new("node");
    node.arg(script).arg(module).arg(&url).args(numbers).current_dir(folder).stderr(Stdio::inherit());
    let output = node.output().await.context("node is not here")?;
    ensure!(output.status.success(), "{module} ended with {}", output.status);
    let drained: DrainResult = serde_json::from_slice(&output.stdout).context("the peer's answer")?;
    ensure!(drained.jobs == options.rows, "{module} did {} of {} jobs", drained.jobs, options.rows);
    Ok(drained.jobs as f64 / drained.seconds)
}
