//! Events of a data folder of schema 3 or older, which had one row for each.

use rusqlite::{Connection, Row as SqlRow, params};
use solehold_core::{
    event::Event,
    key::{Name, ResourceKey},
    time::{Revision, StoreTime},
};

use super::{batches::BatchWriter, unreadable};
use crate::store::StoreError;

/// Events that are moved before their old rows are deleted, which gives their pages to the rows of the next ones.
const EVENTS_AT_ONCE: usize = 10_000;

/// Moves all events from `old_events` into `event_batches`, and drops the old table.
pub(super) fn move_events(db: &Connection) -> Result<(), StoreError> {
    let mut json = Vec::new();
    {
        let mut batches = BatchWriter::new(db, &mut json)?;
        let sql = "SELECT revision, at_ms, tenant, kind, key, details, by_key FROM old_events
            ORDER BY revision LIMIT ?1";
        let mut select = db.prepare(sql)?;
        let mut delete = db.prepare("DELETE FROM old_events WHERE revision <= ?1")?;
        loop {
            let mut last = None;
            let mut rows = select.query(params![EVENTS_AT_ONCE as i64])?;
            while let Some(row) = rows.next()? {
                let event = event(row)?;
                batches.put(&event)?;
                last = Some(event.revision);
            }
            drop(rows);
            let Some(last) = last else { break };
            delete.execute(params![last.0 as i64])?;
        }
        batches.finish()?;
    }
    Ok(db.execute_batch("DROP TABLE old_events")?)
}

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
        key: ResourceKey::new(name(text(2)?)?, name(text(3)?)?, name(text(4)?)?),
        by: by.map(name).transpose()?,
        holder_session: None,
        what: serde_json::from_str(&text(5)?).map_err(|e| unreadable(&place, e))?,
    })
}
