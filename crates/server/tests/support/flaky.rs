//! A store that can be made unreachable.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use async_trait::async_trait;
use solehold_core::{command::Footprint, key::Name, record::Record};
use solehold_engine::{
    flow::{Exporter, Outlet},
    history::Bar,
    observe::Lane,
    store::*,
};

/// A store that answers nothing while it is down.
pub struct Flaky {
    store: Arc<dyn Store>,
    is_down: AtomicBool,
    reads: AtomicUsize,
}

impl Flaky {
    pub fn over(store: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { store, is_down: AtomicBool::new(false), reads: AtomicUsize::new(0) })
    }

    pub fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::SeqCst);
    }

    /// How often records were read.
    pub fn reads(&self) -> usize {
        self.reads.load(Ordering::SeqCst)
    }

    fn up(&self) -> Result<&dyn Store, StoreError> {
        if self.is_down.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable("unplugged by a test".to_owned()));
        }
        Ok(&*self.store)
    }
}

#[async_trait]
impl Store for Flaky {
    fn name(&self) -> &'static str {
        self.store.name()
    }
    async fn transact(
        &self,
        footprint: &Footprint,
        lane: Lane,
        decider: &mut dyn Decider,
    ) -> Result<BatchDecision, StoreError> {
        self.up()?.transact(footprint, lane, decider).await
    }
    async fn load(&self, footprint: &Footprint) -> Result<LoadedRows, StoreError> {
        self.up()?.load(footprint).await
    }
    async fn find_resources(&self, query: &ResourceQuery) -> Result<ResourcePage, StoreError> {
        self.up()?.find_resources(query).await
    }
    async fn find_holders(&self, query: &HolderQuery) -> Result<HolderPage, StoreError> {
        self.up()?.find_holders(query).await
    }
    async fn records(&self, collection: &Name) -> Result<Vec<Record>, StoreError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.up()?.records(collection).await
    }
    async fn events(&self, query: &EventQuery) -> Result<EventPage, StoreError> {
        self.up()?.events(query).await
    }
    async fn news(&self, after: Cursor) -> Result<Cursor, StoreError> {
        self.up()?.news(after).await
    }
    async fn due(&self, limit: usize) -> Result<Nominations, StoreError> {
        self.up()?.due(limit).await
    }
    async fn maintain(&self, retention: &Retention) -> Result<(), StoreError> {
        self.up()?.maintain(retention).await
    }
    async fn usage(&self, tenant: Option<&Name>) -> Result<Usage, StoreError> {
        self.up()?.usage(tenant).await
    }
    async fn scan(&self, query: &ResourceQuery, pages: &Outlet<ResourcePage>) -> Result<(), StoreError> {
        self.up()?.scan(query, pages).await
    }
    async fn export(&self, rows: &mut Exporter) -> Result<(), StoreError> {
        self.up()?.export(rows).await
    }
    async fn import(&self, import: Import) -> Result<(), StoreError> {
        self.up()?.import(import).await
    }
    async fn set_back(&self, seen: Option<Cursor>, bar: Bar) -> Result<(), StoreError> {
        self.store.set_back(seen, bar).await
    }
    async fn retire(&self, to: &str) -> Result<(), StoreError> {
        self.store.retire(to).await
    }
    fn cursor(&self) -> Cursor {
        self.store.cursor()
    }
    async fn close(&self) {
        self.store.close().await;
    }
}
