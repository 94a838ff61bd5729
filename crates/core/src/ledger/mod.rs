//! The rows that decisions read and change.
//!
//! A [`Ledger`] may be all there is (the simulator, a test), only the part that a batch touches, locked and loaded by
//! an engine, or a layer over all there is, which has nothing but what a batch has changed. It remembers which rows
//! have changed, so that an engine writes those and no others.

mod change;
mod dirty;
mod index;
mod order;

use std::sync::Arc;

use crate::{
    hashing::{KeyMap, SharedKeyMap},
    key::{HolderKey, LeaseId, Name, RequestKey, ResourceKey, SessionId},
    lease::{Lease, Resource, Tenure},
    record::Record,
    request::{Requester, SpentRequest, SpentRequests},
    session::{Holder, Session},
    time::StoreTime,
    waiter::{Lines, PlaceKey, Waiter},
};
pub use dirty::{Dirty, FoundLate};
use index::ResourceIndex;
use order::SortedKeys;
use rpds::RedBlackTreeMapSync as SharedMap;

/// All rows, or those that a batch touches, or those that it has changed.
///
/// The maps of rows are persistent: a clone shares them, so that [`Self::rows`] costs next to nothing. What every
/// command looks up is found by a hash.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    /// All rows, beneath those that have changed.
    base: Option<Arc<Ledger>>,
    sessions: SharedKeyMap<SessionId, Session>,
    resources: SharedKeyMap<Arc<ResourceKey>, Arc<Resource>>,
    /// The keys of `resources`.
    order: SortedKeys<Arc<ResourceKey>>,
    holders: SharedMap<HolderKey, Holder>,
    requests: SharedKeyMap<Arc<Requester>, SpentRequests>,
    records: SharedMap<(Name, Name), Record>,
    /// Which resource a lease, live or pending, is on.
    leases: KeyMap<LeaseId, Arc<ResourceKey>>,
    /// Which resources are attached to a session, held or pending.
    attached: ResourceIndex<SessionId>,
    /// Which resources a holder holds, expired leases that were not swept yet included.
    held: ResourceIndex<Name>,
    /// How many pending leases there are, by tenant and kind.
    moves: KeyMap<(Name, Name), u32>,
    lines: Lines,
    dirty: Dirty,
}

impl Ledger {
    /// A layer over all rows: what is not changed in it is read from there. Iterators over all rows of a kind have only
    /// those of the layer.
    pub fn over(base: Arc<Self>) -> Self {
        Self { base: Some(base), ..Default::default() }
    }

    /// All that has changed in this layer, without what is beneath it.
    pub fn into_changes(self) -> (Self, Dirty) {
        let mut changes = Self { base: None, ..self };
        let dirty = changes.take_dirty();
        (changes, dirty)
    }

    /// The rows beneath, for a row that was not changed here.
    fn beneath(&self, is_changed: impl FnOnce(&Dirty) -> bool) -> Option<&Self> {
        self.base.as_deref().filter(|_| !is_changed(&self.dirty))
    }

    /// The rows as they are now, shared with this ledger: it costs nothing, however many there are, and later changes
    /// do not affect them. Rows can be looked up and iterated over; the indexes (by holder, by session) and the lines
    /// are left out.
    pub fn rows(&self) -> Self {
        Self {
            sessions: self.sessions.clone(),
            resources: self.resources.clone(),
            order: self.order.clone(),
            holders: self.holders.clone(),
            requests: self.requests.clone(),
            records: self.records.clone(),
            ..Default::default()
        }
    }

    pub fn session(&self, id: SessionId) -> Option<&Session> {
        let beneath = || self.beneath(|dirty| dirty.sessions.contains(&id))?.sessions.get(&id);
        self.sessions.get(&id).or_else(beneath)
    }

    pub fn resource(&self, key: &ResourceKey) -> Option<&Resource> {
        let beneath = || self.beneath(|dirty| dirty.resources.contains(key))?.resources.get(key);
        self.resources.get(key).or_else(beneath).map(|resource| &**resource)
    }

    pub fn holder(&self, key: &HolderKey) -> Option<&Holder> {
        let beneath = || self.beneath(|dirty| dirty.holders.contains(key))?.holders.get(key);
        self.holders.get(key).or_else(beneath)
    }

    /// What is remembered of a spent request.
    pub fn spent(&self, request: &RequestKey) -> Option<&SpentRequest> {
        let requester = Requester::of(request);
        let own = self.requests.get(&requester).and_then(|requests| requests.get(&request.request));
        own.or_else(|| {
            let base = self.beneath(|dirty| dirty.requests.contains(request))?;
            base.requests.get(&requester)?.get(&request.request)
        })
    }

    /// The spent requests of one holder for one resource, as they are kept here.
    pub fn spent_by(&self, requester: &Requester) -> Option<&SpentRequests> {
        self.requests.get(requester)
    }

    /// All spent requests of one holder for one resource.
    pub fn each_spent_by<'a>(
        &'a self,
        requester: &'a Requester,
    ) -> impl Iterator<Item = (&'a Name, &'a SpentRequest)> {
        let is_kept = |(name, _): &(&Name, _)| !self.dirty.requests.contains(&requester.request(name));
        let beneath =
            self.base.iter().flat_map(|base| base.spent_by(requester)).flat_map(SpentRequests::iter);
        let own = self.spent_by(requester).into_iter().flat_map(SpentRequests::iter);
        own.chain(beneath.filter(is_kept))
    }

    /// A resource with its key as it is kept here, so that others who keep it need no copy.
    pub fn shared_resource(&self, key: &ResourceKey) -> Option<(&Arc<ResourceKey>, &Resource)> {
        self.resources.get_key_value(key).map(|(shared, resource)| (shared, &**resource))
    }

    /// How many resources and sessions there are.
    pub fn count(&self) -> usize {
        self.resources.size() + self.sessions.size()
    }

    /// A holder that has spent requests for a resource, as it is kept here.
    pub fn shared_requester(&self, requester: &Requester) -> Option<&Arc<Requester>> {
        self.requests.get_key_value(requester).map(|(shared, _)| shared)
    }

    pub fn record(&self, collection: &Name, id: &Name) -> Option<&Record> {
        let key = (collection.clone(), id.clone());
        self.records
            .get(&key)
            .or_else(|| self.beneath(|dirty| dirty.records.contains(&key))?.records.get(&key))
    }

    /// The resource that a lease, live or pending, is on.
    pub fn resource_of(&self, lease: LeaseId) -> Option<&ResourceKey> {
        let beneath = || self.base.as_ref()?.leases.get(&lease).filter(|key| self.is_as_beneath(key));
        self.leases.get(&lease).or_else(beneath).map(|key| &**key)
    }

    /// Whether a resource has not changed in this layer.
    fn is_as_beneath(&self, key: &ResourceKey) -> bool {
        !self.dirty.resources.contains(key)
    }

    /// All sessions, by id.
    pub fn sessions(&self) -> impl Iterator<Item = &Session> {
        let mut sessions: Vec<_> = self.sessions.values().collect();
        sessions.sort_unstable_by_key(|session| session.id);
        sessions.into_iter()
    }

    /// All resources, by key.
    pub fn resources(&self) -> impl Iterator<Item = &Resource> {
        self.found(self.order.iter())
    }

    fn found<'a>(
        &'a self,
        keys: impl Iterator<Item = &'a Arc<ResourceKey>>,
    ) -> impl Iterator<Item = &'a Resource> {
        keys.filter_map(|key| self.resources.get(key)).map(|resource| &**resource)
    }

    /// The slots of a resource that are taken, in order. All of them must be loaded: the resource counts them.
    pub fn slots_of<'a>(&'a self, key: &ResourceKey) -> Result<Vec<&'a Resource>, FoundLate> {
        let taken = self.resource(key).map_or(0, |resource| resource.taken);
        if taken == 0 {
            return Ok(Vec::new());
        }
        let of = |rows: &'a Self| {
            let slots = rows.order.from(&key.of_slot(1));
            rows.found(slots.take_while(|slot| slot.is_slot_of(key)))
        };
        let beneath = self.base.as_deref().into_iter().flat_map(of);
        let unchanged = beneath.filter(|slot| self.is_as_beneath(&slot.key));
        let slots: Vec<_> = merged(of(self), unchanged, |slot| slot.key.slot).collect();
        if slots.len() == taken as usize { Ok(slots) } else { Err(FoundLate::Slots(key.clone())) }
    }

    /// Resources from `from` on, by key.
    pub fn resources_from(&self, from: &ResourceKey) -> impl Iterator<Item = &Resource> {
        self.found(self.order.from(from))
    }

    pub fn holders(&self) -> impl Iterator<Item = &Holder> {
        self.holders.values()
    }

    /// Holders from `from` on, by name.
    pub fn holders_from(&self, from: &HolderKey) -> impl Iterator<Item = &Holder> {
        self.holders.range(from..).map(|(_, h)| h)
    }

    /// All spent requests, by resource and holder.
    pub fn requests(&self) -> impl Iterator<Item = (RequestKey, &SpentRequest)> {
        let mut all: Vec<_> = self.requesters().collect();
        all.sort_unstable_by_key(|(requester, _)| *requester);
        all.into_iter().flat_map(|(requester, requests)| {
            requests.iter().map(|(name, spent)| (requester.request(name), spent))
        })
    }

    /// Those who have spent requests, in no particular order.
    pub fn requesters(&self) -> impl Iterator<Item = (&Arc<Requester>, &SpentRequests)> {
        self.requests.iter()
    }

    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.values()
    }

    /// The keys of the resources that are attached to a session, held or pending.
    pub fn attached_to(&self, session: SessionId) -> impl Iterator<Item = &ResourceKey> {
        self.with_beneath(move |rows| rows.attached.of(&session))
    }

    /// The keys of the resources that a holder holds, expired leases that were not swept yet included.
    pub fn held_by(&self, holder: &HolderKey) -> impl Iterator<Item = &ResourceKey> {
        let HolderKey { tenant, name } = holder;
        let from = ResourceKey { tenant: tenant.clone(), ..ResourceKey::least() };
        self.with_beneath(move |rows| {
            rows.held.from(name, &from).take_while(move |key| key.tenant == *tenant)
        })
    }

    /// The keys of the resources that holders of this name hold, of whatever tenant, as [`Self::held_by`].
    pub fn held_under(&self, name: &Name) -> impl Iterator<Item = &ResourceKey> {
        self.with_beneath(move |rows| rows.held.of(name))
    }

    /// Resources by an index, here and beneath, in the order of their keys.
    fn with_beneath<'a, I: Iterator<Item = &'a ResourceKey>>(
        &'a self,
        keys: impl Fn(&'a Self) -> I,
    ) -> impl Iterator<Item = &'a ResourceKey> {
        let beneath = self.base.as_deref().into_iter().flat_map(&keys).collect::<Vec<_>>();
        let unchanged = beneath.into_iter().filter(|key| self.is_as_beneath(key));
        merged(keys(self), unchanged, |key| *key)
    }

    /// How many resources of a tenant and kind have a pending lease: those that are loaded, or as many as an engine has
    /// counted.
    pub fn moves(&self, tenant: &Name, kind: &Name) -> u32 {
        let key = (tenant.clone(), kind.clone());
        let beneath = || self.base.as_ref()?.moves.get(&key);
        self.moves.get(&key).or_else(beneath).copied().unwrap_or(0)
    }

    /// When `lease` expires unless it is renewed, or confirmed where that is still due.
    pub fn deadline_of(&self, lease: &Lease) -> Result<StoreTime, FoundLate> {
        let deadline = match lease.tenure {
            Tenure::Own { deadline, .. } => deadline,
            Tenure::Session(id) => self.session(id).map(|s| s.deadline).ok_or(FoundLate::Session(id))?,
        };
        Ok(lease.dead_from(deadline))
    }

    pub fn waiter(&self, place: &PlaceKey) -> Option<&Waiter> {
        let beneath = || self.beneath(|dirty| dirty.waiters.contains(place))?.lines.rows.get(place);
        self.lines.rows.get(place).or_else(beneath)
    }

    /// All waiters, by resource and arrival.
    pub fn waiters(&self) -> impl Iterator<Item = &Waiter> {
        self.lines.rows.values()
    }

    /// The loaded waiters for a resource, in order of arrival.
    pub fn waiters_for<'a>(&'a self, key: &ResourceKey) -> impl Iterator<Item = &'a Waiter> + use<'a> {
        let beneath = self.base.as_ref().map(|base| base.lines.of(key));
        let unchanged = beneath.into_iter().flatten().filter(|waiter| self.waits_as_beneath(waiter));
        merged(self.lines.of(key), unchanged, |waiter| waiter.arrival)
    }

    pub fn waiter_of_lease(&self, lease: LeaseId) -> Option<&Waiter> {
        let beneath = || self.base.as_ref()?.lines.of_lease(lease).filter(|w| self.waits_as_beneath(w));
        self.lines.of_lease(lease).or_else(beneath)
    }

    pub fn waiter_of_request(&self, request: &RequestKey) -> Option<&Waiter> {
        let beneath = || self.base.as_ref()?.lines.of_request(request).filter(|w| self.waits_as_beneath(w));
        self.lines.of_request(request).or_else(beneath)
    }

    /// The loaded waiters that are attached to a session.
    pub fn waiters_on(&self, session: SessionId) -> impl Iterator<Item = &Waiter> {
        let beneath = self.base.iter().flat_map(move |base| base.lines.on(session));
        let unchanged = beneath.filter(|waiter| self.waits_as_beneath(waiter));
        merged(self.lines.on(session), unchanged, |waiter| (&waiter.key, waiter.arrival))
    }

    /// Whether a waiter beneath has not changed in this layer.
    fn waits_as_beneath(&self, waiter: &Waiter) -> bool {
        self.dirty.waiters.is_empty() || !self.dirty.waiters.contains(&waiter.place())
    }

    /// Whether all waiters ahead of this one are loaded.
    pub(crate) fn knows_all_before(&self, waiter: &Waiter) -> bool {
        self.base.is_some() || self.lines.is_head(waiter) || {
            let queued = self.resource(&waiter.key).map_or(0, |r| r.queued);
            self.lines.of(&waiter.key).count() == queued as usize
        }
    }
}

/// Two iterators in the order of `by` as one.
fn merged<T, K: Ord>(
    one: impl Iterator<Item = T>,
    other: impl Iterator<Item = T>,
    by: impl Fn(&T) -> K,
) -> impl Iterator<Item = T> {
    let mut one = one.peekable();
    let mut other = other.peekable();
    std::iter::from_fn(move || match (one.peek(), other.peek()) {
        (Some(first), Some(second)) if by(second) < by(first) => other.next(),
        (Some(_), _) => one.next(),
        (None, _) => other.next(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{key::Document, time::Token};

    /// As a store reads it: each name is a string of its own.
    fn held(key: &str) -> Resource {
        let name = |text: &str| Name::new(text).expect("a name");
        let key = ResourceKey::new(name("acme"), name("job"), name(key));
        let lease = Lease {
            id: LeaseId::new(&key, uuid::Uuid::nil()),
            token: Token(1),
            holder: name("ann"),
            by: None,
            tenure: Tenure::Own { ttl_ms: 1, deadline: StoreTime(1) },
            acquired_at: StoreTime(0),
            renewed_at: None,
            confirm_by: None,
            request: None,
            slots: None,
            attributes: Document::default(),
            stats: Document::default(),
        };
        Resource { lease: Some(lease), ..Resource::new(key, StoreTime(0)) }
    }

    #[test]
    fn a_name_that_many_rows_have_is_in_memory_once() {
        let mut ledger = Ledger::default();
        for key in ["b", "a", "c"] {
            ledger.load_resource(held(key));
        }
        let names = |r: &Resource| {
            let holder = r.lease.as_ref().map(|lease| lease.holder.as_str().as_ptr());
            (r.key.tenant.as_str().as_ptr(), r.key.kind.as_str().as_ptr(), holder)
        };
        let first = ledger.resources().next().map(names);
        assert!(ledger.resources().all(|resource| Some(names(resource)) == first));
        assert_eq!(ledger.resources().count(), 3);
    }
}
