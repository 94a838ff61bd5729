//! What a session, its guards and its driver share.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
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
    claims::{ClaimStatus, Claims, ResourceClaim},
    config::{OpenError, SessionConfig, Surroundings},
    endings,
    holding::{Holding, Window},
};
use crate::{
    authority::{
        Attributes, Authority, AuthorityError, Beat, GrantedLease, HeartbeatAttempt, HeldLease, Metrics,
        Opening, RefusalReason, Reply, ResourceName,
    },
    clock::{AlarmClock, BootTime},
    coalesce::Coalescer,
    history::History,
    renewer::{Lost, Renewer, Timing},
};

/// Requests that are spent at once.
const SPENDING_MAX: usize = 8;

/// Where a session is in its life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It is open.
    Live(SessionId),
    /// It was lost, and another one is being opened.
    Reopening,
    /// There will be no other.
    Over(Lost),
}

/// Whether the authority answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Contact {
    /// The last heartbeat was answered.
    Kept,
    /// No heartbeat was answered since this went wrong; they are repeated.
    Missing(String),
}

/// The newest set of leases that is known, and when it was asked for: what has happened since may be missing from it.
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

/// What is known of the session, under one lock.
#[derive(Debug, Default)]
struct Core {
    renewer: Option<Renewer>,
    /// What the last renewer knew of the store's history.
    history: History,
    holdings: HashMap<LeaseId, Arc<Holding>>,
}

impl Core {
    fn end_session(&mut self) -> HashMap<LeaseId, Arc<Holding>> {
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
    core: Mutex<Core>,
    phase: watch::Sender<Phase>,
    contact: watch::Sender<Contact>,
    /// Counts the times that the authority told of news.
    told: watch::Sender<u64>,
    sets: watch::Sender<Option<KnownSet>>,
    answered_beat: watch::Sender<BootTime>,
    /// Of the present incarnation.
    window: Mutex<Arc<Window>>,
    /// Wakes the driver, which does not keep the session while it sleeps.
    changed: Arc<Notify>,
    /// How the next session is kept; the present one may have been opened for another ttl.
    timing: Mutex<Timing>,
    metrics: Mutex<Metrics>,
    pub spending: Semaphore,
    pub claims: Claims,
    /// The id of the session that is being opened, until an attempt is answered.
    opening: Mutex<Option<SessionId>>,
    /// The last session that was opened.
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
            coalescer: Coalescer::start(authority.clone()),
            holder,
            config,
            authority,
            surroundings,
            runtime: Handle::current(),
            core: Mutex::default(),
            phase: watch::Sender::new(Phase::Reopening),
            contact: watch::Sender::new(Contact::Kept),
            told: watch::Sender::new(0),
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

    /// Opens the first session, trying for as long as the configuration says.
    async fn first_session(&self) -> Result<(), OpenError> {
        let give_up = self.clock().now().plus(self.config.open_timeout);
        for failures in 1.. {
            let error = match self.try_open().await {
                Ok(Ok((sent, beat))) => match self.begin(sent, &beat) {
                    Ok(_) => return Ok(()),
                    Err(error) => error,
                },
                Ok(Err(refusal)) => return Err(refusal.into()),
                Err(error) => error,
            };
            let wait = self.backoff(failures, error.retry_after());
            if self.clock().now().plus(wait) >= give_up {
                return Err(error.into());
            }
            tracing::debug!(%error, ?wait, "no session yet");
            self.pause(wait).await;
        }
        unreachable!("it is tried until it is given up")
    }

    /// One attempt to open a session, and when what was answered was sent. A holder that remembers the store's history
    /// shows it before it begins: a store that was set back hears of it before it grants anything.
    pub async fn try_open(&self) -> Reply<(BootTime, Beat)> {
        let sent = self.clock().now();
        // Until one is answered, all attempts are for the same session: a late one must not supersede another.
        let id = *self.opening.lock().get_or_insert_with(|| SessionId(self.fresh_id()));
        let (holder, ttl, metrics, follows) =
            (self.holder.clone(), self.timing().ttl, self.metrics(), *self.last.lock());
        let opening = Opening { id, holder, ttl, metrics, follows };
        let opened = self.authority.open(&opening).await?;
        if let Ok(opened) = &opened {
            *self.last.lock() = Some(opened.session);
        }
        if opened.as_ref().map_or_else(RefusalReason::ends_session, |_| true) {
            self.opening.lock().take();
        }
        let opened = match opened {
            Ok(opened) => opened,
            Err(refusal) if refusal.ends_session() && !refusal.is_superseded() => {
                let why = "the session expired before the request that opened it was answered";
                return Err(AuthorityError::unreachable(why));
            }
            Err(refusal) => return Ok(Err(refusal)),
        };
        let Some(cursor) = self.sealed_cursor() else { return Ok(Ok((sent, opened))) };
        let (sent, attempt) = (self.clock().now(), HeartbeatAttempt::within(self.timing().patience()));
        let shown =
            self.authority.heartbeat(opened.session, &opening.metrics, Some(&cursor), attempt).await?;
        Ok(shown.map(|beat| (sent, beat)))
    }

    /// A session was opened: it is the present one from now on; false if this one was closed meanwhile. Whatever hung
    /// on another is lost by now, or moved. A store with an older history opens nothing.
    pub fn begin(&self, sent: BootTime, beat: &Beat) -> Result<bool, AuthorityError> {
        let mut core = self.core();
        if matches!(*self.phase.borrow(), Phase::Over(_)) {
            return Ok(false);
        }
        let history = core.history().clone();
        let renewer = Renewer::new(self.timing(), sent, beat, history, self.unit())
            .map_err(|older| AuthorityError::unreachable(older.to_string()))?;
        let window = Arc::<Window>::default();
        window.show(&renewer);
        *self.window.lock() = window;
        core.renewer = Some(renewer);
        self.learn(sent, beat);
        self.phase.send_replace(Phase::Live(beat.session));
        self.has_contact();
        Ok(true)
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
        self.core().history().sealed_cursor().map(str::to_owned)
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

    /// A unique request id.
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

    pub fn metrics(&self) -> Metrics {
        self.metrics.lock().clone()
    }

    pub fn set_metrics(&self, metrics: Metrics) {
        *self.metrics.lock() = metrics;
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock()
    }

    pub fn trusted_until(&self) -> BootTime {
        self.window().trusted_until()
    }

    pub fn stop_at(&self) -> BootTime {
        self.window().stop_at()
    }

    /// Asks the renewer, or tells it something. None while there is none.
    pub fn with_renewer<T>(&self, work: impl FnOnce(&mut Renewer) -> T) -> Option<T> {
        self.core().renewer.as_mut().map(work)
    }

    /// Tells the renewer of a session something. None if that session is no longer the present one.
    pub fn with_renewer_of<T>(&self, session: SessionId, work: impl FnOnce(&mut Renewer) -> T) -> Option<T> {
        let mut core = self.core();
        let is_present = *self.phase.borrow() == Phase::Live(session);
        core.renewer.as_mut().filter(|_| is_present).map(work)
    }

    /// The newest heartbeat that was answered was sent then: those before it have nothing more to say.
    pub fn answered_beats(&self) -> watch::Receiver<BootTime> {
        self.answered_beat.subscribe()
    }

    /// A heartbeat was answered. The guards that have ended by it are told before the others see the new deadline:
    /// nobody sees that deadline together with a guard that it is not for.
    pub fn answered(self: &Arc<Self>, sent: BootTime, beat: &Beat) {
        let (now, unit) = (self.clock().now(), self.unit());
        let mut core = self.core();
        if *self.phase.borrow() != Phase::Live(beat.session) {
            return;
        }
        let Core { renewer: Some(renewer), holdings, .. } = &mut *core else { return };
        let heard = renewer.on_answer(sent, now, beat, unit);
        for lease in heard.ended {
            let Some(holding) = holdings.remove(&lease) else { continue };
            if let Some(reissued) = beat.leases.iter().find(|held| held.lease == lease) {
                holding.reissue(reissued.clone());
            }
            tracing::warn!(resource = %holding.resource, "lost: its lease was ended by someone else");
            holding.lose(Lost::Ended);
        }
        self.window().show(renewer);
        if heard.is_newest {
            for holding in holdings.values() {
                let lease = holding.held().lease;
                let asked = beat.hand_overs.iter().find(|(asked, _)| *asked == lease);
                // Counted from before the question, so that an offer is never taken for longer than it is.
                holding.ask(asked.map(|(_, hand_over)| (hand_over.clone(), sent.plus(hand_over.within))));
            }
            self.learn(sent, beat);
        }
        self.has_contact();
        self.answered_beat.send_if_modified(|at| {
            let is_later = sent > *at;
            *at = sent.max(*at);
            is_later
        });
        drop(core);
        self.changed.notify_one();
        endings::end_what_is_back(self);
    }

    /// A set is known that no other is newer than. It was read after the set before, and so after that one's question.
    fn learn(&self, sent: BootTime, beat: &Beat) {
        self.sets.send_modify(|known| {
            let before = known.as_ref().filter(|known| known.beat.session == beat.session);
            let asked = before.map_or(sent, |before| before.asked.max(sent));
            self.claims.learned(asked);
            *known = Some(KnownSet { asked, beat: beat.clone() });
        });
    }

    /// The answers to heartbeats.
    pub fn sets(&self) -> watch::Receiver<Option<KnownSet>> {
        self.sets.subscribe()
    }

    /// The newest set of the present session.
    pub fn set(&self) -> Option<KnownSet> {
        let session = self.live_session()?;
        self.sets.borrow().as_ref().filter(|known| known.beat.session == session).cloned()
    }

    /// The leases that nothing in this session has a claim on. Where only a newer set is missing, it is asked for.
    pub fn unclaimed(&self) -> Vec<HeldLease> {
        let Some(known) = self.set() else { return Vec::new() };
        let status = |held: &HeldLease| self.claims.status(&held.resource, held.lease, known.asked);
        let (mut unclaimed, mut is_unproven) = (Vec::new(), false);
        for held in known.beat.leases.iter().filter(|held| !self.is_guarded(held.lease)) {
            match status(held) {
                ClaimStatus::Claimed => {}
                ClaimStatus::Unproven => is_unproven = true,
                ClaimStatus::Unclaimed => unclaimed.push(held.clone()),
            }
        }
        if is_unproven {
            self.has_news();
        }
        unclaimed
    }

    /// A claim on a lease that nothing in this session has a claim on yet, and the set that shows the lease.
    pub fn claim_unclaimed(self: &Arc<Self>, lease: &HeldLease) -> Option<(KnownSet, ResourceClaim)> {
        let core = self.core();
        let known = self.set().filter(|known| known.beat.leases.contains(lease))?;
        if core.holdings.contains_key(&lease.lease) {
            return None;
        }
        let claim = ResourceClaim::of_unclaimed(self, &lease.resource, lease.lease, known.asked)?;
        Some((known, claim))
    }

    /// The revision of the newest set of leases that is known.
    pub fn known_set(&self) -> Option<Revision> {
        self.sets.borrow().as_ref().map(|known| known.beat.revision)
    }

    /// Something has happened to the session: the next heartbeat is sent now.
    pub fn has_news(&self) {
        let now = self.clock().now();
        self.with_renewer(|renewer| renewer.on_news(now));
        self.changed.notify_one();
    }

    /// The authority has told that something happened to the session.
    pub fn is_told(&self) {
        self.told.send_modify(|count| *count += 1);
        self.has_news();
    }

    pub fn told(&self) -> watch::Receiver<u64> {
        self.told.subscribe()
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

    /// Something was not answered, or the answer was of no use. What went wrong first is what is told.
    pub fn lacks_contact(&self, why: &str) {
        self.contact.send_if_modified(|contact| {
            let is_new = *contact == Contact::Kept;
            if is_new {
                *contact = Contact::Missing(why.to_owned());
            }
            is_new
        });
    }

    pub fn changed(&self) -> Arc<Notify> {
        self.changed.clone()
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

    /// Takes up a lease that was granted to `session`. None if that session is no longer the present one, if the lease
    /// has ended by what is known already, or if it has a guard.
    pub fn hold(
        &self,
        session: SessionId,
        granted: GrantedLease,
        attributes: Attributes,
    ) -> Option<Arc<Holding>> {
        let mut core = self.core();
        let (lease, token) = (granted.held.lease, granted.held.token);
        if *self.phase.borrow() != Phase::Live(session) || core.holdings.contains_key(&lease) {
            return None;
        }
        let now = self.clock().now();
        let epoch = granted.epoch;
        if !core.renewer.as_mut().is_some_and(|renewer| renewer.granted(lease, token, epoch, now)) {
            return None;
        }
        let holding = Arc::new(Holding::new(granted, attributes, self.window()));
        core.holdings.insert(lease, holding.clone());
        Some(holding)
    }

    /// A guard lets go of what it stands for, which is told. Under the lock, so that nothing more is won back for it.
    pub fn let_go(&self, holding: &Holding) -> HeldLease {
        let mut core = self.core();
        holding.go();
        let held = holding.held();
        core.holdings.remove(&held.lease);
        if let Some(renewer) = &mut core.renewer {
            renewer.released(held.lease);
        }
        holding.reissued().cloned().unwrap_or(held)
    }

    /// The session is lost, and everything attached to it. What guards see is over before anything new begins.
    pub fn lose_all(&self, lost: &Lost, next: Phase) {
        let mut core = self.core();
        let holdings = core.end_session();
        self.phase.send_replace(next);
        for holding in holdings.into_values() {
            holding.lose(lost.clone());
        }
    }

    /// For rule 22: the session is over, and what hung on it may be won back before the grace is.
    pub fn suspend(&self) -> Vec<Arc<Holding>> {
        let mut core = self.core();
        let holdings = core.end_session();
        self.phase.send_replace(Phase::Reopening);
        holdings.into_values().collect()
    }

    /// A suspended lease was won back under a new grant.
    pub fn resume(&self, holding: &Arc<Holding>, granted: GrantedLease) -> bool {
        let mut core = self.core();
        if holding.is_gone() || holding.lost().is_some() {
            return false;
        }
        let (lease, token, epoch) = (granted.held.lease, granted.held.token, granted.epoch);
        let now = self.clock().now();
        let is_held = core.renewer.as_mut().is_some_and(|renewer| renewer.granted(lease, token, epoch, now));
        if is_held {
            holding.renewed_as(granted, self.window());
            core.holdings.insert(lease, holding.clone());
        }
        is_held
    }

    pub async fn close(&self) {
        let session = self.live_session();
        let is_idle = self.core().holdings.is_empty();
        self.lose_all(&Lost::Closed, Phase::Over(Lost::Closed));
        self.changed.notify_one();
        if let Some(session) = session.filter(|_| is_idle)
            && let Err(error) = self.authority.close(session).await
        {
            tracing::debug!(%error, "the session could not be closed: its time runs out");
        }
    }

    /// Whether there is a guard for a lease.
    pub fn is_guarded(&self, lease: LeaseId) -> bool {
        self.core().holdings.contains_key(&lease)
    }

    /// Whether a guard's lease is held by the present session.
    pub fn holds(&self, holding: &Holding) -> bool {
        self.core().holdings.contains_key(&holding.held().lease)
    }

    /// Whether a lease of the present session has ended by what is known.
    pub fn has_ended(&self, held: &HeldLease) -> bool {
        let (lease, token) = (held.lease, held.token);
        self.with_renewer(|renewer| renewer.is_known_to_have_ended(lease, token)).unwrap_or(false)
    }

    /// Runs something in the background.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(work);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Phase::Live(session) = self.phase.borrow().clone() else { return };
        let authority = self.authority.clone();
        self.runtime.spawn(async move {
            if let Err(error) = authority.close(session).await {
                tracing::debug!(%error, "the session could not be closed: its time runs out");
            }
        });
    }
}
