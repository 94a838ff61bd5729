//! Changes to the rows of a ledger, and to its indexes.

use std::sync::Arc;

use super::{Dirty, Ledger, SharedMap};
use crate::{
    hashing::KeyList,
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
struct Indexed<'a> {
    leases: [Option<LeaseId>; 2],
    sessions: [Option<SessionId>; 2],
    holder: Option<&'a Name>,
}

impl<'a> Indexed<'a> {
    fn of(resource: Option<&'a Arc<Resource>>) -> Self {
        let Some(resource) = resource else { return Self::default() };
        let lease = resource.lease.as_ref();
        let pending = resource.pending.as_ref();
        Self {
            leases: [lease.map(|l| l.id), pending.map(|p| p.id)],
            sessions: [lease.and_then(|l| l.tenure.session()), pending.map(|p| p.session)],
            holder: lease.map(|l| &l.holder),
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

    pub fn load_resource(&mut self, mut resource: Resource) {
        let key = self.shared_key(&resource.key);
        if !std::ptr::eq(resource.key.key.as_str(), key.key.as_str()) {
            resource.key = (*key).clone();
        }
        if let Some(lease) = &mut resource.lease {
            self.share_holder(&mut lease.holder);
        }
        self.put_indexed(key, Arc::new(resource));
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

    /// Takes over the rows named in `dirty` from `part`, and removes those that `part` does not have.
    pub fn absorb(&mut self, part: &Ledger, dirty: &Dirty) {
        fn copy<K: Ord + Clone, V: Clone>(
            to: &mut SharedMap<K, V>,
            from: &SharedMap<K, V>,
            keys: &KeyList<K>,
        ) {
            for key in keys {
                match from.get(key) {
                    Some(row) => to.insert_mut(key.clone(), row.clone()),
                    None => drop(to.remove_mut(key)),
                }
            }
        }
        copy(&mut self.holders, &part.holders, &dirty.holders);
        copy(&mut self.records, &part.records, &dirty.records);
        for id in &dirty.sessions {
            match part.sessions.get(id) {
                Some(session) => self.sessions.insert_mut(*id, session.clone()),
                None => drop(self.sessions.remove_mut(id)),
            }
        }
        for key in &dirty.resources {
            match part.resources.get_key_value(key) {
                Some((shared, resource)) => self.put_indexed(shared.clone(), resource.clone()),
                None => self.remove_indexed(key),
            }
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
        self.load_resource(resource);
        self.dirty.resources.insert(key);
    }

    pub(crate) fn remove_resource(&mut self, key: &ResourceKey) {
        self.remove_indexed(key);
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

    /// The key of a resource as it is kept here or beneath, so that its names are in memory once.
    fn shared_key(&self, key: &ResourceKey) -> Arc<ResourceKey> {
        let known = |rows: &Self| rows.resources.get_key_value(key).map(|(shared, _)| shared.clone());
        let known = known(self).or_else(|| known(self.base.as_deref()?));
        known.unwrap_or_else(|| Arc::new(key.clone()))
    }

    fn put_indexed(&mut self, key: Arc<ResourceKey>, resource: Arc<Resource>) {
        let was_pending = self.is_pending(&key);
        let old = match self.resources.get_mut(&*key) {
            Some(place) => Some(std::mem::replace(place, resource.clone())),
            None => {
                self.order.insert(key.clone());
                self.resources.insert_mut(key.clone(), resource.clone());
                None
            }
        };
        self.index(&key, old.as_ref(), Some(&resource));
        self.count_moves(&key, was_pending, resource.pending.is_some());
    }

    fn remove_indexed(&mut self, key: &ResourceKey) {
        let was_pending = self.is_pending(key);
        let old = self.resources.get_key_value(key).map(|(key, old)| (key.clone(), old.clone()));
        if let Some((shared, old)) = old {
            self.resources.remove_mut(key);
            self.order.remove(key);
            self.index(&shared, Some(&old), None);
        }
        self.count_moves(key, was_pending, false);
    }

    fn is_pending(&self, key: &ResourceKey) -> bool {
        self.resource(key).is_some_and(|resource| resource.pending.is_some())
    }

    /// Updates the indexes. What is indexed beneath a layer is left out there once the resource has changed.
    fn index(&mut self, key: &Arc<ResourceKey>, old: Option<&Arc<Resource>>, new: Option<&Arc<Resource>>) {
        let old = Indexed::of(old);
        let new = Indexed::of(new);
        if old == new {
            return;
        }
        for id in old.leases.into_iter().flatten() {
            // In whatever order rows are absorbed, it may already be in another slot.
            if self.leases.get(&id).is_some_and(|at| at == key) {
                self.leases.remove(&id);
            }
        }
        for session in old.sessions.into_iter().flatten() {
            self.attached.remove(&session, key);
        }
        if let Some(holder) = old.holder {
            self.held.remove(holder, key);
        }
        self.leases.extend(new.leases.into_iter().flatten().map(|id| (id, key.clone())));
        for session in new.sessions.into_iter().flatten() {
            self.attached.insert(session, key.clone());
        }
        if let Some(holder) = new.holder {
            self.held.insert(holder.clone(), key.clone());
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
        let rows = self.base.as_deref().unwrap_or(self);
        if let Some(same) = rows.held.kept(holder) {
            *holder = same.clone();
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
