//! Rule 5: a grant's token is the revision of its event, so it grows whatever happens to the resource's row.

use solehold_core::{command::Command, event::What, outcome::Answer, time::Revision};

use crate::common::{Proof, World, on};

#[test]
fn the_token_is_the_revision_of_the_event() {
    let mut w = World::new();
    w.declare("hall", 0).says("declared, created: true", "resource_declared");
    let ask = w.asks("ann", "lobby");
    let decision = w.run(&Command::Acquire(ask));
    let [solehold_core::event::Change::Event(event)] = &decision.changes[..] else {
        panic!("one event, not {:?}", decision.changes)
    };
    let What::Acquired(lease) = &event.what else { panic!("a grant, not {:?}", event.what) };
    assert_eq!((event.revision.0, lease.token.0), (2, 2));
}

#[test]
fn a_renewal_keeps_the_token() {
    let mut w = World::new();
    w.acquire("ann", "lobby");
    w.renew(on("lobby").token(1)).says("renewed #1 for 10000 ms", "");
    w.renew(on("lobby").token(1)).says("renewed #1 for 10000 ms", "");
}

#[test]
fn tokens_grow_through_release_expiry_deletion_and_declaring_again() {
    let mut w = World::new();
    w.declare("lobby", 0).says("declared, created: true", "resource_declared");
    w.acquire("ann", "lobby").says("granted #2 for 10000 ms", "lease_acquired");
    w.release(on("lobby").token(2)).says("released", "lease_released");
    w.acquire("ann", "lobby").says("granted #4 for 10000 ms", "lease_acquired");
    w.wait(10_000);
    w.expire("lobby").says("judged, expired: true", "lease_expired");
    w.delete("lobby").says("removed", "resource_deleted");
    assert_eq!(w.state.resource(&crate::common::key("lobby")), None, "its row is gone");
    w.declare("lobby", 0).says("declared, created: true", "resource_declared");
    w.acquire("ann", "lobby").says("granted #8 for 10000 ms", "lease_acquired");
}

#[test]
fn a_raised_revision_raises_the_next_token_and_is_never_lowered() {
    let mut w = World::new();
    let raise = |above| Command::RaiseRevision { above: Revision(above) };
    w.told(raise(1 << 32)).says("raised to r4294967296", "");
    w.told(raise(7)).says("raised to r4294967296", "");
    w.acquire("ann", "lobby").says("granted #4294967297 for 10000 ms", "lease_acquired");
    w.told(raise(u64::MAX)).says("refused: token is 18446744073709551615; it must be 0 to 1103806595073", "");
}

#[test]
fn raising_the_revision_to_where_it_is_changes_nothing() {
    let mut w = World::new();
    w.acquire("ann", "lobby");
    let decision = w.run(&Command::RaiseRevision { above: w.moment.revision });
    assert_eq!((decision.outcome, decision.changes), (Ok(Answer::Raised(w.moment.revision)), Vec::new()));
}
