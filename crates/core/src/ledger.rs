//! The rows that decisions read and change.
//!
//! A [`Ledger`] may be all there is (the simulator, a test), or only the part that a batch touches, locked and loaded
//! by an engine. It remembers which rows have changed, so that an engine writes those and no others.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, LazyLock},
};

use crate::{
    key::{HolderKey, LeaseId, Name, RequestKey, ResourceKey, SessionId},
    lease::{Lease, Resource, Tenure},
    record::Record,
    request::{Requester, SpentRequest, SpentRequests},
    session::{Holder, Session},
    time::{Revision, StoreTime},
    waiter::{Lines, PlaceKey, Waiter},
};
use rpds::RedBlackTreeMapSync as SharedMap;

/// A row that the decision needs was not loaded: the batch must start again with it (rule 10).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FoundLate {
    /// A session that a lease or a waiter is attached to.
    #[error("session {0} was found late")]
    Session(SessionId),
    /// More of the line for a resource, from its head.
    #[error("waiters for {0} were found late")]
    Line(ResourceKey),
    /// All waiters that are attached to a session, and their resources.
    #[error("waiters on session {0} were found late")]
    WaitersOn(SessionId),
}

/// Which rows have changed since they were loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dirty {
    pub sessions: BTreeSet<SessionId>,
    pub resources: BTreeSet<ResourceKey>,
    pub holders: BTreeSet<HolderKey>,
    pub requests: BTreeSet<RequestKey>,
    /// Records, by collection and id.
    pub records: BTreeSet<(Name, Name)>,
    /// Waiters, by resource and arrival.
    pub waiters: BTreeSet<PlaceKey>,
}

impl Dirty {
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

/// What the indexes know about a resource.
#[derive(Default, PartialEq)]
struct Indexed {
    leases: [Option<LeaseId>; 2],
    sessions: [Option<SessionId>; 2],
    holder: Option<Name>,
}

impl Indexed {
    fn of(resource: &Resource) -> Self {
        let lease = resource.lease.as_ref();
        let pending = resource.pending.as_ref();
        Self {
            leases: [lease.map(|l| l.id), pending.map(|p| p.id)],
            sessions: [lease.and_then(|l| l.tenure.session()), pending.map(|p| p.session)],
            holder: lease.map(|l| l.holder.clone()),
        }
    }
}

/// All rows, or those that a batch touches.
///
/// The maps are persistent: a clone shares its rows, so that [`Self::rows`] costs nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    sessions: SharedMap<SessionId, Session>,
    resources: SharedMap<Arc<ResourceKey>, Resource>,
    holders: SharedMap<HolderKey, Holder>,
    requests: SharedMap<Arc<Requester>, SpentRequests>,
    records: SharedMap<(Name, Name), Record>,
    /// Which resource a lease, live or pending, is on.
    leases: BTreeMap<LeaseId, Arc<ResourceKey>>,
    /// Which resources are attached to a session, held or pending.
    attached: BTreeSet<(SessionId, Arc<ResourceKey>)>,
    /// Which resources a holder holds, expired leases that were not swept yet included.
    held: BTreeSet<(Name, Arc<ResourceKey>)>,
    /// How many pending leases there are, by tenant and kind.
    moves: BTreeMap<(Name, Name), u32>,
    lines: Lines,
    dirty: Dirty,
}

impl Ledger {
    /// The rows as they are now, shared with this ledger: it costs nothing, however many there are, and later changes
    /// do not affect them. Rows can be looked up and iterated over; the indexes (by holder, by session) and the lines
    /// are left out.
    pub fn rows(&self) -> Self {
        Self {
            sessions: self.sessions.clone(),
            resources: self.resources.clone(),
            holders: self.holders.clone(),
            requests: self.requests.clone(),
            records: self.records.clone(),
            ..Default::default()
        }
    }

    pub fn session(&self, id: SessionId) -> Option<&Session> {
        self.sessions.get(&id)
    }

    pub fn resource(&self, key: &ResourceKey) -> Option<&Resource> {
        self.resources.get(key)
    }

    pub fn holder(&self, key: &HolderKey) -> Option<&Holder> {
        self.holders.get(key)
    }

    /// What is remembered of a spent request.
    pub fn spent(&self, request: &RequestKey) -> Option<&SpentRequest> {
        self.spent_by(&Requester::of(request))?.get(&request.request)
    }

    /// The spent requests of one holder for one resource.
    pub fn spent_by(&self, requester: &Requester) -> Option<&SpentRequests> {
        self.requests.get(requester)
    }

    /// The key of a resource as it is kept here, so that others who keep it need no copy.
    pub fn shared_key(&self, key: &ResourceKey) -> Option<&Arc<ResourceKey>> {
        self.resources.get_key_value(key).map(|(shared, _)| shared)
    }

    /// The same for a holder that has spent requests for a resource.
    pub fn shared_requester(&self, requester: &Requester) -> Option<&Arc<Requester>> {
        self.requests.get_key_value(requester).map(|(shared, _)| shared)
    }

    pub fn record(&self, collection: &Name, id: &Name) -> Option<&Record> {
        self.records.get(&(collection.clone(), id.clone()))
    }

    /// The resource that a lease, live or pending, is on.
    pub fn resource_of(&self, lease: LeaseId) -> Option<&ResourceKey> {
        self.leases.get(&lease).map(|key| &**key)
    }

    pub fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.sessions.values()
    }

    pub fn resources(&self) -> impl Iterator<Item = &Resource> {
        self.resources.values()
    }

    /// Resources from `from` on, by key.
    pub fn resources_from(&self, from: &ResourceKey) -> impl Iterator<Item = &Resource> {
        self.resources.range::<ResourceKey, _>(from..).map(|(_, r)| r)
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
        self.requesters().flat_map(|(requester, requests)| {
            requests.iter().map(|(name, spent)| (requester.request(name), spent))
        })
    }

    /// Those who have spent requests, by resource and holder.
    pub fn requesters(&self) -> impl Iterator<Item = (&Arc<Requester>, &SpentRequests)> {
        self.requests.iter()
    }

    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.values()
    }

    /// The keys of the resources that are attached to a session, held or pending.
    pub fn attached_to(&self, session: SessionId) -> impl Iterator<Item = &ResourceKey> {
        let from = (session, least());
        self.attached.range(from..).take_while(move |(id, _)| *id == session).map(|(_, key)| &**key)
    }

    /// The keys of the resources that a holder holds, expired leases that were not swept yet included.
    pub fn held_by(&self, holder: &HolderKey) -> impl Iterator<Item = &ResourceKey> {
        let HolderKey { tenant, name } = holder;
        let from = ResourceKey { tenant: tenant.clone(), ..ResourceKey::least() };
        let is_its = move |held: &&(Name, Arc<ResourceKey>)| held.0 == *name && held.1.tenant == *tenant;
        self.held.range((name.clone(), Arc::new(from))..).take_while(is_its).map(|(_, key)| &**key)
    }

    /// The keys of the resources that holders of this name hold, of whatever tenant, as [`Self::held_by`].
    pub fn held_under(&self, name: &Name) -> impl Iterator<Item = &ResourceKey> {
        self.held
            .range((name.clone(), least())..)
            .take_while(move |held| held.0 == *name)
            .map(|(_, key)| &**key)
    }

    /// How many resources of a tenant and kind have a pending lease: those that are loaded, or as many as an engine has
    /// counted.
    pub fn moves(&self, tenant: &Name, kind: &Name) -> u32 {
        self.moves.get(&(tenant.clone(), kind.clone())).copied().unwrap_or(0)
    }

    /// Sets how many pending leases of a tenant and kind there are, as an engine has counted them. To be called after
    /// all resources are loaded.
    pub fn load_moves(&mut self, tenant: Name, kind: Name, count: u32) {
        match count {
            0 => drop(self.moves.remove(&(tenant, kind))),
            count => drop(self.moves.insert((tenant, kind), count)),
        }
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
        self.lines.rows.get(place)
    }

    pub fn waiters(&self) -> impl Iterator<Item = &Waiter> {
        self.lines.rows.values()
    }

    /// The loaded waiters for a resource, in order of arrival.
    pub fn waiters_for(&self, key: &ResourceKey) -> impl Iterator<Item = &Waiter> {
        self.lines.of(key)
    }

    pub fn waiter_of_lease(&self, lease: LeaseId) -> Option<&Waiter> {
        self.lines.of_lease(lease)
    }

    pub fn waiter_of_request(&self, request: &RequestKey) -> Option<&Waiter> {
        self.lines.of_request(request)
    }

    /// The loaded waiters that are attached to a session.
    pub fn waiters_on(&self, session: SessionId) -> impl Iterator<Item = &Waiter> {
        self.lines.on(session)
    }

    /// Whether all waiters ahead of this one are loaded.
    pub(crate) fn knows_all_before(&self, waiter: &Waiter) -> bool {
        self.lines.is_head(waiter) || {
            let queued = self.resource(&waiter.key).map_or(0, |r| r.queued);
            self.lines.of(&waiter.key).count() == queued as usize
        }
    }

    /// This and the other `load_` functions put a row as an engine has loaded it: it is not dirty.
    pub fn load_waiter(&mut self, waiter: Waiter) {
        self.lines.put(waiter);
    }

    /// Declares that all waiters for a resource, up to an arrival, are loaded.
    pub fn load_head(&mut self, key: ResourceKey, arrival: Revision) {
        self.lines.heads.insert(key, arrival);
    }

    pub(crate) fn put_waiter(&mut self, waiter: Waiter) {
        self.dirty.waiters.insert(waiter.place());
        self.lines.put(waiter);
    }

    pub(crate) fn remove_waiter(&mut self, place: PlaceKey) -> Option<Waiter> {
        let old = self.lines.remove(&place);
        self.dirty.waiters.insert(place);
        old
    }

    pub fn load_session(&mut self, session: Session) {
        self.sessions.insert_mut(session.id, session);
    }

    pub fn load_resource(&mut self, resource: Resource) {
        self.index(&resource.key.clone(), Some(resource));
    }

    pub fn load_holder(&mut self, holder: Holder) {
        self.holders.insert_mut(holder.key.clone(), holder);
    }

    pub fn load_request(&mut self, request: RequestKey, spent: SpentRequest) {
        self.change_spent(&request, |requests| requests.put(request.request.clone(), spent));
    }

    /// All spent requests of one holder for one resource.
    pub fn load_requests(&mut self, requester: Requester, spent: SpentRequests) {
        match spent.is_empty() {
            false => self.requests.insert_mut(Arc::new(requester), spent),
            true => drop(self.requests.remove_mut(&requester)),
        }
    }

    pub fn load_record(&mut self, record: Record) {
        self.records.insert_mut(record.key(), record);
    }

    /// Takes the set of rows that have changed since they were loaded.
    pub fn take_dirty(&mut self) -> Dirty {
        std::mem::take(&mut self.dirty)
    }

    /// Copies the rows named in `dirty` from `part`, and removes those that `part` does not have.
    pub fn absorb(&mut self, part: &Ledger, dirty: &Dirty) {
        fn copy<K: Ord + Clone, V: Clone>(
            to: &mut SharedMap<K, V>,
            from: &SharedMap<K, V>,
            keys: &BTreeSet<K>,
        ) {
            for key in keys {
                match from.get(key) {
                    Some(row) => to.insert_mut(key.clone(), row.clone()),
                    None => drop(to.remove_mut(key)),
                }
            }
        }
        copy(&mut self.sessions, &part.sessions, &dirty.sessions);
        copy(&mut self.holders, &part.holders, &dirty.holders);
        copy(&mut self.records, &part.records, &dirty.records);
        for key in &dirty.resources {
            self.index(key, part.resources.get(key).cloned());
        }
        for request in &dirty.requests {
            match part.spent(request) {
                Some(spent) => self.remember(request, spent.clone()),
                None => self.forget_request(request),
            }
        }
        for place in &dirty.waiters {
            match part.waiter(place) {
                Some(waiter) => self.lines.put(waiter.clone()),
                None => drop(self.lines.remove(place)),
            }
        }
    }

    pub(crate) fn put_session(&mut self, session: Session) {
        self.dirty.sessions.insert(session.id);
        self.sessions.insert_mut(session.id, session);
    }

    pub(crate) fn edit_session(&mut self, id: SessionId, edit: impl FnOnce(&mut Session)) {
        if let Some(session) = self.sessions.get_mut(&id) {
            edit(session);
            self.dirty.sessions.insert(id);
        }
    }

    pub(crate) fn remove_session(&mut self, id: SessionId) {
        self.sessions.remove_mut(&id);
        self.dirty.sessions.insert(id);
    }

    pub(crate) fn put_resource(&mut self, resource: Resource) {
        self.dirty.resources.insert(resource.key.clone());
        self.index(&resource.key.clone(), Some(resource));
    }

    pub(crate) fn remove_resource(&mut self, key: &ResourceKey) {
        self.dirty.resources.insert(key.clone());
        self.index(key, None);
    }

    pub(crate) fn put_holder(&mut self, holder: Holder) {
        self.dirty.holders.insert(holder.key.clone());
        self.holders.insert_mut(holder.key.clone(), holder);
    }

    pub(crate) fn remove_holder(&mut self, key: &HolderKey) {
        self.dirty.holders.insert(key.clone());
        self.holders.remove_mut(key);
    }

    pub(crate) fn put_request(&mut self, request: RequestKey, spent: SpentRequest) {
        self.remember(&request, spent);
        self.dirty.requests.insert(request);
    }

    pub(crate) fn remove_request(&mut self, request: RequestKey) {
        self.forget_request(&request);
        self.dirty.requests.insert(request);
    }

    /// Remembers a spent request, and no more of its key than the bound. Which ones that makes it forget is no change
    /// to be written down: whoever remembers the same requests forgets the same ones.
    fn remember(&mut self, request: &RequestKey, spent: SpentRequest) {
        self.change_spent(request, |requests| {
            let by = spent.by.clone();
            requests.put(request.request.clone(), spent);
            requests.trim(by.as_ref());
        });
    }

    fn forget_request(&mut self, request: &RequestKey) {
        self.change_spent(request, |requests| requests.remove(&request.request));
    }

    /// Changes the requests among which a request is.
    fn change_spent(&mut self, request: &RequestKey, change: impl FnOnce(&mut SpentRequests)) {
        let requester = Requester::of(request);
        if let Some(requests) = self.requests.get_mut(&requester) {
            change(requests);
            if requests.is_empty() {
                self.requests.remove_mut(&requester);
            }
        } else {
            let mut requests = SpentRequests::default();
            change(&mut requests);
            self.load_requests(requester, requests);
        }
    }

    pub(crate) fn put_record(&mut self, record: Record) {
        self.dirty.records.insert(record.key());
        self.records.insert_mut(record.key(), record);
    }

    pub(crate) fn remove_record(&mut self, key: (Name, Name)) {
        self.records.remove_mut(&key);
        self.dirty.records.insert(key);
    }

    /// Writes or removes a resource and updates the indexes.
    fn index(&mut self, key: &ResourceKey, mut resource: Option<Resource>) {
        let (shared, old) = match self.resources.get_key_value(key) {
            Some((shared, old)) => (shared.clone(), Indexed::of(old)),
            None => (Arc::new(self.named_as_here(key)), Indexed::default()),
        };
        if let Some(resource) = &mut resource {
            resource.key = (*shared).clone();
            if let Some(lease) = &mut resource.lease {
                self.share_holder(&mut lease.holder);
            }
        }
        let new = resource.as_ref().map(Indexed::of).unwrap_or_default();
        if old != new {
            for id in old.leases.into_iter().flatten() {
                self.leases.remove(&id);
            }
            for session in old.sessions.into_iter().flatten() {
                self.attached.remove(&(session, shared.clone()));
            }
            if let Some(holder) = old.holder {
                self.held.remove(&(holder, shared.clone()));
            }
            self.leases.extend(new.leases.into_iter().flatten().map(|id| (id, shared.clone())));
            self.attached.extend(new.sessions.into_iter().flatten().map(|id| (id, shared.clone())));
            self.held.extend(new.holder.map(|holder| (holder, shared.clone())));
            self.count_moves(&shared, old.leases[1].is_some(), new.leases[1].is_some());
        }
        match resource {
            Some(resource) => self.resources.insert_mut(shared, resource),
            None => drop(self.resources.remove_mut(key)),
        }
    }

    fn count_moves(&mut self, key: &ResourceKey, was_pending: bool, is_pending: bool) {
        if was_pending != is_pending {
            let count = self.moves(&key.tenant, &key.kind);
            let count = count.saturating_add_signed(if is_pending { 1 } else { -1 });
            self.load_moves(key.tenant.clone(), key.kind.clone(), count);
        }
    }

    /// The same key, sharing the names of its neighbours, which mostly have the same tenant and kind: a name that
    /// thousands of rows use is in memory once.
    fn named_as_here(&self, key: &ResourceKey) -> ResourceKey {
        let before = self.resources.range::<ResourceKey, _>(..key).next_back();
        let after = self.resources.range::<ResourceKey, _>(key..).next();
        let mut key = key.clone();
        for (neighbour, _) in before.into_iter().chain(after) {
            share(&mut key.tenant, &neighbour.tenant);
            share(&mut key.kind, &neighbour.kind);
        }
        key
    }

    /// The same for the name of a holder, which may hold many resources.
    fn share_holder(&self, holder: &mut Name) {
        if let Some((same, _)) = self.held.range((holder.clone(), least())..).next() {
            share(holder, same);
        }
    }
}

/// Makes `name` share the text of `other` if they are equal.
fn share(name: &mut Name, other: &Name) {
    if name == other {
        *name = other.clone();
    }
}

/// The least key, where ranges begin.
fn least() -> Arc<ResourceKey> {
    static LEAST: LazyLock<Arc<ResourceKey>> = LazyLock::new(|| Arc::new(ResourceKey::least()));
    LEAST.clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{key::Document, time::Token};

    /// As a store reads it: each name is a string of its own.
    fn held(key: &str) -> Resource {
        let name = |text: &str| Name::new(text).expect("a name");
        let key = ResourceKey { tenant: name("acme"), kind: name("job"), key: name(key) };
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
