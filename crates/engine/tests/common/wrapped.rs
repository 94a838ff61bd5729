//! A store that does as it is told: fails, holds its breath, changes its epoch.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering},
};

use async_trait::async_trait;
use solehold_conformance::Fixture;
use solehold_core::{
    command::Footprint,
    key::Name,
    record::Record,
    time::{Moment, StoreTime},
};
use solehold_engine::{
    clock::ManualClock,
    flow::{self, Exporter, Outlet},
    history::Bar,
    observe::{Lane, Observer},
    resident::{self, ResidentStore},
    store::*,
};
use tokio::sync::watch;

/// A door that is open or shut.
pub struct Door(watch::Sender<bool>);

impl Default for Door {
    fn default() -> Self {
        Self(watch::Sender::new(true))
    }
}

impl Door {
    pub fn shut(&self) {
        self.0.send_replace(false);
    }

    pub fn open(&self) {
        self.0.send_replace(true);
    }

    async fn pass(&self) {
        self.0.subscribe().wait_for(|is_open| *is_open).await.expect("the door lives");
    }
}

pub struct Wrapped {
    pub inner: Arc<ResidentStore>,
    pub ticks: Arc<ManualClock>,
    /// What every call is answered with, if anything.
    pub fault: Mutex<Option<StoreError>>,
    /// Batches that may make events wait here.
    pub news_door: Door,
    /// Readers of the history wait here.
    pub history_door: Door,
    /// The number of batches that have come.
    pub batches: AtomicUsize,
    /// Judges each batch twice, as a store does when others were in the way.
    pub twice: AtomicBool,
    /// Added to the epoch that is told.
    pub epoch: AtomicU64,
    /// Where the next call panics, if anywhere.
    pub panic: AtomicU8,
}

/// Before a batch is decided, after it was committed, when what has run out is asked for.
pub const BEFORE: u8 = 1;
pub const AFTER: u8 = 2;
pub const DUE: u8 = 3;

impl Wrapped {
    pub fn new() -> Arc<Self> {
        let ticks = Arc::new(ManualClock::default());
        Arc::new(Self {
            inner: resident::memory(ticks.clone()).expect("memory"),
            ticks,
            fault: Mutex::default(),
            news_door: Door::default(),
            history_door: Door::default(),
            batches: AtomicUsize::new(0),
            twice: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            panic: AtomicU8::new(0),
        })
    }

    pub fn fail_with(&self, fault: Option<StoreError>) {
        *self.fault.lock().expect("no panic") = fault;
    }

    fn check(&self) -> Result<(), StoreError> {
        self.fault.lock().expect("no panic").clone().map_or(Ok(()), Err)
    }

    /// Panics once, if this is where.
    fn panic_at(&self, place: u8) {
        if self.panic.compare_exchange(place, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            panic!("the store panics, as it was told to");
        }
    }

    fn raised(&self, cursor: Cursor) -> Cursor {
        Cursor { epoch: cursor.epoch + self.epoch.load(Ordering::SeqCst), ..cursor }
    }
}

#[async_trait]
impl Store for Wrapped {
    fn name(&self) -> &'static str {
        "wrapped"
    }
    async fn transact(
        &self,
        footprint: &Footprint,
        lane: Lane,
        decider: &mut dyn Decider,
    ) -> Result<BatchDecision, StoreError> {
        self.batches.fetch_add(1, Ordering::SeqCst);
        if lane == Lane::News {
            self.news_door.pass().await;
        }
        self.check()?;
        if self.twice.load(Ordering::SeqCst) {
            let LoadedRows { mut state, now, cursor, .. } = self.inner.load(footprint).await?;
            decider.decide(&mut state, Moment { now, revision: cursor.revision }).expect("all is loaded");
        }
        self.panic_at(BEFORE);
        let decided = self.inner.transact(footprint, lane, decider).await;
        self.panic_at(AFTER);
        decided
    }
    async fn load(&self, footprint: &Footprint) -> Result<LoadedRows, StoreError> {
        self.check()?;
        let loaded = self.inner.load(footprint).await?;
        Ok(LoadedRows { cursor: self.raised(loaded.cursor), ..loaded })
    }
    async fn find_resources(&self, query: &ResourceQuery) -> Result<ResourcePage, StoreError> {
        self.check()?;
        let mut found = self.inner.find_resources(query).await?;
        found.loaded.cursor = self.raised(found.loaded.cursor);
        Ok(found)
    }
    async fn find_holders(&self, query: &HolderQuery) -> Result<HolderPage, StoreError> {
        self.check()?;
        self.inner.find_holders(query).await
    }
    async fn records(&self, collection: &Name) -> Result<Vec<Record>, StoreError> {
        self.check()?;
        self.inner.records(collection).await
    }
    async fn events(&self, query: &EventQuery) -> Result<EventPage, StoreError> {
        self.history_door.pass().await;
        self.check()?;
        let page = self.inner.events(query).await?;
        Ok(EventPage { head: self.raised(page.head), ..page })
    }
    async fn head(&self) -> Result<Cursor, StoreError> {
        self.history_door.pass().await;
        self.check()?;
        Ok(self.raised(self.inner.head().await?))
    }
    async fn news(&self, after: Cursor) -> Result<Cursor, StoreError> {
        self.history_door.pass().await;
        self.check()?;
        let raised = self.epoch.load(Ordering::SeqCst);
        let after = Cursor { epoch: after.epoch.saturating_sub(raised), ..after };
        let head = self.inner.news(after).await?;
        self.history_door.pass().await;
        self.check()?;
        Ok(self.raised(head))
    }
    async fn due(&self, limit: usize) -> Result<Nominations, StoreError> {
        self.check()?;
        self.panic_at(DUE);
        self.inner.due(limit).await
    }
    async fn maintain(&self, retention: &Retention) -> Result<(), StoreError> {
        self.check()?;
        self.inner.maintain(retention).await
    }
    async fn usage(&self, tenant: Option<&Name>) -> Result<Usage, StoreError> {
        self.check()?;
        self.inner.usage(tenant).await
    }
    async fn scan(&self, query: &ResourceQuery, pages: &Outlet<ResourcePage>) -> Result<(), StoreError> {
        self.check()?;
        let epoch = self.epoch.load(Ordering::SeqCst);
        let inner: Arc<dyn Store> = self.inner.clone();
        let mut inner = flow::scan(inner, query.clone());
        while let Some(page) = inner.next().await {
            let mut page = page?;
            page.loaded.cursor.epoch += epoch;
            pages.give(page).await?;
        }
        Ok(())
    }
    async fn export(&self, rows: &mut Exporter) -> Result<(), StoreError> {
        self.check()?;
        self.inner.export(rows).await
    }
    async fn import(&self, import: Import) -> Result<(), StoreError> {
        self.check()?;
        self.inner.import(import).await
    }
    async fn set_back(&self, seen: Option<Cursor>, bar: Bar) -> Result<(), StoreError> {
        self.inner.set_back(seen, bar).await
    }
    async fn retire(&self, to: &str) -> Result<(), StoreError> {
        self.inner.retire(to).await
    }
    fn cursor(&self) -> Cursor {
        self.raised(self.inner.cursor())
    }
    async fn close(&self) {
        self.inner.close().await;
    }
}

/// So that a bench can stand over it.
#[async_trait]
impl Fixture for Wrapped {
    async fn open(&self) -> Arc<dyn Store> {
        self.inner.clone()
    }
    async fn open_fresh(&self) -> Arc<dyn Store> {
        resident::memory(self.ticks.clone()).expect("memory")
    }
    fn is_durable(&self) -> bool {
        false
    }
    async fn pass_until(&self, store: &dyn Store, until: StoreTime) {
        let now = store.load(&Footprint::default()).await.expect("memory").now;
        self.ticks.advance_ms(until.ms_after(now));
    }
}

/// Takes notes.
#[derive(Default)]
pub struct Notes {
    batches: Mutex<Vec<(Lane, usize)>>,
    swept: Mutex<Vec<usize>>,
    pub events: AtomicUsize,
}

impl Notes {
    /// The sizes of the batches of a lane.
    pub fn sizes(&self, lane: Lane) -> Vec<usize> {
        let batches = self.batches.lock().expect("no panic");
        batches.iter().filter(|(of, _)| *of == lane).map(|(_, size)| *size).collect()
    }

    /// How many were nominated in each sweep that nominated any.
    pub fn swept(&self) -> Vec<usize> {
        self.swept.lock().expect("no panic").clone()
    }
}

impl Observer for Notes {
    fn batch(&self, lane: Lane, commands: usize, _: std::time::Duration) {
        self.batches.lock().expect("no panic").push((lane, commands));
    }
    fn committed(&self, events: &[solehold_core::event::Event], _: &[solehold_core::event::Change]) {
        self.events.fetch_add(events.len(), Ordering::SeqCst);
    }
    fn swept(&self, nominated: usize, _: u64) {
        if nominated > 0 {
            self.swept.lock().expect("no panic").push(nominated);
        }
    }
}
