//! A plan with what it was made from, and the plan that a replica remembers. Without a clock or any I/O: the simulator
//! (`sim/`) remembers plans by the same rules.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, OnceLock},
    time::Duration,
};

use parking_lot::Mutex;
use solehold_core::{
    key::{HolderKey, Name, ResourceKey, SessionId},
    lease::Lease,
    placement::{Plan, Snapshot, Step, plan},
    session::HolderStatus,
    time::Token,
};
use solehold_engine::{clock::BootTime, store::LoadedRows};

use super::facts::{Facts, Memory, Rows};

/// After this time a plan is made again in any case.
pub(super) const FRESH_FOR: Duration = Duration::from_secs(1);
/// However fast the store changes, a plan is used for this long, and for twice as long as it took to make.
const USED_FOR: Duration = Duration::from_millis(50);

/// A plan, and what it was made from.
#[derive(Debug)]
pub struct Planned {
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
    /// Makes a plan. It takes a while for a large fleet.
    pub fn make(rows: Rows, memory: &mut Memory) -> Self {
        let Facts { snapshot, revision, sessions, left_ms } = rows.facts(memory);
        let registry = 0;
        let at = BootTime::from_nanos(0);
        let took = Duration::ZERO;
        let took_before = took;
        let versions = OnceLock::new();
        let plan = plan(&snapshot);
        Self { plan, snapshot, revision, sessions, left_ms, registry, at, took, took_before, versions }
    }

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
    pub(super) fn is_used_for(&self, now: BootTime) -> Duration {
        self.used_in_all().saturating_sub(now.since(self.at))
    }

    fn used_in_all(&self) -> Duration {
        // A machine that stands still makes one plan look expensive, and must not delay the next.
        let cost = self.took.min(self.took_before);
        USED_FOR.max(cost * 2).min(FRESH_FOR)
    }

    fn is_fresh(&self, now: BootTime, revision: u64, registry: u64) -> bool {
        let age = now.since(self.at);
        let is_same = revision == self.revision && registry == self.registry;
        age < self.used_in_all() || (is_same && age < FRESH_FOR)
    }

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

    /// The token of a lease, if the plan says that its resource should move to the runner that has this session.
    pub fn speaks_for(&self, key: &ResourceKey, present: &Lease, to: SessionId) -> Option<Token> {
        self.moves(key, Some(&present.holder), to).then_some(present.token)
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

/// A runner as it is now. That it came, or drains, is no event, so a plan of the same revision may not know it yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownRunner {
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

/// The last plan of a tenant, which answers all who ask while it is good.
#[derive(Debug, Default)]
pub struct RememberedPlan {
    last: Option<Arc<Planned>>,
    memory: Arc<Mutex<Memory>>,
}

impl RememberedPlan {
    /// The last plan, if it is good now: by the revision of the store, the state of the registry and the plan's age.
    /// One that knows `asker` otherwise than it is now is not.
    pub fn recall(
        &self,
        now: BootTime,
        revision: u64,
        registry: u64,
        asker: Option<&KnownRunner>,
    ) -> Option<Arc<Planned>> {
        let is_good = |planned: &&Arc<Planned>| {
            planned.is_fresh(now, revision, registry) && asker.is_none_or(|asker| planned.knows(asker))
        };
        self.last.as_ref().filter(is_good).cloned()
    }

    /// What to make the next plan with. It is shared with who makes it, so that nothing is lost if that takes long.
    pub fn memory(&self) -> Arc<Mutex<Memory>> {
        self.memory.clone()
    }

    /// Remembers a plan that was begun in this state of the registry and is ready now.
    pub fn keep(
        &mut self,
        mut planned: Planned,
        registry: u64,
        began: BootTime,
        now: BootTime,
    ) -> Arc<Planned> {
        (planned.at, planned.took, planned.registry) = (now, now.since(began), registry);
        planned.took_before = self.last.as_ref().map_or(planned.took, |last| last.took);
        self.last.insert(Arc::new(planned)).clone()
    }
}
