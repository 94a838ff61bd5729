//! Waiting in line, as a replica does it for its clients (rule 15).
//!
//! ```text
//!   acquire --free--> granted
//!      |
//!      +--held--> in line: a row of the store, attached to the session of this replica's waiting room
//!                   |-- granted     notified by the commit here, or by the event of another replica's commit
//!                   |-- try again   the place may be lost: the same request is submitted again
//!                   |-- timed out   leaves the line, unless the grant came first
//!                   `-- dropped     leaves the line, and releases a grant that came first, unless the client named its
//!                                   request: it may have repeated that elsewhere, and have the grant
//! ```
//! The room is one session, kept by one heartbeat however many callers wait. No caller polls: one task follows the
//! events and notifies the callers that they concern.
//!
//! - [`WaitingRoom::acquire`] (this file) is one caller's way through these states.
//! - `callers` has who waits here; a `PlaceInLine` leaves the line when its caller disconnects.
//! - `upkeep` opens, renews and closes the room's session. When the store was away for longer than the room's ttl, it
//!   opens another room and all callers rejoin the line in their order of arrival.

mod callers;
mod upkeep;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use solehold_core::{
    call::{Actor, Call},
    command::{Acquire, Claim, Command, Footprint, Target, Wait},
    event::{Event, What},
    key::{LeaseId, Name, ResourceKey, SessionId},
    lease::LeaseStatus,
    limits::{SESSION_WAITERS_MAX, WAIT_MS_MAX},
    outcome::{Answer, Grant, LeaseView, Outcome, Refusal},
};
use tokio::{
    runtime::Handle,
    sync::{Notify, Semaphore},
};
use uuid::Uuid;

use crate::{
    clock::BootTime,
    driver::Driver,
    error::EngineError,
    store::{Cursor, Store, StoreError},
    watch::Hub,
};
use callers::{Callers, Notice, PlaceInLine};

/// After this many failed attempts to leave the line, the wait's own deadline ends it.
const LEAVE_ATTEMPTS: u32 = 10;
const RETRY_AFTER: Duration = Duration::from_millis(200);
/// Store time has milliseconds: a shorter wait is none.
const LEAST_WAIT: Duration = Duration::from_millis(1);

pub(crate) struct WaitingRoom {
    store: Arc<dyn Store>,
    driver: Driver,
    hub: Arc<Hub>,
    /// A place may be dropped outside of the runtime, and still has to leave the line.
    runtime: Handle,
    /// The room's session; none while the room is closed.
    session: tokio::sync::Mutex<Option<SessionId>>,
    /// The head of the history before the room was opened: no grant to a caller in it comes earlier.
    opened_at: Mutex<Option<Cursor>>,
    was_opened: Notify,
    callers: Mutex<Callers>,
    /// The number of callers, without their lock: every commit looks at it.
    count: AtomicUsize,
    places: Arc<Semaphore>,
    is_stopping: AtomicBool,
}

impl WaitingRoom {
    pub(crate) fn new(store: Arc<dyn Store>, driver: Driver, hub: Arc<Hub>) -> Arc<Self> {
        Arc::new(Self {
            store,
            driver,
            hub,
            runtime: Handle::current(),
            session: tokio::sync::Mutex::default(),
            opened_at: Mutex::default(),
            was_opened: Notify::new(),
            callers: Mutex::default(),
            count: AtomicUsize::new(0),
            places: Arc::new(Semaphore::new(SESSION_WAITERS_MAX as usize)),
            is_stopping: AtomicBool::new(false),
        })
    }

    /// Acquires, waiting in line for at most `wait`.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        mut acquire: Acquire,
        by: Actor,
        wait: Duration,
    ) -> Result<Outcome, EngineError> {
        let began = BootTime::now();
        if self.is_stopping.load(Ordering::SeqCst) {
            return Err(EngineError::Stopping);
        }
        let Ok(permit) = self.places.clone().try_acquire_owned() else {
            return Ok(Err(Refusal::QueueFull { waiting: SESSION_WAITERS_MAX, where_: "at this replica" }));
        };
        let is_made_up = acquire.request.is_none();
        if is_made_up {
            acquire.request = Some(fresh_request()?);
        }
        let mut place = PlaceInLine::take(self, &acquire, by, permit, !is_made_up);
        // A resource with no other caller here is mostly free, and granted without a room. All others go straight to
        // the end of the line.
        if place.is_alone || wait < LEAST_WAIT {
            acquire.wait = None;
            let outcome = self.driver.submit(place.call(&acquire)).await?;
            if wait < LEAST_WAIT || !matches!(outcome, Err(Refusal::Held { .. } | Refusal::HeldBack { .. })) {
                place.is_settled = true;
                return Ok(outcome);
            }
        }
        loop {
            let left = wait.saturating_sub(BootTime::now().since(began));
            if left < LEAST_WAIT {
                let outcome = self.time_out(&mut acquire, &place).await?;
                place.is_settled = true;
                return Ok(outcome);
            }
            let attempt = match self.attempt(&mut acquire, left, &mut place).await {
                Ok(attempt) => attempt,
                // A retry has the same request id, so it is safe. The place is lost only with its room.
                Err(error) if place.has_waited && !matches!(error, EngineError::Stopping) => {
                    tracing::debug!(resource = %acquire.key, %error, "a waiting acquire failed; will retry");
                    tokio::time::sleep(RETRY_AFTER.min(left)).await;
                    None
                }
                Err(error) => return Err(error),
            };
            match attempt {
                // The grant lapsed before the caller learned of it. The request id was made up here, so another one
                // may take its place.
                Some(Err(Refusal::RequestSpent(_))) if is_made_up => acquire.request = Some(fresh_request()?),
                Some(outcome) => {
                    place.is_settled = true;
                    return Ok(outcome);
                }
                None => {}
            }
            place.renew(&mut acquire);
        }
    }

    /// Joins the line and waits for a notice. Returns none if the place in line was lost, or may be: try again.
    async fn attempt(
        self: &Arc<Self>,
        acquire: &mut Acquire,
        left: Duration,
        place: &mut PlaceInLine,
    ) -> Result<Option<Outcome>, EngineError> {
        let room = self.session().await?;
        let wait_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).min(WAIT_MS_MAX);
        acquire.wait = Some(Wait { room, wait_ms });
        match self.driver.submit(place.call(acquire)).await? {
            Ok(Answer::Waiting(_)) => self.callers.lock().joined_line(acquire),
            Err(Refusal::NoSession { session, .. }) if session == room => {
                // In a task, so that it is completed even if this caller disconnects: it restores all callers' places.
                let this = self.clone();
                let _ = self.runtime.spawn(async move { this.lost(room).await }).await;
                return Ok(None);
            }
            outcome => return Ok(Some(outcome)),
        }
        place.has_waited = true;
        match tokio::time::timeout(left, &mut place.notice).await {
            Ok(Ok(Notice::Granted)) => {
                let granted = self.granted(acquire).await?;
                Ok(granted.map(|grant| Ok(Answer::Granted(grant))))
            }
            Ok(Ok(Notice::TryAgain)) => Ok(None),
            Ok(Err(_)) => Err(EngineError::Stopping),
            // Out of time, which `acquire` handles.
            Err(_) => Ok(None),
        }
    }

    /// Leaves the line and acquires one last time: the outcome is a grant that was made meanwhile, or a refusal that
    /// names the holder.
    async fn time_out(&self, acquire: &mut Acquire, place: &PlaceInLine) -> Result<Outcome, EngineError> {
        acquire.wait = None;
        let leases = [place.former, Some(place.lease)].into_iter().flatten();
        let leave = leases.map(|lease| Command::LeaveQueue { key: acquire.key.clone(), lease }.into());
        let calls = leave.chain([place.call(acquire)]).collect();
        self.driver.submit_all(calls).await.pop().unwrap_or(Err(EngineError::Stopping))
    }

    /// The grant of this acquire, if it is still active.
    async fn granted(&self, acquire: &Acquire) -> Result<Option<Grant>, StoreError> {
        let footprint = Footprint { resources: vec![acquire.key.clone()], ..Default::default() };
        let loaded = self.store.load(&footprint).await?;
        // The grant may be on a slot.
        let held = loaded.state.resource_of(acquire.lease).and_then(|key| loaded.state.resource(key));
        let Some(resource) = held else { return Ok(None) };
        let view = LeaseView::of(&loaded.state, resource, loaded.now).ok().flatten();
        let is_its = |view: &LeaseView| view.lease.id == acquire.lease && view.status == LeaseStatus::Active;
        Ok(view.filter(is_its).map(|lease| Grant {
            lease,
            state: resource.state.clone(),
            revision: loaded.cursor.revision,
            repeated: false,
        }))
    }

    /// Notifies the callers that events of a commit grant a lease to.
    pub(crate) fn committed(&self, events: &[Event]) {
        if self.count.load(Ordering::SeqCst) > 0 {
            events.iter().for_each(|event| self.notify_of(event));
        }
    }

    fn notify_of(&self, event: &Event) {
        if let What::Acquired(lease) = &event.what {
            self.callers.lock().notify(lease.id, Notice::Granted);
        }
    }

    /// Leaves the line on behalf of a caller that has disconnected, and releases a grant that came first. Not with
    /// `keeps_grant`: a repeat of the request may have been given the same grant at another replica, and the client
    /// works by it. If not, it lapses, or the client cancels the request.
    async fn leave(&self, key: ResourceKey, lease: LeaseId, by: &Actor, keeps_grant: bool) {
        let call = |command| Call::new(command, by.clone());
        for _ in 0..LEAVE_ATTEMPTS {
            let left = self.driver.submit(call(Command::LeaveQueue { key: key.clone(), lease })).await;
            let left = match left {
                Ok(Ok(Answer::Granted(_))) if !keeps_grant => {
                    let target = Target::Lease { tenant: key.tenant.clone(), id: lease };
                    let claim = Claim { target, token: None, session: None, holder: None };
                    self.driver.submit(call(Command::Release { claim, state: None })).await
                }
                other => other,
            };
            match left {
                Ok(_) | Err(EngineError::Stopping) => return,
                Err(_) => tokio::time::sleep(RETRY_AFTER).await,
            }
        }
    }
}

fn fresh_request() -> Result<Name, StoreError> {
    Name::new(Uuid::now_v7().to_string()).map_err(|error| StoreError::Unusable(error.to_string()))
}
