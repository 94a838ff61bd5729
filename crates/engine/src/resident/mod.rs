//! Stores that keep all rows in memory: `memory`, which forgets, and `embedded`, which journals every batch first.
//!
//! ```text
//!   transact -> decide in a layer over the rows -> journal (fsync) -> absorb the layer into the rows -> answer
//! ```
//! A store keeps its rows, and a [`Journal`] from which they can be loaded. Memory changes only after the journal has
//! the batch (rule 24).
//!
//! | state | entered | left by | while in it |
//! |---|---|---|---|
//! | set back | at the start, if the journal is older than the history, or a copy | the first turn: another history begins (rule 23) | nothing is read or decided |
//! | unfolded | at the start, if the disk is full | the first turn to write that can fold | reads only |
//! | ready | | | |
//! | behind | an append that failed or was dropped halfway | the next turn: the rows are loaded from the journal again | nothing is read or decided |
//! | closed | [`close`](crate::store::Store::close) | | nothing is decided |
//!
//! | what | is changed by |
//! |---|---|
//! | the states above | `turn`, for the one writer at a time; `store` closes |
//! | the journal | who has the turn: `turn` loads, appends and folds; in `store`, `maintain` drops events, `import` sets the floor, `close` closes |
//! | the rows | who has the turn, after the journal: `turn`; in `store`, `maintain` drops events from memory |
//! | `timers`, a part of the rows | as the rows; and by `due` in `store`, under the rows' lock alone: they only say when to look again |
//!
//! - `store` implements [`Store`](crate::store::Store); `reading` and `find` serve readers without a turn.
//! - `set_back` begins another history, and retires a store; `restart` moves deadlines over a restart (rule 3).
//! - `rows` are the rows with what is derived from them: `timers` for the sweeper, `tally` for the usage.

mod find;
mod journal;
mod reading;
mod restart;
mod rows;
mod set_back;
mod store;
mod tally;
mod timers;
mod turn;

use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic::AtomicBool};

use solehold_core::{limits, time::StoreTime};
use tokio::sync::{Mutex, Semaphore, watch};

pub use journal::{Entry, Fold, Image, Journal, JournaledEvents, Mark, NoJournal, RowId, SetBack, Unfolded};

use crate::{
    clock::{BootClock, BootTime, Clock, boot_id},
    history::{Seal, TTL_MAX_MS},
    store::{Cursor, StoreError},
};
use rows::Rows;
use turn::{JournaledRows, WriteTurn};

/// Events that are kept in memory; older ones are read from the journal.
pub(crate) const WINDOW_EVENTS: usize = 16_384;

/// A store that keeps all rows in memory, over a journal.
pub struct ResidentStore {
    name: &'static str,
    clock: Box<dyn Clock>,
    boot_id: String,
    /// Unlike other locks here, a panic poisons it: the rows may be half changed then, and are loaded from the journal
    /// again before they are read.
    rows: RwLock<Rows>,
    /// One transaction at a time; also guards the journal.
    turn: Mutex<WriteTurn>,
    /// The rows may be stale (set back, or behind): readers take a turn first, which loads them again.
    has_failed: AtomicBool,
    /// Why the journal could not be written when that was last tried; none if it could.
    unwritable: parking_lot::Mutex<Option<String>>,
    head: watch::Sender<Cursor>,
    /// Events that are no longer in memory.
    history: Option<Arc<dyn JournaledEvents>>,
    /// Bounds the readers that walk through all rows at the same time.
    readers: Arc<Semaphore>,
    options: ResidentOptions,
    /// Seals cursors; none if its key could not be stored.
    seal: Option<Seal>,
}

/// How a resident store is opened.
#[derive(Debug, Clone, Copy)]
pub struct ResidentOptions {
    /// The longest ttl that the store grants: after it was set back, it grants nothing for this long (rule 23).
    pub ttl_max_ms: u64,
    /// Whether long reads have threads of their own. Not in a simulation: what a thread does has no place in its order.
    pub reads_aside: bool,
}

impl Default for ResidentOptions {
    fn default() -> Self {
        Self { ttl_max_ms: TTL_MAX_MS, reads_aside: true }
    }
}

/// A store for tests: its rows end with its process.
pub fn memory(clock: impl Clock) -> Result<Arc<ResidentStore>, StoreError> {
    // A store that keeps nothing cannot be set back.
    let options = ResidentOptions { ttl_max_ms: limits::TTL_MS_MAX, ..ResidentOptions::default() };
    ResidentStore::open("memory", Box::new(NoJournal), Box::new(clock), options)
}

/// As [`memory`], for a simulation in one thread.
pub fn simulated(clock: impl Clock) -> Result<Arc<ResidentStore>, StoreError> {
    let options = ResidentOptions { ttl_max_ms: limits::TTL_MS_MAX, reads_aside: false };
    ResidentStore::open("memory", Box::new(NoJournal), Box::new(clock), options)
}

impl ResidentStore {
    /// Opens a store over a journal of this machine's disk.
    pub fn embedded(journal: impl Journal) -> Result<Arc<Self>, StoreError> {
        Self::embedded_with(journal, BootClock, ResidentOptions::default())
    }

    /// As [`Self::embedded`], with another clock (for tests) and options.
    pub fn embedded_with(
        journal: impl Journal,
        clock: impl Clock,
        options: ResidentOptions,
    ) -> Result<Arc<Self>, StoreError> {
        Self::open("embedded", Box::new(journal), Box::new(clock), options)
    }

    fn open(
        name: &'static str,
        mut journal: Box<dyn Journal>,
        clock: Box<dyn Clock>,
        options: ResidentOptions,
    ) -> Result<Arc<Self>, StoreError> {
        let boot_id = boot_id();
        let at_least = |_| StoreTime::default();
        let JournaledRows { rows, unwritable, set_back } =
            turn::load(&mut *journal, &*clock, at_least, &boot_id).map_err(|error| match error {
                StoreError::Unknown(what) => StoreError::Unusable(what),
                other => other,
            })?;
        let marked = rows.since.1;
        if set_back.is_none() && unwritable.is_none() {
            turn::adopt(&mut *journal, rows.since.0);
        }
        let seal = journal.seal();
        if let Err(error) = &seal {
            tracing::warn!(%error, "cannot store the key that seals cursors; holders get none until the next start");
        }
        let store = Self {
            name,
            clock,
            boot_id,
            // A cursor of the lost history must not be read either, before the revision has jumped.
            has_failed: AtomicBool::new(set_back.is_some()),
            unwritable: parking_lot::Mutex::default(),
            head: watch::Sender::new(rows.cursor),
            history: journal.history(),
            rows: RwLock::new(rows),
            turn: Mutex::new(WriteTurn {
                journal,
                is_behind: false,
                is_unfolded: unwritable.is_some(),
                set_back,
                is_closed: false,
                marked,
            }),
            readers: Arc::new(Semaphore::new(reading::READERS_MAX)),
            options,
            seal: seal.ok(),
        };
        store.note_written(unwritable);
        Ok(Arc::new(store))
    }

    fn read(&self) -> RwLockReadGuard<'_, Rows> {
        self.rows.read().unwrap_or_else(|e| e.into_inner())
    }

    fn write(&self) -> RwLockWriteGuard<'_, Rows> {
        self.rows.write().unwrap_or_else(|e| e.into_inner())
    }

    fn mark(&self, now: StoreTime, tick: BootTime) -> Mark {
        self.mark_of(&self.read(), now, tick)
    }

    fn mark_of(&self, rows: &Rows, now: StoreTime, tick: BootTime) -> Mark {
        Mark {
            now,
            boot_id: self.boot_id.clone(),
            tick_ms: tick.as_ms(),
            barred_until: rows.barred_until,
            retired_to: rows.retired_to.clone(),
        }
    }
}

impl std::fmt::Debug for ResidentStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resident").field("name", &self.name).field("cursor", &self.read().cursor).finish()
    }
}
