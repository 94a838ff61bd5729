//! A refused command changes nothing other than what time had already decided: just what a sweep would have done.

use solehold_core::{command::Command, decide, outcome::Refusal};

use crate::step::Step;

pub fn change_only_what_time_had_decided(step: &Step<'_>) {
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
    let live = step.promises.open_hold(&key).filter(|hold| step.promises.until(hold) > step.now());
    let live = live.map(|hold| (&hold.holder, hold.token));
    match &step.decision.outcome {
        Err(
            Refusal::Held { holder, token, .. }
            | Refusal::InUse { holder, token }
            | Refusal::NotYours { holder, token, .. },
        ) => assert_eq!(live, Some((holder, *token)), "{:?}", step.decision.outcome),
        Err(Refusal::HeldBack { retry_after_ms, .. }) => {
            assert_eq!(live, None, "{:?}", step.decision.outcome);
            assert!(*retry_after_ms > 0, "who tries again at once finds the same");
        }
        _ => {}
    }
}
