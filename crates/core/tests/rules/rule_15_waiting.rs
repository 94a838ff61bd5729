//! Rule 15: waiting in line. First come, first served among those who are still there; a waited grant must be
//! confirmed.

use solehold_core::{
    command::{Acquire, Command, OpenSession, Undeclared, Wait},
    decide,
    event::Change,
    key::{Name, SessionId},
    ledger::FoundLate,
    limits::{CONFIRM_MS, SESSION_WAITERS_MAX, WAIT_MS_MAX, WAITERS_MAX},
    session::{HolderStatus, Session},
};

use crate::common::{Proof, TENANT, TTL_MS, WAIT_MS, World, key, lease, name, on};

/// Ann holds the lobby with token 1; bob, then cat, wait in one room.
fn waiting() -> (World, SessionId) {
    let mut w = World::new();
    let room = w.room();
    w.acquire("ann", "lobby").says("granted #1 for 10000 ms", "lease_acquired");
    w.waits(room, "bob", "lobby").says("waiting behind 0 for 60000 ms", "");
    w.waits(room, "cat", "lobby").says("waiting behind 1 for 60000 ms", "");
    (w, room)
}

fn close_room(w: &mut World, session: SessionId) {
    w.told(Command::CloseSession { tenant: Name::rooms(), session }).says("closed, 0 released", "");
}

#[test]
fn who_asks_for_what_is_free_does_not_wait() {
    let mut w = World::new();
    let room = w.room();
    w.waits(room, "bob", "lobby").says("granted #1 for 10000 ms", "lease_acquired");
    assert_eq!(w.line("lobby"), "");
}

#[test]
fn a_release_grants_to_the_first_in_line_in_the_same_commit() {
    let (mut w, _) = waiting();
    w.release(on("lobby").token(1)).says("released", "lease_released lease_acquired");
    w.renew(on("lobby").token(5)).says("renewed #5 for 10000 ms", "");
    assert_eq!(w.line("lobby"), "cat");
    w.release(on("lobby").token(5)).says("released", "lease_released lease_acquired");
    w.renew(on("lobby").holder("cat").token(7)).says("renewed #7 for 10000 ms", "");
}

#[test]
fn nobody_who_asks_later_comes_before_someone_in_line() {
    let (mut w, _) = waiting();
    w.wait(TTL_MS);
    // Ann's time ran out, and nobody has swept: what dan finds is bob's.
    w.acquire("dan", "lobby").says(
        "refused: held by bob with token 5, for another 2000 ms unless it is renewed",
        "lease_expired lease_acquired",
    );
}

#[test]
fn an_expiry_grants_to_the_first_in_line() {
    let (mut w, _) = waiting();
    w.wait(TTL_MS - 1);
    w.expire("lobby").says("judged, expired: false", "");
    w.wait(1);
    w.expire("lobby").says("judged, expired: true", "lease_expired lease_acquired");
    assert_eq!(w.line("lobby"), "cat");
}

#[test]
fn a_revoked_lease_is_waited_out_and_then_granted() {
    let (mut w, _) = waiting();
    w.revoke(on("lobby")).says("revoked, held back for 10000 ms", "lease_revoked");
    w.wait(TTL_MS - 1);
    w.expire("lobby").says("judged, expired: false", "");
    w.wait(1);
    w.expire("lobby").says("judged, expired: true", "lease_acquired");
    let (mut w, _) = waiting();
    w.revoke_fenced(on("lobby")).says("revoked, held back for 0 ms", "lease_revoked lease_acquired");
}

#[test]
fn lock_delay_counts_for_those_in_line_too() {
    let mut w = World::new();
    let room = w.room();
    w.declare("lobby", 3_000);
    w.acquire("ann", "lobby");
    w.waits(room, "bob", "lobby");
    w.wait(TTL_MS);
    w.expire("lobby").says("judged, expired: true", "lease_expired");
    w.wait(2_999);
    w.expire("lobby").says("judged, expired: false", "");
    w.wait(1);
    w.expire("lobby").says("judged, expired: true", "lease_acquired");
}

#[test]
fn what_is_pending_comes_before_the_line() {
    let (mut w, _) = waiting();
    let dan = w.opens("dan");
    w.hand_over("lobby", dan).says("offered to dan", "lease_pending");
    w.release(on("lobby").token(1)).says("released", "lease_released lease_acquired");
    w.renew(on("lobby").session(dan)).says("renewed #6 for 10000 ms", "");
    assert_eq!(w.line("lobby"), "bob cat");
    w.close(dan).says("closed, 1 released", "lease_released lease_acquired");
    assert_eq!(w.line("lobby"), "cat");
}

#[test]
fn a_pending_lease_that_cannot_be_granted_leaves_it_to_the_line() {
    let (mut w, _) = waiting();
    let dan = w.opens("dan");
    w.hand_over("lobby", dan);
    w.status("dan", HolderStatus::Draining);
    w.release(on("lobby").token(1)).says("released", "lease_released lease_expired lease_acquired");
    w.renew(on("lobby").holder("bob").token(7)).says("renewed #7 for 10000 ms", "");
}

#[test]
fn a_waited_grant_lapses_unless_it_is_confirmed() {
    let (mut w, _) = waiting();
    w.release(on("lobby").token(1));
    w.wait(CONFIRM_MS - 1);
    w.expire("lobby").says("judged, expired: false", "");
    w.wait(1);
    w.renew(on("lobby").token(5))
        .says("refused: the lease is not active; the resource's last token is 5", "");
    w.expire("lobby").says("judged, expired: true", "lease_expired lease_acquired");
    w.renew(on("lobby").token(7)).says("renewed #7 for 10000 ms", "");
    // What lapsed has spent its request (rule 7).
    let room = w.room();
    w.waits(room, "bob", "lobby")
        .says("refused: request bob is spent: it was cancelled, or its lease has ended or belongs to a former session", "");
}

#[test]
fn a_renewal_with_proof_confirms_and_a_name_does_not() {
    for (proof, is_proof) in [("token", true), ("lease", true), ("name", false)] {
        let (mut w, _) = waiting();
        w.release(on("lobby").token(1));
        let id = w.lease_on("lobby");
        let claim = match proof {
            "token" => on("lobby").token(5),
            "lease" => lease(id),
            _ => on("lobby").holder("bob"),
        };
        w.wait(500);
        let left = if is_proof { 10_000 } else { 1_500 };
        w.renew(claim).says(&format!("renewed #5 for {left} ms"), "");
        w.wait(CONFIRM_MS);
        assert_eq!(w.expire("lobby").outcome, format!("judged, expired: {}", !is_proof), "{proof}");
    }
}

#[test]
fn a_sessions_heartbeat_alone_confirms_nothing() {
    let mut w = World::new();
    let room = w.room();
    let bob = w.opens("bob");
    w.acquire("ann", "lobby");
    w.waits_in(room, bob, "bob", "lobby").says("waiting behind 0 for 60000 ms", "");
    w.release(on("lobby").token(1)).says("released", "lease_released lease_acquired");
    w.wait(CONFIRM_MS - 1);
    w.heartbeat(bob).says("session of bob for 10000 ms", "");
    w.acquire("cat", "lobby")
        .says("refused: held by bob with token 4, for another 1 ms unless it is renewed", "");
    w.renew(on("lobby").session(bob)).says("renewed #4 for 10000 ms", "");
    w.wait(TTL_MS - 1);
    w.acquire("cat", "lobby")
        .says("refused: held by bob with token 4, for another 1 ms unless it is renewed", "");
}

#[test]
fn whoever_asks_again_keeps_its_place_wherever_it_asks() {
    let (mut w, room) = waiting();
    let former = w.waiter("bob", "lobby");
    let elsewhere = w.room();
    let since = |w: &World| w.state.waiters().next().map(|first| (first.holder.clone(), first.since));
    let joined = since(&w);
    w.wait(1_000);
    w.waits_for(elsewhere, "bob", "lobby", 2_000).says("waiting behind 1 for 2000 ms", "");
    assert_eq!(w.line("lobby"), "bob cat");
    assert_eq!(since(&w), joined, "it is known since when it waits");
    let gone = "refused: lease ~3 does not exist or has ended";
    w.leave("lobby", former).says(gone, "");
    close_room(&mut w, room);
    assert_eq!(w.line("lobby"), "bob", "cat was in the room that was closed");
    w.release(on("lobby").token(1)).says("released", "lease_released lease_acquired");
    w.waits(elsewhere, "bob", "lobby").says("granted again #5 for 2000 ms, to confirm in 2000", "");
}

#[test]
fn whoever_was_gone_for_too_long_comes_last() {
    let mut w = World::new();
    let short = w.room_for(2_000);
    let long = w.room();
    w.acquire("ann", "lobby");
    w.waits(short, "bob", "lobby");
    w.waits(long, "cat", "lobby");
    w.wait(2_000);
    w.waits(long, "bob", "lobby").says("waiting behind 1 for 60000 ms", "");
    assert_eq!(w.line("lobby"), "cat bob");
}

#[test]
fn the_dead_are_passed_over() {
    let mut w = World::new();
    let short = w.room_for(2_000);
    let long = w.room();
    let dan = w.opens("dan");
    let eve = w.opens("eve");
    w.acquire("ann", "lobby");
    w.waits(short, "bob", "lobby");
    w.waits_for(long, "cat", "lobby", 1_000);
    w.waits_in(long, dan, "dan", "lobby");
    w.waits_in(long, eve, "eve", "lobby");
    w.waits(long, "fay", "lobby");
    w.wait(2_000);
    w.opens("dan");
    w.status("eve", HolderStatus::Draining);
    assert_eq!(w.line("lobby"), "bob cat dan eve fay");
    w.release(on("lobby").token(1)).says("released", "lease_released lease_acquired");
    w.renew(on("lobby").holder("fay").token(8)).says("renewed #8 for 10000 ms", "");
    assert_eq!(w.line("lobby"), "");
}

#[test]
fn a_line_of_dead_ones_leaves_the_resource_free() {
    let mut w = World::new();
    let room = w.room_for(2_000);
    w.acquire("ann", "lobby");
    for who in ["bob", "cat", "dan"] {
        w.waits(room, who, "lobby");
    }
    w.wait(2_000);
    w.release(on("lobby").token(1)).says("released", "lease_released");
    assert!(w.state.resource(&key("lobby")).is_none(), "nothing is left of it");
    w.told(Command::ExpireSession(room)).says("judged, expired: true", "");
    assert!(w.state.session(room).is_none());
}

#[test]
fn a_dead_room_is_cleared_whoever_holds() {
    let mut w = World::new();
    let room = w.room_for(2_000);
    let kept = w.room();
    w.acquire("ann", "lobby");
    w.waits(room, "bob", "lobby");
    w.waits(kept, "cat", "lobby");
    w.told(Command::ExpireSession(room)).says("judged, expired: false", "");
    w.wait(2_000);
    w.told(Command::ExpireSession(room)).says("judged, expired: true", "");
    assert_eq!(w.line("lobby"), "cat");
}

#[test]
fn who_leaves_is_granted_nothing() {
    let (mut w, _) = waiting();
    let bob = w.waiter("bob", "lobby");
    w.leave("lobby", bob).says("left", "");
    w.leave("lobby", bob).says("refused: lease ~3 does not exist or has ended", "");
    w.cancel("cat", "lobby", "cat").says("spent", "");
    assert_eq!(w.line("lobby"), "");
    w.release(on("lobby").token(1)).says("released", "lease_released");
}

#[test]
fn who_leaves_too_late_is_told_of_the_grant() {
    let (mut w, _) = waiting();
    let bob = w.waiter("bob", "lobby");
    w.release(on("lobby").token(1));
    w.leave("lobby", bob).says("granted again #5 for 2000 ms, to confirm in 2000", "");
    w.release(lease(bob)).says("released", "lease_released lease_acquired");
}

#[test]
fn a_closed_session_leaves_all_lines_and_gets_nothing_of_its_own() {
    let mut w = World::new();
    let room = w.room();
    let ann = w.opens("ann");
    w.acquire_in(ann, "ann", "lobby");
    w.waits_in(room, ann, "ann", "lobby").says("waiting behind 0 for 60000 ms", "");
    w.waits(room, "bob", "lobby");
    w.close(ann).says("closed, 1 released", "lease_released lease_acquired");
    w.renew(on("lobby").holder("bob").token(5)).says("renewed #5 for 10000 ms", "");
}

#[test]
fn a_session_takes_no_more_than_it_may() {
    let mut w = World::new();
    let room = w.room();
    let bob = w.opens("bob");
    let capacity = Some(1);
    let registration =
        solehold_core::command::Registration { site: None, capacity, attributes: Default::default() };
    let id = SessionId(w.fresh());
    let holder = solehold_core::key::HolderKey { tenant: name("acme"), name: name("bob") };
    w.told(Command::OpenSession(OpenSession {
        id,
        holder,
        ttl_ms: TTL_MS,
        replace: Some(bob),
        fenced: false,
        follows: None,
        registration: Some(registration),
        metrics: None,
    }));
    for what in ["lobby", "yard"] {
        w.acquire("ann", what);
        w.waits_in(room, id, "bob", what);
    }
    w.release(on("lobby").holder("ann")).says("released", "lease_released lease_acquired");
    w.release(on("yard").holder("ann")).says("released", "lease_released");
    w.waits_in(room, id, "bob", "yard").says("refused: session ~3 is at its capacity of 1 leases", "");
}

#[test]
fn a_deleted_resource_goes_only_to_those_who_take_it_undeclared() {
    let mut w = World::new();
    let room = w.room();
    w.declare("lobby", 0);
    w.acquire("ann", "lobby");
    let ask = w.asks("bob", "lobby");
    let wait = Some(Wait { room, wait_ms: WAIT_MS });
    w.told(Command::Acquire(Acquire { undeclared: Undeclared::Refuse, wait, ..ask }));
    w.waits(room, "cat", "lobby");
    w.delete_by_force("lobby", true).says("removed", "lease_revoked resource_deleted lease_acquired");
    w.renew(on("lobby").holder("cat").token(7)).says("renewed #7 for 10000 ms", "");
}

#[test]
fn a_place_takes_a_revision_and_makes_no_event() {
    let mut w = World::new();
    let room = w.room();
    w.acquire("ann", "lobby");
    let ask = Acquire { wait: Some(Wait { room, wait_ms: 1 }), ..w.asks("bob", "lobby") };
    let decision = w.run(&Command::Acquire(ask));
    assert!(matches!(&decision.changes[..], [Change::Waits(waiter)] if waiter.arrival.0 == 2));
    assert_eq!(decision.moment.revision.0, 2);
}

#[test]
fn the_bounds_are_named() {
    let mut w = World::new();
    let room = w.room();
    w.acquire("ann", "lobby");
    w.waits_for(room, "bob", "lobby", 0).says("refused: wait_ms is 0; it must be 1 to 3600000", "");
    w.waits_for(room, "bob", "lobby", WAIT_MS_MAX + 1)
        .says("refused: wait_ms is 3600001; it must be 1 to 3600000", "");
    let ann = w.opens("ann");
    w.waits(ann, "bob", "lobby").says(
        &format!("refused: session {} does not exist or has ended; open a new session", short(ann)),
        "",
    );
    // A long line, made of rows as a store would load them.
    let mut resource = w.state.resource(&key("lobby")).expect("held").clone();
    resource.queued = WAITERS_MAX;
    w.state.load_resource(resource.clone());
    w.waits(room, "bob", "lobby")
        .says("refused: the queue is full: 10000 clients are already waiting for the resource", "");
    w.state.load_resource(solehold_core::lease::Resource { queued: 0, ..resource });
    let mut full = w.state.session(room).expect("open").clone();
    full.waiting = SESSION_WAITERS_MAX;
    w.state.load_session(full);
    w.waits(room, "bob", "lobby")
        .says("refused: the queue is full: 10000 clients are already waiting at this replica", "");
}

fn short(id: SessionId) -> String {
    id.to_string().replace("00000000-0000-0000-0000-00000000000", "~")
}

#[test]
fn a_room_is_nobodys_session() {
    let mut w = World::new();
    let room = w.room();
    assert_eq!(w.state.holders().count(), 0);
    w.acquire_in(room, "ann", "lobby").says(
        &format!("refused: session {} does not exist or has ended; open a new session", short(room)),
        "",
    );
    w.acquire("ann", "lobby");
    w.hand_over("lobby", room).says(
        &format!("refused: session {} does not exist or has ended; open a new session", short(room)),
        "",
    );
    assert!(w.heartbeat(room).outcome.starts_with("refused"));
}

#[test]
fn a_retry_by_the_same_lease_id_keeps_the_place() {
    let (mut w, room) = waiting();
    let ask = Acquire { wait: Some(Wait { room, wait_ms: WAIT_MS }), ..w.asks("zoe", "lobby") };
    let before = w.line("lobby");
    w.told(Command::Acquire(ask.clone()));
    w.told(Command::Acquire(ask));
    assert_eq!(w.line("lobby"), format!("{before} zoe").trim());
}

#[test]
fn sessions_count_those_who_wait_on_them() {
    let mut w = World::new();
    let room = w.room();
    let bob = w.opens("bob");
    w.acquire("ann", "lobby");
    let counts = |w: &World| [room, bob].map(|id| w.state.session(id).map_or(0, |s| s.waiting));
    w.waits_in(room, bob, "bob", "lobby");
    assert_eq!(counts(&w), [1, 1]);
    // Asking again is the same place.
    w.waits_in(room, bob, "bob", "lobby");
    assert_eq!(counts(&w), [1, 1]);
    let waiter = w.waiter("bob", "lobby");
    w.leave("lobby", waiter);
    assert_eq!(counts(&w), [0, 0]);
}

#[test]
fn whoever_asks_again_in_a_full_room_takes_its_own_place_there() {
    let mut w = World::new();
    let room = w.room();
    w.acquire("ann", "lobby");
    w.waits_for(room, "bob", "lobby", 1_000).says("waiting behind 0 for 1000 ms", "");
    let full = Session { waiting: SESSION_WAITERS_MAX, ..w.state.session(room).expect("open").clone() };
    w.state.load_session(full);
    w.waits(room, "zoe", "lobby")
        .says("refused: the queue is full: 10000 clients are already waiting at this replica", "");
    w.wait(1_000);
    // Its wait has run out: the dead place that it leaves is the one that it needs.
    w.waits(room, "bob", "lobby").says("waiting behind 0 for 60000 ms", "");
}

#[test]
fn a_wait_is_over_at_its_very_deadline() {
    let mut w = World::new();
    let room = w.room();
    w.acquire("ann", "lobby");
    w.waits_for(room, "bob", "lobby", 1_000);
    w.wait(1_000);
    w.release(on("lobby").holder("ann")).says("released", "lease_released");
    assert_eq!(w.line("lobby"), "");
}

#[test]
fn a_lease_that_died_this_very_moment_is_no_grant_to_whoever_leaves() {
    let mut w = World::new();
    w.declare("lobby", 5_000);
    w.acquire("ann", "lobby");
    w.wait(TTL_MS - 1_000);
    let bob = w.opens("bob");
    w.hand_over("lobby", bob);
    w.wait(1_000);
    // It stays for the sake of the pending lease, and is dead.
    let dead = w.lease_on("lobby");
    w.leave("lobby", dead).says("refused: lease ~1 does not exist or has ended", "");
}

#[test]
fn a_session_does_not_end_while_places_in_line_on_it_are_not_loaded() {
    let mut w = World::new();
    let room = w.room();
    let bob = w.opens("bob");
    w.acquire("ann", "lobby");
    w.waits_in(room, bob, "bob", "lobby");
    let more = Session { waiting: 2, ..w.state.session(bob).expect("open").clone() };
    w.state.load_session(more);
    let close = Command::CloseSession { tenant: name(TENANT), session: bob };
    assert_eq!(decide(&w.state, &close.into(), w.moment), Err(FoundLate::WaitersOn(bob)));
}
