//! Watchers of everything: how long until the last of them has an event, and what they take from cycles beside them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use solehold_core::{
    command::{AskedTenure, Command},
    event::{Change, Event},
};
use solehold_engine::{
    Engine,
    clock::BootTime,
    observe::Observer,
    watch::{Filter, Frame, Watch},
};
use tokio::{sync::Notify, task::JoinSet};

use super::{Options, TASKS, count, cycles, head, micros};
use crate::{
    commands,
    cycles::load,
    engine::{start_in, temporary_folder},
    table::{figure, thousands},
};

/// Without any first, to compare with.
const SIZES: [usize; 5] = [0, 1, 10, 100, 1_000];
/// How long the last watcher may take.
const PATIENCE: Duration = Duration::from_secs(30);

pub async fn rows(options: &Options) -> Result<Vec<Vec<String>>> {
    let mut rows = vec![head([
        "watchers",
        "commit to the last one: p50, µs",
        "p99, µs",
        "cycles/s, 64 tasks",
        "of those without watchers",
        "events delivered/s meanwhile",
        "CPU per delivered event, µs",
    ])];
    let mut alone = None;
    for watchers in options.sizes(&SIZES) {
        eprintln!("{} watchers ...", count(watchers));
        let folder = temporary_folder(&options.store)?;
        let arrivals = Arc::new(Arrivals::default());
        let engines = [start_in(folder.path(), arrivals.clone()).await?];
        let [engine] = &engines;
        let mut watching = JoinSet::new();
        for _ in 0..watchers {
            let watch = engine.watch(Some(engine.cursor()), Filter::default()).await?;
            watching.spawn(follow(watch, arrivals.clone()));
        }
        let delays = match watchers {
            0 => head(["-", "-"]),
            _ => {
                let delay_us = delays(engine, &arrivals, watchers, options.duration()).await?;
                [0.5, 0.99].map(|at| figure(delay_us.value_at_quantile(at) as f64)).to_vec()
            }
        };
        let before = arrivals.count.load(Ordering::SeqCst);
        let began = Instant::now();
        let round = cycles(&engines, TASKS, options.duration()).await?;
        let delivered = arrivals.count.load(Ordering::SeqCst) - before;
        let delivered_rate = delivered as f64 / began.elapsed().as_secs_f64();
        watching.shutdown().await;
        engine.stop().await;
        let without = *alone.get_or_insert(round.rate());
        let cpu = round.client.div_f64((delivered_rate * round.took.as_secs_f64()).max(1.0));
        let mut row = vec![count(watchers)];
        row.extend(delays);
        row.extend([
            thousands(round.rate()),
            format!("{} %", thousands(100.0 * round.rate() / without)),
            thousands(delivered_rate),
            if delivered > 0 { micros(cpu) } else { "-".to_owned() },
        ]);
        rows.push(row);
    }
    Ok(rows)
}

/// Notes when events were committed, and when watchers had them.
#[derive(Default)]
struct Arrivals {
    /// Boot time of the last commit with events.
    committed_ns: AtomicU64,
    /// Events that watchers have got, all watchers together.
    count: AtomicU64,
    /// When the last of these came.
    last_ns: AtomicU64,
    /// The count at which `all_there` is notified.
    awaited: AtomicU64,
    all_there: Notify,
}

/// Counted from here, since callers are answered right after it. A watcher may have the event a little before.
impl Observer for Arrivals {
    fn committed(&self, events: &[Event], _: &[Change]) {
        if !events.is_empty() {
            self.committed_ns.store(BootTime::now().as_nanos(), Ordering::SeqCst);
        }
    }
}

impl Arrivals {
    fn arrived(&self) {
        self.last_ns.fetch_max(BootTime::now().as_nanos(), Ordering::SeqCst);
        if self.count.fetch_add(1, Ordering::SeqCst) + 1 == self.awaited.load(Ordering::SeqCst) {
            self.all_there.notify_one();
        }
    }
}

/// Reads as fast as it can, and lets others run now and then, as a stream that writes to a socket does.
async fn follow(mut watch: Watch, arrivals: Arc<Arrivals>) {
    while let Some(frame) = watch.next().await {
        tokio::task::coop::consume_budget().await;
        if matches!(frame, Frame::Event { .. }) {
            arrivals.arrived();
        }
    }
}

/// From the commit of an event to the last watcher having it, one event after the other: an acquire, then its release.
async fn delays(
    engine: &Engine,
    arrivals: &Arrivals,
    watchers: usize,
    duration: Duration,
) -> Result<Histogram<u64>> {
    let mut delay_us = load::latencies()?;
    let key = commands::resource("watched");
    let mut until = None;
    while until.is_none_or(|until| Instant::now() < until) {
        let tenure = AskedTenure::Own { ttl_ms: 30_000 };
        let acquire = commands::acquire(key.clone(), commands::name("bench"), tenure);
        let release = commands::release(acquire.lease);
        for command in [Command::Acquire(acquire), release] {
            arrivals.awaited.fetch_add(watchers as u64, Ordering::SeqCst);
            commands::submit(engine, command).await?;
            let all_there = tokio::time::timeout(PATIENCE, arrivals.all_there.notified()).await;
            all_there.context("a watcher has not got an event")?;
            let committed_ns = arrivals.committed_ns.load(Ordering::SeqCst);
            let delay_ns = arrivals.last_ns.load(Ordering::SeqCst).saturating_sub(committed_ns);
            if until.is_some() {
                delay_us.saturating_record(delay_ns / 1_000);
            }
        }
        // The first ones find a tail that has just begun to read, and do not count.
        until.get_or_insert(Instant::now() + duration);
    }
    Ok(delay_us)
}
