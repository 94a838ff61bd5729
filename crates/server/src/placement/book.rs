//! The current plan of each tenant.
//!
//! A thousand runners that poll at once are answered from one plan. A plan is made again when the store or the registry
//! has changed, but not more often than planning can keep up with, and after one second in any case, since plans depend
//! on time, too. For requests that wait for another plan, one task per tenant makes it (`follow.rs`).

use std::{
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, OnceLock},
    time::Duration,
};

use solehold_api::problem::{ErrorCode, Problem};
use solehold_core::{
    key::{HolderKey, Name, ResourceKey, SessionId},
    placement::{ALGORITHM_VERSION, Plan, Snapshot, Step, plan},
    session::HolderStatus,
};
use solehold_engine::{Engine, clock::BootTime, store::LoadedRows};
use tokio::sync::{Mutex, watch};

use super::{
    facts::{Facts, Memory, Rows},
    records::ruling_algorithm,
};
use crate::error::ApiError;

/// After this time a plan is made again in any case.
pub(super) const FRESH_FOR: Duration = Duration::from_secs(1);
/// However fast the store changes, a plan is used for this long, and for twice as long as it took to make.
const USED_FOR: Duration = Duration::from_millis(50);
/// Tenants whose plans are kept; beyond it all are forgotten and made again.
const TENANTS_MAX: usize = 1_000;

/// A plan, and what it was made from.
#[derive(Debug)]
pub(crate) struct Planned {
    pub plan: Plan,
    pub snapshot: Snapshot,
    /// The revision that it was made from.
    pub revision: u64,
    /// The session of each runner that has one.
    pub sessions: BTreeMap<Name, SessionId>,
    /// Milliseconds that each held resource's lease has left.
    pub left_ms: BTreeMap<ResourceKey, u64>,
    /// The state of the registry that it was made from.
    registry: u64,
    at: BootTime,
    took: Duration,
    /// The same of the plan before it.
    took_before: Duration,
    versions: OnceLock<HashMap<Name, u64>>,
}

impl Planned {
    /// Changes with what is planned for a runner.
    pub fn version(&self, runner: &Name) -> String {
        let versions = self.versions.get_or_init(|| self.all_versions());
        format!("{:016x}", versions.get(runner).copied().unwrap_or_default())
    }

    fn all_versions(&self) -> HashMap<Name, u64> {
        let mut versions: HashMap<Name, u64> = HashMap::with_capacity(self.sessions.len());
        let mut add = |runner: &Name, what: u64| match versions.get_mut(runner) {
            // A sum does not depend on the order.
            Some(version) => *version = version.wrapping_add(what),
            None => drop(versions.insert(runner.clone(), what)),
        };
        for (runner, session) in &self.sessions {
            add(runner, hash(session));
        }
        for placement in &self.plan.placements {
            let what = hash(&(&placement.key, is_now(placement.step), &placement.target, &placement.holder));
            for runner in [&placement.target, &placement.holder].into_iter().flatten() {
                add(runner, what);
            }
        }
        versions
    }

    /// How much longer it is used, however fast the store changes.
    pub(super) fn is_used_for(&self) -> Duration {
        self.used_in_all().saturating_sub(BootTime::now().since(self.at))
    }

    fn used_in_all(&self) -> Duration {
        // A machine that stands still makes one plan look expensive, and must not delay the next.
        let cost = self.took.min(self.took_before);
        USED_FOR.max(cost * 2).min(FRESH_FOR)
    }
}

/// Whether the step is one to take now, rather than to wait for.
pub(super) fn is_now(step: Step) -> bool {
    matches!(step, Step::Acquire | Step::Move | Step::Moving)
}

fn hash(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

#[derive(Debug, Default)]
pub(super) struct TenantPlans {
    present: Mutex<Present>,
    pub(super) made: watch::Sender<u64>,
    /// Whether a task makes plans for waiting requests.
    pub(super) is_followed: parking_lot::Mutex<bool>,
}

/// A runner as it is now. That it came, or drains, is no event, so a plan of the same revision may not know it yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KnownRunner {
    name: Name,
    status: HolderStatus,
    session: Option<SessionId>,
}

impl KnownRunner {
    /// A registered runner, by the rows that were loaded for it.
    pub fn of(loaded: &LoadedRows, key: &HolderKey) -> Option<Self> {
        let holder = loaded.state.holder(key)?;
        let session = holder.session.and_then(|id| loaded.state.session(id));
        let session = session.filter(|session| session.is_live(loaded.now)).map(|session| session.id);
        Some(Self { name: key.name.clone(), status: holder.status, session })
    }
}

impl Planned {
    fn knows(&self, runner: &KnownRunner) -> bool {
        let mut runners = self.snapshot.runners.iter();
        let is_so = runners.any(|of| of.key.name == runner.name && of.status == runner.status);
        is_so && self.sessions.get(&runner.name) == runner.session.as_ref()
    }

    /// Whether a resource should move from its present holder to the runner that has this session, now. A plan that
    /// was made before the holder got it says nothing of that holder.
    pub fn moves(&self, key: &ResourceKey, from: Option<&Name>, to: SessionId) -> bool {
        let Some(placement) = self.plan.placement(key) else { return false };
        let target = placement.target.as_ref().and_then(|target| self.sessions.get(target));
        let is_now = matches!(placement.step, Step::Move | Step::Moving);
        is_now && placement.holder.as_ref() == from && target == Some(&to)
    }
}

#[derive(Debug, Default)]
struct Present {
    last: Option<Arc<Planned>>,
    memory: Arc<parking_lot::Mutex<Memory>>,
}

/// The plans of all tenants for which one was requested.
#[derive(Debug)]
pub(crate) struct PlanBook {
    pub(super) engine: Engine,
    node_id: String,
    tenants: Mutex<HashMap<Name, Arc<TenantPlans>>>,
    /// Counts changes of the registry for which there is no event.
    pub(super) registry: watch::Sender<u64>,
}

impl PlanBook {
    pub fn new(engine: Engine, node_id: String) -> Self {
        Self { engine, node_id, tenants: Mutex::default(), registry: watch::Sender::default() }
    }

    /// A runner has come, gone or changed its status, or the settings have changed: plans are made again.
    pub fn registry_changed(&self) {
        self.registry.send_modify(|count| *count += 1);
    }

    /// The present plan of a tenant; one that knows `asker` otherwise than it is now is made again. One caller at a
    /// time makes it; concurrent callers wait for that one.
    pub async fn plan(&self, tenant: &Name, asker: Option<&KnownRunner>) -> Result<Arc<Planned>, ApiError> {
        let plans = self.tenant_plans(tenant).await;
        let mut present = plans.present.lock().await;
        let registry = *self.registry.borrow();
        let is_good = |planned: &&Arc<Planned>| {
            is_fresh(planned, &self.engine, registry) && asker.is_none_or(|asker| planned.knows(asker))
        };
        if let Some(planned) = present.last.as_ref().filter(is_good) {
            return Ok(planned.clone());
        }
        let began = BootTime::now();
        let rows = Rows::read(&self.engine, tenant).await?;
        check_algorithm(ruling_algorithm(&self.engine, &self.node_id, rows.now()).await?)?;
        // Shared with the thread, so that nothing is lost if the caller disconnects while it plans.
        let memory = present.memory.clone();
        let mut planned = in_background(move || make(rows, &mut memory.lock())).await?;
        (planned.at, planned.took) = (BootTime::now(), BootTime::now().since(began));
        planned.took_before = present.last.as_ref().map_or(planned.took, |last| last.took);
        planned.registry = registry;
        let planned = Arc::new(planned);
        present.last = Some(planned.clone());
        plans.made.send_modify(|count| *count += 1);
        Ok(planned)
    }

    pub(super) async fn tenant_plans(&self, tenant: &Name) -> Arc<TenantPlans> {
        let mut tenants = self.tenants.lock().await;
        if tenants.len() >= TENANTS_MAX && !tenants.contains_key(tenant) {
            tenants.clear();
        }
        tenants.entry(tenant.clone()).or_default().clone()
    }
}

fn is_fresh(planned: &Planned, engine: &Engine, registry: u64) -> bool {
    let age = BootTime::now().since(planned.at);
    let is_same = engine.cursor().revision.0 == planned.revision && registry == planned.registry;
    age < planned.used_in_all() || (is_same && age < FRESH_FOR)
}

/// There is one version so far; a later one will plan by an older one's rules.
fn check_algorithm(ruling: u32) -> Result<(), ApiError> {
    if ruling == ALGORITHM_VERSION {
        return Ok(());
    }
    let detail = format!(
        "another replica uses placement algorithm {ruling}, which this server does not support; upgrade this server"
    );
    Err(Problem::new(ErrorCode::Conflict, detail).into())
}

fn make(rows: Rows, memory: &mut Memory) -> Planned {
    let Facts { snapshot, revision, sessions, left_ms } = rows.facts(memory);
    let at = BootTime::now();
    let took = Duration::ZERO;
    let registry = 0;
    let took_before = took;
    let versions = OnceLock::new();
    let plan = plan(&snapshot);
    Planned { plan, snapshot, revision, sessions, left_ms, registry, at, took, took_before, versions }
}

/// Runs `compute` on a thread for blocking work, so that it does not delay requests.
pub(super) async fn in_background<T: Send + 'static>(
    compute: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(compute).await;
    done.map_err(|error| Problem::new(ErrorCode::Internal, format!("planning failed: {error}")).into())
}
