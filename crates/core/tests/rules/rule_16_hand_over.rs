//! Rule 16: a hand-over has no unowned gap, and either side may crash at any step.

use solehold_core::{
    call::Actor,
    command::{Acquire, AskedTenure, Command, HandOver},
    event::Change,
    key::{LeaseId, SessionId},
    lease::Declaration,
    session::HolderStatus,
    time::Token,
};

use crate::common::{Proof, TTL_MS, WITHIN_MS, World, key, lease, name, on};

/// Ann holds the lobby with token 1, and it is offered to bob's session.
fn offered() -> (World, SessionId, SessionId) {
    let mut w = World::new();
    let ann = w.opens("ann");
    let bob = w.opens("bob");
    w.acquire_in(ann, "ann", "lobby").says("granted #1 for 10000 ms", "lease_acquired");
    w.hand_over("lobby", bob).says("offered to bob", "lease_pending");
    (w, ann, bob)
}

#[test]
fn the_holders_release_activates_what_is_pending_in_the_same_commit() {
    let (mut w, _, bob) = offered();
    w.renew(on("lobby").token(1)).says("renewed #1 for 10000 ms", "");
    w.release_leaving(on("lobby").token(1), 1, "tracks")
        .says("released", "state_changed lease_released lease_acquired");
    w.renew(on("lobby").session(bob)).says("renewed #5 for 10000 ms", "");
}

#[test]
fn the_holders_expiry_activates_what_is_pending_in_the_same_commit() {
    let (mut w, _, bob) = offered();
    w.wait(6_000);
    w.heartbeat(bob);
    w.expire("lobby").says("judged, expired: true", "lease_expired");
    w.hand_over("lobby", bob).says("offered to bob", "lease_pending");
    w.wait(4_000);
    w.expire("lobby").says("judged, expired: true", "lease_expired lease_acquired");
    w.renew(on("lobby").token(6)).says("renewed #6 for 10000 ms", "");
}

#[test]
fn an_acquire_that_finds_the_holder_dead_activates_what_is_pending_and_is_refused() {
    let mut w = World::new();
    let ann = w.opens("ann");
    let bob = w.opens("bob");
    w.acquire_in(ann, "ann", "lobby").says("granted #1 for 10000 ms", "lease_acquired");
    w.wait(TTL_MS - 1_000);
    w.heartbeat(bob);
    w.hand_over("lobby", bob).says("offered to bob", "lease_pending");
    w.wait(1_000);
    w.acquire("cat", "lobby").says(
        "refused: held by bob with token 4, for another 9000 ms unless it is renewed",
        "lease_expired lease_acquired",
    );
    w.renew(on("lobby").session(bob)).says("renewed #4 for 10000 ms", "");
}

#[test]
fn an_acquire_takes_what_is_pending_no_more_at_the_end_of_its_offer() {
    let (mut w, _, bob) = offered();
    w.wait(WITHIN_MS);
    w.expire("lobby");
    w.heartbeat(bob);
    w.hand_over("lobby", bob);
    w.wait(WITHIN_MS - 1);
    w.heartbeat(bob);
    w.acquire("cat", "lobby")
        .says("refused: held by ann with token 1, for another 1 ms unless it is renewed", "");
    w.wait(1);
    // At its own deadline the pending lease lapses, even if the holder's time ends in the same millisecond.
    w.acquire("cat", "lobby")
        .says("granted #8 for 10000 ms", "lease_expired lease_expired lease_stolen lease_acquired");
}

#[test]
fn what_is_pending_comes_before_anyone_who_asks() {
    let (mut w, ann, bob) = offered();
    w.acquire("cat", "lobby")
        .says("refused: held by ann with token 1, for another 10000 ms unless it is renewed", "");
    w.close(ann).says("closed, 1 released", "lease_released lease_acquired");
    w.acquire("cat", "lobby")
        .says("refused: held by bob with token 4, for another 10000 ms unless it is renewed", "");
    w.heartbeat(bob);
}

#[test]
fn at_its_deadline_the_pending_lease_lapses_and_the_holder_keeps_the_resource() {
    let (mut w, ann, _) = offered();
    w.wait(WITHIN_MS);
    w.expire("lobby").says("judged, expired: true", "lease_expired");
    w.heartbeat(ann).says("session of ann for 10000 ms", "");
    w.renew(on("lobby").token(1)).says("renewed #1 for 10000 ms", "");
}

#[test]
fn a_pending_lease_that_lapsed_unswept_is_not_activated_by_a_release() {
    let (mut w, _, _) = offered();
    w.wait(WITHIN_MS);
    w.release(on("lobby").token(1)).says("released", "lease_expired lease_released");
    w.acquire("cat", "lobby").says("granted #5 for 10000 ms", "lease_acquired");
}

#[test]
fn a_pending_lease_that_lapsed_unswept_is_not_activated_by_a_revoke() {
    let (mut w, _, _) = offered();
    w.wait(WITHIN_MS);
    w.revoke_fenced(on("lobby")).says("revoked, held back for 0 ms", "lease_expired lease_revoked");
}

#[test]
fn if_the_next_holder_crashed_the_resource_is_free() {
    let mut w = World::new();
    let bob = w.opens("bob");
    w.wait(9_000);
    let ann = w.opens("ann");
    w.acquire_in(ann, "ann", "lobby");
    w.hand_over("lobby", bob).says("offered to bob", "lease_pending");
    w.wait(1_000);
    w.release(on("lobby").token(1)).says("released", "lease_released lease_expired");
    w.acquire("cat", "lobby").says("granted #5 for 10000 ms", "lease_acquired");
}

#[test]
fn if_the_next_holder_restarted_or_drains_the_resource_is_free() {
    let (mut w, _, _) = offered();
    w.opens("bob");
    w.release(on("lobby").token(1)).says("released", "lease_released lease_expired");

    let (mut w, _, _) = offered();
    w.status("bob", HolderStatus::Draining);
    w.release(on("lobby").token(1)).says("released", "lease_released lease_expired");
}

#[test]
fn if_the_next_holder_leaves_the_holder_keeps_the_resource() {
    let (mut w, _, bob) = offered();
    w.close(bob).says("closed, 0 released", "lease_expired");
    w.renew(on("lobby").token(1)).says("renewed #1 for 10000 ms", "");

    let (mut w, _, _) = offered();
    w.removes("bob").says("removed, 0 released, 0 revoked", "lease_expired");
    w.renew(on("lobby").token(1)).says("renewed #1 for 10000 ms", "");
}

#[test]
fn a_revoke_activates_what_is_pending_once_the_hold_back_has_passed() {
    let (mut w, _, bob) = offered();
    w.wait(1);
    w.heartbeat(bob);
    w.wait(1);
    w.hand_over("lobby", bob).says("refused: the resource is already being handed over to bob", "");
    w.revoke(on("lobby")).says("revoked, held back for 9998 ms", "lease_revoked");
    w.acquire("cat", "lobby").says("refused: held back for another 9998 ms after token 1", "");
    // The offer lapses before the hold-back ends: the resource is free then.
    w.wait(9_998);
    w.expire("lobby").says("judged, expired: true", "lease_expired");
    w.acquire("cat", "lobby").says("granted #5 for 10000 ms", "lease_acquired");
}

#[test]
fn a_hold_back_that_ends_within_the_offer_activates_it() {
    let mut w = World::new();
    let ann = w.opens("ann");
    let bob = w.opens("bob");
    w.acquire_in(ann, "ann", "lobby");
    w.wait(8_000);
    w.heartbeat(bob);
    w.hand_over("lobby", bob);
    w.revoke(on("lobby")).says("revoked, held back for 2000 ms", "lease_revoked");
    w.wait(1_999);
    w.expire("lobby").says("judged, expired: false", "");
    w.wait(1);
    w.acquire("cat", "lobby").says(
        "refused: held by bob with token 4, for another 8000 ms unless it is renewed",
        "lease_acquired",
    );
}

#[test]
fn a_fenced_revoke_activates_what_is_pending_at_once() {
    let (mut w, _, _) = offered();
    w.revoke_fenced(on("lobby")).says("revoked, held back for 0 ms", "lease_revoked lease_acquired");
}

#[test]
fn there_is_one_pending_lease_a_resource_without_a_token_or_any_right() {
    let (mut w, ann, bob) = offered();
    let cat = w.opens("cat");
    w.hand_over("lobby", cat).says("refused: the resource is already being handed over to bob", "");
    w.hand_over("lobby", ann).says("refused: the resource is already being handed over to ann", "");
    let pending = w.pending_on("lobby");
    w.renew(lease(pending))
        .says(&format!("refused: lease ~{:x} does not exist or has ended", pending.0.as_u128()), "");
    w.renew(on("lobby").session(bob))
        .says("refused: the session does not match the lease, which ann holds with token 1", "");
}

#[test]
fn only_what_is_held_can_be_handed_over() {
    let mut w = World::new();
    let bob = w.opens("bob");
    w.hand_over("lobby", bob).says("refused: resource scene/lobby of tenant acme does not exist", "");
    w.declare("lobby", 0);
    w.hand_over("lobby", bob).says("refused: the lease is not active; the resource's last token is 0", "");
}

#[test]
fn with_a_lock_delay_expiry_and_activation_are_one_commit_after_it() {
    let mut w = World::new();
    let ann = w.opens("ann");
    let bob = w.opens("bob");
    w.declare("lobby", 2_000);
    w.acquire_in(ann, "ann", "lobby");
    w.wait(9_000);
    w.heartbeat(bob);
    w.hand_over("lobby", bob);
    w.wait(2_999);
    w.expire("lobby").says("judged, expired: false", "");
    w.acquire("cat", "lobby").says("refused: held back for another 1 ms after token 2", "");
    w.wait(1);
    w.expire("lobby").says("judged, expired: true", "lease_expired lease_acquired");
}

#[test]
fn a_turn_that_came_before_the_deadline_is_granted_however_late_it_is_noticed() {
    let mut w = World::new();
    let ann = w.opens("ann");
    let bob = w.opens("bob");
    w.acquire_in(ann, "ann", "lobby");
    w.wait(6_000);
    w.heartbeat(bob);
    // Ann's time ends a second before the offer does, and nobody looks until both are over.
    w.hand_over("lobby", bob).says("offered to bob", "lease_pending");
    w.wait(WITHIN_MS + 1_000);
    w.expire("lobby").says("judged, expired: true", "lease_expired lease_acquired");
    w.renew(on("lobby").session(bob)).says("renewed #4 for 10000 ms", "");
}

#[test]
fn a_session_that_is_full_is_offered_nothing() {
    let mut w = World::new();
    let bob = w.opens_with_capacity("bob", 1);
    w.acquire_in(bob, "bob", "yard");
    w.acquire("ann", "lobby");
    w.hand_over("lobby", bob).says("refused: session ~1 is at its capacity of 1 leases", "");
    w.release(on("yard").session(bob));
    w.hand_over("lobby", bob).says("offered to bob", "lease_pending");
}

#[test]
fn a_pending_lease_is_not_activated_beyond_the_capacity_of_its_session() {
    let mut w = World::new();
    let bob = w.opens_with_capacity("bob", 1);
    let room = w.room();
    w.acquire("ann", "lobby").says("granted #1 for 10000 ms", "lease_acquired");
    w.hand_over("lobby", bob).says("offered to bob", "lease_pending");
    w.waits(room, "cat", "lobby");
    w.acquire_in(bob, "bob", "yard").says("granted #4 for 10000 ms", "lease_acquired");
    // It lapses, and the resource goes to who waits for it.
    w.release(on("lobby").token(1)).says("released", "lease_released lease_expired lease_acquired");
    assert_eq!(w.line("lobby"), "");
}

#[test]
fn what_one_decision_hands_out_counts_toward_capacity() {
    let mut w = World::new();
    let ann = w.opens("ann");
    let bob = w.opens_with_capacity("bob", 1);
    for what in ["hall", "lobby", "yard"] {
        w.acquire_in(ann, "ann", what);
        w.hand_over(what, bob).says("offered to bob", "lease_pending");
    }
    w.close(ann).says(
        "closed, 3 released",
        "lease_released lease_acquired lease_released lease_expired lease_released lease_expired",
    );
    assert_eq!(w.state.session(bob).map(|s| s.lease_count), Some(1));
}

#[test]
fn the_move_budget_counts_what_is_pending() {
    let mut w = World::new();
    let ann = w.opens("ann");
    let bob = w.opens("bob");
    for what in ["lobby", "yard", "gate"] {
        w.acquire_in(ann, "ann", what);
    }
    let within_two = |w: &mut World, what| {
        let ask = HandOver { budget: Some(2), ..w.offers(what, bob) };
        w.told(Command::HandOver(ask))
    };
    within_two(&mut w, "lobby").says("offered to bob", "lease_pending");
    within_two(&mut w, "yard").says("offered to bob", "lease_pending");
    within_two(&mut w, "gate").says(
        "refused: the move budget is used up: 2 resources of kind scene are already being handed over; try again when \
         one of them has moved",
        "",
    );
    w.release(on("lobby").session(ann)).says("released", "lease_released lease_acquired");
    within_two(&mut w, "gate").says("offered to bob", "lease_pending");
    // An operator who sets no budget is not bound by one.
    w.acquire_in(ann, "ann", "roof");
    w.hand_over("roof", bob).says("offered to bob", "lease_pending");
}

#[test]
fn either_side_calls_a_hand_over_off_and_nobody_else() {
    for side in ["one", "two"] {
        let (mut w, _, pending) = offered_across_keys();
        w.by = by("three");
        w.release(lease(pending))
            .says("refused: the lease belongs to key one; use that key, or an admin key", "");
        w.by = by(side);
        w.release(lease(pending)).says("released", "lease_released");
        w.by = by("one");
        w.renew(on("lobby").token(1)).says("renewed #1 for 10000 ms", "");
        w.release(on("lobby").token(1)).says("released", "lease_released");
    }
}

#[test]
fn a_planned_move_needs_only_the_key_of_the_next_holder() {
    let (mut w, bob, pending) = offered_across_keys();
    w.release(lease(pending));
    w.by = by("two");
    let ask = w.offers("lobby", bob);
    w.told(Command::HandOver(ask.clone()))
        .says("refused: the lease belongs to key one; use that key, or an admin key", "");
    w.told(Command::HandOver(HandOver { planned: Some(Token(1)), ..ask }))
        .says("offered to bob", "lease_pending");
    w.release(lease(w.pending_on("lobby")));
    w.by = by("one");
    let ask = HandOver { planned: Some(Token(1)), ..w.offers("lobby", bob) };
    w.told(Command::HandOver(ask))
        .says("refused: the session belongs to key two; use that key, or an admin key", "");
}

#[test]
fn a_plan_does_not_speak_for_a_holder_that_came_after_it_was_made() {
    let (mut w, bob, pending) = offered_across_keys();
    w.release(lease(pending));
    let planned = HandOver { planned: Some(Token(1)), ..w.offers("lobby", bob) };
    w.release(on("lobby").token(1)).says("released", "lease_released");
    let cat = w.opens("cat");
    w.acquire_in(cat, "cat", "lobby").says("granted #5 for 10000 ms", "lease_acquired");
    w.by = by("two");
    w.told(Command::HandOver(planned))
        .says("refused: the lease belongs to key one; use that key, or an admin key", "");
}

#[test]
fn both_sides_are_told_of_a_hand_over_and_of_its_end() {
    let mut w = World::new();
    let ann = w.opens("ann");
    let bob = w.opens("bob");
    let told = |w: &mut World, command: Command| -> Vec<SessionId> {
        let changes = w.run(&command).changes;
        let event = |change: &Change| match change {
            Change::Event(event) => Some(event.is_news_to().collect::<Vec<_>>()),
            _ => None,
        };
        let told: Vec<_> = changes.iter().filter_map(event).flatten().collect();
        let revision = w.moment.revision;
        for id in &told {
            let session = w.state.session(*id).expect("it is open");
            assert_eq!(session.lease_revision, revision, "its set has changed");
        }
        told
    };
    let ask =
        Acquire { tenure: AskedTenure::Session(ann), request: Some(name("r1")), ..w.asks("ann", "lobby") };
    assert_eq!(told(&mut w, Command::Acquire(ask)), [], "whoever asks is answered");
    let offer = w.offers("lobby", bob);
    assert_eq!(told(&mut w, Command::HandOver(offer)), [bob, ann]);
    let call_off = Command::Release { claim: lease(w.pending_on("lobby")), state: None };
    assert_eq!(told(&mut w, call_off), [bob, ann]);
    let declaration = Declaration { site: Some(name("north")), ..Default::default() };
    let declare = Command::Declare { key: key("lobby"), declaration, only_new: false };
    assert_eq!(told(&mut w, declare), [ann], "its configuration has changed");
    let offer = w.offers("lobby", bob);
    told(&mut w, Command::HandOver(offer));
    let release = Command::Release { claim: on("lobby").session(ann), state: None };
    assert_eq!(told(&mut w, release), [bob], "a holder knows of its own release");
    let revoke = Command::Revoke { claim: on("lobby"), fenced: true, reason: None };
    assert_eq!(told(&mut w, revoke), [bob]);
}

fn by(id: &str) -> Actor {
    Actor::Key { id: name(id), scopes: Default::default() }
}

/// As [`offered`], but ann works by key one and bob by key two; gives bob's session and the pending lease.
fn offered_across_keys() -> (World, SessionId, LeaseId) {
    let mut w = World::new();
    w.by = by("two");
    let bob = w.opens("bob");
    w.by = by("one");
    let ann = w.opens("ann");
    w.acquire_in(ann, "ann", "lobby").says("granted #1 for 10000 ms", "lease_acquired");
    w.hand_over("lobby", bob).says("offered to bob", "lease_pending");
    let pending = w.pending_on("lobby");
    (w, bob, pending)
}
