//! Rule 14: a takeover of a lease that had expired unswept emits expired, stolen, acquired, in that order.

use crate::common::{Proof, World, on};

#[test]
fn another_holder_takes_over_what_expired_unswept() {
    let mut w = World::new();
    w.acquire("ann", "lobby");
    w.wait(10_000);
    w.acquire("bob", "lobby").says("granted #4 for 10000 ms", "lease_expired lease_stolen lease_acquired");
}

#[test]
fn the_same_holder_taking_it_again_steals_from_nobody() {
    let mut w = World::new();
    w.acquire("ann", "lobby");
    w.wait(10_000);
    w.acquire("ann", "lobby").says("granted #3 for 10000 ms", "lease_expired lease_acquired");
}

#[test]
fn what_was_swept_or_released_is_not_stolen() {
    let mut w = World::new();
    w.acquire("ann", "lobby");
    w.wait(10_000);
    w.expire("lobby").says("judged, expired: true", "lease_expired");
    w.acquire("bob", "lobby").says("granted #3 for 10000 ms", "lease_acquired");
    w.release(on("lobby").token(3));
    w.acquire("ann", "lobby").says("granted #5 for 10000 ms", "lease_acquired");
}

#[test]
fn the_state_goes_to_whoever_takes_over() {
    let mut w = World::new();
    w.acquire("ann", "lobby");
    w.write(on("lobby").token(1), 1, "tracks").says("written 1 under #1", "state_changed");
    w.wait(10_000);
    w.acquire("bob", "lobby")
        .says("granted #5 for 10000 ms with tracks", "lease_expired lease_stolen lease_acquired");
}
