//! The hand-over document, and hand-over of the resource itself (rules 16, 17).

use solehold_core::{command::*, event::EventName, key::*, lease::Resource, outcome::*};

use crate::{Fixture, kit::*};

fn write(claim: Claim, sequence: u64, document: &str) -> Command {
    Command::WriteState { claim, write: StateWrite { sequence, document: text(document) } }
}

/// What one holder wrote is given to the next, even if it was never released.
pub async fn state_goes_to_the_next_holder(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("state");
    let first = bench.grant(ask_for(&job, "ann", SHORT_MS)).await;
    assert_eq!(first.state, None);
    let odd = "{\"track\":\"ü\\u0000\",\n \"n\": 1e3}";
    let Answer::StateWritten(written) = bench.done(write(its(&first), 7, odd)).await else { panic!() };
    bench.pass_until(first.lease.deadline).await;
    let second = bench.grant(ask(&job, "bea")).await;
    let state = second.state.clone().expect("handed over");
    assert_eq!((&state, state.document.as_str()), (&written, odd));
    assert_eq!((state.sequence, state.token), (7, token(&first)));
    is!(bench.refused(write(its(&first), 8, "late")).await, Refusal::Lost { .. });
    // A new token begins a new sequence.
    bench.done(write(its(&second), 1, "mine")).await;
    bench.done(release(its(&second))).await;
    let third = bench.grant(ask(&job, "ann")).await;
    assert_eq!(third.state.expect("handed over").document.as_str(), "mine");
}

/// Under one token a write must bear a higher number than the one before.
pub async fn state_sequence(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("sequence");
    let grant = bench.grant(ask(&job, "ann")).await;
    bench.done(write(its(&grant), 5, "five")).await;
    for stale in [5, 4, 0] {
        let refusal = bench.refused(write(its(&grant), stale, "stale")).await;
        is!(refusal, Refusal::StaleSequence { stored: 5, given } if *given == stale);
    }
    bench.done(write(its(&grant), 6, "six")).await;
    let state = bench.resource(&job).await.and_then(|r| r.state).expect("written");
    assert_eq!((state.sequence, state.document.as_str()), (6, "six"));
}

/// The last word comes with the release, in one commit; a stale one keeps the lease.
pub async fn release_with_final_state(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("last-word");
    let grant = bench.grant(ask(&job, "ann")).await;
    bench.done(write(its(&grant), 2, "before")).await;
    let last = |sequence| {
        let state = Some(StateWrite { sequence, document: text("after") });
        Command::Release { claim: its(&grant), state }
    };
    is!(bench.refused(last(2)).await, Refusal::StaleSequence { .. });
    assert!(bench.lease(&job).await.is_some());
    bench.done(last(3)).await;
    use EventName::{LeaseAcquired, LeaseReleased, StateChanged};
    assert_eq!(bench.names(&job).await, [LeaseAcquired, StateChanged, StateChanged, LeaseReleased]);
    assert_eq!(bench.grant(ask(&job, "bea")).await.state.expect("kept").document.as_str(), "after");
}

/// The holder's release gives the resource to the session that waits for it, in the same commit.
pub async fn activation_on_release(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("planned");
    let first = bench.grant(ask(&job, "ann")).await;
    let next = bench.session("bea", LONG_MS).await;
    let Answer::Offered(pending) = bench.done(hand_over(&job, next.id, LONG_MS)).await else { panic!() };
    assert_eq!(bench.lease(&job).await.expect("held").lease.token, token(&first), "nothing has moved yet");
    is!(bench.refused(renew(by_id("acme", pending.id))).await, Refusal::NoLease(_));
    bench.done(release(its(&first))).await;
    let lease = bench.lease(&job).await.expect("no unowned gap").lease;
    assert_eq!((lease.id, lease.holder.clone()), (pending.id, name("bea")));
    assert!(lease.token > token(&first));
    renewed(bench.run(renew(by_id("acme", pending.id))).await);
    let state = bench.load(Footprint { sessions: vec![next.id], ..Default::default() }).await.state;
    assert_eq!(state.session(next.id).expect("open").lease_count, 1);
    use EventName::{LeaseAcquired, LeasePending, LeaseReleased};
    assert_eq!(bench.names(&job).await, [LeaseAcquired, LeasePending, LeaseReleased, LeaseAcquired]);
}

/// So does its expiry, whichever command notices it.
pub async fn activation_on_expiry(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    for (job, notice) in [(key("swept"), true), (key("asked-for"), false)] {
        let first = bench.grant(ask_for(&job, "ann", SHORT_MS)).await;
        let next = bench.session("bea", LONG_MS).await;
        bench.done(hand_over(&job, next.id, LONG_MS)).await;
        bench.pass_until(first.lease.deadline).await;
        if notice {
            bench.done(Command::Expire { key: job.clone() }).await;
        } else {
            is!(bench.refused(ask(&job, "carl")).await, Refusal::Held { holder, .. } if *holder == name("bea"));
        }
        let lease = bench.lease(&job).await.expect("held").lease;
        assert_eq!((lease.holder, lease.tenure.session()), (name("bea"), Some(next.id)));
    }
}

/// At its deadline a pending lease lapses, and the holder keeps the resource.
pub async fn pending_lapses(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("lapsed");
    let first = bench.grant(ask(&job, "ann")).await;
    let next = bench.session("bea", LONG_MS).await;
    let Answer::Offered(pending) = bench.done(hand_over(&job, next.id, 200)).await else { panic!() };
    bench.pass_until(pending.deadline).await;
    is!(bench.done(Command::Expire { key: job.clone() }).await, Answer::Judged { expired: true });
    let Resource { lease, pending, .. } = bench.resource(&job).await.expect("held");
    assert_eq!((lease.map(|l| l.token), pending), (Some(token(&first)), None));
    bench.done(release(its(&first))).await;
    assert!(bench.lease(&job).await.is_none());
}

/// If the session that waits is dead by then, the resource is free.
pub async fn pending_of_a_dead_session(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("nobody");
    let first = bench.grant(ask(&job, "ann")).await;
    let next = bench.session("bea", SHORT_MS).await;
    bench.done(hand_over(&job, next.id, LONG_MS)).await;
    bench.pass_until(next.deadline).await;
    is!(bench.done(Command::ExpireSession(next.id)).await, Answer::Judged { expired: false });
    bench.done(release(its(&first))).await;
    assert!(bench.resource(&job).await.is_none());
    is!(bench.done(Command::ExpireSession(next.id)).await, Answer::Judged { expired: true });
    let closed = bench.session("carl", LONG_MS).await;
    let held = bench.grant(ask(&job, "ann")).await;
    bench.done(hand_over(&job, closed.id, LONG_MS)).await;
    bench.done(close(closed.id)).await;
    assert_eq!(bench.resource(&job).await.expect("held").pending, None);
    renewed(bench.run(renew(its(&held))).await);
}

/// At most one waits; nobody waits for what it has, or for what nobody holds.
pub async fn at_most_one(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("one");
    let ann = bench.session("ann", LONG_MS).await;
    let bea = bench.session("bea", LONG_MS).await;
    is!(bench.refused(hand_over(&job, bea.id, LONG_MS)).await, Refusal::NoResource(_));
    bench.done(declare(&job, Default::default())).await;
    is!(bench.refused(hand_over(&job, bea.id, LONG_MS)).await, Refusal::Lost { .. });
    bench.grant(ask_on(&job, &ann)).await;
    is!(bench.refused(hand_over(&job, ann.id, LONG_MS)).await, Refusal::AlreadyPending { .. });
    let unknown = SessionId(uuid::Uuid::new_v4());
    is!(bench.refused(hand_over(&job, unknown, LONG_MS)).await, Refusal::NoSession { .. });
    bench.done(hand_over(&job, bea.id, LONG_MS)).await;
    let carl = bench.session("carl", LONG_MS).await;
    let refusal = bench.refused(hand_over(&job, carl.id, LONG_MS)).await;
    is!(refusal, Refusal::AlreadyPending { holder } if *holder == name("bea"));
}

/// The move budget counts what is pending in the store, of one kind, also within one batch.
pub async fn the_move_budget(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let ann = bench.session("ann", LONG_MS).await;
    let bea = bench.session("bea", LONG_MS).await;
    let jobs = ["m1", "m2", "m3", "m4"].map(key);
    for job in &jobs {
        bench.grant(ask_on(job, &ann)).await;
    }
    let within_two = |job: &ResourceKey| match hand_over(job, bea.id, LONG_MS) {
        Command::HandOver(ask) => Command::HandOver(HandOver { budget: Some(2), ..ask }),
        other => other,
    };
    bench.done(within_two(&jobs[0])).await;
    let outcomes = bench.all(vec![within_two(&jobs[1]), within_two(&jobs[2])]).await;
    assert!(outcomes[0].is_ok(), "{outcomes:?}");
    is!(outcomes[1].as_ref().expect_err("one too many"), Refusal::OverBudget { budget: 2, .. });
    let other = ResourceKey { kind: name("other"), ..key("m5") };
    bench.grant(ask_on(&other, &ann)).await;
    bench.done(within_two(&other)).await;
    // In one batch: a release makes room for the next.
    let outcomes = bench.all(vec![release(by_session(&jobs[0], ann.id)), within_two(&jobs[3])]).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    is!(bench.refused(within_two(&jobs[2])).await, Refusal::OverBudget { .. });
}

/// A hand-over that is called off leaves the resource where it is, and the budget as it was.
pub async fn called_off(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("called-off");
    let first = bench.grant(ask(&job, "ann")).await;
    let next = bench.session("bea", LONG_MS).await;
    let Answer::Offered(pending) = bench.done(hand_over(&job, next.id, LONG_MS)).await else { panic!() };
    bench.done(release(by_id("acme", pending.id))).await;
    is!(bench.refused(release(by_id("acme", pending.id))).await, Refusal::NoLease(_));
    let Resource { lease, pending, .. } = bench.resource(&job).await.expect("held");
    assert_eq!((lease.map(|l| l.token), pending), (Some(token(&first)), None));
    use EventName::{LeaseAcquired, LeasePending, LeaseReleased};
    assert_eq!(bench.names(&job).await, [LeaseAcquired, LeasePending, LeaseReleased]);
}
