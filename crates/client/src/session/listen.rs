//! Listens for news of the session, and sends its heartbeat at once when there is some.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use super::inner::{Inner, Phase};
use crate::news::Word;

/// How long the heartbeat that follows news may take before news are asked for again.
const BEAT_WITHIN: Duration = Duration::from_secs(1);

/// Listens for as long as anyone holds a handle to the session, or until the authority says that it cannot tell.
pub(super) async fn listen(session: Weak<Inner>) {
    loop {
        let Some(inner) = session.upgrade() else { return };
        let (mut phases, authority) = (inner.phases(), inner.authority.clone());
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
        let word = tokio::select! {
            word = newsroom.wait(&authority, id, known) => word,
            changed = phases.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
        };
        match word {
            Word::Never => return,
            Word::News => beat_now(&session).await,
        }
    }
}

/// Lets the driver send a heartbeat now, and waits until it was answered.
async fn beat_now(session: &Weak<Inner>) {
    let Some(inner) = session.upgrade() else { return };
    let mut sets = inner.sets();
    sets.mark_unchanged();
    inner.is_told();
    drop(inner);
    let _ = tokio::time::timeout(BEAT_WITHIN, sets.changed()).await;
}

/// Starts to listen.
pub(super) fn start(inner: &Arc<Inner>) {
    inner.spawn(listen(Arc::downgrade(inner)));
}
