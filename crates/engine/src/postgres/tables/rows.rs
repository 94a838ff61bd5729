//! Conversions between core's rows and columns.

use std::sync::Arc;

use solehold_core::{
    command::{AskedTenure, Undeclared},
    event::Event,
    key::{Document, HolderKey, RequestKey, ResourceKey, SessionId},
    lease::{Declaration, Lease, Pending, Resource, StateDocument, Tenure},
    record::Record,
    request::SpentRequest,
    session::{Holder, Session},
    time::StoreTime,
    waiter::Waiter,
};
use tokio_postgres::Row;

use super::{
    columns::*,
    part::read,
    unreadable,
    value::{Labels, Required},
};
use crate::postgres::fault::Fault;

pub(crate) type SessionColumns = (SessionKeyPart, SessionOpeningPart, SessionLifePart);
pub(crate) type HolderColumns = (HolderKey, HolderPart);
pub(crate) type ResourceColumns = (ResourceIdPart, ResourceKey, DeclarationPart);
/// The part of a resource that is judged under a lock.
pub(crate) type LeaseColumns =
    (LeaseKeyPart, LeaseBoundsPart, BesidePart, Option<HoldingPart>, Option<Pending>);
pub(crate) type StateColumns = (StateKeyPart, StatePart);
/// A resource with all that is beside it.
pub(crate) type WholeResourceColumns = (ResourceColumns, LeaseColumns, Option<StateColumns>);
/// What is known of a resource before any lock is taken.
pub(crate) type KnownResourceColumns = (ResourceColumns, AttachedPart);
pub(crate) type PresentSessionColumns = (HolderKey, PresentSessionPart);
pub(crate) type WaiterColumns = (WaiterKeyPart, WaiterPart);
pub(crate) type RequestColumns = (RequestKeyPart, SpentRequest);
pub(crate) type RecordColumns = (RecordKeyPart, RecordPart);

pub(crate) fn session(row: &Row) -> Result<Session, Fault> {
    let (key, opening, life) = read::<SessionColumns>(row)?;
    Ok(Session {
        id: key.id,
        holder: HolderKey { tenant: opening.tenant, name: opening.holder },
        ttl_ms: opening.ttl_ms,
        opened_at: opening.opened_at_ms,
        renewed_at: life.renewed_at_ms,
        deadline: life.deadline_ms,
        standing: life.standing,
        capacity: opening.capacity,
        by: opening.by_key,
        lease_count: life.lease_count,
        lease_revision: life.lease_revision,
        metrics: life.metrics.map(|Required(metrics)| metrics).unwrap_or_default(),
        waiting: life.waiting,
    })
}

impl SessionOpeningPart {
    pub(crate) fn of(session: &Session) -> Self {
        Self {
            tenant: session.holder.tenant.clone(),
            holder: session.holder.name.clone(),
            ttl_ms: session.ttl_ms,
            opened_at_ms: session.opened_at,
            capacity: session.capacity,
            by_key: session.by.clone(),
        }
    }
}

impl SessionLifePart {
    /// With the metrics only if they are others than `known`: a large text is not written again with every heartbeat.
    pub(crate) fn of(session: &Session, known: &Document) -> Self {
        Self {
            renewed_at_ms: session.renewed_at,
            deadline_ms: session.deadline,
            standing: session.standing,
            lease_count: session.lease_count,
            lease_revision: session.lease_revision,
            metrics: (session.metrics != *known).then(|| Required(session.metrics.clone())),
            waiting: session.waiting,
        }
    }
}

pub(crate) fn holder(row: &Row) -> Result<Holder, Fault> {
    let (key, holder) = read::<HolderColumns>(row)?;
    Ok(Holder {
        key,
        registered: holder.registered,
        session: holder.session_id,
        status: holder.status,
        registered_at: holder.registered_at_ms,
        heard_at: holder.heard_at_ms,
        site: holder.site,
        attributes: holder.attributes,
        metrics: holder.metrics,
    })
}

impl From<&Holder> for HolderPart {
    fn from(holder: &Holder) -> Self {
        Self {
            registered: holder.registered,
            session_id: holder.session,
            status: holder.status,
            registered_at_ms: holder.registered_at,
            heard_at_ms: holder.heard_at,
            site: holder.site.clone(),
            attributes: holder.attributes.clone(),
            metrics: holder.metrics.clone(),
        }
    }
}

/// What a resource is, as far as it is not judged under a lock.
#[derive(Debug, Clone)]
pub(crate) struct DescribedResource {
    pub(crate) id: i64,
    pub(crate) key: ResourceKey,
    pub(crate) version: i64,
    pub(crate) declared: Option<Arc<Declaration>>,
    pub(crate) created_at: StoreTime,
}

impl From<ResourceColumns> for DescribedResource {
    fn from((id, key, is): ResourceColumns) -> Self {
        let declared = is.declared.then(|| {
            let Labels(labels) = is.labels;
            let site = is.site;
            let attributes = is.attributes;
            let lock_delay_ms = is.lock_delay_ms;
            Arc::new(Declaration { site, labels, attributes, lock_delay_ms })
        });
        Self { id: id.id, key, version: is.version, declared, created_at: is.created_at_ms }
    }
}

impl DeclarationPart {
    pub(crate) fn of(version: i64, resource: &Resource) -> Self {
        let declared = resource.declared.as_deref();
        Self {
            version,
            declared: declared.is_some(),
            site: declared.and_then(|d| d.site.clone()),
            labels: declared.map(|d| Labels(d.labels.clone())).unwrap_or_default(),
            attributes: declared.map(|d| d.attributes.clone()).unwrap_or_default(),
            lock_delay_ms: declared.map_or(0, |d| d.lock_delay_ms),
            created_at_ms: resource.created_at,
        }
    }
}

impl LeaseBoundsPart {
    pub(crate) fn of(due_ms: Option<i64>, resource: &Resource) -> Self {
        Self {
            last_token: resource.last_token,
            held_back_until_ms: resource.held_back_until,
            held_back_by: resource.held_back_by.clone(),
            due_ms,
            queued: resource.queued,
            taken: resource.taken,
            slots: resource.slots,
        }
    }
}

fn lease(row: HoldingPart, bounds: &LeaseBoundsPart) -> Result<Lease, Fault> {
    let id = row.lease_id;
    let tenure = match (row.session_id, row.ttl_ms, row.deadline_ms) {
        (Some(session), _, _) => Tenure::Session(session),
        (None, Some(ttl_ms), Some(deadline)) => Tenure::Own { ttl_ms, deadline },
        _ => return Err(unreadable(format!("lease {id} has neither a session nor a deadline"))),
    };
    Ok(Lease {
        id,
        token: bounds.last_token,
        holder: row.holder,
        by: row.by_key,
        tenure,
        acquired_at: row.acquired_at_ms,
        renewed_at: row.renewed_at_ms,
        confirm_by: row.confirm_by_ms,
        request: row.request,
        slots: Some(bounds.slots).filter(|slots| *slots > 0),
        attributes: row.attributes,
        stats: row.stats,
    })
}

impl From<&Lease> for HoldingPart {
    fn from(lease: &Lease) -> Self {
        let (session_id, ttl_ms, deadline_ms) = match lease.tenure {
            Tenure::Session(session) => (Some(session), None, None),
            Tenure::Own { ttl_ms, deadline } => (None, Some(ttl_ms), Some(deadline)),
        };
        Self {
            lease_id: lease.id,
            holder: lease.holder.clone(),
            session_id,
            ttl_ms,
            deadline_ms,
            acquired_at_ms: lease.acquired_at,
            renewed_at_ms: lease.renewed_at,
            request: lease.request.clone(),
            attributes: lease.attributes.clone(),
            stats: lease.stats.clone(),
            confirm_by_ms: lease.confirm_by,
            by_key: lease.by.clone(),
        }
    }
}

impl From<StatePart> for StateDocument {
    fn from(row: StatePart) -> Self {
        let Required(document) = row.document;
        Self { document, sequence: row.sequence, token: row.token, written_at: row.written_at_ms }
    }
}

impl From<&StateDocument> for StatePart {
    fn from(state: &StateDocument) -> Self {
        Self {
            sequence: state.sequence,
            token: state.token,
            written_at_ms: state.written_at,
            document: Required(state.document.clone()),
        }
    }
}

/// A resource with its lease and its state document, read together.
pub(crate) fn whole_resource(row: &Row) -> Result<(i64, Resource), Fault> {
    let (is, lease, state) = read::<WholeResourceColumns>(row)?;
    let is = DescribedResource::from(is);
    Ok((is.id, resource(&is, lease, state.map(|(_, state)| state.into()))?))
}

/// Whether the row of a resource is idle: the resource is not declared, and nobody holds it or waits for it. Decisions
/// and readers treat it as missing. It is kept for a while because the next grant is then cheaper.
pub(crate) fn is_idle(resource: &Resource) -> bool {
    resource.is_forgettable(StoreTime::default())
}

/// A resource, put together from its rows.
pub(crate) fn resource(
    is: &DescribedResource,
    (_, bounds, _, holding, pending): LeaseColumns,
    state: Option<StateDocument>,
) -> Result<Resource, Fault> {
    let lease = holding.map(|holding| lease(holding, &bounds)).transpose()?;
    Ok(Resource {
        key: is.key.clone(),
        declared: is.declared.clone(),
        created_at: is.created_at,
        last_token: bounds.last_token,
        held_back_until: bounds.held_back_until_ms,
        held_back_by: bounds.held_back_by,
        lease,
        pending: pending.map(Box::new),
        state,
        queued: bounds.queued,
        taken: bounds.taken,
        slots: bounds.slots,
    })
}

pub(crate) fn waiter(
    key: &ResourceKey,
    WaiterKeyPart { arrival, .. }: WaiterKeyPart,
    row: WaiterPart,
) -> Result<Waiter, Fault> {
    let tenure = match (row.session_id, row.ttl_ms) {
        (Some(session), _) => AskedTenure::Session(session),
        (None, Some(ttl_ms)) => AskedTenure::Own { ttl_ms },
        (None, None) => {
            return Err(unreadable(format!("waiter {} has neither a session nor a ttl", row.lease_id)));
        }
    };
    Ok(Waiter {
        key: key.clone(),
        arrival,
        lease: row.lease_id,
        holder: row.holder,
        by: row.by_key,
        tenure,
        request: row.request,
        attributes: row.attributes,
        undeclared: if row.undeclared { Undeclared::Allow } else { Undeclared::Refuse },
        slots: row.slots,
        room: row.room_id,
        since: row.since_ms,
        deadline: row.deadline_ms,
    })
}

impl From<&Waiter> for WaiterPart {
    fn from(waiter: &Waiter) -> Self {
        let ttl_ms = match waiter.tenure {
            AskedTenure::Own { ttl_ms } => Some(ttl_ms),
            AskedTenure::Session(_) => None,
        };
        Self {
            room_id: waiter.room,
            session_id: waiter.session(),
            lease_id: waiter.lease,
            holder: waiter.holder.clone(),
            ttl_ms,
            request: waiter.request.clone(),
            attributes: waiter.attributes.clone(),
            undeclared: waiter.undeclared == Undeclared::Allow,
            slots: waiter.slots,
            since_ms: waiter.since,
            deadline_ms: waiter.deadline,
            by_key: waiter.by.clone(),
        }
    }
}

impl WaiterPart {
    pub(crate) fn sessions(&self) -> impl Iterator<Item = SessionId> {
        std::iter::once(self.room_id).chain(self.session_id)
    }
}

/// A spent request and what is remembered of it.
pub(crate) fn request(row: &Row) -> Result<(RequestKey, SpentRequest), Fault> {
    let (RequestKeyPart { tenant, kind, key, holder, request }, spent) = read::<RequestColumns>(row)?;
    Ok((RequestKey { resource: ResourceKey::new(tenant, kind, key), holder, request }, spent))
}

impl From<&RequestKey> for RequestKeyPart {
    fn from(key: &RequestKey) -> Self {
        Self {
            tenant: key.resource.tenant.clone(),
            kind: key.resource.kind.clone(),
            key: key.resource.key.clone(),
            holder: key.holder.clone(),
            request: key.request.clone(),
        }
    }
}

pub(crate) fn record(row: &Row) -> Result<Record, Fault> {
    let (RecordKeyPart { collection, id }, RecordPart { document: Required(document) }) =
        read::<RecordColumns>(row)?;
    Ok(Record { collection, id, document })
}

pub(crate) fn event(row: &Row) -> Result<Event, Fault> {
    let EventPart {
        revision,
        at_ms: at,
        tenant,
        kind,
        key,
        slot,
        by_key: by,
        holder_session_id: holder_session,
        details,
    } = read(row)?;
    let what = serde_json::from_str(&details).map_err(|e| unreadable(format!("event {revision:?}: {e}")))?;
    Ok(Event { revision, at, key: ResourceKey { tenant, kind, key, slot }, by, holder_session, what })
}

/// An event as it is stored. JSON escapes control characters, NUL among them, so that any text can be.
pub(crate) fn event_columns(event: &Event) -> Result<(EventPart, EventIndexPart), Fault> {
    let ResourceKey { tenant, kind, key, slot } = event.key.clone();
    let part = EventPart {
        revision: event.revision,
        at_ms: event.at,
        tenant,
        kind,
        key,
        slot,
        by_key: event.by.clone(),
        holder_session_id: event.holder_session,
        details: serde_json::to_string(&event.what).map_err(unreadable)?,
    };
    let index = EventIndexPart {
        resource_hash: resource_hash(&event.key),
        event_type: event.name(),
        lease_id: event.lease(),
        holder: event.holder().cloned(),
        session_id: event.session(),
        token: event.token(),
    };
    Ok((part, index))
}

/// What events of a resource and of its slots are found by. It is stored: it must never change.
pub(crate) fn resource_hash(key: &ResourceKey) -> i64 {
    let mut hasher = blake3::Hasher::new();
    for part in [&key.tenant, &key.kind, &key.key] {
        hasher.update(part.as_str().as_bytes()).update(&[0]);
    }
    let mut first = [0; 8];
    hasher.finalize_xof().fill(&mut first);
    i64::from_le_bytes(first)
}
