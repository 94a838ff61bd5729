//! Sweeping: the store nominates exactly the expired leases and sessions, and a mass expiry is swept in bounded steps
//! (rule 11).

use std::time::Duration;

use solehold_core::{command::*, event::EventName, key::*, lease::*, outcome::*, time::*};
use solehold_testkit::wait_for;

use crate::{Fixture, kit::*};
use solehold_engine::store::{Nominations, Retention};

const KEEP: Retention = Retention { events_ms: 1_000_000_000, events_max: 1_000_000, unsent_after: None };

impl Bench<'_> {
    async fn due(&self, limit: usize) -> Nominations {
        self.store.due(limit).await.expect("the store reads")
    }

    /// Sweeps until nothing is due; tells what was nominated.
    async fn sweep(&self) -> Vec<Command> {
        let mut nominated = Vec::new();
        loop {
            assert!(nominated.len() < 10_000, "nominates the same again and again: {:?}", nominated.last());
            let due = self.due(1_000).await.commands;
            if due.is_empty() {
                return nominated;
            }
            self.all(due.clone()).await;
            nominated.extend(due);
        }
    }
}

fn expire(name: &str) -> Command {
    Command::Expire { key: key(name) }
}

/// Nothing is nominated before its time, everything is at its time, renewed ones are not.
pub async fn due_is_exact(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    assert!(bench.due(10).await.commands.is_empty());
    let first = bench.grant(ask_for(&key("first"), "ann", SHORT_MS)).await;
    let kept = bench.grant(ask_for(&key("kept"), "ann", SHORT_MS)).await;
    bench.grant(ask(&key("long"), "ann")).await;
    bench.done(release(its(&bench.grant(ask_for(&key("gone"), "ann", SHORT_MS)).await))).await;
    let longer = Command::Renew { claim: its(&kept), ttl_ms: Some(LONG_MS), stats: None };
    renewed(bench.run(longer).await);
    let due = bench.due(10).await;
    assert!(due.commands.is_empty() || bench.now().await >= first.lease.deadline, "{:?}", due.commands);
    bench.pass_until(first.lease.deadline).await;
    let due = bench.due(10).await;
    assert_eq!(due.commands, [expire("first")]);
    assert!(bench.now().await.ms_after(first.lease.deadline) >= due.lag_ms);
    is!(bench.all(due.commands).await[0], Ok(Answer::Judged { expired: true }));
    assert!(bench.due(10).await.commands.is_empty());
    assert_eq!(bench.names(&key("first")).await, [EventName::LeaseAcquired, EventName::LeaseExpired]);
}

/// Pending leases are nominated at their own deadline, and when the present holder's time runs out.
pub async fn due_pendings(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let next = bench.session("next", LONG_MS).await;
    let held = bench.grant(ask(&key("lapses"), "ann")).await;
    let Answer::Offered(pending) = bench.done(hand_over(&key("lapses"), next.id, 300)).await else {
        panic!()
    };
    let ends = bench.grant(ask_for(&key("ends"), "ann", SHORT_MS)).await;
    bench.done(hand_over(&key("ends"), next.id, LONG_MS)).await;
    bench.pass_until(pending.deadline).await;
    let first = bench.due(10).await.commands;
    assert!(first.contains(&expire("lapses")), "{first:?}");
    bench.all(first).await;
    bench.pass_until(ends.lease.deadline).await;
    bench.sweep().await;
    let lease = bench.lease(&key("ends")).await.expect("activated").lease;
    assert_eq!((lease.holder, lease.tenure), (name("next"), Tenure::Session(next.id)));
    assert_eq!(bench.lease(&key("lapses")).await.expect("kept").lease.token, token(&held));
    assert!(bench.due(10).await.commands.is_empty());
}

/// A dead session is nominated with all leases attached to it, and is gone when they are judged.
pub async fn due_sessions(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let dead = bench.session("dead", SHORT_MS).await;
    let live = bench.session("live", LONG_MS).await;
    let empty = bench.session("empty", SHORT_MS).await;
    let mut commands = Vec::new();
    for n in 0..5 {
        commands.push(ask_on(&key(&format!("dead-{n}")), &dead).command());
        commands.push(ask_on(&key(&format!("live-{n}")), &live).command());
    }
    bench.all(commands).await;
    bench.pass_until(dead.deadline.max(empty.deadline)).await;
    let nominated = bench.sweep().await;
    for n in 0..5 {
        assert!(nominated.contains(&expire(&format!("dead-{n}"))));
        assert!(!nominated.contains(&expire(&format!("live-{n}"))));
        assert!(bench.resource(&key(&format!("dead-{n}"))).await.is_none());
        assert!(bench.lease(&key(&format!("live-{n}"))).await.is_some());
    }
    let sessions = vec![dead.id, live.id, empty.id];
    let holders = vec![holder("dead"), holder("live")];
    let state = bench.load(Footprint { sessions, holders, ..Default::default() }).await.state;
    assert!(state.session(dead.id).is_none() && state.session(empty.id).is_none());
    assert!(state.holder(&holder("dead")).is_none(), "it did not register");
    assert!(state.session(live.id).is_some() && state.holder(&holder("live")).is_some());
}

/// Five thousand leases on one session that dies: no step nominates more than it may.
pub async fn mass_expiry_in_bounded_steps(fixture: &dyn Fixture) {
    const LEASES: usize = 5_000;
    const STEP: usize = 400;
    let bench = Bench::new(fixture).await;
    // Long enough that a slow store can hang five thousand leases on it.
    let session = bench.session("ann", 10_000).await;
    for chunk in Vec::from_iter(0..LEASES).chunks(1_000) {
        let asks = chunk.iter().map(|n| ask_on(&key(&format!("job-{n:04}")), &session).command()).collect();
        assert!(bench.all(asks).await.iter().all(Result::is_ok));
    }
    bench.pass_until(session.deadline).await;
    let mut judged = 0;
    let mut steps = 0;
    loop {
        let due = bench.due(STEP).await;
        assert!(due.commands.len() <= STEP, "{} in one step", due.commands.len());
        if due.commands.is_empty() {
            break;
        }
        let outcomes = bench.all(due.commands).await;
        judged += outcomes.iter().filter(|o| matches!(o, Ok(Answer::Judged { expired: true }))).count();
        steps += 1;
        assert!(steps <= 4 * LEASES / STEP, "nominates the same again and again: {judged} judged so far");
    }
    assert_eq!(judged, LEASES + 1, "all leases and the session");
    let state = bench.load(Footprint { sessions: vec![session.id], ..Default::default() }).await.state;
    assert!(state.session(session.id).is_none());
    assert_eq!(bench.store.usage(None).await.expect("reads").resources, 0);
}

/// An engine sweeps by itself.
pub async fn engine_sweeps(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let engine = bench.engine();
    let session = bench.session("ann", SHORT_MS).await;
    bench.grant(ask_on(&key("hangs"), &session)).await;
    let own = bench.grant(ask_for(&key("own"), "bea", SHORT_MS)).await;
    bench.pass_until(own.lease.deadline.max(session.deadline)).await;
    let swept = wait_for("the sweeper", Duration::from_secs(30), || async {
        let footprint = Footprint { sessions: vec![session.id], ..Default::default() };
        let loaded = engine.load(&footprint).await.expect("the store reads");
        loaded.state.session(session.id).is_none() && bench.resource(&key("own")).await.is_none()
    });
    swept.await.expect("swept");
    assert_eq!(bench.names(&key("hangs")).await, [EventName::LeaseAcquired, EventName::LeaseExpired]);
    engine.stop().await;
}

/// What is over is forgotten: rows without meaning, once nothing is held back.
pub async fn maintain_forgets(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("forgotten");
    let grant = bench.grant(ask_for(&job, "ann", SHORT_MS)).await;
    bench.done(revoke(its(&grant), false)).await;
    bench.store.maintain(&KEEP).await.expect("maintains");
    assert!(bench.resource(&job).await.is_some() || bench.now().await >= grant.lease.deadline, "held back");
    bench.pass_until(grant.lease.deadline.plus_ms(1_100)).await;
    let gone = wait_for("the row to be forgotten", Duration::from_secs(30), || async {
        bench.store.maintain(&KEEP).await.expect("maintains");
        bench.resource(&job).await.is_none()
    });
    gone.await.expect("forgotten");
    assert_eq!(bench.store.usage(None).await.expect("reads").resources, 0);
}

/// A resource that is held back for its lock-delay goes to the session that waits for it when that is over.
pub async fn hold_back_ends_in_activation(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let own = key("own");
    let hangs = key("hangs");
    let delayed = || Declaration { lock_delay_ms: 400, ..Default::default() };
    bench.all(vec![declare(&own, delayed()), declare(&hangs, delayed())]).await;
    let next = bench.session("next", LONG_MS).await;
    let session = bench.session("ann", SHORT_MS).await;
    bench.grant(ask_on(&hangs, &session)).await;
    bench.done(hand_over(&hangs, next.id, LONG_MS)).await;
    let grant = bench.grant(ask_for(&own, "bea", SHORT_MS)).await;
    bench.done(hand_over(&own, next.id, LONG_MS)).await;
    let last: StoreTime = grant.lease.deadline.max(session.deadline).plus_ms(400);
    bench.pass_until(last).await;
    let activated = wait_for("activation", Duration::from_secs(30), || async {
        bench.sweep().await;
        let holder_of = async |key: &ResourceKey| bench.lease(key).await.map(|l| l.lease.holder);
        holder_of(&own).await == Some(name("next")) && holder_of(&hangs).await == Some(name("next"))
    });
    activated.await.expect("activated");
    let state = bench.load(Footprint { sessions: vec![session.id], ..Default::default() }).await.state;
    assert!(state.session(session.id).is_none(), "the dead session is gone, too");
}
