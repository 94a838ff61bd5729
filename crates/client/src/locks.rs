//! Named locks: one holder at a time among all tasks of all processes, first come, first served.

use std::{sync::Arc, time::Duration};

use crate::{
    authority::{Authority, LOCK_KIND, ResourceName, checked},
    session::{AcquireError, ClientSession, Guard, LeaseTerms, OpenError, SessionConfig, wait_in_line},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockConfig {
    /// How long a lock outlives a holder that stopped renewing it.
    pub ttl: Duration,
    pub refresh_interval: Duration,
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
    session: ClientSession,
    config: LockConfig,
}

impl Locks {
    pub async fn open(
        authority: Arc<dyn Authority>,
        holder: impl Into<String>,
        config: LockConfig,
    ) -> Result<Self, OpenError> {
        let every = Some(config.refresh_interval);
        let session = SessionConfig { ttl: config.ttl, every, ..SessionConfig::new(holder) };
        Ok(Self::over(ClientSession::open(authority, session).await?, config))
    }

    /// Locks that are attached to an open session: its ttl and heartbeat count, not those of `config`.
    pub fn over(session: ClientSession, config: LockConfig) -> Self {
        Self { session, config }
    }

    /// The session that the locks are attached to.
    pub fn session(&self) -> &ClientSession {
        &self.session
    }

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
        let resource = ResourceName { kind: checked("kind", LOCK_KIND)?, key };
        wait_in_line(
            self.session.inner(),
            resource,
            LeaseTerms::default(),
            timeout,
            self.config.poll_interval,
        )
        .await
    }

    /// Takes one of `slots` slots of a lock, which as many may hold at once; waits in line for at most
    /// `acquire_timeout`.
    pub async fn acquire_shared(&self, name: &str, slots: u32) -> Result<Guard, AcquireError> {
        let key = checked("name of the lock", name)?;
        let resource = ResourceName { kind: checked("kind", LOCK_KIND)?, key };
        let terms = LeaseTerms::shared(slots);
        let LockConfig { acquire_timeout, poll_interval, .. } = self.config;
        wait_in_line(self.session.inner(), resource, terms, acquire_timeout, poll_interval).await
    }

    /// Takes several locks, all or none, within `acquire_timeout`: see [`ClientSession::acquire_all`].
    pub async fn acquire_all<'n>(
        &self,
        names: impl IntoIterator<Item = &'n str>,
    ) -> Result<Vec<Guard>, AcquireError> {
        let locks = names.into_iter().map(|name| (LOCK_KIND, name));
        self.session.acquire_all(locks, self.config.acquire_timeout).await
    }
}
