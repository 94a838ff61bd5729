//! Stores that keep all rows in memory: `memory`, which forgets, and `embedded`, which journals every batch first.
//!
//! ```text
//!   transact -> part of the rows -> decide -> journal (fsync) -> absorb into the rows -> answer
//! ```
//! Memory changes only after the journal has the batch (rule 24). A journal that fails makes the outcome unknown; the
//! rows are then loaded from it anew before anything else is decided.

mod find;
mod journal;
mod restart;
mod tally;
mod timers;

use std::{
    collections::VecDeque,
    sync::{
        Arc, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use solehold_core::{
    command::Footprint,
    event::Event,
    forget,
    key::Name,
    state::{Dirty, Record, State},
    time::{Moment, Revision, StoreTime},
};
use tokio::sync::{Mutex, watch};

pub use journal::{Entry, Forgetful, Gone, Image, Journal, Mark};

use crate::{
    clock::{BootTicks, Tick, Ticks, boot_id},
    store::*,
};
use tally::Tally;
use timers::Timers;

/// Events that are kept in memory; older ones are read from the journal.
pub(crate) const WINDOW_EVENTS: usize = 16_384;
/// How often the clock's mark is persisted while nothing happens.
const MARK_EVERY: Duration = Duration::from_secs(1);
/// How long [`Store::news`] waits at most.
const NEWS_WAIT: Duration = Duration::from_secs(1);
/// Rows that are forgotten in one round at most.
const FORGET_MAX: usize = 5_000;

/// A store that keeps all rows in memory, over a journal.
pub struct Resident {
    name: &'static str,
    ticks: Box<dyn Ticks>,
    /// Which boot this is; the kernel is asked once.
    boot_id: String,
    rows: RwLock<Rows>,
    /// One transaction at a time; also guards the journal.
    turn: Mutex<Turn>,
    /// The journal has failed, and the rows were not loaded anew since: nobody is told of rows that may be stale.
    has_failed: AtomicBool,
    head: watch::Sender<Cursor>,
}

struct Turn {
    journal: Box<dyn Journal>,
    /// The rows may lack what the journal has: load them anew.
    is_behind: bool,
    is_closed: bool,
    marked: Tick,
}

/// All rows, and the clock.
struct Rows {
    state: State,
    events: VecDeque<Event>,
    timers: Timers,
    tally: Tally,
    cursor: Cursor,
    floor: Revision,
    /// Whether the journal has the events that are not in memory any more.
    keeps_events: bool,
    /// Store time at a tick; it goes on from there.
    since: (StoreTime, Tick),
}

impl Rows {
    fn now(&self, tick: Tick) -> StoreTime {
        let (time, at) = self.since;
        time.plus_ms(tick.since(at).as_millis() as u64)
    }

    /// Takes over what a batch has changed.
    fn absorb(&mut self, part: &State, dirty: &Dirty, decided: &Decided) {
        self.tally.touch(&self.state, part, dirty);
        self.state.absorb(part, dirty);
        self.timers.touch(&self.state, dirty);
        self.cursor.revision = decided.revision;
        self.events.extend(decided.events.iter().cloned());
        self.drop_events(|_, count| count > WINDOW_EVENTS);
    }

    /// Drops events from memory, the oldest first, while `is_over` of the first and of how many there are.
    fn drop_events(&mut self, is_over: impl Fn(&Event, usize) -> bool) {
        while let Some(event) = self.events.front().filter(|e| is_over(e, self.events.len())) {
            if !self.keeps_events {
                self.floor = event.revision;
            }
            self.events.pop_front();
        }
    }

    /// The revision before the first event in memory.
    fn window_floor(&self) -> Revision {
        self.events.front().map_or(self.cursor.revision, |e| Revision(e.revision.0 - 1))
    }
}

/// A store for tests and simulations: it forgets everything with its process.
pub fn memory(ticks: impl Ticks) -> Result<Arc<Resident>, StoreError> {
    Resident::open("memory", Box::new(Forgetful), Box::new(ticks))
}

impl Resident {
    /// Opens a store over a journal of this machine's disk.
    pub fn embedded(journal: impl Journal) -> Result<Arc<Self>, StoreError> {
        Self::embedded_with(journal, BootTicks)
    }

    /// The same with ticks from elsewhere, for tests.
    pub fn embedded_with(journal: impl Journal, ticks: impl Ticks) -> Result<Arc<Self>, StoreError> {
        Self::open("embedded", Box::new(journal), Box::new(ticks))
    }

    fn open(
        name: &'static str,
        mut journal: Box<dyn Journal>,
        ticks: Box<dyn Ticks>,
    ) -> Result<Arc<Self>, StoreError> {
        let (tick, boot_id) = (ticks.now(), boot_id());
        let rows =
            load(&mut *journal, tick, StoreTime::default(), &boot_id).map_err(|error| match error {
                StoreError::Unknown(what) => StoreError::Unusable(what),
                other => other,
            })?;
        let head = watch::Sender::new(rows.cursor);
        let turn = Mutex::new(Turn { journal, is_behind: false, is_closed: false, marked: tick });
        let has_failed = AtomicBool::new(false);
        Ok(Arc::new(Self { name, ticks, boot_id, rows: RwLock::new(rows), turn, has_failed, head }))
    }

    fn read(&self) -> RwLockReadGuard<'_, Rows> {
        self.rows.read().unwrap_or_else(|e| e.into_inner())
    }

    fn write(&self) -> RwLockWriteGuard<'_, Rows> {
        self.rows.write().unwrap_or_else(|e| e.into_inner())
    }

    fn mark(&self, now: StoreTime, tick: Tick) -> Mark {
        Mark { now, boot_id: self.boot_id.clone(), tick_ms: tick.as_ms() }
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
        Ok(turn)
    }

    /// Loads the rows anew after the journal failed. Nothing was done yet, so that nothing is unknown by failing again.
    fn catch_up(&self, turn: &mut Turn) -> Result<(), StoreError> {
        let tick = self.ticks.now();
        let at_least = self.read().now(tick);
        let rows = load(&mut *turn.journal, tick, at_least, &self.boot_id).map_err(|error| match error {
            StoreError::Unknown(what) => StoreError::Unavailable(what),
            other => other,
        })?;
        self.head.send_replace(rows.cursor);
        *self.write() = rows;
        turn.is_behind = false;
        self.has_failed.store(false, Ordering::SeqCst);
        tracing::info!("the rows were loaded anew from the journal");
        Ok(())
    }

    /// For readers: rows that are those of the journal, as far as is known. They do not wait for a batch under way.
    async fn settled(&self) -> Result<(), StoreError> {
        if self.has_failed.load(Ordering::SeqCst) {
            drop(self.take_turn().await?);
        }
        Ok(())
    }

    /// Journals a batch that was decided at `now`, read at `tick`, then takes it over.
    async fn commit(
        &self,
        turn: &mut Turn,
        part: &State,
        dirty: Dirty,
        (now, tick): (StoreTime, Tick),
        decided: &Decided,
    ) -> Result<(), StoreError> {
        let entry = Entry::new(part, &dirty, self.mark(now, tick), decided, self.read().cursor.epoch);
        self.append(turn, entry).await?;
        let mut rows = self.write();
        rows.absorb(part, &dirty, decided);
        self.head.send_replace(rows.cursor);
        Ok(())
    }

    async fn append(&self, turn: &mut Turn, entry: Entry) -> Result<(), StoreError> {
        // Whoever drops this halfway leaves it so: the journal may have what the rows lack.
        turn.is_behind = true;
        let appended = turn.journal.append(entry).await;
        turn.is_behind = appended.is_err();
        self.has_failed.store(appended.is_err(), Ordering::SeqCst);
        appended
    }
}

/// Loads all rows and lets store time go on (rule 3), never back.
fn load(
    journal: &mut dyn Journal,
    tick: Tick,
    at_least: StoreTime,
    boot_id: &str,
) -> Result<Rows, StoreError> {
    let Image { mut state, events, cursor, floor, mark } = journal.load()?;
    let (now, dirty) = restart::go_on(&mut state, mark.as_ref(), tick);
    let now = now.max(at_least);
    if mark.is_some() {
        let mark = Mark { now, boot_id: boot_id.to_owned(), tick_ms: tick.as_ms() };
        journal.fold(&state, dirty, mark)?;
    }
    let (timers, tally) = (Timers::of(&state), Tally::of(&state));
    let keeps_events = journal.keeps_events();
    Ok(Rows { state, events, timers, tally, cursor, floor, keeps_events, since: (now, tick) })
}

#[async_trait]
impl Store for Resident {
    fn name(&self) -> &'static str {
        self.name
    }

    async fn transact(
        &self,
        footprint: &Footprint,
        _news: bool,
        decider: &mut dyn Decider,
    ) -> Result<Decided, StoreError> {
        let mut turn = self.take_turn().await?;
        let tick = self.ticks.now();
        let moment = {
            let rows = self.read();
            Moment { now: rows.now(tick), revision: rows.cursor.revision }
        };
        let mut more = find::More::default();
        let (mut part, decided) = loop {
            let mut part = find::part(&self.read().state, footprint, &more);
            match decider.decide(&mut part, moment) {
                Ok(decided) => break (part, decided),
                Err(late) if more.add(&self.read().state, late.clone()) => {}
                Err(late) => return Err(StoreError::Unusable(format!("a lease hangs on nothing: {late}"))),
            }
        };
        let dirty = part.take_dirty();
        if !dirty.is_empty() || decided.revision != moment.revision {
            self.commit(&mut turn, &part, dirty, (moment.now, tick), &decided).await?;
        }
        Ok(decided)
    }

    async fn load(&self, footprint: &Footprint) -> Result<Loaded, StoreError> {
        self.settled().await?;
        let rows = self.read();
        let state = find::part(&rows.state, footprint, &find::More::default());
        Ok(Loaded { state, now: rows.now(self.ticks.now()), cursor: rows.cursor })
    }

    async fn find_resources(&self, query: &ResourceQuery) -> Result<Found, StoreError> {
        self.settled().await?;
        let rows = self.read();
        let now = rows.now(self.ticks.now());
        let (keys, more) = find::resources(&rows.state, query, now);
        let footprint = Footprint { resources: keys.clone(), ..Default::default() };
        let state = find::part(&rows.state, &footprint, &find::More::default());
        Ok(Found { loaded: Loaded { state, now, cursor: rows.cursor }, keys, more })
    }

    async fn find_holders(&self, query: &HolderQuery) -> Result<FoundHolders, StoreError> {
        self.settled().await?;
        let rows = self.read();
        let (keys, more) = find::holders(&rows.state, query);
        let footprint = Footprint { holders: keys.clone(), ..Default::default() };
        let state = find::part(&rows.state, &footprint, &find::More::default());
        let loaded = Loaded { state, now: rows.now(self.ticks.now()), cursor: rows.cursor };
        Ok(FoundHolders { loaded, keys, more })
    }

    async fn records(&self, collection: &Name) -> Result<Vec<Record>, StoreError> {
        self.settled().await?;
        Ok(self.read().state.records().filter(|r| r.collection == *collection).cloned().collect())
    }

    async fn events(&self, query: &EventQuery) -> Result<EventPage, StoreError> {
        self.settled().await?;
        {
            let rows = self.read();
            if query.after >= rows.window_floor() || !rows.keeps_events {
                let events = find::events(&rows.events, query);
                return Ok(EventPage { events, floor: rows.floor, head: rows.cursor });
            }
        }
        // The journal holds the older ones; nothing is committed while it is read, so the page is one snapshot.
        let mut turn = self.take_turn().await?;
        let events = turn.journal.events(query).await?;
        let rows = self.read();
        Ok(EventPage { events, floor: rows.floor, head: rows.cursor })
    }

    async fn news(&self, after: Cursor) -> Result<Cursor, StoreError> {
        let mut head = self.head.subscribe();
        // Out of time is as good an answer: where the history stands now.
        let _ = tokio::time::timeout(NEWS_WAIT, head.wait_for(|head| *head > after)).await;
        self.settled().await?;
        Ok(self.read().cursor)
    }

    async fn due(&self, limit: usize) -> Result<Due, StoreError> {
        self.settled().await?;
        let mut rows = self.write();
        let now = rows.now(self.ticks.now());
        let Rows { state, timers, .. } = &mut *rows;
        Ok(timers.due(state, now, limit))
    }

    async fn maintain(&self, retention: &Retention) -> Result<(), StoreError> {
        let mut turn = self.take_turn().await?;
        let tick = self.ticks.now();
        let (now, mut part, revision) = {
            let rows = self.read();
            let now = rows.now(tick);
            (now, rows.timers.forgettable(&rows.state, now, FORGET_MAX), rows.cursor.revision)
        };
        forget(&mut part, now);
        let dirty = part.take_dirty();
        if !dirty.is_empty() {
            let decided = Decided { events: Vec::new(), revision };
            self.commit(&mut turn, &part, dirty, (now, tick), &decided).await?;
        }
        if tick.since(turn.marked) < MARK_EVERY {
            return Ok(());
        }
        turn.marked = tick;
        let mark = self.mark(now, tick);
        let folded = {
            let rows = self.read();
            let decided = Decided { events: Vec::new(), revision };
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
            let too_old = StoreTime(now.0.saturating_sub(retention.events_ms));
            rows.drop_events(|first, count| first.at < too_old || count as u64 > retention.events_max);
        }
        Ok(())
    }

    async fn usage(&self, tenant: Option<&Name>) -> Result<Usage, StoreError> {
        self.settled().await?;
        let rows = self.read();
        Ok(rows.tally.usage(&rows.state, &rows.timers, tenant, rows.now(self.ticks.now())))
    }

    async fn export(&self) -> Result<Vec<Row>, StoreError> {
        let mut turn = self.take_turn().await?;
        let everything = EventQuery { limit: usize::MAX, ..Default::default() };
        let older = turn.journal.events(&everything).await?;
        let rows = self.read();
        let mut events = if rows.keeps_events { older } else { find::events(&rows.events, &everything) };
        events.retain(|event| event.revision > rows.floor);
        let Cursor { epoch, revision } = rows.cursor;
        let now = rows.now(self.ticks.now());
        let header =
            Header { format: EXPORT_FORMAT, now, revision, epoch, floor: rows.floor, retired: false };
        Ok(find::dump(&rows.state, header, events))
    }

    async fn import(&self, lines: Vec<Row>) -> Result<(), StoreError> {
        let Import { header, mut state, events } = Import::read(lines)?;
        let mut turn = self.take_turn().await?;
        let tick = self.ticks.now();
        let (now, before) = {
            let rows = self.read();
            let is_empty = rows.state == State::default() && rows.cursor.revision == Revision(0);
            if !is_empty {
                return Err(StoreError::Unusable(NOT_EMPTY.to_owned()));
            }
            // Store time never goes back, not even by moving house.
            (rows.now(tick).max(header.now), rows.cursor)
        };
        restart::give_back(&mut state, header.now, now.ms_after(header.now), now, 0);
        // Whoever holds a cursor of the old store must not go on with it here: the old one may have gone on by itself.
        let epoch = header.epoch.max(before.epoch) + 1;
        let dirty = find::all_of(&state);
        let decided = Decided { events, revision: header.revision };
        let entry = Entry::new(&state, &dirty, self.mark(now, tick), &decided, epoch);
        // First the floor: without the rows it says nothing that is not so.
        turn.journal.set_floor(header.floor)?;
        self.append(&mut turn, entry).await?;
        let mut rows = self.write();
        rows.since = (now, tick);
        rows.floor = header.floor;
        rows.cursor.epoch = epoch;
        rows.absorb(&state, &dirty, &decided);
        self.head.send_replace(rows.cursor);
        Ok(())
    }

    fn cursor(&self) -> Cursor {
        self.read().cursor
    }

    async fn close(&self) {
        let mut turn = self.turn.lock().await;
        if turn.is_closed {
            return;
        }
        let tick = self.ticks.now();
        // Rows that lack what the journal has must not become its snapshot: its log is read again at the next start.
        let folded = if turn.is_behind {
            Ok(())
        } else {
            let rows = self.read();
            turn.journal.fold(&rows.state, Dirty::default(), self.mark(rows.now(tick), tick))
        };
        if let Err(error) = folded.and_then(|()| turn.journal.close()) {
            tracing::error!(%error, "the journal could not be closed cleanly; it will be read again at the next start");
        }
        turn.is_closed = self.read().keeps_events;
    }
}

impl std::fmt::Debug for Resident {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resident").field("name", &self.name).field("cursor", &self.read().cursor).finish()
    }
}
