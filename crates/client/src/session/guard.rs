//! A guard: the right to work on one resource, for as long as it lasts.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
};

use serde::Serialize;
use serde_json::Value;
use solehold_clock::BootTime;
use solehold_core::{key::LeaseId, time::Token};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{claim::ResourceClaim, endings, holding::Holding, inner::Inner};
use crate::{
    authority::{
        AuthorityError, HandOver, HeldLease, Operation, RefusalReason, ResourceName, StateDocument,
        StateWrite,
    },
    renewer::Lost,
};

/// How often a release is repeated when its answer was lost. After that it is left to the ttl.
const RELEASE_ATTEMPTS: u32 = 5;

/// Why a state document was not written, or a lease not released.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GuardError {
    #[error(transparent)]
    Lost(#[from] Lost),
    #[error("the state document cannot be written as JSON: {0}")]
    State(String),
    #[error(transparent)]
    Refused(#[from] RefusalReason),
    /// The outcome is unknown, or the authority was not reached.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
}

/// A lease that is held. Not `Clone`: a lease has one owner.
///
/// Dropping it releases the lease in the background; if that fails, the lease expires after its ttl.
/// [`Guard::release`] waits for the outcome.
///
/// **The trust window.** Until [`Guard::deadline`] no other holder has the resource. The guard is lost at that moment
/// or before, unless it was renewed. A lost guard asks the work to stop; it cannot force it. So work with effects
/// elsewhere must show the [token](Guard::token) there, and a gate must refuse older tokens.
#[must_use = "dropping a guard releases its lease"]
#[derive(Debug)]
pub struct Guard {
    inner: Arc<Inner>,
    holding: Arc<Holding>,
    /// None when it has gone on to the release.
    claim: Option<ResourceClaim>,
    is_released: AtomicBool,
}

impl Guard {
    pub(super) fn new(holding: Arc<Holding>, claim: ResourceClaim) -> Self {
        let inner = claim.inner().clone();
        let is_released = AtomicBool::new(false);
        Self { inner, holding, claim: Some(claim), is_released }
    }

    pub fn resource(&self) -> &ResourceName {
        &self.holding.resource
    }

    /// The identity of the grant.
    pub fn lease_id(&self) -> LeaseId {
        self.holding.held().lease
    }

    /// Which of the slots of a shared resource it is on, from 1 on; none for an exclusive lease. A gate tells the slots
    /// apart by it.
    pub fn slot(&self) -> Option<u32> {
        self.holding.held().slot
    }

    /// The fencing token: larger at each change of owner. Under [`Policy::Grace`](crate::renewer::Policy::Grace) a
    /// reclaimed lease has another one: read it for each piece of work.
    pub fn token(&self) -> Token {
        self.holding.token()
    }

    /// Until when no other holder can have the resource. Every heartbeat moves it, until the lease is lost.
    pub fn deadline(&self) -> BootTime {
        self.holding.trusted_until()
    }

    /// Whether the work may continue. Judged by the clock and not by a timer, so it is right even after a long pause of
    /// the process or the machine.
    pub fn is_live(&self) -> bool {
        // The deadline is read first: it moves only after guards that have ended were cancelled.
        let is_in_time = self.inner.clock().now() < self.holding.stop_at();
        is_in_time && !self.holding.cancel.is_cancelled()
    }

    /// Whether the deadline has passed and only the grace period of the policy lets the work continue.
    pub fn is_in_grace(&self) -> bool {
        self.is_live() && self.inner.clock().now() >= self.holding.trusted_until()
    }

    /// The token if the work may continue, or why not. Call it right before each effect.
    pub fn check(&self) -> Result<Token, Lost> {
        if self.is_live() { Ok(self.token()) } else { Err(self.why()) }
    }

    /// Waits until the lease is lost, and returns why.
    pub async fn lost(&self) -> Lost {
        self.holding.cancel.cancelled().await;
        self.why()
    }

    /// Waits until the next holder requests a hand-over. Then stop the work and [release](Self::release_with) the
    /// lease: the next holder has it in the same moment. A holder that does not release it keeps it.
    pub async fn hand_over_asked(&self) -> HandOver {
        let asked = self.holding.hand_over();
        until_some(asked, |asked| asked.as_ref().map(|(hand_over, _)| hand_over.clone())).await
    }

    /// Waits until a holder other than `known` requests a hand-over, or until the known one no longer does. Returns the
    /// holder that waits now, and until when. For programs that take long to stop, and continue the work if the next
    /// holder no longer waits by then.
    pub async fn offer_changed(&self, known: Option<&str>) -> Option<(String, BootTime)> {
        let changed = |asked: &Option<(HandOver, BootTime)>| {
            let now = asked.as_ref().map(|(asked, until)| (asked.to.clone(), *until));
            (now.as_ref().map(|(to, _)| to.as_str()) != known).then_some(now)
        };
        until_some(self.holding.hand_over(), changed).await
    }

    /// Waits until the lease is held under another token than this one. With the policy
    /// [`Grace`](crate::renewer::Policy::Grace) it may have expired and been reclaimed (rule 22): show the new token
    /// wherever the old one was shown.
    pub async fn won_back(&self, under: Token) -> Token {
        until_some(self.holding.tokens(), |token| (*token != under).then_some(*token)).await
    }

    /// A token that is cancelled when the lease is lost.
    pub fn cancellation(&self) -> CancellationToken {
        // A child, so that the caller cannot cancel the guard itself.
        self.holding.cancel.child_token()
    }

    fn why(&self) -> Lost {
        // Past the deadline, and the driver has not recorded why yet.
        self.holding.lost().unwrap_or(Lost::Deadline)
    }

    /// Runs `work` while the lease is held. When the lease is lost, `work` is dropped and not polled again.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
    /// # use std::sync::Arc;
    /// # use solehold_client::{Embedded, ClientSession, SessionConfig};
    /// # let authority = Arc::new(Embedded::open("memory:").await?);
    /// # let session = ClientSession::open(authority, SessionConfig::new("worker-1")).await?;
    /// let guard = session.acquire("job", "nightly").await?;
    /// let token = guard.token();
    /// let done = guard.run(async { format!("worked under token {token}") }).await?;
    /// # assert!(done.starts_with("worked"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).expect("it runs");
    /// ```
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Lost> {
        let mut work = pin!(work);
        let mut cancelled = pin!(self.holding.cancel.cancelled());
        poll_fn(|context| {
            // The clock is read before each poll: after a long pause no timer may have run yet.
            if cancelled.as_mut().poll(context).is_ready() || !self.is_live() {
                return Poll::Ready(Err(self.why()));
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }

    /// The state document: as the former holder left it, or as written since.
    pub fn state(&self) -> Option<Value> {
        let state = self.holding.state.lock();
        state.0.as_ref().map(|state| state.document.clone())
    }

    pub fn state_sequence(&self) -> Option<u64> {
        let state = self.holding.state.lock();
        state.0.as_ref().map(|state| state.sequence)
    }

    /// Writes the state document, for the next holder. After an error it may be written or not; write it again.
    pub async fn write_state(&self, document: &impl Serialize) -> Result<(), GuardError> {
        let write = self.state_write(document)?;
        self.check()?;
        let held = self.holding.held();
        self.inner.authority.write_state(&held, &write).await??;
        let mut state = self.holding.state.lock();
        if state.0.as_ref().is_none_or(|s| (s.token, s.sequence) < (held.token, write.sequence)) {
            let StateWrite { document, sequence } = write;
            state.0 = Some(StateDocument { document, token: held.token, sequence });
        }
        Ok(())
    }

    /// The next write: its sequence number is above that of any write that was tried before.
    fn state_write(&self, document: &impl Serialize) -> Result<StateWrite, GuardError> {
        let document = serde_json::to_value(document).map_err(|e| GuardError::State(e.to_string()))?;
        let mut state = self.holding.state.lock();
        state.1 += 1;
        Ok(StateWrite { sequence: state.1, document })
    }

    /// Releases the lease, and waits for the outcome. A lease that has ended otherwise counts as released.
    pub async fn release(self) -> Result<(), GuardError> {
        self.let_go(None).await
    }

    /// Releases the lease and writes a last state document for the next holder in the same step. [`GuardError::Lost`]
    /// means that the document was not written. If the answer was lost and the next holder has written since, the
    /// outcome is unknown, and the error says so.
    pub async fn release_with(self, document: &impl Serialize) -> Result<(), GuardError> {
        let write = self.state_write(document)?;
        self.let_go(Some(write)).await
    }

    /// Releases a guard that other tasks may still use: they see it as lost.
    #[cfg(feature = "cluster")]
    pub(crate) async fn retire(&self) -> Result<(), GuardError> {
        self.holding.lose(Lost::Closed);
        self.let_go(None).await
    }

    async fn let_go(&self, state: Option<StateWrite>) -> Result<(), GuardError> {
        let held = self.inner.let_go(&self.holding);
        if state.is_some() && self.holding.reissued().is_some() {
            return Err(self.why().into());
        }
        if let Some(claim) = &self.claim {
            claim.ends_leases();
        }
        let sequence = state.as_ref().map(|write| write.sequence);
        let operation = Operation::Release { held: held.clone(), state };
        // Whether an attempt may have succeeded without an answer.
        let mut failures = 0;
        let mut is_in_doubt = false;
        let outcome = loop {
            let error = match self.inner.coalescer.submit(operation.clone()).await {
                Ok(outcome) => break outcome,
                Err(error) => error,
            };
            failures += 1;
            is_in_doubt |= matches!(error, AuthorityError::Unknown(_));
            if failures > RELEASE_ATTEMPTS {
                return Err(if is_in_doubt { unknown(&error) } else { error }.into());
            }
            self.inner.pause(self.inner.backoff(failures, error.retry_after())).await;
        };
        // Otherwise the lease is still there, without a guard: it is released in the background.
        let is_over = outcome.as_ref().map_or_else(RefusalReason::ends_lease, |_| true);
        self.is_released.store(is_over, Ordering::SeqCst);
        match (outcome, sequence) {
            (Ok(_), _) => Ok(()),
            (Err(refusal), None) if refusal.ends_lease() => Ok(()),
            (Err(refusal), Some(sequence)) if refusal.ends_lease() && is_in_doubt => {
                self.was_written(&held, sequence, refusal).await
            }
            (Err(refusal), Some(_)) if refusal.ends_lease() => Err(Lost::Refused(refusal).into()),
            (Err(refusal), _) => Err(refusal.into()),
        }
    }

    /// Whether an attempt whose answer was lost has written the last document. Documents are ordered by token and
    /// sequence, so the stored one shows it, unless it is a later one.
    async fn was_written(
        &self,
        held: &HeldLease,
        sequence: u64,
        refusal: RefusalReason,
    ) -> Result<(), GuardError> {
        let there =
            self.inner.authority.read_state(&held.resource).await.map_err(|error| unknown(&error))??;
        let ours = (held.token, sequence);
        match there.map(|state| (state.token, state.sequence).cmp(&ours)) {
            Some(std::cmp::Ordering::Equal) => Ok(()),
            Some(std::cmp::Ordering::Less) => Err(Lost::Refused(refusal).into()),
            Some(std::cmp::Ordering::Greater) | None => Err(unknown(&refusal).into()),
        }
    }
}

/// Waits until `pick` finds something in what is watched; for ever once nothing changes any more.
async fn until_some<T, R>(mut watched: watch::Receiver<T>, pick: impl Fn(&T) -> Option<R>) -> R {
    loop {
        if let Some(picked) = pick(&watched.borrow_and_update()) {
            return picked;
        }
        if watched.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// A release was sent, and its outcome is unknown.
fn unknown(told: &dyn std::fmt::Display) -> AuthorityError {
    AuthorityError::Unknown(format!("the lease may have been released; the last answer was: {told}"))
}

impl Drop for Guard {
    fn drop(&mut self) {
        if *self.is_released.get_mut() {
            return;
        }
        let held = self.inner.let_go(&self.holding);
        let has_ended = matches!(self.holding.lost(), Some(Lost::Refused(_) | Lost::Ended));
        if has_ended && self.holding.reissued().is_none() {
            return;
        }
        if let Some(claim) = self.claim.take() {
            endings::release(claim, held);
        }
    }
}
