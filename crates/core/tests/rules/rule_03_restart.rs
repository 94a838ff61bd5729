//! Rule 3: time that nobody observed is given back to everything that had some left, and to nothing that had none.

use solehold_core::{limits::RESTART_GRACE_MS, resume};

use crate::common::{Proof, World, key, on};

/// How long the store was down in each story: longer than any lease has left.
const GAP_MS: u64 = 30_000;

/// The store stops, and starts again after the gap.
fn restarts(w: &mut World) {
    let stopped_at = w.moment.now;
    w.wait(GAP_MS);
    resume(&mut w.state, stopped_at, GAP_MS, w.moment.now, RESTART_GRACE_MS);
}

#[test]
fn a_lease_keeps_the_time_that_it_had_left_and_at_least_the_grace() {
    let mut w = World::new();
    let ann = w.opens("ann");
    w.acquire_in(ann, "ann", "lobby");
    w.acquire("bob", "hall");
    w.wait(1_000);
    restarts(&mut w);
    w.acquire("cat", "lobby")
        .says("refused: held by ann with token 1, for another 9000 ms unless it is renewed", "");
    w.acquire("cat", "hall")
        .says("refused: held by bob with token 2, for another 9000 ms unless it is renewed", "");
    w.wait(8_000);
    restarts(&mut w);
    w.acquire("cat", "lobby")
        .says("refused: held by ann with token 1, for another 5000 ms unless it is renewed", "");
    w.acquire("cat", "hall")
        .says("refused: held by bob with token 2, for another 5000 ms unless it is renewed", "");
    w.wait(5_000);
    restarts(&mut w);
    w.acquire("cat", "hall").says("granted #5 for 10000 ms", "lease_expired lease_stolen lease_acquired");
}

#[test]
fn a_hold_back_does_not_pass_while_nobody_looks() {
    let mut w = World::new();
    w.declare("lobby", 3_000);
    w.acquire("ann", "lobby");
    w.wait(4_000);
    w.revoke(on("lobby")).says("revoked, held back for 9000 ms", "lease_revoked");
    restarts(&mut w);
    w.acquire("bob", "lobby").says("refused: held back for another 9000 ms after token 2", "");
    w.wait(9_000);
    restarts(&mut w);
    w.acquire("bob", "lobby").says("granted #4 for 10000 ms", "lease_acquired");
}

#[test]
fn who_waits_in_line_keeps_its_place_and_its_time() {
    let mut w = World::new();
    let room = w.room();
    w.acquire("ann", "lobby");
    w.waits_for(room, "bob", "lobby", 4_000);
    w.wait(1_000);
    restarts(&mut w);
    let key = key("lobby");
    let left: Vec<_> =
        w.state.waiters_for(&key).map(|waiter| waiter.deadline.ms_after(w.moment.now)).collect();
    assert_eq!(left, [3_000]);
    w.release(on("lobby").token(1)).says("released", "lease_released lease_acquired");
}

#[test]
fn who_had_waited_to_the_end_gets_no_time_back() {
    let mut w = World::new();
    let room = w.room();
    w.acquire("ann", "lobby");
    w.waits_for(room, "bob", "lobby", 4_000);
    w.wait(4_000);
    restarts(&mut w);
    w.release(on("lobby").token(1)).says("released", "lease_released");
}

#[test]
fn a_grant_that_was_waited_for_can_still_be_confirmed() {
    let mut w = World::new();
    let room = w.room();
    w.acquire("ann", "lobby");
    w.waits(room, "bob", "lobby");
    w.release(on("lobby").token(1)).says("released", "lease_released lease_acquired");
    w.wait(500);
    restarts(&mut w);
    w.acquire("cat", "lobby")
        .says("refused: held by bob with token 4, for another 1500 ms unless it is renewed", "");
    w.renew(on("lobby").token(4)).says("renewed #4 for 10000 ms", "");
}

#[test]
fn an_offer_keeps_the_time_that_it_had_left() {
    let mut w = World::new();
    let ann = w.opens("ann");
    let bob = w.opens("bob");
    w.acquire_in(ann, "ann", "lobby");
    w.hand_over("lobby", bob);
    w.wait(1_000);
    restarts(&mut w);
    w.wait(3_999);
    w.expire("lobby").says("judged, expired: false", "");
    w.wait(1);
    w.expire("lobby").says("judged, expired: true", "lease_expired");
}

#[test]
fn a_request_stays_spent_for_an_hour_in_which_it_could_have_been_repeated() {
    let mut w = World::new();
    w.cancel("ann", "lobby", "r1").says("spent", "");
    w.cancel("ann", "lobby", "r2");
    w.wait(60 * 60 * 1_000 - 1);
    w.cancel("ann", "lobby", "r2");
    restarts(&mut w);
    w.request("ann", "lobby", "r1").says(
        "refused: request r1 is spent: it was cancelled, or its lease has ended or belongs to a former session",
        "",
    );
    w.wait(1);
    restarts(&mut w);
    w.request("ann", "lobby", "r1").says("granted #1 for 10000 ms", "lease_acquired");
}
