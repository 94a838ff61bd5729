//! Named locks: one holder at a time among all tasks of all processes, first come, first served.

use std::{sync::Arc, time::Duration};

use solehold_api::problem::ErrorCode;
use solehold_core::key::SessionId;
use tokio::task::JoinSet;

use crate::{
    authority::{Authority, AuthorityError, Done, Granted, Operation, Refusal, Reply, Resource, checked},
    clock::BootTime,
    guard::Guard,
    session::{AcquireError, Attempt, Inner, OpenError, Request, Session, SessionConfig},
};

/// The kind of a lock among resources: nobody declares one.
pub const LOCK_KIND: &str = "lock";

/// A wait that the authority should have ended by now is ended here.
const WAIT_LEEWAY: Duration = Duration::from_secs(1);

/// How locks are held and waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockConfig {
    /// How long a lock outlives a holder that fell silent.
    pub ttl: Duration,
    /// How often it is renewed.
    pub refresh_interval: Duration,
    /// How long to wait for a lock.
    pub acquire_timeout: Duration,
    /// How often to ask where there is no line to wait in.
    pub poll_interval: Duration,
}

impl Default for LockConfig {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(120),
            refresh_interval: Duration::from_secs(30),
            acquire_timeout: Duration::from_secs(10),
            poll_interval: Duration::from_millis(200),
        }
    }
}

/// Named locks. Each acquire is a lease of its own, so that two tasks of one process exclude each other, too.
///
/// ```
/// # tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
/// use std::sync::Arc;
/// use solehold_client::{Embedded, LockConfig, Locks};
///
/// let authority = Arc::new(Embedded::open("memory:").await?);
/// let locks = Locks::open(authority, "gateway-1", LockConfig::default()).await?;
/// let guard = locks.acquire("session-42").await?;
/// assert!(locks.try_acquire("session-42").await.is_err(), "held by another task of ours");
/// guard.release().await?;
/// locks.acquire("session-42").await?.release().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).expect("it runs");
/// ```
#[derive(Debug, Clone)]
pub struct Locks {
    session: Session,
    config: LockConfig,
}

impl Locks {
    /// Opens a session for locks, under that name.
    pub async fn open(
        authority: Arc<dyn Authority>,
        holder: impl Into<String>,
        config: LockConfig,
    ) -> Result<Self, OpenError> {
        let every = Some(config.refresh_interval);
        let session = SessionConfig { ttl: config.ttl, every, ..SessionConfig::new(holder) };
        Ok(Self::over(Session::open(authority, session).await?, config))
    }

    /// Locks that hang on a session that is there already: its ttl and heartbeat count, not those of `config`.
    pub fn over(session: Session, config: LockConfig) -> Self {
        Self { session, config }
    }

    /// The session that the locks hang on.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// How locks are held and waited for.
    pub fn config(&self) -> LockConfig {
        self.config
    }

    /// Takes a lock if it is free.
    pub async fn try_acquire(&self, name: &str) -> Result<Guard, AcquireError> {
        checked("name of the lock", name)?;
        self.session.try_acquire(LOCK_KIND, name).await
    }

    /// Waits for a lock, in line, for at most `acquire_timeout`. Dropped, it leaves the line, and holds nothing.
    pub async fn acquire(&self, name: &str) -> Result<Guard, AcquireError> {
        self.acquire_within(name, self.config.acquire_timeout).await
    }

    /// The same with another bound in time.
    pub async fn acquire_within(&self, name: &str, timeout: Duration) -> Result<Guard, AcquireError> {
        let key = checked("name of the lock", name)?;
        let resource = Resource { kind: checked("kind", LOCK_KIND)?, key };
        wait_in_line(&self.session, resource, timeout, self.config.poll_interval).await
    }
}

/// How often a waiter asks where there is no line to wait in, unless it is said otherwise.
pub(crate) const POLL_EVERY: Duration = Duration::from_secs(1);

/// Waits in line for a resource for at most `timeout`; where there is no line, asks every now and then.
pub(crate) async fn wait_in_line(
    session: &Session,
    resource: Resource,
    timeout: Duration,
    poll_every: Duration,
) -> Result<Guard, AcquireError> {
    let inner = session.inner();
    let until = inner.clock().now().plus(timeout);
    let mut wait = Waiting { request: Request::new(inner, resource), until, poll_every, holder: None };
    wait.run().await
}

/// One wait for a lock.
struct Waiting {
    request: Request,
    until: BootTime,
    poll_every: Duration,
    /// Who held it when last heard of.
    holder: Option<String>,
}

/// What to do next.
enum Next {
    Return(Box<Result<Guard, AcquireError>>),
    Again,
    After(Duration),
}

impl Waiting {
    async fn run(&mut self) -> Result<Guard, AcquireError> {
        for failures in 1.. {
            let session = tokio::select! {
                biased;
                ready = self.request.inner.ready() => ready.map_err(AcquireError::SessionOver)?,
                () = self.request.inner.clock().wait_until(self.until) => return Err(self.timed_out()),
            };
            let next = match self.in_line(session).await {
                Some(answer) => self.after_line(session, answer, failures).await,
                None => self.by_polling(session).await,
            };
            let pause = match next {
                Next::Return(outcome) => return *outcome,
                Next::Again => Duration::ZERO,
                Next::After(pause) => pause,
            };
            let now = self.request.inner.clock().now();
            if now.plus(pause) >= self.until {
                return Err(self.timed_out());
            }
            self.request.inner.pause(pause).await;
        }
        unreachable!("it is tried until its time is out")
    }

    fn timed_out(&self) -> AcquireError {
        AcquireError::TimedOut { resource: self.request.resource.clone(), holder: self.holder.clone() }
    }

    /// Waits in line until granted or out of time; none where there is no line.
    ///
    /// One call of the authority waits only so long. Before it ends the next one is made under the same request, which keeps
    /// the place. The former is let run out: dropped, it would leave the line, and take a grant along that it has just got.
    async fn in_line(&mut self, session: SessionId) -> Option<Reply<Granted>> {
        let inner = self.request.inner.clone();
        let ask = self.request.ask(session);
        self.request.mark_sent();
        let mut calls = JoinSet::new();
        loop {
            let left = self.until.since(inner.clock().now());
            let wait = left.min(inner.authority.wait_max());
            let (authority, ask) = (inner.authority.clone(), ask.clone());
            calls.spawn(async move { authority.acquire_waiting(&ask, wait).await });
            let asked_again_in = if left > wait { wait * 2 / 3 } else { wait + WAIT_LEEWAY };
            let asked_again_at = inner.clock().now().plus(asked_again_in);
            loop {
                let answer = tokio::select! {
                    biased;
                    answer = calls.join_next() => answer,
                    () = inner.clock().wait_until(asked_again_at) => break,
                };
                let answer = match answer {
                    Some(Ok(answer)) => answer?,
                    Some(Err(_)) | None => Err(AuthorityError::Unknown("the wait was given up".to_owned())),
                };
                // Whatever else the former call says, the later one has its place.
                if matches!(answer, Ok(Ok(_))) || calls.is_empty() {
                    calls.detach_all();
                    return Some(answer);
                }
            }
            if inner.clock().now() >= self.until {
                return Some(Err(AuthorityError::Unknown("no answer in time".to_owned())));
            }
        }
    }

    async fn after_line(&mut self, session: SessionId, answer: Reply<Granted>, failures: u32) -> Next {
        match answer {
            Ok(Ok(granted)) => self.take_up(session, granted).await,
            Ok(Err(refusal)) => self.refused(refusal, failures),
            Err(error) => Next::After(self.request.inner.backoff(failures, error.retry_after())),
        }
    }

    /// The fallback: asks every now and then.
    async fn by_polling(&mut self, session: SessionId) -> Next {
        match self.request.attempt(session).await {
            Attempt::Won(guard) => Next::Return(Box::new(Ok(guard))),
            Attempt::Refused(refusal) => match self.refused(refusal, 1) {
                Next::After(_) => Next::After(self.poll_every),
                next => next,
            },
            Attempt::Unknown(_) => Next::After(self.poll_every),
        }
    }

    fn refused(&mut self, refusal: Refusal, failures: u32) -> Next {
        let inner = &self.request.inner;
        match refusal.code {
            ErrorCode::Held | ErrorCode::HeldBack => {
                self.holder = refusal.holder;
                Next::After(inner.backoff(failures, None).min(self.poll_every))
            }
            // The session is over, and another is opened.
            ErrorCode::NoSession | ErrorCode::SessionSuperseded => Next::After(inner.backoff(failures, None)),
            // A grant that it got lapsed before it could be confirmed.
            ErrorCode::RequestSpent => {
                self.request.renew();
                Next::Again
            }
            _ => {
                let resource = self.request.resource.clone();
                Next::Return(Box::new(Err(AcquireError::Refused { resource, refusal })))
            }
        }
    }

    /// A grant that was waited for is trusted only after a renewal (rule 15): the time between is not known.
    async fn take_up(&mut self, session: SessionId, granted: Granted) -> Next {
        let granted = match granted.confirm_within {
            None => granted,
            Some(within) => match confirmed(&self.request.inner, granted, within).await {
                Ok(granted) => granted,
                // It lapsed, or nobody knows: whatever it was, it is spent, and the wait begins anew.
                Err(error) => {
                    tracing::debug!(%error, resource = %self.request.resource, "a grant was not confirmed");
                    self.request.renew();
                    return Next::Again;
                }
            },
        };
        match self.request.take_up(session, granted) {
            Some(guard) => Next::Return(Box::new(Ok(guard))),
            None => {
                self.request.renew();
                Next::Again
            }
        }
    }
}

/// Renews a grant at once, so that it does not lapse. That vouches for this lease alone, and moves no deadline: the lease is
/// trusted for as long as the last heartbeat says of its session.
async fn confirmed(
    inner: &Arc<Inner>,
    granted: Granted,
    within: Duration,
) -> Result<Granted, AuthorityError> {
    let give_up = inner.clock().now().plus(within);
    for failures in 1.. {
        let renewed = tokio::select! {
            biased;
            renewed = inner.coalescer.submit(Operation::Renew(granted.held.clone())) => renewed,
            () = inner.clock().wait_until(give_up) => break,
        };
        match renewed {
            Ok(Ok(Done::Held(renewed))) => return Ok(Granted { state: granted.state, ..renewed }),
            Ok(Ok(Done::Released)) => break,
            Ok(Err(refusal)) => return Err(AuthorityError::Unknown(refusal.detail)),
            Err(_) => inner.pause(inner.backoff(failures, None).min(within / 8)).await,
        }
    }
    Err(AuthorityError::Unknown("it could not be confirmed in time".to_owned()))
}
