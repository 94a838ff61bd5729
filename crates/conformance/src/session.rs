//! Sessions: one heartbeat keeps all leases attached to one.

use std::sync::Arc;

use solehold_core::{
    command::*,
    event::EventName,
    key::*,
    lease::LeaseStatus,
    outcome::*,
    session::{Holder, HolderStatus, Session, Standing},
};
use solehold_engine::{Engine, EngineOptions};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::{Fixture, kit::*};

fn session_of(answer: Answer) -> Session {
    match answer {
        Answer::Session(view) => view.session,
        other => panic!("{other:?}"),
    }
}

fn reopen(holder_name: &str, replace: Option<SessionId>, fenced: bool) -> Command {
    Command::OpenSession(OpenSession {
        id: SessionId(Uuid::new_v4()),
        holder: holder(holder_name),
        ttl_ms: LONG_MS,
        replace,
        fenced,
        follows: None,
        registration: None,
        metrics: None,
    })
}

async fn hundred(bench: &Bench<'_>, session: &Session) -> Vec<Grant> {
    let asks = (0..100).map(|n| ask_on(&key(&format!("job-{n:03}")), session).command()).collect();
    bench.all(asks).await.into_iter().map(granted).collect()
}

/// One heartbeat moves the deadline of a hundred leases; none of them is written.
pub async fn heartbeat_keeps_a_hundred_leases(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    // Long enough for a hundred looks at a busy store.
    let session = bench.session("ann", LONG_MS).await;
    let grants = hundred(&bench, &session).await;
    bench.pass_until(session.opened_at.plus_ms(LONG_MS / 2)).await;
    let kept = session_of(bench.done(heartbeat(session.id)).await);
    assert!(kept.deadline > session.deadline);
    assert_eq!(kept.lease_count, 100);
    assert_eq!(kept.lease_revision, grants.iter().map(|g| g.revision).max().expect("a hundred"));
    bench.pass_until(session.deadline).await;
    for grant in &grants {
        let view = bench.lease(&grant.lease.key).await.expect("held");
        assert_eq!((view.status, view.deadline), (LeaseStatus::Active, kept.deadline));
        assert_eq!(view.renewed_at, Some(kept.renewed_at));
    }
    // Renewing one lease renews its session, and with it all others (rule 9).
    let one = renewed(bench.run(renew(its(&grants[0]))).await);
    let other = bench.lease(&grants[99].lease.key).await.expect("held");
    assert_eq!(one.lease.deadline, other.deadline);
    assert!(other.deadline > kept.deadline);
}

/// Closing a session releases all leases attached to it.
pub async fn close_releases_all(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let session = bench.session("ann", LONG_MS).await;
    let grants = hundred(&bench, &session).await;
    is!(bench.done(close(session.id)).await, Answer::Closed { released: 100 });
    for grant in &grants {
        assert!(bench.resource(&grant.lease.key).await.is_none());
    }
    is!(bench.refused(heartbeat(session.id)).await, Refusal::NoSession { .. });
    is!(bench.refused(close(session.id)).await, Refusal::NoSession { .. });
    let next = bench.session("bea", LONG_MS).await;
    let again = bench.grant(ask_on(&grants[0].lease.key, &next)).await;
    assert!(token(&again) > token(&grants[99]));
}

/// A holder that comes back is a new session; the former one may do nothing, and what hangs there runs out (rule 13).
pub async fn supersede(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("superseded");
    let old = bench.session("ann", SHORT_MS).await;
    let grant = bench.grant(ask_on(&job, &old)).await;
    let new = bench.session("ann", LONG_MS).await;
    is!(bench.refused(heartbeat(old.id)).await, Refusal::NoSession { .. });
    is!(bench.refused(renew(its(&grant))).await, Refusal::NoSession { .. });
    is!(bench.refused(ask_on(&key("more"), &old)).await, Refusal::NoSession { .. });
    is!(bench.refused(ask_on(&job, &new)).await, Refusal::Held { .. });
    let sessions = vec![old.id, new.id];
    let state = bench.load(Footprint { sessions, ..Default::default() }).await.state;
    assert_eq!(state.session(old.id).map(|s| s.standing), Some(Standing::Superseded));
    assert_eq!(state.session(new.id).map(|s| s.standing), Some(Standing::Current));
    bench.pass_until(old.deadline).await;
    let next = bench.grant(ask_on(&job, &new)).await;
    assert!(token(&next) > token(&grant));
}

/// The former session can be closed at once: what it held is held back until its deadline (rules 12, 13).
pub async fn replace(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("replaced");
    let old = bench.session("ann", SHORT_MS).await;
    let grant = bench.grant(ask_on(&job, &old)).await;
    let stranger = reopen("bea", Some(old.id), false);
    is!(bench.refused(stranger).await, Refusal::NotYourSession { .. });
    let new = session_of(bench.done(reopen("ann", Some(old.id), false)).await);
    assert_eq!(bench.names(&job).await, [EventName::LeaseAcquired, EventName::LeaseRevoked]);
    is!(bench.refused(ask_on(&job, &new)).await, Refusal::HeldBack { token: t, .. } if *t == token(&grant));
    is!(bench.refused(heartbeat(old.id)).await, Refusal::NoSession { .. });
    bench.pass_until(old.deadline).await;
    assert!(token(&bench.grant(ask_on(&job, &new)).await) > token(&grant));
}

/// A caller that says that the former one is fenced off need not wait.
pub async fn replace_fenced(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("fenced");
    let old = bench.session("ann", LONG_MS).await;
    bench.grant(ask_on(&job, &old)).await;
    let new = session_of(bench.done(reopen("ann", Some(old.id), true)).await);
    bench.grant(ask_on(&job, &new)).await;
}

/// A session holds as many leases as it said that it can.
pub async fn capacity(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let session = session_of(bench.done(register("ann", LONG_MS, Some(2))).await);
    let asks = ["a", "b", "c"].map(|n| ask_on(&key(n), &session).command()).to_vec();
    let outcomes = bench.all(asks).await;
    assert!(outcomes[0].is_ok() && outcomes[1].is_ok());
    is!(outcomes[2], Err(Refusal::AtCapacity { capacity: 2, .. }));
    bench.done(release(by_session(&key("a"), session.id))).await;
    bench.grant(ask_on(&key("c"), &session)).await;
}

/// Of ten who ask at once in one holder's name, with no session, as many are granted as it may hold; what has expired
/// does not count.
pub async fn capacity_by_name(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let engine = Engine::start(bench.store.clone(), EngineOptions::default(), Arc::new(()));
    let short = bench.grant(ask_for(&key("short"), "ann", SHORT_MS)).await;
    let by_name = |n: &str| Acquire { holds_at_most: Some(3), ..ask(&key(n), "ann") };
    let other = Acquire { key: ResourceKey { tenant: name("other"), ..key("theirs") }, ..by_name("theirs") };
    granted(bench.run(other).await);
    bench.pass_until(short.lease.deadline).await;
    let mut all = JoinSet::new();
    for n in 0..10 {
        let engine = engine.clone();
        let ask = by_name(&format!("job-{n}"));
        all.spawn(async move { engine.submit(Command::Acquire(ask)).await.expect("answered") });
    }
    let outcomes = all.join_all().await;
    let refused = |outcome: &&Outcome| matches!(outcome, Err(Refusal::HolderAtCapacity { holder, capacity: 3 }) if holder.as_str() == "ann");
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 3, "{outcomes:?}");
    assert_eq!(outcomes.iter().filter(refused).count(), 7, "{outcomes:?}");
    let held = outcomes.into_iter().find_map(Result::ok).expect("three");
    let Answer::Granted(held) = held else { panic!("{held:?}") };
    bench.done(release(its(&held))).await;
    granted(bench.run(by_name("one-more")).await);
    is!(bench.refused(by_name("too-many")).await, Refusal::HolderAtCapacity { .. });
    engine.stop().await;
}

/// A draining holder keeps what it has and takes nothing more; one that comes back has done its draining, and what its
/// former self asks for late changes nothing. Draining itself ends no maintenance.
pub async fn draining(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let session = session_of(bench.done(register("ann", LONG_MS, None)).await);
    let kept = bench.grant(ask_on(&key("kept"), &session)).await;
    let status = |status| Command::SetStatus { holder: holder("ann"), status, by: StatusBy::Operator };
    let drains = |session: &Session| {
        let by = StatusBy::Itself(Some(session.id));
        Command::SetStatus { holder: holder("ann"), status: HolderStatus::Draining, by }
    };
    bench.done(drains(&session)).await;
    is!(bench.refused(ask_on(&key("more"), &session)).await, Refusal::Draining(_));
    renewed(bench.run(renew(its(&kept))).await);
    let next = session_of(bench.done(register("ann", LONG_MS, None)).await);
    is!(bench.refused(drains(&session)).await, Refusal::NoSession { .. });
    bench.grant(ask_on(&key("more"), &next)).await;
    bench.done(status(HolderStatus::Maintenance)).await;
    is!(bench.done(drains(&next)).await, Answer::Holder(Holder { status: HolderStatus::Maintenance, .. }));
    let after = session_of(bench.done(register("ann", LONG_MS, None)).await);
    is!(bench.refused(ask_on(&key("third"), &after)).await, Refusal::Draining(_));
    bench.done(status(HolderStatus::Active)).await;
    bench.grant(ask_on(&key("third"), &after)).await;
    let bea = holder("bea");
    let by = StatusBy::Operator;
    let unknown = Command::SetStatus { holder: bea, status: HolderStatus::Active, by };
    is!(bench.refused(unknown).await, Refusal::NoHolder(_));
}

/// Removing a holder releases what is attached to its session, if it is named; otherwise all of it is held back.
pub async fn remove_holder(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let session = session_of(bench.done(register("ann", LONG_MS, None)).await);
    hundred(&bench, &session).await;
    let remove = |who: &str, session| Command::RemoveHolder { holder: holder(who), session };
    let removed = bench.done(remove("ann", Some(session.id))).await;
    is!(removed, Answer::HolderRemoved { released: 100, revoked: 0 });
    let footprint =
        Footprint { sessions: vec![session.id], holders: vec![holder("ann")], ..Default::default() };
    let state = bench.load(footprint).await.state;
    assert!(state.session(session.id).is_none() && state.holder(&holder("ann")).is_none());
    assert!(bench.resource(&key("job-042")).await.is_none());
    is!(bench.refused(remove("ann", None)).await, Refusal::NoHolder(_));

    let session = session_of(bench.done(register("bea", LONG_MS, None)).await);
    hundred(&bench, &session).await;
    is!(bench.done(remove("bea", None)).await, Answer::HolderRemoved { released: 0, revoked: 100 });
    is!(bench.refused(ask(&key("job-042"), "ann")).await, Refusal::HeldBack { .. });
}

/// A heartbeat by name updates the registry only (rule 6).
pub async fn heard_of_by_name(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let session = session_of(bench.done(register("ann", LONG_MS, None)).await);
    let heard = Command::HeardOf { holder: holder("ann"), metrics: Some(text("{\"load\":1}")) };
    bench.done(heard).await;
    let footprint =
        Footprint { sessions: vec![session.id], holders: vec![holder("ann")], ..Default::default() };
    let state = bench.load(footprint).await.state;
    assert_eq!(state.holder(&holder("ann")).expect("registered").metrics, text("{\"load\":1}"));
    assert_eq!(state.session(session.id).expect("live").deadline, session.deadline);
    let stranger = Command::HeardOf { holder: holder("bea"), metrics: None };
    is!(bench.refused(stranger).await, Refusal::NoHolder(_));
}

/// A holder restarted under the same name cannot renew its former lease by token, lease id or session.
pub async fn restarted_holder_renews_nothing(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("former");
    let old = bench.session("ann", LONG_MS).await;
    let grant = bench.grant(ask_on(&job, &old)).await;
    let new = bench.session("ann", LONG_MS).await;
    for claim in
        [its(&grant), by_id("acme", grant.lease.lease.id), by_session(&job, old.id), by_holder(&job, "ann")]
    {
        is!(bench.refused(renew(claim)).await, Refusal::NoSession { .. });
    }
    is!(bench.refused(renew(by_session(&job, new.id))).await, Refusal::NotYours { .. });
    is!(bench.refused(heartbeat(old.id)).await, Refusal::NoSession { .. });
}
