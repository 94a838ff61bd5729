//! Metrics of a consumer, and whether it is ready.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use solehold_clock::BootTime;

/// A consumer that has not polled for this long is not ready.
const POLLED_WITHIN: Duration = Duration::from_secs(15);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPartition {
    partition: i32,
}

/// The state of a partition of this consumer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartitionMetrics {
    /// The epoch of the tenure; 0 before there is one.
    pub epoch: i64,
    /// The lowest offset that is not committed.
    pub position: i64,
    /// One above the last message of the broker; none before it was reported.
    pub end: Option<i64>,
}

impl PartitionMetrics {
    /// The number of messages that are not committed.
    pub fn lag(&self) -> Option<i64> {
        self.end.map(|end| (end - self.position).max(0))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// It is starting.
    #[error("the consumer has not polled the broker yet")]
    NotPolled,
    /// Its thread hangs, or its process was paused.
    #[error("the consumer has not polled the broker for {} s", .0.as_secs())]
    PolledBefore(Duration),
    /// It waits for the group, or for the server.
    #[error("no partitions have been assigned to the consumer yet")]
    NotAssigned,
}

#[derive(Debug, Default)]
pub struct ConsumerMetrics {
    lag: Family<OfPartition, Gauge>,
    pub rebalances: Counter,
    pub messages: Counter,
    duplicates: Counter,
    pub retries: Counter,
    pub dead_letters: Counter,
    transactions: Counter,
    pub fenced: Counter,
    pub lost: Counter,
    pub pauses: Counter,
    pub stalls: Counter,
    pub lost_messages: Counter,
    owned: Gauge,
    stopped: Gauge,
    /// The reasons why partitions are stopped.
    stop_reasons: Mutex<BTreeMap<i32, String>>,
    partitions: Mutex<BTreeMap<i32, PartitionMetrics>>,
    /// The time of the last poll, in boot time; 0 for never.
    polled: AtomicU64,
    /// Whether an assignment has been received, even an empty one.
    is_assigned: AtomicBool,
}

impl ConsumerMetrics {
    pub fn register(&self, registry: &mut Registry) {
        let counters = [
            ("rebalance_count", "Changes of the partitions that this consumer has", &self.rebalances),
            ("consumer_messages", "Messages that took effect", &self.messages),
            ("idempotency_hits", "Messages that had taken effect before", &self.duplicates),
            ("consumer_retries", "Attempts that failed and are made again", &self.retries),
            ("consumer_dead_letters", "Messages that became dead letters", &self.dead_letters),
            ("consumer_transactions", "Transactions that were committed", &self.transactions),
            (
                "consumer_fenced_transactions",
                "Transactions of a former owner that were refused",
                &self.fenced,
            ),
            ("consumer_lost_partitions", "Partitions that were lost rather than revoked", &self.lost),
            ("consumer_pauses", "How often a partition was paused because it was full", &self.pauses),
            ("consumer_stalls", "Tenures that ended because messages no longer arrived", &self.stalls),
            (
                "consumer_lost_messages",
                "Offsets that were skipped because the broker had deleted them before they took effect",
                &self.lost_messages,
            ),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        registry.register(
            "consumer_lag",
            "Messages that have not taken effect, by partition",
            self.lag.clone(),
        );
        registry.register(
            "consumer_partitions",
            "Partitions that this consumer works on",
            self.owned.clone(),
        );
        registry.register(
            "consumer_stopped_partitions",
            "Partitions of this consumer whose messages are not worked on",
            self.stopped.clone(),
        );
    }

    /// Counts messages that had been committed before: called by handlers, which find their inbox marks.
    pub fn duplicates(&self, count: u64) {
        self.duplicates.inc_by(count);
    }

    pub fn partitions(&self) -> BTreeMap<i32, PartitionMetrics> {
        self.partitions.lock().clone()
    }

    /// The partitions that are stopped, with the reasons.
    pub fn stopped(&self) -> BTreeMap<i32, String> {
        self.stop_reasons.lock().clone()
    }

    /// Whether the consumer polls, and has received an assignment.
    pub fn ready(&self, now: BootTime) -> Result<(), NotReady> {
        let polled = self.polled.load(Ordering::Relaxed);
        if polled == 0 {
            return Err(NotReady::NotPolled);
        }
        let since = now.since(BootTime::from_nanos(polled));
        if since > POLLED_WITHIN {
            return Err(NotReady::PolledBefore(since));
        }
        if !self.is_assigned.load(Ordering::Relaxed) {
            return Err(NotReady::NotAssigned);
        }
        Ok(())
    }

    pub(super) fn polled(&self, now: BootTime) {
        self.polled.store(now.as_nanos().max(1), Ordering::Relaxed);
    }

    pub(super) fn set_assigned(&self, is_assigned: bool) {
        self.is_assigned.store(is_assigned, Ordering::Relaxed);
    }

    pub(super) fn begins(&self, partition: i32, epoch: i64, position: i64) {
        let mut partitions = self.partitions.lock();
        let metrics = partitions.entry(partition).or_default();
        metrics.epoch = epoch;
        metrics.position = position;
        self.owned.set(partitions.len() as i64);
    }

    pub(super) fn ends(&self, partition: i32) {
        let mut partitions = self.partitions.lock();
        partitions.remove(&partition);
        let mut reasons = self.stop_reasons.lock();
        reasons.remove(&partition);
        self.stopped.set(reasons.len() as i64);
        self.lag.remove(&OfPartition { partition });
        self.owned.set(partitions.len() as i64);
    }

    pub(super) fn end_is(&self, partition: i32, end: i64) {
        if let Some(metrics) = self.partitions.lock().get_mut(&partition) {
            metrics.end = Some(end);
            self.lag.get_or_create(&OfPartition { partition }).set(metrics.lag().unwrap_or_default());
        }
    }

    pub(super) fn committed(&self, partition: i32, messages: u64, dead_letters: u64, position: i64) {
        self.transactions.inc();
        self.messages.inc_by(messages);
        self.dead_letters.inc_by(dead_letters);
        if let Some(metrics) = self.partitions.lock().get_mut(&partition) {
            metrics.position = position;
        }
    }

    /// Records that a partition is stopped. Returns false if it was stopped before.
    pub(super) fn stops(&self, partition: i32, why: &str) -> bool {
        let mut reasons = self.stop_reasons.lock();
        let former = reasons.insert(partition, why.to_owned());
        self.stopped.set(reasons.len() as i64);
        former.is_none()
    }

    /// Records that a partition is no longer stopped.
    pub(super) fn runs(&self, partition: i32) {
        let mut reasons = self.stop_reasons.lock();
        if reasons.remove(&partition).is_some() {
            self.stopped.set(reasons.len() as i64);
            tracing::info!(partition, "the partition is no longer stopped");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_of_metrics_is_kept() {
        let metrics = ConsumerMetrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        metrics.begins(0, 1, 0);
        metrics.end_is(0, 7);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("a string takes writes");
        let table = solehold_testkit::metrics_table(&text);
        assert!(table.contains("| `consumer_lag` | gauge | `partition` |"), "{table}");
        solehold_testkit::golden_part("reference/metrics.md", "consumer", &table);
    }
}
