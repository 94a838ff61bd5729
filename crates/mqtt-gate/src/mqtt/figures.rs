//! Health and metrics of a gate: it is ready when every shard that it holds is connected and the server answers.

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

/// How things stand with a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Another gate has it, or this one is about to.
    Waiting,
    /// It is held, and messages flow.
    Connected,
    /// It is held, and messages do not flow.
    Down(String),
}

/// What a gate has done, and how it is doing.
#[derive(Debug, Default)]
pub struct Figures {
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
    standings: Mutex<BTreeMap<u32, Standing>>,
}

impl Figures {
    /// Nothing so far.
    pub fn new() -> Self {
        let figures = Self::default();
        let mut registry = Registry::with_prefix("solehold_gate");
        let reasons = Family::<OfReason, Counter>::default();
        registry.register(
            "messages_passed",
            "Messages that were passed on and confirmed",
            figures.passed.clone(),
        );
        registry.register("messages_refused", "Messages that were refused, by reason", reasons.clone());
        registry.register(
            "messages_ignored",
            "Messages that other shards look after",
            figures.ignored.clone(),
        );
        registry.register("connects", "Connections to the broker that were made", figures.connects.clone());
        registry.register("messages_held", "Messages that cannot be decided now", figures.held.clone());
        registry.register(
            "messages_unacknowledged",
            "Messages that were received and not yet acknowledged",
            figures.unacknowledged.clone(),
        );
        registry.register("shards", "Shards that this gate holds", figures.shards.clone());
        registry.register("shards_connected", "Shards whose messages flow", figures.connected.clone());
        registry.register("lag_seconds", "How far behind the server the gate may be", figures.lag.clone());
        registry.register(
            "up_to_date",
            "Whether the gate knows how far behind it is",
            figures.is_known.clone(),
        );
        registry.register(
            "denied",
            "Whether the server refuses the gate, such as for its key",
            figures.is_denied.clone(),
        );
        // The family and the array share each counter.
        let refused =
            Reason::ALL.map(|reason| reasons.get_or_create(&OfReason { reason: reason.name() }).clone());
        Self { registry: Mutex::new(registry), refused, ..figures }
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

    /// By how much the messages that a shard holds back and has not acknowledged have changed.
    pub(crate) fn moved(&self, (held, unacknowledged): (i64, i64)) {
        self.held.inc_by(held);
        self.unacknowledged.inc_by(unacknowledged);
    }

    pub(crate) fn connects(&self) {
        self.connects.inc();
    }

    /// A shard stands like this now.
    pub(crate) fn stands(&self, shard: u32, standing: Standing) {
        let mut standings = self.standings.lock();
        standings.insert(shard, standing);
        let count =
            |is: fn(&Standing) -> bool| standings.values().filter(|standing| is(standing)).count() as i64;
        self.shards.set(count(|standing| *standing != Standing::Waiting));
        self.connected.set(count(|standing| *standing == Standing::Connected));
    }

    /// Why the gate is not ready, if it is not.
    pub fn not_ready(&self, knowledge: &Knowledge) -> Option<String> {
        let standings = self.standings.lock();
        let down = standings.iter().find_map(|(shard, standing)| match standing {
            Standing::Down(why) => Some(format!("shard {shard}: {why}")),
            Standing::Waiting | Standing::Connected => None,
        });
        down.or_else(|| {
            let is_denied = knowledge.gate.status().is_denied;
            (is_denied || knowledge.lag().is_none()).then(|| {
                let what =
                    if is_denied { "the server refuses the gate" } else { "what the gate knows is too old" };
                let why = knowledge.gate.trouble().unwrap_or_else(|| "does the server answer?".to_owned());
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

/// What the gate knows, and how old that may be.
#[derive(Debug, Clone)]
pub struct Knowledge {
    /// It knows the newest tokens.
    pub gate: Arc<Gate>,
    /// Knowledge that is older admits nothing.
    pub cache_ttl: Duration,
}

impl Knowledge {
    /// How far behind the server it may be; none if that is too far.
    fn lag(&self) -> Option<Duration> {
        self.gate.lag().filter(|lag| *lag <= self.cache_ttl)
    }
}
