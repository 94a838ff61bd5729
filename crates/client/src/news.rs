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

/// The sessions of one request, each with the revision that it has seen, and the cursor up to which all of them have
/// been notified.
pub(crate) type NewsRequest = (Vec<(SessionId, Revision)>, Option<Cursor>);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct News {
    pub sessions: BTreeSet<SessionId>,
    /// Where the next request continues.
    pub cursor: Option<Cursor>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wakeup {
    /// The session's leases may have changed. It has been notified of everything up to the cursor.
    Changed(Option<Cursor>),
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
    by_session: HashMap<SessionId, Waiter>,
    /// Whether a task sends requests for them.
    is_polled: bool,
}

#[derive(Debug)]
struct Waiter {
    known: Revision,
    /// Its own: while it does not wait, the requests of others go past events that concern it.
    notified_to: Option<Cursor>,
    sender: oneshot::Sender<Wakeup>,
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
        if waiters.by_session.get(&self.session).is_some_and(|waiter| waiter.sender.is_closed()) {
            waiters.by_session.remove(&self.session);
            self.shared.changed.notify_one();
        }
    }
}

impl Newsroom {
    /// Waits for a change to a session whose leases are known as of a revision, and which has been notified up to a
    /// cursor. Calls `start_polling` if no task sends requests yet.
    pub(crate) async fn wait(
        &self,
        session: SessionId,
        known: Revision,
        notified_to: Option<Cursor>,
        start_polling: impl FnOnce(Self),
    ) -> Wakeup {
        let (sender, mut wakeup) = oneshot::channel();
        {
            let mut waiters = self.shared.waiters.lock();
            waiters.by_session.insert(session, Waiter { known, notified_to, sender });
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
        woken.unwrap_or(Wakeup::Changed(None))
    }

    /// What the next request covers; none if no session waits: then the polling task must end.
    pub(crate) fn next_request(&self) -> Option<NewsRequest> {
        let mut waiters = self.shared.waiters.lock();
        if waiters.by_session.is_empty() {
            waiters.is_polled = false;
            return None;
        }
        let covered = || waiters.by_session.iter().take(NEWS_SESSIONS_MAX);
        let known = covered().map(|(id, waiter)| (*id, waiter.known)).collect();
        let cursors: Option<Vec<Cursor>> = covered().map(|(_, waiter)| waiter.notified_to).collect();
        Some((known, cursors.and_then(|cursors| earliest(&cursors))))
    }

    pub(crate) async fn changed(&self) {
        self.shared.changed.notified().await;
    }

    /// Wakes the sessions that have news, and notes for all that the request covered how far they were notified.
    pub(crate) fn notify(&self, covered: &[(SessionId, Revision)], news: &News) {
        let mut waiters = self.shared.waiters.lock();
        for (id, _) in covered {
            if let Some(waiter) = waiters.by_session.get_mut(id) {
                waiter.notified_to = news.cursor;
            }
        }
        for id in &news.sessions {
            if let Some(waiter) = waiters.by_session.remove(id) {
                // The waiter may be gone.
                let _ = waiter.sender.send(Wakeup::Changed(news.cursor));
            }
        }
    }

    /// Ends all waits: the authority does not notify, and the polling task ends.
    pub(crate) fn close(&self) {
        let mut waiters = self.shared.waiters.lock();
        waiters.is_polled = false;
        for (_, waiter) in waiters.by_session.drain() {
            let _ = waiter.sender.send(Wakeup::Unsupported);
        }
    }
}

/// The earliest of the cursors; none if they are of different epochs.
fn earliest(cursors: &[Cursor]) -> Option<Cursor> {
    let first = cursors.first()?;
    if cursors.iter().any(|cursor| cursor.epoch != first.epoch) {
        return None;
    }
    cursors.iter().min_by_key(|cursor| cursor.revision).copied()
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn at(revision: u64) -> Option<Cursor> {
        Some(Cursor { epoch: 1, revision })
    }

    fn join(newsroom: &Newsroom, id: SessionId, notified_to: Option<Cursor>) -> oneshot::Receiver<Wakeup> {
        let (sender, wakeup) = oneshot::channel();
        let waiter = Waiter { known: Revision(1), notified_to, sender };
        newsroom.shared.waiters.lock().by_session.insert(id, waiter);
        wakeup
    }

    /// While one session handles its news, the request of another moves on past an event of the first.
    #[test]
    fn a_session_that_waits_again_misses_no_event_in_between() {
        let newsroom = Newsroom::default();
        let ann = SessionId(Uuid::from_u128(1));
        let bea = SessionId(Uuid::from_u128(2));
        let news =
            |sessions: &[SessionId], cursor| News { sessions: sessions.iter().copied().collect(), cursor };
        let mut woken = join(&newsroom, ann, None);
        let _bea = join(&newsroom, bea, None);
        let (covered, from) = newsroom.next_request().expect("both wait");
        assert_eq!(from, None);
        newsroom.notify(&covered, &news(&[ann], at(5)));
        let Ok(Wakeup::Changed(notified_to)) = woken.try_recv() else { panic!("ann has news") };
        let (covered, from) = newsroom.next_request().expect("bea waits");
        assert_eq!((covered.len(), from), (1, at(5)));
        newsroom.notify(&covered, &news(&[], at(9)));
        let _ann = join(&newsroom, ann, notified_to);
        let (covered, from) = newsroom.next_request().expect("both wait");
        assert_eq!((covered.len(), from), (2, at(5)), "from where ann was notified");
        newsroom.notify(&covered, &news(&[], Some(Cursor { epoch: 2, revision: 1 })));
        let _third = join(&newsroom, SessionId(Uuid::from_u128(3)), at(9));
        let (_, from) = newsroom.next_request().expect("all wait");
        assert_eq!(from, None, "no cursor covers two epochs: the rows are read");
    }
}
