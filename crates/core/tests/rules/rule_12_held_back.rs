//! Rule 12: a lease ended by anyone but its holder holds the resource back; lock-delay counts from the deadline.

use solehold_core::{
    command::Command,
    event::{Change, What},
};

use crate::common::{Proof, TTL_MS, World, key, on};

#[test]
fn a_clean_release_never_waits() {
    let mut w = World::new();
    w.declare("lobby", 3_000);
    w.acquire("ann", "lobby").says("granted #2 for 10000 ms", "lease_acquired");
    w.release(on("lobby").token(2)).says("released", "lease_released");
    w.acquire("bob", "lobby").says("granted #4 for 10000 ms", "lease_acquired");
}

#[test]
fn lock_delay_counts_from_the_deadline_not_from_the_sweep() {
    let mut w = World::new();
    w.declare("lobby", 3_000);
    w.acquire("ann", "lobby");
    w.wait(11_000);
    w.acquire("bob", "lobby").says("refused: held back for another 2000 ms after token 2", "lease_expired");
    w.wait(1_999);
    w.acquire("bob", "lobby").says("refused: held back for another 1 ms after token 2", "");
    w.wait(1);
    w.acquire("bob", "lobby").says("granted #4 for 10000 ms", "lease_acquired");
}

#[test]
fn a_revoked_lease_holds_back_until_its_old_deadline_and_the_lock_delay() {
    let mut w = World::new();
    w.declare("lobby", 3_000);
    w.acquire("ann", "lobby");
    w.wait(4_000);
    w.revoke(on("lobby")).says("revoked, held back for 9000 ms", "lease_revoked");
    w.renew(on("lobby").token(2))
        .says("refused: the lease is not active; the resource's last token is 2", "");
    w.wait(8_999);
    w.acquire("bob", "lobby").says("refused: held back for another 1 ms after token 2", "");
    w.wait(1);
    w.acquire("bob", "lobby").says("granted #4 for 10000 ms", "lease_acquired");
}

#[test]
fn a_fenced_revoke_frees_at_once() {
    let mut w = World::new();
    w.declare("lobby", 3_000);
    w.acquire("ann", "lobby");
    w.revoke_fenced(on("lobby")).says("revoked, held back for 0 ms", "lease_revoked");
    w.acquire("bob", "lobby").says("granted #4 for 10000 ms", "lease_acquired");
}

#[test]
fn a_held_resource_is_deleted_only_by_force() {
    let mut w = World::new();
    w.declare("lobby", 0);
    w.acquire("ann", "lobby");
    w.delete("lobby").says(
        "refused: the resource is held by ann with token 2; delete it with force, or release it first",
        "",
    );
    w.delete_by_force("lobby", false).says("removed", "lease_revoked resource_deleted");
    w.delete("lobby").says("refused: resource scene/lobby of tenant acme does not exist", "");
}

#[test]
fn hold_back_survives_deletion_and_declaring_again() {
    let mut w = World::new();
    w.declare("lobby", 3_000);
    w.acquire("ann", "lobby");
    w.delete_by_force("lobby", false).says("removed", "lease_revoked resource_deleted");
    w.declare("lobby", 0).says("declared, created: true", "resource_declared");
    w.wait(12_999);
    w.acquire("bob", "lobby").says("refused: held back for another 1 ms after token 2", "");
    w.wait(1);
    w.acquire("bob", "lobby").says("granted #6 for 10000 ms", "lease_acquired");
}

#[test]
fn a_fenced_forced_delete_leaves_nothing() {
    let mut w = World::new();
    w.declare("lobby", 3_000);
    w.acquire("ann", "lobby");
    w.delete_by_force("lobby", true).says("removed", "lease_revoked resource_deleted");
    assert_eq!(w.state.resource(&key("lobby")), None);
    w.acquire("bob", "lobby").says("granted #5 for 10000 ms", "lease_acquired");
}

/// An operator who finds out later that the old holder is gone need not wait either.
#[test]
fn a_hold_back_is_lifted_once_the_old_holder_is_fenced_off() {
    let mut w = World::new();
    w.declare("lobby", 3_000);
    w.acquire("ann", "lobby");
    w.revoke(on("lobby"));
    w.revoke(on("lobby")).says("refused: the lease is not active; the resource's last token is 2", "");
    for other in [on("lobby").token(1), on("lobby").token(3), on("lobby").holder("bob")] {
        w.revoke_fenced(other).says("refused: the lease is not active; the resource's last token is 2", "");
    }
    w.acquire("bob", "lobby").says("refused: held back for another 13000 ms after token 2", "");
    w.revoke_fenced(on("lobby").token(2)).says("hold-back lifted", "hold_back_lifted");
    w.acquire("bob", "lobby").says("granted #5 for 10000 ms", "lease_acquired");
    w.revoke_fenced(on("lobby").token(2))
        .says("refused: the lease is not active; the resource's last token is 5", "");
}

#[test]
fn lifting_a_hold_back_grants_to_the_first_in_line() {
    let mut w = World::new();
    w.declare("lobby", 3_000);
    w.acquire("ann", "lobby");
    let room = w.room();
    w.wait(TTL_MS);
    w.waits(room, "bob", "lobby");
    w.revoke_fenced(on("lobby")).says("hold-back lifted", "hold_back_lifted lease_acquired");
}

#[test]
fn a_fenced_delete_lifts_the_hold_back_also_of_what_is_not_declared() {
    let mut w = World::new();
    w.declare("lobby", 3_000);
    w.acquire("ann", "lobby");
    w.delete_by_force("lobby", false).says("removed", "lease_revoked resource_deleted");
    w.delete_by_force("lobby", true).says("removed", "hold_back_lifted");
    assert_eq!(w.state.resource(&key("lobby")), None);
    w.delete_by_force("lobby", true).says("refused: resource scene/lobby of tenant acme does not exist", "");
    w.declare("hall", 3_000);
    w.acquire("ann", "hall");
    w.revoke(on("hall"));
    w.delete_by_force("hall", true).says("removed", "hold_back_lifted resource_deleted");
    assert_eq!(w.state.resource(&key("hall")), None);
}

#[test]
fn a_lease_that_ran_out_is_no_reason_to_refuse_a_delete_and_its_delay_goes_on() {
    let mut w = World::new();
    let bob = w.opens("bob");
    w.declare("lobby", 3_000);
    w.acquire("ann", "lobby");
    w.wait(9_000);
    w.heartbeat(bob);
    w.hand_over("lobby", bob).says("offered to bob", "lease_pending");
    w.wait(1_000);
    w.delete("lobby").says("removed", "lease_expired lease_expired resource_deleted");
    w.acquire("cat", "lobby").says("refused: held back for another 3000 ms after token 2", "");
}

#[test]
fn a_lease_that_runs_out_without_a_lock_delay_does_not_say_that_anything_is_held_back() {
    let mut w = World::new();
    w.declare("lobby", 0);
    w.acquire("ann", "lobby");
    w.wait(TTL_MS);
    let decision = w.run(&Command::Expire { key: key("lobby") });
    let Some(Change::Event(event)) = decision.changes.last() else { panic!("{decision:?}") };
    assert!(matches!(&event.what, What::Expired(ended) if ended.held_back_until.is_none()), "{event:?}");
}
