//! Writes the changes of a batch: one statement per kind of row.

use std::collections::{HashMap, HashSet};

use solehold_core::{
    event::{Event, What},
    key::{Document, HolderKey, ResourceKey, SessionId},
    lease::{Pending, Resource, Tenure},
    ledger::{Dirty, Ledger},
    time::{Revision, StoreTime},
};
use tokio::join;
use uuid::Uuid;

use super::lock::LockedResource;
use crate::postgres::{
    connection::pool::Conn,
    fault::Fault,
    statements::Sql,
    tables::{
        columns::*,
        rows,
        rows::*,
        unreadable,
        value::{Required, ms},
    },
};

/// What the rows were before: new ones are inserted, others updated.
pub(crate) struct RowsBefore<'a> {
    pub(crate) resources: &'a HashMap<ResourceKey, LockedResource>,
    pub(crate) sessions: &'a HashMap<SessionId, Document>,
    pub(crate) now: StoreTime,
}

/// How long the idle row of an undeclared resource is kept. If the sweeper was to look at it earlier, it goes then.
const IDLE_KEPT_MS: u64 = 10_000;

/// Which resources were made, declared or given another state by events.
#[derive(Debug, Default)]
pub(crate) struct ResourceChanges<'a> {
    /// The first event of each.
    first: HashMap<&'a ResourceKey, Revision>,
    /// The first event of a slot of each.
    first_of_slots: HashMap<ResourceKey, Revision>,
    /// The last declaration or deletion of each.
    pub(crate) declared: HashMap<&'a ResourceKey, Revision>,
    pub(crate) state: HashSet<&'a ResourceKey>,
}

impl<'a> ResourceChanges<'a> {
    /// Rows that come from elsewhere, all at once: they get numbers from 1 on, since no event of this store made them.
    pub(crate) fn imported(state: &'a Ledger) -> Self {
        let first = (1..).map(Revision).zip(state.resources()).map(|(number, r)| (&r.key, number)).collect();
        let with_state = state.resources().filter(|r| r.state.is_some());
        Self { first, state: with_state.map(|r| &r.key).collect(), ..Self::default() }
    }

    /// The number that the row of a resource gets which was made: no other row ever has it. One that is there for the
    /// sake of its slots, and has no event of its own, gets the negative of theirs.
    fn made_by(&self, key: &ResourceKey) -> Option<i64> {
        let own = self.first.get(key).map(|revision| revision.0 as i64);
        own.or_else(|| self.first_of_slots.get(key).map(|revision| -(revision.0 as i64)))
    }

    pub(crate) fn by(events: &'a [Event]) -> Self {
        let mut changes = Self::default();
        for event in events {
            changes.first.entry(&event.key).or_insert(event.revision);
            if event.key.is_slot() {
                changes.first_of_slots.entry(event.key.whole()).or_insert(event.revision);
            }
            match event.what {
                What::Declared(_) => {
                    changes.declared.insert(&event.key, event.revision);
                }
                What::Deleted => {
                    changes.declared.insert(&event.key, event.revision);
                    changes.state.insert(&event.key);
                }
                What::StateChanged(_) => {
                    changes.state.insert(&event.key);
                }
                _ => {}
            }
        }
        changes
    }
}

/// The row of a resource that a batch wrote.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WrittenResource {
    pub(crate) id: i64,
    /// The version of the declaration; none if it was not touched.
    pub(crate) version: Option<i64>,
}

#[derive(Debug, Default)]
pub(crate) struct Writes<'a> {
    leases: Vec<(LeaseKeyPart, LeaseBoundsPart, HoldingPart)>,
    free_leases: Vec<(LeaseKeyPart, LeaseBoundsPart)>,
    new_leases: Vec<(LeaseKeyPart, LeaseBoundsPart, Option<HoldingPart>)>,
    beside: Vec<(LeaseKeyPart, BesidePart)>,
    pending: Vec<(LeaseKeyPart, Option<Pending>)>,
    resources: Vec<(ResourceIdPart, DeclarationPart)>,
    new_resources: Vec<(ResourceColumns, ResourceMarkPart)>,
    gone_resources: Vec<i64>,
    states: Vec<StateColumns>,
    gone_states: Vec<i64>,
    sessions: Vec<(SessionKeyPart, SessionLifePart)>,
    new_sessions: Vec<SessionColumns>,
    gone_sessions: Vec<Uuid>,
    holders: Vec<HolderColumns>,
    gone_holders: Vec<HolderKey>,
    requests: Vec<RequestColumns>,
    gone_requests: Vec<RequestKeyPart>,
    records: Vec<RecordColumns>,
    gone_records: Vec<RecordKeyPart>,
    waiters: Vec<WaiterColumns>,
    gone_waiters: Vec<WaiterKeyPart>,
    events: Vec<(EventPart, EventIndexPart)>,
    /// What became of each resource that stays.
    pub(crate) written: Vec<(&'a ResourceKey, WrittenResource)>,
    /// The rows that are idle from now on.
    pub(crate) idle: HashSet<i64>,
}

impl<'a> Writes<'a> {
    /// Collects what `dirty` names, as it is in `state` now. `version_of` gives the version of a declaration as it was.
    pub(crate) fn of(
        state: &'a Ledger,
        dirty: &'a Dirty,
        changes: &ResourceChanges<'a>,
        before: &RowsBefore<'_>,
        version_of: impl Fn(i64) -> i64,
    ) -> Result<Self, Fault> {
        let mut writes = Self::default();
        for key in &dirty.resources {
            let stored = before.resources.get(key);
            match state.resource(key) {
                Some(resource) => writes.resource(resource, stored, changes, &version_of)?,
                None => stored.into_iter().for_each(|stored| writes.gone(key, stored, changes, before.now)),
            }
        }
        writes.sessions(state, dirty, before);
        for key in &dirty.holders {
            match state.holder(key) {
                Some(holder) => writes.holders.push((key.clone(), holder.into())),
                None => writes.gone_holders.push(key.clone()),
            }
        }
        for request in &dirty.requests {
            match state.spent(request) {
                Some(spent) => writes.requests.push((request.into(), spent.clone())),
                None => writes.gone_requests.push(request.into()),
            }
        }
        for (collection, id) in &dirty.records {
            let key = RecordKeyPart { collection: collection.clone(), id: id.clone() };
            match state.record(collection, id) {
                Some(record) => {
                    writes.records.push((key, RecordPart { document: Required(record.document.clone()) }));
                }
                None => writes.gone_records.push(key),
            }
        }
        for place in &dirty.waiters {
            let made_by = || changes.made_by(&place.0);
            let id = before.resources.get(&place.0).map(|stored| stored.id).or_else(made_by);
            // A waiter that came and went within the batch, with the resource itself, was never stored.
            let Some(resource_id) = id else { continue };
            let key = WaiterKeyPart { resource_id, arrival: place.1 };
            match state.waiter(place) {
                Some(waiter) => writes.waiters.push((key, waiter.into())),
                None => writes.gone_waiters.push(key),
            }
        }
        Ok(writes)
    }

    pub(crate) fn events(&mut self, events: &[Event]) -> Result<(), Fault> {
        for event in events {
            self.events.push(rows::event_columns(event)?);
        }
        Ok(())
    }

    fn sessions(&mut self, state: &Ledger, dirty: &Dirty, before: &RowsBefore<'_>) {
        for id in &dirty.sessions {
            let key = SessionKeyPart { id: *id };
            match (state.session(*id), before.sessions.get(id)) {
                (Some(session), Some(metrics)) => {
                    self.sessions.push((key, SessionLifePart::of(session, metrics)));
                }
                (Some(session), None) => {
                    let life = SessionLifePart::of(session, &Document::default());
                    self.new_sessions.push((key, SessionOpeningPart::of(session), life));
                }
                (None, Some(_)) => self.gone_sessions.push(id.0),
                (None, None) => {}
            }
        }
    }

    /// Removes the row of a resource, or leaves it idle if all that ended is its lease.
    fn gone(
        &mut self,
        key: &ResourceKey,
        stored: &LockedResource,
        changes: &ResourceChanges<'_>,
        now: StoreTime,
    ) {
        // A lease that began and ended within the batch was never written.
        if stored.was_idle {
            self.idle.insert(stored.id);
            return;
        }
        let was_changed = changes.declared.contains_key(key) || changes.state.contains(key);
        if was_changed || !stored.is_plain() {
            self.gone_resources.push(stored.id);
            return;
        }
        self.idle.insert(stored.id);
        let until = ms(now.plus_ms(IDLE_KEPT_MS));
        let bounds = LeaseBoundsPart {
            last_token: stored.last_token,
            held_back_until_ms: None,
            held_back_by: None,
            due_ms: Some(stored.due_ms.map_or(until, |due| due.min(until))),
            queued: 0,
            taken: 0,
            slots: 0,
        };
        self.free_leases.push((LeaseKeyPart { resource_id: stored.id }, bounds));
    }

    fn resource(
        &mut self,
        resource: &'a Resource,
        stored: Option<&LockedResource>,
        changes: &ResourceChanges<'a>,
        version_of: &impl Fn(i64) -> i64,
    ) -> Result<(), Fault> {
        let key = &resource.key;
        let made_by = changes.made_by(key);
        let (id, is_new) = match (stored, made_by) {
            (Some(stored), _) => (stored.id, false),
            (None, Some(made_by)) => (made_by, true),
            (None, None) => return Err(unreadable(format!("{key} appeared without an event"))),
        };
        let declared = changes.declared.get(key).map(|revision| revision.0 as i64);
        // Removed and created again within the batch: the row stays, with other contents.
        let is_made_anew = stored.is_some_and(|s| !s.was_idle && s.created_at != resource.created_at);
        let version = declared.or(made_by.filter(|_| is_new || is_made_anew));
        self.written.push((key, WrittenResource { id, version }));
        let lease_key = || LeaseKeyPart { resource_id: id };
        let bounds = LeaseBoundsPart::of(due_ms(resource, stored), resource);
        let has_state_changed = changes.state.contains(key);
        // A new row has its own id for a version, and no state.
        if (version.is_some() && version != Some(id)) || has_state_changed {
            let version = version.unwrap_or_else(|| version_of(id));
            self.beside.push((lease_key(), BesidePart { version, has_state: resource.state.is_some() }));
        }
        let holding = resource.lease.as_ref().map(HoldingPart::from);
        match (stored, holding) {
            (None, holding) => self.new_leases.push((lease_key(), bounds, holding)),
            (Some(_), Some(holding)) => self.leases.push((lease_key(), bounds, holding)),
            (Some(_), None) => self.free_leases.push((lease_key(), bounds)),
        }
        if let Some(version) = version {
            let row_id = ResourceIdPart { id };
            let declaration = DeclarationPart::of(version, resource);
            if is_new {
                let mark = ResourceMarkPart { mark: key.mark() as i32 };
                self.new_resources.push(((row_id, key.clone(), declaration), mark));
            } else {
                self.resources.push((row_id, declaration));
            }
        }
        if resource.pending.is_some() || stored.is_some_and(|s| s.had_pending) {
            self.pending.push((lease_key(), resource.pending.as_deref().cloned()));
        }
        if has_state_changed {
            match &resource.state {
                Some(state) => self.states.push((StateKeyPart { resource_id: id }, state.into())),
                None => self.gone_states.push(id),
            }
        }
        Ok(())
    }

    /// Sends it all at once; `last` is sent right behind.
    pub(crate) async fn send<T>(&self, conn: &Conn, last: impl Future<Output = T>) -> (Result<(), Fault>, T) {
        let (rows, more, last) = join!(biased;
            async {
                join!(biased;
                    conn.write(Sql::UpdateLeases, &self.leases),
                    conn.write(Sql::FreeLeases, &self.free_leases),
                    conn.write(Sql::InsertResources, &self.new_resources),
                    conn.write(Sql::InsertLeases, &self.new_leases),
                    conn.write(Sql::UpdateBeside, &self.beside),
                    conn.write(Sql::UpdatePending, &self.pending),
                    conn.write(Sql::UpdateResources, &self.resources),
                    conn.remove(Sql::DeleteResources, &self.gone_resources),
                    conn.write(Sql::UpsertStates, &self.states),
                    conn.remove(Sql::DeleteStates, &self.gone_states),
                    conn.write(Sql::UpdateSessions, &self.sessions),
                    conn.write(Sql::InsertSessions, &self.new_sessions),
                    conn.remove(Sql::DeleteSessions, &self.gone_sessions),
                )
            },
            async {
                join!(biased;
                    conn.write(Sql::UpsertHolders, &self.holders),
                    conn.write(Sql::DeleteHolders, &self.gone_holders),
                    conn.write(Sql::UpsertRequests, &self.requests),
                    conn.write(Sql::DeleteRequests, &self.gone_requests),
                    conn.write(Sql::UpsertRecords, &self.records),
                    conn.write(Sql::DeleteRecords, &self.gone_records),
                    conn.write(Sql::DeleteWaiters, &self.gone_waiters),
                    conn.write(Sql::UpsertWaiters, &self.waiters),
                    conn.write(Sql::InsertEvents, &self.events),
                )
            },
            last,
        );
        let (a, b, c, d, e, f, g, h, i, j, k, s, t) = rows;
        let (l, m, n, o, p, q, r, u, v) = more;
        let all = [a, b, c, d, e, f, g, h, i, j, k, s, t, l, m, n, o, p, q, r, u, v];
        (all.into_iter().find_map(Result::err).map_or(Ok(()), Err), last)
    }
}

/// When the sweeper should look at a resource next. A bound that lies before that already is kept, and so is one of a
/// resource that needs no looking at: a grant, a renewal or an end then changes no index.
fn due_ms(resource: &Resource, stored: Option<&LockedResource>) -> Option<i64> {
    let pending = resource.pending.as_ref();
    let is_on_session = resource.lease.as_ref().is_some_and(|lease| lease.tenure.session().is_some());
    // Its session may be dead, and not looked at again before the lock-delay that this pending lease had waited for.
    if is_on_session && pending.is_none() && stored.is_some_and(|s| s.had_pending) {
        return Some(0);
    }
    let kept = stored.and_then(|s| s.due_ms);
    let wanted = match &resource.lease {
        Some(lease) => {
            let own = match lease.tenure {
                Tenure::Own { deadline, .. } => Some(deadline),
                Tenure::Session(_) => None,
            };
            own.into_iter().chain(lease.confirm_by).chain(pending.map(|p| p.deadline)).min()
        }
        None => match pending {
            Some(pending) => {
                Some(resource.held_back_until.map_or(pending.asked_at, |b| b.min(pending.deadline)))
            }
            // The first in line's when it is no longer held back.
            None if resource.queued > 0 && resource.taken == 0 => {
                Some(resource.held_back_until.unwrap_or_default())
            }
            // To be forgotten when it is no longer held back.
            None => {
                resource.held_back_until.filter(|_| resource.declared.is_none() && resource.state.is_none())
            }
        },
    };
    match (wanted.map(ms), kept) {
        (Some(wanted), Some(kept)) => Some(kept.min(wanted)),
        (wanted, kept) => wanted.or(kept),
    }
}
