//! Lines: who waits for what (rule 15). A line is looked at only where the locked row says that there is one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use solehold_core::{
    command::{AskedTenure, Undeclared},
    key::{LeaseId, RequestKey, ResourceKey, SessionId},
    ledger::Ledger,
    limits::{SESSION_WAITERS_LOADED, SESSION_WAITERS_MAX, WAITERS_LOADED},
    time::Revision,
    waiter::Waiter,
};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::postgres::{
    batch::plan::Ask,
    connection::pool::{Conn, Param},
    fault::Fault,
    statements::Sql,
    tables::rows::{self, Columns},
};

/// Which waiters to read, in the shape of parameters.
#[derive(Debug, Default)]
pub(crate) struct LinesAsk<'a> {
    /// Of these resources the first so many.
    ids: Vec<i64>,
    most: Vec<i64>,
    leases: Vec<Uuid>,
    requests: (Vec<i64>, Vec<&'a str>, Vec<&'a str>),
    /// Those who hang on these sessions, at most so many.
    sessions: Vec<Uuid>,
    sessions_most: i64,
}

impl<'a> LinesAsk<'a> {
    /// What a batch asks of the lines of `queued` resources and of those who hang on `whole` sessions.
    pub(crate) fn of(ask: &'a Ask, queued: &HashMap<&'a ResourceKey, i64>, whole: &[Uuid]) -> Self {
        let mut lines = Self { sessions: whole.to_vec(), ..Self::default() };
        let wants_all = whole.iter().any(|id| ask.waiters_on.contains(&SessionId(*id)));
        let most = if wants_all { 2 * SESSION_WAITERS_MAX as usize } else { SESSION_WAITERS_LOADED };
        lines.sessions_most = most as i64;
        for (key, id) in queued {
            lines.ids.push(*id);
            lines.most.push(ask.lines.get(*key).copied().unwrap_or(WAITERS_LOADED) as i64);
        }
        let is_queued = |key: &ResourceKey| queued.contains_key(key);
        lines.leases.extend(ask.waiters.iter().filter(|(key, _)| is_queued(key)).map(|(_, id)| id.0));
        for RequestKey { resource, holder, request } in &ask.requests {
            if let Some(id) = queued.get(resource) {
                lines.requests.0.push(*id);
                lines.requests.1.push(holder.as_str());
                lines.requests.2.push(request.as_str());
            }
        }
        lines
    }

    /// Whether nobody can be found by it.
    pub(crate) fn is_empty(&self) -> bool {
        self.ids.is_empty() && self.sessions.is_empty()
    }

    /// Reads them, if there can be any.
    pub(crate) async fn read(&self, conn: &Conn) -> Result<Vec<Row>, Fault> {
        let (ids, holders, names) = &self.requests;
        let params: [Param<'_>; 8] =
            [&self.ids, &self.most, &self.leases, ids, holders, names, &self.sessions, &self.sessions_most];
        conn.query_if(!self.is_empty(), Sql::Waiters, &params).await
    }
}

/// The resources and the sessions that waiters have to do with.
pub(crate) fn touched(rows: &[Row]) -> Result<(BTreeSet<i64>, BTreeSet<SessionId>), Fault> {
    let (mut resources, mut sessions) = (BTreeSet::new(), BTreeSet::new());
    for row in rows {
        let mut c = Columns::from(row, 0);
        resources.insert(c.next()?);
        sessions.insert(SessionId(row.try_get(2)?));
        sessions.extend(row.try_get::<_, Option<Uuid>>(3)?.map(SessionId));
    }
    Ok((resources, sessions))
}

/// Loads waiters of resources whose keys are known; others are left out. Tells the sessions that they hang on.
pub(crate) fn load<'k>(
    state: &mut Ledger,
    rows: &[Row],
    key_of: impl Fn(i64) -> Option<&'k ResourceKey>,
) -> Result<BTreeSet<SessionId>, Fault> {
    let mut heads: BTreeMap<ResourceKey, Revision> = BTreeMap::new();
    let mut sessions = BTreeSet::new();
    for row in rows {
        let Some(key) = key_of(row.try_get(0)?) else { continue };
        let (waiter, is_head) = waiter(row, key)?;
        sessions.extend(waiter.sessions());
        if is_head {
            let head = heads.entry(key.clone()).or_default();
            *head = waiter.arrival.max(*head);
        }
        state.load_waiter(waiter);
    }
    heads.into_iter().for_each(|(key, arrival)| state.load_head(key, arrival));
    Ok(sessions)
}

/// A waiter, from [`Sql::Waiters`], and whether it was read as one of the first in line.
fn waiter(row: &Row, key: &ResourceKey) -> Result<(Waiter, bool), Fault> {
    let mut c = Columns::from(row, 1);
    let arrival = Revision(c.number()?);
    let (room, session) = (SessionId(c.next()?), c.session_id()?);
    let lease = LeaseId(c.next()?);
    let holder = c.name()?;
    let tenure = match (session, c.next::<Option<i64>>()?) {
        (Some(session), _) => AskedTenure::Session(session),
        (None, Some(ttl_ms)) => AskedTenure::Own { ttl_ms: ttl_ms as u64 },
        (None, None) => {
            return Err(rows::unreadable(format!("waiter {lease} has neither a session nor a ttl")));
        }
    };
    let waiter = Waiter {
        key: key.clone(),
        arrival,
        lease,
        holder,
        tenure,
        request: c.maybe_name()?,
        attributes: c.document()?,
        undeclared: if c.next()? { Undeclared::Allow } else { Undeclared::Refuse },
        room,
        deadline: c.time()?,
    };
    Ok((waiter, c.next()?))
}
