//! Loads what an engine loads for a footprint, by the words of `Footprint`'s documentation and nothing more.

use std::collections::BTreeSet;

use solehold_core::{
    command::Footprint,
    key::{HolderKey, ResourceKey, SessionId},
    ledger::{Dirty, Ledger},
    limits::SESSION_WAITERS_LOADED,
    time::Revision,
    waiter::{PlaceKey, Waiter},
};

/// The rows that an engine has locked, whether or not they exist.
#[derive(Debug, Default)]
pub struct Loaded {
    sessions: BTreeSet<SessionId>,
    resources: BTreeSet<ResourceKey>,
    holders: BTreeSet<HolderKey>,
    waiters: BTreeSet<PlaceKey>,
    heads: Vec<(ResourceKey, Revision)>,
    footprint: Footprint,
}

/// How much of each line is loaded: little at first, so that more has to be asked for.
#[derive(Debug, Clone, Copy)]
pub struct Depth(pub usize);

impl Loaded {
    pub fn of(full: &Ledger, footprint: Footprint, Depth(depth): Depth) -> Self {
        let mut loaded = Self::default();
        let mut whole: BTreeSet<SessionId> = footprint.whole_sessions.iter().copied().collect();
        for key in footprint.holders.iter().chain(&footprint.whole_holders) {
            loaded.holder(full, key);
        }
        whole.extend(footprint.whole_holders.iter().filter_map(|key| full.holder(key)?.session));
        for id in whole {
            loaded.sessions.insert(id);
            if let Some(session) = full.session(id) {
                loaded.holder(full, &session.holder);
            }
            for resource in full.resources().filter(|r| r.sessions().any(|s| s == id)) {
                loaded.resources.insert(resource.key.clone());
            }
            for waiter in full.waiters_on(id).take(SESSION_WAITERS_LOADED) {
                loaded.resources.insert(waiter.key.clone());
                loaded.waiters.insert(waiter.place());
            }
        }
        loaded.resources.extend(footprint.resources.iter().cloned());
        loaded.resources.extend(footprint.holdings.iter().flat_map(|key| full.held_by(key)).cloned());
        loaded.resources.extend(footprint.leases.iter().filter_map(|id| full.resource_of(*id).cloned()));
        let whole: BTreeSet<ResourceKey> = loaded.resources.iter().map(ResourceKey::whole).collect();
        for key in whole {
            let slots = full.slots_of(&key).expect("the whole state is here");
            loaded.resources.extend(slots.iter().map(|slot| slot.key.clone()));
            loaded.resources.insert(key);
        }
        for resource in loaded.resources.iter().filter_map(|key| full.resource(key)) {
            loaded.sessions.extend(resource.sessions());
            let head = full.waiters_for(&resource.key).take(depth);
            loaded.waiters.extend(head.map(Waiter::place));
            let last = full.waiters_for(&resource.key).take(depth).last();
            loaded.heads.extend(last.map(|w| w.place()));
        }
        let by_request = footprint.requests.iter().filter_map(|r| full.waiter_of_request(r));
        let by_lease = footprint.waiters.iter().filter_map(|(_, lease)| full.waiter_of_lease(*lease));
        loaded.waiters.extend(by_request.chain(by_lease).map(Waiter::place));
        for waiter in loaded.waiters.iter().filter_map(|place| full.waiter(place)) {
            loaded.sessions.extend(waiter.sessions());
        }
        loaded.sessions.extend(footprint.sessions.iter().copied());
        loaded.footprint = footprint;
        loaded
    }

    fn holder(&mut self, full: &Ledger, key: &HolderKey) {
        self.holders.insert(key.clone());
        self.sessions.extend(full.holder(key).and_then(|h| h.session));
    }

    /// The part of `full` that was loaded.
    pub fn part(&self, full: &Ledger) -> Ledger {
        let mut part = Ledger::default();
        self.sessions.iter().filter_map(|id| full.session(*id)).for_each(|s| part.load_session(s.clone()));
        self.resources
            .iter()
            .filter_map(|key| full.resource(key))
            .for_each(|r| part.load_resource(r.clone()));
        self.holders.iter().filter_map(|key| full.holder(key)).for_each(|h| part.load_holder(h.clone()));
        for waiter in self.waiters.iter().filter_map(|place| full.waiter(place)) {
            part.load_waiter(waiter.clone());
        }
        for (key, arrival) in &self.heads {
            part.load_head(key.clone(), *arrival);
        }
        for request in &self.footprint.requests {
            if let Some(spent) = full.spent(request) {
                part.load_request(request.clone(), spent.clone());
            }
        }
        for requester in &self.footprint.cancelled {
            let all_spent = full.each_spent_by(requester);
            for (request, spent) in all_spent.filter(|(_, spent)| spent.cancelled) {
                part.load_request(requester.request(request), spent.clone());
            }
        }
        for (collection, id) in &self.footprint.records {
            if let Some(record) = full.record(collection, id) {
                part.load_record(record.clone());
            }
        }
        for (tenant, kind) in &self.footprint.moves {
            part.load_moves(tenant.clone(), kind.clone(), full.moves(tenant, kind));
        }
        part
    }

    /// That every row that changed was loaded. Rows of sessions opened just now are new; a request is spent without
    /// having been read, under the lock of its resource.
    pub fn assert_covers(&self, dirty: &Dirty, full: &Ledger) {
        for id in &dirty.sessions {
            assert!(self.sessions.contains(id) || full.session(*id).is_none(), "session {id} was not loaded");
        }
        for key in &dirty.resources {
            let is_new = key.is_slot() && full.resource(key).is_none();
            let loaded = if is_new { &key.whole() } else { key };
            assert!(self.resources.contains(loaded), "resource {key} was not loaded");
        }
        for key in &dirty.holders {
            assert!(self.holders.contains(key), "holder {key:?} was not loaded");
        }
        for request in &dirty.requests {
            assert!(self.resources.contains(&request.resource), "request {request:?} was not under lock");
        }
        for place in &dirty.waiters {
            let is_new = full.waiter(place).is_none();
            assert!(is_new || self.waiters.contains(place), "waiter {place:?} was not loaded");
        }
        for record in &dirty.records {
            assert!(self.footprint.records.contains(record), "record {record:?} was not loaded");
        }
    }
}

/// All rows of a state, in a state that is made of nothing but them: what is left after a restart.
pub fn only_rows(full: &Ledger) -> Ledger {
    let mut rows = Ledger::default();
    full.sessions().for_each(|s| rows.load_session(s.clone()));
    full.resources().for_each(|r| rows.load_resource(r.clone()));
    full.holders().for_each(|h| rows.load_holder(h.clone()));
    full.requests().for_each(|(request, spent)| rows.load_request(request, spent.clone()));
    full.records().for_each(|r| rows.load_record(r.clone()));
    full.waiters().for_each(|w| rows.load_waiter(w.clone()));
    rows
}
