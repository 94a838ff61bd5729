//! The worker's loop: claim, observe, settle, again.
//!
//! ```text
//!   wait (poll interval, or a wake-up) ──> claim a batch ──> observe, up to a limit at a time ──> settle in one transaction:
//!        ^                                                     │  extend what takes long      transitions + effects,
//!        └──────────── unless the batch was full <─────────────┴───────────────────────────   deferrals, failures
//! ```
//!
//! - An observer that is unreachable costs its rows nothing: they stay open, and the loop backs off.
//! - A failure that is the row's fault leaves the row open and counts; the row backs off, and after `attempts_max`
//!   attempts it is buried with the reason, up to a limit of burials per hour.
//! - A row that kills its worker is claimed again when its lease has run out, and that counts too.
//! - At its local deadline, counted from before the claim was asked for, work on a row has stopped.
//! - A stop returns what was not started and finishes what was.

mod burials;
mod config;
mod connection;
mod cycle;
mod metrics;
mod observer;
mod outage;
mod settle;
mod summary;
mod wake;

use std::{sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use parking_lot::Mutex;
use solehold_clock::BootTime;
use tokio::sync::watch;

pub use config::ReconcilerConfig;
pub use metrics::ReconcilerMetrics;
pub use observer::{AppliedTransition, Cause, Observation, Observer, ObserverError};
pub use summary::Summary;
pub use wake::{Notifier, Wake};

use crate::{Claims, Error};
use burials::Burials;
use cycle::{Cycle, CycleReport};
use outage::{Change, Outages};

/// After a failure of the database the next cycle is tried this soon, even if the poll interval is longer.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Claims rows of one table and lets an [`Observer`] look at them, until it is stopped.
#[derive(Debug)]
pub struct Reconciler<O> {
    pool: Pool,
    claims: Arc<Claims>,
    observer: Arc<O>,
    config: ReconcilerConfig,
    metrics: ReconcilerMetrics,
    wake: Wake,
    outages: Mutex<Outages>,
    burials: Mutex<Burials>,
}

impl<O: Observer> Reconciler<O> {
    /// A worker over this pool; it uses one connection at a time.
    pub fn new(
        pool: Pool,
        claims: Arc<Claims>,
        observer: O,
        config: ReconcilerConfig,
    ) -> Result<Self, Error> {
        config.check(claims.table())?;
        let burials = Burials::new(config.burials_per_hour, BootTime::now());
        Ok(Self {
            pool,
            claims,
            observer: Arc::new(observer),
            config,
            metrics: ReconcilerMetrics::default(),
            wake: Wake::default(),
            outages: Mutex::default(),
            burials: Mutex::new(burials),
        })
    }

    /// Counts into these.
    pub fn metrics(mut self, metrics: &ReconcilerMetrics) -> Self {
        self.metrics = metrics.clone();
        self
    }

    /// Begins a cycle when woken, not only at the poll interval.
    pub fn wake(mut self, wake: &Wake) -> Self {
        self.wake = wake.clone();
        self
    }

    /// Runs cycles until `stop` is ready; then returns what was not started, and finishes what was.
    pub async fn run(self, stop: impl Future<Output = ()> + Send) {
        let config = &self.config;
        tracing::info!(
            worker_id = %config.worker,
            poll_interval_ms = config.poll_interval.as_millis() as u64,
            lease_ms = config.lease.as_millis() as u64,
            batch_size = config.batch_size,
            "reconciler started"
        );
        let (stopping, stopped) = watch::channel(false);
        let cycles = self.cycles(stopped);
        tokio::pin!(stop, cycles);
        tokio::select! {
            () = &mut cycles => {}
            () = &mut stop => {
                stopping.send_replace(true);
                cycles.await;
            }
        }
        if self.outages.lock().forget() {
            self.metrics.outages.dec();
        }
        tracing::info!(
            worker_id = %config.worker,
            poll_interval_ms = config.poll_interval.as_millis() as u64,
            lease_ms = config.lease.as_millis() as u64,
            "reconciler stopped"
        );
    }

    async fn cycles(&self, mut stopped: watch::Receiver<bool>) {
        while !*stopped.borrow() {
            let (pause, is_outage) = match self.cycle(&mut stopped).await {
                // New rows would only be more requests that the observer cannot answer.
                Ok(report) if report.summary.is_outage() => {
                    (report.unreachable_pause.max(self.config.poll_interval), true)
                }
                Ok(report) if report.summary.claimed >= self.config.batch_size as u64 => continue,
                Ok(_) => (self.config.poll_interval, false),
                Err(error) => {
                    tracing::warn!(worker_id = %self.config.worker, %error, "reconciler cycle failed; will retry");
                    self.metrics.failures.inc();
                    (self.config.poll_interval.min(TRY_AGAIN), false)
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.wake.woken(), if !is_outage => {}
                _ = stopped.wait_for(|stopped| *stopped) => {}
            }
        }
    }

    /// A single cycle, which [`run`](Self::run) repeats.
    pub async fn run_once(&self) -> Result<Summary, Error> {
        let (_stopping, mut stopped) = watch::channel(false);
        Ok(self.cycle(&mut stopped).await?.summary)
    }

    async fn cycle(&self, stopped: &mut watch::Receiver<bool>) -> Result<CycleReport, Error> {
        let report = Cycle::run(self, stopped).await?;
        let ended = BootTime::now();
        let took = ended.since(report.began);
        let summary = &report.summary;
        self.metrics.add(summary, took);
        let worker_id = &self.config.worker;
        if summary.claimed == 0 {
            tracing::debug!(%worker_id, "reconciler cycle: {summary}");
        } else {
            tracing::info!(%worker_id, took_ms = took.as_millis() as u64, "reconciler cycle: {summary}");
        }
        self.note_outage(&report, ended);
        Ok(report)
    }

    /// Reports that the observer is away, or back again: when that changes, not with each cycle.
    fn note_outage(&self, report: &CycleReport, ended: BootTime) {
        let worker_id = &self.config.worker;
        let summary = &report.summary;
        let rows = (summary.unreachable, summary.scanned + summary.errors);
        let change = self.outages.lock().cycle((report.began, ended), rows, report.unreachable_pause);
        match change {
            None => {}
            Some(Change::Began) => {
                self.metrics.outages.inc();
                let reason = report.unreachable_reason.as_deref().unwrap_or_default();
                tracing::warn!(
                    %worker_id,
                    reason,
                    "observer unreachable; rows stay open and no attempt is counted: {summary}"
                );
            }
            Some(Change::Ended { lasted, rows }) => {
                self.metrics.outages.dec();
                tracing::info!(%worker_id, lasted_ms = lasted.as_millis() as u64, rows, "observer reachable again");
            }
        }
    }
}
