//! What a session, its guards and its driver share.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use solehold_core::{
    key::{LeaseId, Name, SessionId},
    time::Token,
};
use tokio::{
    runtime::Handle,
    sync::{Notify, Semaphore, watch},
};
use tokio_util::sync::CancellationToken;

use super::{OpenError, SessionConfig, Surroundings};
use crate::{
    authority::{Authority, Beat, Granted, Held, Metrics, Operation, Reply, Resource, State},
    clock::{Clock, Tick},
    coalesce::Coalescer,
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

/// A lease that a guard stands for.
#[derive(Debug)]
pub(crate) struct Holding {
    pub resource: Resource,
    held: Mutex<Held>,
    /// The hand-over document as far as this holder knows it, and the last sequence number under its token.
    pub state: Mutex<(Option<State>, u64)>,
    pub cancel: CancellationToken,
    lost: OnceLock<Lost>,
    /// Its guard is gone, or about to be: nothing more is to be held for it.
    is_gone: AtomicBool,
    /// What else the work depends on, if there is something.
    bond: OnceLock<Bond>,
}

/// Something that is held together with a lease, and without which the work must stop.
#[derive(Debug, Clone)]
pub(crate) struct Bond {
    /// The work stops then, in nanoseconds since boot, unless whoever keeps it moves it on.
    pub until: Arc<AtomicU64>,
    /// The lease is not held any more: let go of it.
    pub over: CancellationToken,
}

impl Holding {
    pub fn new(granted: Granted) -> Self {
        let resource = granted.held.resource.clone();
        let holding = Self {
            resource,
            held: Mutex::new(granted.held.clone()),
            state: Mutex::default(),
            cancel: CancellationToken::new(),
            lost: OnceLock::new(),
            is_gone: AtomicBool::new(false),
            bond: OnceLock::new(),
        };
        holding.renewed_as(granted);
        holding
    }

    pub fn held(&self) -> Held {
        self.held.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    pub fn token(&self) -> Token {
        self.held.lock().unwrap_or_else(|e| e.into_inner()).token
    }

    /// It is held under this grant from now on.
    pub fn renewed_as(&self, granted: Granted) {
        let token = granted.held.token;
        *self.held.lock().unwrap_or_else(|e| e.into_inner()) = granted.held;
        let sequence = granted.state.as_ref().filter(|s| s.token == token).map_or(0, |s| s.sequence);
        *self.state.lock().unwrap_or_else(|e| e.into_inner()) = (granted.state, sequence);
    }

    /// It is lost, for the reason that is told first.
    pub fn lose(&self, lost: Lost) {
        let _ = self.lost.set(lost);
        self.cancel.cancel();
    }

    pub fn lost(&self) -> Option<Lost> {
        self.lost.get().cloned()
    }

    /// Ties the work to something else, once.
    #[cfg(feature = "legacy")]
    pub fn tie(&self, bond: Bond) {
        let _ = self.bond.set(bond);
    }

    /// The work is over: so is what it was tied to.
    pub fn untie(&self) {
        if let Some(bond) = self.bond.get() {
            bond.over.cancel();
        }
    }

    /// When what the work is tied to runs out.
    pub fn tied_until(&self) -> Tick {
        let until = self.bond.get().map_or(u64::MAX, |bond| bond.until.load(Ordering::SeqCst));
        Tick::from_nanos(until)
    }
}

/// What is known of the session, under one lock.
#[derive(Debug, Default)]
struct Core {
    renewer: Option<Renewer>,
    holdings: HashMap<LeaseId, Arc<Holding>>,
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
    /// The two times that guards look at, in nanoseconds since boot: read far more often than written.
    trusted_until: AtomicU64,
    stop_at: AtomicU64,
    /// Wakes the driver, which does not keep the session while it sleeps.
    changed: Arc<Notify>,
    metrics: Mutex<Metrics>,
    spending: Arc<Semaphore>,
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
        let inner = Arc::new(Self {
            coalescer: Coalescer::start(authority.clone()),
            holder,
            config,
            authority,
            surroundings,
            runtime: Handle::current(),
            core: Mutex::default(),
            phase: watch::Sender::new(Phase::Reopening),
            trusted_until: AtomicU64::new(0),
            stop_at: AtomicU64::new(0),
            changed: Arc::default(),
            metrics,
            spending: Arc::new(Semaphore::new(SPENDING_MAX)),
        });
        inner.first_session().await?;
        Ok(inner)
    }

    /// Opens the first session, trying for as long as the configuration says.
    async fn first_session(&self) -> Result<(), OpenError> {
        let give_up = self.clock().now().plus(self.config.open_timeout);
        for failures in 1.. {
            let error = match self.try_open().await {
                Ok(Ok((sent, beat))) => {
                    self.begin(sent, &beat);
                    return Ok(());
                }
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

    /// One attempt to open a session, and when it was sent.
    pub async fn try_open(&self) -> Reply<(Tick, Beat)> {
        let (sent, metrics) = (self.clock().now(), self.metrics());
        let opened = self.authority.open(&self.holder, self.config.ttl, &metrics).await?;
        Ok(opened.map(|beat| (sent, beat)))
    }

    /// A session was opened: it is the present one from now on, unless this one was closed meanwhile. Whatever hung on
    /// another is lost by now, or moved.
    pub fn begin(&self, sent: Tick, beat: &Beat) -> bool {
        let config = &self.config;
        let timing = Timing { ttl: config.ttl, every: config.every(), policy: config.policy };
        let mut core = self.core();
        if matches!(*self.phase.borrow(), Phase::Over(_)) {
            return false;
        }
        let renewer = Renewer::new(timing, sent, beat, self.unit());
        self.show(&renewer);
        core.renewer = Some(renewer);
        self.phase.send_replace(Phase::Live(beat.session));
        true
    }

    pub fn clock(&self) -> &dyn Clock {
        &*self.surroundings.clock
    }

    pub fn clock_handle(&self) -> Arc<dyn Clock> {
        self.surroundings.clock.clone()
    }

    pub fn unit(&self) -> f64 {
        self.surroundings.chance.unit()
    }

    /// A request id that nobody else has.
    pub fn fresh_request(&self) -> Name {
        Name::new(self.surroundings.chance.id().to_string()).expect("a uuid is a name")
    }

    /// How long to wait after so many failures, and at least as long as was asked for.
    pub fn backoff(&self, failures: u32, at_least: Option<Duration>) -> Duration {
        self.config.backoff.wait(failures, self.unit()).max(at_least.unwrap_or_default())
    }

    /// Waits so long by the clock that counts.
    pub async fn pause(&self, wait: Duration) {
        self.clock().wait_until(self.clock().now().plus(wait)).await;
    }

    pub fn metrics(&self) -> Metrics {
        self.metrics.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    pub fn set_metrics(&self, metrics: Metrics) {
        *self.metrics.lock().unwrap_or_else(|e| e.into_inner()) = metrics;
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Lets guards see the renewer's times. Under the lock, so that they are those of one renewer.
    fn show(&self, renewer: &Renewer) {
        self.trusted_until.store(renewer.trusted_until().as_nanos(), Ordering::SeqCst);
        self.stop_at.store(renewer.stop_at().as_nanos(), Ordering::SeqCst);
    }

    pub fn trusted_until(&self) -> Tick {
        Tick::from_nanos(self.trusted_until.load(Ordering::SeqCst))
    }

    pub fn stop_at(&self) -> Tick {
        Tick::from_nanos(self.stop_at.load(Ordering::SeqCst))
    }

    /// Asks the renewer, or tells it something. None while there is none.
    pub fn with_renewer<T>(&self, work: impl FnOnce(&mut Renewer) -> T) -> Option<T> {
        let mut core = self.core();
        let renewer = core.renewer.as_mut()?;
        let result = work(renewer);
        self.show(renewer);
        Some(result)
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

    /// Takes up a lease that was granted to `session`. None if that session is not the present one any more, or if the lease
    /// has ended by what is known already.
    pub fn hold(&self, session: SessionId, granted: Granted) -> Option<Arc<Holding>> {
        let mut core = self.core();
        if *self.phase.borrow() != Phase::Live(session) {
            return None;
        }
        let (lease, token) = (granted.held.lease, granted.held.token);
        let now = self.clock().now();
        if !core.renewer.as_mut().is_some_and(|renewer| renewer.granted(lease, token, now)) {
            return None;
        }
        let holding = Arc::new(Holding::new(granted));
        core.holdings.insert(lease, holding.clone());
        Some(holding)
    }

    /// A guard lets go of what it stands for. Under the lock, so that nothing is won back for it any more.
    pub fn let_go(&self, holding: &Holding) -> Held {
        let mut core = self.core();
        holding.is_gone.store(true, Ordering::SeqCst);
        let held = holding.held();
        core.holdings.remove(&held.lease);
        if let Some(renewer) = &mut core.renewer {
            renewer.released(held.lease);
        }
        held
    }

    /// These leases have ended.
    pub fn ended(&self, leases: &[LeaseId], lost: &Lost) {
        let mut core = self.core();
        let holdings: Vec<_> = leases.iter().filter_map(|lease| core.holdings.remove(lease)).collect();
        drop(core);
        for holding in holdings {
            tracing::warn!(resource = %holding.resource, %lost, "lost");
            holding.lose(lost.clone());
        }
    }

    /// The session is lost and everything that hangs on it. What guards see is over before anything new begins.
    pub fn lose_all(&self, lost: &Lost, next: Phase) {
        let mut core = self.core();
        core.renewer = None;
        let holdings = std::mem::take(&mut core.holdings);
        self.phase.send_replace(next);
        for holding in holdings.into_values() {
            holding.lose(lost.clone());
        }
    }

    /// For rule 22: the session is over, and what hung on it may be won back before the grace is.
    pub fn suspend(&self) -> Vec<Arc<Holding>> {
        let mut core = self.core();
        core.renewer = None;
        self.phase.send_replace(Phase::Reopening);
        std::mem::take(&mut core.holdings).into_values().collect()
    }

    /// A suspended lease was won back under a new grant.
    pub fn resume(&self, holding: &Arc<Holding>, granted: Granted) -> bool {
        let mut core = self.core();
        if holding.is_gone.load(Ordering::SeqCst) || holding.lost().is_some() {
            return false;
        }
        let (lease, token, now) = (granted.held.lease, granted.held.token, self.clock().now());
        let is_held = core.renewer.as_mut().is_some_and(|renewer| renewer.granted(lease, token, now));
        if is_held {
            holding.renewed_as(granted);
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

    /// Whether a guard's lease is held by the present session.
    pub fn holds(&self, holding: &Holding) -> bool {
        self.core().holdings.contains_key(&holding.held().lease)
    }

    /// Lets go of a lease that nobody wants any more. It is tried for as long as the session keeps it alive.
    pub fn release(self: &Arc<Self>, held: Held) {
        let (inner, began) = (self.clone(), self.live_session());
        self.spawn(async move {
            for failures in 1.. {
                let release = Operation::Release { held: held.clone(), state: None };
                let Err(error) = inner.coalescer.submit(release).await else { break };
                if inner.live_session() != began {
                    break;
                }
                tracing::debug!(%error, resource = %held.resource, "a release is not known to be done");
                inner.pause(inner.backoff(failures, error.retry_after())).await;
            }
        });
    }

    /// Runs something that nobody waits for.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(work);
    }

    /// Spends a request whose outcome nobody waits for any more: what it got, or would get, is let go (rule 7). It is tried
    /// for as long as the session could keep the lease alive.
    pub fn spend(self: &Arc<Self>, resource: Resource, request: Name) {
        let inner = self.clone();
        self.spawn(async move {
            let permit = inner.spending.clone().acquire_owned().await;
            for failures in 1.. {
                let cancelled = inner.authority.cancel(&resource, &inner.holder, &request).await;
                let Err(error) = cancelled else { break };
                if matches!(inner.phase(), Phase::Over(_)) {
                    break;
                }
                tracing::debug!(%error, %resource, "a request is not spent yet");
                inner.pause(inner.backoff(failures, error.retry_after())).await;
            }
            drop(permit);
        });
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
