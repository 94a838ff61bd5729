//! A writer: holds leases with the client's own sessions and guards, and writes under them for as long as it has them.
//!
//! A program looks at its lease, works, and then writes what it has worked out. Between the look and the write it may
//! be paused for longer than its lease lasts, which no check of its own can exclude. So this one works for a moment
//! between the two.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use clap::Args;
use futures_util::future::try_join_all;
use rand::RngExt as _;
use solehold_client::{AcquireError, ClientSession, Guard, SessionConfig};
use solehold_clock::BootTime;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Interval, MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use crate::{
    broken::Broken,
    history::{Action, Outcome, Recorder, Write},
    servers::ServersOptions,
    sink::SinkClient,
};

/// What it prints when it has begun.
pub const READY: &str = "writer begins";
/// The kind of all resources.
pub const KIND: &str = "job";

/// From a look at the lease to the write, and from the write to the next look.
const STEP: Duration = Duration::from_millis(50);
/// How long it waits in line for a resource before it tries again.
const IN_LINE: Duration = Duration::from_secs(10);
/// Writes under one grant.
const WRITES: std::ops::Range<u32> = 20..80;

/// One writer process.
#[derive(Debug, Args)]
pub struct WriterOptions {
    #[arg(long)]
    pub name: String,
    #[command(flatten)]
    pub servers: ServersOptions,
    #[arg(long)]
    pub sink: String,
    #[arg(long, value_delimiter = ',')]
    pub resources: Vec<String>,
    #[arg(long)]
    pub ttl_ms: u64,
    /// The folder of the history
    #[arg(long)]
    pub history: PathBuf,
    #[arg(long = "break")]
    pub broken: Option<Broken>,
}

struct Writer {
    session: ClientSession,
    sink: SinkClient,
    recorder: Recorder,
    trusts_for_ever: bool,
    stop: CancellationToken,
}

/// Runs until SIGTERM, and then releases what it holds.
pub async fn run(options: WriterOptions) -> Result<()> {
    let recorder = Recorder::create(&options.history, &options.name)?;
    let authority = options.servers.connect()?;
    let config = SessionConfig {
        ttl: Duration::from_millis(options.ttl_ms),
        open_timeout: Duration::from_secs(60),
        ..SessionConfig::new(&options.name)
    };
    let session = ClientSession::open(authority, config).await?;
    let stop = CancellationToken::new();
    let writer = Arc::new(Writer {
        session: session.clone(),
        sink: SinkClient::new(&options.sink)?,
        recorder,
        trusts_for_ever: options.broken == Some(Broken::Deadline),
        stop: stop.clone(),
    });
    let mut terminate = signal(SignalKind::terminate())?;
    println!("{READY}");
    let work = options.resources.iter().map(|resource| {
        let writer = writer.clone();
        let resource = resource.clone();
        tokio::spawn(async move { writer.work(&resource).await })
    });
    let work = try_join_all(work.collect::<Vec<_>>());
    terminate.recv().await.context("no signals")?;
    stop.cancel();
    for worked in work.await? {
        worked?;
    }
    session.close().await;
    Ok(())
}

impl Writer {
    /// Acquires a resource, writes under it and releases it, again and again.
    async fn work(&self, resource: &str) -> Result<()> {
        let mut step = interval(STEP);
        step.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.stop.is_cancelled() {
            step.tick().await;
            let Some(guard) = self.acquire(resource).await? else { continue };
            let mut left = rand::rng().random_range(WRITES);
            while left > 0 && !self.stop.is_cancelled() && self.write(resource, &guard, &mut step).await? {
                left -= 1;
            }
            self.release(resource, guard).await?;
        }
        Ok(())
    }

    async fn acquire(&self, resource: &str) -> Result<Option<Guard>> {
        let action = Action::Acquire { resource: resource.to_owned() };
        let operation = self.recorder.began(BootTime::now(), action)?;
        let acquired = tokio::select! {
            acquired = self.session.acquire_within(KIND, resource, IN_LINE) => acquired,
            // What it may be granted is given back by the client.
            () = self.stop.cancelled() => return Ok(None),
        };
        let outcome = match &acquired {
            Ok(guard) => Outcome::Granted { token: guard.token().0 },
            Err(AcquireError::Refused { .. } | AcquireError::TimedOut { .. }) => Outcome::Refused,
            Err(_) => Outcome::Unknown,
        };
        self.recorder.ended(operation, outcome)?;
        Ok(acquired.ok())
    }

    /// One write; false when the resource is no longer to be written.
    async fn write(&self, resource: &str, guard: &Guard, step: &mut Interval) -> Result<bool> {
        // Read before the lease is looked at, so that it is never later than the trust it stands for.
        let at = BootTime::now();
        let checked = guard.check().ok();
        let trusted = if self.trusts_for_ever { Some(guard.token()) } else { checked };
        let Some(token) = trusted else { return Ok(false) };
        let id = format!("{}/{}/{}", self.session.holder(), std::process::id(), at.as_nanos());
        let write = Write { resource: resource.to_owned(), token: token.0, id: format!("{id}/{resource}") };
        let operation = self.recorder.began(at, Action::Write(write.clone()))?;
        step.tick().await;
        let outcome = self.sink.write(&write).await;
        self.recorder.ended(operation, outcome)?;
        step.tick().await;
        Ok(true)
    }

    async fn release(&self, resource: &str, guard: Guard) -> Result<()> {
        // A lost lease is not released, and what follows counts as a takeover.
        if !guard.is_live() {
            return Ok(());
        }
        let action = Action::Release { resource: resource.to_owned(), token: guard.token().0 };
        let operation = self.recorder.began(BootTime::now(), action)?;
        let released = guard.release().await;
        self.recorder.ended(operation, if released.is_ok() { Outcome::Done } else { Outcome::Unknown })
    }
}
