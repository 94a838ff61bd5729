//! A session: one incarnation of this program under a name, renewed by one heartbeat with all leases attached to it.
//!
//! Each module imports only those to its left:
//!
//! ```text
//!   config, holding, claims <- inner <- claim <- endings <- guard <- request <- adopt <- acquire, line, take_over
//!                                                       <- reclaim <- driver, and listen
//! ```

mod acquire;
mod adopt;
mod claim;
mod claims;
mod config;
mod driver;
mod endings;
mod guard;
mod holding;
mod inner;
mod line;
mod listen;
mod reclaim;
mod request;
mod take_over;

use std::{sync::Arc, time::Duration};

use solehold_clock::BootTime;
use solehold_core::key::SessionId;
use tokio::sync::watch;

pub use self::{
    config::{OpenError, SessionConfig, Surroundings},
    guard::{Guard, GuardError},
    inner::Contact,
    request::AcquireError,
};
pub(crate) use self::{inner::Inner, line::wait_in_line, request::LeaseTerms};
use self::{
    inner::Phase,
    line::{POLL_EVERY, wait_for_all},
};
use crate::{
    authority::{Attributes, Authority, HeldLease, Metrics, ResourceName, checked},
    renewer::Lost,
};

/// A session that is kept. Clones share it; when the last of them and the last guard are gone, it is closed.
///
/// When it is lost, its guards are, and another session is opened under the same name, so that the program can acquire
/// anew. Only when someone else has opened a session under that name it gives up.
#[derive(Debug, Clone)]
pub struct ClientSession {
    inner: Arc<Inner>,
}

impl ClientSession {
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
        listen::start(&inner);
        Ok(Self { inner })
    }

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

    /// Waits until there will be no other session, as when another program has opened one under the same name.
    pub async fn over(&self) -> Lost {
        let mut phases = self.inner.phases();
        let over = phases.wait_for(|phase| matches!(phase, Phase::Over(_))).await;
        match over.as_deref() {
            Ok(Phase::Over(lost)) => lost.clone(),
            Ok(Phase::Live(_) | Phase::Reopening) | Err(_) => Lost::Closed,
        }
    }

    /// Whether the authority answers, now and later: for programs that tell people.
    pub fn contact(&self) -> watch::Receiver<Contact> {
        self.inner.contact()
    }

    /// Counts the notifications of the authority that something happened to this session: for
    /// programs that read more than leases, such as declarations.
    pub fn notifications(&self) -> watch::Receiver<u64> {
        self.inner.notifications()
    }

    /// Sets what the next heartbeats report about this program.
    pub fn set_metrics(&self, metrics: Metrics) {
        *self.inner.metrics.lock() = metrics;
    }

    /// Renews this often from now on, and opens the next session, should this one be lost, with this ttl. The ttl of a
    /// session that is open does not change: a shorter interval than it needs is kept.
    pub fn set_timing(&self, ttl: Duration, every: Duration) -> Result<(), OpenError> {
        let config = SessionConfig { ttl, every: Some(every), ..self.inner.config.clone() };
        config.check()?;
        self.inner.set_timing(ttl, every);
        Ok(())
    }

    /// Acquires, and tries again with growing pauses until it is granted. Dropped, it leaves nothing held: bound it
    /// with `tokio::time::timeout` where it must not wait for ever.
    pub async fn acquire(&self, kind: &str, key: &str) -> Result<Guard, AcquireError> {
        let resource = ResourceName::new(kind, key)?;
        acquire::until_granted(&self.inner, resource).await
    }

    /// Acquires, waiting in line for at most `timeout`: first come, first served, and woken when it is granted.
    pub async fn acquire_within(
        &self,
        kind: &str,
        key: &str,
        timeout: Duration,
    ) -> Result<Guard, AcquireError> {
        let resource = ResourceName::new(kind, key)?;
        wait_in_line(&self.inner, resource, LeaseTerms::default(), timeout, POLL_EVERY).await
    }

    /// Acquires if the resource is free now.
    pub async fn try_acquire(&self, kind: &str, key: &str) -> Result<Guard, AcquireError> {
        self.try_acquire_with(kind, key, Attributes::new()).await
    }

    /// The same, with attributes that are kept with the lease and shown with its events.
    pub async fn try_acquire_with(
        &self,
        kind: &str,
        key: &str,
        attributes: Attributes,
    ) -> Result<Guard, AcquireError> {
        let resource = ResourceName::new(kind, key)?;
        acquire::now(&self.inner, resource, LeaseTerms::with(attributes)).await
    }

    /// Shares a resource with others: one of `slots` slots, each with a token of its own. Waits in line for at most
    /// `timeout`; with none, it is acquired if it can be had now.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
    /// use std::{sync::Arc, time::Duration};
    /// use solehold_client::{ClientSession, Embedded, SessionConfig};
    ///
    /// let authority = Arc::new(Embedded::open("memory:").await?);
    /// let session = ClientSession::open(authority, SessionConfig::new("worker-1")).await?;
    /// let first = session.acquire_shared("pool", "gpu", 2, None).await?;
    /// let second = session.acquire_shared("pool", "gpu", 2, Some(Duration::from_secs(5))).await?;
    /// assert_eq!((first.slot(), second.slot()), (Some(1), Some(2)));
    /// assert!(session.acquire_shared("pool", "gpu", 2, None).await.is_err(), "both slots are taken");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).expect("it runs");
    /// ```
    pub async fn acquire_shared(
        &self,
        kind: &str,
        key: &str,
        slots: u32,
        timeout: Option<Duration>,
    ) -> Result<Guard, AcquireError> {
        let resource = ResourceName::new(kind, key)?;
        let terms = LeaseTerms::shared(slots);
        match timeout {
            Some(timeout) => wait_in_line(&self.inner, resource, terms, timeout, POLL_EVERY).await,
            None => acquire::now(&self.inner, resource, terms).await,
        }
    }

    /// Acquires several resources, all or none, waiting in line for at most `timeout` in all. They are acquired in the
    /// order of their names, so that two who want the same ones never wait for each other. The guards come in the order
    /// in which they were asked for.
    pub async fn acquire_all<'r>(
        &self,
        resources: impl IntoIterator<Item = (&'r str, &'r str)>,
        timeout: Duration,
    ) -> Result<Vec<Guard>, AcquireError> {
        let named = resources.into_iter().map(|(kind, key)| ResourceName::new(kind, key));
        wait_for_all(&self.inner, named.collect::<Result<_, _>>()?, timeout, POLL_EVERY).await
    }

    /// Takes a resource over from its present holder, which is told at once: there is no moment in which nobody holds
    /// it. None if the holder has not released it within the time: then it keeps it. Prepare the work before this is
    /// called, since the holder stops its own for it.
    pub async fn take_over(
        &self,
        kind: &str,
        key: &str,
        within: Duration,
    ) -> Result<Option<Guard>, AcquireError> {
        self.take_over_with(kind, key, within, Attributes::new()).await
    }

    /// The same, with attributes that are kept with the lease and shown with its events.
    pub async fn take_over_with(
        &self,
        kind: &str,
        key: &str,
        within: Duration,
        attributes: Attributes,
    ) -> Result<Option<Guard>, AcquireError> {
        let resource = ResourceName::new(kind, key)?;
        take_over::take_over(&self.inner, resource, within, attributes).await
    }

    /// The session's leases by the newest answer of the authority, with a guard or without, for programs that show
    /// them to people. One without a guard may be on its way to one, or about to be released: look for leases to
    /// adopt among [`Self::unclaimed`].
    pub fn leases(&self) -> Arc<[HeldLease]> {
        self.inner.set().map_or_else(|| Arc::from([]), |known| known.beat.leases)
    }

    /// The leases of this session that nothing in this program has asked for, or has given up since: an operator may
    /// hand a resource over to this session. They have no guard, no acquire, hand-over, cancel or release of their
    /// resource is unanswered, and the answer that shows them was asked for after the last of these was answered. If
    /// only such an answer is missing, a heartbeat is sent now, so that the next call has it.
    pub fn unclaimed(&self) -> Vec<HeldLease> {
        self.inner.unclaimed()
    }

    /// Asks the authority now, rather than with the next heartbeat, what this session holds.
    pub fn refresh(&self) {
        self.inner.beat_now();
    }

    /// A guard for a lease among [`Self::unclaimed`]; none if it is no longer among them.
    pub async fn adopt(&self, lease: &HeldLease) -> Result<Option<Guard>, AcquireError> {
        adopt::adopt(&self.inner, lease).await
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
