//! Asking the store for one resource: one question per resource at a time, and not too many at once.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use solehold_core::{
    fence::{Answer, Doubt, Tick, Verdict},
    key::{ResourceKey, SessionId},
    time::Token,
};
use tokio::sync::Semaphore;

use super::{GateState, follow};
use crate::authority::AuthorityError;

/// Questions under way at once.
const QUESTIONS_MAX: usize = 64;

/// What the store said, when it was asked.
type Told = (Tick, Answer, Option<u64>);

/// The questions that are under way.
pub(super) struct Refreshes {
    under_way: Mutex<HashMap<ResourceKey, Last>>,
    permits: Semaphore,
}

impl Default for Refreshes {
    fn default() -> Self {
        Self { under_way: Mutex::default(), permits: Semaphore::new(QUESTIONS_MAX) }
    }
}

/// Judges, and asks the store where that settles it.
pub(super) async fn decide(
    shared: &GateState,
    key: &ResourceKey,
    token: Token,
    session: Option<SessionId>,
) -> Verdict {
    let arrived = shared.now();
    let mut verdict = shared.judge(key, token, session);
    let Verdict::Undecidable(doubt) = verdict else { return verdict };
    let within = shared.options.refresh_within;
    if doubt.needs_a_read() && !shared.read().is_away(arrived) {
        verdict = match tokio::time::timeout(within, ask(shared, key, arrived)).await {
            Ok(Ok(told)) => conclude(shared, (key, token, session), told, within).await,
            Ok(Err(AuthorityError::Denied { why, .. })) => {
                follow::is_denied(shared, &why);
                shared.judge(key, token, session)
            }
            Ok(Err(_)) | Err(_) => {
                follow::is_away(shared);
                shared.judge(key, token, session)
            }
        };
    }
    if verdict == Verdict::Undecidable(Doubt::Unsaved) {
        verdict = when_saved(shared, (key, token, session), within).await;
    }
    verdict
}

/// The store's answer to a question that was asked after `arrived`.
async fn ask(shared: &GateState, key: &ResourceKey, arrived: Tick) -> Result<Told, AuthorityError> {
    let place = shared.refreshes.place(key);
    let mut last = place.last.lock().await;
    if let Some(told) = last.filter(|told| told.0 >= arrived) {
        return Ok(told);
    }
    // The semaphore is never closed.
    let _permit = shared.refreshes.permits.acquire().await;
    let asked = shared.now();
    let (answer, epoch) = shared.source.newest(key).await?;
    *last = Some((asked, answer, epoch));
    Ok((asked, answer, epoch))
}

/// The last answer for a resource. The task that holds the lock asks.
type Last = Arc<tokio::sync::Mutex<Option<Told>>>;

/// One who asks for a resource. The last one to leave takes the answer along.
struct PendingRefresh<'a> {
    refreshes: &'a Refreshes,
    key: &'a ResourceKey,
    last: Last,
}

impl Refreshes {
    fn place<'a>(&'a self, key: &'a ResourceKey) -> PendingRefresh<'a> {
        let last = self.under_way().entry(key.clone()).or_default().clone();
        PendingRefresh { refreshes: self, key, last }
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<ResourceKey, Last>> {
        self.under_way.lock()
    }
}

impl Drop for PendingRefresh<'_> {
    fn drop(&mut self) {
        let mut under_way = self.refreshes.under_way();
        // One is in the map, and one is ours.
        if under_way.get(self.key).is_some_and(|last| Arc::strong_count(last) <= 2) {
            under_way.remove(self.key);
        }
    }
}

/// The verdict by what the store said.
async fn conclude(
    shared: &GateState,
    message: (&ResourceKey, Token, Option<SessionId>),
    (asked, answer, epoch): Told,
    within: Duration,
) -> Verdict {
    let (key, token, session) = message;
    // A resource that nobody declared is shown only while it is held. The watch knows it longer.
    if answer == Answer::Nothing && shared.read().told().is_some() {
        let caught_up = until(shared, || shared.read().proven() >= Some(asked));
        if tokio::time::timeout(within, caught_up).await.is_err() {
            return shared.judge(key, token, session);
        }
    }
    if answer != Answer::Nothing {
        shared.trouble.lock().is_told();
    }
    let verdict = shared.write().conclude(message, (answer, epoch), asked, shared.now());
    shared.has_changed();
    verdict.unwrap_or_else(|| {
        follow::older(shared, epoch.unwrap_or_default());
        shared.judge(key, token, session)
    })
}

/// The verdict when what was raised has been saved.
async fn when_saved(
    shared: &GateState,
    (key, token, session): (&ResourceKey, Token, Option<SessionId>),
    within: Duration,
) -> Verdict {
    let unsaved = Verdict::Undecidable(Doubt::Unsaved);
    let is_saved = until(shared, || shared.judge(key, token, session) != unsaved);
    // If not in time, it is as undecidable as before.
    let _ = tokio::time::timeout(within, is_saved).await;
    shared.judge(key, token, session)
}

/// Waits until something holds that changes only with what is known.
async fn until(shared: &GateState, mut holds: impl FnMut() -> bool) {
    let mut changes = shared.changes.subscribe();
    while !holds() {
        if changes.changed().await.is_err() {
            return;
        }
    }
}
