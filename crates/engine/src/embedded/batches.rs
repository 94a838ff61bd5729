//! Rows of `event_batches`: the events of one batch as one JSON array, so that an append inserts one row for all of
//! them.
//!
//! All events of a row are of one time, so that a row is old or it is not. A batch is decided at one time; only an
//! import has events of many.

use rusqlite::{
    CachedStatement, Connection, Row as SqlRow, params,
    types::{ToSqlOutput, ValueRef},
};
use serde_json::value::RawValue;
use solehold_core::{
    event::Event,
    time::{Revision, StoreTime},
};

use super::unreadable;
use crate::store::StoreError;

/// Events in one row: a row has a bound in SQLite, a reader decodes whole rows, and a large import is one batch.
const ROW_EVENTS_MAX: u64 = 256;

/// A row gets no more events once it has this many bytes.
const ROW_BYTES_MAX: usize = 512 * 1024;

/// The columns that [`EventBatch::of`] reads.
pub(super) const BATCH_COLUMNS: &str = "last, first, count, events";

/// JSON as it was written, to be stored as text without copying it.
pub(super) fn as_text(json: &[u8]) -> ToSqlOutput<'_> {
    ToSqlOutput::Borrowed(ValueRef::Text(json))
}

/// Where a row of events stands in the history.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) first: Revision,
    pub(super) last: Revision,
    pub(super) at: StoreTime,
    pub(super) count: u64,
}

impl Span {
    /// The revisions of its events, if no revision was skipped between them.
    pub(super) fn without_gaps(&self) -> Option<std::ops::RangeInclusive<u64>> {
        let is_whole = self.last.0.checked_sub(self.first.0) == self.count.checked_sub(1);
        is_whole.then_some(self.first.0..=self.last.0)
    }
}

/// Writes events as rows, in order of revision.
pub(super) struct BatchWriter<'a> {
    insert: CachedStatement<'a>,
    /// The row that is being filled.
    row: Option<Span>,
    json: &'a mut Vec<u8>,
}

impl<'a> BatchWriter<'a> {
    /// A writer that encodes into `json`, whatever is in it.
    pub(super) fn new(db: &'a Connection, json: &'a mut Vec<u8>) -> Result<Self, StoreError> {
        let sql = "INSERT INTO event_batches (last, first, at_ms, count, events) VALUES (?1, ?2, ?3, ?4, ?5)";
        Ok(Self { insert: db.prepare_cached(sql)?, row: None, json })
    }

    pub(super) fn put(&mut self, event: &Event) -> Result<(), StoreError> {
        let json_bytes = self.json.len();
        let is_full =
            |row: &Span| row.at != event.at || row.count >= ROW_EVENTS_MAX || json_bytes >= ROW_BYTES_MAX;
        if self.row.as_ref().is_some_and(is_full) {
            self.finish()?;
        }
        let row = match &mut self.row {
            Some(row) => {
                self.json.push(b',');
                row
            }
            None => {
                self.json.clear();
                self.json.push(b'[');
                self.row.insert(Span { first: event.revision, last: event.revision, at: event.at, count: 0 })
            }
        };
        row.last = event.revision;
        row.count += 1;
        serde_json::to_writer(&mut *self.json, event).map_err(|e| unreadable("event", e))
    }

    /// Writes the row that is being filled.
    pub(super) fn finish(&mut self) -> Result<(), StoreError> {
        let Some(Span { first, last, at, count }) = self.row.take() else { return Ok(()) };
        self.json.push(b']');
        let numbers = [last.0, first.0, at.0, count].map(|number| number as i64);
        let [last, first, at, count] = numbers;
        self.insert.execute(params![last, first, at, count, as_text(self.json)])?;
        Ok(())
    }
}

/// A row of events that is being read.
pub(super) struct EventBatch<'a> {
    pub(super) last: i64,
    first: i64,
    count: i64,
    json: &'a str,
}

impl<'a> EventBatch<'a> {
    /// A row of [`BATCH_COLUMNS`].
    pub(super) fn of(row: &'a SqlRow<'_>) -> Result<Self, StoreError> {
        let last = row.get(0)?;
        let json = row.get_ref(3)?.as_str().map_err(|e| unreadable(&format!("events up to {last}"), e))?;
        Ok(Self { last, first: row.get(1)?, count: row.get(2)?, json })
    }

    fn unreadable(&self, error: impl std::fmt::Display) -> StoreError {
        unreadable(&format!("events {} to {}", self.first, self.last), error)
    }

    /// Whether any of its events may contain a text.
    pub(super) fn may_contain(&self, text: &str) -> bool {
        self.json.contains(text)
    }

    /// Its events, not decoded yet.
    pub(super) fn split(&self) -> Result<Vec<&'a RawValue>, StoreError> {
        let events: Vec<&RawValue> = serde_json::from_str(self.json).map_err(|e| self.unreadable(e))?;
        if events.len() as i64 != self.count {
            return Err(self.unreadable(format!("{} events in place of {}", events.len(), self.count)));
        }
        Ok(events)
    }

    pub(super) fn decode(&self, event: &RawValue) -> Result<Event, StoreError> {
        serde_json::from_str(event.get()).map_err(|e| self.unreadable(e))
    }
}
