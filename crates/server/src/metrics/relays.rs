//! What relays do, by the name of each: names come from the configuration.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};

use super::RelayCount;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RelayLabels {
    relay: String,
}

impl RelayLabels {
    fn of(relay: &str) -> Self {
        Self { relay: relay.to_owned() }
    }
}

type Counts = Family<RelayLabels, Counter>;

/// What relays do.
#[derive(Debug, Default)]
pub struct RelayMetrics {
    sent: Counts,
    retried: Counts,
    refused: Counts,
    dead_lettered: Counts,
    takeovers: Counts,
    gaps: Counts,
    renewals: Counts,
    renewals_left_out: Counts,
    lag_events: Family<RelayLabels, Gauge>,
    lag_seconds: Family<RelayLabels, Gauge<f64, AtomicU64>>,
}

impl RelayMetrics {
    pub fn register(&self, r: &mut Registry) {
        r.register("relay_sent", "Events that were delivered and confirmed", self.sent.clone());
        r.register("relay_retried", "Attempts to deliver an event that failed", self.retried.clone());
        let refused = "Attempts that the destination refused, such as messages that it could not route";
        r.register("relay_refused", refused, self.refused.clone());
        let dead = "Events that went to the dead letters";
        r.register("relay_dead_lettered", dead, self.dead_lettered.clone());
        r.register("relay_takeovers", "How often this node began to send", self.takeovers.clone());
        let gaps = "How often events were dropped from the history before they were sent";
        r.register("relay_gaps", gaps, self.gaps.clone());
        r.register("relay_renewals", "Renewals that were delivered", self.renewals.clone());
        let left_out = "Renewals that could not be delivered at once and were left out";
        r.register("relay_renewals_left_out", left_out, self.renewals_left_out.clone());
        r.register("relay_lag_events", "Events that are not sent yet", self.lag_events.clone());
        let age = "The age of the oldest event that is not sent yet";
        r.register_with_unit("relay_lag", age, Unit::Seconds, self.lag_seconds.clone());
    }

    pub fn count(&self, relay: &str, what: RelayCount) {
        let counts = match what {
            RelayCount::Sent => &self.sent,
            RelayCount::Retried => &self.retried,
            RelayCount::Refused => &self.refused,
            RelayCount::DeadLettered => &self.dead_lettered,
            RelayCount::Takeover => &self.takeovers,
            RelayCount::Gap => &self.gaps,
            RelayCount::RenewalSent => &self.renewals,
            RelayCount::RenewalLeftOut => &self.renewals_left_out,
        };
        counts.get_or_create(&RelayLabels::of(relay)).inc();
    }

    pub fn lag(&self, relay: &str, events: u64, seconds: f64) {
        let labels = RelayLabels::of(relay);
        self.lag_events.get_or_create(&labels).set(i64::try_from(events).unwrap_or(i64::MAX));
        self.lag_seconds.get_or_create(&labels).set(seconds);
    }
}
