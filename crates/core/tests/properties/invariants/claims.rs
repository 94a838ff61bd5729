//! Nothing is renewed, released, revoked or written but by a claim that is of the live lease in all its parts (rule 6).

use solehold_core::{
    command::{Claim, Command, Target},
    key::ResourceKey,
    lease::Lease,
    outcome::Answer,
};

use crate::step::Step;

pub fn are_of_the_live_lease(step: &Step<'_>) {
    let (claim, must_prove) = match step.command {
        Command::Renew { claim, .. } | Command::Release { claim, state: None } => (claim, false),
        Command::Release { claim, .. } | Command::WriteState { claim, .. } => (claim, true),
        Command::Revoke { claim, .. } => (claim, false),
        _ => return,
    };
    if step.decision.outcome.is_err() {
        return;
    }
    let key = step.claimed().expect("it was found");
    if let Ok(Answer::HoldBackLifted) = step.decision.outcome {
        return is_of_the_last_grant(step, claim, &key);
    }
    let lease = step.before.resource(&key).and_then(|r| r.lease.as_ref()).expect("it was held");
    let hold = step.promised.open_hold(&key).expect("it was held");
    assert!(step.now() < step.promised.until(hold), "{claim:?} is of a lease that had run out");
    let is_revoke = matches!(step.command, Command::Revoke { .. });
    let proofs = proofs(claim, lease, &key.tenant);
    assert!(proofs.iter().all(|p| *p != Some(false)), "{claim:?} is not of {lease:?}");
    let named = proofs.iter().take(3).any(Option::is_some);
    assert!(is_revoke || named || (!must_prove && claim.holder.is_some()), "{claim:?} proves nothing");
}

/// A hold-back is lifted only of a resource that nobody holds, and not for someone who means another grant.
fn is_of_the_last_grant(step: &Step<'_>, claim: &Claim, key: &ResourceKey) {
    let is_live = |hold: &crate::promises::Hold| step.now() < step.promised.until(hold);
    assert!(!step.promised.open_hold(key).is_some_and(is_live), "{key} is held");
    let last = step.promised.holds[key].last().expect("it was held");
    assert!(claim.token.is_none_or(|token| token == last.token), "{claim:?} is not of {last:?}");
}

/// Lease id, token, session and name: whether each is right, if it was shown.
fn proofs(claim: &Claim, lease: &Lease, tenant: &solehold_core::key::Name) -> [Option<bool>; 4] {
    let by_id = match &claim.target {
        Target::Resource(_) => None,
        Target::Lease { tenant: of, id } => Some(*id == lease.id && of == tenant),
    };
    [
        by_id,
        claim.token.map(|token| token == lease.token),
        claim.session.map(|session| lease.tenure.session() == Some(session)),
        claim.holder.as_ref().map(|holder| *holder == lease.holder),
    ]
}
