//! Metrics as OpenMetrics text, for `/metrics`. Labels come from closed sets only.

use std::time::Duration;

use axum::http::Method;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder, text},
    metrics::{
        counter::Counter,
        family::{Family, MetricConstructor},
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
        info::Info,
    },
    registry::{Registry, Unit},
};
use solehold_api::problem::Problem;
use solehold_core::{
    event::{Change, Event},
    outcome::Outcome,
};
use solehold_engine::{
    EngineError,
    observe::{Lane, Observer},
    store::{StoreError, Usage},
};

use super::{RelayCount, Route, relays::RelayMetrics};

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

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    operation: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    operation: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LaneLabels {
    lane: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    event: &'static str,
}

/// From 50 microseconds to 13 seconds.
#[derive(Clone, Debug)]
struct Seconds;

impl MetricConstructor<Histogram> for Seconds {
    fn new_metric(&self) -> Histogram {
        Histogram::new(exponential_buckets(0.000_05, 2.0, 19))
    }
}

/// From 1 to 2048.
#[derive(Clone, Debug)]
struct Commands;

impl MetricConstructor<Histogram> for Commands {
    fn new_metric(&self) -> Histogram {
        Histogram::new(exponential_buckets(1.0, 2.0, 12))
    }
}

/// Everything that is measured.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    request_seconds: Family<RouteLabels, Histogram, Seconds>,
    operations: Family<OutcomeLabels, Counter>,
    operation_seconds: Family<OperationLabels, Histogram, Seconds>,
    events: Family<EventLabels, Counter>,
    renewals: Counter,
    batch_commands: Family<LaneLabels, Histogram, Commands>,
    store_seconds: Family<LaneLabels, Histogram, Seconds>,
    nominations: Counter,
    sweeper_lag: Gauge<f64, std::sync::atomic::AtomicU64>,
    live_leases: Gauge,
    resources: Gauge,
    sessions: Gauge,
    waiters: Gauge,
    store_up: Gauge,
    barred: Gauge<f64, std::sync::atomic::AtomicU64>,
    relays: RelayMetrics,
    /// Watches that are open at this node.
    pub watchers: Gauge,
    /// Connections that are open at this node.
    pub connections: Gauge,
}

impl Metrics {
    /// Measures for a node of that name.
    pub fn new(node_id: &str) -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("solehold"),
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(Seconds),
            operations: Family::default(),
            operation_seconds: Family::new_with_constructor(Seconds),
            events: Family::default(),
            renewals: Counter::default(),
            batch_commands: Family::new_with_constructor(Commands),
            store_seconds: Family::new_with_constructor(Seconds),
            nominations: Counter::default(),
            sweeper_lag: Gauge::default(),
            live_leases: Gauge::default(),
            resources: Gauge::default(),
            sessions: Gauge::default(),
            waiters: Gauge::default(),
            store_up: Gauge::default(),
            barred: Gauge::default(),
            relays: RelayMetrics::default(),
            watchers: Gauge::default(),
            connections: Gauge::default(),
        };
        metrics.register(node_id);
        metrics
    }

    fn register(&mut self, node_id: &str) {
        let build = vec![("version", env!("CARGO_PKG_VERSION").to_owned()), ("node_id", node_id.to_owned())];
        let r = &mut self.registry;
        r.register("build", "The version of the server and the name of the node", Info::new(build));
        r.register("http_requests", "Requests by route, method and status", self.requests.clone());
        r.register_with_unit(
            "http_request",
            "Time from the head of a request to the head of its answer",
            Unit::Seconds,
            self.request_seconds.clone(),
        );
        r.register("operations", "Commands by operation and outcome", self.operations.clone());
        r.register_with_unit(
            "operation",
            "Time that a command took, waiting for its batch included",
            Unit::Seconds,
            self.operation_seconds.clone(),
        );
        r.register("events", "Events that were committed at this node, by name", self.events.clone());
        r.register("renewals", "Sessions and leases that were renewed at this node", self.renewals.clone());
        r.register("batch_commands", "Commands in a batch, by lane", self.batch_commands.clone());
        r.register_with_unit(
            "store",
            "Time that the store took for a batch, by lane",
            Unit::Seconds,
            self.store_seconds.clone(),
        );
        r.register("sweeper_nominations", "Nominations for expiry", self.nominations.clone());
        r.register_with_unit(
            "sweeper_lag",
            "How late the most overdue nomination of the last sweep was",
            Unit::Seconds,
            self.sweeper_lag.clone(),
        );
        r.register("live_leases", "Active leases in the whole store", self.live_leases.clone());
        r.register("resources", "Resources that are declared or held", self.resources.clone());
        r.register("sessions", "Active sessions in the whole store", self.sessions.clone());
        r.register("waiters", "Places in line in the whole store", self.waiters.clone());
        r.register("watchers", "Watches that are open at this node", self.watchers.clone());
        r.register("connections", "Connections that are open at this node", self.connections.clone());
        r.register("store_up", "Whether the store answers (1) or not (0)", self.store_up.clone());
        r.register_with_unit(
            "store_barred",
            "How long the store still grants and renews nothing, because it was restored or failed over",
            Unit::Seconds,
            self.barred.clone(),
        );
        self.relays.register(r);
    }

    /// A relay did something.
    pub fn relay(&self, relay: &str, what: RelayCount) {
        self.relays.count(relay, what);
    }

    /// How many events a relay has not sent yet, and the age of the oldest of them.
    pub fn relay_lag(&self, relay: &str, events: u64, seconds: f64) {
        self.relays.lag(relay, events, seconds);
    }

    /// A request was answered.
    pub fn request(&self, route: Route, method: &Method, status: u16, took: Duration) {
        let method = method_label(method);
        let labels = RouteLabels { route: route.clone(), method };
        self.request_seconds.get_or_create(&labels).observe(took.as_secs_f64());
        self.requests.get_or_create(&RequestLabels { route, method, status: status.into() }).inc();
    }

    /// A command was answered.
    pub fn operation(&self, operation: &'static str, outcome: &Result<Outcome, EngineError>, took: Duration) {
        let labels = OutcomeLabels { operation, outcome: outcome_label(outcome) };
        self.operations.get_or_create(&labels).inc();
        self.operation_seconds.get_or_create(&OperationLabels { operation }).observe(took.as_secs_f64());
    }

    /// What the store was found to hold; nothing, if it does not answer.
    pub fn usage(&self, usage: Option<&Usage>) {
        self.store_up.set(usage.is_some().into());
        let Some(usage) = usage else { return };
        self.live_leases.set(usage.live_leases as i64);
        self.resources.set(usage.resources as i64);
        self.sessions.set(usage.sessions as i64);
        self.waiters.set(usage.waiters as i64);
    }

    /// How long the store still grants and renews nothing.
    pub fn barred(&self, barred_ms: u64) {
        self.barred.set(Duration::from_millis(barred_ms).as_secs_f64());
    }

    /// All of it as OpenMetrics text.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::with_capacity(16 * 1024);
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl Observer for Metrics {
    fn batch(&self, lane: Lane, commands: usize, took: Duration) {
        let labels = LaneLabels { lane: lane.as_str() };
        self.batch_commands.get_or_create(&labels).observe(commands as f64);
        self.store_seconds.get_or_create(&labels).observe(took.as_secs_f64());
    }

    fn committed(&self, events: &[Event], renewals: &[Change]) {
        for event in events {
            self.events.get_or_create(&EventLabels { event: event.name().as_str() }).inc();
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
        Err(EngineError::Store(StoreError::Contended { .. }) | EngineError::Overloaded { .. }) => {
            "overloaded"
        }
        Err(EngineError::Store(
            StoreError::Unusable(_) | StoreError::InUse { .. } | StoreError::NotEmpty,
        )) => "internal",
        Err(
            EngineError::Store(
                StoreError::Unavailable(_) | StoreError::Barred { .. } | StoreError::Retired { .. },
            )
            | EngineError::Stopping,
        ) => "unavailable",
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
