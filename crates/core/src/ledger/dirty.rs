//! What a ledger says of its rows: which have changed, and which it lacks.

use super::Ledger;
use crate::{
    hashing::KeyList,
    key::{HolderKey, Name, RequestKey, ResourceKey, SessionId},
    waiter::{PlaceKey, Waiter},
};

/// A row that the decision needs was not loaded: the batch must start again with it (rule 10).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FoundLate {
    /// A session that a lease or a waiter is attached to.
    #[error("session {0} was found late")]
    Session(SessionId),
    /// More of the line for a resource, from its head.
    #[error("waiters for {0} were found late")]
    Line(ResourceKey),
    /// A resource with all of its slots (rule 29).
    #[error("slots of {0} were found late")]
    Slots(ResourceKey),
    /// All waiters that are attached to a session, and their resources.
    #[error("waiters on session {0} were found late")]
    WaitersOn(SessionId),
}

/// Which rows have changed since they were loaded, in the order of their first changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dirty {
    pub sessions: KeyList<SessionId>,
    pub resources: KeyList<ResourceKey>,
    pub holders: KeyList<HolderKey>,
    pub requests: KeyList<RequestKey>,
    /// Records, by collection and id.
    pub records: KeyList<(Name, Name)>,
    /// Waiters, by resource and arrival.
    pub waiters: KeyList<PlaceKey>,
}

impl Dirty {
    /// All rows of a ledger, as if each had changed.
    pub fn all_of(ledger: &Ledger) -> Self {
        Self {
            sessions: ledger.sessions().map(|s| s.id).collect(),
            resources: ledger.resources().map(|r| r.key.clone()).collect(),
            holders: ledger.holders().map(|h| h.key.clone()).collect(),
            requests: ledger.requests().map(|(request, _)| request).collect(),
            records: ledger.records().map(|r| r.key()).collect(),
            waiters: ledger.waiters().map(Waiter::place).collect(),
        }
    }

    /// The same rows, by their keys: all who write rows in this order wait for each other in one direction.
    pub fn sorted(mut self) -> Self {
        self.sessions.sort_unstable();
        self.resources.sort_unstable();
        self.holders.sort_unstable();
        self.requests.sort_unstable();
        self.records.sort_unstable();
        self.waiters.sort_unstable();
        self
    }

    pub fn extend(&mut self, more: Self) {
        self.sessions.extend(more.sessions);
        self.resources.extend(more.resources);
        self.holders.extend(more.holders);
        self.requests.extend(more.requests);
        self.records.extend(more.records);
        self.waiters.extend(more.waiters);
    }

    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
            && self.resources.is_empty()
            && self.holders.is_empty()
            && self.requests.is_empty()
            && self.records.is_empty()
            && self.waiters.is_empty()
    }
}
