//! Commands of one batch are decided one after another at one moment, each upon what the former ones did.

use solehold_core::{Decisions, command::Command, decide_all, event::Event, key::LeaseId};

use crate::common::{Proof, World, key, on};

#[test]
fn of_two_acquires_of_one_resource_in_one_batch_the_first_wins() {
    let mut w = World::new();
    w.acquire("ann", "lobby").says("granted #1 for 10000 ms", "lease_acquired");
    w.acquire("bob", "lobby")
        .says("refused: held by ann with token 1, for another 10000 ms unless it is renewed", "");
}

#[test]
fn release_and_acquire_of_one_resource_in_one_batch_pass_it_on() {
    let mut w = World::new();
    w.acquire("ann", "lobby");
    w.release(on("lobby").token(1)).says("released", "lease_released");
    w.acquire("bob", "lobby").says("granted #3 for 10000 ms", "lease_acquired");
    w.release(on("lobby").token(1))
        .says("refused: the lease is not active; the resource's last token is 3", "");
}

#[test]
fn a_heartbeat_decides_against_an_expiry_by_which_of_them_came_first() {
    let mut w = World::new();
    let ann = w.opens("ann");
    w.acquire_in(ann, "ann", "lobby");
    w.wait(9_999);
    w.heartbeat(ann).says("session of ann for 10000 ms", "");
    w.expire("lobby").says("judged, expired: false", "");
    w.wait(10_000);
    w.expire("lobby").says("judged, expired: true", "lease_expired");
    w.heartbeat(ann).says("refused: session ~1 has expired; open a new session", "");
}

#[test]
fn a_request_twice_in_one_batch_is_one_grant() {
    let mut w = World::new();
    w.request("ann", "lobby", "r1").says("granted #1 for 10000 ms", "lease_acquired");
    w.request("ann", "lobby", "r1").says("granted again #1 for 10000 ms", "");
}

#[test]
fn a_batch_is_decided_one_after_the_other_on_the_same_ledger() {
    let mut w = World::new();
    let asks = [w.asks("ann", "lobby"), w.asks("bob", "lobby"), w.asks("bob", "hall")].map(Command::Acquire);
    let decisions = decide_all(&mut w.state, &asks.map(Into::into), w.moment).expect("all is here");
    assert_eq!(decisions.outcomes.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    let events: Vec<_> =
        decisions.events().map(|e| (e.revision.0, e.name().to_string(), e.key.clone())).collect();
    let acquired = |revision, what| (revision, "lease_acquired".to_owned(), key(what));
    assert_eq!(events, [acquired(1, "lobby"), acquired(2, "hall")]);
    assert_eq!((decisions.changes.len(), decisions.moment.revision.0), (2, 2));
    assert_eq!(w.lease_on("hall"), events_lease(&decisions, 1));
}

fn events_lease(decisions: &Decisions, at: usize) -> LeaseId {
    decisions.events().nth(at).and_then(Event::lease).expect("an event of a lease")
}
