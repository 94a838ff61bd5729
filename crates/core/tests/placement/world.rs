//! Fleets and resources for tests.

use std::collections::BTreeMap;

use solehold_core::{
    key::{HolderKey, Name, ResourceKey},
    placement::{PlacementResource, Plan, Presence, Runner, Snapshot, Step, plan},
    session::HolderStatus,
};

pub fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

/// For how long the runners of a fleet have been there.
const HOUR_MS: u64 = 3_600_000;

pub fn runner(called: &str, capacity: u32) -> Runner {
    let runner = Runner::new(HolderKey { tenant: name("acme"), name: name(called) }, capacity);
    Runner { presence: Presence::Here { up_ms: HOUR_MS, returned: false }, ..runner }
}

pub fn deployed(called: &str, capacity: u32, group: &str, version: &str) -> Runner {
    Runner { group: Some(group.into()), version: Some(version.into()), ..runner(called, capacity) }
}

pub fn key(key: &str) -> ResourceKey {
    ResourceKey::new(name("acme"), name("job"), name(key))
}

pub fn resource(number: usize) -> PlacementResource {
    PlacementResource::new(key(&format!("{number:06}")))
}

pub fn held(number: usize, by: &str) -> PlacementResource {
    PlacementResource { holder: Some(name(by)), held: true, ..resource(number) }
}

/// A fleet of runners `r0`, `r1`, ... and resources that nobody holds.
pub fn fleet(runners: usize, capacity: u32, resources: usize) -> Snapshot {
    Snapshot {
        runners: (0..runners).map(|n| runner(&format!("r{n}"), capacity)).collect(),
        resources: (0..resources).map(resource).collect(),
        ..Default::default()
    }
}

pub trait World {
    fn runner(&mut self, called: &str) -> &mut Runner;
    fn lose(&mut self, called: &str);
    fn converge(&mut self) -> Course;
    fn loads(&self) -> BTreeMap<String, u64>;
}

/// How a snapshot became settled.
#[derive(Debug, Default)]
pub struct Course {
    pub rounds: usize,
    /// How often each resource passed from one holder to another.
    pub moves: BTreeMap<ResourceKey, usize>,
    pub last: Option<Plan>,
}

impl Course {
    pub fn total(&self) -> usize {
        self.moves.values().sum()
    }

    pub fn add(&mut self, other: &Course) {
        self.rounds += other.rounds;
        for (key, count) in &other.moves {
            *self.moves.entry(key.clone()).or_default() += count;
        }
    }

    fn note(&mut self, plan: &Plan) {
        self.rounds += 1;
        for placement in plan.placements.iter().filter(|placement| placement.step == Step::Move) {
            *self.moves.entry(placement.key.clone()).or_default() += 1;
        }
    }
}

impl World for Snapshot {
    fn runner(&mut self, called: &str) -> &mut Runner {
        self.runners.iter_mut().find(|runner| runner.key.name.as_str() == called).expect("the runner")
    }

    /// The runner's session runs out, and its leases with it.
    fn lose(&mut self, called: &str) {
        self.runner(called).presence = Presence::Away { gone_ms: 0 };
        for resource in &mut self.resources {
            if resource.holder.as_ref().is_some_and(|holder| holder.as_str() == called) {
                resource.held = false;
            }
        }
    }

    /// Plans and follows until nothing is left to do.
    fn converge(&mut self) -> Course {
        let mut course = Course::default();
        loop {
            let plan = plan(self);
            check(self, &plan);
            let is_done = plan.is_settled()
                || plan.count(|s| matches!(s, Step::Acquire | Step::Move | Step::Moving)) == 0;
            if is_done {
                course.last = Some(plan);
                return course;
            }
            course.note(&plan);
            *self = self.follow(&plan);
            assert!(course.rounds < 500, "it does not converge");
        }
    }

    fn loads(&self) -> BTreeMap<String, u64> {
        let mut loads: BTreeMap<String, u64> =
            self.runners.iter().map(|runner| (runner.key.name.to_string(), 0)).collect();
        for resource in self.resources.iter().filter(|resource| resource.held) {
            let holder = resource.holder.as_ref().expect("a holder").to_string();
            *loads.entry(holder).or_default() += u64::from(resource.weight);
        }
        loads
    }
}

/// Whether a runner meets what a resource asks for.
pub fn fits(runner: &Runner, resource: &PlacementResource) -> bool {
    let site = resource.site.is_none() || runner.site.is_none() || runner.site == resource.site;
    let labels = resource.needs.labels.iter().all(|(label, value)| runner.labels.get(label) == Some(value));
    let capabilities = resource.needs.capabilities.is_subset(&runner.capabilities);
    let kind = runner.kinds.is_empty() || runner.kinds.contains(resource.key.kind.as_str());
    runner.key.tenant == resource.key.tenant && site && labels && capabilities && kind
}

pub fn receives(runner: &Runner) -> bool {
    matches!(runner.presence, Presence::Here { .. }) && runner.status == HolderStatus::Active
}

/// What holds for every plan: constraints, capacity and budget.
pub fn check(snapshot: &Snapshot, plan: &Plan) {
    let runners: BTreeMap<&Name, &Runner> =
        snapshot.runners.iter().map(|runner| (&runner.key.name, runner)).collect();
    let resources: BTreeMap<&ResourceKey, &PlacementResource> =
        snapshot.resources.iter().map(|resource| (&resource.key, resource)).collect();
    assert_eq!(plan.placements.len(), snapshot.resources.len());
    let mut load: BTreeMap<&Name, u64> = BTreeMap::new();
    for placement in &plan.placements {
        let of = resources[&placement.key];
        if placement.step == Step::Keep || placement.is_move() {
            // Until it has moved it is where it was.
            *load.entry(of.holder.as_ref().expect("a holder")).or_default() += u64::from(of.weight);
        }
        if let (Step::Acquire | Step::Move, Some(target)) = (placement.step, &placement.target) {
            assert!(fits(runners[target], of), "{placement:?} does not fit");
            assert!(receives(runners[target]), "{placement:?} goes to one that gets nothing");
            assert!(!of.quarantined, "{placement:?} is quarantined");
            let load = load.entry(target).or_default();
            *load += u64::from(of.weight);
        }
    }
    for placement in plan.placements.iter().filter(|p| matches!(p.step, Step::Acquire | Step::Move)) {
        let target = placement.target.as_ref().expect("a target");
        let load = load[target];
        let most = u64::from(runners[target].capacity);
        assert!(load <= most, "{target} gets {load} and can have {most}");
    }
    let started = plan.count(|step| matches!(step, Step::Move | Step::Moving));
    let under_way = plan.count(|step| *step == Step::Moving);
    assert!(started <= plan.move_budget.max(under_way), "{started} moves, more than {}", plan.move_budget);
}
