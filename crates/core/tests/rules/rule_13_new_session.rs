//! Rule 13: registering again is a new session; the old one's leases run out, or are closed at once with `replace`.

use solehold_core::session::HolderStatus;

use crate::common::{Proof, World, lease, on};

const SUPERSEDED: &str = "refused: session ~1 was superseded: its holder has opened a newer session";

#[test]
fn a_superseded_session_renews_nothing_by_token_lease_id_or_session() {
    let mut w = World::new();
    let old = w.opens("ann");
    w.acquire_in(old, "ann", "lobby").says("granted #1 for 10000 ms", "lease_acquired");
    let id = w.lease_on("lobby");
    w.wait(1_000);
    let new = w.opens("ann");
    w.renew(on("lobby").token(1)).says(SUPERSEDED, "");
    w.renew(lease(id)).says(SUPERSEDED, "");
    w.renew(on("lobby").session(old)).says(SUPERSEDED, "");
    w.renew(on("lobby").holder("ann")).says(SUPERSEDED, "");
    w.heartbeat(old).says(SUPERSEDED, "");
    w.acquire_in(old, "ann", "hall").says(SUPERSEDED, "");
    w.renew(on("lobby").token(1).session(new))
        .says("refused: the session does not match the lease, which ann holds with token 1", "");
}

#[test]
fn a_superseded_sessions_leases_run_out_at_their_deadline() {
    let mut w = World::new();
    let old = w.opens("ann");
    w.acquire_in(old, "ann", "lobby");
    w.wait(4_000);
    let new = w.opens("ann");
    w.wait(5_999);
    w.acquire_in(new, "ann", "lobby")
        .says("refused: held by ann with token 1, for another 1 ms unless it is renewed", "");
    w.wait(1);
    w.acquire_in(new, "ann", "lobby").says("granted #3 for 4000 ms", "lease_expired lease_acquired");
}

#[test]
fn a_process_that_comes_back_does_not_supersede_the_one_in_its_place() {
    let mut w = World::new();
    let first = w.opens("ann");
    w.wait(4_000);
    let second = w.opens("ann");
    // The first one's session expires and is forgotten.
    w.wait(9_000);
    w.heartbeat(first).says("refused: session ~1 has expired; open a new session", "");
    let (_, told) = w.comes_back("ann", first);
    told.says(SUPERSEDED, "");
    w.heartbeat(second).says("session of ann for 10000 ms", "");
    w.wait(10_000);
    let (third, told) = w.comes_back("ann", first);
    told.says("session of ann for 10000 ms", "");
    let (_, told) = w.comes_back("ann", third);
    told.says("session of ann for 10000 ms", "");
}

#[test]
fn replacing_a_session_revokes_its_leases_and_holds_them_back() {
    let mut w = World::new();
    let old = w.opens("ann");
    w.acquire_in(old, "ann", "lobby");
    w.wait(4_000);
    let (new, told) = w.replaces("ann", Some(old), false);
    told.says("session of ann for 10000 ms", "lease_revoked");
    w.acquire_in(new, "ann", "lobby").says("refused: held back for another 6000 ms after token 1", "");
    w.wait(6_000);
    w.acquire_in(new, "ann", "lobby").says("granted #3 for 4000 ms", "lease_acquired");
    w.heartbeat(old).says("refused: session ~1 does not exist or has ended; open a new session", "");
}

#[test]
fn replacing_a_fenced_session_frees_its_leases_at_once() {
    let mut w = World::new();
    let old = w.opens("ann");
    w.acquire_in(old, "ann", "lobby");
    let (new, told) = w.replaces("ann", Some(old), true);
    told.says("session of ann for 10000 ms", "lease_revoked");
    w.acquire_in(new, "ann", "lobby").says("granted #3 for 10000 ms", "lease_acquired");
}

#[test]
fn nobody_replaces_anothers_session() {
    let mut w = World::new();
    let ann = w.opens("ann");
    w.acquire_in(ann, "ann", "lobby");
    w.replaces("bob", Some(ann), false).1.says("refused: session ~1 does not belong to bob", "");
    w.heartbeat(ann).says("session of ann for 10000 ms", "");
}

#[test]
fn opening_a_session_again_by_the_same_id_finds_it_as_it_is() {
    let mut w = World::new();
    let ann = w.opens("ann");
    let bob = w.opens("bob");
    w.acquire_in(bob, "bob", "lobby");
    w.hand_over("lobby", ann);
    w.release(on("lobby").session(bob)).says("released", "lease_released lease_acquired");
    w.wait(4_000);
    let before = w.state.clone();
    // What a driver sends again when it lost the answer of its COMMIT.
    w.reopens(ann, "ann").says("session of ann for 6000 ms", "");
    assert_eq!(w.state, before);
}

#[test]
fn a_holder_that_comes_back_has_drained_but_maintenance_lasts() {
    let mut w = World::new();
    w.opens("ann");
    w.status("ann", HolderStatus::Draining).says("holder ann is Draining", "");
    let ann = w.opens("ann");
    w.acquire_in(ann, "ann", "lobby").says("granted #1 for 10000 ms", "lease_acquired");
    w.status("ann", HolderStatus::Maintenance).says("holder ann is Maintenance", "");
    w.acquire_in(ann, "ann", "hall").says("refused: holder ann is draining and accepts no more leases", "");
    w.renew(on("lobby").token(1)).says("renewed #1 for 10000 ms", "");
    let again = w.opens("ann");
    w.acquire_in(again, "ann", "hall").says("refused: holder ann is draining and accepts no more leases", "");
}

#[test]
fn a_holder_drains_itself_by_its_present_session_and_does_not_end_its_maintenance() {
    let mut w = World::new();
    let former = w.opens("ann");
    w.drains("ann", Some(former)).says("holder ann is Draining", "");
    let ann = w.opens("ann");
    w.drains("ann", Some(former)).says(SUPERSEDED, "");
    w.acquire_in(ann, "ann", "lobby").says("granted #1 for 10000 ms", "lease_acquired");
    w.status("ann", HolderStatus::Maintenance);
    w.drains("ann", Some(ann)).says("holder ann is Maintenance", "");
    w.drains("ann", None).says("holder ann is Maintenance", "");
    w.status("ann", HolderStatus::Active);
    w.drains("ann", None).says("holder ann is Draining", "");
}

#[test]
fn removing_a_holder_by_name_alone_does_not_free_its_sessions_work_before_the_deadline() {
    let mut w = World::new();
    let ann = w.opens("ann");
    let room = w.room();
    w.acquire_in(ann, "ann", "lobby").says("granted #1 for 10000 ms", "lease_acquired");
    w.wait(1_000);
    w.waits(room, "cat", "lobby");
    w.removes("ann").says("removed, 0 released, 1 revoked", "lease_revoked");
    w.removes("ann").says("refused: holder ann does not exist", "");
    w.heartbeat(ann).says("refused: session ~1 does not exist or has ended; open a new session", "");
    w.acquire("bob", "lobby").says("refused: held back for another 9000 ms after token 1", "");
    w.wait(8_999);
    w.expire("lobby").says("judged, expired: false", "");
    w.wait(1);
    w.expire("lobby").says("judged, expired: true", "lease_acquired");
    assert_eq!(w.line("lobby"), "", "who waited got it");
}

#[test]
fn removing_a_holder_with_its_session_as_proof_releases_what_it_holds() {
    let mut w = World::new();
    let ann = w.opens("ann");
    w.acquire_in(ann, "ann", "lobby");
    w.removes_with("ann", ann).says("removed, 1 released, 0 revoked", "lease_released");
    w.acquire("bob", "lobby").says("granted #3 for 10000 ms", "lease_acquired");
}

#[test]
fn another_session_is_no_proof_for_removing_a_holder() {
    let mut w = World::new();
    let old = w.opens("ann");
    let bob = w.opens("bob");
    let ann = w.opens("ann");
    w.acquire_in(ann, "ann", "lobby");
    w.removes_with("ann", bob).says("refused: session ~2 does not belong to ann", "");
    w.removes_with("ann", old).says(SUPERSEDED, "");
    w.wait(10_000);
    w.removes_with("ann", ann).says("refused: session ~3 has expired; open a new session", "");
    w.removes("ann").says("removed, 0 released, 0 revoked", "lease_expired");
}

#[test]
fn removing_a_dead_holder_does_not_shorten_the_lock_delay() {
    let mut w = World::new();
    let ann = w.opens("ann");
    let bob = w.opens("bob");
    w.declare("lobby", 3_000);
    w.acquire_in(ann, "ann", "lobby").says("granted #2 for 10000 ms", "lease_acquired");
    w.wait(9_000);
    w.heartbeat(bob);
    w.hand_over("lobby", bob).says("offered to bob", "lease_pending");
    w.wait(1_000);
    w.removes("ann").says("removed, 0 released, 0 revoked", "lease_expired");
    w.wait(2_999);
    w.expire("lobby").says("judged, expired: false", "");
    w.wait(1);
    w.expire("lobby").says("judged, expired: true", "lease_acquired");
}
