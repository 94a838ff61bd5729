//! Rule 6: every operation names its token, lease id or session id; a name alone is accepted as the weaker promise.

use solehold_core::command::{Claim, Command, Target};

use crate::common::{Proof, World, holder, lease, name, on};

const NO_PROOF: &str = "refused: no proof of the lease: give its token, lease id, session or holder";

#[test]
fn without_any_proof_nothing_is_renewed_released_or_written() {
    let mut w = World::new();
    w.acquire("ann", "lobby");
    w.renew(on("lobby")).says(NO_PROOF, "");
    w.release(on("lobby")).says(NO_PROOF, "");
    w.write(on("lobby"), 1, "{}").says(NO_PROOF, "");
}

#[test]
fn release_with_an_old_token_changes_nothing() {
    let mut w = World::new();
    w.acquire("ann", "lobby").says("granted #1 for 10000 ms", "lease_acquired");
    w.wait(10_000);
    w.acquire("bob", "lobby").says("granted #4 for 10000 ms", "lease_expired lease_stolen lease_acquired");
    let before = w.state.clone();
    let lost = "refused: the lease is not active; the resource's last token is 4";
    w.release(on("lobby").token(1)).says(lost, "");
    w.renew(on("lobby").token(1)).says(lost, "");
    w.write(on("lobby").token(1), 9, "{}").says(lost, "");
    assert_eq!(w.state, before);
}

#[test]
fn the_id_of_a_lease_is_proof_of_that_lease_only() {
    let mut w = World::new();
    w.acquire("ann", "lobby");
    let former = w.lease_on("lobby");
    w.renew(lease(former)).says("renewed #1 for 10000 ms", "");
    w.release(lease(former)).says("released", "lease_released");
    w.acquire("ann", "lobby").says("granted #3 for 10000 ms", "lease_acquired");
    w.renew(lease(former)).says("refused: lease ~1 does not exist or has ended", "");
    w.release(lease(former)).says("refused: lease ~1 does not exist or has ended", "");
}

#[test]
fn a_lease_of_another_tenant_does_not_exist() {
    let mut w = World::new();
    w.acquire("ann", "lobby");
    let target = Target::Lease { tenant: name("other"), id: w.lease_on("lobby") };
    let claim = Claim { target, token: None, session: None, holder: None };
    w.release(claim).says("refused: lease ~1 does not exist or has ended", "");
}

#[test]
fn all_that_is_shown_must_match() {
    let mut w = World::new();
    let ann = w.opens("ann");
    let bob = w.opens("bob");
    w.acquire_in(ann, "ann", "lobby").says("granted #1 for 10000 ms", "lease_acquired");
    w.renew(on("lobby").token(1).session(bob))
        .says("refused: the session does not match the lease, which ann holds with token 1", "");
    w.renew(on("lobby").token(1).holder("bob"))
        .says("refused: the holder does not match the lease, which ann holds with token 1", "");
    w.renew(on("lobby").token(1).session(ann).holder("ann")).says("renewed #1 for 10000 ms", "");
}

#[test]
fn a_name_alone_renews_and_releases_but_writes_no_state() {
    let mut w = World::new();
    w.acquire("ann", "lobby");
    w.renew(on("lobby").holder("ann")).says("renewed #1 for 10000 ms", "");
    w.write(on("lobby").holder("ann"), 1, "{}").says(NO_PROOF, "");
    w.release_leaving(on("lobby").holder("ann"), 1, "{}").says(NO_PROOF, "");
    w.release(on("lobby").holder("ann")).says("released", "lease_released");
}

#[test]
fn a_heartbeat_by_name_updates_the_registry_only() {
    let mut w = World::new();
    let ann = w.opens("ann");
    w.wait(9_000);
    w.told(Command::HeardOf { holder: holder("ann"), metrics: None }).says("holder ann is Active", "");
    w.wait(1_000);
    w.heartbeat(ann).says("refused: session ~1 has expired; open a new session", "");
}
