//! One decided command, as the invariants see it.

use solehold_core::{
    Decision,
    call::Actor,
    command::{Acquire, Command, Target},
    event::{Change, Event, What},
    key::ResourceKey,
    ledger::Ledger,
    outcome::Answer,
    time::{Moment, StoreTime},
};

use crate::promises::Promises;

/// One command, the state before and after it, and what was decided.
pub struct Step<'a> {
    pub command: &'a Command,
    pub by: &'a Actor,
    pub at: Moment,
    pub before: &'a Ledger,
    pub after: &'a Ledger,
    pub decision: &'a Decision,
    /// What holders had been promised before it, by a history kept apart from the state.
    pub promised: &'a Promises,
    /// The same after it.
    pub promises: &'a Promises,
}

/// The acquires that a command is, if it is any.
pub fn acquires(command: &Command) -> &[Acquire] {
    match command {
        Command::Acquire(ask) => std::slice::from_ref(ask),
        Command::AcquireAll(asks) => asks,
        _ => &[],
    }
}

impl Step<'_> {
    pub fn now(&self) -> StoreTime {
        self.at.now
    }

    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.decision.changes.iter().filter_map(|change| match change {
            Change::Event(event) => Some(event),
            _ => None,
        })
    }

    /// The row that a claim was found to be of: the resource, or one of its slots.
    pub fn claimed(&self) -> Option<ResourceKey> {
        match &self.decision.outcome {
            Ok(Answer::Renewed(grant)) => Some(grant.lease.key.clone()),
            Ok(Answer::Released(id) | Answer::Revoked { lease: id, .. }) => {
                self.before.resource_of(*id).cloned()
            }
            Ok(Answer::HoldBackLifted) => {
                let lifted = |event: &&Event| matches!(event.what, What::HoldBackLifted { .. });
                self.events().find(lifted).map(|event| event.key.clone())
            }
            _ => self.resource(),
        }
    }

    /// The resource that the command is about, if it is about one.
    pub fn resource(&self) -> Option<ResourceKey> {
        let of = |target: &Target| match target {
            Target::Resource(key) => Some(key.clone()),
            Target::Lease { id, .. } => self.before.resource_of(*id).cloned(),
        };
        match self.command {
            Command::Acquire(ask) => Some(ask.key.clone()),
            Command::HandOver(ask) => Some(ask.key.clone()),
            Command::Renew { claim, .. }
            | Command::Release { claim, .. }
            | Command::Revoke { claim, .. }
            | Command::WriteState { claim, .. } => of(&claim.target),
            Command::CancelRequest(request) => Some(request.resource.clone()),
            Command::LeaveQueue { key, .. }
            | Command::Expire { key }
            | Command::Declare { key, .. }
            | Command::Delete { key, .. } => Some(key.clone()),
            _ => None,
        }
    }
}

/// A property of every step.
pub trait Invariant {
    fn check(&mut self, step: &Step<'_>);
}

impl<F: FnMut(&Step<'_>)> Invariant for F {
    fn check(&mut self, step: &Step<'_>) {
        self(step);
    }
}
