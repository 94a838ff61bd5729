//! A refused command changes nothing other than what time had already decided: just what a sweep would have done.

use solehold_core::{command::Command, decide, outcome::Refusal};

use crate::step::Step;

pub fn change_only_what_time_had_decided(step: &Step<'_>) {
    if let Err(Refusal::NotAll { .. }) = step.decision.outcome {
        assert_eq!(step.decision.changes, [], "all or nothing");
    }
    if step.decision.outcome.is_ok() || step.decision.changes.is_empty() {
        return;
    }
    let key = step.resource().expect("only a resource can have run out");
    let swept =
        decide(step.before, &Command::Expire { key }.into(), step.at).expect("the whole state is here");
    assert_eq!(step.decision.changes, swept.changes, "{:?}", step.decision.outcome);
}

/// Whoever is told that another holds it is told of one who may work now (rules 8, 11).
pub fn name_the_live_holder(step: &Step<'_>) {
    let Some(key) = step.resource() else { return };
    let is_live = |hold: &crate::promises::Hold| hold.end.is_none() && step.promises.until(hold) > step.now();
    let holds = step.promises.holds_of(&key).map(|(_, hold)| hold);
    let live: Vec<_> = holds.filter(|h| is_live(h)).map(|hold| (&hold.holder, hold.token)).collect();
    match &step.decision.outcome {
        Err(
            Refusal::Held { holder, token, .. }
            | Refusal::InUse { holder, token }
            | Refusal::NotYours { holder, token, .. },
        ) => assert!(live.contains(&(holder, *token)), "{:?}", step.decision.outcome),
        Err(Refusal::HeldBack { retry_after_ms, .. }) => {
            assert_eq!(live, [], "{:?}", step.decision.outcome);
            assert!(*retry_after_ms > 0, "who tries again at once finds the same");
        }
        _ => {}
    }
}
