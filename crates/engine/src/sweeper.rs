//! The sweeper: nominates leases, sessions and waiters that seem to have expired, and `decide` judges (rule 11).

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use solehold_core::time::Revision;

use crate::{
    clock::BootTime,
    driver::Driver,
    engine::EngineOptions,
    error::EngineError,
    health::Health,
    observe::Observer,
    store::{Retention, Store, StoreError},
};

/// An expired lease is nominated within this time.
const SWEEP_EVERY: Duration = Duration::from_millis(50);
const SWEEPS_PER_SECOND: usize = 20;
/// Ended rows are deleted and the clock's mark is written five times per second, so that a mark that is half a second
/// old means that no engine is running.
const MAINTAIN_EVERY_SWEEPS: u32 = 4;

/// A failure of maintenance that lasts is logged this often.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// Clients' commands share the lane: none waits behind more nominations than this at a time.
const TOGETHER_MAX: usize = 128;

pub(crate) struct Sweeper {
    pub unsent_after: Arc<Mutex<Option<Revision>>>,
    pub store: Arc<dyn Store>,
    pub driver: Driver,
    pub health: Arc<Health>,
    pub observer: Arc<dyn Observer>,
    pub options: EngineOptions,
}

impl Sweeper {
    pub async fn run(self: Arc<Self>) {
        let mut turns = tokio::time::interval(SWEEP_EVERY);
        turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // Nominations are queued together: leave room in the queue for clients' commands.
        let places = (self.options.driver.queue_max / 2).max(1);
        let most = (self.options.sweep_per_second / SWEEPS_PER_SECOND).clamp(1, places);
        let mut warned = None;
        for turn in 0u32.. {
            turns.tick().await;
            if self.health.check().is_err() {
                continue;
            }
            // Maintenance finds out whether the store can be written again.
            if self.store.unwritable().is_none() {
                self.sweep(most).await;
            }
            if turn % MAINTAIN_EVERY_SWEEPS == 0 {
                self.maintain(&mut warned).await;
            }
        }
    }

    /// A failure does not make the store unhealthy: a slow maintenance statement must not stop renewals. `warned` is
    /// when a failure was last logged.
    async fn maintain(&self, warned: &mut Option<BootTime>) {
        let unsent_after = *self.unsent_after.lock();
        let retention = Retention { unsent_after, ..self.options.retention };
        match self.store.maintain(&retention).await {
            // A retired store needs no maintenance.
            Ok(()) | Err(StoreError::Retired { .. }) => {}
            Err(error) if warned.is_none_or(|at| BootTime::now().since(at) >= WARN_EVERY) => {
                *warned = Some(BootTime::now());
                tracing::warn!(%error, "maintenance failed; will retry");
            }
            Err(_) => {}
        }
    }

    async fn sweep(&self, most: usize) {
        let due = self.store.due(most).await;
        self.health.heard(&due);
        let Ok(due) = due else { return };
        self.observer.swept(due.commands.len(), due.lag_ms);
        let mut outcomes = Vec::with_capacity(due.commands.len());
        for together in due.commands.chunks(TOGETHER_MAX) {
            outcomes.extend(self.driver.submit_all(together.iter().cloned().map(Into::into).collect()).await);
        }
        let not_judged = outcomes.iter().filter(|outcome| outcome.is_err()).count();
        let error = outcomes.into_iter().find_map(Result::err);
        // A barred store was logged when the bar began; expired leases stay until it ends.
        if let Some(error) =
            error.filter(|error| !matches!(error, EngineError::Store(StoreError::Barred { .. })))
        {
            tracing::warn!(%error, not_judged, "sweeper could not submit expired leases; will retry");
        }
    }
}
