//! Reads of a resident store, from a snapshot of the rows, which is cheap to keep.
//!
//! A reader holds the rows' lock only to take a share in them, and does everything else without it.
//! So neither a list nor a snapshot nor an export, of whatever size, is ever in the way of a batch. What takes long is
//! done on threads of its own, a few at a time, so that batches find a processor, too.

use std::sync::Arc;

use solehold_core::{
    command::Footprint,
    key::ResourceKey,
    lease::Resource,
    ledger::Ledger,
    session::Session,
    time::{Revision, StoreTime},
};

use super::{ResidentStore, Rows, find};
use crate::{flow::Exporter, store::*};

pub(super) const READERS_MAX: usize = 2;

/// All rows as they were at one moment. Clones share them.
#[derive(Clone)]
pub(super) struct Snapshot {
    pub(super) state: Arc<Ledger>,
    pub(super) now: StoreTime,
    pub(super) cursor: Cursor,
    barred_until: StoreTime,
    pub(super) floor: Revision,
}

impl Snapshot {
    fn loaded(&self, state: Ledger) -> LoadedRows {
        LoadedRows { state, now: self.now, cursor: self.cursor, barred_until: self.barred_until }
    }

    pub(super) fn found(&self, indexed: Option<&[ResourceKey]>, query: &ResourceQuery) -> ResourcePage {
        let (keys, more) = find::resources(&self.state, indexed, query, self.now);
        let footprint = Footprint { resources: keys.clone(), ..Default::default() };
        let state = find::part(&self.state, &footprint);
        ResourcePage { loaded: self.loaded(state), keys, more }
    }

    pub(super) fn found_holders(&self, query: &HolderQuery) -> HolderPage {
        let (keys, more) = find::holders(&self.state, query);
        let footprint = Footprint { holders: keys.clone(), ..Default::default() };
        let state = find::part(&self.state, &footprint);
        HolderPage { loaded: self.loaded(state), keys, more }
    }

    /// All rows as lines of an export, except waiters: they submit their requests again.
    pub(super) async fn give_rows(&self, out: &mut Exporter) -> Result<(), StoreError> {
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
            out.put(Row::Request { request, spent: spent.clone() }).await?;
        }
        for record in self.state.records() {
            out.put(Row::Record(record.clone())).await?;
        }
        Ok(())
    }
}

impl ResidentStore {
    pub(super) fn snapshot(&self) -> Snapshot {
        self.snapshot_of(&self.read())
    }

    pub(super) fn snapshot_of(&self, rows: &Rows) -> Snapshot {
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
    pub(super) async fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        if !self.options.reads_aside {
            return Ok(work());
        }
        let turn = self.readers.clone().acquire_owned().await;
        let turn = turn.map_err(|_| StoreError::Unavailable("the store is closed".to_owned()))?;
        let done = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        done.await.map_err(|e| StoreError::Unusable(format!("reading the rows failed: {e}")))
    }
}
