//! One scene, followed under its guard.

use std::time::SystemTime;

use solehold_client::Guard;
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};

use crate::{
    settings::Settings,
    tracks::{Tracks, seen_at},
    wire::{Data, Message, Wire},
};

/// Why a scene is followed no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Its next tracker has it.
    HandedOver,
    /// This tracker ends, and nobody asked for it.
    Released,
    /// The lease was lost.
    Lost,
}

/// Follows a scene until its next tracker asks for it, `stop` is true, or the lease is lost.
pub async fn follow(settings: &Settings, wire: &Wire, guard: Guard, stop: watch::Receiver<bool>) -> Ended {
    let scene = guard.resource().key.to_string();
    let mut tracks: Tracks =
        guard.state().and_then(|state| serde_json::from_value(state).ok()).unwrap_or_default();
    tracing::info!(scene, token = %guard.token(), tracks = tracks.tracks.len(), "follows");
    let ended = match guard.run(publish(settings, wire, &guard, &mut tracks, stop)).await {
        Ok(ended) => ended,
        Err(lost) => {
            tracing::warn!(scene, %lost, "stops");
            return Ended::Lost;
        }
    };
    // The last word goes with the release: the next tracker has the tracks as they are.
    match guard.release_with(&tracks).await {
        Ok(()) => tracing::info!(scene, ?ended, "released"),
        Err(error) => tracing::warn!(scene, %error, "was not released: it is free when its ttl is over"),
    }
    ended
}

/// Publishes where the objects are, and keeps the tracks. When it is to end, nothing is on its way any more: what came
/// after the next tracker's grant would be refused by a gate.
async fn publish(
    settings: &Settings,
    wire: &Wire,
    guard: &Guard,
    tracks: &mut Tracks,
    mut stop: watch::Receiver<bool>,
) -> Ended {
    let scene = guard.resource().key.as_str();
    let mut looks = interval(settings.publish_every);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let keep_every =
        (settings.keep_every.as_millis() / settings.publish_every.as_millis().max(1)).max(1) as u64;
    for sequence in 1u64.. {
        tokio::select! {
            _ = looks.tick() => {}
            _ = guard.hand_over_asked() => return Ended::HandedOver,
            _ = stop.wait_for(|stop| *stop) => return Ended::Released,
        }
        let version = guard.token().0;
        tracks.follow(scene, version, &seen_at(unix_ms()));
        let data = Data { objects: &tracks.tracks };
        let message = Message { scene_id: scene, sequence, tracker: &settings.id, data, version };
        if let Err(error) = wire.publish(&message).await {
            tracing::warn!(scene, %error, "was not published");
        }
        if sequence.is_multiple_of(keep_every)
            && let Err(error) = guard.write_state(tracks).await
        {
            tracing::debug!(scene, %error, "the tracks were not kept");
        }
    }
    Ended::Released
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}
