use serde_json::json;

use super::*;
use crate::worker::Protocol;

mod faults;
mod properties;

const UNIT: f64 = 0.5;
/// A deadline that no test comes near to.
const FAR: u64 = 1_000_000;

fn rules(max_workers: usize, per_worker: usize) -> Rules {
    let s = Duration::from_secs;
    Rules {
        max_workers,
        per_worker,
        capacity: max_workers * per_worker,
        bounds: Bounds {
            protocol: Protocol::Auto,
            startup: s(30),
            watchdog: s(60),
            stop: s(30),
            restart: solehold_clock::Backoff { first: s(1), cap: s(30) },
            good_run: s(10),
            burst: 3,
        },
        retry: s(10),
        penalty: s(60),
        drain: s(20),
        start_before: s(2),
        grace: Duration::ZERO,
        hands_over: false,
    }
}

fn at(seconds: u64) -> BootTime {
    BootTime::from_ms(1_000_000 + seconds * 1_000)
}

fn camera(key: &str) -> ResourceName {
    ResourceName::new("camera", key).expect("a name")
}

/// A machine and the time by which it lives.
struct World {
    machine: Machine,
    now: u64,
}

impl World {
    fn new(max_workers: usize, per_worker: usize) -> Self {
        Self { machine: Machine::new(rules(max_workers, per_worker), at(FAR)), now: 0 }
    }

    fn after(&mut self, seconds: u64, event: Input) -> Vec<Action> {
        self.now += seconds;
        self.machine.handle(at(self.now), UNIT, event)
    }

    fn does(&mut self, event: Input) -> Vec<Action> {
        self.after(0, event)
    }

    fn want(&mut self, keys: &[&str]) -> Vec<Action> {
        self.does(Input::Wanted(keys.iter().map(|key| (camera(key), Want::Free)).collect()))
    }

    fn grant(&mut self, key: &str, token: u64) -> Vec<Action> {
        let granted = Granted {
            token,
            lease_id: Uuid::from_u128(token.into()),
            state: None,
            sequence: None,
            config: None,
            trusted_until: self.machine.trusted_until,
        };
        self.does(Input::Granted { resource: camera(key), granted })
    }

    fn news(&mut self, id: WorkerId, run: u32, news: News) -> Vec<Action> {
        self.does(Input::Worker { id, run, news })
    }

    fn says(&mut self, id: WorkerId, run: u32, line: &str) -> Vec<Action> {
        let said = serde_json::from_str(line).expect("a message");
        self.news(id, run, News::Said(said))
    }

    /// A worker that holds one camera and speaks.
    fn speaking(max_workers: usize, per_worker: usize) -> Self {
        let mut world = Self::new(max_workers, per_worker);
        world.want(&["a"]);
        world.grant("a", 7);
        world.news(1, 1, News::Connected);
        world.says(1, 1, r#"{"type":"ready"}"#);
        world
    }
}

fn is_start(action: &Action, id: WorkerId, number: u32) -> bool {
    matches!(action, Action::Start { worker, run, .. } if (*worker, *run) == (id, number))
}

/// The id of the revoke that a worker was told, if it was.
fn revoked(actions: &[Action]) -> Option<String> {
    actions.iter().find_map(|action| match action {
        Action::Tell { message: ToWorker::Revoke { id, .. }, .. } => Some(id.clone()),
        _ => None,
    })
}

fn released(actions: &[Action]) -> Vec<String> {
    let of = |action: &Action| match action {
        Action::Release { resource, .. } => Some(resource.to_string()),
        _ => None,
    };
    actions.iter().filter_map(of).collect()
}

#[test]
fn what_is_wanted_is_acquired_and_worked_on() {
    let mut world = World::new(2, 1);
    assert_eq!(world.want(&["a", "b", "c"]), [Action::Acquire(camera("a")), Action::Acquire(camera("b"))]);
    let started = world.grant("a", 7);
    let [Action::Start { worker: 1, run: 1, assignments }] = started.as_slice() else {
        panic!("{started:?}")
    };
    assert_eq!((assignments[0].resource.as_str(), assignments[0].token), ("camera/a", 7));
    assert_eq!(
        world.does(Input::NotGranted { resource: camera("b"), retry_after: None }),
        [Action::Acquire(camera("c"))]
    );
    assert_eq!(world.after(9, Input::Tick), [], "there is room for c only, which was asked for");
    world.does(Input::NotGranted { resource: camera("c"), retry_after: Some(Duration::from_secs(1)) });
    assert_eq!(world.machine.due(), Some(at(10)));
    assert_eq!(world.after(1, Input::Tick), [Action::Acquire(camera("b"))]);
}

/// A lease says which shard works under it, so the worker is known when the lease is asked for.
#[test]
fn the_worker_is_chosen_when_a_resource_is_asked_for_and_started_when_it_holds_it() {
    let mut world = World::new(2, 2);
    let asked = world.want(&["a", "b", "c"]);
    assert_eq!(asked, ["a", "b", "c"].map(|key| Action::Acquire(camera(key))), "nothing is started yet");
    let chosen = |world: &World, key: &str| world.machine.worker_of(&camera(key));
    assert_eq!(["a", "b", "c"].map(|key| chosen(&world, key)), [Some(1), Some(2), Some(1)]);
    assert_eq!(world.after(5, Input::Tick), []);
    world.does(Input::NotGranted { resource: camera("a"), retry_after: None });
    assert!(is_start(&world.grant("c", 1)[0], 1, 1));
    assert!(is_start(&world.grant("b", 2)[0], 2, 1));
    assert_eq!((chosen(&world, "c"), chosen(&world, "b")), (Some(1), Some(2)));
}

#[test]
fn what_a_worker_says_about_its_work_is_told_of_its_leases() {
    let mut world = World::speaking(1, 2);
    world.want(&["a", "b"]);
    world.grant("a", 1);
    world.grant("b", 2);
    let beat = r#"{"type":"heartbeat","stats":{"fps":25},"resources":{"camera/b":{"fps":5}}}"#;
    world.says(1, 1, beat);
    let told: Vec<Value> =
        world.machine.lease_stats().into_iter().map(|(_, stats)| stats["fps"].clone()).collect();
    assert_eq!(told, [json!(25), json!(5)]);
}

#[test]
fn several_resources_go_to_the_worker_with_the_fewest() {
    let mut world = World::new(2, 2);
    world.want(&["a", "b", "c", "d", "e"]);
    assert!(is_start(&world.grant("a", 1)[0], 1, 1));
    assert!(is_start(&world.grant("b", 2)[0], 2, 1));
    world.news(1, 1, News::Connected);
    let told = world.grant("c", 3);
    assert!(
        matches!(&told[..], [Action::Tell { worker: 1, message: ToWorker::Assign(a) }] if a.token == 3),
        "{told:?}"
    );
    assert_eq!(world.grant("d", 4), [], "the second has not connected yet, and is told then");
    let told = world.news(2, 1, News::Connected);
    assert_eq!(told.len(), 2, "{told:?}");
}

#[test]
fn what_is_no_longer_wanted_is_released_once_the_worker_says_so() {
    let mut world = World::speaking(1, 2);
    let asked = world.want(&[]);
    let id = revoked(&asked).expect("asked");
    assert_eq!(released(&asked), [""; 0], "unknown is not drained");
    let late = world.says(1, 1, r#"{"type":"drained","id":"r0"}"#);
    assert!(
        matches!(&late[..], [Action::Tell { message: ToWorker::Error { message }, .. }] if message.contains("r0"))
    );
    let line = json!({"type": "drained", "id": id, "state": {"frame": 9}}).to_string();
    let done = world.says(1, 1, &line);
    let [Action::Release { state, .. }, Action::Stop { worker: 1, .. }] = done.as_slice() else {
        panic!("{done:?}")
    };
    assert_eq!(state, &Some(json!({"frame": 9})));
    assert_eq!(world.news(1, 1, News::Ended(JobEnd::Lost(Some(0)))), []);
    assert!(world.machine.workers().is_empty());
}

#[test]
fn a_worker_that_does_not_finish_is_stopped_and_its_end_is_the_proof() {
    let mut world = World::speaking(1, 2);
    world.want(&[]);
    assert_eq!(world.machine.due(), Some(at(20)));
    let late = world.after(20, Input::Tick);
    assert!(
        matches!(&late[..], [Action::Stop { grace, .. }] if *grace == Duration::from_secs(10)),
        "{late:?}"
    );
    assert_eq!(released(&world.news(1, 1, News::Ended(JobEnd::Lost(None)))), ["camera/a"]);
}

#[test]
fn a_plain_process_is_asked_by_sigterm() {
    let mut world = World::new(1, 1);
    world.want(&["a"]);
    world.grant("a", 1);
    let asked = world.want(&[]);
    assert!(matches!(&asked[..], [Action::Stop { worker: 1, .. }]), "{asked:?}");
    assert_eq!(released(&world.news(1, 1, News::Ended(JobEnd::Lost(Some(143))))), ["camera/a"]);
}

#[test]
fn a_crash_is_back_at_once_and_a_loop_goes_elsewhere() {
    let mut world = World::new(1, 1);
    world.want(&["a"]);
    world.grant("a", 1);
    let crash = |world: &mut World, run| world.news(1, run, News::Ended(JobEnd::Exited(1)));
    let again = crash(&mut world, 1);
    assert!(again.iter().any(|action| is_start(action, 1, 2)), "{again:?}");
    assert!(!crash(&mut world, 1).iter().any(|action| is_start(action, 1, 3)), "that run is over");
    assert!(!crash(&mut world, 2).iter().any(|action| is_start(action, 1, 3)), "after a pause");
    assert!(is_start(&world.after(2, Input::Tick)[0], 1, 3));
    let given_up = crash(&mut world, 3);
    let [Action::Note(_), Action::Report { .. }, Action::Release { why, .. }] = given_up.as_slice() else {
        panic!("{given_up:?}")
    };
    assert_eq!(why, "the worker failed 3 times in a row: the worker exited with code 1");
    assert_eq!(world.machine.failed_resources()["camera/a"], *why);
    world.does(Input::Released(camera("a")));
    assert_eq!(world.after(59, Input::Tick), [], "others may try first");
    assert_eq!(world.after(1, Input::Tick), [Action::Acquire(camera("a"))]);
}

#[test]
fn a_silent_worker_is_restarted() {
    let mut world = World::speaking(1, 1);
    assert_eq!(world.machine.due(), Some(at(60)));
    assert_eq!(world.after(59, Input::Tick), []);
    let stopped = world.after(1, Input::Tick);
    assert!(
        matches!(&stopped[..], [Action::Stop { why, .. }] if why == "the worker sent no heartbeat for 1m"),
        "{stopped:?}"
    );
    assert_eq!(world.machine.due(), None, "it is on its way out");
    let again = world.news(1, 1, News::Ended(JobEnd::Lost(None)));
    assert!(again.iter().any(|action| is_start(action, 1, 2)), "{again:?}");
}

#[test]
fn a_lost_lease_binds_its_worker_until_it_says_that_it_has_finished() {
    let mut world = World::speaking(1, 4);
    world.want(&["a", "b"]);
    world.grant("b", 8);
    let asked = world.does(Input::Lost { resource: camera("a"), why: "revoked".into(), until: at(5) });
    let id = revoked(&asked).expect("asked");
    assert_eq!(world.machine.bound(1), Some(at(5)));
    let done = world.says(1, 1, &json!({"type": "drained", "id": id}).to_string());
    assert_eq!((released(&done), world.machine.bound(1)), (vec!["camera/a".to_owned()], None));
    assert_eq!(world.machine.assignments(1).len(), 1, "the other goes on");
}

#[test]
fn a_worker_killed_at_the_bound_comes_back_with_the_rest() {
    let mut world = World::speaking(1, 4);
    world.want(&["a", "b"]);
    world.grant("b", 8);
    world.does(Input::Lost { resource: camera("a"), why: "revoked".into(), until: at(5) });
    let stopped = world.after(5, Input::Tick);
    assert!(matches!(&stopped[..], [Action::Stop { grace: Duration::ZERO, .. }]), "{stopped:?}");
    let ended = world.news(1, 1, News::Ended(JobEnd::Lost(None)));
    assert_eq!(released(&ended), ["camera/a"]);
    let start = ended.iter().find(|action| is_start(action, 1, 2)).expect("started again");
    let Action::Start { assignments, .. } = start else { panic!("{start:?}") };
    assert_eq!(assignments.iter().map(|a| a.resource.as_str()).collect::<Vec<_>>(), ["camera/b"]);
}

#[test]
fn a_checkpoint_is_kept_for_the_next_run() {
    let mut world = World::speaking(1, 4);
    let wrote = world.says(1, 1, r#"{"type":"state","document":{"n":1}}"#);
    assert!(matches!(&wrote[..], [Action::WriteState { .. }]));
    let odd = world.says(1, 1, r#"{"type":"state","resource":"camera/z","document":1}"#);
    assert!(matches!(&odd[..], [Action::Tell { message: ToWorker::Error { .. }, .. }]));
    world.news(1, 1, News::Ended(JobEnd::Exited(0)));
    assert_eq!(world.machine.assignments(1)[0].state, Some(json!({"n": 1})));
}

#[test]
fn draining_has_one_budget_and_needs_proof() {
    let mut world = World::speaking(2, 1);
    world.want(&["a", "b", "c"]);
    world.grant("b", 2);
    let drained = world.does(Input::Drain);
    let id = revoked(&drained).expect("the one that speaks is asked");
    assert!(drained.iter().any(|action| matches!(action, Action::Stop { worker: 2, .. })), "{drained:?}");
    assert!(!drained.contains(&Action::Finish));
    let done = world.says(1, 1, &json!({"type": "drained", "id": id}).to_string());
    assert_eq!(released(&done), ["camera/a"]);
    world.news(1, 1, News::Ended(JobEnd::Lost(Some(0))));
    world.news(2, 1, News::Ended(JobEnd::Lost(Some(0))));
    assert!(world.does(Input::Released(camera("a"))).is_empty(), "the other release is not answered yet");
    assert_eq!(world.does(Input::Released(camera("b"))), [Action::Finish]);
    assert_eq!(world.after(100, Input::Tick), []);
}

#[test]
fn draining_ends_with_its_budget_whatever_happens() {
    let mut world = World::speaking(1, 1);
    world.does(Input::Drain);
    let late = world.after(12, Input::Tick);
    assert!(
        matches!(&late[..], [Action::Stop { grace, .. }] if *grace == Duration::from_secs(6)),
        "{late:?}"
    );
    assert_eq!(world.after(8, Input::Tick), [Action::Finish]);
}

#[test]
fn what_is_granted_too_late_goes_back() {
    let mut world = World::new(1, 1);
    world.want(&["a"]);
    world.want(&[]);
    assert_eq!(released(&world.grant("a", 1)), ["camera/a"]);
    let mut world = World::new(1, 1);
    world.want(&["a"]);
    world.does(Input::Drain);
    assert_eq!(released(&world.grant("a", 1)), ["camera/a"]);
}

#[test]
fn a_worker_prepares_before_the_holder_is_asked() {
    let mut world = World::speaking(2, 1);
    let wanted = BTreeMap::from([(camera("a"), Want::Free), (camera("b"), Want::Moves)]);
    let started = world.does(Input::Wanted(wanted));
    let [Action::Start { worker: 2, assignments, .. }] = started.as_slice() else { panic!("{started:?}") };
    assert!(assignments.is_empty(), "it is not held yet");
    let told = world.news(2, 1, News::Connected);
    let [Action::Tell { message: ToWorker::Prepare { id, .. }, .. }] = told.as_slice() else {
        panic!("{told:?}")
    };
    let odd = world.says(2, 1, r#"{"type":"prepared","id":"p0"}"#);
    assert!(matches!(&odd[..], [Action::Tell { message: ToWorker::Error { .. }, .. }]), "{odd:?}");
    let line = json!({"type": "prepared", "id": id}).to_string();
    assert_eq!(world.says(2, 1, &line), [Action::TakeOver(camera("b"))]);
    assert!(
        matches!(&world.says(2, 1, &line)[..], [Action::Tell { message: ToWorker::Error { .. }, .. }]),
        "once"
    );
    let assigned = world.grant("b", 9);
    let [Action::Tell { worker: 2, message: ToWorker::Assign(assignment) }] = assigned.as_slice() else {
        panic!("{assigned:?}")
    };
    assert_eq!((assignment.token, assignment.handover_id.as_ref()), (9, Some(id)));
}

#[test]
fn a_preparation_ends_whatever_becomes_of_its_worker() {
    let moves = |world: &mut World| {
        let wanted = BTreeMap::from([(camera("a"), Want::Free), (camera("b"), Want::Moves)]);
        world.does(Input::Wanted(wanted))
    };
    // It is never prepared.
    let mut world = World::speaking(2, 1);
    moves(&mut world);
    world.news(2, 1, News::Connected);
    assert_eq!(world.machine.due(), Some(at(30)));
    let given_up = world.after(30, Input::Tick);
    assert!(given_up.iter().any(|action| matches!(action, Action::Stop { worker: 2, .. })), "{given_up:?}");
    // It crashes.
    let mut world = World::speaking(2, 1);
    moves(&mut world);
    world.news(2, 1, News::Ended(JobEnd::Exited(1)));
    assert!(
        world.after(10, Input::Tick).iter().any(|action| matches!(action, Action::Start { .. })),
        "tried again"
    );
    // The move is called off.
    let mut world = World::speaking(2, 1);
    moves(&mut world);
    let off = world.want(&["a"]);
    assert!(off.iter().any(|action| matches!(action, Action::Stop { worker: 2, .. })), "{off:?}");
}

#[test]
fn a_plain_process_is_not_started_before_it_holds_what_it_works_on() {
    let mut world = World::new(2, 1);
    let wanted = BTreeMap::from([(camera("b"), Want::Moves)]);
    assert_eq!(world.does(Input::Wanted(wanted)), [Action::TakeOver(camera("b"))]);
    assert!(is_start(&world.grant("b", 3)[0], 1, 1));
}

#[test]
fn while_draining_others_may_take_over_until_two_thirds_of_the_budget() {
    let mut world = World::speaking(2, 1);
    world.machine.rules.hands_over = true;
    world.want(&["a", "b"]);
    world.grant("b", 2);
    assert_eq!(world.does(Input::Drain), []);
    let asked = world.does(asked_for("a", Some("h1".into()), 60));
    assert_eq!(revoked(&asked).as_deref(), Some("h1"));
    let budget = world.machine.rules.drain.mul_f64(2.0 / 3.0);
    assert_eq!(world.machine.due(), Some(at(0).plus(Duration::from_secs(12))), "its worker's time");
    world.says(1, 1, r#"{"type":"drained","id":"h1"}"#);
    assert_eq!(world.machine.due(), Some(at(0).plus(budget)));
    let late = world.after(14, Input::Tick);
    assert!(late.iter().any(|action| matches!(action, Action::Stop { worker: 2, .. })), "{late:?}");
}

/// The next holder asks for a camera, and waits for this long.
fn asked_for(key: &str, id: Option<String>, until: u64) -> Input {
    Input::Asked { resource: camera(key), id, why: "it is handed over".to_owned(), until: at(until) }
}

/// The rules of an agent to which the server assigns.
fn assigned(max_workers: usize, per_worker: usize) -> Input {
    Input::Rules(Box::new(Rules { hands_over: true, ..rules(max_workers, per_worker) }))
}

#[test]
fn a_lease_that_nobody_asked_for_is_worked_on_or_released() {
    let mut world = World::new(1, 2);
    assert_eq!(world.does(Input::Found(camera("x"))), [Action::Adopt(camera("x"))]);
    assert_eq!(world.does(Input::Found(camera("x"))), [], "once is enough");
    assert_eq!(released(&world.grant("x", 3)), ["camera/x"], "the file says all that there is to do");
    world.does(Input::Released(camera("x")));
    world.does(assigned(1, 2));
    assert_eq!(world.does(Input::Found(camera("y"))), [Action::Adopt(camera("y"))]);
    assert!(is_start(&world.grant("y", 4)[0], 1, 1));
    assert!(world.machine.is_busy_with(&camera("y")) && !world.machine.is_busy_with(&camera("z")));
}

#[test]
fn the_token_under_which_a_lease_was_won_back_is_told() {
    let mut world = World::speaking(1, 1);
    let won =
        |token: u64| Input::WonBack { resource: camera("a"), token, lease_id: Uuid::from_u128(token.into()) };
    let told = world.does(won(9));
    let is_it = |a: &Assignment| (a.token, a.lease_id) == (9, Uuid::from_u128(9));
    assert!(matches!(&told[..], [Action::Tell { message: ToWorker::Assign(a), .. }] if is_it(a)), "{told:?}");
    let mut plain = World::new(1, 1);
    plain.want(&["a"]);
    plain.grant("a", 7);
    plain.after(31, Input::Tick);
    let told = plain.does(won(9));
    assert!(
        matches!(&told[..], [Action::Stop { worker: 1, .. }]),
        "a plain process is told by a restart: {told:?}"
    );
}

#[test]
fn a_drain_waits_for_those_who_take_over_and_for_nobody_else() {
    let mut world = World::speaking(1, 2);
    world.does(assigned(1, 2));
    world.want(&["a", "b"]);
    world.grant("b", 8);
    assert_eq!(revoked(&world.does(Input::Drain)), None, "another runner takes over");
    let id = revoked(&world.want(&["b"])).expect("nobody takes over a");
    let ended = world.says(1, 1, &format!(r#"{{"type":"drained","id":"{id}"}}"#));
    assert_eq!(released(&ended), ["camera/a"]);
    assert!(revoked(&world.after(14, Input::Tick)).is_some(), "b is released after two thirds of the budget");
}

#[test]
fn what_the_server_assigns_is_asked_for_again_soon() {
    let mut world = World::new(1, 1);
    world.does(assigned(1, 1));
    world.want(&["a"]);
    world.does(Input::NotGranted { resource: camera("a"), retry_after: None });
    assert_eq!(world.machine.due(), Some(at(1)));
}

#[test]
fn a_hand_over_ends_whatever_state_its_worker_is_in() {
    let asked = || asked_for("a", None, 120);
    let held = || {
        let mut world = World::new(1, 1);
        world.want(&["a"]);
        world.grant("a", 1);
        world
    };
    let crash = |world: &mut World, run| world.news(1, run, News::Ended(JobEnd::Exited(1)));

    // Not started yet: it is stopped, and its end is the proof.
    let mut starting = held();
    let actions = starting.does(asked());
    assert!(matches!(&actions[..], [Action::Stop { worker: 1, .. }]), "{actions:?}");
    assert_eq!(released(&starting.news(1, 1, News::Ended(JobEnd::Lost(None)))), ["camera/a"]);

    // Connected, but not ready: it can be asked, and is stopped if it does not answer.
    let mut connected = held();
    connected.news(1, 1, News::Connected);
    assert!(revoked(&connected.does(asked())).is_some());
    assert!(matches!(&connected.after(20, Input::Tick)[..], [Action::Stop { worker: 1, .. }]));
    assert_eq!(released(&connected.news(1, 1, News::Ended(JobEnd::Lost(None)))), ["camera/a"]);

    // Between two runs of a crash loop: nothing is left that works on it.
    let mut looping = held();
    crash(&mut looping, 1);
    crash(&mut looping, 2);
    assert_eq!(released(&looping.does(asked())), ["camera/a"]);
    let later = looping.after(60, Input::Tick);
    assert!(!later.iter().any(|action| is_start(action, 1, 3)), "{later:?}");

    // Being stopped for another reason: its end releases it, once.
    let mut stopping = World::speaking(1, 1);
    let id = revoked(&stopping.want(&[])).expect("asked");
    assert_eq!(stopping.does(asked()), [], "the first question stands");
    stopping.after(20, Input::Tick);
    assert_eq!(released(&stopping.news(1, 1, News::Ended(JobEnd::Lost(None)))), ["camera/a"]);
    let line = json!({"type": "drained", "id": id}).to_string();
    assert_eq!(released(&stopping.says(1, 1, &line)), [""; 0]);
}
