//! The state that a gate and its tasks share.

use std::{collections::HashMap, sync::Arc};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use solehold_core::{
    fence::{Fence, MarkLookup, Tick, Verdict},
    key::{ResourceKey, SessionId},
    time::Token,
};
use tokio::sync::{Notify, Semaphore, watch};

use super::{options::GateOptions, source::Source, trouble::Trouble};

pub(super) struct GateState {
    pub fence: RwLock<Fence>,
    pub source: Arc<dyn Source>,
    pub options: GateOptions,
    pub refreshes: Refreshes,
    /// Why the store cannot be read, while it cannot.
    pub trouble: Mutex<Trouble>,
    /// Counts changes of the marks and of the proven time.
    pub changes: watch::Sender<u64>,
    /// Wakes the task that saves marks.
    pub to_save: Notify,
}

impl std::fmt::Debug for GateState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GateState").field("options", &self.options).finish_non_exhaustive()
    }
}

impl GateState {
    pub fn now(&self) -> Tick {
        Tick(self.options.clock.0.now().as_nanos())
    }

    pub fn read(&self) -> RwLockReadGuard<'_, Fence> {
        self.fence.read()
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, Fence> {
        self.fence.write()
    }

    pub fn has_changed(&self) {
        self.to_save.notify_one();
        self.changes.send_modify(|count| *count += 1);
    }

    pub fn judge(&self, key: &ResourceKey, token: Token, session: Option<SessionId>) -> Verdict {
        let now = self.now();
        if let Some(verdict) = self.read().judge(key, token, session, now) {
            return verdict;
        }
        let verdict = self.write().admit(key, token, session, now);
        self.has_changed();
        verdict
    }
}

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
        let last = self.under_way.lock().entry(key.clone()).or_default().clone();
        PendingRefresh { refreshes: self, key, last }
    }
}

impl Drop for PendingRefresh<'_> {
    fn drop(&mut self) {
        let mut under_way = self.refreshes.under_way.lock();
        // One is in the map, and one is ours.
        if under_way.get(self.key).is_some_and(|last| Arc::strong_count(last) <= 2) {
            under_way.remove(self.key);
        }
    }
}
