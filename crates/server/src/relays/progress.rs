//! The progress of all relays, read by every replica, whether it is active or not.

use std::time::Duration;

use solehold_core::{key::Name, time::Revision};
use solehold_engine::{
    EngineError,
    store::{EventPage, EventQuery},
};

use super::cursor;
use crate::context::Context;

/// How often to read the cursors.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Keeps events that are not sent yet from compaction, and measures their number and age.
pub async fn follow(context: Context, relays: Vec<Name>) {
    let mut turns = tokio::time::interval(LOOK_EVERY);
    turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        if let Err(error) = look(&context, &relays).await {
            tracing::debug!(%error, "cannot read the cursors of the relays; retrying");
        }
    }
}

async fn look(context: &Context, relays: &[Name]) -> Result<(), EngineError> {
    let engine = context.engine();
    let mut cursors = cursor::all(engine).await?;
    cursors.retain(|(name, _)| relays.contains(name));
    // A relay without a cursor has sent nothing.
    let is_all = cursors.len() == relays.len();
    let sent = cursors.iter().map(|(_, revision)| *revision).min().filter(|_| is_all);
    engine.keep_unsent(Some(sent.unwrap_or_default()));
    for (name, sent) in cursors {
        let query = EventQuery { after: sent, limit: 1, ..Default::default() };
        let page = engine.events(&query).await?;
        let head = engine.cursor().revision;
        let (events, seconds) = lag(&page, sent, head, context.ring.now().0);
        context.metrics.relay_lag(name.as_str(), events, seconds);
    }
    Ok(())
}

/// How many events are not sent, and the age of the oldest of them in seconds.
fn lag(page: &EventPage, sent: Revision, head: Revision, now_ms: u64) -> (u64, f64) {
    let Some(oldest) = page.events.first() else { return (0, 0.0) };
    // Revisions jump when a store begins another history, so count from the oldest event that exists.
    let from = oldest.revision.0.max(sent.0 + 1);
    let events = head.0.max(oldest.revision.0) + 1 - from;
    (events, Duration::from_millis(now_ms.saturating_sub(oldest.at.0)).as_secs_f64())
}
