//! The rules of placement, one by one.

use std::{collections::BTreeSet, sync::Arc};

use solehold_core::{
    call::ResourceScope,
    placement::{
        ALGORITHM_VERSION, Eviction, Holdup, MoveBudget, PendingMove, Placement, PlacementResource, Plan,
        Presence, Reason, Runner, Shift, Snapshot, Step, Unplaceable, plan,
    },
    session::HolderStatus,
};

use super::world::{World, check, deployed, fleet, held, key, name, resource, runner};

fn at(plan: &Plan, number: usize) -> Placement {
    plan.placement(&key(&format!("{number:06}"))).expect("a placement").clone()
}

fn planned(snapshot: &Snapshot) -> Plan {
    let plan = plan(snapshot);
    check(snapshot, &plan);
    plan
}

fn unplaceable(snapshot: &Snapshot) -> Reason {
    at(&planned(snapshot), 0).reason
}

#[test]
fn what_is_held_stays_where_it_is() {
    let mut snapshot = fleet(3, 16, 0);
    snapshot.resources = (0..12).map(|n| held(n, &format!("r{}", n % 3))).collect();
    let plan = planned(&snapshot);
    assert!(plan.is_settled());
    assert_eq!((at(&plan, 5).target, at(&plan, 5).reason), (Some(name("r2")), Reason::Held));
    assert_eq!(plan.algorithm, ALGORITHM_VERSION);
    assert_eq!(plan.share(&snapshot.runners[0].key), Some(4_000));
}

#[test]
fn capacities_weigh() {
    let mut snapshot = fleet(0, 0, 60);
    snapshot.runners = vec![runner("large", 40), runner("small", 20), runner("busy", 40)];
    snapshot.runner("busy").other_load = 20;
    snapshot.converge();
    assert_eq!(snapshot.loads().into_values().collect::<Vec<_>>(), [15, 30, 15], "busy, large, small");
}

#[test]
fn a_draining_runner_gives_everything_away_and_gets_nothing() {
    for (status, eviction) in
        [(HolderStatus::Draining, Eviction::Draining), (HolderStatus::Maintenance, Eviction::Maintenance)]
    {
        let mut snapshot = fleet(3, 16, 12);
        snapshot.converge();
        snapshot.runner("r1").status = status;
        snapshot.resources.push(resource(99));
        let plan = planned(&snapshot);
        let evicted = plan.placements.iter().filter(|p| p.reason == Reason::Evicted(eviction));
        assert!(evicted.clone().all(|placement| placement.step == Step::Move && placement.is_move()));
        assert_eq!(evicted.count(), 4);
        snapshot.converge();
        assert_eq!(snapshot.loads()["r1"], 0);
    }
}

#[test]
fn a_draining_runner_keeps_what_nobody_else_can_have() {
    let mut snapshot = fleet(2, 1, 0);
    snapshot.resources = vec![held(0, "r0"), held(1, "r1")];
    snapshot.runner("r0").status = HolderStatus::Draining;
    let placement = at(&planned(&snapshot), 0);
    assert_eq!(placement.step, Step::Keep);
    assert_eq!(placement.reason, Reason::NowhereElse(Unplaceable::AllAtCapacity));
}

#[test]
fn what_cannot_be_placed_says_why() {
    let mut snapshot = fleet(0, 0, 1);
    assert_eq!(unplaceable(&snapshot), Reason::Unplaceable(Unplaceable::NoRunner));
    snapshot.runners = vec![Runner { site: Some(name("north")), ..runner("r0", 1) }];
    snapshot.resources[0].site = Some(name("south"));
    assert_eq!(unplaceable(&snapshot), Reason::Unplaceable(Unplaceable::NoRunnerAtSite(name("south"))));
    snapshot.resources[0].site = None;
    snapshot.resources[0].needs.labels.insert("gpu".into(), "yes".into());
    let no_label = Unplaceable::NoRunnerWithLabel { label: "gpu".into(), value: "yes".into() };
    assert_eq!(unplaceable(&snapshot), Reason::Unplaceable(no_label));
    snapshot.runners[0].labels.insert("gpu".into(), "yes".into());
    snapshot.resources[0].needs.capabilities.insert("night".into());
    assert_eq!(
        unplaceable(&snapshot),
        Reason::Unplaceable(Unplaceable::NoRunnerWithCapability("night".into()))
    );
    snapshot.runners.push(runner("r1", 1));
    snapshot.runners[1].capabilities.insert("night".into());
    assert_eq!(unplaceable(&snapshot), Reason::Unplaceable(Unplaceable::NoRunnerWithAll));
    snapshot.runners[1].labels.insert("gpu".into(), "yes".into());
    snapshot.runners[1].kinds = BTreeSet::from(["other".into()]);
    snapshot.runners.remove(0);
    assert_eq!(unplaceable(&snapshot), Reason::Unplaceable(Unplaceable::NoRunnerForKind(name("job"))));
    snapshot.runners[0].kinds.insert("job".into());
    snapshot.runners[0].status = HolderStatus::Maintenance;
    assert_eq!(unplaceable(&snapshot), Reason::Unplaceable(Unplaceable::NoneAvailable));
    snapshot.runners[0].status = HolderStatus::Active;
    snapshot.runners[0].presence = Presence::ByName;
    assert_eq!(unplaceable(&snapshot), Reason::Unplaceable(Unplaceable::NoneAvailable));
    snapshot.runners[0].presence = Presence::Here { up_ms: 0, returned: false };
    assert_eq!(unplaceable(&snapshot), Reason::Unowned);
    snapshot.resources.push(held(1, "r1"));
    assert_eq!(unplaceable(&snapshot), Reason::Unplaceable(Unplaceable::AllAtCapacity));
    snapshot.resources[0].quarantined = true;
    assert_eq!(unplaceable(&snapshot), Reason::Unplaceable(Unplaceable::Quarantined));
}

/// Resources were planned for a runner whose key may not touch them, and stayed unowned.
#[test]
fn a_runner_is_given_nothing_that_its_key_may_not_touch() {
    let scope = |prefix: &str| ResourceScope { kind: name("job"), key_prefix: prefix.to_owned() };
    let only = |scopes: &[ResourceScope]| Some(Arc::from(scopes));
    let mut snapshot = fleet(2, 16, 1);
    let prefix = snapshot.resources[0].key.key.to_string();
    snapshot.runners[0].scopes = only(&[scope("elsewhere"), scope(&prefix)]);
    snapshot.runners[1].scopes = only(&[scope("elsewhere")]);
    assert_eq!(at(&planned(&snapshot), 0).target, Some(name("r0")));
    snapshot.runners.swap(0, 1);
    assert_eq!(at(&planned(&snapshot), 0).target, Some(name("r0")), "whatever their order");
    // Its key was changed: what it holds moves to one whose key may hold it, and stays if there is none.
    snapshot.resources = vec![held(0, "r1")];
    let placement = at(&planned(&snapshot), 0);
    assert_eq!((placement.step, placement.reason), (Step::Move, Reason::Evicted(Eviction::Unfit)));
    snapshot.runner("r0").scopes = only(&[]);
    let placement = at(&planned(&snapshot), 0);
    assert_eq!(placement.reason, Reason::NowhereElse(Unplaceable::NoRunnerWithKey));
    snapshot.resources = fleet(0, 0, 1).resources;
    assert_eq!(unplaceable(&snapshot), Reason::Unplaceable(Unplaceable::NoRunnerWithKey));
    // A static list does not change what a key may touch.
    let list = BTreeSet::from([(name("job"), snapshot.resources[0].key.key.clone())]);
    snapshot.policy.static_lists.insert(name("r1"), list.into_iter().collect());
    assert_eq!(unplaceable(&snapshot), Reason::Unplaceable(Unplaceable::NoRunnerWithKey));
    snapshot.runner("r1").scopes = None;
    assert_eq!(at(&planned(&snapshot), 0).target, Some(name("r1")));
}

#[test]
fn tenants_do_not_share_runners() {
    let mut snapshot = fleet(1, 16, 1);
    snapshot.resources[0].key.tenant = name("other");
    assert_eq!(plan(&snapshot).placements[0].reason, Reason::Unplaceable(Unplaceable::NoRunner));
}

#[test]
fn what_is_held_by_something_else_is_left_alone() {
    let mut snapshot = fleet(1, 16, 0);
    snapshot.resources = vec![held(0, "somebody")];
    let placement = plan(&snapshot).placements[0].clone();
    assert_eq!((placement.step, placement.reason), (Step::Keep, Reason::Outsider));
}

#[test]
fn unowned_work_goes_before_balancing_and_needs_no_budget() {
    let mut snapshot = fleet(2, 100, 0);
    snapshot.policy.move_budget = MoveBudget { floor: 3, percent: 0 };
    snapshot.resources = (0..40).map(|n| held(n, "r0")).chain((40..60).map(resource)).collect();
    let plan = planned(&snapshot);
    let to_the_empty_one = plan.placements.iter().filter(|p| p.step == Step::Acquire);
    assert!(to_the_empty_one.clone().all(|placement| placement.target == Some(name("r1"))));
    assert_eq!(to_the_empty_one.count(), 20);
    assert_eq!(plan.count(|step| *step == Step::Move), 3);
    assert_eq!(plan.count(|step| *step == Step::Later(Holdup::Budget)), plan.moves() - 3);
}

#[test]
fn a_stuck_hand_over_and_a_quarantined_resource_hold_no_budget() {
    let mut snapshot = fleet(2, 100, 0);
    snapshot.policy.move_budget = MoveBudget { floor: 2, percent: 0 };
    snapshot.resources = (0..40).map(|n| held(n, "r0")).collect();
    snapshot.resources[0].pending = Some(PendingMove { to: name("r1"), for_ms: 1_000 });
    assert_eq!(planned(&snapshot).count(|step| *step == Step::Move), 1, "one is under way");
    snapshot.resources[0].pending = Some(PendingMove { to: name("r1"), for_ms: 60_000 });
    snapshot.resources[1].quarantined = true;
    let plan = planned(&snapshot);
    assert_eq!(plan.count(|step| *step == Step::Move), 2);
    assert_eq!((at(&plan, 0).step, at(&plan, 0).reason), (Step::Keep, Reason::StuckHandOver));
    assert_eq!(at(&plan, 1).reason, Reason::NowhereElse(Unplaceable::Quarantined));
}

#[test]
fn the_budget_is_fair_between_tenants_and_kinds() {
    let mut snapshot = Snapshot::default();
    snapshot.policy.move_budget = MoveBudget { floor: 9, percent: 0 };
    for tenant in ["acme", "other"] {
        for called in ["r0", "r1"] {
            let mut runner = runner(called, 1_000);
            runner.key.tenant = name(tenant);
            snapshot.runners.push(runner);
        }
    }
    for (tenant, kind, count) in [("acme", "job", 400), ("acme", "task", 30), ("other", "job", 30)] {
        snapshot.resources.extend((0..count).map(|n| {
            let mut resource = held(n, "r0");
            (resource.key.tenant, resource.key.kind) = (name(tenant), name(kind));
            resource
        }));
    }
    let plan = plan(&snapshot);
    let started = |tenant: &str, kind: &str| {
        let is_its = |p: &&Placement| p.key.tenant.as_str() == tenant && p.key.kind.as_str() == kind;
        plan.placements.iter().filter(|p| p.step == Step::Move).filter(is_its).count()
    };
    let total = started("acme", "job") + started("acme", "task") + started("other", "job");
    assert_eq!(total, 9);
    assert!(started("other", "job") >= 3, "a small tenant is not starved by a large one");
}

#[test]
fn a_full_runner_gets_nothing_before_something_has_left() {
    let mut snapshot = fleet(0, 0, 0);
    let gpu = |mut runner: Runner| {
        runner.labels.insert("gpu".into(), "yes".into());
        runner
    };
    snapshot.runners = vec![gpu(runner("a", 2)), runner("b", 2)];
    snapshot.resources = vec![held(0, "a"), held(1, "a"), resource(2)];
    snapshot.resources[2].needs.labels.insert("gpu".into(), "yes".into());
    let plan = planned(&snapshot);
    assert_eq!((at(&plan, 2).step, at(&plan, 2).target), (Step::Later(Holdup::Room), Some(name("a"))));
    assert_eq!(plan.count(|step| *step == Step::Move), 1);
    assert!(plan.placements.iter().any(|p| p.reason == Reason::MakesRoom && p.target == Some(name("b"))));
    snapshot.converge();
    assert_eq!(snapshot.loads()["a"], 2);
}

#[test]
fn a_runner_that_restarts_in_place_finds_its_resources_waiting() {
    let mut snapshot = fleet(3, 16, 12);
    snapshot.policy.return_window_ms = 10_000;
    snapshot.converge();
    let before = snapshot.loads();
    snapshot.lose("r1");
    let plan = planned(&snapshot);
    assert_eq!(plan.count(|step| *step == Step::Later(Holdup::Return)), 4);
    assert!(plan.placements.iter().all(|placement| placement.target.is_some()));
    let mut late = snapshot.clone();
    late.runner("r1").presence = Presence::Away { gone_ms: 10_000 };
    assert_eq!(planned(&late).count(|step| *step == Step::Acquire), 4, "the window is over");
    snapshot.runner("r1").presence = Presence::Here { up_ms: 0, returned: true };
    let plan = planned(&snapshot);
    let back = plan.placements.iter().filter(|placement| placement.reason == Reason::Returned);
    assert!(back.clone().all(|p| p.step == Step::Acquire && p.target == Some(name("r1"))));
    assert_eq!(back.count(), 4);
    assert_eq!(snapshot.converge().total(), 0);
    assert_eq!(snapshot.loads(), before);
}

#[test]
fn runners_that_were_all_away_come_back_to_what_they_held() {
    let mut snapshot = fleet(3, 16, 12);
    snapshot.converge();
    let before = snapshot.clone();
    let here = |up_ms| Presence::Here { up_ms, returned: true };
    for runner in ["r0", "r1", "r2"] {
        snapshot.lose(runner);
        snapshot.runner(runner).presence = Presence::Away { gone_ms: 55_000 };
    }
    snapshot.runner("r0").presence = here(100);
    let first = planned(&snapshot);
    assert_eq!(first.count(|step| *step == Step::Acquire), 4, "its own");
    assert_eq!(first.count(|step| *step == Step::Later(Holdup::Return)), 8, "those of the others");
    // It waits for a while; for nobody that drained or has been away for long; and not if somebody else was there.
    let all = |change: &dyn Fn(&mut Snapshot)| {
        let mut snapshot = snapshot.clone();
        change(&mut snapshot);
        planned(&snapshot).count(|step| *step == Step::Acquire)
    };
    assert_eq!(all(&|late| late.runner("r0").presence = here(5_000)), 12);
    assert_eq!(all(&|long| long.runner("r1").presence = Presence::Away { gone_ms: 600_000 }), 8);
    assert_eq!(all(&|drained| drained.runner("r2").status = HolderStatus::Draining), 8);
    assert_eq!(all(&|one_left| one_left.runner("r0").presence = here(55_001)), 12);
    for runner in ["r1", "r2"] {
        snapshot.runner(runner).presence = here(0);
    }
    assert_eq!(snapshot.converge().total(), 0);
    assert_eq!(snapshot.resources, before.resources);
}

#[test]
fn a_static_list_is_all_that_its_runner_gets() {
    let mut snapshot = fleet(3, 16, 12);
    let list = [(name("job"), name("000003")), (name("job"), name("000007"))];
    snapshot.policy.static_lists.insert(name("r1"), list.into());
    snapshot.converge();
    assert_eq!(snapshot.loads().into_values().collect::<Vec<_>>(), [5, 2, 5]);
    snapshot.lose("r1");
    let plan = planned(&snapshot);
    assert_eq!(at(&plan, 3).reason, Reason::Unplaceable(Unplaceable::StaticRunnerAway(name("r1"))));
    snapshot.policy.static_lists.clear();
    assert_eq!(at(&planned(&snapshot), 3).step, Step::Acquire, "without the list it goes elsewhere");
}

#[test]
fn a_resource_that_failed_on_a_runner_is_tried_elsewhere() {
    let mut snapshot = fleet(2, 16, 1);
    snapshot.resources[0].holder = Some(name("r0"));
    snapshot.resources[0].avoid = BTreeSet::from([name("r0")]);
    assert_eq!(at(&planned(&snapshot), 0).target, Some(name("r1")));
    snapshot.resources[0].held = true;
    let placement = at(&planned(&snapshot), 0);
    assert_eq!((placement.target, placement.reason), (Some(name("r1")), Reason::FailedThere));
    snapshot.resources[0].avoid.insert(name("r1"));
    assert_eq!(at(&planned(&snapshot), 0).step, Step::Keep, "it failed everywhere");
}

fn blue_and_green(resources: usize) -> Snapshot {
    let runners = ["blue", "green"].into_iter().flat_map(|group| {
        (0..3).map(move |n| {
            deployed(&format!("{group}{n}"), 1_000, group, if group == "blue" { "1" } else { "2" })
        })
    });
    Snapshot {
        runners: runners.collect(),
        resources: (0..resources).map(resource).collect(),
        ..Default::default()
    }
}

fn shift(percent: u32) -> Option<Shift> {
    Some(Shift { to: "green".into(), percent, halted: None })
}

fn on_green(snapshot: &Snapshot) -> Vec<&PlacementResource> {
    let is_there =
        |r: &&PlacementResource| r.holder.as_ref().is_some_and(|holder| holder.as_str().starts_with("green"));
    snapshot.resources.iter().filter(is_there).collect()
}

#[test]
fn a_shift_moves_only_the_difference() {
    let mut snapshot = blue_and_green(1_000);
    snapshot.policy.shift = shift(0);
    snapshot.converge();
    assert!(on_green(&snapshot).is_empty());
    let mut before = 0;
    for percent in [25, 50, 100, 25, 0] {
        snapshot.policy.shift = shift(percent);
        let course = snapshot.converge();
        let now = on_green(&snapshot).len();
        assert!(now.abs_diff(percent as usize * 10) <= 40, "{now} at {percent} percent");
        // What is shifted is spread fairly, and only what is shifted moves.
        assert!(course.total() <= now.abs_diff(before) * 11 / 10, "{} moves", course.total());
        assert!(course.moves.values().all(|moves| *moves == 1));
        before = now;
    }
}

#[test]
fn a_shift_that_halted_moves_nothing_and_gives_the_new_group_nothing() {
    let mut snapshot = blue_and_green(200);
    snapshot.policy.shift = shift(25);
    snapshot.converge();
    let before = on_green(&snapshot).len();
    snapshot.policy.shift =
        Some(Shift { halted: Some("its workers crash".into()), ..shift(75).expect("a shift") });
    assert_eq!(snapshot.converge().total(), 0);
    assert_eq!(on_green(&snapshot).len(), before);
    snapshot.lose("green1");
    snapshot.converge();
    assert!(on_green(&snapshot).len() < before, "unowned work goes to the other group");
}

#[test]
fn while_a_group_has_two_versions_nothing_is_balanced_in_it() {
    let mut snapshot = fleet(0, 0, 0);
    snapshot.runners = vec![deployed("a", 100, "main", "1"), deployed("b", 100, "main", "1")];
    snapshot.resources = (0..20).map(|n| held(n, "a")).collect();
    assert_eq!(planned(&snapshot).moves(), 9);
    snapshot.runner("b").version = Some("2".into());
    assert!(planned(&snapshot).is_settled());
    // What has no owner goes to the newest version all the same.
    snapshot.resources.push(resource(50));
    assert_eq!(at(&planned(&snapshot), 50).target, Some(name("b")));
}

#[test]
fn in_a_rollback_work_goes_back_to_the_older_version() {
    let mut snapshot = fleet(0, 0, 0);
    snapshot.runners = ["old1", "old2", "new1", "new2"]
        .map(|called| deployed(called, 100, "main", if called.starts_with("old") { "1.9" } else { "1.10" }))
        .into();
    snapshot.resources = (0..20).map(|n| held(n, ["new1", "new2"][n % 2])).collect();
    snapshot.runner("new1").status = HolderStatus::Draining;
    let plan = planned(&snapshot);
    let moved = plan.placements.iter().filter(|placement| placement.is_move());
    assert!(moved.clone().all(|p| p.target.as_ref().is_some_and(|to| to.as_str().starts_with("old"))));
    assert_eq!(moved.count(), 10);
}
