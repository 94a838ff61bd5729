//! A session: one incarnation of this program under a name, kept by one heartbeat with everything that hangs on it.

mod acquire;
mod driver;
mod holding;
mod inner;
mod reclaim;

use std::{sync::Arc, time::Duration};

use solehold_core::{
    key::SessionId,
    limits::{TTL_MS_MAX, TTL_MS_MIN},
};

pub use self::acquire::AcquireError;
pub(crate) use self::acquire::{Attempt, Request};
#[cfg(feature = "legacy")]
pub(crate) use self::holding::Bond;
pub(crate) use self::{holding::Holding, inner::Inner};
use crate::{
    authority::{Authority, AuthorityError, BadName, Metrics, Refusal, Resource, checked},
    chance::{Chance, MachineChance},
    clock::{AlarmClock, Backoff, BootClock, BootTime},
    guard::Guard,
    locks::{POLL_EVERY, wait_in_line},
    renewer::{Lost, Policy},
};

/// The least pause between two heartbeats.
const EVERY_MIN: Duration = Duration::from_millis(50);

/// How a session is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionConfig {
    /// The name that this program goes by. Two programs under one name end each other's sessions.
    pub holder: String,
    /// How long a heartbeat keeps the session, 1 s to 24 h: others get what it held this long after it fell silent.
    pub ttl: Duration,
    /// How often to renew; a third of the ttl if not given. Less than half of the ttl.
    pub every: Option<Duration>,
    /// What to do when a renewal fails.
    pub policy: Policy,
    /// What the session tells of itself to begin with.
    pub metrics: Metrics,
    /// How long to wait between attempts to open a session and to acquire.
    pub backoff: Backoff,
    /// How long to try to open the first session.
    pub open_timeout: Duration,
}

impl SessionConfig {
    /// A session under that name, with a ttl of 30 s.
    pub fn new(holder: impl Into<String>) -> Self {
        Self {
            holder: holder.into(),
            ttl: Duration::from_secs(30),
            every: None,
            policy: Policy::default(),
            metrics: Metrics::new(),
            backoff: Backoff::default(),
            open_timeout: Duration::from_secs(10),
        }
    }

    /// How often to renew, before jitter.
    pub fn every(&self) -> Duration {
        self.every.unwrap_or(self.ttl / 3)
    }

    fn check(&self) -> Result<(), OpenError> {
        let bad = |what: String| Err(OpenError::Config(what));
        let (least, most) = (Duration::from_millis(TTL_MS_MIN), Duration::from_millis(TTL_MS_MAX));
        if self.ttl < least || self.ttl > most {
            return bad(format!("the ttl is {:?}; it must be {least:?} to {most:?}", self.ttl));
        }
        if self.every() < EVERY_MIN {
            return bad(format!(
                "a heartbeat every {:?} is too often: every {EVERY_MIN:?} at most",
                self.every()
            ));
        }
        if self.every() * 2 >= self.ttl {
            return bad(format!(
                "a heartbeat every {:?} is not below half of the ttl, {:?}: one that fails could not be repeated in time",
                self.every(),
                self.ttl
            ));
        }
        Ok(())
    }
}

/// Where time and chance come from.
#[derive(Clone)]
pub struct Surroundings {
    /// Time.
    pub clock: Arc<dyn AlarmClock>,
    /// Chance.
    pub chance: Arc<dyn Chance>,
}

impl Default for Surroundings {
    fn default() -> Self {
        Self { clock: Arc::new(BootClock), chance: Arc::new(MachineChance) }
    }
}

impl std::fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Surroundings")
    }
}

/// Why a session cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The configuration makes no sense.
    #[error("the session cannot be kept as configured: {0}")]
    Config(String),
    /// The holder is no name.
    #[error(transparent)]
    Name(#[from] BadName),
    /// The authority does not want it.
    #[error("the authority refused to open a session: {0}")]
    Refused(#[from] Refusal),
    /// Nobody was reached in time.
    #[error("no session could be opened: {0}")]
    Authority(#[from] AuthorityError),
}

/// A session that is kept. Clones share it; when the last of them and the last guard are gone, it is closed.
///
/// When it is lost, its guards are, and another session is opened under the same name, so that the program can acquire
/// anew. Only when someone else has opened a session under that name it gives up.
#[derive(Debug, Clone)]
pub struct Session {
    inner: Arc<Inner>,
}

impl Session {
    /// Opens a session and keeps it, in the current runtime.
    pub async fn open(authority: Arc<dyn Authority>, config: SessionConfig) -> Result<Self, OpenError> {
        Self::open_in(Surroundings::default(), authority, config).await
    }

    /// The same with time and chance as arguments.
    pub async fn open_in(
        surroundings: Surroundings,
        authority: Arc<dyn Authority>,
        config: SessionConfig,
    ) -> Result<Self, OpenError> {
        config.check()?;
        let holder = checked("holder", &config.holder)?;
        let inner = Inner::open(surroundings, authority, config, holder).await?;
        tokio::spawn(driver::drive(Arc::downgrade(&inner)));
        Ok(Self { inner })
    }

    /// The name that it goes by.
    pub fn holder(&self) -> &str {
        self.inner.holder.as_str()
    }

    /// The id of the present incarnation; none while another one is being opened, or when it is over.
    pub fn id(&self) -> Option<SessionId> {
        self.inner.live_session()
    }

    /// Until when what it holds can be trusted, unless it is renewed before.
    pub fn deadline(&self) -> BootTime {
        self.inner.trusted_until()
    }

    /// Whether what it holds can be trusted now.
    pub fn is_live(&self) -> bool {
        self.id().is_some() && self.inner.clock().now() < self.inner.stop_at()
    }

    /// Waits until a session is open, as after a loss; the error says why there will be none.
    pub async fn ready(&self) -> Result<SessionId, Lost> {
        self.inner.ready().await
    }

    /// Says what the next heartbeats tell of this program.
    pub fn set_metrics(&self, metrics: Metrics) {
        self.inner.set_metrics(metrics);
    }

    /// Acquires, and tries again with growing pauses until it is granted. Dropped, it leaves nothing held: bound it with
    /// `tokio::time::timeout` where it must not wait for ever.
    pub async fn acquire(&self, kind: &str, key: &str) -> Result<Guard, AcquireError> {
        let resource = Resource::new(kind, key)?;
        acquire::until_granted(&self.inner, resource).await
    }

    /// Acquires, waiting in line for at most so long: first come, first served, and woken when it is granted.
    pub async fn acquire_within(
        &self,
        kind: &str,
        key: &str,
        timeout: Duration,
    ) -> Result<Guard, AcquireError> {
        let resource = Resource::new(kind, key)?;
        wait_in_line(self, resource, timeout, POLL_EVERY).await
    }

    /// Acquires if it can be had now.
    pub async fn try_acquire(&self, kind: &str, key: &str) -> Result<Guard, AcquireError> {
        let resource = Resource::new(kind, key)?;
        acquire::now(&self.inner, resource).await
    }

    /// Closes the session. Guards that are still there are lost from now on; what they hold is free when they are
    /// dropped, or when its time has run out: their work may not have stopped yet.
    pub async fn close(&self) {
        self.inner.close().await;
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }
}
