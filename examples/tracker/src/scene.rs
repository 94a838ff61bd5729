//! One scene, followed under its guard.

use std::time::SystemTime;

use solehold_client::Assignment;
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    settings::Settings,
    tracks::{Tracks, seen_at},
    wire::{Data, Message, Wire},
};

/// Why a scene is followed no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Its next tracker has it, or it is free.
    Released,
    /// The lease was lost.
    Lost,
}

/// Follows a scene until it should be given up, or the lease is lost.
pub async fn follow(settings: &Settings, wire: &Wire, assignment: Assignment) -> (String, Ended) {
    let guard = assignment.guard();
    let scene = guard.resource().key.to_string();
    let mut tracks: Tracks =
        guard.state().and_then(|state| serde_json::from_value(state).ok()).unwrap_or_default();
    tracing::info!(scene, token = %guard.token(), tracks = tracks.tracks.len(), "follows");
    if let Err(lost) = guard.run(publish(settings, wire, &assignment, &mut tracks)).await {
        tracing::warn!(scene, %lost, "stops");
        return (scene, Ended::Lost);
    }
    // The last word goes with the release: the next tracker has the tracks as they are.
    match assignment.into_guard().release_with(&tracks).await {
        Ok(()) => tracing::info!(scene, "released"),
        Err(error) => tracing::warn!(scene, %error, "was not released: it is free when its ttl is over"),
    }
    (scene, Ended::Released)
}

/// Publishes where the objects are, and keeps the tracks. When it is to end, nothing is on its way any more: what came
/// after the next tracker's grant would be refused by a gate.
async fn publish(settings: &Settings, wire: &Wire, assignment: &Assignment, tracks: &mut Tracks) {
    let guard = assignment.guard();
    let scene = guard.resource().key.as_str();
    let mut looks = interval(settings.publish_every);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let keep_every =
        (settings.keep_every.as_millis() / settings.publish_every.as_millis().max(1)).max(1) as u64;
    for sequence in 1u64.. {
        tokio::select! {
            _ = looks.tick() => {}
            () = assignment.should_end() => return,
        }
        let version = guard.token().0;
        let is_new = tracks.follow(scene, version, &seen_at(unix_ms()));
        // Consumers must not see an id that the next tracker would not know: it is kept before it is published.
        if (is_new || sequence.is_multiple_of(keep_every))
            && let Err(error) = guard.write_state(tracks).await
        {
            tracing::debug!(scene, %error, "the tracks were not kept");
        }
        let data = Data { objects: &tracks.tracks };
        let message = Message { scene_id: scene, sequence, tracker: &settings.id, data, version };
        if let Err(error) = wire.publish(&message).await {
            tracing::warn!(scene, %error, "was not published");
        }
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}
