//! A reader begins a snapshot and keeps it, as a long report or a forgotten transaction does. Vacuum can remove nothing
//! that dies after it. Meanwhile rows are inserted, claimed and completed as fast as possible.
//!
//! These machines are shared, so the rate alone says little. A second database of the same server, without such a
//! reader, is worked on in the same way, in turns of a few seconds: what the neighbours do hits both, and their ratio
//! is what counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use solehold_sql::Claims;
use solehold_testkit::Postgres;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use crate::drain::{Task, Way};
use crate::{Load, queue};

/// What to try.
#[derive(Debug, clap::Args)]
pub struct Options {
    #[command(flatten)]
    load: Load,
    /// How long the reader's database is worked on, in minutes; the issue wants ten. The whole takes twice as long.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// The length of a turn, in seconds.
    #[arg(long, default_value_t = 5.0)]
    turn: f64,
    /// Turns per printed line.
    #[arg(long, default_value_t = 6)]
    turns_a_line: usize,
    /// Whose SQL; each for the whole time.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "ours,ours-without-floor,hand-written-batched"
    )]
    ways: Vec<Way>,
}

/// Rows that wait at any time: the producer keeps this many ahead.
const BACKLOG: i64 = 20_000;
/// Whose turn it is: no one's any longer.
const OVER: usize = usize::MAX;
/// With the reader, and without.
const SIDES: [&str; 2] = ["pinned", "free"];

/// Prints the rates and their ratio.
pub async fn run(options: Options) -> Result<()> {
    for way in &options.ways {
        let postgres = Postgres::start().await?;
        let active = Arc::new(AtomicUsize::new(0));
        let mut sides = Vec::new();
        for (number, name) in SIDES.iter().enumerate() {
            let url = postgres.create_database(name).await?;
            sides.push(Side::start(&url, number, *way, &options.load, &active).await?);
        }
        let reader = queue::connect(&sides[0].url).await?;
        reader.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM app.jobs").await?;
        println!("{}, {} tasks, batches of {}", way.name(), options.load.tasks, options.load.batch);
        println!(
            "| minutes of work under the snapshot | rows/s | rows/s without it | ratio |\n|---|---|---|---|"
        );
        let lines = (options.minutes * 60.0 / options.turn / options.turns_a_line as f64).ceil() as usize;
        for line in 1..=lines {
            let rates = turns(&sides, &active, &options).await;
            let minutes = line as f64 * options.turn * options.turns_a_line as f64 / 60.0;
            println!("| {minutes:.1} | {:.0} | {:.0} | {:.2} |", rates[0], rates[1], rates[0] / rates[1]);
        }
        active.store(OVER, Ordering::Relaxed);
        eprintln!("{}: {} full passes under the snapshot", way.name(), sides[0].claims.full_passes());
        for task in sides.into_iter().flat_map(|side| side.running) {
            task.await??;
        }
        drop(reader);
    }
    Ok(())
}

/// The rates of both sides, over a line of turns.
async fn turns(sides: &[Side], active: &AtomicUsize, options: &Options) -> [f64; 2] {
    let mut rates = [0.0; 2];
    for _ in 0..options.turns_a_line {
        for (number, side) in sides.iter().enumerate() {
            active.store(number, Ordering::Relaxed);
            let before = side.done.load(Ordering::Relaxed);
            let at = Instant::now();
            tokio::time::sleep(Duration::from_secs_f64(options.turn)).await;
            let done = side.done.load(Ordering::Relaxed) - before;
            rates[number] += done as f64 / at.elapsed().as_secs_f64() / options.turns_a_line as f64;
        }
    }
    rates
}

/// One database with its workers and the producer of its rows.
struct Side {
    url: String,
    done: Arc<AtomicU64>,
    claims: Arc<Claims>,
    running: Vec<JoinHandle<Result<()>>>,
}

impl Side {
    async fn start(
        url: &str,
        number: usize,
        way: Way,
        load: &Load,
        active: &Arc<AtomicUsize>,
    ) -> Result<Self> {
        let client = queue::connect(url).await?;
        queue::prepare(&client, BACKLOG, way.is_hand_written()).await?;
        let done = Arc::new(AtomicU64::new(0));
        let claims = Arc::new(queue::claims()?);
        let mut running = vec![tokio::spawn(produce(client, done.clone(), active.clone()))];
        for i in 0..load.tasks {
            let task = Task::new(url, &format!("task-{i}"), way).await?;
            let claims = claims.clone();
            let done = done.clone();
            let active = active.clone();
            running.push(tokio::spawn(work(task, claims, load.batch, done, active, number)));
        }
        Ok(Self { url: url.to_owned(), done, claims, running })
    }
}

async fn work(
    task: Task,
    claims: Arc<Claims>,
    batch: usize,
    done: Arc<AtomicU64>,
    active: Arc<AtomicUsize>,
    number: usize,
) -> Result<()> {
    loop {
        let rows = match active.load(Ordering::Relaxed) {
            OVER => return Ok(()),
            turn if turn == number => task.turn(&claims, batch).await?,
            _ => 0,
        };
        done.fetch_add(rows as u64, Ordering::Relaxed);
        if rows == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn produce(client: Client, done: Arc<AtomicU64>, active: Arc<AtomicUsize>) -> Result<()> {
    let mut made = BACKLOG;
    while active.load(Ordering::Relaxed) != OVER {
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
