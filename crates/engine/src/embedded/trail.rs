//! The audit trail: `lease_events`, and an index of it that is brought up to date a little later.
//!
//! An index by lease and by resource costs more than all the rest of an append, since its entries lie anywhere in the
//! file. So an append writes the events alone; maintenance enters them in `event_index`, in bulk. What is not entered
//! yet is found by looking through the newest events.

use std::collections::VecDeque;

use rusqlite::{Connection, OptionalExtension, Row as SqlRow, params};
use solehold_core::{
    event::Event,
    key::{Name, ResourceKey},
    time::{Revision, StoreTime},
};

use super::unreadable;
use crate::{
    resident::WINDOW_EVENTS,
    store::{EventQuery, Retention, StoreError},
};

/// The number under which events of a lease or of a resource are entered. Two may share one: the event itself decides.
fn hash(text: &str) -> i64 {
    let mut first = [0; 8];
    first.copy_from_slice(&blake3::hash(text.as_bytes()).as_bytes()[..8]);
    i64::from_le_bytes(first)
}

fn hash_of_lease(id: &str) -> i64 {
    hash(&format!("lease {id}"))
}

/// Names have no line breaks, so that no two keys are one text.
fn hash_of_resource(tenant: &str, kind: &str, key: &str) -> i64 {
    hash(&format!("resource {tenant}\n{kind}\n{key}"))
}

/// Up to which event the index goes.
fn indexed(db: &Connection) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'indexed'";
    let found = db.prepare_cached(sql)?.query_row([], |r| r.get(0)).optional();
    Ok(found?.unwrap_or_default())
}

/// The numbers under which a range of events is entered, as pairs of number and revision.
fn entries(db: &Connection, from: i64, to: i64, most: u64) -> Result<Vec<(i64, i64)>, StoreError> {
    let sql = "SELECT revision, lease_id, tenant, kind, key FROM lease_events
        WHERE revision > ?1 AND revision <= ?2 ORDER BY revision LIMIT ?3";
    let mut select = db.prepare_cached(sql)?;
    let mut rows = select.query(params![from, to, most as i64])?;
    let mut entries = Vec::new();
    while let Some(row) = rows.next()? {
        let text = |n: usize| row.get_ref(n)?.as_str().map_err(rusqlite::Error::from);
        let revision: i64 = row.get(0)?;
        let lease: Option<String> = row.get(1)?;
        let tenant = text(2)?;
        let kind = text(3)?;
        let key = text(4)?;
        entries.push((hash_of_resource(tenant, kind, key), revision));
        entries.extend(lease.map(|id| (hash_of_lease(&id), revision)));
    }
    Ok(entries)
}

/// Enters events that are not entered yet, at most `most` of them.
pub(super) fn enter(db: &Connection, most: u64) -> Result<(), StoreError> {
    let mut new = entries(db, indexed(db)?, i64::MAX, most)?;
    let Some(to) = new.iter().map(|(_, revision)| *revision).max() else { return Ok(()) };
    // In the order of the index, so that each of its pages is written once.
    new.sort_unstable();
    let tx = db.unchecked_transaction()?;
    {
        let sql = "INSERT OR IGNORE INTO event_index (hash, revision) VALUES (?1, ?2)";
        let mut insert = tx.prepare_cached(sql)?;
        for (hash, revision) in new {
            insert.execute(params![hash, revision])?;
        }
    }
    let sql = "INSERT OR REPLACE INTO meta (name, value) VALUES ('indexed', ?1)";
    tx.execute(sql, params![to.to_string()])?;
    Ok(tx.commit()?)
}

const EVENT_COLUMNS: &str = "revision, at_ms, tenant, kind, key, details, by_key";

fn event(row: &SqlRow<'_>) -> Result<Event, StoreError> {
    let text = |n: usize| row.get::<_, String>(n);
    let number = |n: usize| row.get::<_, i64>(n);
    let revision = number(0)?;
    let place = format!("event {revision}");
    let name = |text: String| Name::new(text).map_err(|e| unreadable(&place, e));
    let by: Option<String> = row.get(6)?;
    Ok(Event {
        revision: Revision(revision as u64),
        at: StoreTime(number(1)? as u64),
        key: ResourceKey { tenant: name(text(2)?)?, kind: name(text(3)?)?, key: name(text(4)?)? },
        by: by.map(name).transpose()?,
        holder_session: None,
        what: serde_json::from_str(&text(5)?).map_err(|e| unreadable(&place, e))?,
    })
}

/// Reads events, in the order that the query asks for.
///
/// What is not entered in the index yet comes after everything that is, so it is read first or last.
pub(super) fn read(db: &Connection, query: &EventQuery) -> Result<Vec<Event>, StoreError> {
    let indexed = indexed(db)?;
    let after = i64::try_from(query.after.0).unwrap_or(i64::MAX);
    let before = query.newest_before.map_or(i64::MAX, |before| i64::try_from(before.0).unwrap_or(i64::MAX));
    let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
    let selection = Selection::of(query);
    if selection.hash.is_none() {
        return selection.read(db, None, (after, before), limit);
    }
    let entered = (selection.hash, (after, before.min(indexed.saturating_add(1))));
    let new = (None, (after.max(indexed), before));
    let mut events = Vec::new();
    for (hash, range) in if query.newest_before.is_some() { [new, entered] } else { [entered, new] } {
        let left = limit.saturating_sub(events.len() as i64);
        if left > 0 {
            events.extend(selection.read(db, hash, range, left)?);
        }
    }
    Ok(events)
}

/// Which events to select.
struct Selection {
    /// The number under which they are entered; none for all events.
    hash: Option<i64>,
    /// What an event must be of, and the values of its parameters, which begin with `?4`.
    is_its: &'static str,
    names: Vec<String>,
    order: &'static str,
}

impl Selection {
    fn of(query: &EventQuery) -> Self {
        let (hash, is_its, names) = match (&query.lease, &query.resource) {
            (Some(lease), _) => {
                let id = lease.to_string();
                (Some(hash_of_lease(&id)), "lease_id = ?4", vec![id])
            }
            (None, Some(key)) => {
                let names = [&key.tenant, &key.kind, &key.key].map(Name::as_str);
                let hash = hash_of_resource(names[0], names[1], names[2]);
                (Some(hash), "tenant = ?4 AND kind = ?5 AND key = ?6", names.map(str::to_owned).to_vec())
            }
            (None, None) => (None, "true", Vec::new()),
        };
        Self { hash, is_its, names, order: if query.newest_before.is_some() { "DESC" } else { "ASC" } }
    }

    /// Reads the events after the first revision and before the second: by their number in `event_index`, or by going
    /// through the events, if none is given.
    fn read(
        &self,
        db: &Connection,
        hash: Option<i64>,
        range: (i64, i64),
        limit: i64,
    ) -> Result<Vec<Event>, StoreError> {
        let Self { is_its, order, names, .. } = self;
        // A cross join is walked from the left: always by the number, never through all events.
        let (from, by_hash) = match hash {
            Some(_) => (
                "event_index CROSS JOIN lease_events USING (revision)",
                format!(" AND hash = ?{}", names.len() + 4),
            ),
            None => ("lease_events", String::new()),
        };
        let sql = format!(
            "SELECT {EVENT_COLUMNS} FROM {from} \
             WHERE revision > ?1 AND revision < ?2 AND {is_its}{by_hash} ORDER BY revision {order} LIMIT ?3"
        );
        let mut values: Vec<rusqlite::types::Value> = vec![range.0.into(), range.1.into(), limit.into()];
        values.extend(names.iter().cloned().map(Into::into));
        values.extend(hash.map(Into::into));
        collect(db, &sql, rusqlite::params_from_iter(values))
    }
}

fn collect(db: &Connection, sql: &str, values: impl rusqlite::Params) -> Result<Vec<Event>, StoreError> {
    let mut select = db.prepare_cached(sql)?;
    let mut rows = select.query(values)?;
    let mut events = Vec::new();
    while let Some(row) = rows.next()? {
        events.push(event(row)?);
    }
    Ok(events)
}

/// The newest events, the oldest of them first.
pub(super) fn newest(db: &Connection) -> Result<VecDeque<Event>, StoreError> {
    let sql =
        format!("SELECT {EVENT_COLUMNS} FROM lease_events ORDER BY revision DESC LIMIT {WINDOW_EVENTS}");
    let mut events = collect(db, &sql, [])?;
    events.reverse();
    Ok(events.into())
}

/// How many events there were at most when the history stood at a revision.
type Counted = Option<(u64, Revision)>;

/// Drops events past their retention, the oldest first; returns the new floor if any were dropped, and how many
/// remain.
///
/// Events stand in order of revision and of time, so that what is too old is at the beginning. They are counted only
/// when there may be too many: revisions can jump, and then say nothing of how many there are.
pub(super) fn drop_old(
    db: &Connection,
    now: StoreTime,
    head: Revision,
    retention: &Retention,
    most: u64,
    counted: Counted,
) -> Result<(Option<Revision>, Counted), StoreError> {
    let at_most = counted.map(|(count, at)| count + head.0.saturating_sub(at.0));
    let mut count = at_most.unwrap_or(u64::MAX);
    if count > retention.events_max {
        count = read_number(db, "SELECT count(*) FROM lease_events", [])?.unwrap_or_default();
    }
    let surplus = count.saturating_sub(retention.events_max).min(most);
    let too_old = now.0.saturating_sub(retention.events_ms);
    let sql = "SELECT max(revision) FROM (SELECT revision FROM lease_events ORDER BY revision LIMIT ?1)";
    let beyond = if surplus > 0 { read_number(db, sql, [surplus as i64])? } else { None };
    let sql =
        "SELECT max(revision) FROM (SELECT revision, at_ms FROM lease_events ORDER BY revision LIMIT ?1)
        WHERE at_ms < ?2";
    let oldest = "SELECT at_ms FROM lease_events ORDER BY revision LIMIT 1";
    let is_old = read_number(db, oldest, [])?.is_some_and(|at| at < too_old);
    let old = if is_old { read_number(db, sql, [most as i64, too_old as i64])? } else { None };
    let first = "SELECT min(revision) FROM lease_events";
    let old = match old.map(|old| retention.by_age(Revision(old)).0) {
        Some(old) => read_number(db, first, [])?.filter(|first| *first <= old).map(|_| old),
        None => None,
    };
    let Some(floor) = beyond.max(old) else { return Ok((None, Some((count, head)))) };
    let tx = db.unchecked_transaction()?;
    tx.execute("INSERT OR REPLACE INTO meta (name, value) VALUES ('floor', ?1)", params![floor.to_string()])?;
    {
        let sql = "DELETE FROM event_index WHERE hash = ?1 AND revision = ?2";
        let mut forget = tx.prepare_cached(sql)?;
        let mut gone = entries(&tx, 0, floor as i64, u64::MAX >> 1)?;
        gone.sort_unstable();
        for (hash, revision) in gone {
            forget.execute(params![hash, revision])?;
        }
    }
    let dropped = tx.execute("DELETE FROM lease_events WHERE revision <= ?1", params![floor as i64])?;
    tx.commit()?;
    let left = count.saturating_sub(dropped as u64);
    Ok((Some(Revision(floor)), Some((left, head))))
}

/// A number, or none where there is nothing.
fn read_number<const N: usize>(
    db: &Connection,
    sql: &str,
    values: [i64; N],
) -> Result<Option<u64>, StoreError> {
    let mut select = db.prepare_cached(sql)?;
    let mut rows = select.query(rusqlite::params_from_iter(values))?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let number: Option<i64> = row.get(0)?;
    Ok(number.map(|number| number as u64))
}
