//! Renewals are nobody's news: a command that says that it makes none makes none (rule 19).

use solehold_core::command::Command;

use crate::step::Step;

pub fn renewals_are_nobodys(step: &Step<'_>) {
    let is_renewal =
        matches!(step.command, Command::Renew { .. } | Command::Heartbeat { .. } | Command::HeardOf { .. });
    assert_eq!(step.command.may_make_news(), !is_renewal);
    if is_renewal {
        assert_eq!(step.events().count(), 0, "{:?}", step.decision.changes);
        assert_eq!(step.decision.moment, step.at);
    }
}
