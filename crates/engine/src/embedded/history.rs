//! Reading the history of events, on connections of its own: SQLite lets readers read while the journal appends.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use rusqlite::{Connection, OpenFlags};
use solehold_core::{event::Event, time::Revision};

use super::{trail, with};
use crate::{
    flow::Flow,
    resident::JournaledEvents,
    store::{EventQuery, StoreError},
};

/// Events that are read at a time.
const EVENTS_AT_ONCE: usize = 500;

pub(super) struct Reader {
    file: PathBuf,
    /// None once the folder is closed.
    db: Arc<Mutex<Option<Connection>>>,
}

impl Reader {
    pub(super) fn open(file: &Path) -> Result<Self, StoreError> {
        let db = connect(file)?;
        Ok(Self { file: file.to_owned(), db: Arc::new(Mutex::new(Some(db))) })
    }

    pub(super) fn close(&self) {
        self.db.lock().take();
    }
}

fn connect(file: &Path) -> Result<Connection, StoreError> {
    let db = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    db.set_prepared_statement_cache_capacity(16);
    Ok(db)
}

/// Works on a thread that may wait for the disk.
async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|e| StoreError::Unavailable(format!("cannot read the event history: {e}")))?
}

#[async_trait]
impl JournaledEvents for Reader {
    async fn events(&self, query: &EventQuery) -> Result<(Vec<Event>, Revision), StoreError> {
        let db = self.db.clone();
        let query = query.clone();
        aside(move || {
            with(&db, |db| {
                // One snapshot: what is dropped meanwhile is either in the page or below the floor.
                let tx = db.transaction()?;
                let floor = trail::floor(&tx)?;
                Ok((trail::read(&tx, &query, floor)?, floor))
            })
        })
        .await
    }

    async fn all(&self, up_to: Revision) -> Result<(Revision, Flow<Vec<Event>>), StoreError> {
        let file = self.file.clone();
        let (mut db, floor) = aside(move || {
            let db = connect(&file)?;
            db.execute_batch("BEGIN")?;
            let floor = trail::floor(&db)?;
            Ok((db, floor))
        })
        .await?;
        let flow = Flow::of(async move |outlet| {
            let mut query = EventQuery { limit: EVENTS_AT_ONCE, ..Default::default() };
            while query.after < up_to {
                let asked = query.clone();
                let events;
                (db, events) =
                    aside(move || trail::read(&db, &asked, floor).map(|events| (db, events))).await?;
                let Some(last) = events.last() else { break };
                query.after = last.revision;
                outlet.give(events).await?;
            }
            Ok(())
        });
        Ok((floor, flow))
    }
}
