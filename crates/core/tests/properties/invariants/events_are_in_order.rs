//! Events take the revisions after the last one, without gaps; only a raise leaves one.

use solehold_core::{command::Command, event::Change, time::Revision};

use crate::step::Step;

pub fn revisions_have_no_gaps(step: &Step<'_>) {
    let mut revision = step.at.revision;
    for change in &step.decision.changes {
        match change {
            Change::Event(event) => {
                revision = Revision(revision.0 + 1);
                assert_eq!((event.revision, event.at), (revision, step.now()));
            }
            // Whoever comes to stand in line takes a revision of its own, too.
            Change::Waits(waiter) if step.before.waiter(&waiter.place()).is_none() => {
                revision = Revision(revision.0 + 1);
                assert_eq!(waiter.arrival, revision);
            }
            _ => {}
        }
    }
    if let Command::RaiseRevision { above } = step.command
        && step.decision.outcome.is_ok()
    {
        revision = revision.max(*above);
    }
    assert_eq!((step.decision.moment.revision, step.decision.moment.now), (revision, step.now()));
}
