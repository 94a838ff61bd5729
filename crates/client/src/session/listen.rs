//! Listens for changes to the session's leases, and sends a heartbeat at once when there is one.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use solehold_clock::Backoff;

use super::inner::{Inner, Phase};
use crate::{
    authority::Authority,
    news::{Newsroom, Wakeup},
};

/// How long to wait for the answer to the heartbeat before listening again.
const BEAT_WITHIN: Duration = Duration::from_secs(1);
/// Sessions that begin to wait within this time share one request.
const GATHER: Duration = Duration::from_millis(20);
const RETRY: Backoff = Backoff { first: Duration::from_millis(200), cap: Duration::from_secs(10) };

pub(super) fn start(inner: &Arc<Inner>) {
    inner.spawn(listen(Arc::downgrade(inner)));
}

/// Listens for as long as there is a handle to the session, or until the authority turns out not to notify.
async fn listen(session: Weak<Inner>) {
    let mut notified_to = None;
    loop {
        let Some(inner) = session.upgrade() else { return };
        let mut phases = inner.phases();
        let authority = inner.authority.clone();
        let (Phase::Live(id), Some(known)) = (inner.phase(), inner.known_set()) else {
            drop(inner);
            if phases.changed().await.is_err() {
                return;
            }
            continue;
        };
        let Some(newsroom) = authority.newsroom() else { return };
        // Not kept meanwhile: a session without handles ends.
        drop(inner);
        let start_polling = |newsroom| {
            tokio::spawn(poll(newsroom, authority.clone()));
        };
        let wakeup = tokio::select! {
            wakeup = newsroom.wait(id, known, notified_to, start_polling) => wakeup,
            changed = phases.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
        };
        match wakeup {
            Wakeup::Unsupported => return,
            Wakeup::Changed(up_to) => {
                notified_to = up_to;
                beat_now(&session).await;
            }
        }
    }
}

/// Lets the driver send a heartbeat now, and waits for the answer.
async fn beat_now(session: &Weak<Inner>) {
    let Some(inner) = session.upgrade() else { return };
    let mut sets = inner.sets();
    sets.mark_unchanged();
    inner.notified();
    drop(inner);
    let _ = tokio::time::timeout(BEAT_WITHIN, sets.changed()).await;
}

/// Sends requests for news for all waiting sessions, for as long as there are any.
async fn poll(newsroom: Newsroom, authority: Arc<dyn Authority>) {
    let mut failures = 0;
    loop {
        tokio::time::sleep(GATHER).await;
        let Some((known, from)) = newsroom.next_request() else { return };
        let answer = tokio::select! {
            answer = authority.news(&known, from, authority.wait_max()) => answer,
            () = newsroom.changed() => continue,
        };
        match answer {
            None => return newsroom.close(),
            Some(Ok(news)) => {
                failures = 0;
                newsroom.notify(&known, &news);
            }
            Some(Err(error)) => {
                failures += 1;
                let wait = RETRY.wait(failures, 0.5).max(error.retry_after().unwrap_or_default());
                tracing::debug!(why = error.why(), ?wait, "cannot wait for lease changes; retrying");
                tokio::time::sleep(wait).await;
            }
        }
    }
}
