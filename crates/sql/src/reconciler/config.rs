//! Configuration of a reconciler.

use std::time::Duration;

use solehold_clock::{Backoff, BootTime, deadline::local_deadline};

use crate::{
    Error, Owner,
    limits::{
        BATCH_ROWS_MAX, DEFER_MAX, LEASE_MAX, LEASE_MIN, OBSERVATIONS_MAX, POLL_INTERVAL_MAX,
        POLL_INTERVAL_MIN, UNREACHABLE_BACKOFF_MAX, UNREACHABLE_BACKOFF_MIN,
    },
    table::ClaimTable,
};

/// How a [`Reconciler`](super::Reconciler) runs.
#[derive(Debug, Clone)]
pub struct ReconcilerConfig {
    /// The name under which it claims. Two that run at the same time should have two names; a proof does not rest on it
    /// alone.
    pub worker: Owner,
    /// How long it waits after a batch that was not full.
    pub poll_interval: Duration,
    /// How many rows it claims at once.
    pub batch_size: usize,
    /// For how long, by the database's clock. It extends what takes longer.
    pub lease: Duration,
    /// How many rows are observed at the same time.
    pub concurrency: usize,
    /// When a row that has not changed is looked at again.
    pub recheck: Duration,
    /// How long a row waits after its first failure; twice as long after each further one.
    pub backoff_min: Duration,
    /// How long it rests at most.
    pub backoff_max: Duration,
    /// The longest pause while the observer is unreachable; the first is `backoff_min` (at least 10 ms), and each is
    /// twice as long as the one before.
    pub unreachable_backoff_max: Duration,
    /// After this many attempts without a result a row is buried, if the table has columns for that.
    pub attempts_max: u32,
    /// The most rows that this reconciler buries within an hour; further ones stay open and are retried. So a fault
    /// that fails every row does not bury every row. Zero: none is ever buried.
    pub burials_per_hour: u32,
    /// States that the summary always shows, moved to or not.
    pub states: Vec<String>,
}

impl ReconcilerConfig {
    /// Every 15 s, 100 rows, leased for 30 s.
    pub fn new(worker: Owner) -> Self {
        Self {
            worker,
            poll_interval: Duration::from_secs(15),
            batch_size: 100,
            lease: Duration::from_secs(30),
            concurrency: 16,
            recheck: Duration::from_secs(15),
            backoff_min: Duration::from_secs(1),
            backoff_max: Duration::from_secs(300),
            unreachable_backoff_max: Duration::from_secs(30),
            attempts_max: 20,
            burials_per_hour: 100,
            states: Vec::new(),
        }
    }

    pub(super) fn check(&self, table: &ClaimTable) -> Result<(), Error> {
        let within = Error::unless_within::<Duration>;
        within("poll interval", self.poll_interval, POLL_INTERVAL_MIN..=POLL_INTERVAL_MAX)?;
        within("lease", self.lease, LEASE_MIN..=LEASE_MAX)?;
        within("recheck interval", self.recheck, Duration::ZERO..=DEFER_MAX)?;
        within("longest backoff", self.backoff_max, Duration::ZERO..=DEFER_MAX)?;
        within("shortest backoff", self.backoff_min, Duration::ZERO..=self.backoff_max)?;
        let what = "longest backoff of an unreachable observer";
        within(what, self.unreachable_backoff_max, UNREACHABLE_BACKOFF_MIN..=UNREACHABLE_BACKOFF_MAX)?;
        Error::unless_within("batch size", self.batch_size, 1..=BATCH_ROWS_MAX)?;
        Error::unless_within("concurrency", self.concurrency, 1..=OBSERVATIONS_MAX)?;
        Error::unless_within("number of attempts", self.attempts_max, 1..=i32::MAX as u32)?;
        if table.state.is_none() {
            let wanted = "name its state column: a reconciler changes states";
            return Err(Error::invalid("table", table.name(), wanted));
        }
        Ok(())
    }

    /// How long a row waits after attempt number `attempts`.
    pub(super) fn backoff(&self, attempts: i32) -> Duration {
        let backoff = Backoff { first: self.backoff_min, cap: self.backoff_max };
        backoff.longest(attempts.max(1).unsigned_abs())
    }

    /// How long to wait for an observer that is unreachable.
    pub(super) fn unreachable_backoff(&self) -> Backoff {
        let cap = self.unreachable_backoff_max;
        Backoff { first: self.backoff_min.clamp(UNREACHABLE_BACKOFF_MIN, cap), cap }
    }

    /// Until when a worker trusts claims that it asked for at `asked` (rule 4).
    pub(super) fn trusted_until(&self, asked: BootTime) -> BootTime {
        local_deadline(asked, self.lease, Duration::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_its_bound() {
        let config = ReconcilerConfig::new(Owner::new("w").unwrap());
        let seconds: Vec<u64> = [0, 1, 2, 3, 9, 10, i32::MAX].map(|n| config.backoff(n).as_secs()).into();
        assert_eq!(seconds, [1, 1, 2, 4, 256, 300, 300]);
    }

    #[test]
    fn a_bad_setting_is_named() {
        let table = ClaimTable::builder("jobs").state("status").build().unwrap();
        let with = |change: fn(&mut ReconcilerConfig)| {
            let mut config = ReconcilerConfig::new(Owner::new("w").unwrap());
            change(&mut config);
            config.check(&table).unwrap_err().to_string()
        };
        assert!(with(|c| c.poll_interval = Duration::ZERO).contains("poll interval"));
        assert!(with(|c| c.batch_size = 0).contains("batch size"));
        assert!(with(|c| c.lease = Duration::ZERO).contains("lease"));
        assert!(with(|c| c.concurrency = OBSERVATIONS_MAX + 1).contains("concurrency"));
        assert!(with(|c| c.unreachable_backoff_max = Duration::ZERO).contains("unreachable observer"));
        assert!(with(|c| c.backoff_min = Duration::from_secs(301)).contains("shortest backoff"));
        let stateless = ClaimTable::builder("jobs").build().unwrap();
        let config = ReconcilerConfig::new(Owner::new("w").unwrap());
        assert!(config.check(&stateless).unwrap_err().to_string().contains("state column"));
    }
}
