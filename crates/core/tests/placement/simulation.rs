//! Whole histories of fleets.

use std::collections::BTreeMap;

use solehold_core::{
    placement::{Presence, Snapshot},
    session::HolderStatus,
};

use super::world::{Course, World, deployed, fleet, resource, runner};

fn spread(snapshot: &Snapshot) -> (u64, u64) {
    let loads: BTreeMap<_, _> = snapshot.loads();
    let here = snapshot.runners.iter().filter(|runner| matches!(runner.presence, Presence::Here { .. }));
    let loads: Vec<u64> = here.map(|runner| loads[runner.key.name.as_str()]).collect();
    (*loads.iter().min().expect("a runner"), *loads.iter().max().expect("a runner"))
}

/// Within the ten seconds that this may take there are at least ten rounds, one per second.
#[test]
fn three_hundred_resources_from_five_to_ten_runners() {
    let mut snapshot = fleet(5, 100, 300);
    snapshot.converge();
    assert_eq!(spread(&snapshot), (60, 60));
    snapshot.runners.extend((5..10).map(|n| runner(&format!("r{n}"), 100)));
    let course = snapshot.converge();
    let (least, most) = spread(&snapshot);
    assert!(least >= 27 && most <= 33, "{least} to {most}");
    assert_eq!(course.total(), 5 * 27, "the newcomers are brought into the band, and no further");
    assert!(course.rounds <= 6, "{} rounds", course.rounds);
}

/// For each runner a new one starts, then the old one drains and goes.
#[test]
fn a_rolling_restart_with_new_runners_moves_each_resource_once() {
    let mut snapshot = fleet(0, 0, 64);
    snapshot.runners = (0..4).map(|n| deployed(&format!("old{n}"), 32, "main", "v9")).collect();
    snapshot.converge();
    let mut course = Course::default();
    for n in 0..4 {
        snapshot.runners.push(deployed(&format!("new{n}"), 32, "main", "v10"));
        course.add(&snapshot.converge());
        snapshot.runner(&format!("old{n}")).status = HolderStatus::Draining;
        course.add(&snapshot.converge());
        snapshot.lose(&format!("old{n}"));
        course.add(&snapshot.converge());
    }
    assert_eq!(course.total(), 64);
    assert!(course.moves.values().all(|moves| *moves == 1));
    assert_eq!(spread(&snapshot), (16, 16));
}

/// The same backwards, in the middle of which the direction is clear from what drains.
#[test]
fn a_rollback_with_new_runners_moves_each_resource_once() {
    let mut snapshot = fleet(0, 0, 64);
    snapshot.runners = (0..4).map(|n| deployed(&format!("bad{n}"), 32, "main", "v10")).collect();
    snapshot.converge();
    let mut course = Course::default();
    for n in 0..4 {
        snapshot.runners.push(deployed(&format!("good{n}"), 32, "main", "v9"));
        snapshot.runner(&format!("bad{n}")).status = HolderStatus::Draining;
        course.add(&snapshot.converge());
        snapshot.lose(&format!("bad{n}"));
        course.add(&snapshot.converge());
    }
    assert!(course.moves.values().all(|moves| *moves == 1), "{:?}", course.moves);
    assert_eq!(spread(&snapshot), (16, 16));
}

/// Every runner restarts under its own name with the next version, and finds its resources waiting.
#[test]
fn a_rolling_restart_in_place_moves_nothing() {
    let mut snapshot = fleet(0, 0, 64);
    snapshot.policy.return_window_ms = 15_000;
    snapshot.runners = (0..4).map(|n| deployed(&format!("r{n}"), 32, "main", "v9")).collect();
    snapshot.converge();
    let mut course = Course::default();
    for n in 0..4 {
        let called = format!("r{n}");
        snapshot.lose(&called);
        course.add(&snapshot.converge());
        let runner = snapshot.runner(&called);
        (runner.presence, runner.version) = (Presence::Here { up_ms: 0, returned: true }, Some("v10".into()));
        course.add(&snapshot.converge());
    }
    assert_eq!(course.total(), 0);
    assert_eq!(spread(&snapshot), (16, 16));
}

/// A year of joins, crashes, drains, new and deleted resources: the fleet is balanced after each, and the sum of all
/// moves is about what the newcomers' shares and the drained runners' loads amount to.
#[test]
fn a_long_history_moves_little() {
    let mut snapshot = fleet(20, 100, 1_000);
    snapshot.converge();
    let mut random = 42u64;
    let mut draw = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    let mut moved = 0;
    let mut needed = 0;
    for step in 0..200 {
        let which = draw(snapshot.runners.len());
        match draw(4) {
            0 if snapshot.runners.len() < 30 => {
                snapshot.runners.push(runner(&format!("n{step}"), 100));
                // Its share, as far as the band asks for it.
                needed += snapshot.resources.len() * 9 / 10 / snapshot.runners.len() + 1;
            }
            1 if snapshot.runners.len() > 12 => {
                let called = snapshot.runners[which].key.name.to_string();
                snapshot.lose(&called);
                snapshot.runners.remove(which);
            }
            2 if snapshot.runners.len() > 12 => {
                let called = snapshot.runners[which].key.name.to_string();
                needed += snapshot.loads()[&called] as usize;
                snapshot.runner(&called).status = HolderStatus::Draining;
                moved += snapshot.converge().total();
                snapshot.runners.retain(|runner| runner.key.name.as_str() != called);
            }
            _ => {
                let at = draw(snapshot.resources.len());
                snapshot.resources.remove(at);
                snapshot.resources.push(resource(10_000 + step));
            }
        }
        moved += snapshot.converge().total();
        let fair = snapshot.resources.len() as u64 / snapshot.runners.len() as u64;
        let (least, most) = spread(&snapshot);
        assert!(
            least + 1 >= fair * 9 / 10 && most <= fair * 11 / 10 + 1,
            "{least} to {most}, and {fair} is fair"
        );
    }
    assert!(moved * 10 <= needed * 11, "{moved} moves, and about {needed} were needed");
}
