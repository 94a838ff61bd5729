//! The history of events: `event_batches`, and an index of it that is brought up to date a little later.
//!
//! An index by lease and by resource costs more than all the rest of an append, since its entries lie anywhere in the
//! file. So an append writes the events alone; maintenance enters them in `event_index`, in bulk: which leases and
//! resources the events of a row are of, each once. What is not entered yet is found by looking through the newest
//! rows.
//!
//! A row is dropped when all of its events are at or below the floor. Readers leave out events of the oldest row that
//! are.

use std::collections::VecDeque;

use rusqlite::{Connection, OptionalExtension, params};
use solehold_core::{
    event::Event,
    key::{LeaseId, ResourceKey},
    time::{Revision, StoreTime},
};

use super::{
    batches::{BATCH_COLUMNS, EventBatch, Span},
    unreadable,
};
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

fn hash_of_lease(id: LeaseId) -> i64 {
    hash(&format!("lease {id}"))
}

/// Names have no line breaks, so that no two keys are one text.
fn hash_of_resource(ResourceKey { tenant, kind, key, .. }: &ResourceKey) -> i64 {
    hash(&format!("resource {tenant}\n{kind}\n{key}"))
}

fn number_of_meta(db: &Connection, name: &str) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(value AS INTEGER) FROM meta WHERE name = ?1";
    let found = db.prepare_cached(sql)?.query_row([name], |r| r.get(0)).optional();
    Ok(found?.unwrap_or_default())
}

/// Up to which event the index goes: the last of a row.
fn indexed(db: &Connection) -> Result<i64, StoreError> {
    number_of_meta(db, "indexed")
}

/// Events up to this one are gone.
pub(super) fn floor(db: &Connection) -> Result<Revision, StoreError> {
    Ok(Revision(number_of_meta(db, "floor")? as u64))
}

/// The numbers under which rows are entered, in order, as pairs of number and last revision: rows that end after `from`
/// and not after `to`, until they have `most` events.
fn entries(db: &Connection, from: i64, to: i64, most: u64) -> Result<Vec<(i64, i64)>, StoreError> {
    let sql =
        format!("SELECT {BATCH_COLUMNS} FROM event_batches WHERE last > ?1 AND last <= ?2 ORDER BY last");
    let mut select = db.prepare_cached(&sql)?;
    let mut rows = select.query(params![from, to])?;
    let mut entries = Vec::new();
    let mut seen = 0;
    while let Some(row) = rows.next()? {
        let batch = EventBatch::of(row)?;
        for event in batch.split()? {
            let event = batch.decode(event)?;
            entries.push((hash_of_resource(&event.key), batch.last));
            entries.extend(event.lease().map(|id| (hash_of_lease(id), batch.last)));
            seen += 1;
        }
        if seen >= most {
            break;
        }
    }
    // In the order of the index, so that each of its pages is written once.
    entries.sort_unstable();
    entries.dedup();
    Ok(entries)
}

/// Enters rows that are not entered yet, until they have `most` events.
pub(super) fn enter(db: &Connection, most: u64) -> Result<(), StoreError> {
    let new = entries(db, indexed(db)?, i64::MAX, most)?;
    let Some(to) = new.iter().map(|(_, last)| *last).max() else { return Ok(()) };
    let tx = db.unchecked_transaction()?;
    {
        let sql = "INSERT OR IGNORE INTO event_index (hash, last) VALUES (?1, ?2)";
        let mut insert = tx.prepare_cached(sql)?;
        for (hash, last) in new {
            insert.execute(params![hash, last])?;
        }
    }
    let sql = "INSERT OR REPLACE INTO meta (name, value) VALUES ('indexed', ?1)";
    tx.execute(sql, params![to.to_string()])?;
    Ok(tx.commit()?)
}

/// Reads events above the floor, in the order that the query asks for.
///
/// What is not entered in the index yet comes after everything that is, so it is read first or last.
pub(super) fn read(db: &Connection, query: &EventQuery, floor: Revision) -> Result<Vec<Event>, StoreError> {
    let mut page = FoundEvents::of(db, query, floor)?;
    let Some(hash) = page.hash else {
        page.fill(db, None, (0, i64::MAX))?;
        return Ok(page.events);
    };
    let indexed = indexed(db)?;
    let entered = (Some(hash), (0, indexed));
    let new = (None, (indexed, i64::MAX));
    for (hash, rows) in if query.newest_before.is_some() { [new, entered] } else { [entered, new] } {
        page.fill(db, hash, rows)?;
    }
    Ok(page.events)
}

/// The newest events, the oldest of them first.
pub(super) fn newest(db: &Connection) -> Result<VecDeque<Event>, StoreError> {
    let query = EventQuery { limit: WINDOW_EVENTS, ..Default::default() }.newest();
    let mut events = read(db, &query, floor(db)?)?;
    events.reverse();
    Ok(events.into())
}

/// The events that a query has found so far.
struct FoundEvents<'a> {
    query: &'a EventQuery,
    /// The number under which they are entered; none for all events.
    hash: Option<i64>,
    /// A text that each of them contains, so that others need not be decoded.
    contained: Option<String>,
    /// They come after the first revision and before the second.
    range: (i64, i64),
    /// The last row that may have any of them.
    last_row: i64,
    events: Vec<Event>,
}

impl<'a> FoundEvents<'a> {
    fn of(db: &Connection, query: &'a EventQuery, floor: Revision) -> Result<Self, StoreError> {
        let (hash, contained) = match (&query.lease, &query.resource) {
            (Some(lease), _) => (Some(hash_of_lease(*lease)), Some(lease.to_string())),
            (None, Some(key)) => {
                let name = serde_json::to_string(&key.key).map_err(|e| unreadable("key", e))?;
                (Some(hash_of_resource(key)), Some(name))
            }
            (None, None) => (None, None),
        };
        let place = |revision: Revision| i64::try_from(revision.0).unwrap_or(i64::MAX);
        let before = query.newest_before.map_or(i64::MAX, place);
        let sql = "SELECT min(last) FROM event_batches WHERE last >= ?1";
        let last_row = read_number(db, sql, [before])?.map_or(i64::MAX, |last| last as i64);
        let range = (place(query.after.max(floor)), before);
        Ok(Self { query, hash, contained, range, last_row, events: Vec::new() })
    }

    fn is_full(&self) -> bool {
        self.events.len() >= self.query.limit
    }

    fn has_room_for(&self, event: &Event) -> bool {
        let revision = event.revision.0 as i64;
        let (after, before) = self.range;
        let is_its = self.query.lease.is_none_or(|id| event.lease() == Some(id))
            && self.query.resource.as_ref().is_none_or(|key| event.key.whole() == key.whole());
        !self.is_full() && after < revision && revision < before && is_its
    }

    /// Adds events of the rows that end after the first revision and not after the second: by their number in
    /// `event_index`, or by going through the rows, if none is given. Decodes one row at a time, and none once the page
    /// is full.
    fn fill(&mut self, db: &Connection, hash: Option<i64>, rows: (i64, i64)) -> Result<(), StoreError> {
        if self.is_full() {
            return Ok(());
        }
        // A cross join is walked from the left: always by the number, never through all rows.
        let (from, by_hash) = match hash {
            Some(_) => ("event_index CROSS JOIN event_batches USING (last)", " AND hash = ?3"),
            None => ("event_batches", ""),
        };
        let is_backwards = self.query.newest_before.is_some();
        let order = if is_backwards { "DESC" } else { "ASC" };
        let sql = format!(
            "SELECT {BATCH_COLUMNS} FROM {from} WHERE last > ?1 AND last <= ?2{by_hash} ORDER BY last {order}"
        );
        let range = [rows.0.max(self.range.0), rows.1.min(self.last_row)];
        let mut select = db.prepare_cached(&sql)?;
        let mut found = select.query(rusqlite::params_from_iter(range.into_iter().chain(hash)))?;
        while !self.is_full()
            && let Some(row) = found.next()?
        {
            let batch = EventBatch::of(row)?;
            if self.contained.as_ref().is_some_and(|text| !batch.may_contain(text)) {
                continue;
            }
            let mut events = batch.split()?;
            if is_backwards {
                events.reverse();
            }
            events.retain(|event| self.contained.as_ref().is_none_or(|text| event.get().contains(text)));
            for event in events {
                if self.is_full() {
                    break;
                }
                let event = batch.decode(event)?;
                if self.has_room_for(&event) {
                    self.events.push(event);
                }
            }
        }
        Ok(())
    }
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
    let floor = floor(db)?;
    let after = [floor.0 as i64];
    let at_most = counted.map(|(count, at)| count.saturating_add(head.0.saturating_sub(at.0)));
    let mut count = at_most.unwrap_or(u64::MAX);
    if count > retention.events_max {
        let sql = "SELECT sum(count) FROM event_batches WHERE last > ?1";
        count = read_number(db, sql, after)?.unwrap_or_default();
        count = count.saturating_sub(Oldest::of(db, floor, 1)?.gone);
    }
    let surplus = count.saturating_sub(retention.events_max).min(most);
    let too_old = now.0.saturating_sub(retention.events_ms);
    let sql = "SELECT at_ms FROM event_batches WHERE last > ?1 ORDER BY last LIMIT 1";
    let is_old = read_number(db, sql, after)?.is_some_and(|at| at < too_old);
    if surplus == 0 && !is_old {
        return Ok((None, Some((count, head))));
    }
    let oldest = Oldest::of(db, floor, most)?;
    let beyond = oldest.nth(db, surplus)?;
    let too_old = oldest.before(StoreTime(too_old)).min(most);
    let old = oldest.nth(db, too_old)?;
    let old = match old.map(|old| retention.by_age(old)) {
        Some(old) => oldest.nth(db, 1)?.filter(|first| *first <= old).map(|_| old),
        None => None,
    };
    let Some(floor) = beyond.max(old) else { return Ok((None, Some((count, head)))) };
    let dropped = oldest.up_to(db, floor)?;
    let tx = db.unchecked_transaction()?;
    let to = floor.0 as i64;
    tx.execute("INSERT OR REPLACE INTO meta (name, value) VALUES ('floor', ?1)", params![to.to_string()])?;
    {
        let mut forget = tx.prepare_cached("DELETE FROM event_index WHERE hash = ?1 AND last = ?2")?;
        for (hash, last) in entries(&tx, 0, to, u64::MAX)? {
            forget.execute(params![hash, last])?;
        }
    }
    tx.execute("DELETE FROM event_batches WHERE last <= ?1", params![to])?;
    tx.commit()?;
    Ok((Some(floor), Some((count.saturating_sub(dropped), head))))
}

/// The oldest rows. Of the first of them, events may be gone.
struct Oldest {
    rows: Vec<Span>,
    /// How many events of the first row are at or below the floor.
    gone: u64,
}

impl Oldest {
    /// The rows that have the oldest `most` events above the floor.
    fn of(db: &Connection, floor: Revision, most: u64) -> Result<Self, StoreError> {
        let sql = "SELECT first, last, at_ms, count FROM event_batches WHERE last > ?1 ORDER BY last";
        let mut select = db.prepare_cached(sql)?;
        let mut found = select.query([floor.0 as i64])?;
        let mut oldest = Self { rows: Vec::new(), gone: 0 };
        let mut left = most;
        while left > 0
            && let Some(row) = found.next()?
        {
            let number = |n: usize| row.get::<_, i64>(n).map(|number| number as u64);
            let first = Revision(number(0)?);
            let last = Revision(number(1)?);
            let span = Span { first, last, at: StoreTime(number(2)?), count: number(3)? };
            left = left.saturating_sub(span.count);
            if oldest.rows.is_empty() {
                oldest.gone = up_to(db, &span, floor)?;
                left = left.saturating_add(oldest.gone).min(most);
            }
            oldest.rows.push(span);
        }
        Ok(oldest)
    }

    /// How many events there are up to the last one from before a time.
    fn before(&self, time: StoreTime) -> u64 {
        let rows = self.rows.iter().rposition(|row| row.at < time).map_or(0, |last| last + 1);
        self.rows[..rows].iter().map(|row| row.count).sum::<u64>().saturating_sub(self.gone)
    }

    /// How many events there are up to a revision.
    fn up_to(&self, db: &Connection, revision: Revision) -> Result<u64, StoreError> {
        let counts = self.rows.iter().map(|row| up_to(db, row, revision));
        Ok(counts.sum::<Result<u64, _>>()?.saturating_sub(self.gone))
    }

    /// The revision of the event number `n`, counted from 1; of the last one, if there are fewer. None for 0.
    fn nth(&self, db: &Connection, n: u64) -> Result<Option<Revision>, StoreError> {
        if n == 0 {
            return Ok(None);
        }
        let mut left = n + self.gone;
        for row in &self.rows {
            if left < row.count {
                return Ok(revisions(db, row)?.get(left as usize - 1).copied());
            }
            if left == row.count {
                return Ok(Some(row.last));
            }
            left -= row.count;
        }
        Ok(self.rows.last().map(|row| row.last))
    }
}

/// How many events of a row there are up to a revision.
fn up_to(db: &Connection, row: &Span, revision: Revision) -> Result<u64, StoreError> {
    if revision < row.first {
        return Ok(0);
    }
    if revision >= row.last {
        return Ok(row.count);
    }
    Ok(revisions(db, row)?.partition_point(|at| *at <= revision) as u64)
}

/// The revisions of a row's events. Decodes it only if a revision was skipped between them.
fn revisions(db: &Connection, row: &Span) -> Result<Vec<Revision>, StoreError> {
    if let Some(revisions) = row.without_gaps() {
        return Ok(revisions.map(Revision).collect());
    }
    let sql = format!("SELECT {BATCH_COLUMNS} FROM event_batches WHERE last = ?1");
    let mut select = db.prepare_cached(&sql)?;
    let mut found = select.query([row.last.0 as i64])?;
    let Some(found) = found.next()? else { return Ok(Vec::new()) };
    let batch = EventBatch::of(found)?;
    batch.split()?.into_iter().map(|event| Ok(batch.decode(event)?.revision)).collect()
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
