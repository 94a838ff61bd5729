//! Rule 17: a state write bears a sequence number above the stored one under the same token, or is refused.

use crate::common::{Proof, World, on};

#[test]
fn sequences_grow_under_one_token() {
    let mut w = World::new();
    w.acquire("ann", "lobby");
    w.write(on("lobby").token(1), 5, "five").says("written 5 under #1", "state_changed");
    w.write(on("lobby").token(1), 5, "five again")
        .says("refused: state sequence 5 is not above the stored 5", "");
    w.write(on("lobby").token(1), 4, "four").says("refused: state sequence 4 is not above the stored 5", "");
    w.write(on("lobby").token(1), u64::MAX, "last")
        .says("written 18446744073709551615 under #1", "state_changed");
}

#[test]
fn a_new_token_starts_its_own_sequence() {
    let mut w = World::new();
    w.acquire("ann", "lobby");
    w.write(on("lobby").token(1), 5, "five");
    w.release(on("lobby").token(1));
    w.acquire("bob", "lobby").says("granted #4 for 10000 ms with five", "lease_acquired");
    w.write(on("lobby").token(4), 0, "zero").says("written 0 under #4", "state_changed");
}

#[test]
fn a_release_may_carry_the_final_state_and_is_refused_with_a_stale_one() {
    let mut w = World::new();
    w.acquire("ann", "lobby");
    w.write(on("lobby").token(1), 5, "five");
    w.release_leaving(on("lobby").token(1), 5, "stale")
        .says("refused: state sequence 5 is not above the stored 5", "");
    w.renew(on("lobby").token(1)).says("renewed #1 for 10000 ms", "");
    w.release_leaving(on("lobby").token(1), 6, "six").says("released", "state_changed lease_released");
    w.acquire("bob", "lobby").says("granted #5 for 10000 ms with six", "lease_acquired");
}

#[test]
fn state_goes_with_the_resource_when_it_is_deleted() {
    let mut w = World::new();
    w.declare("lobby", 0);
    w.acquire("ann", "lobby");
    w.release_leaving(on("lobby").token(2), 1, "one");
    w.delete("lobby").says("removed", "resource_deleted");
    w.declare("lobby", 0);
    w.acquire("bob", "lobby").says("granted #7 for 10000 ms", "lease_acquired");
}
