//! Changes to the rows of a ledger, and to its indexes.

use std::{collections::BTreeSet, sync::Arc};

use super::{Dirty, Ledger, SharedMap, least};
use crate::{
    key::{HolderKey, LeaseId, Name, RequestKey, ResourceKey, SessionId},
    lease::Resource,
    record::Record,
    request::{Requester, SpentRequest, SpentRequests},
    session::{Holder, Session},
    time::Revision,
    waiter::{PlaceKey, Waiter},
};

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

impl Ledger {
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
        let old = self.waiter(&place).cloned();
        self.lines.remove(&place);
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
        if spent.is_empty() {
            self.requests.remove_mut(&requester);
        } else {
            self.requests.insert_mut(Arc::new(requester), spent);
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
        } else if let Some(mut session) = self.session(id).cloned() {
            edit(&mut session);
            self.put_session(session);
        }
    }

    pub(crate) fn remove_session(&mut self, id: SessionId) {
        self.sessions.remove_mut(&id);
        self.dirty.sessions.insert(id);
    }

    pub(crate) fn put_resource(&mut self, resource: Resource) {
        let key = resource.key.clone();
        self.index(&key, Some(resource));
        self.dirty.resources.insert(key);
    }

    pub(crate) fn remove_resource(&mut self, key: &ResourceKey) {
        self.index(key, None);
        self.dirty.resources.insert(key.clone());
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
        let (shared, old, was_pending) = match self.resources.get_key_value(key) {
            Some((shared, old)) => (shared.clone(), Indexed::of(old), old.pending.is_some()),
            // What is indexed beneath this layer is left out there, since the resource has changed.
            None => {
                let was_pending = self.resource(key).is_some_and(|resource| resource.pending.is_some());
                (Arc::new(key.clone()), Indexed::default(), was_pending)
            }
        };
        if let Some(resource) = resource.as_mut().filter(|_| self.base.is_none()) {
            resource.key = (*shared).clone();
            if let Some(lease) = &mut resource.lease {
                self.share_holder(&mut lease.holder);
            }
        }
        let new = resource.as_ref().map(Indexed::of).unwrap_or_default();
        if old != new {
            for id in old.leases.into_iter().flatten() {
                // Absorbed in the order of keys, it may already be in another slot.
                if self.leases.get(&id).is_some_and(|at| **at == *key) {
                    self.leases.remove(&id);
                }
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
        }
        self.count_moves(&shared, was_pending, new.leases[1].is_some());
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

    /// Lets the name of a holder share the text that it has in other rows, since it may hold many resources. Tenants
    /// and kinds share theirs because they were made lately.
    fn share_holder(&self, holder: &mut Name) {
        if let Some((same, _)) = self.held.range((holder.clone(), least())..).next() {
            share(holder, same);
        }
    }

    /// Sets how many pending leases of a tenant and kind there are, as an engine has counted them. To be called after
    /// all resources are loaded.
    pub fn load_moves(&mut self, tenant: Name, kind: Name, count: u32) {
        match count {
            0 if self.base.is_none() => drop(self.moves.remove(&(tenant, kind))),
            count => drop(self.moves.insert((tenant, kind), count)),
        }
    }
}

/// Makes `name` share the text of `other` if they are equal.
fn share(name: &mut Name, other: &Name) {
    if name == other {
        *name = other.clone();
    }
}
