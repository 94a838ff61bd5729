//! Keeps the room's session alive while callers wait, and passes on the events of other replicas.
//!
//! ```text
//!   none --first waiter--> open --empty for 30 s, or stop--> none
//!                           |  ^
//!              session lost v  | opened again; all callers rejoin in order of arrival
//!                          none
//! ```
//! Only this file changes `WaitingRoom::session`, under its lock: a caller that comes while a lost room is replaced
//! waits for the lock, and so joins the line behind the callers that were there before it.

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use solehold_core::{
    call::{Actor, Call},
    command::{Acquire, Command, Footprint, Wait},
    key::{Name, SessionId},
    limits::ROOM_TTL_MS,
    outcome::Answer,
};
use uuid::Uuid;

use super::{RETRY_AFTER, WaitingRoom, callers::Notice};
use crate::{
    error::EngineError,
    store::{Cursor, StoreError},
    watch::{Filter, Frame},
};

const HEARTBEAT_EVERY: Duration = Duration::from_millis(500);
/// A room that has been empty for this many heartbeats is closed.
const EMPTY_BEATS_MAX: u32 = 60;
/// How long a stopping engine tries to close its room; the room's ttl ends it anyway.
const CLOSE_WITHIN: Duration = Duration::from_millis(500);

impl WaitingRoom {
    /// Keeps the room while callers are in it, and follows the events of all replicas; never returns.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            self.was_opened.notified().await;
            let from = self.opened_at.lock().take();
            tokio::select! {
                () = self.keep() => {}
                () = self.follow(from) => {}
            }
        }
    }

    /// Opens the room if it is closed.
    pub(super) async fn session(&self) -> Result<SessionId, EngineError> {
        let mut session = self.session.lock().await;
        match *session {
            Some(id) => Ok(id),
            None => self.open(&mut session).await,
        }
    }

    async fn open(&self, session: &mut Option<SessionId>) -> Result<SessionId, EngineError> {
        let opened_at = self.store.head().await?;
        let id = SessionId(Uuid::now_v7());
        let opened = self.driver.submit(Command::OpenRoom { id, ttl_ms: ROOM_TTL_MS }.into()).await?;
        opened.map_err(|refusal| StoreError::Unusable(format!("cannot open a waiting room: {refusal}")))?;
        *session = Some(id);
        *self.opened_at.lock() = Some(opened_at);
        self.was_opened.notify_one();
        Ok(id)
    }

    /// Replaces a room whose session has ended: all callers in it rejoin the line, before any that come later.
    pub(super) async fn lost(&self, id: SessionId) {
        let mut session = self.session.lock().await;
        if session.take_if(|session| *session == id).is_none() {
            return;
        }
        if let Err(error) = self.rejoin(&mut session).await {
            tracing::debug!(session = %id, %error, "cannot reopen the lost waiting room; its waiters will retry");
            self.callers.lock().all_try_again();
        }
    }

    /// Opens another room and submits the acquires of all callers again, in their order of arrival.
    async fn rejoin(&self, session: &mut Option<SessionId>) -> Result<(), EngineError> {
        let room = self.open(session).await?;
        let mut all: Vec<(u64, Acquire, Actor)> = {
            let callers = self.callers.lock();
            callers.in_line().map(|c| (c.arrival, c.acquire.clone(), c.by.clone())).collect()
        };
        all.sort_by_key(|(arrival, ..)| *arrival);
        // The store bounds each wait by the time first requested; the caller's own timer ends it earlier.
        let again = |(_, acquire, by): &(u64, Acquire, Actor)| {
            let wait = acquire.wait.map(|wait| Wait { room, ..wait });
            Call::new(Command::Acquire(Acquire { wait, ..acquire.clone() }), by.clone())
        };
        let outcomes = self.driver.submit_all(all.iter().map(again).collect()).await;
        for ((_, acquire, _), outcome) in all.iter().zip(outcomes) {
            let notice = match outcome {
                Ok(Ok(Answer::Waiting(_))) => continue,
                Ok(Ok(Answer::Granted(_))) => Notice::Granted,
                _ => Notice::TryAgain,
            };
            self.callers.lock().notify(acquire.lease, notice);
        }
        Ok(())
    }

    /// Returns when the room was lost, or closed because it was empty.
    async fn keep(&self) {
        let mut empty_beats = 0;
        let mut had_missing = false;
        loop {
            tokio::time::sleep(HEARTBEAT_EVERY).await;
            let Some(session) = *self.session.lock().await else { return };
            empty_beats = if self.count.load(Ordering::SeqCst) == 0 { empty_beats + 1 } else { 0 };
            if empty_beats > EMPTY_BEATS_MAX && self.close_if_empty().await {
                return;
            }
            let tenant = Name::rooms();
            let beat = Command::Heartbeat { tenant, session, holder: None, metrics: None };
            match self.driver.submit(beat.into()).await {
                Ok(Ok(Answer::Session(view))) => {
                    let in_line = self.callers.lock().in_line().count();
                    let is_missing = (view.session.waiting as usize) < in_line;
                    // A grant is announced shortly after it is made: look only for callers that stay missing.
                    if is_missing && had_missing {
                        self.look_for_missing().await;
                    }
                    had_missing = is_missing;
                }
                Ok(_) => return self.lost(session).await,
                Err(error) => tracing::debug!(%session, %error, "waiting room heartbeat failed; will retry"),
            }
        }
    }

    /// Finds callers that lost their place other than by a grant: their session was closed, or their request was
    /// cancelled elsewhere. A caller whose request moved to another call has not lost its place; it only waits for its
    /// own time to run out.
    async fn look_for_missing(&self) {
        let all: Vec<_> = {
            let callers = self.callers.lock();
            callers.in_line().map(|c| (c.acquire.key.clone(), c.acquire.lease, c.request())).collect()
        };
        let resources: BTreeSet<_> = all.iter().map(|(key, ..)| key.clone()).collect();
        let footprint = Footprint {
            resources: resources.into_iter().collect(),
            waiters: all.iter().map(|(key, id, _)| (key.clone(), *id)).collect(),
            requests: all.iter().filter_map(|(.., request)| request.clone()).collect(),
            ..Default::default()
        };
        let Ok(loaded) = self.store.load(&footprint).await else { return };
        for (_, lease, request) in all {
            let moved_to = request.and_then(|request| loaded.state.waiter_of_request(&request));
            match (loaded.state.waiter_of_lease(lease), moved_to) {
                (Some(_), _) => {}
                (None, Some(_)) => self.callers.lock().left_line(lease),
                (None, None) => self.callers.lock().notify(lease, Notice::TryAgain),
            }
        }
    }

    async fn follow(&self, mut from: Option<Cursor>) {
        loop {
            if let Err(error) = self.follow_from(from.take()).await {
                tracing::debug!(%error, "the waiting room cannot read events; will retry");
            }
            tokio::time::sleep(RETRY_AFTER).await;
        }
    }

    async fn follow_from(&self, from: Option<Cursor>) -> Result<(), EngineError> {
        let start = match from {
            Some(cursor) => cursor,
            None => self.store.head().await?,
        };
        let watch = self.hub.clone().watch(Some(start), Filter::default()).await;
        let mut watch = watch.map_err(|error| StoreError::Unavailable(error.to_string()))?;
        if from.is_none() {
            // Events since the last read may have been missed.
            self.callers.lock().all_try_again();
        }
        while let Some(frame) = watch.next().await {
            match frame {
                Frame::Event { event, .. } => self.notify_of(&event),
                Frame::Compacted { .. } => break,
                Frame::Snapshot(_) | Frame::Renewed(_) | Frame::Progress(_) => {}
            }
        }
        Ok(())
    }

    async fn close_if_empty(&self) -> bool {
        let mut session = self.session.lock().await;
        if self.count.load(Ordering::SeqCst) > 0 {
            return false;
        }
        self.close(&mut session).await;
        true
    }

    /// If it fails, the ttl ends the session.
    async fn close(&self, session: &mut Option<SessionId>) {
        if let Some(session) = session.take() {
            let _ = self.driver.submit(Command::CloseSession { tenant: Name::rooms(), session }.into()).await;
        }
    }

    /// Turns all callers away and closes the room.
    pub(crate) async fn stop(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        // Each of them learns that the replica is stopping.
        self.callers.lock().by_lease.clear();
        let close = async { self.close(&mut *self.session.lock().await).await };
        let _ = tokio::time::timeout(CLOSE_WITHIN, close).await;
    }
}
