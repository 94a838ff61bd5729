//! What is assigned to agents: the real plan (`core::placement`), which each server makes from the store and remembers
//! by the server's own rules (`solehold_server::placement`). Making a plan takes a while, in some worlds a long one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use solehold_api::placement::PlannedResource;
use solehold_client::{
    ResourceName,
    assignments::Want,
    clock::{Clock, VirtualClock},
};
use solehold_core::{
    command::Footprint,
    key::{HolderKey, Name},
    placement::Step,
};
use solehold_engine::{Engine, store::ResourceQuery};
use solehold_server::placement::{KnownRunner, Planned, RememberedPlan, Rows};
use tokio::sync::Mutex;

use crate::{
    brief::Brief,
    chance::SeededChance,
    chronicle::{Chronicle, Happening, PlannedMove},
    server::Server,
    virtual_time::pass,
    world::{CAMERAS, JOBS, tenant},
};

/// How long a plan takes to make, at most, for a small fleet and for a large one.
const SMALL_FLEET_MS: u64 = 5;
const LARGE_FLEET_MS: u64 = 600;

/// What a runner is to acquire and to keep. The next holder of a resource takes it over, so until then it is kept.
#[derive(Debug, Default)]
pub struct Assigned {
    pub acquire: BTreeMap<ResourceName, Want>,
    pub keep: BTreeSet<ResourceName>,
}

impl Brief for Assigned {
    fn brief(&self) -> String {
        let acquire: Vec<String> =
            self.acquire.iter().map(|(what, want)| format!("{what} {want:?}")).collect();
        let keep: Vec<String> = self.keep.iter().map(ToString::to_string).collect();
        format!("acquire [{}], keep [{}]", acquire.join(", "), keep.join(", "))
    }
}

pub fn holder(name: &str) -> HolderKey {
    HolderKey { tenant: tenant(), name: Name::new(name).expect("a good name") }
}

/// The plans of one server over one store.
pub struct Planner {
    clock: Arc<VirtualClock>,
    chronicle: Arc<Chronicle>,
    chance: SeededChance,
    name: String,
    /// The epoch of its store.
    epoch: u64,
    takes_ms: u64,
    /// Counts what this server did to the registry, for which there is no event.
    registry: AtomicU64,
    remembered: Mutex<RememberedPlan>,
}

impl Planner {
    pub fn new(
        name: String,
        epoch: u64,
        clock: Arc<VirtualClock>,
        chronicle: Arc<Chronicle>,
        chance: SeededChance,
    ) -> Arc<Self> {
        let takes_ms = if chance.one_in(2) { LARGE_FLEET_MS } else { SMALL_FLEET_MS };
        let registry = AtomicU64::new(0);
        let remembered = Mutex::default();
        Arc::new(Self { clock, chronicle, chance, name, epoch, takes_ms, registry, remembered })
    }

    /// A runner has changed its status: plans are made again.
    pub fn registry_changed(&self) {
        self.registry.fetch_add(1, Ordering::Relaxed);
    }

    /// The present plan, as the server's book of plans gives it.
    pub async fn plan(&self, engine: &Engine, asker: Option<&KnownRunner>) -> Result<Arc<Planned>, String> {
        let mut remembered = self.remembered.lock().await;
        let began = self.clock.now();
        let registry = self.registry.load(Ordering::Relaxed);
        if let Some(planned) = remembered.recall(began, engine.cursor().revision.0, registry, asker) {
            return Ok(planned);
        }
        let rows = Rows::read(engine, &tenant()).await.map_err(|error| error.to_string())?;
        pass(self.chance.millis(0, self.takes_ms)).await;
        let made = Planned::make(rows, &mut remembered.memory().lock());
        let planned = remembered.keep(made, registry, began, self.clock.now());
        self.note(&planned);
        Ok(planned)
    }

    fn note(&self, planned: &Planned) {
        let is_now = |step: Step| matches!(step, Step::Move | Step::Moving);
        let moves = planned.plan.placements.iter().filter(|placement| is_now(placement.step));
        let moves: Vec<PlannedMove> = moves
            .filter_map(|placement| {
                let key = placement.key.clone();
                Some(PlannedMove { key, from: placement.holder.clone()?, to: placement.target.clone()? })
            })
            .collect();
        if !moves.is_empty() {
            self.chronicle.note(&self.name, Happening::Plans(self.epoch, planned.revision, moves));
        }
    }
}

/// Asks a server what is assigned to a runner, as the route of the API does.
pub async fn assigned(to: &Server, name: &str) -> Result<Assigned, String> {
    let told = |error: solehold_engine::EngineError| error.to_string();
    let key = holder(name);
    let footprint = Footprint { holders: vec![key.clone()], ..Footprint::default() };
    let found = to.engine().load(&footprint).await.map_err(told)?;
    let asker = KnownRunner::of(&found, &key);
    let planned = to.planner.plan(to.engine(), asker.as_ref()).await?;
    let held = ResourceQuery {
        tenant: Some(tenant()),
        holder: Some(key.name.clone()),
        leased: Some(true),
        undeclared: true,
        limit: CAMERAS.len() + JOBS.len(),
        ..ResourceQuery::default()
    };
    let leases = to.engine().find_resources(&held).await.map_err(told)?.leases();
    let answer = planned.assignments(&key.name, &leases, |_| true);
    let named = |resource: &PlannedResource| {
        ResourceName::new(&resource.kind, &resource.key).expect("the name of a resource")
    };
    let want = |resource: &PlannedResource| match resource.holder {
        Some(_) => Want::Moves,
        None => Want::Free,
    };
    Ok(Assigned {
        acquire: answer.acquire.iter().map(|resource| (named(resource), want(resource))).collect(),
        keep: answer.keep.iter().chain(&answer.release).map(named).collect(),
    })
}
