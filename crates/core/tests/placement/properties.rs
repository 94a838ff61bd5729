//! After any event the fleet becomes balanced with the fewest moves, and no constraint is ever broken.

use proptest::{prelude::*, test_runner::FileFailurePersistence};
use solehold_core::{
    placement::{Placement, PlacementResource, Presence, Reason, Runner, Snapshot, Step, Unplaceable, plan},
    session::HolderStatus,
};

use super::{
    fair,
    world::{World, fits, name, receives, resource, runner},
};

/// Enough fleets for every build; `PROPTEST_CASES` asks for more. Failures are kept in a file, and replayed first.
fn config(cases: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok());
    ProptestConfig {
        cases: asked.unwrap_or(cases),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(
            "proptest-regressions/placement.txt",
        ))),
        ..ProptestConfig::default()
    }
}

const SITES: [&str; 2] = ["north", "south"];

/// Something that runners have and resources ask for: a site, a label, a capability.
type Traits = (Option<usize>, bool, bool);

fn traits(percent: usize) -> impl Strategy<Value = Traits> {
    let likely = move || (0usize..100).prop_map(move |n| n < percent);
    (likely(), 0..SITES.len(), likely(), likely())
        .prop_map(|(has_site, site, label, capability)| (has_site.then_some(site), label, capability))
}

fn with_traits(mut runner: Runner, (site, label, capability): Traits) -> Runner {
    runner.site = site.map(|site| name(SITES[site]));
    if label {
        runner.labels.insert("gpu".into(), "yes".into());
    }
    if capability {
        runner.capabilities.insert("night".into());
    }
    runner
}

fn asking(mut resource: PlacementResource, (site, label, capability): Traits) -> PlacementResource {
    resource.site = site.map(|site| name(SITES[site]));
    if label {
        resource.needs.labels.insert("gpu".into(), "yes".into());
    }
    if capability {
        resource.needs.capabilities.insert("night".into());
    }
    resource
}

fn snapshots(weights: std::ops::RangeInclusive<u32>, likely: usize) -> impl Strategy<Value = Snapshot> {
    let runners = prop::collection::vec((1u32..40, traits(50)), 1..7);
    let resources = prop::collection::vec((weights, traits(likely)), 0..70);
    (runners, resources).prop_map(|(runners, resources)| Snapshot {
        runners: runners
            .into_iter()
            .enumerate()
            .map(|(n, (capacity, traits))| with_traits(runner(&format!("r{n}"), capacity), traits))
            .collect(),
        resources: resources
            .into_iter()
            .enumerate()
            .map(|(n, (weight, traits))| PlacementResource { weight, ..asking(resource(n), traits) })
            .collect(),
        ..Default::default()
    })
}

/// What happens to a fleet.
#[derive(Debug, Clone)]
enum Event {
    Joins(u32, Traits),
    Dies(prop::sample::Index),
    Drains(prop::sample::Index),
    Resizes(prop::sample::Index, u32),
    Relabels(prop::sample::Index, Traits),
    Grows(usize),
}

fn events() -> impl Strategy<Value = Event> {
    let which = any::<prop::sample::Index>;
    prop_oneof![
        (1u32..40, traits(50)).prop_map(|(capacity, traits)| Event::Joins(capacity, traits)),
        which().prop_map(Event::Dies),
        which().prop_map(Event::Drains),
        (which(), 1u32..40).prop_map(|(which, capacity)| Event::Resizes(which, capacity)),
        (which(), traits(50)).prop_map(|(which, traits)| Event::Relabels(which, traits)),
        (1usize..20).prop_map(Event::Grows),
    ]
}

fn happen(snapshot: &mut Snapshot, event: &Event, number: usize) {
    let called =
        |which: &prop::sample::Index, snapshot: &Snapshot| which.get(&snapshot.runners).key.name.to_string();
    match event {
        Event::Joins(capacity, traits) if snapshot.runners.len() < 7 => {
            snapshot.runners.push(with_traits(runner(&format!("new{number}"), *capacity), *traits));
        }
        Event::Joins(..) => {}
        Event::Dies(which) => {
            let called = called(which, snapshot);
            snapshot.lose(&called);
        }
        Event::Drains(which) => {
            let called = called(which, snapshot);
            snapshot.runner(&called).status = HolderStatus::Draining;
        }
        Event::Resizes(which, capacity) => {
            let called = called(which, snapshot);
            snapshot.runner(&called).capacity = *capacity;
        }
        Event::Relabels(which, traits) => {
            let called = called(which, snapshot);
            let plain = runner(&called, 1);
            let relabelled = with_traits(plain, *traits);
            let runner = snapshot.runner(&called);
            (runner.site, runner.labels) = (relabelled.site, relabelled.labels);
            runner.capabilities = relabelled.capabilities;
        }
        Event::Grows(count) => {
            let from = 1_000 * (number + 1);
            snapshot.resources.extend((from..from + count).map(resource));
        }
    }
}

/// The runners that can be given work, and the resources that one of them holds now.
fn active(snapshot: &Snapshot) -> (Vec<Runner>, Vec<PlacementResource>) {
    let runners: Vec<Runner> = snapshot.runners.iter().filter(|runner| receives(runner)).cloned().collect();
    let is_held = |resource: &&PlacementResource| {
        resource.held && runners.iter().any(|runner| resource.holder.as_ref() == Some(&runner.key.name))
    };
    let resources = snapshot.resources.iter().filter(is_held).cloned().collect();
    (runners, resources)
}

/// Removes what its holder should not keep and nobody else can have: it is where it should not be, which no share takes
/// into account.
fn give_up_misplaced(snapshot: &mut Snapshot) {
    let last = snapshot.clone().converge().last.expect("a plan");
    let is_misplaced = |resource: &PlacementResource| {
        let placement = last.placement(&resource.key).expect("a placement");
        matches!(placement.reason, Reason::NowhereElse(_))
    };
    snapshot.resources.retain(|resource| !is_misplaced(resource));
}

fn is_unplaceable(placement: &Placement) -> bool {
    matches!(placement.reason, Reason::Unplaceable(_) | Reason::NowhereElse(_))
}

proptest! {
    #![proptest_config(config(300))]

    /// Converged means: every load is within 10 % or one resource of the fair share, nothing is unplaced that could be
    /// placed, and no more was moved than had to be.
    #[test]
    fn after_any_event_loads_are_fair_and_moves_fewest(
        start in snapshots(1..=1, 30),
        events in prop::collection::vec(events(), 1..6),
    ) {
        let mut snapshot = start;
        snapshot.converge();
        for (number, event) in events.iter().enumerate() {
            happen(&mut snapshot, event, number);
            give_up_misplaced(&mut snapshot);
            let before = snapshot.clone();
            let course = snapshot.converge();
            let (runners, placed) = active(&snapshot);
            let could_be: Vec<PlacementResource> = before.resources.iter()
                .filter(|resource| runners.iter().any(|runner| fits(runner, resource))).cloned().collect();
            prop_assert_eq!(placed.len(), fair::most_placed(&runners, &could_be), "as many as possible are placed");
            let shares = fair::shares(&runners, &placed);
            let loads = snapshot.loads();
            for (runner, share) in runners.iter().zip(&shares) {
                let (low, high) = share.band(1);
                let load = loads[runner.key.name.as_str()];
                prop_assert!((low..=high).contains(&load), "{} has {load}, not {low} to {high}", runner.key.name);
            }
            let was = |resource: &PlacementResource| {
                before.resources.iter().find(|was| was.key == resource.key).expect("it was there").clone()
            };
            let before: Vec<PlacementResource> = placed.iter().map(was).collect();
            let fewest = fair::fewest_moves(&runners, &before, &shares);
            prop_assert!(course.total() * 10 <= fewest * 11, "{} moves, and {fewest} were enough", course.total());
        }
    }

    /// Heavy resources are balanced to within one of the heaviest.
    #[test]
    fn weights_are_balanced_to_within_one_resource(start in snapshots(1..=5, 0), joins in 1u32..40) {
        let mut snapshot = start;
        for runner in &mut snapshot.runners {
            // Without constraints, and with room for whatever weight.
            *runner = super::world::runner(runner.key.name.as_str(), runner.capacity + 350);
        }
        snapshot.converge();
        snapshot.runners.push(runner("new", joins + 350));
        snapshot.converge();
        let (runners, placed) = active(&snapshot);
        prop_assert_eq!(placed.len(), snapshot.resources.len());
        let heaviest = placed.iter().map(|resource| resource.weight).max().unwrap_or(1).into();
        for (runner, share) in runners.iter().zip(fair::shares(&runners, &placed)) {
            let (low, high) = share.band(heaviest);
            let load = snapshot.loads()[runner.key.name.as_str()];
            prop_assert!((low..=high).contains(&load), "{} has {load}, not {low} to {high}", runner.key.name);
        }
    }

    /// The same registry gives the same plan, in whichever order it is read.
    #[test]
    fn the_order_of_a_snapshot_does_not_matter(
        snapshot in snapshots(1..=3, 30),
        event in events(),
        keys in prop::collection::vec(any::<u32>(), 100),
    ) {
        let mut snapshot = snapshot;
        snapshot.converge();
        happen(&mut snapshot, &event, 0);
        let planned = plan(&snapshot);
        let mut shuffled = snapshot.clone();
        let by_key = |at: usize| keys[at % keys.len()];
        let mut runners: Vec<_> = shuffled.runners.drain(..).enumerate().collect();
        runners.sort_by_key(|(at, _)| by_key(*at));
        shuffled.runners = runners.into_iter().map(|(_, runner)| runner).collect();
        let mut resources: Vec<_> = shuffled.resources.drain(..).enumerate().collect();
        resources.sort_by_key(|(at, _)| by_key(*at + 7));
        shuffled.resources = resources.into_iter().map(|(_, resource)| resource).collect();
        prop_assert_eq!(plan(&shuffled), planned);
    }

    /// Whatever is done of a plan, in whichever order, the rest of it stays as it was.
    #[test]
    fn what_is_left_of_a_plan_stays_as_it_was(snapshot in snapshots(1..=1, 0), done in any::<u64>()) {
        let before = plan(&snapshot);
        let mut after = snapshot.clone();
        for (at, resource) in after.resources.iter_mut().enumerate().filter(|(at, _)| done >> (at % 64) & 1 == 1) {
            if let Some(Placement { step: Step::Acquire, target, .. }) = before.placements.get(at) {
                (resource.holder, resource.held) = (target.clone(), true);
            }
        }
        let then = plan(&after);
        for (before, then) in before.placements.iter().zip(&then.placements) {
            prop_assert_eq!(&before.target, &then.target);
        }
    }

    /// Whatever is not placed has a reason.
    #[test]
    fn what_is_not_placed_says_why(snapshot in snapshots(1..=9, 50)) {
        let planned = plan(&snapshot);
        for (placement, resource) in planned.placements.iter().zip(&snapshot.resources) {
            let fit = snapshot.runners.iter().filter(|runner| fits(runner, resource)).count();
            match &placement.reason {
                Reason::Unplaceable(Unplaceable::AllAtCapacity) => prop_assert!(fit > 0),
                Reason::Unplaceable(_) => prop_assert_eq!(fit, 0),
                _ => prop_assert!(placement.target.is_some() && !is_unplaceable(placement)),
            }
        }
    }

    /// A runner that comes and goes is given nothing for balance, and nothing moves between the others.
    #[test]
    fn flapping_runners_cause_no_oscillation(
        start in snapshots(1..=1, 0),
        which in any::<prop::sample::Index>(),
        flaps in 2usize..10,
    ) {
        let mut snapshot = start;
        for runner in &mut snapshot.runners {
            *runner = super::world::runner(runner.key.name.as_str(), 100);
        }
        snapshot.converge();
        let called = which.get(&snapshot.runners).key.name.to_string();
        let mut moves = 0;
        for _ in 0..flaps {
            snapshot.lose(&called);
            moves += snapshot.converge().total();
            snapshot.runner(&called).presence = Presence::Here { up_ms: 5_000, returned: true };
            moves += snapshot.converge().total();
        }
        prop_assert_eq!(moves, 0);
        snapshot.runner(&called).presence = Presence::Here { up_ms: 60_000, returned: true };
        let course = snapshot.converge();
        prop_assert!(course.moves.values().all(|moves| *moves == 1));
    }
}
