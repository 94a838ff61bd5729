//! Whether the store is available. While it is not, commands fail at once instead of waiting for it.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use parking_lot::Mutex;
use solehold_core::command::Footprint;
use tokio::sync::Notify;

use crate::{
    error::EngineError,
    store::{Store, StoreError},
};

/// How often an unavailable store is probed.
const PROBE_EVERY: Duration = Duration::from_millis(200);

/// The health of the store and of the engine's own tasks.
#[derive(Debug, Default)]
pub struct Health {
    trouble: Mutex<Option<String>>,
    troubled: Notify,
    /// The task of the engine that has died: only a restart of the process helps.
    dead: OnceLock<String>,
}

impl Health {
    /// Fails at once while the store is unavailable.
    pub fn check(&self) -> Result<(), EngineError> {
        self.check_lanes()?;
        match &*self.trouble.lock() {
            Some(what) => Err(StoreError::Unavailable(what.clone()).into()),
            None => Ok(()),
        }
    }

    /// Fails if a task without which the engine cannot work has died, whatever the store says.
    pub fn check_lanes(&self) -> Result<(), EngineError> {
        match self.dead.get() {
            Some(what) => Err(StoreError::Unavailable(what.clone()).into()),
            None => Ok(()),
        }
    }

    /// Records that a task without which the engine cannot work has died.
    pub fn died(&self, what: String) {
        // The first one is enough.
        let _ = self.dead.set(what);
    }

    /// Records the result of a call to the store.
    pub fn heard<T>(&self, result: &Result<T, StoreError>) {
        let trouble = match result {
            // A conflict says nothing about the store.
            Err(StoreError::Contended { .. }) => return,
            Err(StoreError::Unavailable(what) | StoreError::Unknown(what)) => Some(what.clone()),
            Ok(_)
            | Err(
                StoreError::Unusable(_)
                | StoreError::InUse { .. }
                | StoreError::NotEmpty
                | StoreError::Barred { .. }
                | StoreError::Retired { .. },
            ) => None,
        };
        let mut known = self.trouble.lock();
        match (&*known, &trouble) {
            (None, Some(what)) => {
                tracing::warn!(error = %what, "the store is unavailable; commands fail until it answers")
            }
            (Some(_), None) => tracing::info!("the store answers again"),
            _ => {}
        }
        let is_trouble = trouble.is_some();
        *known = trouble;
        if is_trouble {
            self.troubled.notify_one();
        }
    }

    /// Probes an unavailable store until it answers; never returns.
    pub async fn probe(self: Arc<Self>, store: Arc<dyn Store>) {
        loop {
            self.troubled.notified().await;
            while self.trouble.lock().is_some() {
                tokio::time::sleep(PROBE_EVERY).await;
                self.heard(&store.load(&Footprint::default()).await);
            }
        }
    }
}
