//! Rule 7: acquire can be retried; a request id never gets a second grant.

use solehold_core::{
    call::Actor,
    command::{Acquire, Command, Wait},
    forget,
    limits::{CANCELLED_REQUESTS_MAX, SPENT_REQUESTS_MAX},
};

use crate::common::{Proof, WAIT_MS, World, name, on};

const SPENT: &str =
    "refused: request r1 is spent: it was cancelled, or its lease has ended or belongs to a former session";
const HOUR_MS: u64 = 60 * 60 * 1_000;

#[test]
fn a_repeat_returns_the_live_grant_with_the_time_left() {
    let mut w = World::new();
    w.request("ann", "lobby", "r1").says("granted #1 for 10000 ms", "lease_acquired");
    w.wait(4_000);
    w.request("ann", "lobby", "r1").says("granted again #1 for 6000 ms", "");
}

#[test]
fn a_request_is_its_holders_and_its_resources() {
    let mut w = World::new();
    w.request("ann", "lobby", "r1").says("granted #1 for 10000 ms", "lease_acquired");
    w.request("bob", "lobby", "r1")
        .says("refused: held by ann with token 1, for another 10000 ms unless it is renewed", "");
    w.request("ann", "hall", "r1").says("granted #2 for 10000 ms", "lease_acquired");
}

#[test]
fn a_repeat_after_the_lease_ran_out_is_spent_swept_or_not() {
    let mut w = World::new();
    w.request("ann", "lobby", "r1");
    w.wait(10_000);
    w.request("ann", "lobby", "r1").says(SPENT, "");
    w.expire("lobby").says("judged, expired: true", "lease_expired");
    w.request("ann", "lobby", "r1").says(SPENT, "");
}

#[test]
fn a_released_revoked_or_taken_over_request_stays_spent_for_an_hour() {
    let mut w = World::new();
    w.request("ann", "lobby", "r1");
    w.release(on("lobby").token(1)).says("released", "lease_released");
    w.wait(HOUR_MS - 1);
    w.request("ann", "lobby", "r1").says(SPENT, "");
    w.wait(1);
    w.request("ann", "lobby", "r1").says("granted #3 for 10000 ms", "lease_acquired");
    w.revoke_fenced(on("lobby")).says("revoked, held back for 0 ms", "lease_revoked");
    w.wait(HOUR_MS - 1);
    w.request("ann", "lobby", "r1").says(SPENT, "");
    w.wait(1);
    w.request("ann", "lobby", "r1").says("granted #5 for 10000 ms", "lease_acquired");
    w.wait(10_000);
    w.acquire("bob", "lobby").says("granted #8 for 10000 ms", "lease_expired lease_stolen lease_acquired");
    w.release(on("lobby").token(8)).says("released", "lease_released");
    w.wait(HOUR_MS - 1);
    w.request("ann", "lobby", "r1").says(SPENT, "");
    w.wait(1);
    w.request("ann", "lobby", "r1").says("granted #10 for 10000 ms", "lease_acquired");
}

#[test]
fn cancelling_a_request_that_was_not_seen_yet_spends_it() {
    let mut w = World::new();
    w.cancel("ann", "lobby", "r1").says("spent", "");
    w.request("ann", "lobby", "r1").says(SPENT, "");
    w.request("ann", "lobby", "r2").says("granted #1 for 10000 ms", "lease_acquired");
}

#[test]
fn cancelling_a_request_releases_the_grant_that_it_got() {
    let mut w = World::new();
    w.request("ann", "lobby", "r1");
    w.cancel("ann", "lobby", "r1").says("spent", "lease_released");
    w.request("ann", "lobby", "r1").says(SPENT, "");
    w.acquire("bob", "lobby").says("granted #3 for 10000 ms", "lease_acquired");
    w.cancel("ann", "lobby", "r1").says("spent", "");
    w.renew(on("lobby").token(3)).says("renewed #3 for 10000 ms", "");
}

#[test]
fn cancelling_a_request_whose_lease_ran_out_waits_out_the_lock_delay_all_the_same() {
    let mut w = World::new();
    let bob = w.opens("bob");
    w.declare("lobby", 3_000);
    w.request("ann", "lobby", "r1").says("granted #2 for 10000 ms", "lease_acquired");
    w.wait(9_000);
    w.heartbeat(bob);
    w.hand_over("lobby", bob).says("offered to bob", "lease_pending");
    w.wait(1_000);
    w.cancel("ann", "lobby", "r1").says("spent", "lease_expired");
    w.wait(2_999);
    w.expire("lobby").says("judged, expired: false", "");
    w.wait(1);
    w.expire("lobby").says("judged, expired: true", "lease_acquired");
}

#[test]
fn cancelling_a_request_that_ran_out_does_not_end_the_next_grant_of_the_same_name() {
    let mut w = World::new();
    let room = w.room();
    w.request("ann", "lobby", "r1").says("granted #1 for 10000 ms", "lease_acquired");
    let wait = Some(Wait { room, wait_ms: WAIT_MS });
    let ask = Acquire { request: Some(name("r1")), wait, ..w.asks("bob", "lobby") };
    w.told(Command::Acquire(ask)).says("waiting behind 0 for 60000 ms", "");
    w.wait(10_000);
    // Nobody has swept: the cancel itself finds that it is bob's turn.
    w.cancel("ann", "lobby", "r1").says("spent", "lease_expired lease_acquired");
    w.renew(on("lobby").token(4)).says("renewed #4 for 10000 ms", "");
}

#[test]
fn a_request_whose_lease_ran_out_unswept_is_spent_for_another_key_too() {
    let mut w = World::new();
    let by = |id| Actor::Key { id: name(id), scopes: Default::default() };
    w.by = by("one");
    w.request("ann", "lobby", "r1").says("granted #1 for 10000 ms", "lease_acquired");
    w.wait(10_000);
    w.by = by("two");
    w.request("ann", "lobby", "r1").says(SPENT, "lease_expired");
    w.request("ann", "lobby", "r2").says("granted #3 for 10000 ms", "lease_acquired");
}

#[test]
fn a_repeat_from_the_holders_new_session_never_gets_a_lease_of_the_superseded_one() {
    let mut w = World::new();
    let old = w.opens("ann");
    w.request_in(old, "ann", "lobby", "r1").says("granted #1 for 10000 ms", "lease_acquired");
    w.wait(4_000);
    let new = w.opens("ann");
    w.request_in(new, "ann", "lobby", "r1").says(SPENT, "");
    w.request("ann", "lobby", "r1").says(SPENT, "");
    w.request_in(old, "ann", "lobby", "r1")
        .says("refused: session ~1 was superseded: its holder has opened a newer session", "");
    // Under another name it hears who is in the way, and for how long.
    w.request_in(new, "ann", "lobby", "r2")
        .says("refused: held by ann with token 1, for another 6000 ms unless it is renewed", "");
    w.wait(6_000);
    w.request_in(new, "ann", "lobby", "r2").says("granted #3 for 4000 ms", "lease_expired lease_acquired");
}

/// Another key invented 70 requests in the holder's name, and the holder's own id was dropped to make room for them.
#[test]
fn another_keys_cancellations_never_displace_a_request_that_a_lease_spent() {
    let mut w = World::new();
    let by = |id| Actor::Key { id: name(id), scopes: Default::default() };
    w.by = by("one");
    w.request("ann", "lobby", "r1").says("granted #1 for 10000 ms", "lease_acquired");
    w.release(on("lobby").token(1)).says("released", "lease_released");
    w.by = by("two");
    for n in 0..SPENT_REQUESTS_MAX + 6 {
        w.wait(1);
        w.cancel("ann", "lobby", &format!("invented-{n}")).says("spent", "");
    }
    forget(&mut w.state, w.moment.now);
    w.by = by("one");
    w.request("ann", "lobby", "r1").says(SPENT, "");
}

/// The same by leases that another key takes in the holder's name, and gives back.
#[test]
fn another_keys_leases_never_displace_a_request_that_a_lease_spent() {
    let mut w = World::new();
    let by = |id| Actor::Key { id: name(id), scopes: Default::default() };
    w.by = by("one");
    w.request("ann", "lobby", "r1").says("granted #1 for 10000 ms", "lease_acquired");
    w.release(on("lobby").token(1)).says("released", "lease_released");
    w.by = by("two");
    for n in 0..SPENT_REQUESTS_MAX + 6 {
        w.wait(1);
        assert!(w.request("ann", "lobby", &format!("other-{n}")).outcome.starts_with("granted"));
        w.release(on("lobby").holder("ann")).says("released", "lease_released");
    }
    forget(&mut w.state, w.moment.now);
    w.by = by("one");
    w.request("ann", "lobby", "r1").says(SPENT, "");
}

/// Another key waited in line by the request of the lease, and was granted it when the lease ended.
#[test]
fn another_key_does_not_wait_in_line_by_the_request_of_a_lease() {
    let mut w = World::new();
    let by = |id| Actor::Key { id: name(id), scopes: Default::default() };
    let room = w.room();
    w.by = by("one");
    w.request("ann", "lobby", "ann").says("granted #1 for 10000 ms", "lease_acquired");
    w.by = by("two");
    w.waits(room, "ann", "lobby")
        .says("refused: the lease belongs to key one; use that key, or an admin key", "");
    w.by = by("one");
    w.waits(room, "ann", "lobby").says("granted again #1 for 10000 ms", "");
    w.release(on("lobby").token(1)).says("released", "lease_released");
    w.by = by("two");
    assert!(w.waits(room, "ann", "lobby").outcome.contains("is spent"));
}

/// Gets a lease for a request, and ends it.
fn spend(w: &mut World, who: &str, what: &str, request: &str) {
    let got = w.request(who, what, request).outcome;
    assert!(got.starts_with("granted"), "{request}: {got}");
    w.release(on(what).holder(who)).says("released", "lease_released");
}

#[test]
fn no_more_spent_requests_of_one_key_holder_and_resource_are_remembered_than_the_bound() {
    let mut w = World::new();
    let most = SPENT_REQUESTS_MAX;
    for n in 0..most + 2 {
        spend(&mut w, "ann", "lobby", &format!("r{n}"));
        w.wait(1);
    }
    // Others, and other resources, are counted by themselves.
    spend(&mut w, "bob", "lobby", "r0");
    spend(&mut w, "ann", "hall", "r0");
    forget(&mut w.state, w.moment.now);
    assert_eq!(w.state.requests().count(), most + 2);
    for kept in [2, most + 1] {
        assert!(w.request("ann", "lobby", &format!("r{kept}")).outcome.contains("is spent"), "r{kept}");
    }
    assert!(w.request("bob", "lobby", "r0").outcome.contains("is spent"));
    assert!(w.request("ann", "hall", "r0").outcome.contains("is spent"));
    // The oldest went first.
    assert!(w.request("ann", "lobby", "r1").outcome.starts_with("granted"));
}

#[test]
fn a_key_that_cancels_too_many_unseen_requests_is_refused_and_only_that_key() {
    let mut w = World::new();
    let by = |id| Actor::Key { id: name(id), scopes: Default::default() };
    w.by = by("two");
    for n in 0..CANCELLED_REQUESTS_MAX {
        w.cancel("ann", "lobby", &format!("r{n}")).says("spent", "");
        w.wait(1);
    }
    let wait_ms = HOUR_MS - CANCELLED_REQUESTS_MAX as u64;
    let refused = format!(
        "refused: your key has cancelled 256 unseen requests of ann for this resource, the limit per hour; \
         try again in {wait_ms} ms"
    );
    w.cancel("ann", "lobby", "one more").says(&refused, "");
    // Those that were cancelled stay so, whoever else comes, and can be cancelled again.
    forget(&mut w.state, w.moment.now);
    w.cancel("ann", "lobby", "r1").says("spent", "");
    w.request("ann", "lobby", "r1").says(SPENT, "");
    // Other holders, resources and keys have a bound of their own, and so has a request that was seen.
    w.cancel("bob", "lobby", "one more").says("spent", "");
    w.cancel("ann", "hall", "one more").says("spent", "");
    spend(&mut w, "ann", "lobby", "seen");
    w.by = by("one");
    w.cancel("ann", "lobby", "one more").says("spent", "");
    w.by = by("two");
    w.wait(wait_ms);
    w.cancel("ann", "lobby", "later").says("spent", "");
}

#[test]
fn a_place_in_line_that_is_cancelled_counts_as_seen() {
    let mut w = World::new();
    let room = w.room();
    w.acquire("bob", "lobby");
    for n in 0..CANCELLED_REQUESTS_MAX + 2 {
        let wait = Some(Wait { room, wait_ms: WAIT_MS });
        let request = format!("r{n}");
        let ask = Acquire { request: Some(name(&request)), wait, ..w.asks("ann", "lobby") };
        assert!(w.told(Command::Acquire(ask)).outcome.starts_with("waiting"));
        w.cancel("ann", "lobby", &request).says("spent", "");
    }
}

#[test]
fn the_drivers_own_retry_finds_its_own_grant_and_its_own_offer() {
    let mut w = World::new();
    let bob = w.opens("bob");
    let acquire = Command::Acquire(w.asks("ann", "lobby"));
    w.told(acquire.clone()).says("granted #1 for 10000 ms", "lease_acquired");
    w.wait(1_000);
    w.told(acquire.clone()).says("granted again #1 for 9000 ms", "");
    let hand_over = Command::HandOver(w.offers("lobby", bob));
    w.told(hand_over.clone()).says("offered to bob", "lease_pending");
    w.told(hand_over).says("offered to bob", "");
}
