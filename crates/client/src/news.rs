//! Prompt notification: one long-polling request to the authority for all sessions of this program.
//!
//! ```text
//!   listener of session A --+                        +--> A: heartbeat now
//!   listener of session B --+--> one `news` request --+
//!   listener of session C --+    (waits for up to 30 s)
//! ```
//! A notification proves nothing: it only makes a session send its next heartbeat at once. Without one, the session
//! still learns everything from its regular heartbeats.
//!
//! This module keeps the sessions that wait; `session::listen` sends the request.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use solehold_api::{limits::NEWS_SESSIONS_MAX, watch::Cursor};
use solehold_core::{key::SessionId, time::Revision};
use tokio::sync::{Notify, oneshot};

/// Sessions that wait, each with the revision that it has seen.
type KnownRevisions = Vec<(SessionId, Revision)>;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct News {
    pub sessions: BTreeSet<SessionId>,
    /// Where the next request continues.
    pub cursor: Option<Cursor>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wakeup {
    /// The session's leases may have changed.
    Changed,
    /// This authority does not notify.
    Unsupported,
}

/// The sessions of one authority that wait for news. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Newsroom {
    shared: Arc<NewsState>,
}

#[derive(Debug, Default)]
struct NewsState {
    waiters: Mutex<Waiters>,
    /// A session came or went: the request under way is out of date.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Waiters {
    by_session: HashMap<SessionId, (Revision, oneshot::Sender<Wakeup>)>,
    /// Whether a task sends requests for them.
    is_polled: bool,
    cursor: Option<Cursor>,
}

/// Removes a session when its wait is over or was cancelled.
struct WaitingEntry<'a> {
    shared: &'a NewsState,
    session: SessionId,
}

impl Drop for WaitingEntry<'_> {
    fn drop(&mut self) {
        let mut waiters = self.shared.waiters.lock();
        // The entry may belong to a later wait of the same session.
        if waiters.by_session.get(&self.session).is_some_and(|(_, sender)| sender.is_closed()) {
            waiters.by_session.remove(&self.session);
            self.shared.changed.notify_one();
        }
    }
}

impl Newsroom {
    /// Waits for a change to a session whose leases are known as of a revision. Calls `start_polling` if no task sends
    /// requests yet.
    pub(crate) async fn wait(
        &self,
        session: SessionId,
        known: Revision,
        start_polling: impl FnOnce(Self),
    ) -> Wakeup {
        let (sender, mut wakeup) = oneshot::channel();
        {
            let mut waiters = self.shared.waiters.lock();
            waiters.by_session.insert(session, (known, sender));
            if !waiters.is_polled {
                waiters.is_polled = true;
                start_polling(self.clone());
            }
        }
        self.shared.changed.notify_one();
        let entry = WaitingEntry { shared: &self.shared, session };
        let woken = (&mut wakeup).await;
        wakeup.close();
        drop(entry);
        // The polling task is gone: an extra heartbeat does no harm.
        woken.unwrap_or(Wakeup::Changed)
    }

    /// What the next request covers; none if no session waits: then the polling task must end.
    pub(crate) fn next_request(&self) -> Option<(KnownRevisions, Option<Cursor>)> {
        let mut waiters = self.shared.waiters.lock();
        if waiters.by_session.is_empty() {
            waiters.is_polled = false;
            return None;
        }
        let known = waiters.by_session.iter().map(|(id, (revision, _))| (*id, *revision));
        Some((known.take(NEWS_SESSIONS_MAX).collect(), waiters.cursor))
    }

    pub(crate) async fn changed(&self) {
        self.shared.changed.notified().await;
    }

    pub(crate) fn notify(&self, news: &News) {
        let mut waiters = self.shared.waiters.lock();
        waiters.cursor = news.cursor;
        for id in &news.sessions {
            if let Some((_, sender)) = waiters.by_session.remove(id) {
                // The waiter may be gone.
                let _ = sender.send(Wakeup::Changed);
            }
        }
    }

    /// Ends all waits: the authority does not notify, and the polling task ends.
    pub(crate) fn close(&self) {
        let mut waiters = self.shared.waiters.lock();
        waiters.is_polled = false;
        for (_, (_, sender)) in waiters.by_session.drain() {
            let _ = sender.send(Wakeup::Unsupported);
        }
    }
}
