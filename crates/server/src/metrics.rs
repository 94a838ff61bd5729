//! The metrics of a node, which `/metrics` serves as OpenMetrics text. Labels come from closed sets only, and from the
//! names of relays, which the configuration has.

use std::{
    hash::{Hash, Hasher},
    sync::atomic::AtomicU64,
    time::Duration,
};

use axum::{extract::MatchedPath, http::Method};
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder, text},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
        info::Info,
    },
    registry::{Metric, Registry, Unit},
};
use solehold_api::problem::Problem;
use solehold_core::{
    event::{Change, Event, EventName},
    outcome::Outcome,
};
use solehold_engine::{
    EngineError,
    observe::{Lane, Observer},
    store::{StoreError, Usage},
};

use crate::error::code_of;

/// The route that a request matched; requests that match none are all one.
#[derive(Clone, Debug)]
pub(crate) struct Route(pub Option<MatchedPath>);

impl Route {
    pub fn as_str(&self) -> &str {
        self.0.as_ref().map_or("none", MatchedPath::as_str)
    }
}

impl PartialEq for Route {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Route {}

impl Hash for Route {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl EncodeLabelValue for Route {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.as_str().encode(encoder)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: Route,
    method: &'static str,
    status: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    route: Route,
    method: &'static str,
}

type Labels<const N: usize> = [(&'static str, &'static str); N];
type RelayLabels = [(&'static str, String); 1];
type Seconds = Gauge<f64, AtomicU64>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RelayCount {
    Sent,
    Retried,
    Refused,
    DeadLettered,
    Takeover,
    Gap,
    RenewalSent,
    RenewalLeftOut,
}

/// The metrics that count what relays do, in the order of [`RelayCount`].
const RELAY_COUNTS: [(&str, &str); 8] = [
    ("relay_sent", "Events that were delivered and confirmed"),
    ("relay_retried", "Attempts to deliver an event that failed"),
    ("relay_refused", "Attempts that the destination refused, such as messages that it could not route"),
    ("relay_dead_lettered", "Events that went to the dead letters"),
    ("relay_takeovers", "How often this node began to send"),
    ("relay_gaps", "How often events were dropped from the history before they were sent"),
    ("relay_renewals", "Renewals that were delivered"),
    ("relay_renewals_left_out", "Renewals that could not be delivered at once and were left out"),
];

#[derive(Debug)]
pub(crate) struct Metrics {
    requests: Family<RequestLabels, Counter>,
    request_seconds: Family<RouteLabels, Histogram>,
    operations: Family<Labels<2>, Counter>,
    operation_seconds: Family<Labels<1>, Histogram>,
    events: Family<Labels<1>, Counter>,
    renewals: Counter,
    batch_commands: Family<Labels<1>, Histogram>,
    store_seconds: Family<Labels<1>, Histogram>,
    nominations: Counter,
    sweeper_lag: Seconds,
    live_leases: Gauge,
    resources: Gauge,
    sessions: Gauge,
    waiters: Gauge,
    pub watchers: Gauge,
    pub connections: Gauge,
    store_up: Gauge,
    barred: Seconds,
    spans_exported: Counter,
    spans_dropped: Counter,
    relay_counts: [Family<RelayLabels, Counter>; 8],
    relay_lag_events: Family<RelayLabels, Gauge>,
    relay_lag: Family<RelayLabels, Seconds>,
    registry: Registry,
}

/// Registers a metric, and returns a handle to it.
fn add<M: Metric + Clone>(r: &mut Registry, name: &str, help: &str, metric: M) -> M {
    r.register(name, help, metric.clone());
    metric
}

/// Registers a metric that is measured in seconds, and returns a handle to it.
fn add_seconds<M: Metric + Clone>(r: &mut Registry, name: &str, help: &str, metric: M) -> M {
    r.register_with_unit(name, help, Unit::Seconds, metric.clone());
    metric
}

/// Shows counters from the start. An increase is seen between two values only, so a counter that first appears as 1
/// would hide what it counted from every alert.
fn start_at_zero<L: Clone + Eq + Hash>(counts: &Family<L, Counter>, labels: impl IntoIterator<Item = L>) {
    for labels in labels {
        drop(counts.get_or_create(&labels));
    }
}

/// From 50 microseconds to 13 seconds.
fn durations<L: Clone + Eq + Hash>() -> Family<L, Histogram> {
    Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.000_05, 2.0, 19)))
}

/// From 1 to 2048.
fn sizes<L: Clone + Eq + Hash>() -> Family<L, Histogram> {
    Family::new_with_constructor(|| Histogram::new(exponential_buckets(1.0, 2.0, 12)))
}

impl Metrics {
    pub fn new(node_id: &str) -> Self {
        let mut registry = Registry::with_prefix("solehold");
        let r = &mut registry;
        let build = vec![("version", env!("CARGO_PKG_VERSION").to_owned()), ("node_id", node_id.to_owned())];
        r.register("build", "The version of the server and the name of the node", Info::new(build));
        let of_request = "Time from the head of a request to the head of its answer";
        let of_command = "Time that a command took, waiting for its batch included";
        let of_renewals = "Sessions and leases that were renewed at this node";
        let of_batch = "Time that the store took for a batch, by lane";
        let of_lag = "The age of the oldest event that is not sent yet";
        let of_nomination = "How late the most overdue nomination of the last sweep was";
        let of_bar =
            "How long the store still grants and renews nothing, because it was restored or failed over";
        let events = add(r, "events", "Events that were committed at this node, by name", Family::default());
        start_at_zero(&events, EventName::ALL.map(|event| [("event", event.as_str())]));
        Self {
            requests: add(r, "http_requests", "Requests by route, method and status", Family::default()),
            request_seconds: add_seconds(r, "http_request", of_request, durations()),
            operations: add(r, "operations", "Commands by operation and outcome", Family::default()),
            operation_seconds: add_seconds(r, "operation", of_command, durations()),
            events,
            renewals: add(r, "renewals", of_renewals, Counter::default()),
            batch_commands: add(r, "batch_commands", "Commands in a batch, by lane", sizes()),
            store_seconds: add_seconds(r, "store", of_batch, durations()),
            nominations: add(r, "sweeper_nominations", "Nominations for expiry", Counter::default()),
            sweeper_lag: add_seconds(r, "sweeper_lag", of_nomination, Seconds::default()),
            live_leases: add(r, "live_leases", "Active leases in the whole store", Gauge::default()),
            resources: add(r, "resources", "Resources that are declared or held", Gauge::default()),
            sessions: add(r, "sessions", "Active sessions in the whole store", Gauge::default()),
            waiters: add(r, "waiters", "Places in line in the whole store", Gauge::default()),
            watchers: add(r, "watchers", "Watches that are open at this node", Gauge::default()),
            connections: add(r, "connections", "Connections that are open at this node", Gauge::default()),
            store_up: add(
                r,
                "store_up",
                "Whether the store answers and can be written (1) or not (0)",
                Gauge::default(),
            ),
            barred: add_seconds(r, "store_barred", of_bar, Seconds::default()),
            relay_counts: RELAY_COUNTS.map(|(name, help)| add(r, name, help, Family::default())),
            relay_lag_events: add(r, "relay_lag_events", "Events that are not sent yet", Family::default()),
            relay_lag: add_seconds(r, "relay_lag", of_lag, Family::default()),
            spans_exported: add(
                r,
                "trace_spans_exported",
                "Spans that the collector took",
                Counter::default(),
            ),
            spans_dropped: add(r, "trace_spans_dropped", "Spans that were lost", Counter::default()),
            registry,
        }
    }

    /// A relay of this name is configured, and has done nothing yet.
    pub fn relay_starts(&self, relay: &str) {
        for counts in &self.relay_counts {
            start_at_zero(counts, [[("relay", relay.to_owned())]]);
        }
    }

    pub fn relay(&self, relay: &str, what: RelayCount) {
        self.relay_counts[what as usize].get_or_create(&[("relay", relay.to_owned())]).inc();
    }

    /// How many events a relay has not sent yet, and the age of the oldest of them.
    pub fn relay_lag(&self, relay: &str, events: u64, seconds: f64) {
        let labels = [("relay", relay.to_owned())];
        self.relay_lag_events.get_or_create(&labels).set(i64::try_from(events).unwrap_or(i64::MAX));
        self.relay_lag.get_or_create(&labels).set(seconds);
    }

    pub fn request(&self, route: Route, method: &Method, status: u16, took: Duration) {
        let method = method_label(method);
        let labels = RouteLabels { route: route.clone(), method };
        self.request_seconds.get_or_create(&labels).observe(took.as_secs_f64());
        self.requests.get_or_create(&RequestLabels { route, method, status: status.into() }).inc();
    }

    pub fn operation(&self, operation: &'static str, outcome: &Result<Outcome, EngineError>, took: Duration) {
        let of = ("operation", operation);
        self.operations.get_or_create(&[of, ("outcome", outcome_label(outcome))]).inc();
        self.operation_seconds.get_or_create(&[of]).observe(took.as_secs_f64());
    }

    /// What the store was found to hold, nothing if it does not answer; and whether it can be written.
    pub fn usage(&self, usage: Option<&Usage>, is_writable: bool) {
        self.store_up.set((usage.is_some() && is_writable).into());
        let Some(usage) = usage else { return };
        self.live_leases.set(usage.live_leases as i64);
        self.resources.set(usage.resources as i64);
        self.sessions.set(usage.sessions as i64);
        self.waiters.set(usage.waiters as i64);
    }

    pub fn barred(&self, barred_ms: u64) {
        self.barred.set(Duration::from_millis(barred_ms).as_secs_f64());
    }

    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let spans = solehold_trace::counts();
        let follow = |counter: &Counter, count: u64| counter.inc_by(count.saturating_sub(counter.get()));
        follow(&self.spans_exported, spans.exported);
        follow(&self.spans_dropped, spans.dropped);
        let mut text = String::with_capacity(16 * 1024);
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl Observer for Metrics {
    fn batch(&self, lane: Lane, commands: usize, took: Duration) {
        let labels = [("lane", lane.as_str())];
        self.batch_commands.get_or_create(&labels).observe(commands as f64);
        self.store_seconds.get_or_create(&labels).observe(took.as_secs_f64());
    }

    fn committed(&self, events: &[Event], renewals: &[Change]) {
        for event in events {
            self.events.get_or_create(&[("event", event.name().as_str())]).inc();
        }
        self.renewals.inc_by(renewals.len() as u64);
    }

    fn swept(&self, nominated: usize, lag_ms: u64) {
        self.nominations.inc_by(nominated as u64);
        self.sweeper_lag.set(Duration::from_millis(lag_ms).as_secs_f64());
    }
}

/// `ok`, or the code of what went wrong.
fn outcome_label(outcome: &Result<Outcome, EngineError>) -> &'static str {
    match outcome {
        Ok(Ok(_)) => "ok",
        Ok(Err(refusal)) => Problem::from_refusal(refusal).code.as_str(),
        Err(EngineError::Store(StoreError::Unknown(_))) => "unknown",
        Err(error) => code_of(error).as_str(),
    }
}

fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}
