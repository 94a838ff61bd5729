//! Scripts that never get anywhere prove nothing: together they must reach every event, answer and refusal.

use std::collections::BTreeMap;

use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::TestRunner,
};
use solehold_core::{Decision, event::EventName};

use crate::{common::events, harness::Harness, script};

/// The answers and refusals, as their `Debug` begins.
const OUTCOMES: [&str; 50] = [
    "Ok(GrantedAll",
    "Err(NotAll",
    "Err(SharedState",
    "#1",
    "Err(OutOfScope",
    "Err(OtherKeys",
    "Ok(Waiting",
    "Ok(Left",
    "confirm_by: Some",
    "Ok(Granted",
    "Ok(Renewed",
    "Ok(Released",
    "Ok(Revoked",
    "Ok(Spent",
    "Ok(StateWritten",
    "Ok(Offered",
    "Ok(Judged",
    "Ok(Session",
    "Ok(Closed",
    "Ok(Holder(",
    "Ok(HolderRemoved",
    "Ok(Declared",
    "Ok(Noted",
    "Ok(Removed",
    "Ok(Record",
    "Ok(Raised",
    "Err(NoResource",
    "Err(Held ",
    "Err(HeldBack",
    "Err(Lost",
    "Err(NoLease",
    "Err(NotYours",
    "Err(NoProof",
    "Err(RequestSpent",
    "Err(TooManyCancelled",
    "Err(NoSession",
    "Err(NotYourSession",
    "Err(Draining",
    "Err(AtCapacity",
    "Err(HolderAtCapacity",
    "Err(StaleSequence",
    "Err(AlreadyPending",
    "Err(OverBudget",
    "Err(InUse",
    "Err(Exists",
    "Err(NoHolder",
    "Err(NoRecord",
    "Err(RecordChanged",
    "Err(OutOfBounds",
    "repeated: true",
];

/// Ways for a hand-over and a takeover to go.
const TURNS: [&str; 7] = [
    "lease_released lease_acquired",
    "lease_expired lease_acquired",
    "lease_revoked lease_acquired",
    "lease_released lease_expired",
    "lease_expired lease_stolen lease_acquired",
    "lease_revoked resource_deleted",
    "state_changed lease_released",
];

#[derive(Default)]
struct Reached(BTreeMap<&'static str, usize>);

impl Reached {
    fn note(&mut self, decision: &Decision) {
        let told = events(decision);
        let outcome = format!("{:?}", decision.outcome);
        let names = EventName::ALL.into_iter().map(EventName::as_str);
        for wanted in names.chain(TURNS) {
            *self.0.entry(wanted).or_default() += usize::from(told.contains(wanted));
        }
        for wanted in OUTCOMES {
            *self.0.entry(wanted).or_default() += usize::from(outcome.contains(wanted));
        }
    }
}

#[test]
fn scripts_reach_every_event_answer_and_refusal() {
    let mut runner = TestRunner::deterministic();
    let scripts = script::script(60..61);
    let mut reached = Reached::default();
    for _ in 0..250 {
        let mut harness = Harness::default();
        for act in scripts.new_tree(&mut runner).expect("a script").current() {
            harness.play(&act).iter().for_each(|decision| reached.note(decision));
        }
    }
    println!("{:#?}", reached.0);
    let missed: Vec<_> = reached.0.iter().filter(|(_, times)| **times == 0).map(|(what, _)| *what).collect();
    assert_eq!(missed, [EventName::LeaseRenewed.as_str()], "renewals are no events; all else is reached");
}
