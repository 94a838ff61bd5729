//! The state that a gate and its tasks share.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use solehold_core::{
    fence::{Fence, Tick, Verdict},
    key::{ResourceKey, SessionId},
    time::Token,
};
use tokio::sync::{Notify, watch};

use super::{options::GateOptions, refreshes::Refreshes, source::Source, trouble::Trouble};

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

    /// What is known has changed.
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
