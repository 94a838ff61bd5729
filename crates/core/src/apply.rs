//! `apply`: what a change does to the rows. It never refuses; everything that could be refused was refused by `decide`.

use std::sync::Arc;

use crate::{
    event::{Change, Event, What},
    key::{RequestKey, ResourceKey},
    lease::{Lease, Resource, Tenure},
    ledger::Ledger,
    limits,
    time::StoreTime,
    waiter::Waiter,
};

/// Applies one change. Together with [`crate::decide()`] this is the whole machine.
pub fn apply(state: &mut Ledger, change: &Change) {
    match change {
        Change::Event(event) => apply_event(state, event),
        Change::LeaseRenewed { key, .. } => {
            let Some(mut resource) = state.resource(key).cloned() else { return };
            if let Some(lease) = &mut resource.lease {
                to_lease(lease, change);
                state.put_resource(resource);
            }
        }
        Change::Waits(waiter) => {
            match state.remove_waiter(waiter.place()) {
                Some(old) => count_on_sessions(state, &old, -1),
                None => count_in_line(state, &waiter.key, 1),
            }
            count_on_sessions(state, waiter, 1);
            state.put_waiter(waiter.clone());
        }
        Change::WaitEnded { key, arrival, at } => {
            let Some(old) = state.remove_waiter((key.clone(), *arrival)) else { return };
            count_on_sessions(state, &old, -1);
            count_in_line(state, key, -1);
            if state.resource(key).is_some_and(|r| r.is_forgettable(*at)) {
                state.remove_resource(key);
            }
        }
        Change::SessionOpened(session) => state.put_session(session.clone()),
        Change::SessionRenewed { id, at, deadline, metrics } => state.edit_session(*id, |s| {
            s.renewed_at = *at;
            s.deadline = *deadline;
            if let Some(metrics) = metrics {
                s.metrics = metrics.clone();
            }
        }),
        Change::SessionStanding { id, standing } => state.edit_session(*id, |s| s.standing = *standing),
        Change::SessionEnded(id) => state.remove_session(*id),
        Change::RequestSpent { request, until } => state.put_request(request.clone(), *until),
        Change::HolderPut(holder) => state.put_holder(holder.clone()),
        Change::HolderRemoved(key) => state.remove_holder(key),
        Change::RecordPut(record) => state.put_record(record.clone()),
        Change::RecordRemoved { collection, id } => state.remove_record((collection.clone(), id.clone())),
        // Revisions are the engine's to keep: it reads the decision's moment.
        Change::RevisionRaised(_) => {}
    }
}

fn apply_event(state: &mut Ledger, event: &Event) {
    let mut resource =
        state.resource(&event.key).cloned().unwrap_or_else(|| Resource::new(event.key.clone(), event.at));
    to_resource(&mut resource, event);
    if let Some((id, by)) = event.hangs() {
        state.edit_session(id, |s| {
            s.lease_count = s.lease_count.saturating_add_signed(by);
            s.lease_revision = event.revision;
        });
    }
    if resource.is_forgettable(event.at) {
        state.remove_resource(&event.key);
    } else {
        state.put_resource(resource);
    }
}

fn count_on_sessions(state: &mut Ledger, waiter: &Waiter, by: i32) {
    for id in waiter.sessions() {
        state.edit_session(id, |s| s.waiting = s.waiting.saturating_add_signed(by));
    }
}

fn count_in_line(state: &mut Ledger, key: &ResourceKey, by: i32) {
    let Some(mut resource) = state.resource(key).cloned() else { return };
    resource.queued = resource.queued.saturating_add_signed(by);
    state.put_resource(resource);
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
            resource.held_back_until = None;
            resource.pending.take_if(|p| p.id == lease.id);
            resource.lease = Some(lease.clone());
        }
        What::Released(ended) | What::Expired(ended) | What::Revoked(ended) => {
            resource.pending.take_if(|p| p.id == ended.lease);
            if resource.lease.take_if(|l| l.id == ended.lease).is_some() {
                resource.held_back_until = ended.held_back_until;
            }
        }
        What::Stolen(_) => {}
        What::StateChanged(state) => resource.state = Some(state.clone()),
        What::Declared(declaration) => resource.declared = Some(Arc::new(declaration.clone())),
        What::Deleted => {
            resource.declared = None;
            resource.state = None;
        }
    }
}

/// Gives back time that passed unobserved, while no engine ran: whatever was live at `stopped_at` keeps the time that it
/// had left, and every live session at least `grace_ms` from `now`, or its ttl if that is less (rule 3). So do hold-backs,
/// those who wait in line, and spent requests: an hour in which nobody could ask again does not count.
pub fn resume(state: &mut Ledger, stopped_at: StoreTime, gap_ms: u64, now: StoreTime, grace_ms: u64) {
    let later = |deadline: StoreTime, ttl_ms: u64| match deadline > stopped_at {
        true => deadline.plus_ms(gap_ms).max(now.plus_ms(ttl_ms.min(grace_ms))),
        false => deadline,
    };
    let sessions: Vec<_> = state.sessions().cloned().collect();
    for mut session in sessions {
        session.deadline = later(session.deadline, session.ttl_ms);
        state.put_session(session);
    }
    let resources: Vec<_> = state.resources().cloned().collect();
    for mut resource in resources {
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
        state.put_resource(resource);
    }
    let waiters: Vec<_> = state.waiters().cloned().collect();
    for mut waiter in waiters {
        waiter.deadline = later(waiter.deadline, 0);
        state.put_waiter(waiter);
    }
    let requests: Vec<_> = state.requests().map(|(request, until)| (request.clone(), until)).collect();
    for (request, until) in requests {
        state.put_request(request, later(until, 0));
    }
}

/// Forgets spent requests whose hour has passed, or that are too many of one holder for one resource, and rows of resources
/// that say nothing any more.
pub fn forget(state: &mut Ledger, now: StoreTime) {
    let requests: Vec<_> =
        state.requests().filter(|(_, until)| *until <= now).map(|(k, _)| k.clone()).collect();
    for request in requests.into_iter().chain(surplus(state)) {
        state.remove_request(&request);
    }
    let resources: Vec<_> =
        state.resources().filter(|r| r.is_forgettable(now)).map(|r| r.key.clone()).collect();
    for key in resources {
        state.remove_resource(&key);
    }
}

/// Spent requests beyond the bound for one holder and resource: the oldest of them.
fn surplus(state: &Ledger) -> Vec<RequestKey> {
    let all: Vec<_> = state.requests().collect();
    let of_one = all.chunk_by(|(a, _), (b, _)| (&a.resource, &a.holder) == (&b.resource, &b.holder));
    let mut surplus = Vec::new();
    for requests in of_one.filter(|requests| requests.len() > limits::SPENT_REQUESTS_MAX) {
        let mut by_age = requests.to_vec();
        by_age.sort_by_key(|(_, until)| *until);
        by_age.truncate(requests.len() - limits::SPENT_REQUESTS_MAX);
        surplus.extend(by_age.into_iter().map(|(request, _)| request.clone()));
    }
    surplus
}
