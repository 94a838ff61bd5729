//! What handlers share: the engine, API keys, limits, metrics; and the commands, one function each.

pub(crate) mod about;
pub(crate) mod commands;
pub(crate) mod incarnation;
mod past;
pub(crate) mod tenants;

use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::http::HeaderValue;
use solehold_api::admin::Quotas;
use solehold_core::{
    call::Call,
    command::{Acquire, Command, Footprint},
    key::{HolderKey, Name},
    outcome::Outcome,
};
use solehold_engine::{Engine, EngineError, clock::BootTime};
use tokio::sync::watch;

use crate::{
    error::ApiError,
    limits::ServerLimits,
    metrics::Metrics,
    orchestrator::OrchestratorClient,
    placement::{KnownRunner, PlanBook, Planned},
    state::{
        audit::{AuditTrail, Deed},
        identity::Identity,
        operator::Operator,
        quota::{OpenWatch, Quota, QuotaBook},
        rates::Rates,
        ring::Ring,
    },
};
use tenants::KnownTenants;

const COUNT_EVERY: Duration = Duration::from_secs(1);

/// What a context is made of beside the engine and the metrics.
#[derive(Debug)]
pub(crate) struct ContextOptions {
    pub node_id: String,
    pub limits: ServerLimits,
    /// Whether `/metrics` needs a key.
    pub guards_metrics: bool,
    /// Whether callers need no key while the store has none: only where other machines cannot connect.
    pub is_loopback: bool,
    pub orchestrator: Option<OrchestratorClient>,
}

/// What handlers share, on behalf of a caller. Clones are handles to the same context.
#[derive(Clone, Debug)]
pub struct Context {
    node: Arc<NodeState>,
    /// The caller that it acts for, or the server itself.
    caller: Identity,
    /// What goes into the audit trail with the commands that are submitted one by one.
    deed: Option<Arc<Deed>>,
}

/// What all contexts of a node share.
#[derive(Debug)]
pub struct NodeState {
    engine: Engine,
    pub(crate) node_id: String,
    /// The name of the node, as a header.
    pub(crate) node_header: HeaderValue,
    pub(crate) limits: ServerLimits,
    pub(crate) metrics: Arc<Metrics>,
    /// Whether `/metrics` needs a key.
    pub(crate) guards_metrics: bool,
    /// The keys, as they were last read.
    pub(crate) ring: Ring,
    pub(crate) rates: Rates,
    pub(crate) quotas: QuotaBook,
    audit: Arc<AuditTrail>,
    tenants: KnownTenants,
    /// Where the resources of each tenant should be.
    pub(crate) plans: Arc<PlanBook>,
    /// Whom to ask for jobs.
    pub(crate) orchestrator: Option<OrchestratorClient>,
    pub(crate) began: BootTime,
    /// The number of connections that are open.
    pub(crate) connections: Arc<AtomicU64>,
    /// When rows were last counted for the metrics.
    counted: tokio::sync::Mutex<Option<BootTime>>,
    stopping: watch::Sender<bool>,
}

impl Deref for Context {
    type Target = NodeState;

    fn deref(&self) -> &NodeState {
        &self.node
    }
}

impl Context {
    pub(crate) fn new(engine: Engine, options: ContextOptions, metrics: Arc<Metrics>) -> Self {
        let ContextOptions { node_id, limits, guards_metrics, is_loopback, orchestrator } = options;
        // A name may have characters that a header cannot.
        let node_header = HeaderValue::from_str(&node_id).unwrap_or(HeaderValue::from_static("unnamed"));
        let plans = PlanBook::new(engine.clone(), node_id.clone());
        let node = NodeState {
            engine,
            node_id,
            node_header,
            limits,
            metrics,
            guards_metrics,
            ring: Ring::new(is_loopback),
            rates: Rates::new(&limits),
            quotas: QuotaBook::default(),
            audit: Arc::default(),
            tenants: KnownTenants::default(),
            plans: Arc::new(plans),
            orchestrator,
            began: BootTime::now(),
            connections: Arc::default(),
            counted: Default::default(),
            stopping: watch::Sender::new(false),
        };
        Self { node: Arc::new(node), caller: Identity::keyless(), deed: None }
    }

    /// The same context on behalf of a caller, to whom commands submitted through it are attributed.
    pub(crate) fn on_behalf_of(&self, caller: Identity) -> Self {
        Self { node: self.node.clone(), caller, deed: None }
    }

    /// The same context for what an operator does: unless it is refused, a command that is submitted through it commits
    /// with an entry of the audit trail.
    pub(crate) fn audited(&self, deed: Deed) -> Self {
        Self { deed: Some(Arc::new(deed)), ..self.clone() }
    }

    /// The same for a request that an operator may make, and others too.
    pub(crate) fn audited_if(&self, is_operator: bool, deed: Deed) -> Self {
        if is_operator { self.audited(deed) } else { self.clone() }
    }

    /// The caller, for what is done through the engine.
    pub(crate) fn operator(&self) -> Operator {
        Operator::new(self.engine.clone(), self.caller.clone(), self.audit.clone())
    }

    pub(crate) fn caller(&self) -> &Identity {
        &self.caller
    }

    fn call(&self, command: Command) -> Call {
        Call::new(command, self.caller.actor())
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Submits a command, and measures the outcome.
    pub async fn submit(&self, command: Command) -> Result<Outcome, EngineError> {
        let operation = command.name();
        let began = BootTime::now();
        let changes_registry = changes_registry(&command);
        about::note(&command);
        let outcome = match &self.deed {
            Some(deed) => self.operator().submit(command, deed).await,
            None => self.engine.submit(self.call(command)).await,
        };
        self.metrics.operation(operation, &outcome, BootTime::now().since(began));
        if changes_registry {
            self.plans.registry_changed();
        }
        outcome
    }

    /// Acquires, waiting in line for at most `wait`, and measures the outcome.
    pub async fn acquire_waiting(&self, acquire: Acquire, wait: Duration) -> Result<Outcome, EngineError> {
        let began = BootTime::now();
        about::note(&Command::Acquire(acquire.clone()));
        let outcome = self.engine.acquire_waiting(acquire, self.caller.actor(), wait).await;
        self.metrics.operation("acquire_waiting", &outcome, BootTime::now().since(began));
        outcome
    }

    /// Submits commands that are decided in their order, and measures the outcome of each.
    pub async fn submit_all(&self, commands: Vec<Command>) -> Vec<Result<Outcome, EngineError>> {
        let operations: Vec<_> = commands.iter().map(Command::name).collect();
        commands.first().into_iter().for_each(about::note);
        let began = BootTime::now();
        let outcomes = self.engine.submit_all(commands.into_iter().map(|c| self.call(c)).collect()).await;
        let took = BootTime::now().since(began);
        for (operation, outcome) in operations.into_iter().zip(&outcomes) {
            self.metrics.operation(operation, outcome, took);
        }
        outcomes
    }

    /// Refuses what would exceed the tenant's quota; otherwise counts it.
    ///
    /// The count is approximate: what the store held within the last second, and what this node has admitted since
    /// then. Several nodes together may exceed a quota by what they admit within one second.
    pub async fn quota(&self, tenant: &Name, quota: Quota) -> Result<(), ApiError> {
        let most = self.quotas_of(tenant);
        self.quotas.take(&self.engine, tenant, quota, most).await
    }

    /// The present plan, or the first within `wait` that has something else for a runner than the version that it
    /// knows.
    pub(crate) async fn other_plan(
        &self,
        runner: &HolderKey,
        asker: Option<&KnownRunner>,
        known: Option<&str>,
        wait: Duration,
    ) -> Result<Arc<Planned>, ApiError> {
        let is_known = |planned: &Planned| known == Some(planned.version(&runner.name).as_str());
        let planned = self.plans.plan(&runner.tenant, asker).await?;
        if wait.is_zero() || !is_known(&planned) {
            return Ok(planned);
        }
        let mut made = self.plans.follow(&runner.tenant, self.stopping()).await;
        let mut stopping = self.stopping();
        let other = async {
            loop {
                made.mark_unchanged();
                let planned = self.plans.plan(&runner.tenant, None).await?;
                if !is_known(&planned) || made.changed().await.is_err() {
                    return Ok(planned);
                }
            }
        };
        let waiting = async {
            tokio::select! {
                other = tokio::time::timeout(wait, other) => other.unwrap_or(Ok(planned)),
                // The client repeats the request at another replica.
                _ = stopping.wait_for(|stopping| *stopping) => Ok(planned),
            }
        };
        about::waiting(wait, waiting).await
    }

    /// Opens a watch of one tenant, or of all; it counts until it is dropped.
    pub(crate) fn open_watch(&self, tenant: Option<&Name>) -> Result<OpenWatch, ApiError> {
        let most = tenant.map(|tenant| (tenant.clone(), self.quotas_of(tenant).watches));
        self.quotas.watches.open(most, self.limits.watches_max)
    }

    pub(crate) fn quotas_of(&self, tenant: &Name) -> Quotas {
        self.ring.quotas_of(tenant).of(self.limits.quotas)
    }

    /// All metrics as OpenMetrics text. Rows in the store are counted at most once per second.
    pub(crate) async fn measured(&self) -> Result<String, std::fmt::Error> {
        let mut counted = self.counted.lock().await;
        if counted.is_none_or(|at| BootTime::now().since(at) >= COUNT_EVERY) {
            let usage = self.engine.usage(None).await;
            self.metrics.usage(usage.as_ref().ok(), self.engine.check_writable().is_ok());
            if let Ok(loaded) = self.engine.load(&Footprint::default()).await {
                self.metrics.barred(loaded.barred_ms().unwrap_or_default());
            }
            *counted = Some(BootTime::now());
        }
        self.metrics.watchers.set(self.quotas.watches.count() as i64);
        self.metrics.connections.set(self.connections.load(Ordering::Relaxed) as i64);
        self.metrics.encode()
    }

    /// Reads the keys and the tenants' quotas again.
    pub(crate) async fn refresh(&self) -> Result<(), ApiError> {
        self.ring.refresh(&self.engine).await
    }

    pub(crate) fn stop(&self) {
        self.stopping.send_replace(true);
    }

    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }
}

/// Whether a command may change plans without causing an event.
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
