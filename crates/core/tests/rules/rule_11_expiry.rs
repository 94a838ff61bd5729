//! Rule 11: expiry is a command like any other; the sweeper only nominates, and what it did not do yet decides nothing.

use solehold_core::{command::Command, key::SessionId};

use crate::common::{Proof, World, holder, on};

#[test]
fn a_nomination_before_the_deadline_does_nothing() {
    let mut w = World::new();
    w.acquire("ann", "lobby");
    w.wait(9_999);
    w.expire("lobby").says("judged, expired: false", "");
    w.wait(1);
    w.expire("lobby").says("judged, expired: true", "lease_expired");
    w.expire("lobby").says("judged, expired: false", "");
    w.expire("never seen").says("judged, expired: false", "");
}

#[test]
fn a_renewal_that_came_first_makes_the_nomination_void() {
    let mut w = World::new();
    let ann = w.opens("ann");
    w.acquire_in(ann, "ann", "lobby");
    w.wait(9_999);
    w.heartbeat(ann);
    w.wait(1);
    w.expire("lobby").says("judged, expired: false", "");
}

#[test]
fn a_dead_lease_is_dead_though_nobody_swept_it() {
    let mut w = World::new();
    w.acquire("ann", "lobby");
    w.wait(10_000);
    let lost = "refused: the lease is not active; the resource's last token is 1";
    w.release(on("lobby").token(1)).says(lost, "");
    w.write(on("lobby").token(1), 1, "{}").says(lost, "");
    w.revoke(on("lobby")).says(lost, "");
}

#[test]
fn a_session_is_ended_once_nothing_hangs_on_it() {
    let mut w = World::new();
    let ann = w.opens("ann");
    w.acquire_in(ann, "ann", "lobby");
    w.wait(10_000);
    let nominate = |id: SessionId| Command::ExpireSession(id);
    w.told(nominate(ann)).says("judged, expired: false", "");
    w.expire("lobby").says("judged, expired: true", "lease_expired");
    w.told(nominate(ann)).says("judged, expired: true", "");
    assert_eq!(w.state.session(ann), None);
    assert_eq!(w.state.holder(&holder("ann")).map(|h| h.session), Some(None), "it stays registered");
}

#[test]
fn a_lock_delay_declared_after_a_lease_ran_out_is_not_for_that_lease_swept_or_not() {
    for is_swept in [true, false] {
        let mut w = World::new();
        w.declare("lobby", 60_000);
        w.acquire("ann", "lobby");
        w.wait(10_000);
        if is_swept {
            w.expire("lobby").says("judged, expired: true", "lease_expired");
        }
        w.declare("lobby", 0);
        w.acquire("bob", "lobby").says("refused: held back for another 60000 ms after token 2", "");
    }
}

#[test]
fn declaring_what_was_held_undeclared_and_ran_out_starts_afresh_swept_or_not() {
    for is_swept in [true, false] {
        let mut w = World::new();
        w.acquire("ann", "lobby");
        w.wait(10_000);
        if is_swept {
            w.expire("lobby").says("judged, expired: true", "lease_expired");
        }
        w.declare("lobby", 60_000);
        w.acquire("bob", "lobby").says("granted #4 for 10000 ms", "lease_acquired");
    }
}
