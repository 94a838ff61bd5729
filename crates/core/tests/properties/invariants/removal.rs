//! Removing a holder by its name alone releases nothing that is attached to its session: a name is no proof (rules 6,
//! 12).

use solehold_core::{command::Command, event::What, outcome::Answer};

use crate::step::Step;

pub fn by_name_alone_releases_nothing(step: &Step<'_>) {
    let Command::RemoveHolder { holder, session } = step.command else { return };
    if !matches!(step.decision.outcome, Ok(Answer::HolderRemoved { .. })) {
        return;
    }
    let present = step.before.holder(holder).and_then(|h| h.session);
    assert!(session.is_none() || *session == present, "{session:?} is no proof of {present:?}");
    let is_released = step.events().any(|e| matches!(e.what, What::Released(_)));
    let is_revoked = step.events().any(|e| matches!(e.what, What::Revoked(_)));
    assert!(session.is_some() || !is_released, "a name alone released a lease");
    assert!(session.is_none() || !is_revoked, "what its holder lets go of is not held back");
}
