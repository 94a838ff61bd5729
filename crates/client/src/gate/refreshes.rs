//! Which resources are being read from the store: one read per resource at a time, and not too many at once.

use std::{collections::HashMap, sync::Arc};

use parking_lot::{Mutex, MutexGuard};
use solehold_core::{
    fence::{MarkLookup, Tick},
    key::ResourceKey,
};
use tokio::sync::Semaphore;

/// Reads under way at once.
const READS_MAX: usize = 64;

/// When the store was read, the answer, and its epoch.
pub(super) type Told = (Tick, MarkLookup, Option<u64>);

/// Reads of single resources that are under way.
pub(super) struct Refreshes {
    under_way: Mutex<HashMap<ResourceKey, Last>>,
    pub permits: Semaphore,
}

impl Default for Refreshes {
    fn default() -> Self {
        Self { under_way: Mutex::default(), permits: Semaphore::new(READS_MAX) }
    }
}

/// The last answer for a resource. The task that holds the lock reads the store.
type Last = Arc<tokio::sync::Mutex<Option<Told>>>;

/// A caller that waits for a read of a resource. The last one removes the answer.
pub(super) struct PendingRefresh<'a> {
    refreshes: &'a Refreshes,
    key: &'a ResourceKey,
    pub last: Last,
}

impl Refreshes {
    pub fn join<'a>(&'a self, key: &'a ResourceKey) -> PendingRefresh<'a> {
        let last = self.under_way().entry(key.clone()).or_default().clone();
        PendingRefresh { refreshes: self, key, last }
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<ResourceKey, Last>> {
        self.under_way.lock()
    }
}

impl Drop for PendingRefresh<'_> {
    fn drop(&mut self) {
        let mut under_way = self.refreshes.under_way();
        // One is in the map, and one is ours.
        if under_way.get(self.key).is_some_and(|last| Arc::strong_count(last) <= 2) {
            under_way.remove(self.key);
        }
    }
}
