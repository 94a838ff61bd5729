//! Whether the store answers. While it does not, nobody waits to be told so.

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

/// How often a store that does not answer is tried again.
const PROBE_EVERY: Duration = Duration::from_millis(200);

/// What is known of the store's health.
#[derive(Debug, Default)]
pub struct Health {
    trouble: Mutex<Option<String>>,
    troubled: Notify,
    /// What of the engine itself has died: no store can mend that.
    dead: OnceLock<String>,
}

impl Health {
    /// Refuses at once while the store is known not to answer.
    pub fn check(&self) -> Result<(), EngineError> {
        if let Some(what) = self.dead.get() {
            return Err(StoreError::Unavailable(what.clone()).into());
        }
        match &*self.trouble.lock() {
            Some(what) => Err(StoreError::Unavailable(what.clone()).into()),
            None => Ok(()),
        }
    }

    /// Something without which the engine cannot work has died.
    pub fn died(&self, what: String) {
        // The first says enough.
        let _ = self.dead.set(what);
    }

    /// Takes note of how a call to the store went.
    pub fn heard<T>(&self, result: &Result<T, StoreError>) {
        let trouble = match result {
            // Others were in the way: that says nothing of the store.
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
            (Some(_), None) => tracing::info!("the store is available again"),
            _ => {}
        }
        let is_trouble = trouble.is_some();
        *known = trouble;
        if is_trouble {
            self.troubled.notify_one();
        }
    }

    fn is_troubled(&self) -> bool {
        self.trouble.lock().is_some()
    }

    /// Tries a troubled store again and again until it answers; for ever.
    pub async fn probe(self: Arc<Self>, store: Arc<dyn Store>) {
        loop {
            self.troubled.notified().await;
            while self.is_troubled() {
                tokio::time::sleep(PROBE_EVERY).await;
                self.heard(&store.load(&Footprint::default()).await);
            }
        }
    }
}
