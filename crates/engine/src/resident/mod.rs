//! Stores that keep all rows in memory: `memory`, which forgets, and `embedded`, which journals every batch first.
//!
//! ```text
//!   transact -> part of the rows -> decide -> journal (fsync) -> absorb into the rows -> answer
//! ```
//! Memory changes only after the journal has the batch (rule 24). A journal that fails makes the outcome unknown; the
//! rows are then loaded from it anew before anything else is decided.

mod find;
mod journal;
mod reading;
mod restart;
mod rows;
mod set_back;
mod tally;
mod timers;

use std::{
    sync::{
        Arc, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use solehold_core::{
    command::Footprint,
    forget,
    key::Name,
    ledger::{Dirty, Ledger},
    limits,
    record::Record,
    time::{Moment, Revision, StoreTime},
};
use tokio::sync::{Mutex, Semaphore, watch};

pub use journal::{Entry, History, Image, Journal, Mark, NoJournal, RowId, SetBack};

use crate::{
    clock::{BootClock, BootTime, Clock, boot_id, wall_ms},
    flow::{Exporter, Outlet},
    history::{self, Bar, Seal, SealedPoint, TTL_MAX_MS},
    observe::Lane,
    store::*,
};
use rows::Rows;
use tally::Tally;
use timers::Timers;

/// Events that are kept in memory; older ones are read from the journal.
pub(crate) const WINDOW_EVENTS: usize = 16_384;
/// How often the clock's mark is persisted while nothing happens.
const MARK_EVERY: Duration = Duration::from_secs(1);
/// How long [`Store::news`] waits at most.
const NEWS_WAIT: Duration = Duration::from_secs(1);
/// Rows that are forgotten in one round at most: batches come in between.
const FORGET_MAX: usize = 5_000;
/// Rounds in one call, so that forgetting keeps up with whatever can be released.
const FORGET_ROUNDS_MAX: usize = 50;

/// A store that keeps all rows in memory, over a journal.
pub struct ResidentStore {
    name: &'static str,
    clock: Box<dyn Clock>,
    /// Which boot this is; the kernel is asked once.
    boot_id: String,
    /// A lock that is poisoned by a panic, unlike those elsewhere: the rows may be half changed then, and are loaded
    /// anew from the journal before anyone reads them.
    rows: RwLock<Rows>,
    /// One transaction at a time; also guards the journal.
    turn: Mutex<Turn>,
    /// The journal has failed, and the rows were not loaded anew since: nobody is shown rows that may be stale.
    has_failed: AtomicBool,
    head: watch::Sender<Cursor>,
    /// Events that are no longer in memory.
    history: Option<Arc<dyn History>>,
    /// Those who walk through rows take turns.
    readers: Arc<Semaphore>,
    options: ResidentOptions,
    /// What cursors are sealed with; nothing, if it could not be kept.
    seal: Option<Seal>,
}

/// How a resident store is opened.
#[derive(Debug, Clone, Copy)]
pub struct ResidentOptions {
    /// The longest ttl that it may grant: after the store was set back, nothing is granted for this long (rule 23).
    pub ttl_max_ms: u64,
}

impl Default for ResidentOptions {
    fn default() -> Self {
        Self { ttl_max_ms: TTL_MAX_MS }
    }
}

struct Turn {
    journal: Box<dyn Journal>,
    /// The rows may lack what the journal has: load them anew.
    is_behind: bool,
    /// The journal lacks what a start has changed: there was no room for it.
    is_unfolded: bool,
    /// The journal was set back since it was last open, and those who hold a lost lease are still to be waited out.
    set_back: Option<SetBack>,
    is_closed: bool,
    marked: BootTime,
}

/// A store for tests and simulations: it forgets everything with its process.
pub fn memory(clock: impl Clock) -> Result<Arc<ResidentStore>, StoreError> {
    // Nothing can be set back that is not kept.
    let options = ResidentOptions { ttl_max_ms: limits::TTL_MS_MAX };
    ResidentStore::open("memory", Box::new(NoJournal), Box::new(clock), options)
}

impl ResidentStore {
    /// Opens a store over a journal of this machine's disk.
    pub fn embedded(journal: impl Journal) -> Result<Arc<Self>, StoreError> {
        Self::embedded_with(journal, BootClock, ResidentOptions::default())
    }

    /// The same with a clock from elsewhere, for tests, and with options.
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
        let (tick, boot_id) = (clock.now(), boot_id());
        let JournaledRows { rows, is_unfolded, set_back } =
            load(&mut *journal, tick, StoreTime::default(), &boot_id).map_err(|error| match error {
                StoreError::Unknown(what) => StoreError::Unusable(what),
                other => other,
            })?;
        if set_back.is_none() && !is_unfolded {
            adopt(&mut *journal, rows.since.0);
        }
        let seal = journal.seal();
        if let Err(error) = &seal {
            tracing::warn!(%error, "holders get no sealed cursors until the next start");
        }
        let head = watch::Sender::new(rows.cursor);
        let history = journal.history();
        // Nobody reads, either, before the revision has jumped: a cursor of the lost history must not go on here.
        let has_failed = AtomicBool::new(set_back.is_some());
        let is_closed = false;
        let turn =
            Mutex::new(Turn { journal, is_behind: false, is_unfolded, set_back, is_closed, marked: tick });
        let (rows, readers) = (RwLock::new(rows), Arc::new(Semaphore::new(reading::READERS_MAX)));
        let seal = seal.ok();
        Ok(Arc::new(Self {
            name,
            clock,
            boot_id,
            rows,
            turn,
            has_failed,
            head,
            history,
            readers,
            options,
            seal,
        }))
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

    /// Waits for its turn, with rows that are those of the journal.
    async fn take_turn(&self) -> Result<tokio::sync::MutexGuard<'_, Turn>, StoreError> {
        let mut turn = self.turn.lock().await;
        if turn.is_closed {
            return Err(StoreError::Unavailable("the store is closed".to_owned()));
        }
        if turn.is_behind {
            self.has_failed.store(true, Ordering::SeqCst);
            self.catch_up(&mut turn)?;
        }
        if let Some(set_back) = turn.set_back.clone() {
            self.has_failed.store(true, Ordering::SeqCst);
            tracing::warn!(why = set_back.why, "the data folder is not as it was left");
            let now = self.jump(&mut turn, set_back.seen, None).await.map_err(nothing_done)?;
            turn.set_back = None;
            adopt(&mut *turn.journal, now);
        }
        Ok(turn)
    }

    /// Waits for its turn to write.
    async fn take_turn_to_write(&self) -> Result<tokio::sync::MutexGuard<'_, Turn>, StoreError> {
        let mut turn = self.take_turn().await?;
        if turn.is_unfolded {
            self.fold(&mut turn).map_err(nothing_done)?;
            turn.is_unfolded = false;
            tracing::info!("the journal has room again");
        }
        Ok(turn)
    }

    /// Brings the journal's snapshot up to date with all rows.
    fn fold(&self, turn: &mut Turn) -> Result<(), StoreError> {
        let tick = self.clock.now();
        let rows = self.read();
        turn.journal.fold(&rows.state, Dirty::default(), self.mark_of(&rows, rows.now(tick), tick))
    }

    /// Loads the rows anew after the journal failed. Nothing was done yet, so that nothing is unknown by failing again.
    fn catch_up(&self, turn: &mut Turn) -> Result<(), StoreError> {
        let tick = self.clock.now();
        let at_least = self.read().now(tick);
        let JournaledRows { rows, is_unfolded, .. } =
            load(&mut *turn.journal, tick, at_least, &self.boot_id).map_err(nothing_done)?;
        self.head.send_replace(rows.cursor);
        *self.write() = rows;
        self.rows.clear_poison();
        (turn.is_behind, turn.is_unfolded) = (false, is_unfolded);
        self.has_failed.store(false, Ordering::SeqCst);
        tracing::info!("the rows were loaded anew from the journal");
        Ok(())
    }

    /// For readers: rows that are those of the journal, as far as is known. They do not wait for a batch under way.
    async fn settled(&self) -> Result<(), StoreError> {
        self.settled_or_retired().await?;
        self.read().check_retired()
    }

    /// As [`Self::settled`], of a store that may have been retired.
    async fn settled_or_retired(&self) -> Result<(), StoreError> {
        if self.has_failed.load(Ordering::SeqCst) || self.rows.is_poisoned() {
            drop(self.take_turn().await?);
        }
        Ok(())
    }

    /// Journals a batch that was decided at `now`, read at `tick`, then takes it over.
    async fn commit(
        &self,
        turn: &mut Turn,
        part: &Ledger,
        dirty: Dirty,
        (now, tick): (StoreTime, BootTime),
        decided: &BatchDecision,
    ) -> Result<(), StoreError> {
        let entry = Entry::new(part, &dirty, self.mark(now, tick), decided, self.read().cursor.epoch);
        self.append(turn, entry, |rows| rows.absorb(part, &dirty, decided)).await
    }

    /// Journals an entry, then takes it over.
    async fn append(
        &self,
        turn: &mut Turn,
        entry: Entry,
        take_over: impl FnOnce(&mut Rows),
    ) -> Result<(), StoreError> {
        let (barred_until, retired_to) = (entry.mark.barred_until, entry.mark.retired_to.clone());
        // If this is dropped halfway, or panics, it stays so: the journal may have what the rows lack.
        turn.is_behind = true;
        let appended = turn.journal.append(entry).await;
        self.has_failed.store(appended.is_err(), Ordering::SeqCst);
        appended?;
        let mut rows = self.write();
        (rows.barred_until, rows.retired_to) = (barred_until, retired_to);
        take_over(&mut rows);
        self.head.send_replace(rows.cursor);
        turn.is_behind = false;
        Ok(())
    }

    /// Forgets rows that are over; tells how many.
    async fn forget_some(&self) -> Result<usize, StoreError> {
        let mut turn = self.take_turn_to_write().await?;
        let tick = self.clock.now();
        let (now, mut part, revision) = {
            let rows = self.read();
            let now = rows.now(tick);
            (now, rows.timers.forgettable(&rows.state, now, FORGET_MAX), rows.cursor.revision)
        };
        forget(&mut part, now);
        let dirty = part.take_dirty();
        let count = dirty.requests.len() + dirty.resources.len();
        if count > 0 {
            let decided = BatchDecision { events: Vec::new(), revision };
            self.commit(&mut turn, &part, dirty, (now, tick), &decided).await?;
        }
        Ok(count)
    }
}

/// Without it, the next start finds out less, or bars once more.
fn adopt(journal: &mut dyn Journal, now: StoreTime) {
    if let Err(error) = journal.adopt(now) {
        tracing::warn!(%error, "the data folder cannot be told from a copy of it until the next start");
    }
}

/// Before anything was done, a journal that fails makes nothing unknown.
fn nothing_done(error: StoreError) -> StoreError {
    match error {
        StoreError::Unknown(what) => StoreError::Unavailable(what),
        other => other,
    }
}

/// The rows of a journal, and what is special about them.
struct JournaledRows {
    rows: Rows,
    /// What has changed by the start could not be written: there is no room.
    is_unfolded: bool,
    set_back: Option<SetBack>,
}

/// Loads all rows and lets store time go on (rule 3), never back. A journal that has no room is read all the same.
fn load(
    journal: &mut dyn Journal,
    tick: BootTime,
    at_least: StoreTime,
    boot_id: &str,
) -> Result<JournaledRows, StoreError> {
    let Image { mut state, events, cursor, floor, mark, set_back } = journal.load()?;
    let (now, dirty) = restart::go_on(&mut state, mark.as_ref(), tick);
    let now = now.max(at_least);
    let barred_until = mark.as_ref().map_or(StoreTime::default(), |mark| {
        let is_barred = mark.barred_until > mark.now;
        // Time that nobody witnessed does not count.
        let gap_ms = if mark.is_of_this_boot(tick) { 0 } else { now.ms_after(mark.now) };
        if is_barred { mark.barred_until.plus_ms(gap_ms) } else { mark.barred_until }
    });
    let retired_to = mark.as_ref().and_then(|mark| mark.retired_to.clone());
    let mut is_unfolded = false;
    if mark.is_some() {
        let (boot_id, retired_to) = (boot_id.to_owned(), retired_to.clone());
        let mark = Mark { now, boot_id, tick_ms: tick.as_ms(), barred_until, retired_to };
        match journal.fold(&state, dirty, mark) {
            Err(StoreError::Unknown(error)) => {
                tracing::error!(%error, "the journal cannot be written: reads are answered, nothing else");
                is_unfolded = true;
            }
            folded => folded?,
        }
    }
    let (timers, tally) = (Timers::of(&state), Tally::of(&state));
    let keeps_events = journal.history().is_some();
    let since = (now, tick);
    let rows =
        Rows { state, events, timers, tally, cursor, floor, keeps_events, barred_until, retired_to, since };
    Ok(JournaledRows { rows, is_unfolded, set_back })
}

#[async_trait]
impl Store for ResidentStore {
    fn name(&self) -> &'static str {
        self.name
    }

    async fn transact(
        &self,
        footprint: &Footprint,
        _lane: Lane,
        decider: &mut dyn Decider,
    ) -> Result<BatchDecision, StoreError> {
        let mut turn = self.take_turn_to_write().await?;
        let tick = self.clock.now();
        let moment = {
            let rows = self.read();
            let now = rows.now(tick);
            rows.check_retired()?;
            if now < rows.barred_until {
                return Err(StoreError::Barred { retry_after_ms: rows.barred_until.ms_after(now) });
            }
            Moment { now, revision: rows.cursor.revision }
        };
        let mut more = find::LateRows::default();
        let (mut part, decided) = loop {
            let mut part = find::part(&self.read().state, footprint, &more);
            match decider.decide(&mut part, moment) {
                Ok(decided) => break (part, decided),
                Err(late) if more.add(&self.read().state, late.clone()) => {}
                Err(late) => {
                    return Err(StoreError::Unusable(format!(
                        "a lease is attached to a session that is missing: {late}"
                    )));
                }
            }
        };
        let dirty = part.take_dirty();
        if !dirty.is_empty() || decided.revision != moment.revision {
            self.commit(&mut turn, &part, dirty, (moment.now, tick), &decided).await?;
        }
        Ok(decided)
    }

    async fn load(&self, footprint: &Footprint) -> Result<LoadedRows, StoreError> {
        self.settled().await?;
        let rows = self.read();
        let state = find::part(&rows.state, footprint, &find::LateRows::default());
        Ok(rows.loaded(state, rows.now(self.clock.now())))
    }

    async fn find_resources(&self, query: &ResourceQuery) -> Result<ResourcePage, StoreError> {
        self.settled().await?;
        self.find(query).await
    }

    async fn find_holders(&self, query: &HolderQuery) -> Result<HolderPage, StoreError> {
        self.settled().await?;
        self.find_names(query).await
    }

    async fn records(&self, collection: &Name) -> Result<Vec<Record>, StoreError> {
        self.settled().await?;
        let rows = self.snapshot().state;
        Ok(rows.records().filter(|r| r.collection == *collection).cloned().collect())
    }

    async fn events(&self, query: &EventQuery) -> Result<EventPage, StoreError> {
        self.settled().await?;
        self.read_events(query).await
    }

    async fn news(&self, after: Cursor) -> Result<Cursor, StoreError> {
        let mut head = self.head.subscribe();
        // Out of time is as good an answer: where the history stands now.
        let _ = tokio::time::timeout(NEWS_WAIT, head.wait_for(|head| *head > after)).await;
        self.settled().await?;
        Ok(self.read().cursor)
    }

    async fn due(&self, limit: usize) -> Result<Nominations, StoreError> {
        self.settled().await?;
        let mut rows = self.write();
        let now = rows.now(self.clock.now());
        let Rows { state, timers, .. } = &mut *rows;
        Ok(timers.due(state, now, limit))
    }

    async fn maintain(&self, retention: &Retention) -> Result<(), StoreError> {
        for _ in 0..FORGET_ROUNDS_MAX {
            if self.forget_some().await? < FORGET_MAX {
                break;
            }
        }
        let mut turn = self.take_turn_to_write().await?;
        let tick = self.clock.now();
        if tick.since(turn.marked) < MARK_EVERY {
            return Ok(());
        }
        turn.marked = tick;
        let (now, revision) = {
            let rows = self.read();
            (rows.now(tick), rows.cursor.revision)
        };
        let mark = self.mark(now, tick);
        let folded = {
            let rows = self.read();
            let decided = BatchDecision { events: Vec::new(), revision };
            let unfolded = turn.journal.unfolded();
            unfolded.map(|dirty| Entry::new(&rows.state, dirty, mark.clone(), &decided, rows.cursor.epoch))
        };
        let dropped = turn.journal.tidy(folded, mark, retention).await?;
        let mut rows = self.write();
        let floor = rows.floor.max(dropped.unwrap_or_default());
        rows.floor = floor;
        if rows.keeps_events {
            rows.drop_events(|first, _| first.revision <= floor);
        } else {
            rows.drop_events(|first, count| {
                retention.is_past(first, now) || count as u64 > retention.events_max
            });
        }
        Ok(())
    }

    async fn usage(&self, tenant: Option<&Name>) -> Result<Usage, StoreError> {
        self.settled().await?;
        let rows = self.read();
        Ok(rows.tally.usage(&rows.state, &rows.timers, tenant, rows.now(self.clock.now())))
    }

    async fn scan(&self, query: &ResourceQuery, pages: &Outlet<ResourcePage>) -> Result<(), StoreError> {
        self.settled().await?;
        self.scan_all(query, pages).await
    }

    async fn export(&self, rows: &mut Exporter) -> Result<(), StoreError> {
        self.settled_or_retired().await?;
        self.export_all(rows).await
    }

    async fn import(&self, import: Import) -> Result<(), StoreError> {
        let Import { header, mut state, events, .. } = import;
        let mut turn = self.take_turn_to_write().await?;
        let tick = self.clock.now();
        let (now, before) = {
            let rows = self.read();
            let is_empty = rows.state == Ledger::default() && rows.cursor.revision == Revision(0);
            if !is_empty {
                return Err(StoreError::NotEmpty);
            }
            // Store time never goes back, not even by moving house.
            (rows.now(tick).max(header.now), rows.cursor)
        };
        restart::give_back(&mut state, header.now, now.ms_after(header.now), now, 0);
        let furthest = Cursor { epoch: header.epoch.max(before.epoch), revision: header.revision };
        let (cursor, barred_until) = match header.retired {
            true => (Cursor { epoch: furthest.epoch + 1, ..furthest }, StoreTime::default()),
            // The old store may have gone on: what it grants from now on must not be granted here, nor its tokens
            // given.
            false => {
                let longest_ms = self.options.ttl_max_ms.max(rows::longest_ttl_ms(&state));
                (history::another(furthest, wall_ms()), now.plus_ms(longest_ms))
            }
        };
        let dirty = find::all_of(&state);
        let decided = BatchDecision { events, revision: cursor.revision };
        let mark = Mark { barred_until, ..self.mark(now, tick) };
        let entry = Entry::new(&state, &dirty, mark, &decided, cursor.epoch);
        // First the floor: without the rows it says nothing that is not so.
        turn.journal.set_floor(header.floor)?;
        self.append(&mut turn, entry, |rows| {
            rows.since = (now, tick);
            rows.floor = header.floor;
            rows.cursor.epoch = cursor.epoch;
            rows.absorb(&state, &dirty, &decided);
        })
        .await
    }

    fn ttl_max_ms(&self) -> u64 {
        self.options.ttl_max_ms
    }

    fn seal(&self, cursor: Cursor) -> Option<String> {
        Some(self.seal.as_ref()?.seal(SealedPoint { cursor, timeline: 0 }))
    }

    async fn witness(&self, sealed: &str) -> Result<(), StoreError> {
        self.witness_cursor(sealed).await
    }

    async fn retire(&self, to: &str) -> Result<(), StoreError> {
        self.retire_to(to).await
    }

    async fn set_back(&self, seen: Option<Cursor>, bar: Bar) -> Result<(), StoreError> {
        let mut turn = self.take_turn_to_write().await?;
        self.jump(&mut turn, seen, Some(bar)).await.map(|_| ())
    }

    fn cursor(&self) -> Cursor {
        self.read().cursor
    }

    async fn close(&self) {
        let mut turn = self.turn.lock().await;
        if turn.is_closed {
            return;
        }
        // Rows that lack what the journal has must not become its snapshot: its log is read again at the next start.
        let folded = if turn.is_behind || turn.set_back.is_some() { Ok(()) } else { self.fold(&mut turn) };
        if let Err(error) = folded.and_then(|()| turn.journal.close()) {
            tracing::error!(%error, "the journal could not be closed cleanly; it will be read again at the next start");
        }
        turn.is_closed = self.read().keeps_events;
    }
}

impl std::fmt::Debug for ResidentStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resident").field("name", &self.name).field("cursor", &self.read().cursor).finish()
    }
}
