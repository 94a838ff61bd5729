//! The state of a session, shared by its handles, its guards and its tasks.
//!
//! It keeps one *incarnation* at a time: a session of the store, with a renewer that decides when to send heartbeats,
//! and the leases that guards stand for. [`Phase`] says whether there is one:
//!
//! ```text
//!               begin                     lose_all, suspend
//!   Reopening ─────────> Live(session) ─────────────────────> Reopening
//!       │                     │
//!       └──── lose_all ───────┴── lose_all, close ──────────> Over(why)     final: closed, or superseded
//! ```
//! | kept in | what | changed by |
//! |---|---|---|
//! | `incarnation` (one lock) | renewer, leases with guards, the store's history | `begin`, and the methods in `leases` |
//! | `phase` | see above; changed only under that lock | `begin`, `lose_all`, `suspend` |
//! | `window` | deadlines of the incarnation, as its guards read them | `begin` replaces it, `answered` moves it |
//! | `sets` | the newest set of leases that the authority has reported | `begin`, `answered` |
//! | `claims` | resources with a guard or a request under way | [`claim`](super::claim) |
//! | `contact` | whether heartbeats are answered | `begin`, `answered`, the driver |
//!
//! The driver calls `begin`, `answered`, `lose_all` and `suspend`; guards call `hold` (through an acquire) and
//! `let_go`. `opening` has the way to an incarnation, `leases` has what happens to leases while there is one.

mod leases;
mod opening;

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use solehold_clock::{AlarmClock, BootTime};
use solehold_core::{
    key::{LeaseId, Name, SessionId},
    time::Revision,
};
use tokio::{
    runtime::Handle,
    sync::{Notify, Semaphore, watch},
};
use uuid::Uuid;

use super::{
    claims::Claims,
    config::{OpenError, SessionConfig, Surroundings},
    holding::{Holding, Window},
};
use crate::{
    authority::{Authority, Beat, Metrics, ResourceName},
    coalesce::Coalescer,
    history::History,
    renewer::{Lost, Renewer, Timing},
};

/// Abandoned requests that are cancelled at the same time.
const SPENDING_MAX: usize = 8;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    Live(SessionId),
    /// There is no session yet, or it was lost and another one is being opened.
    Reopening,
    /// No other session will be opened.
    Over(Lost),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Contact {
    /// The last heartbeat was answered.
    Kept,
    /// Heartbeats fail since this happened, and are retried.
    Missing(String),
}

/// The newest set of leases that is known, and when it was requested: later changes may be missing from it.
#[derive(Debug, Clone)]
pub(crate) struct KnownSet {
    pub asked: BootTime,
    pub beat: Beat,
}

impl KnownSet {
    /// The lease on a resource, active or pending.
    pub fn lease_of(&self, resource: &ResourceName) -> Option<LeaseId> {
        let active = self.beat.leases.iter().find(|held| held.resource == *resource).map(|held| held.lease);
        let pending = || self.beat.pending.iter().find(|(_, of)| of == resource).map(|(lease, _)| *lease);
        active.or_else(pending)
    }
}

/// The present session of the store; empty while there is none.
#[derive(Debug, Default)]
struct Incarnation {
    renewer: Option<Renewer>,
    /// The store's history as the last renewer knew it.
    history: History,
    holdings: HashMap<LeaseId, Arc<Holding>>,
}

impl Incarnation {
    /// Ends it, and returns the leases that had guards.
    fn end(&mut self) -> HashMap<LeaseId, Arc<Holding>> {
        if let Some(renewer) = self.renewer.take() {
            self.history = renewer.history().clone();
        }
        std::mem::take(&mut self.holdings)
    }

    fn history(&self) -> &History {
        self.renewer.as_ref().map_or(&self.history, Renewer::history)
    }
}

pub(crate) struct Inner {
    pub holder: Name,
    pub config: SessionConfig,
    pub authority: Arc<dyn Authority>,
    pub coalescer: Coalescer,
    surroundings: Surroundings,
    runtime: Handle,
    incarnation: Mutex<Incarnation>,
    phase: watch::Sender<Phase>,
    contact: watch::Sender<Contact>,
    /// Counts the notifications of the authority.
    notifications: watch::Sender<u64>,
    sets: watch::Sender<Option<KnownSet>>,
    answered_beat: watch::Sender<BootTime>,
    window: Mutex<Arc<Window>>,
    /// Wakes the driver, which does not keep the session while it sleeps.
    pub changed: Arc<Notify>,
    /// For the next incarnation; the present one may have been opened with another ttl.
    timing: Mutex<Timing>,
    pub metrics: Mutex<Metrics>,
    pub spending: Semaphore,
    pub claims: Claims,
    /// The id of the session that is being opened, until an attempt is answered: repeats use the same id.
    opening: Mutex<Option<SessionId>>,
    last: Mutex<Option<SessionId>>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("holder", &self.holder).field("phase", &*self.phase.borrow()).finish()
    }
}

impl Inner {
    pub async fn open(
        surroundings: Surroundings,
        authority: Arc<dyn Authority>,
        config: SessionConfig,
        holder: Name,
    ) -> Result<Arc<Self>, OpenError> {
        let metrics = Mutex::new(config.metrics.clone());
        let timing = Timing { ttl: config.ttl, every: config.every(), policy: config.policy };
        let inner = Arc::new(Self {
            coalescer: Coalescer::start(&authority),
            holder,
            config,
            authority,
            surroundings,
            runtime: Handle::current(),
            incarnation: Mutex::default(),
            phase: watch::Sender::new(Phase::Reopening),
            contact: watch::Sender::new(Contact::Kept),
            notifications: watch::Sender::new(0),
            sets: watch::Sender::new(None),
            answered_beat: watch::Sender::new(BootTime::from_nanos(0)),
            window: Mutex::default(),
            changed: Arc::default(),
            timing: Mutex::new(timing),
            metrics,
            spending: Semaphore::new(SPENDING_MAX),
            claims: Claims::default(),
            opening: Mutex::default(),
            last: Mutex::default(),
        });
        inner.first_session().await?;
        Ok(inner)
    }

    pub fn timing(&self) -> Timing {
        *self.timing.lock()
    }

    /// Renews this often from now on; the ttl is that of the next session.
    pub fn set_timing(&self, ttl: Duration, every: Duration) {
        let policy = self.config.policy;
        *self.timing.lock() = Timing { ttl, every, policy };
        self.with_renewer(|renewer| renewer.set_every(every));
        self.changed.notify_one();
    }

    /// What the next heartbeat shows of the store's history.
    pub fn sealed_cursor(&self) -> Option<String> {
        self.incarnation.lock().history().sealed_cursor().map(str::to_owned)
    }

    fn window(&self) -> Arc<Window> {
        self.window.lock().clone()
    }

    pub fn clock(&self) -> &dyn AlarmClock {
        &*self.surroundings.clock
    }

    pub fn clock_handle(&self) -> Arc<dyn AlarmClock> {
        self.surroundings.clock.clone()
    }

    pub fn unit(&self) -> f64 {
        self.surroundings.chance.unit()
    }

    pub fn fresh_id(&self) -> Uuid {
        self.surroundings.chance.id()
    }

    pub fn fresh_request(&self) -> Name {
        Name::new(self.fresh_id().to_string()).expect("a uuid is a name")
    }

    /// How long to wait after `failures` failures in a row, and at least `at_least`.
    pub fn backoff(&self, failures: u32, at_least: Option<Duration>) -> Duration {
        self.config.backoff.wait(failures, self.unit()).max(at_least.unwrap_or_default())
    }

    /// Waits by the clock that keeps counting while the machine is suspended.
    pub async fn pause(&self, wait: Duration) {
        self.clock().wait_until(self.clock().now().plus(wait)).await;
    }

    pub fn trusted_until(&self) -> BootTime {
        self.window().trusted_until()
    }

    pub fn stop_at(&self) -> BootTime {
        self.window().stop_at()
    }

    /// `None` while there is no renewer.
    pub fn with_renewer<T>(&self, work: impl FnOnce(&mut Renewer) -> T) -> Option<T> {
        self.incarnation.lock().renewer.as_mut().map(work)
    }

    /// `None` if that session is no longer the present one.
    pub fn with_renewer_of<T>(&self, session: SessionId, work: impl FnOnce(&mut Renewer) -> T) -> Option<T> {
        let mut incarnation = self.incarnation.lock();
        let is_present = *self.phase.borrow() == Phase::Live(session);
        incarnation.renewer.as_mut().filter(|_| is_present).map(work)
    }

    pub fn sets(&self) -> watch::Receiver<Option<KnownSet>> {
        self.sets.subscribe()
    }

    /// The newest set of the present session.
    pub fn set(&self) -> Option<KnownSet> {
        let session = self.live_session()?;
        self.sets.borrow().as_ref().filter(|known| known.beat.session == session).cloned()
    }

    /// The revision of the newest set of leases that is known.
    pub fn known_set(&self) -> Option<Revision> {
        self.sets.borrow().as_ref().map(|known| known.beat.revision)
    }

    /// Sends the next heartbeat now: the session's leases may have changed.
    pub fn beat_now(&self) {
        let now = self.clock().now();
        self.with_renewer(|renewer| renewer.on_news(now));
        self.changed.notify_one();
    }

    /// The authority has notified the session of a change.
    pub fn notified(&self) {
        self.notifications.send_modify(|count| *count += 1);
        self.beat_now();
    }

    pub fn notifications(&self) -> watch::Receiver<u64> {
        self.notifications.subscribe()
    }

    pub fn phases(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    pub fn contact(&self) -> watch::Receiver<Contact> {
        self.contact.subscribe()
    }

    fn has_contact(&self) {
        self.contact.send_if_modified(|contact| std::mem::replace(contact, Contact::Kept) != Contact::Kept);
    }

    /// A request failed. The first failure is the one that is reported.
    pub fn lacks_contact(&self, why: &str) {
        self.contact.send_if_modified(|contact| {
            let is_new = *contact == Contact::Kept;
            if is_new {
                *contact = Contact::Missing(why.to_owned());
            }
            is_new
        });
    }

    pub fn phase(&self) -> Phase {
        self.phase.borrow().clone()
    }

    pub fn live_session(&self) -> Option<SessionId> {
        match &*self.phase.borrow() {
            Phase::Live(id) => Some(*id),
            Phase::Reopening | Phase::Over(_) => None,
        }
    }

    pub async fn ready(&self) -> Result<SessionId, Lost> {
        let mut phases = self.phase.subscribe();
        loop {
            match &*phases.borrow_and_update() {
                Phase::Live(id) => return Ok(*id),
                Phase::Over(lost) => return Err(lost.clone()),
                Phase::Reopening => {}
            }
            if phases.changed().await.is_err() {
                return Err(Lost::Closed);
            }
        }
    }

    pub async fn close(&self) {
        let session = self.live_session();
        let is_idle = self.incarnation.lock().holdings.is_empty();
        self.lose_all(&Lost::Closed, Phase::Over(Lost::Closed));
        self.changed.notify_one();
        if let Some(session) = session.filter(|_| is_idle) {
            close(&*self.authority, session).await;
        }
    }

    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(work);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Phase::Live(session) = self.phase.borrow().clone() else { return };
        let authority = self.authority.clone();
        self.runtime.spawn(async move { close(&*authority, session).await });
    }
}

async fn close(authority: &dyn Authority, session: SessionId) {
    if let Err(error) = authority.close(session).await {
        tracing::debug!(%error, %session, "cannot close the session; it ends when its ttl is over");
    }
}
