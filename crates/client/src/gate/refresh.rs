//! Judges a token, reading its resource from the store where that settles it.

use std::time::Duration;

use solehold_core::{
    fence::{Doubt, MarkLookup, Tick, Verdict},
    key::{ResourceKey, SessionId},
    time::Token,
};

use super::{follow, refreshes::Told, state::GateState};
use crate::authority::AuthorityError;

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
    let place = shared.refreshes.join(key);
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

/// The verdict by what the store said.
async fn conclude(
    shared: &GateState,
    message: (&ResourceKey, Token, Option<SessionId>),
    (asked, answer, epoch): Told,
    within: Duration,
) -> Verdict {
    let (key, token, session) = message;
    // A resource that nobody declared is shown only while it is held. The watch knows it longer.
    if answer == MarkLookup::Nothing && shared.read().told().is_some() {
        let caught_up = until(shared, || shared.read().proven() >= Some(asked));
        if tokio::time::timeout(within, caught_up).await.is_err() {
            return shared.judge(key, token, session);
        }
    }
    if answer != MarkLookup::Nothing {
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
