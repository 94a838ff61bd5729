//! The append-only log.

use rusqlite::{Connection, TransactionBehavior, params};
use solehold_core::ledger::Ledger;

use super::{
    batches::{BatchWriter, as_text},
    unreadable,
};
use crate::{
    resident::{Entry, Image, Mark, RowId, Unfolded},
    store::{Cursor, Row, StoreError},
};

/// Rows in one line of the log: a line has a bound in SQLite, and a large import is one batch.
const LINE_ROWS_MAX: usize = 256;

/// Appends one batch and syncs it, as lines after number `seq`; returns the number of the last line, and how many bytes
/// they take. Encodes into `json`, whatever is in it.
pub(super) fn append(
    db: &mut Connection,
    entry: &Entry,
    mut seq: i64,
    json: &mut Vec<u8>,
) -> Result<(i64, usize), StoreError> {
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut bytes = 0;
    {
        let mut insert = tx.prepare_cached("INSERT INTO log (seq, entry) VALUES (?1, ?2)")?;
        for line in LogLine::all_of(entry) {
            json.clear();
            serde_json::to_writer(&mut *json, &line).map_err(|e| unreadable("entry", e))?;
            seq += 1;
            insert.execute(params![seq, as_text(json)])?;
            bytes += json.len();
        }
        let mut batches = BatchWriter::new(&tx, json)?;
        for event in &entry.events {
            batches.put(event)?;
        }
        batches.finish()?;
    }
    tx.commit()?;
    Ok((seq, bytes))
}

/// What stands in one line of the log: an entry without its events, which stand in `event_batches`.
#[derive(serde::Serialize)]
struct LogLine<'a> {
    mark: &'a Mark,
    cursor: Cursor,
    rows: &'a [Row],
    gone: &'a [RowId],
}

#[derive(serde::Deserialize)]
struct OwnedLogLine {
    mark: Mark,
    cursor: Cursor,
    rows: Vec<Row>,
    gone: Vec<RowId>,
}

impl<'a> LogLine<'a> {
    /// The lines of an entry: what is gone first, then the rows. An entry without either still tells the time.
    fn all_of(entry: &'a Entry) -> impl Iterator<Item = Self> {
        let line = |rows, gone| Self { mark: &entry.mark, cursor: entry.cursor, rows, gone };
        let (first, rest) = entry.rows.split_at(entry.rows.len().min(LINE_ROWS_MAX));
        let more = rest.chunks(LINE_ROWS_MAX).map(move |rows| line(rows, &[][..]));
        std::iter::once(line(first, &entry.gone)).chain(more)
    }
}

/// The log as it was replayed.
#[derive(Default)]
pub(super) struct Replayed {
    /// Rows that the log has and the snapshot lacks.
    pub(super) unfolded: Unfolded,
    pub(super) bytes: usize,
    /// The number of its last line; 0 if it is empty.
    pub(super) seq: i64,
}

/// Replays the log over the snapshot.
pub(super) fn replay(db: &Connection, image: &mut Image) -> Result<Replayed, StoreError> {
    let mut select = db.prepare("SELECT seq, entry FROM log ORDER BY seq")?;
    let lines = select.query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)))?;
    let mut replayed = Replayed::default();
    let mut before: Option<i64> = None;
    for line in lines {
        let (seq, text) = line.map_err(|e| unreadable("log", e))?;
        // Numbers have no gaps: a missing entry was removed from outside.
        if before.is_some_and(|before| seq != before + 1) {
            return Err(unreadable(&format!("log entry {}", seq - 1), "missing"));
        }
        before = Some(seq);
        replayed.seq = seq;
        let OwnedLogLine { mark, cursor, rows, gone } =
            serde_json::from_str(&text).map_err(|e| unreadable(&format!("log entry {seq}"), e))?;
        replayed.bytes += text.len();
        let entry = Entry { mark, cursor, rows, gone, events: Vec::new() };
        let dirty = entry.dirty();
        let mut part = Ledger::default();
        for row in entry.rows {
            row.load_into(&mut part);
        }
        image.state.absorb(&part, &dirty);
        image.cursor = entry.cursor;
        if image.mark.as_ref().is_none_or(|m| m.now <= entry.mark.now) {
            image.mark = Some(entry.mark);
        }
        replayed.unfolded.extend(dirty);
    }
    Ok(replayed)
}
