//! A store whose time is a wall clock, as PostgreSQL's is: an operator sets it, and each server corrects it by the real
//! clock of the store over PostgreSQL (`solehold_engine::postgres::pace`). The rows are in memory.
//!
//! ```text
//!   server 0: Timekeeper, boot time  --+
//!                                      +-->  Database: wall clock, offset, last time, ceiling
//!   server 1: Timekeeper, boot time  --+
//! ```

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use solehold_client::clock::{BootTime, Clock, VirtualClock};
use solehold_core::{command::Footprint, key::Name, record::Record};
use solehold_engine::{
    flow::{Exporter, Outlet},
    history::Bar,
    observe::Lane,
    postgres::pace::{OutOfPace, Remedy, Sample, TOLERANCE_MS, Timekeeper, Version},
    resident::{self, ResidentStore},
    store::{
        BatchDecision, Cursor, Decider, EventPage, EventQuery, HolderPage, HolderQuery, Import, LoadedRows,
        Nominations, ResourcePage, ResourceQuery, Retention, Store, StoreError, Usage,
    },
};

use crate::{chance::SeededChance, process::Process, virtual_time::pass};

/// What the wall clock shows when a world begins.
const BEGAN_MS: i64 = 1_000_000;
/// How far above the last stored time the ceiling of a new store is.
const ROOM_MS: i64 = 320;
/// How long a message to the database takes, and the answer.
const LATENCY_MS: (u64, u64) = (0, 3);
/// How long one takes that is slow.
const SLOW_MS: u64 = 400;
/// How often a server looks at the clock and corrects it before it gives up.
const ATTEMPTS: usize = 8;
/// How old the last stored time is before a server that does nothing else stores it again.
const MARK_EVERY_MS: i64 = 100;
/// A server that has given a time above the ceiling waits no longer than this at a time.
const WAIT_MAX_MS: i64 = 500;

/// Store time as all servers see it in the database.
struct Rows {
    /// How far the wall clock is ahead of true time.
    ahead_ms: i64,
    offset_ms: i64,
    last_ms: i64,
    /// The newest claim: its number, the highest ceiling that was written down under it, and the claimed one.
    ceiling: (i64, i64, i64),
}

/// What the servers share. Its clock is the time that the server whose turn it is has been given.
pub struct Database {
    truth: Arc<VirtualClock>,
    rows: Mutex<Rows>,
    /// The row of the clock is locked by one at a time.
    clock_row: tokio::sync::Mutex<()>,
    given_ms: AtomicU64,
}

impl Database {
    pub fn new(truth: Arc<VirtualClock>) -> Arc<Self> {
        let ceiling_ms = BEGAN_MS + ROOM_MS;
        let ahead_ms = BEGAN_MS - truth.now().as_ms() as i64;
        let ceiling = (0, ceiling_ms, ceiling_ms);
        let rows = Mutex::new(Rows { ahead_ms, offset_ms: 0, last_ms: BEGAN_MS, ceiling });
        let given_ms = AtomicU64::new(BEGAN_MS as u64);
        Arc::new(Self { truth, rows, clock_row: tokio::sync::Mutex::default(), given_ms })
    }

    /// Someone sets the wall clock, forward or back.
    pub fn step(&self, ms: i64) {
        self.rows.lock().ahead_ms += ms;
    }

    fn by_wall_ms(&self, rows: &Rows) -> i64 {
        self.truth.now().as_ms() as i64 + rows.ahead_ms + rows.offset_ms
    }
}

/// The time that the server has been given whose turn it is.
struct GivenTime(Arc<Database>);

impl Clock for GivenTime {
    fn now(&self) -> BootTime {
        BootTime::from_ms(self.0.given_ms.load(Ordering::Relaxed))
    }
}

/// The rows that all servers of a database share.
pub fn rows(database: &Arc<Database>) -> Arc<ResidentStore> {
    resident::simulated(GivenTime(database.clone())).expect("a store in memory opens")
}

/// The store as one server sees it.
pub struct WallStore {
    rows: Arc<ResidentStore>,
    database: Arc<Database>,
    /// The machine of the server, with a clock that drifts.
    machine: Arc<Process>,
    keeper: Mutex<Timekeeper>,
    chance: SeededChance,
}

impl WallStore {
    pub async fn open(
        rows: Arc<ResidentStore>,
        database: Arc<Database>,
        machine: Arc<Process>,
        chance: SeededChance,
    ) -> Arc<Self> {
        let store = Self { rows, database, machine, keeper: Mutex::default(), chance };
        store.take_up().await;
        Arc::new(store)
    }

    /// The server starts again, and knows nothing of the time that was given before.
    pub async fn restart(&self) {
        self.machine.resume();
        *self.keeper.lock() = Timekeeper::default();
        self.take_up().await;
    }

    /// The server stands still: it begins nothing for a while.
    pub fn stall(&self, lasts: Duration) {
        self.machine.pause();
        let machine = self.machine.clone();
        tokio::spawn(async move {
            pass(lasts).await;
            machine.resume();
        });
    }

    /// As a server does that opens the store.
    async fn take_up(&self) {
        let sample = self.sample().await;
        self.keeper.lock().look(&sample);
        self.claim(true).await;
    }

    fn boot_ms(&self) -> i64 {
        self.machine.now().as_ms() as i64
    }

    async fn travel(&self) {
        let slow = self.chance.one_in(200);
        let (least, most) = LATENCY_MS;
        pass(self.chance.millis(least, if slow { SLOW_MS } else { most })).await;
    }

    /// Reads the clock.
    async fn sample(&self) -> Sample {
        let asked_ms = self.boot_ms();
        self.travel().await;
        let (by_wall_ms, last_ms, (number, ceiling_ms, claimed_ms)) = {
            let rows = self.database.rows.lock();
            (self.database.by_wall_ms(&rows), rows.last_ms, rows.ceiling)
        };
        self.travel().await;
        let version = Version { moves: 0, number };
        let answered_ms = self.boot_ms();
        Sample { by_wall_ms, last_ms, version, ceiling_ms, claimed_ms, asked_ms, answered_ms }
    }

    /// Store time by a reading. Nothing is decided by it before the clock is in pace.
    async fn time(&self) -> Result<(i64, Sample), OutOfPace> {
        let sample = self.sample().await;
        let time_ms = self.keeper.lock().time(&sample)?;
        Ok((time_ms, sample))
    }

    /// Corrects the clock and claims the ceiling, as the store does under the lock of the clock's row.
    async fn claim(&self, renew: bool) {
        let _locked = self.database.clock_row.lock().await;
        let sample = self.sample().await;
        let remedy = self.keeper.lock().remedy(&sample, renew);
        match remedy {
            Remedy::Nothing => {}
            Remedy::Wait { ms } => pass(Duration::from_millis(ms.clamp(0, WAIT_MAX_MS) as u64)).await,
            Remedy::Claim { ahead_ms } => {
                let now_ms = self.boot_ms();
                let Some((version, ceiling_ms)) = self.keeper.lock().ceiling(now_ms) else { return };
                let version = Version { number: sample.version.number + 1, ..version };
                self.travel().await;
                {
                    let mut rows = self.database.rows.lock();
                    rows.offset_ms -= ahead_ms;
                    rows.ceiling = (version.number, ceiling_ms, ceiling_ms);
                }
                self.travel().await;
                self.keeper.lock().claimed(version, ceiling_ms, now_ms, self.boot_ms());
            }
        }
    }

    /// Stores the time of a decision, and writes the ceiling down again.
    fn stored(&self, time_ms: i64, sample: &Sample) {
        let mut rows = self.database.rows.lock();
        rows.last_ms = rows.last_ms.max(time_ms);
        if let Some(ceiling_ms) = self.keeper.lock().restated(sample, self.boot_ms()) {
            rows.ceiling = rows.ceiling.max((sample.version.number, ceiling_ms, sample.claimed_ms));
        }
    }

    fn give(&self, time_ms: i64) {
        self.database.given_ms.store(time_ms as u64, Ordering::Relaxed);
    }

    /// For a read, which stores no time.
    async fn look(&self) -> Result<(), StoreError> {
        self.machine.running().await;
        for _ in 0..ATTEMPTS {
            if let Ok((time_ms, _)) = self.time().await {
                self.give(time_ms);
                return Ok(());
            }
            self.claim(false).await;
        }
        Err(out_of_pace())
    }
}

fn out_of_pace() -> StoreError {
    StoreError::Unavailable("the clock is out of pace".to_owned())
}

#[async_trait]
impl Store for WallStore {
    fn name(&self) -> &'static str {
        "wall"
    }

    fn clock_slack_ms(&self) -> u64 {
        TOLERANCE_MS as u64
    }

    async fn transact(
        &self,
        footprint: &Footprint,
        lane: Lane,
        decider: &mut dyn Decider,
    ) -> Result<BatchDecision, StoreError> {
        self.machine.running().await;
        for _ in 0..ATTEMPTS {
            let locked = self.database.clock_row.lock().await;
            if let Ok((time_ms, sample)) = self.time().await {
                self.give(time_ms);
                let decided = self.rows.transact(footprint, lane, decider).await?;
                self.stored(time_ms, &sample);
                return Ok(decided);
            }
            drop(locked);
            self.claim(false).await;
        }
        Err(out_of_pace())
    }

    async fn load(&self, footprint: &Footprint) -> Result<LoadedRows, StoreError> {
        self.look().await?;
        self.rows.load(footprint).await
    }

    async fn find_resources(&self, query: &ResourceQuery) -> Result<ResourcePage, StoreError> {
        self.look().await?;
        self.rows.find_resources(query).await
    }

    async fn find_holders(&self, query: &HolderQuery) -> Result<HolderPage, StoreError> {
        self.look().await?;
        self.rows.find_holders(query).await
    }

    async fn records(&self, collection: &Name) -> Result<Vec<Record>, StoreError> {
        self.rows.records(collection).await
    }

    async fn events(&self, query: &EventQuery) -> Result<EventPage, StoreError> {
        self.rows.events(query).await
    }

    async fn news(&self, after: Cursor) -> Result<Cursor, StoreError> {
        self.rows.news(after).await
    }

    async fn due(&self, limit: usize) -> Result<Nominations, StoreError> {
        self.look().await?;
        self.rows.due(limit).await
    }

    /// Every server keeps the time, whether it decides anything or not.
    async fn maintain(&self, retention: &Retention) -> Result<(), StoreError> {
        self.machine.running().await;
        let locked = self.database.clock_row.lock().await;
        let timed = self.time().await;
        if let Ok((time_ms, sample)) = &timed
            && time_ms - sample.last_ms >= MARK_EVERY_MS
        {
            self.stored(*time_ms, sample);
        }
        drop(locked);
        match timed {
            Ok((_, sample)) => {
                let is_due = self.keeper.lock().is_claim_due(&sample);
                if is_due {
                    self.claim(true).await;
                }
            }
            Err(OutOfPace) => self.claim(false).await,
        }
        self.look().await?;
        self.rows.maintain(retention).await
    }

    async fn usage(&self, tenant: Option<&Name>) -> Result<Usage, StoreError> {
        self.rows.usage(tenant).await
    }

    async fn scan(&self, query: &ResourceQuery, pages: &Outlet<ResourcePage>) -> Result<(), StoreError> {
        self.rows.scan(query, pages).await
    }

    async fn export(&self, rows: &mut Exporter) -> Result<(), StoreError> {
        self.rows.export(rows).await
    }

    async fn import(&self, import: Import) -> Result<(), StoreError> {
        self.rows.import(import).await
    }

    async fn retire(&self, to: &str) -> Result<(), StoreError> {
        self.rows.retire(to).await
    }

    fn cursor(&self) -> Cursor {
        self.rows.cursor()
    }

    async fn set_back(&self, seen: Option<Cursor>, bar: Bar) -> Result<(), StoreError> {
        self.rows.set_back(seen, bar).await
    }

    async fn close(&self) {
        self.rows.close().await;
    }
}
