//! `apply`: what a change does to the rows. It never refuses; everything that could be refused was refused by `decide`.

use std::sync::Arc;

use crate::{
    event::{Change, Event, What},
    key::ResourceKey,
    lease::{Lease, Resource, Tenure},
    ledger::Ledger,
    request::SpentRequest,
    session::Session,
    time::StoreTime,
    waiter::Waiter,
};

/// Applies one change. Together with [`crate::decide()`] this is the whole machine.
pub fn apply(ledger: &mut Ledger, change: &Change) {
    match change {
        Change::Event(event) => apply_event(ledger, event),
        Change::LeaseRenewed { key, .. } => {
            let Some(mut resource) = ledger.resource(key).cloned() else { return };
            if let Some(lease) = &mut resource.lease {
                to_lease(lease, change);
                ledger.put_resource(resource);
            }
        }
        Change::SlotFreed { key, at } => {
            let Some(mut slot) = ledger.resource(key).cloned() else { return };
            (slot.held_back_until, slot.held_back_by) = (None, None);
            put_slot(ledger, slot, *at);
        }
        Change::Waits(waiter) => {
            match ledger.remove_waiter(waiter.place()) {
                Some(old) => count_on_sessions(ledger, &old, -1),
                None => count_in_line(ledger, &waiter.key, 1),
            }
            count_on_sessions(ledger, waiter, 1);
            ledger.put_waiter(waiter.clone());
        }
        Change::WaitEnded { key, arrival, at } => {
            let Some(old) = ledger.remove_waiter((key.clone(), *arrival)) else { return };
            count_on_sessions(ledger, &old, -1);
            count_in_line(ledger, key, -1);
            if ledger.resource(key).is_some_and(|r| r.is_forgettable(*at)) {
                ledger.remove_resource(key);
            }
        }
        Change::SessionOpened(session) => ledger.put_session(session.clone()),
        Change::SessionRenewed { id, at, deadline, metrics } => ledger.edit_session(*id, |s| {
            s.renewed_at = *at;
            s.deadline = *deadline;
            if let Some(metrics) = metrics {
                s.metrics = metrics.clone();
            }
        }),
        Change::SessionStanding { id, standing } => ledger.edit_session(*id, |s| s.standing = *standing),
        Change::SessionEnded(id) => ledger.remove_session(*id),
        Change::RequestSpent { request, spent } => ledger.put_request(request.clone(), spent.clone()),
        Change::HolderPut(holder) => ledger.put_holder(holder.clone()),
        Change::HolderRemoved(key) => ledger.remove_holder(key),
        Change::RecordPut(record) => ledger.put_record(record.clone()),
        Change::RecordRemoved { collection, id } => ledger.remove_record((collection.clone(), id.clone())),
        // Revisions are the engine's to keep: it reads the decision's moment.
        Change::RevisionRaised(_) => {}
    }
}

fn apply_event(ledger: &mut Ledger, event: &Event) {
    let mut resource =
        ledger.resource(&event.key).cloned().unwrap_or_else(|| Resource::new(event.key.clone(), event.at));
    to_resource(&mut resource, event);
    if let Some((id, by)) = event.lease_count_change() {
        ledger.edit_session(id, |s| {
            s.lease_count = s.lease_count.saturating_add_signed(by);
            s.lease_revision = event.revision;
        });
    }
    if let Some(id) = event.holder_session {
        ledger.edit_session(id, |s| s.lease_revision = event.revision);
    }
    if resource.key.is_slot() {
        put_slot(ledger, resource, event.at);
    } else {
        put(ledger, resource, event.at);
    }
}

/// Writes a row, or drops it if it says nothing any more.
fn put(ledger: &mut Ledger, resource: Resource, at: StoreTime) {
    if resource.is_forgettable(at) {
        ledger.remove_resource(&resource.key);
    } else {
        ledger.put_resource(resource);
    }
}

/// Writes the row of a slot, which its resource counts while it is there (rule 29).
fn put_slot(ledger: &mut Ledger, slot: Resource, at: StoreTime) {
    let whole = slot.key.whole();
    let was_taken = ledger.resource(&slot.key).is_some();
    let is_taken = !slot.is_forgettable(at);
    let token = slot.last_token;
    put(ledger, slot, at);
    if was_taken != is_taken {
        let mut resource = ledger.resource(&whole).cloned().unwrap_or_else(|| Resource::new(whole, at));
        resource.last_token = resource.last_token.max(token);
        resource.taken = resource.taken.saturating_add_signed(if is_taken { 1 } else { -1 });
        put(ledger, resource, at);
    }
}

fn count_on_sessions(ledger: &mut Ledger, waiter: &Waiter, by: i32) {
    for id in waiter.sessions() {
        ledger.edit_session(id, |s| s.waiting = s.waiting.saturating_add_signed(by));
    }
}

fn count_in_line(ledger: &mut Ledger, key: &ResourceKey, by: i32) {
    let Some(mut resource) = ledger.resource(key).cloned() else { return };
    resource.queued = resource.queued.saturating_add_signed(by);
    ledger.put_resource(resource);
}

/// What a renewal does to the lease.
pub(crate) fn to_lease(lease: &mut Lease, change: &Change) {
    if let Change::LeaseRenewed { at, tenure, stats, confirm_by, .. } = change {
        lease.tenure = *tenure;
        lease.confirm_by = *confirm_by;
        lease.renewed_at = Some(*at);
        if let Some(stats) = stats {
            lease.stats = stats.clone();
        }
    }
}

/// What an event does to the row of its resource.
pub(crate) fn to_resource(resource: &mut Resource, event: &Event) {
    match &event.what {
        What::Pending(pending) => resource.pending = Some(Box::new(pending.clone())),
        What::Acquired(lease) => {
            resource.last_token = lease.token;
            (resource.held_back_until, resource.held_back_by) = (None, None);
            resource.pending.take_if(|p| p.id == lease.id);
            resource.slots = lease.slots.unwrap_or(0);
            resource.lease = Some(lease.clone());
        }
        What::Released(ended) | What::Expired(ended) | What::Revoked(ended) => {
            resource.pending.take_if(|p| p.id == ended.lease);
            if let Some(lease) = resource.lease.take_if(|l| l.id == ended.lease) {
                resource.held_back_until = ended.held_back_until;
                resource.held_back_by = lease.by.filter(|_| ended.held_back_until.is_some());
            }
        }
        What::Stolen(_) | What::ConfigChanged(_) => {}
        What::HoldBackLifted { .. } => (resource.held_back_until, resource.held_back_by) = (None, None),
        What::StateChanged(state) => resource.state = Some(state.clone()),
        What::Declared(declaration) => {
            if resource.declared.is_none() {
                resource.created_at = event.at;
            }
            resource.declared = Some(Arc::new(declaration.clone()));
        }
        What::Deleted => {
            resource.declared = None;
            resource.state = None;
        }
    }
}

/// Gives back time that passed while no engine was running: whatever was live at `stopped_at` keeps the time that
/// it had left, and every live session at least `grace_ms` from `now`, or its ttl if that is less (rule 3). So do
/// hold-backs, waiters and spent requests: an hour in which no request could be repeated does not count. Rows that this
/// does not change are not dirty.
pub fn resume(ledger: &mut Ledger, stopped_at: StoreTime, gap_ms: u64, now: StoreTime, grace_ms: u64) {
    let later = |deadline: StoreTime, ttl_ms: u64| {
        if deadline > stopped_at {
            deadline.plus_ms(gap_ms).max(now.plus_ms(ttl_ms.min(grace_ms)))
        } else {
            deadline
        }
    };
    let resumed = |resource: &Resource| {
        let mut resource = resource.clone();
        if let Some(Tenure::Own { ttl_ms, deadline }) = resource.lease.as_mut().map(|l| &mut l.tenure) {
            *deadline = later(*deadline, *ttl_ms);
        }
        if let Some(by) = resource.lease.as_mut().and_then(|l| l.confirm_by.as_mut()) {
            *by = later(*by, 0);
        }
        if let Some(pending) = &mut resource.pending {
            pending.deadline = later(pending.deadline, 0);
        }
        resource.held_back_until = resource.held_back_until.map(|until| later(until, 0));
        resource
    };
    let sessions =
        moved(ledger.sessions(), |s| Session { deadline: later(s.deadline, s.ttl_ms), ..s.clone() });
    sessions.into_iter().for_each(|session| ledger.put_session(session));
    let resources = moved(ledger.resources(), resumed);
    resources.into_iter().for_each(|resource| ledger.put_resource(resource));
    let waiters = moved(ledger.waiters(), |w| Waiter { deadline: later(w.deadline, 0), ..w.clone() });
    waiters.into_iter().for_each(|waiter| ledger.put_waiter(waiter));
    let until = |spent: &SpentRequest| later(spent.until, 0);
    let requests = ledger.requests().filter(|(_, spent)| until(spent) != spent.until);
    let requests: Vec<_> = requests.map(|(request, spent)| (request, spent.clone())).collect();
    for (request, spent) in requests {
        ledger.put_request(request, SpentRequest { until: until(&spent), ..spent });
    }
}

/// The rows that `by` changes, as they are then. Most rows have no time that a restart would move.
fn moved<'a, T: PartialEq + 'a>(rows: impl Iterator<Item = &'a T>, by: impl Fn(&T) -> T) -> Vec<T> {
    rows.filter_map(|row| Some(by(row)).filter(|moved| moved != row)).collect()
}

/// Forgets spent requests whose hour has passed, or that leases of one key, holder and resource spent beyond the bound,
/// and rows of resources that say nothing any more.
pub fn forget(ledger: &mut Ledger, now: StoreTime) {
    let mut requests = Vec::new();
    for (requester, spent) in ledger.requesters() {
        requests.extend(spent.clone().forget(now).iter().map(|request| requester.request(request)));
    }
    for request in requests {
        ledger.remove_request(request);
    }
    let resources: Vec<_> =
        ledger.resources().filter(|r| r.is_forgettable(now)).map(|r| r.key.clone()).collect();
    for key in resources {
        ledger.remove_resource(&key);
    }
}
