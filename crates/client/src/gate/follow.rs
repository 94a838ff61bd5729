//! What keeps a gate's knowledge up to date: the watch, and the question how far the store is.

use std::{sync::Arc, time::Duration};

use solehold_api::watch::{Cursor, LeaseEvent, Ownership, WatchFrame};
use solehold_clock::Backoff;
use solehold_core::{
    event::EventName,
    fence::{Fence, Mark, Tick},
    key::{Name, ResourceKey, SessionId},
    time::{Revision, Token},
};
use uuid::Uuid;

use super::{
    source::{Frames, NoWatch},
    state::GateState,
};
use crate::{authority::AuthorityError, history::OlderHistory};

/// How often the store is asked how far it is.
const HEAD_EVERY: Duration = Duration::from_secs(1);
/// A stream that says nothing for this long is given up: a server sends at least a comment or a progress mark.
const SILENCE_MAX: Duration = Duration::from_secs(30);
const AGAIN: Backoff = Backoff { first: Duration::from_millis(100), cap: Duration::from_secs(5) };
/// How long the store counts as away after it was not reached, besides the time that the next question may take: longer
/// than until that is asked.
const AWAY_FOR: Duration = Duration::from_secs(2);

/// Watches, however often the connection is lost.
pub(super) async fn watch(shared: Arc<GateState>) {
    let mut cursor = None;
    let mut failures = 0;
    loop {
        let ended = follow(&shared, &mut cursor, &mut failures).await;
        if ended == Some(NoWatch::Compacted) && cursor.take().is_some() {
            continue;
        }
        failures += 1;
        let (why, retry_after) = match &ended {
            Some(NoWatch::Failed(error)) => {
                if let AuthorityError::Denied { why, .. } = error {
                    is_denied(&shared, why);
                }
                (error.why(), error.retry_after())
            }
            _ => ("the server ended the stream", None),
        };
        tracing::debug!(why, "gate watch interrupted; reconnecting");
        let wait = AGAIN.wait(failures, rand::random()).max(retry_after.unwrap_or_default());
        tokio::time::sleep(wait).await;
    }
}

/// One connection, from the cursor on. Gives why it ended; none if the server ended it.
async fn follow(shared: &GateState, cursor: &mut Option<Cursor>, failures: &mut u32) -> Option<NoWatch> {
    let asked = shared.now();
    // What is known by another way of a newer history makes the cursor worthless.
    *cursor = cursor.filter(|cursor| cursor.epoch == shared.read().epoch());
    let options = &shared.options;
    let opened = shared.source.watch(&options.tenant, options.only_kind(), *cursor);
    let mut frames = match opened.await {
        Ok(frames) => frames,
        Err(why) => return Some(why),
    };
    let mut stream = WatchConnection { shared, asked, cursor, has_begun: false };
    loop {
        let frame = match next(&mut *frames).await {
            Ok(Some(frame)) => frame,
            Ok(None) => return None,
            Err(error) => return Some(error.into()),
        };
        *failures = 0;
        shared.trouble.lock().is_told();
        if let Err(why) = stream.take(frame) {
            return Some(why);
        }
    }
}

async fn next(frames: &mut dyn Frames) -> Result<Option<WatchFrame>, AuthorityError> {
    let silent =
        |_| AuthorityError::unreachable(format!("the watch was silent for {} s", SILENCE_MAX.as_secs()));
    tokio::time::timeout(SILENCE_MAX, frames.next()).await.map_err(silent)?
}

struct WatchConnection<'a> {
    shared: &'a GateState,
    asked: Tick,
    cursor: &'a mut Option<Cursor>,
    /// A part of the snapshot has come.
    has_begun: bool,
}

impl WatchConnection<'_> {
    fn take(&mut self, frame: WatchFrame) -> Result<(), NoWatch> {
        match frame {
            WatchFrame::Snapshot(part) => {
                if !self.has_begun {
                    self.has_begun = true;
                    let is_followed = self.shared.write().snapshot_begins(part.cursor.epoch);
                    self.followed(is_followed, part.cursor)?;
                }
                // A lock for each, so that nobody waits for a whole page.
                for owned in &part.resources {
                    let key = key(&owned.tenant, &owned.kind, &owned.key, owned.slot);
                    self.tell(key, |fence, key| fence.learn(key, newest(owned)));
                }
                if !part.more {
                    *self.cursor = Some(part.cursor);
                    self.shared.write().snapshot_ends(Revision(part.cursor.revision), self.asked);
                }
            }
            WatchFrame::Event(event) if event.event_type == EventName::LeaseRenewed => return Ok(()),
            WatchFrame::Event(event) => {
                self.reached(event.cursor)?;
                self.learn_event(&event);
                self.shared.write().told_up_to(Revision(event.cursor.revision));
            }
            WatchFrame::Progress(progress) => {
                self.reached(progress.cursor)?;
                self.shared.write().told_up_to(Revision(progress.cursor.revision));
            }
            WatchFrame::Compacted(_) => return Err(NoWatch::Compacted),
            WatchFrame::Resync(resync) => return Err(AuthorityError::unreachable(resync.reason).into()),
        }
        self.shared.has_changed();
        Ok(())
    }

    /// The stream has come to a cursor. One of another epoch has not been told of from its beginning.
    fn reached(&mut self, cursor: Cursor) -> Result<(), NoWatch> {
        let mut fence = self.shared.write();
        let is_same = fence.told().is_some() && fence.epoch() == cursor.epoch;
        let is_followed = fence.follow(cursor.epoch);
        drop(fence);
        self.followed(is_followed, cursor)?;
        if !is_same {
            return Err(NoWatch::Compacted);
        }
        *self.cursor = (*self.cursor).max(Some(cursor));
        Ok(())
    }

    fn followed(&self, is_followed: bool, told: Cursor) -> Result<(), NoWatch> {
        if is_followed { Ok(()) } else { Err(older(self.shared, told.epoch).into()) }
    }

    fn learn_event(&self, event: &LeaseEvent) {
        let Some(key) = key(&event.tenant, &event.kind, &event.key, event.slot) else { return };
        if event.event_type == EventName::ResourceDeleted {
            self.shared.write().deleted(&key);
        } else if let Some(token) = event.token {
            self.tell(Some(key), |fence, key| fence.granted(key, mark(token, event.session_id)));
        }
    }

    /// Tells the fence of a resource, if it is one of the gate's.
    fn tell(&self, key: Option<ResourceKey>, news: impl FnOnce(&mut Fence, &ResourceKey)) {
        let is_ours = |key: &ResourceKey| {
            let options = &self.shared.options;
            key.tenant == options.tenant && options.kinds.contains(&key.kind)
        };
        if let Some(key) = key.filter(is_ours) {
            news(&mut self.shared.write(), &key);
        }
    }
}

fn key(tenant: &str, kind: &str, key: &str, slot: Option<u32>) -> Option<ResourceKey> {
    // What is no name is no resource that anyone could ask for.
    let name = |text: &str| Name::new(text).ok();
    Some(ResourceKey::new(name(tenant)?, name(kind)?, name(key)?).of_slot(slot.unwrap_or(0)))
}

fn newest(owned: &Ownership) -> Mark {
    mark(owned.token, owned.session_id)
}

/// A mark as the wire has it.
pub(super) fn mark(token: u64, session: Option<Uuid>) -> Mark {
    Mark { token: Token(token), session: session.map(SessionId) }
}

/// An answer from an older history is as good as none.
pub(super) fn older(shared: &GateState, told: u64) -> AuthorityError {
    let why = OlderHistory { seen: shared.read().epoch(), told }.to_string();
    tracing::warn!(why, "gate ignores the store: it answers from an older history");
    AuthorityError::unreachable(why)
}

/// Asks again and again how far the store is: when the watch has told everything up to there, everything that was
/// decided before the question is known.
pub(super) async fn ask_for_heads(shared: Arc<GateState>) {
    loop {
        let asked = shared.now();
        let answer = tokio::time::timeout(shared.options.refresh_within, shared.source.head()).await;
        match answer {
            Ok(Ok(head)) => {
                shared.trouble.lock().is_back();
                let is_followed = shared.write().head_was(head.epoch, Revision(head.revision), asked);
                if !is_followed {
                    is_away(&shared);
                }
            }
            Ok(Err(AuthorityError::Denied { why, .. })) => is_denied(&shared, &why),
            Ok(Err(error)) => {
                shared.trouble.lock().is_away(error.why().to_owned());
                is_away(&shared);
            }
            Err(_) => {
                let why = format!("no answer within {:?}", shared.options.refresh_within);
                shared.trouble.lock().is_away(why);
                is_away(&shared);
            }
        }
        shared.has_changed();
        tokio::time::sleep(HEAD_EVERY).await;
    }
}

pub(super) fn is_denied(shared: &GateState, why: &str) {
    shared.trouble.lock().is_denied(why, shared.now());
    shared.write().store_denies();
}

pub(super) fn is_away(shared: &GateState) {
    let time = AWAY_FOR + shared.options.refresh_within;
    let until = shared.now().plus(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    shared.write().store_is_away(until);
}
