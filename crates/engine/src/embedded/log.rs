//! The append-only log.

use rusqlite::{Connection, TransactionBehavior, params};
use solehold_core::{key::Name, ledger::Ledger};

use super::unreadable;
use crate::{
    resident::{Entry, Image, Mark, RowId, Unfolded},
    store::{Cursor, Row, StoreError},
};

/// Rows in one line of the log: a line has a bound in SQLite, and a large import is one batch.
const LINE_ROWS_MAX: usize = 256;

/// Appends one batch and syncs it; tells how many bytes it took in the log.
pub(super) fn append(db: &mut Connection, entry: &Entry) -> Result<usize, StoreError> {
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut bytes = 0;
    {
        let sql = "INSERT INTO log (at_ms, revision, entry) VALUES (?1, ?2, ?3)";
        let mut insert = tx.prepare_cached(sql)?;
        for line in LogLine::all_of(entry) {
            let text = serde_json::to_string(&line).map_err(|e| unreadable("entry", e))?;
            insert.execute(params![entry.mark.now.0 as i64, entry.cursor.revision.0 as i64, text])?;
            bytes += text.len();
        }
        let sql = "INSERT INTO lease_events
            (revision, at_ms, event_type, tenant, kind, key, lease_id, holder, session_id, token, details, by_key)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
        let mut insert = tx.prepare_cached(sql)?;
        for event in &entry.events {
            let details = serde_json::to_string(&event.what).map_err(|e| unreadable("event", e))?;
            insert.execute(params![
                event.revision.0 as i64,
                event.at.0 as i64,
                event.name().as_str(),
                event.key.tenant.as_str(),
                event.key.kind.as_str(),
                event.key.key.as_str(),
                event.lease().map(|id| id.to_string()),
                event.holder().map(Name::as_str),
                event.session().map(|id| id.to_string()),
                event.token().map(|token| token.0 as i64),
                details,
                event.by.as_ref().map(Name::as_str),
            ])?;
        }
    }
    tx.commit()?;
    Ok(bytes)
}

/// What stands in one line of the log: an entry without its events, which stand in `lease_events`.
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

/// Replays the log over the snapshot; tells which rows the snapshot lacks, and how large the log is.
pub(super) fn replay(db: &Connection, image: &mut Image) -> Result<(Unfolded, usize), StoreError> {
    let mut select = db.prepare("SELECT seq, entry FROM log ORDER BY seq")?;
    let lines = select.query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)))?;
    let mut unfolded = Unfolded::default();
    let mut bytes = 0;
    let mut before: Option<i64> = None;
    for line in lines {
        let (seq, text) = line.map_err(|e| unreadable("log", e))?;
        // Numbers have no gaps: a missing entry was removed from outside.
        if before.is_some_and(|before| seq != before + 1) {
            return Err(unreadable(&format!("log entry {}", seq - 1), "missing"));
        }
        before = Some(seq);
        let OwnedLogLine { mark, cursor, rows, gone } =
            serde_json::from_str(&text).map_err(|e| unreadable(&format!("log entry {seq}"), e))?;
        bytes += text.len();
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
        unfolded.extend(dirty);
    }
    Ok((unfolded, bytes))
}
