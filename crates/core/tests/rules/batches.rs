//! Commands of one batch are decided one after another at one moment, each upon what the former ones did.

use crate::common::{Proof, World, on};

#[test]
fn of_two_acquires_of_one_resource_in_one_batch_the_first_wins() {
    let mut w = World::new();
    w.acquire("ann", "lobby").says("granted #1 for 10000 ms", "lease_acquired");
    w.acquire("bob", "lobby").says("refused: held by ann with token 1 for another 10000 ms", "");
}

#[test]
fn release_and_acquire_of_one_resource_in_one_batch_pass_it_on() {
    let mut w = World::new();
    w.acquire("ann", "lobby");
    w.release(on("lobby").token(1)).says("released", "lease_released");
    w.acquire("bob", "lobby").says("granted #3 for 10000 ms", "lease_acquired");
    w.release(on("lobby").token(1))
        .says("refused: that lease is not held any more; the resource's last token is 3", "");
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
    w.heartbeat(ann).says("refused: session ~1 has expired: open another one", "");
}

#[test]
fn a_request_twice_in_one_batch_is_one_grant() {
    let mut w = World::new();
    w.request("ann", "lobby", "r1").says("granted #1 for 10000 ms", "lease_acquired");
    w.request("ann", "lobby", "r1").says("granted again #1 for 10000 ms", "");
}
