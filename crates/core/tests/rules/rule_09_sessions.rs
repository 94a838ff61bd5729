//! Rule 9: a session lease has no deadline of its own; renewing the lease renews its session.

use solehold_core::{
    command::{Acquire, Command, OpenSession, Registration},
    event::Change,
    key::{Document, SessionId},
};

use crate::common::{Proof, TENANT, TTL_MS, World, holder, key, name, on};

#[test]
fn one_heartbeat_keeps_everything_that_hangs_on_a_session_and_changes_one_row() {
    let mut w = World::new();
    let ann = w.opens("ann");
    for what in ["lobby", "hall", "yard"] {
        w.acquire_in(ann, "ann", what);
    }
    w.wait(9_000);
    let command = Command::Heartbeat { tenant: name(TENANT), session: ann, holder: None, metrics: None };
    let decision = w.run(&command);
    assert!(matches!(decision.changes[..], [Change::SessionRenewed { id, .. }] if id == ann));
    w.wait(9_000);
    for what in ["lobby", "hall", "yard"] {
        w.acquire("bob", what).outcome.contains("held by ann").then_some(()).expect("ann holds it");
    }
}

#[test]
fn a_grant_gives_the_sessions_time_left() {
    let mut w = World::new();
    let ann = w.opens("ann");
    w.wait(4_000);
    w.acquire_in(ann, "ann", "lobby").says("granted #1 for 6000 ms", "lease_acquired");
}

#[test]
fn renewing_one_lease_renews_its_session_and_so_the_others() {
    let mut w = World::new();
    let ann = w.opens("ann");
    w.acquire_in(ann, "ann", "lobby");
    w.acquire_in(ann, "ann", "hall");
    w.wait(9_000);
    w.renew(on("lobby").token(1)).says("renewed #1 for 10000 ms", "");
    w.wait(9_000);
    w.renew(on("hall").token(2)).says("renewed #2 for 10000 ms", "");
}

#[test]
fn closing_a_session_releases_what_hangs_on_it_and_counts_no_more_than_that() {
    let mut w = World::new();
    let ann = w.opens("ann");
    let bob = w.opens("bob");
    w.acquire_in(ann, "ann", "lobby");
    w.acquire_in(bob, "bob", "hall");
    w.hand_over("hall", ann).says("offered to ann", "lease_pending");
    w.close(ann).says("closed, 1 released", "lease_expired lease_released");
    w.acquire("bob", "lobby").says("granted #6 for 10000 ms", "lease_acquired");
    w.heartbeat(ann).says("refused: session ~1 does not exist or has ended; open a new session", "");
}

#[test]
fn a_session_holds_no_more_than_its_holder_said_that_it_can() {
    let mut w = World::new();
    let ann = SessionId(w.fresh());
    w.told(Command::OpenSession(OpenSession {
        id: ann,
        holder: holder("ann"),
        ttl_ms: TTL_MS,
        replace: None,
        fenced: false,
        follows: None,
        registration: Some(Registration { site: None, capacity: Some(1), attributes: Document::default() }),
        metrics: None,
    }))
    .says("session of ann for 10000 ms", "");
    w.acquire_in(ann, "ann", "lobby").says("granted #1 for 10000 ms", "lease_acquired");
    w.acquire_in(ann, "ann", "hall").says("refused: session ~1 is at its capacity of 1 leases", "");
    w.release(on("lobby").session(ann)).says("released", "lease_released");
    w.acquire_in(ann, "ann", "hall").says("granted #3 for 10000 ms", "lease_acquired");
}

#[test]
fn a_holder_takes_no_more_by_name_than_it_may_hold_in_whatever_session() {
    let mut w = World::new();
    let ann = w.opens("ann");
    w.acquire_in(ann, "ann", "lobby").says("granted #1 for 10000 ms", "lease_acquired");
    let by_name = |w: &mut World, who: &str, what: &str| {
        let ask = Acquire { holds_at_most: Some(2), ..w.asks(who, what) };
        w.told(Command::Acquire(ask))
    };
    by_name(&mut w, "ann", "hall").says("granted #2 for 10000 ms", "lease_acquired");
    by_name(&mut w, "ann", "yard").says("refused: holder ann is at its capacity of 2 leases", "");
    by_name(&mut w, "bob", "yard").says("granted #3 for 10000 ms", "lease_acquired");
    w.wait(9_999);
    w.renew(on("hall").token(2)).says("renewed #2 for 10000 ms", "");
    by_name(&mut w, "ann", "roof").says("refused: holder ann is at its capacity of 2 leases", "");
    w.wait(1);
    by_name(&mut w, "ann", "roof").says("granted #4 for 10000 ms", "lease_acquired");
    assert!(w.state.resource(&key("lobby")).is_some_and(|r| r.lease.is_some()), "nobody swept the dead one");
}

#[test]
fn the_revision_of_a_sessions_lease_set_is_that_of_its_last_change() {
    let mut w = World::new();
    let ann = w.opens("ann");
    let set = |w: &World| {
        let session = w.state.session(ann).expect("it is open");
        (session.lease_count, session.lease_revision.0)
    };
    assert_eq!(set(&w), (0, 0));
    w.acquire_in(ann, "ann", "lobby");
    assert_eq!(set(&w), (1, 1));
    w.heartbeat(ann);
    assert_eq!(set(&w), (1, 1));
    w.release(on("lobby").session(ann));
    assert_eq!(set(&w), (0, 2));
}

#[test]
fn a_heartbeat_that_names_a_holder_must_name_the_sessions_own() {
    let mut w = World::new();
    let ann = w.opens("ann");
    let mut named = |who: &str| {
        let tenant = name(TENANT);
        let holder = Some(name(who));
        w.told(Command::Heartbeat { tenant, session: ann, holder, metrics: None })
    };
    named("ann").says("session of ann for 10000 ms", "");
    named("bob").says("refused: session ~1 does not belong to bob", "");
}

#[test]
fn a_holder_that_never_registered_is_forgotten_with_its_session() {
    let mut w = World::new();
    let registered = w.opens("ann");
    let passing = SessionId(w.fresh());
    w.told(Command::OpenSession(OpenSession {
        id: passing,
        holder: holder("bob"),
        ttl_ms: TTL_MS,
        replace: None,
        fenced: false,
        follows: None,
        registration: None,
        metrics: None,
    }));
    w.close(registered);
    w.close(passing);
    let known: Vec<_> = w.state.holders().map(|h| (h.key.name.as_str(), h.session)).collect();
    assert_eq!(known, [("ann", None)]);
}
