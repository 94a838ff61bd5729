//! The embedded store as a fixture: a folder of its own, and a clock that moves when it is told to.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use solehold_conformance::Fixture;
use solehold_core::{command::Footprint, time::StoreTime};
use solehold_engine::{
    clock::ManualClock,
    embedded::{Folder, FolderLimits},
    resident::ResidentStore,
    store::Store,
};
use solehold_testkit::TempDir;

pub struct Embedded {
    pub ticks: Arc<ManualClock>,
    pub folder: TempDir,
    pub limits: FolderLimits,
    others: Mutex<Vec<TempDir>>,
}

impl Embedded {
    pub fn new() -> Self {
        Self::with(FolderLimits::default())
    }

    pub fn with(limits: FolderLimits) -> Self {
        Self { ticks: Arc::default(), folder: folder(), limits, others: Mutex::default() }
    }

    fn store(&self, folder: &TempDir) -> Arc<dyn Store> {
        let journal = Folder::open_with(folder.path(), self.limits).expect("a data folder");
        ResidentStore::embedded_with(journal, self.ticks.clone(), Default::default())
            .expect("an embedded store")
    }
}

fn folder() -> TempDir {
    TempDir::new().expect("a temporary folder")
}

#[async_trait]
impl Fixture for Embedded {
    async fn open(&self) -> Arc<dyn Store> {
        self.store(&self.folder)
    }

    async fn open_fresh(&self) -> Arc<dyn Store> {
        let folder = folder();
        let store = self.store(&folder);
        self.others.lock().expect("no panic").push(folder);
        store
    }

    async fn pass_until(&self, store: &dyn Store, until: StoreTime) {
        let now = store.load(&Footprint::default()).await.expect("the store reads").now;
        self.ticks.advance_ms(until.ms_after(now));
    }
}
