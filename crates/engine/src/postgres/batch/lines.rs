//! Lines of waiters (rule 15). A line is read only where the locked row says that there is one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use solehold_core::{
    key::{RequestKey, ResourceKey, SessionId},
    ledger::Ledger,
    limits::{SESSION_WAITERS_LOADED, SESSION_WAITERS_MAX, WAITERS_LOADED},
    time::Revision,
};
use uuid::Uuid;

use super::wanted::WantedRows;
use crate::postgres::{
    connection::pool::Conn,
    fault::Fault,
    statements::Sql,
    tables::{
        columns::{LinePart, WaiterKeyPart, WaiterPart},
        part::{self, Param},
        rows,
    },
};

/// A waiter's row, and whether it was read as one of the first in line.
pub(crate) type LineRow = (WaiterKeyPart, WaiterPart, LinePart);

/// Which waiters to read, in the shape of parameters.
#[derive(Debug, Default)]
pub(crate) struct WantedWaiters<'a> {
    /// Of the line of each resource, the first `most`.
    ids: Vec<i64>,
    most: Vec<i64>,
    leases: Vec<Uuid>,
    requests: (Vec<i64>, Vec<&'a str>, Vec<&'a str>),
    /// Those attached to these sessions, at most `sessions_most`.
    sessions: Vec<Uuid>,
    sessions_most: i64,
}

impl<'a> WantedWaiters<'a> {
    /// What a batch asks of the lines of `queued` resources and of those attached to `whole` sessions.
    pub(crate) fn of(wanted: &'a WantedRows, queued: &HashMap<&'a ResourceKey, i64>, whole: &[Uuid]) -> Self {
        let mut lines = Self { sessions: whole.to_vec(), ..Self::default() };
        let wants_all = whole.iter().any(|id| wanted.waiters_on.contains(&SessionId(*id)));
        let most = if wants_all { 2 * SESSION_WAITERS_MAX as usize } else { SESSION_WAITERS_LOADED };
        lines.sessions_most = most as i64;
        for (key, id) in queued {
            lines.ids.push(*id);
            lines.most.push(wanted.lines.get(*key).copied().unwrap_or(WAITERS_LOADED) as i64);
        }
        let is_queued = |key: &ResourceKey| queued.contains_key(key);
        lines.leases.extend(wanted.waiters.iter().filter(|(key, _)| is_queued(key)).map(|(_, id)| id.0));
        for RequestKey { resource, holder, request } in &wanted.requests {
            if let Some(id) = queued.get(resource) {
                lines.requests.0.push(*id);
                lines.requests.1.push(holder.as_str());
                lines.requests.2.push(request.as_str());
            }
        }
        lines
    }

    /// Reads them, if there can be any.
    pub(crate) async fn read(&self, conn: &Conn) -> Result<Vec<LineRow>, Fault> {
        let (ids, holders, names) = &self.requests;
        let params: [Param<'_>; 8] =
            [&self.ids, &self.most, &self.leases, ids, holders, names, &self.sessions, &self.sessions_most];
        let may_find_any = !self.ids.is_empty() || !self.sessions.is_empty();
        let found = conn.query_if(may_find_any, Sql::Waiters, &params).await?;
        found.iter().map(part::read).collect()
    }
}

/// The resources and the sessions that waiters are attached to.
pub(crate) fn attached_to(rows: &[LineRow]) -> (BTreeSet<i64>, BTreeSet<SessionId>) {
    let resources = rows.iter().map(|(key, ..)| key.resource_id).collect();
    (resources, rows.iter().flat_map(|(_, waiter, _)| waiter.sessions()).collect())
}

/// Loads waiters of resources whose keys are known; others are left out. Gives the sessions that they are attached to.
pub(crate) fn load<'k>(
    ledger: &mut Ledger,
    rows: Vec<LineRow>,
    key_of: impl Fn(i64) -> Option<&'k ResourceKey>,
) -> Result<BTreeSet<SessionId>, Fault> {
    let mut heads: BTreeMap<ResourceKey, Revision> = BTreeMap::new();
    let mut sessions = BTreeSet::new();
    for (place, waiter, line) in rows {
        let Some(key) = key_of(place.resource_id) else { continue };
        sessions.extend(waiter.sessions());
        if line.is_head {
            let head = heads.entry(key.clone()).or_default();
            *head = place.arrival.max(*head);
        }
        ledger.load_waiter(rows::waiter(key, place, waiter)?);
    }
    heads.into_iter().for_each(|(key, arrival)| ledger.load_head(key, arrival));
    Ok(sessions)
}
