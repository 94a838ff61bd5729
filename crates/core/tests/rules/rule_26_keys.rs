//! Rule 26: what a key opened or took belongs to it.

use solehold_core::{
    call::{Actor, ResourceScope},
    command::{Acquire, Command, Wait},
    event::{Change, Event},
};

use crate::common::{Proof, World, holder, key, lease, name, on};

fn by(id: &str) -> Actor {
    Actor::Key { id: name(id), scopes: Default::default() }
}

fn only(id: &str, key_prefix: &str) -> Actor {
    let scope = ResourceScope { kind: key("any").kind, key_prefix: key_prefix.to_owned() };
    Actor::Key { id: name(id), scopes: [scope].into() }
}

fn belongs(what: &str) -> String {
    format!("refused: the {what} belongs to key one; use that key, or an admin key")
}

/// The keys that the events of a command name.
fn named(w: &mut World, command: Command) -> Vec<Option<String>> {
    let event = |change: &Change| match change {
        Change::Event(Event { by, .. }) => Some(by.as_ref().map(ToString::to_string)),
        _ => None,
    };
    w.run(&command).changes.iter().filter_map(event).collect()
}

#[test]
fn a_lease_taken_by_name_belongs_to_the_key_that_took_it() {
    let mut w = World::new();
    w.declare("lobby", 0);
    w.by = by("one");
    w.acquire("ann", "lobby").says("granted #2 for 10000 ms", "lease_acquired");
    let id = w.lease_on("lobby");
    w.by = by("two");
    let before = w.state.clone();
    for proof in [on("lobby").holder("ann"), on("lobby").token(2), lease(id)] {
        w.renew(proof.clone()).says(&belongs("lease"), "");
        w.release(proof.clone()).says(&belongs("lease"), "");
        w.revoke(proof.clone()).says(&belongs("lease"), "");
    }
    w.write(on("lobby").token(2), 1, "{}").says(&belongs("lease"), "");
    w.delete_by_force("lobby", true).says(&belongs("lease"), "");
    assert_eq!(w.state, before);
    w.by = Actor::Admin(name("root"));
    w.renew(on("lobby").holder("ann")).says("renewed #2 for 10000 ms", "");
    w.by = by("one");
    w.release(on("lobby").holder("ann")).says("released", "lease_released");
}

#[test]
fn what_was_taken_without_a_key_is_everyones() {
    let mut w = World::new();
    w.acquire("ann", "lobby");
    w.by = by("two");
    w.release(on("lobby").holder("ann")).says("released", "lease_released");
}

#[test]
fn a_session_belongs_to_the_key_that_opened_it() {
    let mut w = World::new();
    w.by = by("one");
    let ann = w.opens("ann");
    w.acquire_in(ann, "ann", "lobby").says("granted #1 for 10000 ms", "lease_acquired");
    w.by = by("two");
    let before = w.state.clone();
    w.heartbeat(ann).says(&belongs("session"), "");
    w.close(ann).says(&belongs("session"), "");
    w.acquire_in(ann, "ann", "hall").says(&belongs("session"), "");
    for replace in [None, Some(ann)] {
        w.replaces("ann", replace, true).1.says(&belongs("holder"), "");
    }
    assert_eq!(w.state, before);
    // Once it is over, the name is free.
    w.wait(10_000);
    w.replaces("ann", Some(ann), false).1.says("session of ann for 10000 ms", "lease_expired");
}

#[test]
fn a_holder_that_works_by_another_key_is_not_removed() {
    let mut w = World::new();
    w.by = by("one");
    w.opens_with_capacity("ann", 2);
    w.by = by("two");
    let before = w.state.clone();
    w.removes("ann").says(&belongs("holder"), "");
    w.told(Command::HeardOf { holder: holder("ann"), metrics: None }).says(&belongs("holder"), "");
    assert_eq!(w.state, before);
    w.wait(10_000);
    w.removes("ann").says("removed, 0 released, 0 revoked", "");
}

#[test]
fn a_request_of_another_key_is_neither_repeated_nor_cancelled() {
    let mut w = World::new();
    w.by = by("one");
    w.request("ann", "lobby", "r1").says("granted #1 for 10000 ms", "lease_acquired");
    w.by = by("two");
    w.request("ann", "lobby", "r1")
        .says("refused: held by ann with token 1, for another 10000 ms unless it is renewed", "");
    w.cancel("ann", "lobby", "r1").says(&belongs("lease"), "");
    w.by = by("one");
    w.request("ann", "lobby", "r1").says("granted again #1 for 10000 ms", "");
    w.cancel("ann", "lobby", "r1").says("spent", "lease_released");
}

#[test]
fn a_place_in_line_belongs_to_the_key_that_waits() {
    let mut w = World::new();
    let room = w.room();
    w.by = by("two");
    w.acquire("bob", "lobby");
    w.by = by("one");
    let ask = |w: &mut World| {
        let wait = Some(Wait { room, wait_ms: 5_000 });
        Command::Acquire(Acquire { request: Some(name("r1")), wait, ..w.asks("ann", "lobby") })
    };
    let first = ask(&mut w);
    assert!(w.run(&first).outcome.is_ok());
    w.by = by("two");
    let again = ask(&mut w);
    w.told(again).says(&belongs("place in line"), "");
    w.cancel("ann", "lobby", "r1").says(&belongs("place in line"), "");
    let waits = w.waiter("ann", "lobby");
    w.leave("lobby", waits).says(&belongs("place in line"), "");
    // The grant belongs to the waiter's key, not to the key that freed the resource.
    let release = Command::Release { claim: on("lobby").holder("bob"), state: None };
    assert_eq!(named(&mut w, release), [Some("two".to_owned()), Some("one".to_owned())]);
    let granted = w.lease_on("lobby");
    w.renew(lease(granted)).says(&belongs("lease"), "");
}

#[test]
fn events_name_the_key_that_asked_and_time_names_nobody() {
    let mut w = World::new();
    w.by = by("one");
    let acquire = Command::Acquire(w.asks("ann", "lobby"));
    assert_eq!(named(&mut w, acquire), [Some("one".to_owned())]);
    w.by = Actor::Admin(name("root"));
    let revoke = Command::Revoke { claim: on("lobby"), fenced: true, reason: None };
    assert_eq!(named(&mut w, revoke), [Some("root".to_owned())]);
    w.acquire("bob", "lobby");
    w.wait(10_000);
    assert_eq!(named(&mut w, Command::Expire { key: key("lobby") }), [None]);
}

#[test]
fn a_limited_key_touches_no_other_resource() {
    let mut w = World::new();
    w.acquire("ann", "lobby");
    w.declare("hall", 0);
    let id = w.lease_on("lobby");
    w.by = only("one", "ha");
    let out = |what: &str| format!("refused: your key does not cover resource {}", key(what));
    let before = w.state.clone();
    w.acquire("bob", "lobby").says(&out("lobby"), "");
    w.renew(lease(id)).says(&out("lobby"), "");
    w.release(on("lobby").token(1)).says(&out("lobby"), "");
    w.delete_by_force("lobby", false).says(&out("lobby"), "");
    w.declare("lobby", 5).says(&out("lobby"), "");
    w.leave("lobby", id).says(&out("lobby"), "");
    w.cancel("ann", "lobby", "r1").says(&out("lobby"), "");
    assert_eq!(w.state, before);
    w.acquire("bob", "hall").says("granted #3 for 10000 ms", "lease_acquired");
    let other = ResourceScope { kind: name("other"), key_prefix: String::new() };
    w.by = Actor::Key { id: name("one"), scopes: [other].into() };
    w.acquire("bob", "hall").says(&out("hall"), "");
}

#[test]
fn a_hold_back_is_lifted_by_the_key_of_the_lease_before_it() {
    let mut w = World::new();
    w.declare("lobby", 5_000);
    w.by = by("one");
    w.acquire("ann", "lobby").says("granted #2 for 10000 ms", "lease_acquired");
    w.wait(10_000);
    w.by = by("two");
    w.revoke_fenced(on("lobby").token(2)).says(&belongs("hold-back"), "lease_expired");
    assert!(w.state.resource(&key("lobby")).is_some_and(|r| r.held_back_until.is_some()));
    w.by = by("one");
    w.revoke_fenced(on("lobby").token(2)).says("hold-back lifted", "hold_back_lifted");
}
