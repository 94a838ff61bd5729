//! Rule 23: what is carried over into a store that may have lost commits ends; nothing is renewed under its old token.

use solehold_core::{
    apply, carry_over,
    event::{Change, EventName, What},
    time::Revision,
};

use crate::common::{Proof, World, key, lease, on};

/// How long nothing is granted after the store was set back.
const BARRED_MS: u64 = 60_000;

/// Sets the store back, as an engine does that finds its history cut short: revisions jump, and the bar passes.
fn set_back(w: &mut World) -> Vec<Change> {
    w.moment.revision = Revision(w.moment.revision.0 + 1_000);
    let (changes, moment) = carry_over(&w.state, w.moment, w.moment.now.plus_ms(BARRED_MS));
    changes.iter().for_each(|change| apply(&mut w.state, change));
    w.moment = moment;
    changes
}

#[test]
fn nothing_is_renewed_under_the_token_that_it_had_before_the_store_was_set_back() {
    let mut w = World::new();
    let ann = w.opens("ann");
    w.acquire_in(ann, "ann", "lobby").says("granted #1 for 10000 ms", "lease_acquired");
    w.acquire("bob", "hall").says("granted #2 for 10000 ms", "lease_acquired");
    let id = w.lease_on("lobby");
    set_back(&mut w);
    w.heartbeat(ann).says("refused: session ~1 is not known, or over: open another one", "");
    w.renew(lease(id)).says("refused: there is no live lease ~2", "");
    w.renew(on("hall").token(2)).says("refused: there is no resource scene/hall of tenant acme", "");
    w.wait(BARRED_MS);
    w.acquire("cat", "lobby").says("granted #1005 for 10000 ms", "lease_acquired");
}

#[test]
fn everyone_is_told_why_and_by_revisions_of_the_new_history() {
    let mut w = World::new();
    let (ann, bob, room) = (w.opens("ann"), w.opens("bob"), w.room());
    w.acquire_in(ann, "ann", "lobby");
    w.hand_over("lobby", bob);
    w.waits(room, "cat", "lobby");
    let events: Vec<_> = set_back(&mut w)
        .into_iter()
        .filter_map(|change| if let Change::Event(event) = change { Some(event) } else { None })
        .map(|event| match &event.what {
            What::Expired(e) | What::Revoked(e) => (event.revision, event.name(), e.reason.clone()),
            other => panic!("{other:?}"),
        })
        .collect();
    let why = Some("the store was set back to an earlier state".to_owned());
    assert_eq!(
        events,
        [
            (Revision(1_004), EventName::LeaseExpired, why.clone()),
            (Revision(1_005), EventName::LeaseRevoked, why)
        ]
    );
    assert_eq!(w.line("lobby"), "");
    assert_eq!((w.state.sessions().count(), w.state.resources().count()), (0, 0));
    let sessions: Vec<_> = w.state.holders().map(|h| h.session).collect();
    assert_eq!(sessions, [None, None], "who registered is still known");
}

#[test]
fn the_request_of_a_lease_that_ended_so_is_spent() {
    let mut w = World::new();
    w.request("ann", "lobby", "r1");
    set_back(&mut w);
    w.request("ann", "lobby", "r1")
        .says("refused: request r1 is spent: it was cancelled, or its lease has ended or belongs to a former session", "");
}

#[test]
fn a_lock_delay_counts_from_the_end_of_the_bar() {
    let mut w = World::new();
    w.declare("lobby", 3_000);
    w.acquire("ann", "lobby");
    set_back(&mut w);
    w.wait(BARRED_MS + 2_999);
    w.acquire("bob", "lobby").says("refused: held back for another 1 ms after token 2", "");
    w.wait(1);
    w.acquire("bob", "lobby").says("granted #1004 for 10000 ms", "lease_acquired");
    assert!(w.state.resource(&key("lobby")).is_some_and(|r| r.declared.is_some()), "it stays declared");
}
