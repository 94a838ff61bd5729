//! What a batch changed, as one statement for each sort of row.

use std::{borrow::Cow, collections::HashMap};

use solehold_core::{
    command::{AskedTenure, Undeclared},
    event::Event,
    key::{Document, ResourceKey, SessionId},
    lease::{Pending, Resource, Tenure},
    ledger::{Dirty, Ledger},
    record::Record,
    session::{Holder, Session},
    waiter::Waiter,
};
use tokio::join;
use uuid::Uuid;

use crate::postgres::{
    batch::{
        lock::Stored,
        plan::{PairColumns, RequestColumns},
        touched::Touched,
    },
    connection::pool::{Conn, Param},
    fault::Fault,
    statements::Sql,
    tables::{
        rows::{document_text, labels_text, standing_text, status_text, unreadable},
        text,
    },
};

type Text<'a> = Option<Cow<'a, str>>;

/// What events of a resource are found by. It is stored: it must never change.
pub(crate) fn resource_hash(key: &ResourceKey) -> i64 {
    let mut hasher = blake3::Hasher::new();
    for part in [&key.tenant, &key.kind, &key.key] {
        hasher.update(part.as_str().as_bytes()).update(&[0]);
    }
    let mut first = [0; 8];
    hasher.finalize_xof().fill(&mut first);
    i64::from_le_bytes(first)
}

/// Rows as one array a column.
macro_rules! columns {
    ($(#[$doc:meta])* $name:ident { $($column:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub(crate) struct $name<'a> { $($column: Vec<$type>,)* none: std::marker::PhantomData<&'a ()> }

        impl $name<'_> {
            fn params(&self) -> Vec<Param<'_>> { vec![$(&self.$column),*] }
        }
    };
}

columns! {
    /// Rows of `leases`.
    Leases {
        resource_id: i64, last_token: i64, held_back_until: Option<i64>, due: Option<i64>, lease_id: Option<Uuid>,
        holder: Option<&'a str>, session_id: Option<Uuid>, ttl: Option<i64>, deadline: Option<i64>,
        acquired_at: Option<i64>, renewed_at: Option<i64>, request: Option<&'a str>, attributes: Text<'a>,
        stats: Text<'a>, confirm_by: Option<i64>, queued: i64,
    }
}
columns! {
    /// What changes in rows of `leases` that nobody holds now.
    FreeLeases {
        resource_id: i64, last_token: i64, held_back_until: Option<i64>, due: Option<i64>, queued: i64,
    }
}
columns! {
    /// Rows of `waiters`.
    Waiters {
        resource_id: i64, arrival: i64, lease_id: Uuid, holder: &'a str, session_id: Option<Uuid>, ttl: Option<i64>,
        request: Option<&'a str>, attributes: Text<'a>, undeclared: bool, room_id: Uuid, deadline: i64,
    }
}
columns! {
    /// What rows of `leases` have of what is beside them.
    Marks { resource_id: i64, version: i64, has_state: bool, }
}
columns! {
    /// The pending part of rows of `leases`.
    Pendings {
        resource_id: i64, lease_id: Option<Uuid>, session_id: Option<Uuid>, holder: Option<&'a str>,
        asked_at: Option<i64>, deadline: Option<i64>, attributes: Text<'a>,
    }
}
columns! {
    /// Rows of `resources`.
    Resources {
        id: i64, tenant: &'a str, kind: &'a str, key: &'a str, version: i64, declared: bool, site: Option<&'a str>,
        labels: String, attributes: Text<'a>, lock_delay: i64, created_at: i64, mark: i32,
    }
}
columns! {
    /// Rows of `states`.
    States { resource_id: i64, sequence: i64, token: i64, written_at: i64, document: Cow<'a, str>, }
}
columns! {
    /// New rows of `sessions`.
    NewSessions {
        id: Uuid, tenant: &'a str, holder: &'a str, ttl: i64, opened_at: i64, renewed_at: i64, deadline: i64,
        standing: &'static str, capacity: Option<i64>, lease_count: i64, lease_revision: i64, metrics: Text<'a>,
        waiting: i64,
    }
}
columns! {
    /// What changes in rows of `sessions`.
    Sessions {
        id: Uuid, renewed_at: i64, deadline: i64, standing: &'static str, lease_count: i64, lease_revision: i64,
        metrics: Text<'a>, waiting: i64,
    }
}
columns! {
    /// Rows of `holders`.
    Holders {
        tenant: &'a str, name: &'a str, registered: bool, session_id: Option<Uuid>, status: &'static str,
        registered_at: i64, heard_at: i64, site: Option<&'a str>, attributes: Text<'a>, metrics: Text<'a>,
    }
}
columns! {
    /// Rows of `requests`.
    Requests {
        tenant: &'a str, kind: &'a str, key: &'a str, holder: &'a str, request: &'a str, until: i64,
    }
}
columns! {
    /// Rows of `records`.
    Records { collection: &'a str, id: &'a str, document: Cow<'a, str>, }
}
columns! {
    /// Rows of `lease_events`.
    Events {
        revision: i64, at: i64, resource_hash: i64, tenant: &'a str, kind: &'a str, key: &'a str, event_type: &'static str,
        lease_id: Option<Uuid>, holder: Option<&'a str>, session_id: Option<Uuid>, token: Option<i64>,
        details: String,
    }
}

/// What the rows were before: new ones are inserted, others updated.
pub(crate) struct Before<'a> {
    pub(crate) resources: &'a HashMap<ResourceKey, Stored>,
    pub(crate) sessions: &'a HashMap<SessionId, Document>,
}

/// What a resource's row is made from, where a batch wrote it: its id, and the version of its declaration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written {
    pub(crate) id: i64,
    /// None: the declaration was not touched.
    pub(crate) version: Option<i64>,
}

/// Everything that a batch writes.
#[derive(Debug, Default)]
pub(crate) struct Writes<'a> {
    leases: Leases<'a>,
    free_leases: FreeLeases<'a>,
    new_leases: Leases<'a>,
    marks: Marks<'a>,
    pendings: Pendings<'a>,
    resources: Resources<'a>,
    new_resources: Resources<'a>,
    gone_resources: Vec<i64>,
    states: States<'a>,
    gone_states: Vec<i64>,
    sessions: Sessions<'a>,
    new_sessions: NewSessions<'a>,
    gone_sessions: Vec<Uuid>,
    holders: Holders<'a>,
    gone_holders: [Vec<&'a str>; 2],
    requests: Requests<'a>,
    gone_requests: [Vec<&'a str>; 5],
    records: Records<'a>,
    gone_records: [Vec<&'a str>; 2],
    waiters: Waiters<'a>,
    gone_waiters: [Vec<i64>; 2],
    events: Events<'a>,
    /// What became of each resource that stays.
    pub(crate) written: Vec<(&'a ResourceKey, Written)>,
}

fn ms(time: solehold_core::time::StoreTime) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}

impl<'a> Writes<'a> {
    /// Collects what `dirty` names, as it is in `state` now. `version_of` tells the version of a declaration as it was.
    pub(crate) fn of(
        state: &'a Ledger,
        dirty: &'a Dirty,
        touched: &Touched<'a>,
        before: &Before<'_>,
        version_of: impl Fn(i64) -> i64,
    ) -> Result<Self, Fault> {
        let mut writes = Self::default();
        for key in &dirty.resources {
            let stored = before.resources.get(key);
            match state.resource(key) {
                Some(resource) => writes.resource(resource, stored, touched, &version_of)?,
                None => writes.gone_resources.extend(stored.map(|s| s.id)),
            }
        }
        for id in &dirty.sessions {
            match (state.session(*id), before.sessions.get(id)) {
                (Some(session), Some(metrics)) => writes.session(session, metrics),
                (Some(session), None) => writes.new_session(session),
                (None, Some(_)) => writes.gone_sessions.push(id.0),
                (None, None) => {}
            }
        }
        for key in &dirty.holders {
            if let Some(holder) = state.holder(key) {
                writes.holder(holder);
            }
        }
        writes.gone_holders =
            PairColumns::of_holders(dirty.holders.iter().filter(|key| state.holder(key).is_none())).0;
        for request in &dirty.requests {
            if let Some(until) = state.spent_until(request) {
                writes.request(request, ms(until));
            }
        }
        let gone = dirty.requests.iter().filter(|request| state.spent_until(request).is_none());
        writes.gone_requests = RequestColumns::of(gone).0;
        for (collection, id) in &dirty.records {
            if let Some(record) = state.record(collection, id) {
                writes.record(record);
            }
        }
        let gone = dirty.records.iter().filter(|(collection, id)| state.record(collection, id).is_none());
        writes.gone_records = PairColumns::of(gone.map(|(collection, id)| (collection, id))).0;
        for place in &dirty.waiters {
            let made_by = || touched.first.get(&place.0).map(|revision| revision.0 as i64);
            let id = before.resources.get(&place.0).map(|stored| stored.id).or_else(made_by);
            // Whoever came and went within the batch, with the resource itself, was never stored.
            let Some(id) = id else { continue };
            match state.waiter(place) {
                Some(waiter) => writes.waiters.push(id, waiter),
                None => {
                    writes.gone_waiters[0].push(id);
                    writes.gone_waiters[1].push(place.1.0 as i64);
                }
            }
        }
        Ok(writes)
    }

    /// Adds events.
    pub(crate) fn events(&mut self, events: &'a [Event]) -> Result<(), Fault> {
        events.iter().try_for_each(|event| self.event(event))
    }

    fn resource(
        &mut self,
        resource: &'a Resource,
        stored: Option<&Stored>,
        touched: &Touched<'a>,
        version_of: &impl Fn(i64) -> i64,
    ) -> Result<(), Fault> {
        let key = &resource.key;
        let made_by = touched.first.get(key).map(|revision| revision.0 as i64);
        let (id, is_new) = match (stored, made_by) {
            (Some(stored), _) => (stored.id, false),
            (None, Some(made_by)) => (made_by, true),
            (None, None) => return Err(unreadable(format!("{key} appeared without an event"))),
        };
        let declared = touched.declared.get(key).map(|revision| revision.0 as i64);
        // Removed and made anew within the batch: the row stays, and what it is has changed.
        let is_made_anew = stored.is_some_and(|s| s.created_at != resource.created_at);
        let version = declared.or(made_by.filter(|_| is_new || is_made_anew));
        self.written.push((key, Written { id, version }));
        let due = due_ms(resource, stored);
        let has_state_changed = touched.state.contains(key);
        // A new row is marked with its own id for a version, and with no state.
        if (version.is_some() && version != Some(id)) || has_state_changed {
            self.marks.resource_id.push(id);
            self.marks.version.push(version.unwrap_or_else(|| version_of(id)));
            self.marks.has_state.push(resource.state.is_some());
        }
        match (stored, &resource.lease) {
            (None, _) => self.new_leases.push(id, due, resource),
            (Some(_), Some(_)) => self.leases.push(id, due, resource),
            (Some(_), None) => self.free_leases.push(id, due, resource),
        }
        if let Some(version) = version {
            let rows = if is_new { &mut self.new_resources } else { &mut self.resources };
            rows.push(id, version, resource)?;
        }
        if resource.pending.is_some() || stored.is_some_and(|s| s.had_pending) {
            self.pendings.push(id, resource.pending.as_deref());
        }
        if has_state_changed {
            match &resource.state {
                Some(state) => {
                    let rows = &mut self.states;
                    rows.resource_id.push(id);
                    rows.sequence.push(state.sequence as i64);
                    rows.token.push(state.token.0 as i64);
                    rows.written_at.push(ms(state.written_at));
                    rows.document.push(text::stored(state.document.as_str()));
                }
                None => self.gone_states.push(id),
            }
        }
        Ok(())
    }

    fn session(&mut self, session: &'a Session, metrics: &Document) {
        let rows = &mut self.sessions;
        rows.id.push(session.id.0);
        rows.renewed_at.push(ms(session.renewed_at));
        rows.deadline.push(ms(session.deadline));
        rows.standing.push(standing_text(session.standing));
        rows.lease_count.push(session.lease_count.into());
        rows.lease_revision.push(session.lease_revision.0 as i64);
        let changed = session.metrics != *metrics;
        rows.metrics.push(changed.then(|| text::stored(session.metrics.as_str())));
        rows.waiting.push(session.waiting.into());
    }

    fn new_session(&mut self, session: &'a Session) {
        let rows = &mut self.new_sessions;
        rows.id.push(session.id.0);
        rows.tenant.push(session.holder.tenant.as_str());
        rows.holder.push(session.holder.name.as_str());
        rows.ttl.push(session.ttl_ms as i64);
        rows.opened_at.push(ms(session.opened_at));
        rows.renewed_at.push(ms(session.renewed_at));
        rows.deadline.push(ms(session.deadline));
        rows.standing.push(standing_text(session.standing));
        rows.capacity.push(session.capacity.map(i64::from));
        rows.lease_count.push(session.lease_count.into());
        rows.lease_revision.push(session.lease_revision.0 as i64);
        rows.metrics.push(document_text(&session.metrics));
        rows.waiting.push(session.waiting.into());
    }

    fn holder(&mut self, holder: &'a Holder) {
        let rows = &mut self.holders;
        rows.tenant.push(holder.key.tenant.as_str());
        rows.name.push(holder.key.name.as_str());
        rows.registered.push(holder.registered);
        rows.session_id.push(holder.session.map(|id| id.0));
        rows.status.push(status_text(holder.status));
        rows.registered_at.push(ms(holder.registered_at));
        rows.heard_at.push(ms(holder.heard_at));
        rows.site.push(holder.site.as_ref().map(|site| site.as_str()));
        rows.attributes.push(document_text(&holder.attributes));
        rows.metrics.push(document_text(&holder.metrics));
    }

    fn request(&mut self, request: &'a solehold_core::key::RequestKey, until: i64) {
        let rows = &mut self.requests;
        rows.tenant.push(request.resource.tenant.as_str());
        rows.kind.push(request.resource.kind.as_str());
        rows.key.push(request.resource.key.as_str());
        rows.holder.push(request.holder.as_str());
        rows.request.push(request.request.as_str());
        rows.until.push(until);
    }

    fn record(&mut self, record: &'a Record) {
        self.records.collection.push(record.collection.as_str());
        self.records.id.push(record.id.as_str());
        self.records.document.push(text::stored(record.document.as_str()));
    }

    fn event(&mut self, event: &'a Event) -> Result<(), Fault> {
        let rows = &mut self.events;
        rows.revision.push(event.revision.0 as i64);
        rows.at.push(ms(event.at));
        rows.resource_hash.push(resource_hash(&event.key));
        rows.tenant.push(event.key.tenant.as_str());
        rows.kind.push(event.key.kind.as_str());
        rows.key.push(event.key.key.as_str());
        rows.event_type.push(event.name().as_str());
        rows.lease_id.push(event.lease().map(|id| id.0));
        rows.holder.push(event.holder().map(|name| name.as_str()));
        rows.session_id.push(event.session().map(|id| id.0));
        rows.token.push(event.token().map(|token| token.0 as i64));
        // JSON escapes control characters, NUL among them, so that any text can be stored.
        rows.details.push(serde_json::to_string(&event.what).map_err(unreadable)?);
        Ok(())
    }

    /// Sends it all at once; `last` is sent right behind.
    pub(crate) async fn send<T>(&self, conn: &Conn, last: impl Future<Output = T>) -> (Result<(), Fault>, T) {
        macro_rules! write {
            ($sql:ident, $rows:expr, $first:ident) => {
                async {
                    let rows = &$rows;
                    conn.execute_if(!rows.$first.is_empty(), Sql::$sql, &rows.params()).await
                }
            };
        }
        macro_rules! remove {
            ($sql:ident, $($column:expr),+) => {
                async {
                    let columns: &[Param<'_>] = &[$(&$column),+];
                    conn.execute_if(remove!(@any $($column),+), Sql::$sql, columns).await
                }
            };
            (@any $first:expr $(, $more:expr)*) => { !$first.is_empty() };
        }
        let [holder_tenants, holder_names] = &self.gone_holders;
        let [rq_tenants, rq_kinds, rq_keys, rq_holders, rq_requests] = &self.gone_requests;
        let [collections, record_ids] = &self.gone_records;
        let [line_ids, arrivals] = &self.gone_waiters;
        let (rows, more, last) = join!(biased;
            async {
                join!(biased;
                    write!(UpdateLeases, self.leases, resource_id),
                    write!(FreeLeases, self.free_leases, resource_id),
                    write!(InsertResources, self.new_resources, id),
                    write!(InsertLeases, self.new_leases, resource_id),
                    write!(MarkLeases, self.marks, resource_id),
                    write!(UpdatePending, self.pendings, resource_id),
                    write!(UpdateResources, self.resources, id),
                    remove!(DeleteResources, self.gone_resources),
                    write!(UpsertStates, self.states, resource_id),
                    remove!(DeleteStates, self.gone_states),
                    write!(UpdateSessions, self.sessions, id),
                    write!(InsertSessions, self.new_sessions, id),
                    remove!(DeleteSessions, self.gone_sessions),
                )
            },
            async {
                join!(biased;
                    write!(UpsertHolders, self.holders, tenant),
                    remove!(DeleteHolders, *holder_tenants, *holder_names),
                    write!(UpsertRequests, self.requests, tenant),
                    remove!(DeleteRequests, *rq_tenants, *rq_kinds, *rq_keys, *rq_holders, *rq_requests),
                    write!(UpsertRecords, self.records, collection),
                    remove!(DeleteRecords, *collections, *record_ids),
                    remove!(DeleteWaiters, *line_ids, *arrivals),
                    write!(UpsertWaiters, self.waiters, resource_id),
                    write!(InsertEvents, self.events, revision),
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

impl<'a> Leases<'a> {
    fn push(&mut self, id: i64, due: Option<i64>, resource: &'a Resource) {
        self.resource_id.push(id);
        self.last_token.push(resource.last_token.0 as i64);
        self.held_back_until.push(resource.held_back_until.map(ms));
        self.due.push(due);
        let lease = resource.lease.as_ref();
        let (ttl, deadline) = match lease.map(|l| l.tenure) {
            Some(Tenure::Own { ttl_ms, deadline }) => (Some(ttl_ms as i64), Some(ms(deadline))),
            _ => (None, None),
        };
        self.lease_id.push(lease.map(|l| l.id.0));
        self.holder.push(lease.map(|l| l.holder.as_str()));
        self.session_id.push(lease.and_then(|l| l.tenure.session()).map(|id| id.0));
        self.ttl.push(ttl);
        self.deadline.push(deadline);
        self.acquired_at.push(lease.map(|l| ms(l.acquired_at)));
        self.renewed_at.push(lease.and_then(|l| l.renewed_at).map(ms));
        self.request.push(lease.and_then(|l| l.request.as_ref()).map(|name| name.as_str()));
        self.attributes.push(lease.and_then(|l| document_text(&l.attributes)));
        self.stats.push(lease.and_then(|l| document_text(&l.stats)));
        self.confirm_by.push(lease.and_then(|l| l.confirm_by).map(ms));
        self.queued.push(resource.queued.into());
    }
}

impl FreeLeases<'_> {
    fn push(&mut self, id: i64, due: Option<i64>, resource: &Resource) {
        self.resource_id.push(id);
        self.last_token.push(resource.last_token.0 as i64);
        self.held_back_until.push(resource.held_back_until.map(ms));
        self.due.push(due);
        self.queued.push(resource.queued.into());
    }
}

impl<'a> Waiters<'a> {
    fn push(&mut self, id: i64, waiter: &'a Waiter) {
        let ttl = match waiter.tenure {
            AskedTenure::Own { ttl_ms } => Some(ttl_ms as i64),
            AskedTenure::Session(_) => None,
        };
        self.resource_id.push(id);
        self.arrival.push(waiter.arrival.0 as i64);
        self.lease_id.push(waiter.lease.0);
        self.holder.push(waiter.holder.as_str());
        self.session_id.push(waiter.session().map(|id| id.0));
        self.ttl.push(ttl);
        self.request.push(waiter.request.as_ref().map(|name| name.as_str()));
        self.attributes.push(document_text(&waiter.attributes));
        self.undeclared.push(waiter.undeclared == Undeclared::Allow);
        self.room_id.push(waiter.room.0);
        self.deadline.push(ms(waiter.deadline));
    }
}

impl<'a> Pendings<'a> {
    fn push(&mut self, id: i64, pending: Option<&'a Pending>) {
        self.resource_id.push(id);
        self.lease_id.push(pending.map(|p| p.id.0));
        self.session_id.push(pending.map(|p| p.session.0));
        self.holder.push(pending.map(|p| p.holder.as_str()));
        self.asked_at.push(pending.map(|p| ms(p.asked_at)));
        self.deadline.push(pending.map(|p| ms(p.deadline)));
        self.attributes.push(pending.and_then(|p| document_text(&p.attributes)));
    }
}

impl<'a> Resources<'a> {
    fn push(&mut self, id: i64, version: i64, resource: &'a Resource) -> Result<(), Fault> {
        let declared = resource.declared.as_ref();
        self.id.push(id);
        self.tenant.push(resource.key.tenant.as_str());
        self.kind.push(resource.key.kind.as_str());
        self.key.push(resource.key.key.as_str());
        self.version.push(version);
        self.declared.push(declared.is_some());
        self.site.push(declared.and_then(|d| d.site.as_ref()).map(|site| site.as_str()));
        self.labels.push(declared.map_or(Ok("{}".to_owned()), |d| labels_text(&d.labels))?);
        self.attributes.push(declared.and_then(|d| document_text(&d.attributes)));
        self.lock_delay.push(declared.map_or(0, |d| d.lock_delay_ms as i64));
        self.created_at.push(ms(resource.created_at));
        self.mark.push(resource.key.mark() as i32);
        Ok(())
    }
}

/// When the sweeper should look at a resource next. A bound that lies before that already is kept, and so is one of a
/// resource that needs no looking at: a grant, a renewal or an end then changes no index.
fn due_ms(resource: &Resource, stored: Option<&Stored>) -> Option<i64> {
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
            None if resource.queued > 0 => Some(resource.held_back_until.unwrap_or_default()),
            // Nobody's any more when it is no longer held back.
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
