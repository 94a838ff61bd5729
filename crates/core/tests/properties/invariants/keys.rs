//! A key touches only what belongs to it or to nobody (rule 26).

use solehold_core::{
    call::Actor,
    command::Command,
    event::{Change, Event, What},
    key::{Name, SessionId},
    session::Standing,
};

use crate::step::Step;

/// What another key's session or lease may not suffer. What time does, it does to all.
pub fn touch_only_what_is_theirs(step: &Step<'_>) {
    let Actor::Key { id, .. } = step.by else { return };
    let is_other = |owner: Option<&Name>| owner.is_some_and(|owner| owner != id);
    let lives = |session: &SessionId| {
        let session = step.before.session(*session).filter(|s| s.is_live(step.now()));
        session.and_then(|s| s.by.as_ref())
    };
    if step.resource().is_some_and(|key| !step.by.may_touch(&key)) && !is_nomination(step.command) {
        assert!(step.decision.outcome.is_err(), "out of scope: {:?}", step.command);
    }
    for change in &step.decision.changes {
        let touched = match change {
            Change::Event(Event { what: What::HoldBackLifted { .. }, key, .. }) => {
                // A lease that had run out is held back for its own key.
                let resource = step.before.resource(key);
                let lease = resource.and_then(|r| r.lease.as_ref());
                lease.map_or(resource.and_then(|r| r.held_back_by.as_ref()), |lease| lease.by.as_ref())
            }
            Change::Event(event) => {
                let lease = step.before.resource(&event.key).and_then(|r| r.lease.as_ref());
                let is_its = |lease: &&solehold_core::lease::Lease| Some(lease.id) == event.lease();
                lease.filter(|_| !is_by_time(&event.what)).filter(is_its).and_then(|lease| lease.by.as_ref())
            }
            Change::LeaseRenewed { key, .. } => {
                step.before.resource(key).and_then(|r| r.lease.as_ref()).and_then(|lease| lease.by.as_ref())
            }
            Change::SessionRenewed { id, .. }
            | Change::SessionEnded(id)
            | Change::SessionStanding { id, standing: Standing::Superseded | Standing::Draining } => {
                lives(id)
            }
            _ => None,
        };
        assert!(!is_other(touched), "{touched:?} by {:?}: {change:?}", step.by);
    }
}

/// The sweeper's words, which no key can give.
fn is_nomination(command: &Command) -> bool {
    matches!(command, Command::Expire { .. } | Command::ExpireSession(_))
}

/// Grants to those in line count: the step that frees a resource need not be able to touch it.
fn is_by_time(what: &What) -> bool {
    matches!(what, What::Expired(_) | What::Stolen(_) | What::Acquired(_))
}

/// A lease on a session belongs to the key of the session.
pub fn own_their_sessions_leases(step: &Step<'_>) {
    for lease in step.after.resources().filter_map(|resource| resource.lease.as_ref()) {
        if let Some(session) = lease.tenure.session().and_then(|id| step.after.session(id)) {
            assert_eq!(lease.by, session.by, "{lease:?}");
        }
    }
}

/// An event names the key that asked for it, and nobody if time did it.
pub fn are_named_by_what_they_did(step: &Step<'_>) {
    for event in step.events() {
        match &event.what {
            What::Expired(_) => assert_eq!(event.by, None, "{event:?}"),
            // Perhaps to someone who waited.
            What::Acquired(_) => {}
            _ => assert_eq!(event.by.as_ref(), step.by.key(), "{event:?}"),
        }
    }
}
