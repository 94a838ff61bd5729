//! Rows as core has them, from rows as PostgreSQL has them.

use std::{collections::BTreeMap, sync::Arc};

use solehold_core::{
    event::Event,
    key::{Document, HolderKey, LeaseId, Name, RequestKey, ResourceKey, SessionId},
    lease::{Declaration, Lease, Pending, Resource, StateDocument, Tenure},
    record::Record,
    session::{Holder, HolderStatus, Session, Standing},
    time::{Revision, StoreTime, Token},
};
use tokio_postgres::{Row, types::FromSql};
use uuid::Uuid;

use crate::postgres::{fault::Fault, tables::text};

/// Reads the columns of a row one after the other.
pub(crate) struct Columns<'a> {
    row: &'a Row,
    at: usize,
}

impl<'a> Columns<'a> {
    /// From the column `at` on.
    pub(crate) fn from(row: &'a Row, at: usize) -> Self {
        Self { row, at }
    }

    pub(crate) fn next<T: FromSql<'a>>(&mut self) -> Result<T, Fault> {
        self.at += 1;
        Ok(self.row.try_get(self.at - 1)?)
    }

    pub(crate) fn number(&mut self) -> Result<u64, Fault> {
        Ok(self.next::<i64>()? as u64)
    }

    pub(crate) fn time(&mut self) -> Result<StoreTime, Fault> {
        self.number().map(StoreTime)
    }

    fn maybe_time(&mut self) -> Result<Option<StoreTime>, Fault> {
        Ok(self.next::<Option<i64>>()?.map(|ms| StoreTime(ms as u64)))
    }

    pub(crate) fn name(&mut self) -> Result<Name, Fault> {
        name(self.next()?)
    }

    pub(crate) fn maybe_name(&mut self) -> Result<Option<Name>, Fault> {
        self.next::<Option<&str>>()?.map(name).transpose()
    }

    /// A document; none stands for the empty one.
    pub(crate) fn document(&mut self) -> Result<Document, Fault> {
        match self.next::<Option<&str>>()? {
            Some(stored) => Document::new(text::restored(stored)).map_err(unreadable),
            None => Ok(Document::default()),
        }
    }

    pub(crate) fn session_id(&mut self) -> Result<Option<SessionId>, Fault> {
        Ok(self.next::<Option<Uuid>>()?.map(SessionId))
    }

    pub(crate) fn lease_id(&mut self) -> Result<Option<LeaseId>, Fault> {
        Ok(self.next::<Option<Uuid>>()?.map(LeaseId))
    }

    pub(crate) fn resource_key(&mut self) -> Result<ResourceKey, Fault> {
        Ok(ResourceKey { tenant: self.name()?, kind: self.name()?, key: self.name()? })
    }

    pub(crate) fn holder_key(&mut self) -> Result<HolderKey, Fault> {
        Ok(HolderKey { tenant: self.name()?, name: self.name()? })
    }
}

fn name(text: &str) -> Result<Name, Fault> {
    Name::stored(text).map_err(|e| unreadable(format!("a stored name {e}")))
}

/// A stored row that makes no sense to this program.
pub(crate) fn unreadable(what: impl std::fmt::Display) -> Fault {
    Fault::Unreadable(format!("a stored row cannot be read: {what}"))
}

/// A document as it is stored: none for the empty one, which most are.
pub(crate) fn document_text(document: &Document) -> Option<std::borrow::Cow<'_, str>> {
    match document.as_str() {
        "{}" => None,
        other => Some(text::stored(other)),
    }
}

/// The name of a standing.
pub(crate) fn standing_text(standing: Standing) -> &'static str {
    match standing {
        Standing::Current => "current",
        Standing::Draining => "draining",
        Standing::Superseded => "superseded",
    }
}

/// The name of a status.
pub(crate) fn status_text(status: HolderStatus) -> &'static str {
    match status {
        HolderStatus::Active => "active",
        HolderStatus::Draining => "draining",
        HolderStatus::Maintenance => "maintenance",
    }
}

/// Labels as they are stored.
pub(crate) fn labels_text(labels: &BTreeMap<String, String>) -> Result<String, Fault> {
    let stored: BTreeMap<_, _> = labels.iter().map(|(k, v)| (text::stored(k), text::stored(v))).collect();
    serde_json::to_string(&stored).map_err(unreadable)
}

/// A session, from `session_columns!`.
pub(crate) fn session(row: &Row) -> Result<Session, Fault> {
    let mut c = Columns::from(row, 0);
    Ok(Session {
        id: SessionId(c.next()?),
        holder: c.holder_key()?,
        ttl_ms: c.number()?,
        opened_at: c.time()?,
        renewed_at: c.time()?,
        deadline: c.time()?,
        standing: match c.next::<&str>()? {
            "current" => Standing::Current,
            "draining" => Standing::Draining,
            "superseded" => Standing::Superseded,
            other => return Err(unreadable(format!("a session has the standing {other}"))),
        },
        capacity: c.next::<Option<i64>>()?.map(|n| n as u32),
        lease_count: c.number()? as u32,
        lease_revision: Revision(c.number()?),
        metrics: c.document()?,
        waiting: c.number()? as u32,
    })
}

/// A holder, from `holder_columns!`.
pub(crate) fn holder(row: &Row) -> Result<Holder, Fault> {
    let mut c = Columns::from(row, 0);
    Ok(Holder {
        key: c.holder_key()?,
        registered: c.next()?,
        session: c.session_id()?,
        status: match c.next::<&str>()? {
            "active" => HolderStatus::Active,
            "draining" => HolderStatus::Draining,
            "maintenance" => HolderStatus::Maintenance,
            other => return Err(unreadable(format!("a holder has the status {other}"))),
        },
        registered_at: c.time()?,
        heard_at: c.time()?,
        site: c.maybe_name()?,
        attributes: c.document()?,
        metrics: c.document()?,
    })
}

/// What a resource is, as far as it is not judged under a lock: from `resource_columns!`.
#[derive(Debug, Clone)]
pub(crate) struct Described {
    pub(crate) id: i64,
    pub(crate) key: ResourceKey,
    pub(crate) version: i64,
    pub(crate) declared: Option<Arc<Declaration>>,
    pub(crate) created_at: StoreTime,
}

/// How many columns `resource_columns!` has.
pub(crate) const DESCRIBED_COLUMNS: usize = 11;

/// What a resource is.
pub(crate) fn described(row: &Row) -> Result<Described, Fault> {
    let mut c = Columns::from(row, 0);
    let (id, key, version, declared) = (c.next()?, c.resource_key()?, c.next()?, c.next::<bool>()?);
    let site = c.maybe_name()?;
    let labels: serde_json::Value = c.next()?;
    let attributes = c.document()?;
    let lock_delay_ms = c.number()?;
    let created_at = c.time()?;
    let declared = match declared {
        true => Some(Arc::new(Declaration { site, labels: labels_of(labels)?, attributes, lock_delay_ms })),
        false => None,
    };
    Ok(Described { id, key, version, declared, created_at })
}

fn labels_of(stored: serde_json::Value) -> Result<BTreeMap<String, String>, Fault> {
    let stored: BTreeMap<String, String> = serde_json::from_value(stored).map_err(unreadable)?;
    let restore =
        |(k, v): (String, String)| (text::restored(&k).into_owned(), text::restored(&v).into_owned());
    Ok(stored.into_iter().map(restore).collect())
}

/// The part of a resource that is judged under a lock: from `lease_columns!`.
#[derive(Debug)]
pub(crate) struct LeaseRow {
    pub(crate) resource_id: i64,
    pub(crate) version: i64,
    pub(crate) due_ms: Option<i64>,
    pub(crate) has_state: bool,
    pub(crate) last_token: Token,
    held_back_until: Option<StoreTime>,
    pub(crate) lease: Option<Lease>,
    pub(crate) pending: Option<Pending>,
    pub(crate) queued: u32,
}

/// How many columns `lease_columns!` has.
pub(crate) const LEASE_COLUMNS: usize = 24;

/// The part of a resource that is judged under a lock, from the column `at` on.
pub(crate) fn lease_row(row: &Row, at: usize) -> Result<LeaseRow, Fault> {
    let mut c = Columns::from(row, at);
    let (resource_id, version) = (c.next()?, c.next()?);
    let (last_token, held_back_until, due_ms) = (Token(c.number()?), c.maybe_time()?, c.next()?);
    let lease = match c.lease_id()? {
        Some(id) => Some(lease(&mut c, id, last_token)?),
        None => {
            c.at += 9;
            None
        }
    };
    let has_state = c.next()?;
    let pending = match c.lease_id()? {
        Some(id) => Some(Pending {
            id,
            session: SessionId(c.next()?),
            holder: c.name()?,
            asked_at: c.time()?,
            deadline: c.time()?,
            attributes: c.document()?,
        }),
        None => None,
    };
    // What was added last stands last.
    let mut c = Columns::from(row, at + LEASE_COLUMNS - 2);
    let (confirm_by, queued) = (c.maybe_time()?, c.number()? as u32);
    let lease = lease.map(|lease| Lease { confirm_by, ..lease });
    Ok(LeaseRow {
        resource_id,
        version,
        due_ms,
        has_state,
        last_token,
        held_back_until,
        lease,
        pending,
        queued,
    })
}

fn lease(c: &mut Columns<'_>, id: LeaseId, token: Token) -> Result<Lease, Fault> {
    let holder = c.name()?;
    let session = c.session_id()?;
    let (ttl_ms, deadline) = (c.next::<Option<i64>>()?, c.maybe_time()?);
    let tenure = match (session, ttl_ms, deadline) {
        (Some(session), _, _) => Tenure::Session(session),
        (None, Some(ttl_ms), Some(deadline)) => Tenure::Own { ttl_ms: ttl_ms as u64, deadline },
        _ => return Err(unreadable(format!("lease {id} has neither a session nor a deadline"))),
    };
    Ok(Lease {
        id,
        token,
        holder,
        tenure,
        acquired_at: c.time()?,
        renewed_at: c.maybe_time()?,
        confirm_by: None,
        request: c.maybe_name()?,
        attributes: c.document()?,
        stats: c.document()?,
    })
}

/// The hand-over document and the resource that it belongs to, from `state_columns!` at the column `at`.
pub(crate) fn handover(row: &Row, at: usize) -> Result<Option<(i64, StateDocument)>, Fault> {
    let mut c = Columns::from(row, at);
    let Some(resource) = c.next::<Option<i64>>()? else { return Ok(None) };
    let sequence = c.number()?;
    let (token, written_at) = (Token(c.number()?), c.time()?);
    let document = Document::new(text::restored(c.next::<&str>()?)).map_err(unreadable)?;
    Ok(Some((resource, StateDocument { document, sequence, token, written_at })))
}

/// A resource whole.
pub(crate) fn resource(is: &Described, row: LeaseRow, state: Option<StateDocument>) -> Resource {
    Resource {
        key: is.key.clone(),
        declared: is.declared.clone(),
        created_at: is.created_at,
        last_token: row.last_token,
        held_back_until: row.held_back_until,
        lease: row.lease,
        pending: row.pending.map(Box::new),
        state,
        queued: row.queued,
    }
}

/// A spent request and until when it is remembered.
pub(crate) fn request(row: &Row) -> Result<(RequestKey, StoreTime), Fault> {
    let mut c = Columns::from(row, 0);
    let key = RequestKey { resource: c.resource_key()?, holder: c.name()?, request: c.name()? };
    Ok((key, c.time()?))
}

/// A record.
pub(crate) fn record(row: &Row) -> Result<Record, Fault> {
    let mut c = Columns::from(row, 0);
    let (collection, id) = (c.name()?, c.name()?);
    let document = Document::new(text::restored(c.next::<&str>()?)).map_err(unreadable)?;
    Ok(Record { collection, id, document })
}

/// An event, from its revision, time, key and details.
pub(crate) fn event(row: &Row) -> Result<Event, Fault> {
    let mut c = Columns::from(row, 0);
    let (revision, at, key) = (Revision(c.number()?), c.time()?, c.resource_key()?);
    let what = serde_json::from_str(c.next()?).map_err(|e| unreadable(format!("event {revision:?}: {e}")))?;
    Ok(Event { revision, at, key, what })
}
