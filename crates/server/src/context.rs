//! What handlers share: the engine, the keys, the limits, the metrics.

#[cfg(feature = "metrics")]
use solehold_core::command::Footprint;
#[cfg(feature = "metrics")]
use std::sync::atomic::Ordering;
use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use axum::http::HeaderValue;
use solehold_api::admin::Quotas;
use solehold_core::{
    call::Call,
    command::{Acquire, Command},
    key::Name,
    outcome::Outcome,
};
use solehold_engine::{Engine, EngineError, clock::BootTime};
use tokio::sync::watch;

use crate::{
    config::{ServerConfig, ServerLimits},
    http::{ApiError, Identity, Rates, about},
    metrics::Metrics,
    placement::{KnownRunner, PlanBook, Planned},
    quota::{OpenWatch, Quota, QuotaBook},
    ring::Ring,
    tenants::KnownTenants,
};

/// How often the store is asked how much there is, for the metrics.
#[cfg(feature = "metrics")]
const COUNT_EVERY: Duration = Duration::from_secs(1);

/// What handlers share, on behalf of a caller. Clones are handles to the same context.
#[derive(Clone, Debug)]
pub struct Context {
    inner: Arc<Inner>,
    /// On whose behalf it acts; the server itself, if nobody called.
    caller: Identity,
}

#[derive(Debug)]
struct Inner {
    engine: Engine,
    node_id: String,
    node_header: HeaderValue,
    limits: ServerLimits,
    metrics: Arc<Metrics>,
    guards_metrics: bool,
    ring: Ring,
    rates: Rates,
    quotas: QuotaBook,
    tenants: KnownTenants,
    plans: PlanBook,
    began: BootTime,
    connections: Arc<AtomicU64>,
    /// When the store was last asked how much there is.
    #[cfg(feature = "metrics")]
    counted: tokio::sync::Mutex<Option<BootTime>>,
    stopping: watch::Sender<bool>,
}

impl Context {
    /// A context over an engine. On loopback callers need no key as long as the store has none.
    pub(crate) fn new(engine: Engine, config: &ServerConfig, metrics: Arc<Metrics>) -> Self {
        let (node_id, limits) = (config.node_id.clone(), config.limits);
        // A name may have characters that a header cannot.
        let node_header = HeaderValue::from_str(&node_id).unwrap_or(HeaderValue::from_static("unnamed"));
        let inner = Inner {
            engine,
            node_id,
            node_header,
            limits,
            metrics,
            guards_metrics: config.guard_metrics,
            ring: Ring::new(config.is_loopback()),
            rates: Rates::new(&limits),
            quotas: QuotaBook::default(),
            tenants: KnownTenants::default(),
            plans: PlanBook::default(),
            began: BootTime::now(),
            connections: Arc::default(),
            #[cfg(feature = "metrics")]
            counted: Default::default(),
            stopping: watch::Sender::new(false),
        };
        Self { inner: Arc::new(inner), caller: Identity::keyless() }
    }

    /// The same context on behalf of a caller: what is submitted through it is that caller's.
    pub(crate) fn on_behalf_of(&self, caller: Identity) -> Self {
        Self { inner: self.inner.clone(), caller }
    }

    /// On whose behalf it acts.
    pub(crate) fn caller(&self) -> &Identity {
        &self.caller
    }

    fn call(&self, command: Command) -> Call {
        Call { command, by: self.caller.actor() }
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    /// The name of this node.
    pub fn node_id(&self) -> &str {
        &self.inner.node_id
    }

    /// The name of this node, as a header.
    pub(crate) fn node_header(&self) -> &HeaderValue {
        &self.inner.node_header
    }

    /// Submits a command, and measures the outcome.
    pub async fn submit(&self, command: Command) -> Result<Outcome, EngineError> {
        let (operation, began) = (command.name(), BootTime::now());
        let changes_registry = changes_registry(&command);
        about::note(&command);
        let outcome = self.inner.engine.submit(self.call(command)).await;
        self.inner.metrics.operation(operation, &outcome, BootTime::now().since(began));
        if changes_registry {
            self.inner.plans.registry_changed();
        }
        outcome
    }

    /// Acquires, waiting in line for at most `wait`, and measures the outcome.
    pub async fn acquire_waiting(&self, acquire: Acquire, wait: Duration) -> Result<Outcome, EngineError> {
        let began = BootTime::now();
        about::note(&Command::Acquire(acquire.clone()));
        let outcome = self.inner.engine.acquire_waiting(acquire, self.caller.actor(), wait).await;
        self.inner.metrics.operation("acquire_waiting", &outcome, BootTime::now().since(began));
        outcome
    }

    /// Submits commands that are decided in their order, and measures the outcome of each.
    pub async fn submit_all(&self, commands: Vec<Command>) -> Vec<Result<Outcome, EngineError>> {
        let operations: Vec<_> = commands.iter().map(Command::name).collect();
        commands.first().into_iter().for_each(about::note);
        let began = BootTime::now();
        let outcomes =
            self.inner.engine.submit_all(commands.into_iter().map(|c| self.call(c)).collect()).await;
        let took = BootTime::now().since(began);
        for (operation, outcome) in operations.into_iter().zip(&outcomes) {
            self.inner.metrics.operation(operation, outcome, took);
        }
        outcomes
    }

    /// Refuses what would exceed the tenant's quota; otherwise counts it.
    ///
    /// The count is approximate: what the store held within the last second, and what this node has admitted since
    /// then. Several nodes together may exceed a quota by what they admit within one second.
    pub async fn quota(&self, tenant: &Name, quota: Quota) -> Result<(), ApiError> {
        let most = self.quotas_of(tenant);
        self.inner.quotas.take(&self.inner.engine, tenant, quota, most).await
    }

    /// The present plan of where a tenant's resources should be. One that knows a runner otherwise than it is now is
    /// made again.
    pub(crate) async fn plan(
        &self,
        tenant: &Name,
        asker: Option<&KnownRunner>,
    ) -> Result<Arc<Planned>, ApiError> {
        self.inner.plans.plan(&self.inner.engine, &self.inner.node_id, tenant, asker).await
    }

    /// Counts the plans of a tenant, which follow what happens for as long as the counter is kept.
    pub(crate) async fn follow_plans(&self, tenant: &Name) -> watch::Receiver<u64> {
        self.inner.plans.follow(self, tenant).await
    }

    /// Opens a watch of one tenant, or of all; it counts until it is dropped.
    pub(crate) fn open_watch(&self, tenant: Option<&Name>) -> Result<OpenWatch, ApiError> {
        let most = tenant.map(|tenant| (tenant.clone(), self.quotas_of(tenant).watches));
        self.inner.quotas.watches().open(most, self.inner.limits.watches_max)
    }

    /// How many watches a tenant has open at this node.
    pub(crate) fn watches_of(&self, tenant: &Name) -> u64 {
        self.inner.quotas.watches().of(tenant)
    }

    /// The quotas of a tenant.
    pub(crate) fn quotas_of(&self, tenant: &Name) -> Quotas {
        self.inner.ring.quotas_of(tenant).of(self.inner.limits.quotas)
    }

    /// Bounds.
    pub(crate) fn limits(&self) -> &ServerLimits {
        &self.inner.limits
    }

    /// Whether `/metrics` needs a key.
    pub(crate) fn guards_metrics(&self) -> bool {
        self.inner.guards_metrics
    }

    /// What is measured.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// The same, for a task that outlives the borrow.
    pub(crate) fn metrics_handle(&self) -> Arc<Metrics> {
        self.inner.metrics.clone()
    }

    /// Everything that is measured, as text. The store is asked how much there is at most once per second.
    #[cfg(feature = "metrics")]
    pub(crate) async fn measured(&self) -> Result<String, std::fmt::Error> {
        let mut counted = self.inner.counted.lock().await;
        if counted.is_none_or(|at| BootTime::now().since(at) >= COUNT_EVERY) {
            let usage = self.inner.engine.usage(None).await;
            self.inner.metrics.usage(usage.as_ref().ok());
            if let Ok(loaded) = self.inner.engine.load(&Footprint::default()).await {
                self.inner.metrics.barred(loaded.barred_ms().unwrap_or_default());
            }
            *counted = Some(BootTime::now());
        }
        self.inner.metrics.watchers.set(self.inner.quotas.watches().count() as i64);
        self.inner.metrics.connections.set(self.connections().load(Ordering::Relaxed) as i64);
        self.inner.metrics.encode()
    }

    /// The number of connections that are open.
    pub(crate) fn connections(&self) -> &Arc<AtomicU64> {
        &self.inner.connections
    }

    /// The keys, as they were last read.
    pub(crate) fn ring(&self) -> &Ring {
        &self.inner.ring
    }

    /// Reads the keys and the tenants' quotas again.
    pub(crate) async fn refresh(&self) -> Result<(), ApiError> {
        self.inner.ring.refresh(&self.inner.engine).await
    }

    /// The tenants of ids that were looked up.
    pub(crate) fn known_tenants(&self) -> &KnownTenants {
        &self.inner.tenants
    }

    /// How often each caller may ask.
    pub(crate) fn rates(&self) -> &Rates {
        &self.inner.rates
    }

    /// When the server started.
    pub(crate) fn began(&self) -> BootTime {
        self.inner.began
    }

    /// Announces that the server stops.
    pub(crate) fn stop(&self) {
        self.inner.stopping.send_replace(true);
    }

    /// Whether the server stops.
    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.inner.stopping.subscribe()
    }
}

/// Whether a command may change what is planned without an event that tells so.
fn changes_registry(command: &Command) -> bool {
    match command {
        Command::OpenSession(open) => open.registration.is_some(),
        Command::CloseSession { .. }
        | Command::SetStatus { .. }
        | Command::RemoveHolder { .. }
        | Command::PutRecord { .. }
        | Command::RemoveRecord { .. } => true,
        _ => false,
    }
}
