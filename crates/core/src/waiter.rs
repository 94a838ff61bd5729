//! Waiting in line (rule 15), in order of arrival.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    command::{AskedTenure, Undeclared},
    hashing::KeyMap,
    key::{Document, LeaseId, Name, RequestKey, ResourceKey, SessionId},
    time::{Revision, StoreTime},
};

/// A waiter in line for a resource. It is live until its wait is over, as long as its room and the session that it asks
/// with are live.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    pub key: ResourceKey,
    /// Its place: a revision of its own, so that earlier arrivals come first.
    pub arrival: Revision,
    /// The id that the grant will have.
    pub lease: LeaseId,
    pub holder: Name,
    /// The key that it waits by, to which its place belongs (rule 26).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Name>,
    pub tenure: AskedTenure,
    /// The client's name for the request.
    pub request: Option<Name>,
    /// What the adapter keeps with the lease.
    pub attributes: Document,
    /// Whether it accepts a resource that is not declared.
    pub undeclared: Undeclared,
    /// Whether it waits for a slot, and of how many (rule 29).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// The waiting room of the replica that its client is connected to.
    pub room: SessionId,
    #[serde(default)]
    pub since: StoreTime,
    /// When it stops waiting.
    pub deadline: StoreTime,
}

/// A place in line: the resource, and the arrival there.
pub type PlaceKey = (ResourceKey, Revision);

impl Waiter {
    pub fn place(&self) -> PlaceKey {
        (self.key.clone(), self.arrival)
    }

    /// The session that it asks with, if not one of the lease's own.
    pub fn session(&self) -> Option<SessionId> {
        match self.tenure {
            AskedTenure::Own { .. } => None,
            AskedTenure::Session(id) => Some(id),
        }
    }

    /// The sessions that it is attached to: its room and its own.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> {
        [self.room].into_iter().chain(self.session())
    }

    /// Its request, if it has a name for it.
    pub fn request_key(&self) -> Option<RequestKey> {
        let request = self.request.clone()?;
        Some(RequestKey { resource: self.key.clone(), holder: self.holder.clone(), request })
    }
}

/// All lines, or the parts of them that were loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Lines {
    pub(crate) rows: BTreeMap<PlaceKey, Waiter>,
    leases: KeyMap<LeaseId, PlaceKey>,
    requests: KeyMap<RequestKey, Revision>,
    attached: BTreeSet<(SessionId, ResourceKey, Revision)>,
    /// How far a line was loaded without a gap, where it was not loaded completely.
    pub(crate) heads: KeyMap<ResourceKey, Revision>,
}

impl Lines {
    pub(crate) fn of<'a>(&'a self, key: &ResourceKey) -> impl Iterator<Item = &'a Waiter> + use<'a> {
        let range = (key.clone(), Revision(0))..=(key.clone(), Revision(u64::MAX));
        self.rows.range(range).map(|(_, waiter)| waiter)
    }

    pub(crate) fn of_lease(&self, lease: LeaseId) -> Option<&Waiter> {
        self.rows.get(self.leases.get(&lease)?)
    }

    pub(crate) fn of_request(&self, request: &RequestKey) -> Option<&Waiter> {
        let arrival = *self.requests.get(request)?;
        self.rows.get(&(request.resource.clone(), arrival))
    }

    pub(crate) fn on(&self, session: SessionId) -> impl Iterator<Item = &Waiter> {
        let from = (session, ResourceKey::least(), Revision(0));
        let its = self.attached.range(from..).take_while(move |(id, ..)| *id == session);
        its.filter_map(|(_, key, arrival)| self.rows.get(&(key.clone(), *arrival)))
    }

    pub(crate) fn is_head(&self, waiter: &Waiter) -> bool {
        self.heads.get(&waiter.key).is_some_and(|head| waiter.arrival <= *head)
    }

    pub(crate) fn put(&mut self, waiter: Waiter) {
        let place = waiter.place();
        self.remove(&place);
        self.leases.insert(waiter.lease, place.clone());
        self.requests.extend(waiter.request_key().map(|request| (request, waiter.arrival)));
        self.attached.extend(waiter.sessions().map(|id| (id, place.0.clone(), place.1)));
        self.rows.insert(place, waiter);
    }

    pub(crate) fn remove(&mut self, place: &PlaceKey) -> Option<Waiter> {
        let old = self.rows.remove(place)?;
        self.leases.remove(&old.lease);
        if let Some(request) = old.request_key() {
            self.requests.remove(&request);
        }
        for id in old.sessions() {
            self.attached.remove(&(id, place.0.clone(), place.1));
        }
        Some(old)
    }
}
