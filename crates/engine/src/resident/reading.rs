//! Reads of a resident store, from a snapshot of the rows, which is cheap to keep.
//!
//! A reader holds the rows' lock only to take a share in them, and does everything else without it.
//! So neither a list nor a snapshot nor an export, of whatever size, is ever in the way of a batch. What takes long is
//! done on threads of its own, a few at a time, so that batches find a processor, too.

use std::{collections::VecDeque, sync::Arc};

use solehold_core::{
    command::Footprint,
    event::Event,
    key::ResourceKey,
    lease::Resource,
    ledger::Ledger,
    session::Session,
    time::{Revision, StoreTime},
};

use super::{ResidentStore, Rows, find};
use crate::{
    flow::{Exporter, Outlet},
    store::*,
};

/// Readers that walk through rows at once.
pub(super) const READERS_MAX: usize = 2;

/// All rows as they were at one moment. Clones share them.
#[derive(Clone)]
pub(super) struct Snapshot {
    pub(super) state: Arc<Ledger>,
    now: StoreTime,
    cursor: Cursor,
    barred_until: StoreTime,
    floor: Revision,
}

impl Snapshot {
    fn loaded(&self, state: Ledger) -> LoadedRows {
        LoadedRows { state, now: self.now, cursor: self.cursor, barred_until: self.barred_until }
    }

    fn found(&self, indexed: Option<&[ResourceKey]>, query: &ResourceQuery) -> ResourcePage {
        let (keys, more) = find::resources(&self.state, indexed, query, self.now);
        let footprint = Footprint { resources: keys.clone(), ..Default::default() };
        let state = find::part(&self.state, &footprint, &find::LateRows::default());
        ResourcePage { loaded: self.loaded(state), keys, more }
    }

    fn found_holders(&self, query: &HolderQuery) -> HolderPage {
        let (keys, more) = find::holders(&self.state, query);
        let footprint = Footprint { holders: keys.clone(), ..Default::default() };
        let state = find::part(&self.state, &footprint, &find::LateRows::default());
        HolderPage { loaded: self.loaded(state), keys, more }
    }

    /// All rows as lines of an export, except waiters: they submit their requests again.
    async fn give_rows(&self, out: &mut Exporter) -> Result<(), StoreError> {
        for session in self.state.sessions().filter(|s| !s.is_room()) {
            out.put(Row::Session(Session { waiting: 0, ..session.clone() })).await?;
        }
        for holder in self.state.holders() {
            out.put(Row::Holder(holder.clone())).await?;
        }
        for resource in self.state.resources() {
            out.put(Row::Resource(Resource { queued: 0, ..resource.clone() })).await?;
        }
        for (request, spent) in self.state.requests() {
            out.put(Row::Request { request: request.clone(), spent: spent.clone() }).await?;
        }
        for record in self.state.records() {
            out.put(Row::Record(record.clone())).await?;
        }
        Ok(())
    }
}

impl ResidentStore {
    /// The rows as they are now.
    pub(super) fn snapshot(&self) -> Snapshot {
        self.snapshot_of(&self.read())
    }

    fn snapshot_of(&self, rows: &Rows) -> Snapshot {
        let now = rows.now(self.clock.now());
        Snapshot {
            state: Arc::new(rows.state.rows()),
            now,
            cursor: rows.cursor,
            barred_until: rows.barred_until,
            floor: rows.floor,
        }
    }

    /// Does what may take long on a thread of its own, when it is its turn.
    async fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let turn = self.readers.clone().acquire_owned().await;
        let turn = turn.map_err(|_| StoreError::Unavailable("the store is closed".to_owned()))?;
        let done = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        done.await.map_err(|e| StoreError::Unusable(format!("reading the rows failed: {e}")))
    }

    pub(super) async fn find(&self, query: &ResourceQuery) -> Result<ResourcePage, StoreError> {
        let (snapshot, indexed) = {
            let rows = self.read();
            (self.snapshot_of(&rows), find::indexed(&rows.state, query))
        };
        let query = query.clone();
        match indexed {
            // As few as one holder or session has.
            Some(keys) => Ok(snapshot.found(Some(&keys), &query)),
            None => self.aside(move || snapshot.found(None, &query)).await,
        }
    }

    pub(super) async fn find_names(&self, query: &HolderQuery) -> Result<HolderPage, StoreError> {
        let snapshot = self.snapshot();
        let query = query.clone();
        self.aside(move || snapshot.found_holders(&query)).await
    }

    pub(super) async fn scan_all(
        &self,
        query: &ResourceQuery,
        pages: &Outlet<ResourcePage>,
    ) -> Result<(), StoreError> {
        let snapshot = self.snapshot();
        let mut query = query.clone();
        loop {
            let of = snapshot.clone();
            let asked = query.clone();
            let page = self.aside(move || of.found(None, &asked)).await?;
            query.after = page.keys.last().cloned();
            let more = page.more;
            pages.give(page).await?;
            if !more {
                return Ok(());
            }
        }
    }

    pub(super) async fn export_all(&self, out: &mut Exporter) -> Result<(), StoreError> {
        let (snapshot, in_memory, retired) = {
            let rows = self.read();
            let in_memory = if self.history.is_none() { rows.events.clone() } else { VecDeque::new() };
            (self.snapshot_of(&rows), in_memory, rows.retired_to.is_some())
        };
        let Cursor { epoch, revision } = snapshot.cursor;
        let (floor, mut older) = match &self.history {
            Some(history) => {
                let (floor, events) = history.all(revision).await?;
                (floor.max(snapshot.floor), Some(events))
            }
            None => (snapshot.floor, None),
        };
        let now = snapshot.now;
        let header = Header { format: EXPORT_FORMAT, now, revision, epoch, floor, retired };
        out.put(Row::Header(header)).await?;
        snapshot.give_rows(out).await?;
        let is_kept = |event: &Event| event.revision > floor && event.revision <= revision;
        match &mut older {
            Some(older) => {
                while let Some(events) = older.next().await {
                    for event in events?.into_iter().filter(is_kept) {
                        out.put(Row::Event(event)).await?;
                    }
                }
            }
            None => {
                for event in in_memory.into_iter().filter(is_kept) {
                    out.put(Row::Event(event)).await?;
                }
            }
        }
        Ok(())
    }

    pub(super) async fn read_events(&self, query: &EventQuery) -> Result<EventPage, StoreError> {
        let (history, floor, head) = {
            let rows = self.read();
            match &self.history {
                Some(history) if query.after < rows.window_floor() => {
                    (history.clone(), rows.floor, rows.cursor)
                }
                // At most as many as the window has are looked at.
                _ => {
                    let events = find::events(&rows.events, query);
                    return Ok(EventPage { events, floor: rows.floor, head: rows.cursor });
                }
            }
        };
        let (mut events, dropped) = history.events(query).await?;
        // What was written meanwhile is told when it was taken over.
        events.retain(|event| event.revision <= head.revision);
        Ok(EventPage { events, floor: floor.max(dropped), head })
    }
}
