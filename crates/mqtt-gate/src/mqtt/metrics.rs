//! Health and metrics of a gate: it is ready when all of its shards are connected and the server can be reached.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64},
    },
    time::Duration,
};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use solehold_client::gate::Gate;

use crate::{refusal::Reason, window::Counts};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfReason {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShardStatus {
    /// This gate waits for its lease.
    Waiting,
    /// This gate holds it, and is connected.
    Connected,
    /// This gate holds it, and cannot connect.
    Down(String),
}

#[derive(Debug, Default)]
pub struct GateMetrics {
    registry: Mutex<Registry>,
    passed: Counter,
    refused: [Counter; Reason::ALL.len()],
    ignored: Counter,
    connects: Counter,
    held: Gauge,
    unacknowledged: Gauge,
    shards: Gauge,
    connected: Gauge,
    lag: Gauge<f64, AtomicU64>,
    is_known: Gauge<i64, AtomicI64>,
    is_denied: Gauge<i64, AtomicI64>,
    statuses: Mutex<BTreeMap<u32, ShardStatus>>,
}

impl GateMetrics {
    pub fn new() -> Self {
        let metrics = Self::default();
        let mut registry = Registry::with_prefix("solehold_gate");
        let reasons = Family::<OfReason, Counter>::default();
        registry.register(
            "messages_passed",
            "Messages that were passed on and confirmed",
            metrics.passed.clone(),
        );
        registry.register("messages_refused", "Messages that were refused, by reason", reasons.clone());
        registry.register(
            "messages_ignored",
            "Messages that other shards look after",
            metrics.ignored.clone(),
        );
        registry.register("connects", "Connections to the broker that were made", metrics.connects.clone());
        registry.register("messages_held", "Messages that cannot be decided now", metrics.held.clone());
        registry.register(
            "messages_unacknowledged",
            "Messages that were received and not yet acknowledged",
            metrics.unacknowledged.clone(),
        );
        registry.register("shards", "Shards that this gate holds", metrics.shards.clone());
        registry.register("shards_connected", "Shards whose messages flow", metrics.connected.clone());
        registry.register("lag_seconds", "How far behind the server the gate may be", metrics.lag.clone());
        registry.register(
            "up_to_date",
            "Whether the gate knows how far behind it is",
            metrics.is_known.clone(),
        );
        registry.register(
            "denied",
            "Whether the server refuses the gate, such as for its key",
            metrics.is_denied.clone(),
        );
        // The family and the array share each counter.
        let refused =
            Reason::ALL.map(|reason| reasons.get_or_create(&OfReason { reason: reason.name() }).clone());
        Self { registry: Mutex::new(registry), refused, ..metrics }
    }

    pub(crate) fn add(&self, counts: &Counts) {
        let add = |counter: &Counter, count: u64| {
            if count > 0 {
                counter.inc_by(count);
            }
        };
        add(&self.passed, counts.passed);
        add(&self.ignored, counts.ignored);
        self.refused.iter().zip(counts.refused).for_each(|(counter, count)| add(counter, count));
    }

    /// Adds to the numbers of messages that are held back and that are not acknowledged.
    pub(crate) fn adjust(&self, held: i64, unacknowledged: i64) {
        self.held.inc_by(held);
        self.unacknowledged.inc_by(unacknowledged);
    }

    pub(crate) fn connects(&self) {
        self.connects.inc();
    }

    pub(crate) fn set_status(&self, shard: u32, status: ShardStatus) {
        let mut statuses = self.statuses.lock();
        statuses.insert(shard, status);
        let count =
            |is: fn(&ShardStatus) -> bool| statuses.values().filter(|status| is(status)).count() as i64;
        self.shards.set(count(|status| *status != ShardStatus::Waiting));
        self.connected.set(count(|status| *status == ShardStatus::Connected));
    }

    /// Why the gate is not ready; none if it is.
    pub fn not_ready(&self, knowledge: &Knowledge) -> Option<String> {
        let statuses = self.statuses.lock();
        let down = statuses.iter().find_map(|(shard, status)| match status {
            ShardStatus::Down(why) => Some(format!("shard {shard}: {why}")),
            ShardStatus::Waiting | ShardStatus::Connected => None,
        });
        down.or_else(|| {
            let is_denied = knowledge.gate.status().is_denied;
            (is_denied || knowledge.lag().is_none()).then(|| {
                let what = if is_denied {
                    "the server rejects the gate"
                } else {
                    "the knowledge of the gate is too old"
                };
                let why = knowledge.gate.trouble().unwrap_or_else(|| "is the server running?".to_owned());
                format!("{what}: {why}")
            })
        })
    }

    /// All metrics as OpenMetrics text; none if they cannot be written.
    pub fn text(&self, knowledge: &Knowledge) -> Option<String> {
        let lag = knowledge.lag();
        self.lag.set(lag.unwrap_or_default().as_secs_f64());
        self.is_known.set(lag.is_some().into());
        self.is_denied.set(knowledge.gate.status().is_denied.into());
        let mut text = String::new();
        encode(&mut text, &self.registry.lock()).ok()?;
        Some(text)
    }
}

/// The gate's knowledge of tokens, and how old it may be.
#[derive(Debug, Clone)]
pub struct Knowledge {
    /// Has the newest tokens.
    pub gate: Arc<Gate>,
    /// Older knowledge admits no message.
    pub cache_ttl: Duration,
}

impl Knowledge {
    /// How far behind the server the gate may be; none if that is too far.
    fn lag(&self) -> Option<Duration> {
        self.gate.lag().filter(|lag| *lag <= self.cache_ttl)
    }
}
