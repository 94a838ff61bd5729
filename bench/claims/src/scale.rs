//! The same number of tasks, in one process and in four.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use solehold_testkit::Postgres;
use tokio::process::Command;

use crate::drain::{Task, Way};
use crate::queue;

/// What to try.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Rows of the queue.
    #[arg(long, default_value_t = 100_000)]
    rows: i64,
    /// Rows of a batch.
    #[arg(long, default_value_t = 100)]
    batch: usize,
    /// Rounds of each.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Whose SQL.
    #[arg(long, value_enum, default_value = "ours")]
    way: Way,
    /// Claims that a process makes at the same time.
    #[arg(long, default_value_t = solehold_sql::limits::CLAIMS_AT_ONCE)]
    at_once: usize,
}

/// One process of it.
#[derive(Debug, clap::Args)]
pub struct Worker {
    url: String,
    tasks: usize,
    batch: usize,
    name: String,
    #[arg(value_enum)]
    way: Way,
    at_once: usize,
}

const SHAPES: [(usize, usize); 3] = [(1, 64), (4, 16), (8, 8)];

/// Prints the table.
pub async fn run(options: Options) -> Result<()> {
    let postgres = Postgres::start().await?;
    let mut rates = vec![Vec::new(); SHAPES.len()];
    for _ in 0..options.rounds {
        for (shape, rates) in SHAPES.iter().zip(&mut rates) {
            let rate = drain(&postgres, &options, *shape).await?;
            eprintln!("{shape:?}: {rate:.0}/s");
            rates.push(rate);
        }
    }
    println!("{}: {} rows, batches of {}", options.way.name(), options.rows, options.batch);
    println!("| processes | tasks per process | rows claimed and completed per second |\n|---|---|---|");
    for ((processes, tasks), mut rates) in SHAPES.into_iter().zip(rates) {
        rates.sort_by(f64::total_cmp);
        println!("| {processes} | {tasks} | {:.0} |", rates[rates.len() / 2]);
    }
    Ok(())
}

async fn drain(postgres: &Postgres, options: &Options, (processes, tasks): (usize, usize)) -> Result<f64> {
    let url = postgres.create_database("scale").await?;
    let client = queue::connect(&url).await?;
    queue::prepare(&client, options.rows, options.way.is_hand_written()).await?;
    let way = clap::ValueEnum::to_possible_value(&options.way).context("a way has a name")?;
    let began = Instant::now();
    let mut running = Vec::new();
    for process in 0..processes {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("worker").arg(&url).args([tasks, options.batch].map(|number| number.to_string()));
        command
            .arg(format!("process-{process}"))
            .arg(way.get_name())
            .arg(options.at_once.to_string())
            .stdout(Stdio::null());
        running.push(command.spawn()?);
    }
    for mut child in running {
        ensure!(child.wait().await?.success(), "a worker failed");
    }
    let seconds = began.elapsed().as_secs_f64();
    ensure!(queue::open(&client).await? == 0, "rows are left");
    Ok(options.rows as f64 / seconds)
}

/// Drains until nothing is left.
pub async fn work(worker: Worker) -> Result<()> {
    let claims = Arc::new(queue::claims()?.at_once(worker.at_once));
    let mut running = Vec::new();
    for i in 0..worker.tasks {
        let task = Task::new(&worker.url, &format!("{}-{i}", worker.name), worker.way).await?;
        let claims = claims.clone();
        let batch = worker.batch;
        running.push(tokio::spawn(async move {
            while task.turn(&claims, batch).await? > 0 {}
            anyhow::Ok(())
        }));
    }
    for task in running {
        task.await??;
    }
    Ok(())
}
