//! Faults that were seen in use, each with its name.

use super::*;

fn started(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::Start { .. }))
}

fn acquires(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::Acquire(_)))
}

fn renewed(session: u64, leases: &[(&str, u64)]) -> Input {
    let leases = leases.iter().map(|(key, until)| (camera(key), at(*until))).collect();
    Input::Renewed { session: at(session), leases }
}

fn lost(key: &str, until: u64) -> Input {
    Input::Lost { resource: camera(key), why: "it was ended by someone else".into(), until: at(until) }
}

/// An answer of the server's.
fn answer(acquire: &[&str], keep: &[&str]) -> Input {
    Input::Assigned {
        acquire: acquire.iter().map(|key| (camera(key), Want::Free)).collect(),
        keep: keep.iter().map(|key| camera(key)).collect(),
        release: BTreeSet::new(),
    }
}

impl World {
    /// An agent to which the server assigns, with a worker that speaks and holds one camera.
    fn assigned_and_speaking() -> Self {
        let mut world = Self::new(1, 2);
        world.does(assigned(1, 2));
        world.does(answer(&["a"], &[]));
        world.grant("a", 7);
        world.news(1, 1, News::Connected);
        world.says(1, 1, r#"{"type":"ready"}"#);
        world
    }

    fn drained(&mut self, id: &str) -> Vec<Action> {
        self.says(1, 1, &json!({"type": "drained", "id": id}).to_string())
    }

    fn ends(&mut self, run: u32) -> Vec<Action> {
        self.news(1, run, News::Ended(JobEnd::Lost(None)))
    }
}

#[test]
fn a_lease_that_was_lost_before_it_was_taken_up_is_not_worked_on() {
    let mut world = World::new(1, 1);
    world.want(&["a"]);
    let actions = world.does(Input::LostAtGrant { resource: camera("a"), why: "revoked".into() });
    assert_eq!((released(&actions), started(&actions)), (vec!["camera/a".to_owned()], false));
    assert!(world.machine.workers().is_empty());
    world.does(Input::Released(camera("a")));
    assert!(acquires(&world.after(10, Input::Tick)), "it is still wanted");
}

#[test]
fn a_worker_is_bound_by_the_deadlines_of_its_own_leases() {
    let mut world = World::speaking(2, 2);
    world.want(&["a", "b"]);
    world.grant("b", 8);
    // Under `grace`: b is the next session's, and a is not won back yet.
    world.does(renewed(100, &[("a", 40), ("b", 100)]));
    assert_eq!((world.machine.term(1), world.machine.term(2)), (at(40), at(100)));
    world.does(lost("a", 40));
    world.does(renewed(200, &[("a", 200), ("b", 200)]));
    assert_eq!((world.machine.bound(1), world.machine.term(2)), (Some(at(40)), at(200)));
    assert_eq!(world.machine.assignments(2)[0].deadline_boottime_ms, at(200).as_ms());
}

#[test]
fn a_resource_that_was_deleted_is_not_taken_up_again() {
    // The new assignments arrive before the loss is known, and the other way round.
    for is_answer_first in [true, false] {
        let mut world = World::assigned_and_speaking();
        let id = if is_answer_first {
            assert_eq!(
                world.does(answer(&[], &[])),
                [],
                "it is kept: the server may not know of the grant yet"
            );
            revoked(&world.does(lost("a", 5)))
        } else {
            let id = revoked(&world.does(lost("a", 5)));
            world.does(answer(&[], &["a"]));
            id
        };
        assert_eq!(released(&world.drained(&id.expect("revoked"))), ["camera/a"]);
        world.ends(1);
        let mut later = world.does(Input::Released(camera("a")));
        later.extend(world.after(100, Input::Tick));
        assert!(!acquires(&later), "{is_answer_first}: {later:?}");
        assert_eq!(world.machine.due(), None);
        assert!(acquires(&world.does(answer(&["a"], &[]))), "it was declared again");
    }
}

#[test]
fn a_resource_that_a_plain_process_was_given_while_it_started_is_worked_on() {
    let mut world = World::new(1, 2);
    world.want(&["a", "b"]);
    world.grant("a", 1);
    assert_eq!(world.after(5, Input::Tick), []);
    assert_eq!(world.grant("b", 2), [], "it may still connect");
    assert_eq!(world.machine.due(), Some(at(30)));
    let plain = world.after(25, Input::Tick);
    assert!(matches!(&plain[..], [Action::Stop { worker: 1, .. }]), "{plain:?}");
    let again = world.ends(1);
    let [Action::Start { assignments, .. }] = again.as_slice() else { panic!("{again:?}") };
    assert_eq!(assignments.len(), 2);
    assert_eq!(world.after(60, Input::Tick), [], "it has all that there is");
}

#[test]
fn starts_that_come_too_late_are_no_crashes() {
    let mut world = World::new(1, 1);
    world.want(&["a"]);
    world.does(renewed(20, &[]));
    world.grant("a", 1);
    // The server is away. The keeper ended the worker shortly before the deadline.
    world.now = 18;
    let ended = world.news(1, 1, News::Ended(JobEnd::Lost(Some(143))));
    assert!(!started(&ended), "there is no time left for a run: {ended:?}");
    assert_eq!(world.machine.due(), None, "it waits for a renewal, and not for a time");
    assert_eq!(world.after(1, Input::Tick), []);
    let renewed = world.does(renewed(60, &[("a", 60)]));
    assert!(started(&renewed), "{renewed:?}");
    // The keeper was late, and refused.
    for run in 2..10 {
        let again = world.news(1, run, News::Ended(JobEnd::TooLate));
        assert!(is_start(&again[0], 1, run + 1), "{again:?}");
    }
    assert_eq!((world.machine.workers()[0].failures, world.machine.failed_resources().len()), (0, 0));
}

#[test]
fn a_hand_over_that_has_lapsed_leaves_the_work_here() {
    // One that speaks finishes too late, and is given the resource again with its last word.
    for is_called_off in [true, false] {
        let mut world = World::speaking(1, 1);
        let id = revoked(&world.does(asked_for("a", None, 5))).expect("asked");
        if is_called_off {
            world.does(Input::CalledOff(camera("a")));
        } else {
            world.after(5, Input::Tick);
        }
        let line = json!({"type": "drained", "id": id, "state": {"frame": 9}}).to_string();
        let done = world.says(1, 1, &line);
        assert_eq!(released(&done), [""; 0], "nobody would hold it: {done:?}");
        let is_given = |action: &Action| {
            matches!(action, Action::Tell { message: ToWorker::Assign(a), .. }
                if a.token == 7 && a.state == Some(json!({"frame": 9})))
        };
        assert!(done.iter().any(is_given), "{done:?}");
        // The next one is in time.
        let id = revoked(&world.does(asked_for("a", None, 50))).expect("asked again");
        assert_eq!(released(&world.drained(&id)), ["camera/a"]);
    }
    // A plain process is started again.
    let mut plain = World::new(1, 1);
    plain.want(&["a"]);
    plain.grant("a", 7);
    plain.does(asked_for("a", None, 5));
    plain.after(6, Input::Tick);
    let ended = plain.ends(1);
    assert_eq!((released(&ended).len(), started(&ended)), (0, true), "{ended:?}");
}

#[test]
fn a_hand_over_that_has_lapsed_keeps_nothing_that_is_not_wanted() {
    let mut world = World::speaking(1, 1);
    let id = revoked(&world.does(asked_for("a", None, 5))).expect("asked");
    world.want(&[]);
    world.after(6, Input::Tick);
    assert_eq!(released(&world.drained(&id)), ["camera/a"]);
    let mut world = World::speaking(1, 1);
    let id = revoked(&world.does(asked_for("a", None, 5))).expect("asked");
    world.after(4, lost("a", 10));
    world.after(2, Input::Tick);
    assert_eq!(released(&world.drained(&id)), ["camera/a"]);
}

#[test]
fn the_end_of_the_drain_budget_releases_nothing_that_may_still_be_worked_on() {
    let mut world = World::new(1, 1);
    world.want(&["a"]);
    world.grant("a", 1);
    // It is stopped for another reason, and has longer for it than the drain leaves.
    let stopped = world.want(&[]);
    assert!(matches!(&stopped[..], [Action::Stop { grace, .. }] if *grace == Duration::from_secs(30)));
    let draining = world.does(Input::Drain);
    assert!(
        matches!(&draining[..], [Action::Stop { grace, .. }] if *grace == Duration::from_secs(18)),
        "it is killed while there is time to prove it: {draining:?}"
    );
    assert_eq!(world.after(20, Input::Tick), [Action::Finish], "and nothing is released without the proof");
}

#[test]
fn what_no_worker_works_on_is_released_at_once_by_a_drain() {
    let mut world = World::assigned_and_speaking();
    world.does(Input::Drain);
    let crashed = world.news(1, 1, News::Ended(JobEnd::Exited(1)));
    assert_eq!((released(&crashed), started(&crashed)), (vec!["camera/a".to_owned()], false));
}

#[test]
fn what_workers_failed_at_is_left_to_others_for_a_while_also_if_the_server_assigns_it() {
    let mut world = World::assigned_and_speaking();
    world.does(answer(&[], &["a"]));
    let crash = |world: &mut World, run| world.news(1, run, News::Ended(JobEnd::Exited(1)));
    crash(&mut world, 1);
    crash(&mut world, 2);
    world.after(2, Input::Tick);
    assert_eq!(released(&crash(&mut world, 3)), ["camera/a"]);
    world.does(Input::Released(camera("a")));
    assert_eq!(world.does(answer(&["a"], &[])), [], "others may try first");
    assert!(acquires(&world.after(60, Input::Tick)));
}

#[test]
fn what_is_lost_is_asked_for_again_only_when_the_server_says_so() {
    // No answer came since the one that said to acquire it.
    let mut world = World::assigned_and_speaking();
    let id = revoked(&world.does(lost("a", 5))).expect("revoked");
    world.drained(&id);
    world.ends(1);
    let mut later = world.does(Input::Released(camera("a")));
    later.extend(world.after(100, Input::Tick));
    assert!(!acquires(&later), "{later:?}");
    assert!(acquires(&world.does(answer(&["a"], &[]))));
}
