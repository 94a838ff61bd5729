//! What a consumer has done, and how it is doing.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
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

/// How things stand with a partition of this consumer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartitionFigures {
    /// The epoch of the tenure; 0 before there is one.
    pub epoch: i64,
    /// The first offset that has not taken effect.
    pub position: i64,
    /// One above the last message that the broker has; none before it said so.
    pub end: Option<i64>,
}

impl PartitionFigures {
    /// How many messages have not taken effect.
    pub fn lag(&self) -> Option<i64> {
        self.end.map(|end| (end - self.position).max(0))
    }
}

/// What a consumer has done, and how it is doing. Clones share it.
#[derive(Debug, Default)]
pub struct Figures {
    lag: Family<OfPartition, Gauge>,
    rebalances: Counter,
    messages: Counter,
    duplicates: Counter,
    retries: Counter,
    dead_letters: Counter,
    transactions: Counter,
    fenced: Counter,
    lost: Counter,
    pauses: Counter,
    stalls: Counter,
    lost_messages: Counter,
    owned: Gauge,
    stopped: Gauge,
    /// Partitions that stand still, and why.
    standing: Mutex<BTreeMap<i32, String>>,
    partitions: Mutex<BTreeMap<i32, PartitionFigures>>,
    /// When it last polled, in boot time; 0 for never.
    polled: AtomicU64,
    /// Whether it was told what it has, be it nothing.
    is_told: Mutex<bool>,
}

impl Figures {
    /// Shows them in a registry.
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

    /// Counts messages that had taken effect before: for handlers, which find their marks.
    pub fn duplicates(&self, count: u64) {
        self.duplicates.inc_by(count);
    }

    /// The partitions that it works on.
    pub fn partitions(&self) -> BTreeMap<i32, PartitionFigures> {
        self.partitions.lock().clone()
    }

    /// Messages that have not taken effect, as far as it is known.
    pub fn lag(&self) -> i64 {
        self.partitions.lock().values().filter_map(PartitionFigures::lag).sum()
    }

    /// How many messages took effect.
    pub fn messages(&self) -> u64 {
        self.messages.get()
    }

    /// How many rebalances, fenced transactions, lost partitions and pauses there were.
    pub fn troubles(&self) -> [u64; 4] {
        [self.rebalances.get(), self.fenced.get(), self.lost.get(), self.pauses.get()]
    }

    /// How many messages became dead letters.
    pub fn dead_letters(&self) -> u64 {
        self.dead_letters.get()
    }

    /// Partitions of this consumer whose messages are not worked on, and why.
    pub fn stopped(&self) -> BTreeMap<i32, String> {
        self.standing.lock().clone()
    }

    /// How many tenures ended because messages no longer arrived.
    pub fn stalls(&self) -> u64 {
        self.stalls.get()
    }

    /// How many offsets were skipped because the broker had deleted them.
    pub fn lost_messages(&self) -> u64 {
        self.lost_messages.get()
    }

    /// Whether it polls, and has partitions or knows that it has none; or why not.
    pub fn ready(&self, now: BootTime) -> Result<(), String> {
        let polled = self.polled.load(Ordering::Relaxed);
        if polled == 0 {
            return Err("the consumer has not asked for messages yet".to_owned());
        }
        let since = now.since(BootTime::from_nanos(polled));
        if since > POLLED_WITHIN {
            return Err(format!("the consumer has not asked for messages for {} s", since.as_secs()));
        }
        if !*self.is_told.lock() {
            return Err("nobody has told the consumer which partitions it has".to_owned());
        }
        Ok(())
    }

    pub(super) fn polled(&self, now: BootTime) {
        self.polled.store(now.as_nanos().max(1), Ordering::Relaxed);
    }

    pub(super) fn told(&self, is_told: bool) {
        *self.is_told.lock() = is_told;
    }

    pub(super) fn rebalanced(&self) {
        self.rebalances.inc();
    }

    pub(super) fn begins(&self, partition: i32, epoch: i64, position: i64) {
        let mut partitions = self.partitions.lock();
        let figures = partitions.entry(partition).or_default();
        (figures.epoch, figures.position) = (epoch, position);
        self.owned.set(partitions.len() as i64);
    }

    pub(super) fn ends(&self, partition: i32) {
        let mut partitions = self.partitions.lock();
        partitions.remove(&partition);
        let mut standing = self.standing.lock();
        standing.remove(&partition);
        self.stopped.set(standing.len() as i64);
        self.lag.remove(&OfPartition { partition });
        self.owned.set(partitions.len() as i64);
    }

    pub(super) fn end_is(&self, partition: i32, end: i64) {
        if let Some(figures) = self.partitions.lock().get_mut(&partition) {
            figures.end = Some(end);
            self.lag.get_or_create(&OfPartition { partition }).set(figures.lag().unwrap_or_default());
        }
    }

    pub(super) fn committed(&self, partition: i32, messages: u64, dead_letters: u64, position: i64) {
        self.transactions.inc();
        self.messages.inc_by(messages);
        self.dead_letters.inc_by(dead_letters);
        if let Some(figures) = self.partitions.lock().get_mut(&partition) {
            figures.position = position;
        }
    }

    pub(super) fn fenced(&self) {
        self.fenced.inc();
    }

    pub(super) fn lost(&self, partitions: u64) {
        self.lost.inc_by(partitions);
    }

    /// A partition stands still; whether that was not known yet.
    pub(super) fn stops(&self, partition: i32, why: &str) -> bool {
        let mut standing = self.standing.lock();
        let former = standing.insert(partition, why.to_owned());
        self.stopped.set(standing.len() as i64);
        former.is_none()
    }

    /// A partition no longer stands still.
    pub(super) fn runs(&self, partition: i32) {
        let mut standing = self.standing.lock();
        if standing.remove(&partition).is_some() {
            self.stopped.set(standing.len() as i64);
            tracing::info!(partition, "the partition is no longer stopped");
        }
    }

    pub(super) fn stalled(&self) {
        self.stalls.inc();
    }

    pub(super) fn skipped(&self, messages: u64) {
        self.lost_messages.inc_by(messages);
    }

    pub(super) fn paused(&self) {
        self.pauses.inc();
    }

    pub(super) fn retried(&self) {
        self.retries.inc();
    }
}
