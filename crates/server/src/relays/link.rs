//! One connection that many senders share, and that is opened again after it broke.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio::sync::Mutex;

use super::window::Failure;

/// A connection that is opened when it is needed.
#[derive(Debug)]
pub struct SharedLink<L> {
    slot: Mutex<Slot<L>>,
    attempts: AtomicU64,
}

#[derive(Debug)]
struct Slot<L> {
    link: Option<Arc<L>>,
    failure: Failure,
}

impl<L> Default for SharedLink<L> {
    fn default() -> Self {
        let slot = Slot { link: None, failure: Failure::Away("not connected".to_owned()) };
        Self { slot: Mutex::new(slot), attempts: AtomicU64::new(0) }
    }
}

impl<L> SharedLink<L> {
    /// The connection; a new one if there is none, or if it is down. Senders that wait while another one connects share
    /// the result, so that many senders do not make many attempts.
    pub async fn get(
        &self,
        is_up: impl Fn(&L) -> bool,
        connect: impl Future<Output = Result<L, Failure>>,
    ) -> Result<Arc<L>, Failure> {
        let seen = self.attempts.load(Ordering::Acquire);
        let mut slot = self.slot.lock().await;
        if let Some(link) = slot.link.as_ref().filter(|link| is_up(link)) {
            return Ok(link.clone());
        }
        if self.attempts.load(Ordering::Acquire) != seen {
            return Err(slot.failure.clone());
        }
        slot.link = None;
        let made = connect.await;
        self.attempts.fetch_add(1, Ordering::Release);
        match made {
            Ok(link) => Ok(slot.link.insert(Arc::new(link)).clone()),
            Err(failure) => {
                slot.failure = failure.clone();
                Err(failure)
            }
        }
    }

    /// Drops a connection that failed: the next sender opens another one.
    pub async fn forget(&self, link: &Arc<L>) {
        let mut slot = self.slot.lock().await;
        if slot.link.as_ref().is_some_and(|present| Arc::ptr_eq(present, link)) {
            slot.link = None;
        }
    }
}
