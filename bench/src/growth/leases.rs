//! Leases: what a cycle and a heartbeat cost beside many leases that are held, the memory and disk that a lease takes,
//! how long a start takes, and what happens when all of them expire at once.
//!
//! Leases are attached to sessions of a thousand each, which are kept alive all the time. Each size has a process of
//! its own: memory that another size has freed would count otherwise. Its row goes to the first process as JSON.

use std::{
    fs,
    path::Path,
    process::{Command as Process, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use solehold_core::{
    command::{AskedTenure, Command},
    event::{Change, Event, What},
    key::{Name, SessionId},
    outcome::Answer,
};
use solehold_engine::{Engine, EngineOptions, observe::Observer, store::Cursor};
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::{Options, TASKS, count, cycles, each, head, micros, quantile_ms};
use crate::{
    commands,
    cycles::load,
    engine::{Cycle, start_in, temporary_folder},
    memory::resident_kb,
    round::{Turn, Turned, measure_here},
    table::{figure, thousands},
};

/// The last one needs more than the default of `--most`, and about 10 GB of memory and of disk.
const SIZES: [usize; 5] = [1_000, 10_000, 100_000, 1_000_000, 10_000_000];
/// Leases of each session.
const SESSION_LEASES: usize = 1_000;
/// Longer than the largest store takes to stop and to start.
const TTL: Duration = Duration::from_secs(30);
const BEAT_EVERY: Duration = Duration::from_secs(5);
/// How many times longer than the sweeper's own pace a mass expiry may take.
const EXPIRY_FACTOR_MAX: u64 = 10;

pub fn rows(options: &Options) -> Result<Vec<Vec<String>>> {
    let mut rows = vec![head([
        "leases held",
        "cycle, 1 task, µs",
        "cycle, 64 tasks, µs",
        "heartbeat of 1,000 leases, µs",
        "memory per lease, bytes",
        "disk per lease, bytes",
        "start, s",
    ])];
    if options.expire {
        rows[0].extend(head(["all expired after, s", "acquire meanwhile: p50, ms", "p99, ms"]));
    }
    for leases in options.sizes(&SIZES) {
        rows.push(measure_apart(options, leases).with_context(|| format!("{leases} leases"))?);
    }
    Ok(rows)
}

/// Measures one size in a process of its own.
fn measure_apart(options: &Options, leases: usize) -> Result<Vec<String>> {
    eprintln!("{} leases ...", count(leases));
    let mut process = Process::new(std::env::current_exe()?);
    process.args(["growth", "--one-size", &leases.to_string(), "--seconds", &options.seconds.to_string()]);
    process.arg("--store").arg(&options.store);
    if options.expire {
        process.arg("--expire");
    }
    let output = process.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "its process failed");
    serde_json::from_slice(&output.stdout).context("the row of its process")
}

/// Measures one size and prints its row.
pub async fn measure_one(options: &Options, leases: usize) -> Result<()> {
    let folder = temporary_folder(&options.store)?;
    let before_kb = resident_kb()?;
    let engine = start_in(folder.path(), Arc::new(())).await?;
    let sessions = open_sessions(&engine, leases.div_ceil(SESSION_LEASES)).await?;
    let kept = keep_alive(engine.clone(), sessions.clone());
    for (number, session) in sessions.iter().enumerate() {
        let from = number * SESSION_LEASES;
        hold(&engine, *session, number, from..leases.min(from + SESSION_LEASES)).await?;
    }
    let memory_bytes = resident_kb()?.saturating_sub(before_kb) * 1_024;
    let engines = [engine];
    let alone = cycles(&engines, 1, options.duration()).await?;
    let together = cycles(&engines, TASKS, options.duration()).await?;
    let [engine] = engines;
    let task = Beats { engine: engine.clone(), session: sessions[0], known: None };
    let beats = measure_here(vec![task], options.duration()).await?;
    ensure!(!kept.is_finished(), "the sessions could not be kept alive");
    kept.abort();
    beat_all(&engine, &sessions).await?;
    engine.stop().await;
    drop(engine);
    let disk_bytes = bytes_in(folder.path())?;
    let began = Instant::now();
    let expired = Arc::new(Expired::default());
    let engine = start_in(folder.path(), expired.clone()).await?;
    engine.ready().await?;
    let start = began.elapsed();
    let per_lease = |bytes: u64| thousands(bytes as f64 / leases as f64);
    let mut row = vec![
        count(leases),
        micros(each(&alone)),
        micros(each(&together)),
        micros(each(&beats)),
        per_lease(memory_bytes),
        per_lease(disk_bytes),
        figure(start.as_secs_f64()),
    ];
    if options.expire {
        row.extend(expire(&engine, &sessions, &expired, leases).await?);
    }
    engine.stop().await;
    println!("{}", serde_json::to_string(&row)?);
    Ok(())
}

fn holder(number: usize) -> Name {
    commands::name(format!("runner-{number:06}"))
}

async fn open_sessions(engine: &Engine, sessions: usize) -> Result<Vec<SessionId>> {
    let ids: Vec<_> = (0..sessions).map(|_| SessionId(Uuid::now_v7())).collect();
    let ttl_ms = TTL.as_millis() as u64;
    let open = |(number, id): (usize, &SessionId)| commands::open_session(*id, holder(number), ttl_ms);
    commands::submit_all(engine, ids.iter().enumerate().map(open).collect()).await?;
    Ok(ids)
}

/// Acquires the leases of one session.
async fn hold(
    engine: &Engine,
    session: SessionId,
    number: usize,
    leases: std::ops::Range<usize>,
) -> Result<()> {
    let acquire = |lease: usize| {
        let key = commands::resource(format!("held-{lease:08}"));
        let tenure = AskedTenure::Session(session);
        Command::Acquire(commands::named(commands::acquire(key, holder(number), tenure)))
    };
    commands::submit_all(engine, leases.map(acquire).collect()).await?;
    Ok(())
}

async fn beat_all(engine: &Engine, sessions: &[SessionId]) -> Result<()> {
    let beats = sessions.iter().copied().map(commands::heartbeat).collect();
    commands::submit_all(engine, beats).await?;
    Ok(())
}

/// Renews all sessions until it is aborted, or one of them cannot be renewed.
fn keep_alive(engine: Engine, sessions: Vec<SessionId>) -> JoinHandle<Result<()>> {
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(BEAT_EVERY).await;
            beat_all(&engine, &sessions).await?;
        }
    })
}

/// Heartbeats of one session, which names the set of leases that it knows, as our own client does.
struct Beats {
    engine: Engine,
    session: SessionId,
    known: Option<Cursor>,
}

impl Turn for Beats {
    async fn turn(&mut self) -> Result<Turned> {
        let began = Instant::now();
        let answer = commands::submit(&self.engine, commands::heartbeat(self.session)).await?;
        let Answer::Session(view) = answer else { bail!("a heartbeat was answered by {answer:?}") };
        if let Some(set) = self.engine.changed_lease_set(&view, self.known).await?? {
            self.known = set.cursor(self.engine.cursor().epoch);
        }
        Ok(Turned::whole(1, began.elapsed()))
    }
}

/// Counts leases that have expired.
#[derive(Default)]
struct Expired(AtomicUsize);

impl Observer for Expired {
    fn committed(&self, events: &[Event], _: &[Change]) {
        let expired = events.iter().filter(|event| matches!(event.what, What::Expired(_))).count();
        self.0.fetch_add(expired, Ordering::Relaxed);
    }
}

/// Lets all sessions end at the same time; another task acquires until the last lease has expired.
async fn expire(
    engine: &Engine,
    sessions: &[SessionId],
    expired: &Expired,
    leases: usize,
) -> Result<[String; 3]> {
    beat_all(engine, sessions).await.context("the sessions did not outlive the restart")?;
    tokio::time::sleep(TTL).await;
    let paced = leases as u64 / EngineOptions::default().sweep_per_second as u64;
    let patience = Duration::from_secs(paced * EXPIRY_FACTOR_MAX + 60);
    let mut other = Cycle::new(engine, 0, true);
    let mut latency_us = load::latencies()?;
    let began = Instant::now();
    while expired.0.load(Ordering::Relaxed) < leases {
        ensure!(began.elapsed() < patience, "not all leases have expired after {patience:?}");
        latency_us.saturating_record(other.turn().await?.latency.as_micros() as u64);
    }
    let took = figure(began.elapsed().as_secs_f64());
    Ok([took, quantile_ms(&latency_us, 0.5), quantile_ms(&latency_us, 0.99)])
}

/// The size of all files in a folder.
fn bytes_in(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        bytes += entry?.metadata()?.len();
    }
    Ok(bytes)
}
