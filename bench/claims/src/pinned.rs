//! A reader begins a snapshot and keeps it, as a long report or a forgotten transaction does. Vacuum can remove nothing that dies after
//! it. Meanwhile rows come in and are claimed and completed, as fast as it goes; the rate is printed over time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use solehold_sql::Claims;
use solehold_testkit::Postgres;
use tokio_postgres::Client;

use crate::drain::{Task, Way};
use crate::{Load, queue};

/// What to try.
#[derive(Debug, clap::Args)]
pub struct Options {
    #[command(flatten)]
    load: Load,
    /// How long; the issue wants ten.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// How often the rate is printed, in seconds.
    #[arg(long, default_value_t = 10.0)]
    every: f64,
    /// Whose SQL; each for the whole time.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "ours,ours-without-floor,seed-batched")]
    ways: Vec<Way>,
}

/// Rows that wait at any time: the producer keeps so many ahead.
const BACKLOG: i64 = 20_000;

/// Prints the rates.
pub async fn run(options: Options) -> Result<()> {
    for way in &options.ways {
        let postgres = Postgres::start().await?;
        let url = postgres.create_database("pinned").await?;
        let client = queue::connect(&url).await?;
        queue::prepare(&client, BACKLOG, way.is_seed()).await?;
        let reader = queue::connect(&url).await?;
        reader.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM app.jobs").await?;
        let rates = measure(&url, client, *way, &options).await?;
        let show =
            |rates: &[f64]| rates.iter().map(|rate| format!("{rate:.0}")).collect::<Vec<_>>().join(" ");
        println!("{}: rows/s every {} s: {}", way.name(), options.every, show(&rates));
        let (first, last) = (rates.first().copied().unwrap_or(0.0), rates.last().copied().unwrap_or(0.0));
        println!("{}: first {first:.0}/s, last {last:.0}/s, ratio {:.2}", way.name(), last / first);
        drop(reader);
    }
    Ok(())
}

async fn measure(url: &str, client: Client, way: Way, options: &Options) -> Result<Vec<f64>> {
    let (done, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let claims = Arc::new(queue::claims()?);
    let mut running = Vec::new();
    for i in 0..options.load.tasks {
        let task = Task::new(url, &format!("task-{i}"), way).await?;
        let (claims, done, stop) = (claims.clone(), done.clone(), stop.clone());
        running.push(tokio::spawn(work(task, claims, options.load.batch, done, stop)));
    }
    let producer = tokio::spawn(produce(client, done.clone(), stop.clone()));
    let mut rates = Vec::new();
    let (began, every) = (Instant::now(), Duration::from_secs_f64(options.every));
    while began.elapsed().as_secs_f64() < options.minutes * 60.0 {
        let (before, at) = (done.load(Ordering::Relaxed), Instant::now());
        tokio::time::sleep(every).await;
        let rate = (done.load(Ordering::Relaxed) - before) as f64 / at.elapsed().as_secs_f64();
        eprintln!(
            "{} after {:.0?}: {rate:.0}/s, {} full passes",
            way.name(),
            began.elapsed(),
            claims.full_passes()
        );
        rates.push(rate);
    }
    stop.store(true, Ordering::Relaxed);
    for task in running {
        task.await??;
    }
    producer.await??;
    Ok(rates)
}

async fn work(
    task: Task,
    claims: Arc<Claims>,
    batch: usize,
    done: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        let rows = task.turn(&claims, batch).await?;
        done.fetch_add(rows as u64, Ordering::Relaxed);
        if rows == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    Ok(())
}

async fn produce(client: Client, done: Arc<AtomicU64>, stop: Arc<AtomicBool>) -> Result<()> {
    let mut made = BACKLOG;
    while !stop.load(Ordering::Relaxed) {
        let wanted = done.load(Ordering::Relaxed) as i64 + BACKLOG - made;
        if wanted >= 1000 {
            queue::fill(&client, wanted).await?;
            made += wanted;
        } else {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(())
}
