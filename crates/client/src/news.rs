//! Being told at once: one question to the authority, which waits, for all sessions of this program.
//!
//! ```text
//!   listener of session A --+                        +--> A: heartbeat now
//!   listener of session B --+--> one `news` request --+
//!   listener of session C --+    (waits for up to 30 s)
//! ```
//! The word is no proof: it only makes a session send its heartbeat now rather than later. Where the authority cannot
//! tell, or cannot be reached, the heartbeat stays what it was.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use solehold_api::{limits::NEWS_SESSIONS_MAX, watch::Cursor};
use solehold_core::{key::SessionId, time::Revision};
use tokio::sync::{Notify, oneshot};

use crate::{
    authority::{Authority, AuthorityError},
    clock::Backoff,
};

/// Sessions that come within this time go into one question.
const GATHER: Duration = Duration::from_millis(20);
/// How long to wait after a question that was not answered.
const AGAIN: Backoff = Backoff { first: Duration::from_millis(200), cap: Duration::from_secs(10) };

/// What an authority was asked for, and says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct News {
    /// The sessions that something has happened to.
    pub sessions: BTreeSet<SessionId>,
    /// Where to go on from.
    pub cursor: Option<Cursor>,
}

/// What comes of waiting for news.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    /// Something has happened.
    News,
    /// This authority cannot tell.
    Never,
}

/// Those of one authority's sessions that wait for news.
#[derive(Debug, Default)]
pub struct Newsroom {
    shared: Arc<NewsState>,
}

#[derive(Debug, Default)]
struct NewsState {
    desk: Mutex<Desk>,
    /// Someone came or went: the question has to be asked anew.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Desk {
    waiting: HashMap<SessionId, (Revision, oneshot::Sender<Word>)>,
    /// Whether someone asks for them.
    is_asking: bool,
    cursor: Option<Cursor>,
}

impl NewsState {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock()
    }
}

/// Takes a session out again when nobody waits for its news any more.
struct WaitingEntry<'a> {
    shared: &'a NewsState,
    session: SessionId,
}

impl Drop for WaitingEntry<'_> {
    fn drop(&mut self) {
        let is_gone = |sender: &oneshot::Sender<Word>| sender.is_closed();
        let mut desk = self.shared.desk();
        if desk.waiting.get(&self.session).is_some_and(|(_, sender)| is_gone(sender)) {
            desk.waiting.remove(&self.session);
            self.shared.changed.notify_one();
        }
    }
}

impl Newsroom {
    /// Waits until something has happened to a session whose set of leases is known as of a revision.
    pub(crate) async fn wait(
        &self,
        authority: &Arc<dyn Authority>,
        session: SessionId,
        known: Revision,
    ) -> Word {
        let (sender, mut word) = oneshot::channel();
        {
            let mut desk = self.shared.desk();
            desk.waiting.insert(session, (known, sender));
            if !std::mem::replace(&mut desk.is_asking, true) {
                tokio::spawn(ask(self.shared.clone(), authority.clone()));
            }
        }
        self.shared.changed.notify_one();
        let place = WaitingEntry { shared: &self.shared, session };
        let told = (&mut word).await;
        word.close();
        drop(place);
        // The task that asked for us is gone: a heartbeat does no harm.
        told.unwrap_or(Word::News)
    }
}

/// Asks for all who wait, for as long as there are any.
async fn ask(shared: Arc<NewsState>, authority: Arc<dyn Authority>) {
    let mut failures = 0;
    loop {
        tokio::time::sleep(GATHER).await;
        let (known, from) = {
            let mut desk = shared.desk();
            if desk.waiting.is_empty() {
                desk.is_asking = false;
                return;
            }
            let known = desk.waiting.iter().map(|(id, (revision, _))| (*id, *revision));
            (known.take(NEWS_SESSIONS_MAX).collect::<Vec<_>>(), desk.cursor)
        };
        let answer = tokio::select! {
            answer = authority.news(&known, from, authority.wait_max()) => answer,
            () = shared.changed.notified() => continue,
        };
        match answer {
            None => return shared.tell_all(Word::Never),
            Some(Ok(news)) => {
                failures = 0;
                shared.tell(&news);
            }
            Some(Err(error)) => {
                failures += 1;
                wait_after(failures, &error).await;
            }
        }
    }
}

async fn wait_after(failures: u32, error: &AuthorityError) {
    tracing::debug!(why = error.why(), "no news can be had now");
    let wait = AGAIN.wait(failures, 0.5).max(error.retry_after().unwrap_or_default());
    tokio::time::sleep(wait).await;
}

impl NewsState {
    fn tell(&self, news: &News) {
        let mut desk = self.desk();
        desk.cursor = news.cursor;
        for id in &news.sessions {
            if let Some((_, sender)) = desk.waiting.remove(id) {
                // One that is gone need not be told.
                let _ = sender.send(Word::News);
            }
        }
    }

    /// The last word to all: nobody asks for them from now on.
    fn tell_all(&self, word: Word) {
        let mut desk = self.desk();
        desk.is_asking = false;
        for (_, (_, sender)) in desk.waiting.drain() {
            let _ = sender.send(word);
        }
    }
}
