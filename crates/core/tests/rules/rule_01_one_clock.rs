//! Rule 1: one clock decides, and a renewal never moves a deadline earlier.

use crate::common::{Proof, World, on};

#[test]
fn a_renewal_one_millisecond_before_the_deadline_is_in_time() {
    let mut w = World::new();
    w.acquire("ann", "lobby").says("granted #1 for 10000 ms", "lease_acquired");
    w.wait(9_999);
    w.renew(on("lobby").token(1)).says("renewed #1 for 10000 ms", "");
}

#[test]
fn a_renewal_at_the_deadline_or_a_millisecond_after_it_is_too_late() {
    for late_ms in [0, 1] {
        let mut w = World::new();
        w.acquire("ann", "lobby");
        w.wait(10_000 + late_ms);
        w.renew(on("lobby").token(1))
            .says("refused: the lease is not active; the resource's last token is 1", "");
    }
}

#[test]
fn a_heartbeat_one_millisecond_before_the_deadline_is_in_time_and_at_it_too_late() {
    let mut w = World::new();
    let ann = w.opens("ann");
    w.wait(9_999);
    w.heartbeat(ann).says("session of ann for 10000 ms", "");
    w.wait(10_000);
    w.heartbeat(ann).says("refused: session ~1 has expired; open a new session", "");
}

#[test]
fn a_renewal_for_less_time_never_moves_the_deadline_earlier() {
    let mut w = World::new();
    w.acquire("ann", "lobby");
    w.wait(1_000);
    w.renew_for(on("lobby").token(1), 2_000).says("renewed #1 for 9000 ms", "");
    w.wait(8_000);
    w.renew(on("lobby").token(1)).says("renewed #1 for 2000 ms", "");
}

#[test]
fn a_live_lease_refuses_everyone_else_and_says_for_how_long() {
    let mut w = World::new();
    w.acquire("ann", "lobby");
    w.wait(9_999);
    w.acquire("bob", "lobby")
        .says("refused: held by ann with token 1, for another 1 ms unless it is renewed", "");
    w.acquire("ann", "lobby")
        .says("refused: held by ann with token 1, for another 1 ms unless it is renewed", "");
}
