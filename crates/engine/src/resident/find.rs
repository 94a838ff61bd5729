//! Reading the rows of a resident store.

use std::collections::VecDeque;

use solehold_core::{
    command::Footprint,
    event::Event,
    key::{HolderKey, Name, ResourceKey, SessionId},
    lease::Resource,
    ledger::Ledger,
    limits::{SESSION_WAITERS_LOADED, WAITERS_LOADED},
    time::StoreTime,
    waiter::Waiter,
};

use crate::store::{EventQuery, HolderQuery, ResourceQuery};

/// The rows that a footprint names, with all that is loaded beside them.
pub(super) fn part(all: &Ledger, footprint: &Footprint) -> Ledger {
    let mut part = Ledger::default();
    let mut whole: Vec<SessionId> = footprint.whole_sessions.clone();
    for key in footprint.holders.iter().chain(&footprint.whole_holders) {
        load_holder(all, &mut part, key);
    }
    for key in &footprint.whole_holders {
        whole.extend(all.holder(key).and_then(|h| h.session));
    }
    for id in &footprint.sessions {
        load_session(all, &mut part, *id);
    }
    for id in whole {
        load_session(all, &mut part, id);
        if let Some(session) = all.session(id) {
            load_holder(all, &mut part, &session.holder);
        }
        for key in all.attached_to(id) {
            load_resource(all, &mut part, key);
        }
        for waiter in all.waiters_on(id).take(SESSION_WAITERS_LOADED) {
            load_resource(all, &mut part, &waiter.key);
            load_waiter(all, &mut part, waiter);
        }
    }
    for key in footprint.holdings.iter().flat_map(|holder| all.held_by(holder)) {
        load_resource(all, &mut part, key);
    }
    for key in footprint.resources.iter().chain(footprint.leases.iter().filter_map(|id| all.resource_of(*id)))
    {
        load_resource(all, &mut part, key);
    }
    load_lines(all, &mut part, footprint);
    for request in &footprint.requests {
        if let Some(spent) = all.spent(request) {
            part.load_request(request.clone(), spent.clone());
        }
    }
    for requester in &footprint.cancelled {
        let all_spent = all.each_spent_by(requester);
        for (request, spent) in all_spent.filter(|(_, spent)| spent.cancelled) {
            part.load_request(requester.request(request), spent.clone());
        }
    }
    for (collection, id) in &footprint.records {
        if let Some(record) = all.record(collection, id) {
            part.load_record(record.clone());
        }
    }
    for (tenant, kind) in &footprint.moves {
        part.load_moves(tenant.clone(), kind.clone(), all.moves(tenant, kind));
    }
    part
}

/// The head of each line, and the waiters that are named.
fn load_lines(all: &Ledger, part: &mut Ledger, footprint: &Footprint) {
    let keys: Vec<_> = part.resources().filter(|r| r.queued > 0).map(|r| r.key.clone()).collect();
    for key in keys {
        let mut last = None;
        for waiter in all.waiters_for(&key).take(WAITERS_LOADED) {
            load_waiter(all, part, waiter);
            last = Some(waiter.arrival);
        }
        if let Some(last) = last {
            part.load_head(key, last);
        }
    }
    let by_request = footprint.requests.iter().filter_map(|request| all.waiter_of_request(request));
    let by_lease = footprint.waiters.iter().filter_map(|(_, lease)| all.waiter_of_lease(*lease));
    for waiter in by_request.chain(by_lease) {
        load_waiter(all, part, waiter);
    }
}

fn load_waiter(all: &Ledger, part: &mut Ledger, waiter: &Waiter) {
    for id in waiter.sessions() {
        load_session(all, part, id);
    }
    part.load_waiter(waiter.clone());
}

/// Loads a resource with its slots, also where a slot is named.
fn load_resource(all: &Ledger, part: &mut Ledger, key: &ResourceKey) {
    let whole = key.whole();
    let slots = all.slots_of(&whole).unwrap_or_default();
    for resource in all.resource(&whole).into_iter().chain(slots) {
        for id in resource.sessions() {
            load_session(all, part, id);
        }
        part.load_resource(resource.clone());
    }
}

fn load_session(all: &Ledger, part: &mut Ledger, id: SessionId) {
    if let Some(session) = all.session(id) {
        part.load_session(session.clone());
    }
}

fn load_holder(all: &Ledger, part: &mut Ledger, key: &HolderKey) {
    if let Some(holder) = all.holder(key) {
        part.load_holder(holder.clone());
        if let Some(id) = holder.session {
            load_session(all, part, id);
        }
    }
}

/// The keys of the resources among which a query's are, if an index knows them.
pub(super) fn indexed(all: &Ledger, query: &ResourceQuery) -> Option<Vec<ResourceKey>> {
    if let Some(session) = query.session {
        return Some(all.attached_to(session).cloned().collect());
    }
    match (&query.tenant, &query.holder, &query.kind, &query.key) {
        (Some(tenant), Some(name), ..) => {
            let holder = HolderKey { tenant: tenant.clone(), name: name.clone() };
            Some(all.held_by(&holder).cloned().collect())
        }
        (None, Some(name), ..) => {
            let mut keys: Vec<_> = all.held_under(name).cloned().collect();
            keys.sort();
            Some(keys)
        }
        (tenant, None, Some(kind), Some(key)) => {
            let of = |tenant: Name| ResourceKey::new(tenant, kind.clone(), key.clone());
            let tenants = tenant.clone().map_or_else(|| tenants(all), |tenant| vec![tenant]);
            let with_slots = |whole: ResourceKey| {
                let slots: Vec<_> = all.slots_of(&whole).unwrap_or_default();
                let slots: Vec<_> = slots.into_iter().map(|slot| slot.key.clone()).collect();
                std::iter::once(whole).chain(slots)
            };
            Some(tenants.into_iter().map(of).flat_map(with_slots).collect())
        }
        _ => None,
    }
}

fn least() -> Name {
    Name::new(" ").expect("no printable character comes before the space")
}

/// The tenants that have resources, in order: each is found by one step over all resources of the one before.
fn tenants(all: &Ledger) -> Vec<Name> {
    let least = least();
    let first_of = |tenant: Name| ResourceKey::new(tenant, least.clone(), least.clone());
    let first = |from: &ResourceKey| all.resources_from(from).next().map(|r| r.key.tenant.clone());
    let mut found: Vec<Name> = first(&first_of(least.clone())).into_iter().collect();
    while let Some(last) = found.last() {
        // No name stands between a name and the same name with a space after it, unless that is too long to be one.
        let next = match Name::new(format!("{last} ")) {
            Ok(next) => first(&first_of(next)),
            Err(_) => {
                let its_first = first_of(last.clone());
                let mut tenants = all.resources_from(&its_first).map(|r| &r.key.tenant);
                tenants.find(|tenant| *tenant != last).cloned()
            }
        };
        let Some(next) = next else { break };
        found.push(next);
    }
    found
}

/// The keys of resources that match, and whether there are more: of those that an index knows, or of all.
pub(super) fn resources(
    all: &Ledger,
    indexed: Option<&[ResourceKey]>,
    query: &ResourceQuery,
    now: StoreTime,
) -> (Vec<ResourceKey>, bool) {
    let mut keys = Vec::new();
    let mut more = false;
    let mut take = |resource: &Resource| {
        let is_after = query.after.as_ref().is_none_or(|after| resource.key > *after);
        if is_after && matches(all, resource, query, now) {
            more = keys.len() == query.limit;
            if !more {
                keys.push(resource.key.clone());
            }
        }
        !more
    };
    if let Some(indexed) = indexed {
        indexed.iter().filter_map(|key| all.resource(key)).all(&mut take);
    } else {
        let is_its = |key: &ResourceKey| {
            query.tenant.as_ref().is_none_or(|t| *t == key.tenant)
                && (query.tenant.is_none() || query.kind.as_ref().is_none_or(|k| *k == key.kind))
        };
        let from = first_of(query);
        all.resources_from(&from).take_while(|r| is_its(&r.key)).all(&mut take);
    }
    (keys, more)
}

/// Where the resources of a query begin: at its page, or at the least name of its tenant and kind.
fn first_of(query: &ResourceQuery) -> ResourceKey {
    let least = least();
    let tenant = query.tenant.clone().unwrap_or_else(|| least.clone());
    let kind = query.kind.clone().filter(|_| query.tenant.is_some()).unwrap_or_else(|| least.clone());
    let first = ResourceKey::new(tenant, kind, least);
    query.after.clone().map_or(first.clone(), |after| after.max(first))
}

fn matches(all: &Ledger, resource: &Resource, query: &ResourceQuery, now: StoreTime) -> bool {
    fn is(asked: Option<&Name>, found: Option<&Name>) -> bool {
        asked.is_none_or(|asked| Some(asked) == found)
    }
    let declared = resource.declared.as_ref();
    let lease = resource.lease.as_ref();
    let is_live = lease.is_some_and(|l| all.deadline_of(l).is_ok_and(|deadline| now < deadline));
    is(query.tenant.as_ref(), Some(&resource.key.tenant))
        && is(query.kind.as_ref(), Some(&resource.key.kind))
        && is(query.key.as_ref(), Some(&resource.key.key))
        && is(query.site.as_ref(), declared.and_then(|d| d.site.as_ref()))
        && is(query.holder.as_ref(), lease.map(|l| &l.holder))
        && query.session.is_none_or(|id| resource.sessions().any(|s| s == id))
        && query.leased.is_none_or(|leased| leased == (is_live || resource.taken > 0 && !leased))
        && (query.wants_slots() || !resource.key.is_slot())
        && query.labels.iter().all(|(k, v)| declared.is_some_and(|d| d.labels.get(k) == Some(v)))
        && (query.undeclared || declared.is_some())
}

/// The keys of holders that match, and whether there are more.
pub(super) fn holders(all: &Ledger, query: &HolderQuery) -> (Vec<HolderKey>, bool) {
    let least = least();
    let tenant = query.tenant.clone().unwrap_or_else(|| least.clone());
    let first = HolderKey { tenant, name: least };
    let from = query.after.clone().map_or(first.clone(), |after| after.max(first));
    let mut keys: Vec<_> = all
        .holders_from(&from)
        .take_while(|h| query.tenant.as_ref().is_none_or(|t| *t == h.key.tenant))
        .filter(|h| query.name.as_ref().is_none_or(|name| *name == h.key.name))
        .filter(|h| !query.registered || h.registered)
        .filter(|h| query.after.as_ref().is_none_or(|after| h.key > *after))
        .map(|h| h.key.clone())
        .take(query.limit.saturating_add(1))
        .collect();
    let more = keys.len() > query.limit;
    keys.truncate(query.limit);
    (keys, more)
}

/// The events that match, the oldest first.
pub(super) fn events(events: &VecDeque<Event>, query: &EventQuery) -> Vec<Event> {
    let is_its = |e: &&Event| {
        query.lease.is_none_or(|id| e.lease() == Some(id))
            && query.resource.as_ref().is_none_or(|key| e.key.whole() == key.whole())
    };
    let first = events.partition_point(|e| e.revision <= query.after);
    match query.newest_before {
        Some(before) => {
            let end = events.partition_point(|e| e.revision < before).max(first);
            events.range(first..end).rev().filter(is_its).take(query.limit).cloned().collect()
        }
        None => events.range(first..).filter(is_its).take(query.limit).cloned().collect(),
    }
}
