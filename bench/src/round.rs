//! One round: tasks that repeat a turn until the time is over.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use crate::{cpu::Meter, cycles::load};

/// How much longer than asked a round may take, for the turns that are under way at its end.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a task repeats.
pub trait Turn: Send + 'static {
    /// Does it once.
    fn turn(&mut self) -> impl Future<Output = Result<Turned>> + Send;
}

/// What a turn did.
pub struct Turned {
    /// How many cycles or leases.
    pub units: u64,
    /// How long its acquire or its renewal took.
    pub latency: Duration,
    /// Time that does not count, spent on undoing what is measured.
    pub aside: Duration,
}

impl Turned {
    /// A turn that is measured as a whole.
    pub fn whole(units: u64, latency: Duration) -> Self {
        Self { units, latency, aside: Duration::ZERO }
    }
}

/// What a round showed.
pub struct Round {
    pub units: u64,
    pub took: Duration,
    pub latency_us: Histogram<u64>,
    /// Processor time of the system's processes.
    pub server: Duration,
    /// Processor time of this process, which makes the load.
    pub client: Duration,
}

impl Round {
    pub fn rate(&self) -> f64 {
        self.units as f64 / self.took.as_secs_f64()
    }
}

struct Done<T> {
    /// Kept until the clocks are read, so that what it closes is not measured.
    _task: T,
    units: u64,
    aside: Duration,
    latency_us: Histogram<u64>,
}

/// As [`measure`], against an engine in this process: there is no server to measure.
pub async fn measure_here<T: Turn>(tasks: Vec<T>, duration: Duration) -> Result<Round> {
    measure(&Meter(Vec::new()), tasks, duration).await
}

/// Runs the tasks side by side until the duration is over.
pub async fn measure<T: Turn>(meter: &Meter, tasks: Vec<T>, duration: Duration) -> Result<Round> {
    let count = u32::try_from(tasks.len()).context("too many tasks")?.max(1);
    let server = meter.read()?;
    let client = load::cpu()?;
    let began = Instant::now();
    let mut running = JoinSet::new();
    for task in tasks {
        running.spawn(repeat(task, began + duration));
    }
    let mut done = Vec::new();
    while let Ok(next) = tokio::time::timeout(duration + PATIENCE, running.join_next()).await {
        match next {
            Some(ended) => done.push(ended.context("a task ended badly")??),
            None => {
                let wall = began.elapsed();
                let server = meter.read()?.saturating_sub(server);
                let client = load::cpu()?.saturating_sub(client);
                return summarize(done, wall, count, server, client);
            }
        }
    }
    bail!("a task has not ended {PATIENCE:?} after the round should have")
}

fn summarize<T>(
    done: Vec<Done<T>>,
    wall: Duration,
    count: u32,
    server: Duration,
    client: Duration,
) -> Result<Round> {
    let aside: Duration = done.iter().map(|task| task.aside).sum();
    let took = wall.saturating_sub(aside / count);
    let mut round = Round { units: 0, took, latency_us: load::latencies()?, server, client };
    for task in done {
        round.units += task.units;
        round.latency_us.add(task.latency_us).context("histograms of one shape")?;
    }
    Ok(round)
}

async fn repeat<T: Turn>(mut task: T, until: Instant) -> Result<Done<T>> {
    let mut latency_us = load::latencies()?;
    let mut units = 0;
    let mut aside = Duration::ZERO;
    loop {
        let turned = task.turn().await?;
        units += turned.units;
        aside += turned.aside;
        latency_us.saturating_record(turned.latency.as_micros() as u64);
        if Instant::now() >= until {
            return Ok(Done { _task: task, units, aside, latency_us });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Batch;

    impl Turn for Batch {
        async fn turn(&mut self) -> Result<Turned> {
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(2) {}
            let latency = began.elapsed();
            while began.elapsed() < Duration::from_millis(8) {}
            Ok(Turned { units: 10, latency, aside: began.elapsed() - latency })
        }
    }

    #[tokio::test]
    async fn time_aside_does_not_count() {
        let meter = Meter(vec![std::process::id()]);
        let round = measure(&meter, vec![Batch], Duration::from_millis(40)).await.expect("a round");
        let turns = round.latency_us.len();
        assert_eq!(round.units, turns * 10);
        // Each turn is 2 ms that count and 6 that do not; only the machine can add to the former.
        assert!(round.took >= Duration::from_millis(2) * turns as u32, "{:?}", round.took);
    }
}
