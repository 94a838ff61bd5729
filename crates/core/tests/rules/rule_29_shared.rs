//! Rule 29: a shared hold is a lease on a slot. Every rule is as for one holder.

use solehold_core::command::{Acquire, AskedTenure, Command, Wait};

use crate::common::{Proof, TTL_MS, WAIT_MS, World, key, on};

fn shares(w: &mut World, who: &str, what: &str, slots: u32) -> crate::common::Told {
    let ask = Acquire { slots: Some(slots), ..w.asks(who, what) };
    w.told(Command::Acquire(ask))
}

#[test]
fn as_many_as_agreed_share_it_each_under_a_token_of_its_own() {
    let mut w = World::new();
    shares(&mut w, "ann", "pool", 2).says("granted #1 for 10000 ms", "lease_acquired");
    shares(&mut w, "bob", "pool", 3).says("granted #2 for 10000 ms", "lease_acquired");
    // Ann shares with one other, whatever the others agree to.
    shares(&mut w, "cat", "pool", 3)
        .says("refused: held by ann with token 1, for another 10000 ms unless it is renewed", "");
    w.release(on("pool").token(1)).says("released", "lease_released");
    shares(&mut w, "cat", "pool", 3).says("granted #4 for 10000 ms", "lease_acquired");
    w.renew(on("pool").token(2)).says("renewed #2 for 10000 ms", "");
    w.renew(on("pool").token(1)).says("refused: the lease is not active; the resource's last token is 4", "");
    w.acquire("dan", "pool")
        .says("refused: held by cat with token 4, for another 10000 ms unless it is renewed", "");
}

#[test]
fn nobody_overtakes_one_who_wants_it_alone() {
    let mut w = World::new();
    let room = w.room();
    shares(&mut w, "ann", "pool", 2).says("granted #1 for 10000 ms", "lease_acquired");
    w.waits(room, "bob", "pool").says("waiting behind 0 for 60000 ms", "");
    // A slot is free, and bob is ahead.
    shares(&mut w, "cat", "pool", 2)
        .says("refused: held by ann with token 1, for another 10000 ms unless it is renewed", "");
    w.release(on("pool").token(1)).says("released", "lease_released lease_acquired");
    w.renew(on("pool").holder("bob").token(4)).says("renewed #4 for 10000 ms", "");
}

#[test]
fn a_revoked_slot_is_taken_until_its_deadline() {
    let mut w = World::new();
    shares(&mut w, "ann", "pool", 1).says("granted #1 for 10000 ms", "lease_acquired");
    w.wait(4_000);
    w.revoke(on("pool").token(1)).says("revoked, held back for 6000 ms", "lease_revoked");
    shares(&mut w, "bob", "pool", 1).says("refused: held back for another 6000 ms after token 1", "");
    w.acquire("bob", "pool").says("refused: held back for another 6000 ms after token 1", "");
    w.wait(6_000);
    shares(&mut w, "bob", "pool", 1).says("granted #3 for 10000 ms", "lease_acquired");
}

/// What ran out goes to the line first, and that counts.
#[test]
fn a_place_in_line_and_another_acquire_do_not_exceed_the_capacity() {
    let mut w = World::new();
    let room = w.room();
    let bob = w.opens_with_capacity("bob", 1);
    w.acquire("ann", "pool").says("granted #1 for 10000 ms", "lease_acquired");
    let wait = Wait { room, wait_ms: WAIT_MS };
    let tenure = AskedTenure::Session(bob);
    let waits = Acquire { slots: Some(2), tenure, wait: Some(wait), ..w.asks("bob", "pool") };
    w.told(Command::Acquire(waits)).says("waiting behind 0 for 60000 ms", "");
    w.wait(TTL_MS - 1);
    w.heartbeat(bob);
    w.wait(1);
    let asks = Acquire { slots: Some(2), tenure, ..w.asks("bob", "pool") };
    w.told(Command::Acquire(asks))
        .says("refused: session ~2 is at its capacity of 1 leases", "lease_expired lease_acquired");
}

#[test]
fn as_many_as_a_holder_may_have_counts_its_place_in_line() {
    let mut w = World::new();
    let room = w.room();
    w.acquire("ann", "pool").says("granted #1 for 10000 ms", "lease_acquired");
    let wait = Wait { room, wait_ms: WAIT_MS };
    let waits = Acquire { slots: Some(2), wait: Some(wait), ..w.asks("bob", "pool") };
    w.told(Command::Acquire(waits)).says("waiting behind 0 for 60000 ms", "");
    w.wait(TTL_MS);
    let asks = Acquire { slots: Some(2), holds_at_most: Some(1), ..w.asks("bob", "pool") };
    w.told(Command::Acquire(asks))
        .says("refused: holder bob is at its capacity of 1 leases", "lease_expired lease_acquired");
}

#[test]
fn all_are_acquired_or_none() {
    let mut w = World::new();
    w.acquire("ann", "b").says("granted #1 for 10000 ms", "lease_acquired");
    let both = |w: &mut World| Command::AcquireAll(vec![w.asks("bob", "a"), w.asks("bob", "b")]);
    let ask = both(&mut w);
    w.told(ask).says(
        "refused: none was acquired: scene/b of tenant acme is in the way: held by ann with token 1, for another 10000 ms unless it is renewed",
        "",
    );
    assert_eq!(w.state.resource(&key("a")), None, "nothing was acquired");
    w.release(on("b").token(1)).says("released", "lease_released");
    let ask = both(&mut w);
    w.told(ask).says("granted all 2", "lease_acquired lease_acquired");
}
