//! Taking over a resource from its present holder, with no moment in which nobody holds it (rule 16).

use std::{sync::Arc, time::Duration};

use super::{
    adopt::hold,
    claim::ResourceClaim,
    endings,
    guard::Guard,
    inner::Inner,
    request::{self, AcquireError},
};
use crate::authority::{Attributes, AuthorityError, ResourceName};
use solehold_core::key::{LeaseId, SessionId};

/// How often to look whether the present holder has released, beside being told.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How often the present holder is asked again, where an answer was lost.
const ATTEMPTS: u32 = 3;

/// The request to hand a resource over, from before it is sent to its guard. Dropped before that, it is called off.
struct Offer {
    inner: Arc<Inner>,
    resource: ResourceName,
    session: SessionId,
    /// None when it has gone on to the guard.
    claim: Option<ResourceClaim>,
    /// The lease that was offered, once that was answered.
    lease: Option<LeaseId>,
    /// A request was sent that may have been done.
    is_in_doubt: bool,
    /// How long an offer lasts.
    within: Duration,
    attributes: Attributes,
}

impl Drop for Offer {
    fn drop(&mut self) {
        let Some(claim) = self.claim.take() else { return };
        match self.lease {
            Some(lease) => endings::call_off(claim, self.session, lease),
            None if self.is_in_doubt => {
                let lapses_at = self.inner.clock().now().plus(self.within);
                endings::call_off_unanswered(claim, self.session, lapses_at);
            }
            None => {}
        }
    }
}

impl Offer {
    /// Asks the present holder, under an id of our own, so that it can be asked again where an answer was lost.
    async fn ask(&mut self) -> Result<LeaseId, AcquireError> {
        let inner = self.inner.clone();
        let request = self.inner.fresh_id();
        for failures in 1.. {
            // So it is if this is dropped while the request is under way.
            let was_in_doubt = self.is_in_doubt;
            self.is_in_doubt = true;
            let to = self.session;
            let within = self.within;
            let attributes = &self.attributes;
            let answer = inner.authority.hand_over(&self.resource, request, to, within, attributes).await;
            self.is_in_doubt = was_in_doubt || matches!(answer, Err(AuthorityError::Unknown(_)));
            let resource = self.resource.clone();
            match answer {
                Ok(Ok(lease)) => {
                    self.lease = Some(lease);
                    return Ok(lease);
                }
                Ok(Err(refusal)) => return Err(AcquireError::Refused { resource, refusal }),
                Err(error) if failures > ATTEMPTS => {
                    return Err(AcquireError::Authority { resource, error });
                }
                Err(error) => inner.pause(inner.backoff(failures, error.retry_after())).await,
            }
        }
        unreachable!("it is asked until there is an answer, or no attempt left")
    }
}

/// Asks the present holder to hand over, and waits until it has; none if it has not within the time.
pub(super) async fn take_over(
    inner: &Arc<Inner>,
    resource: ResourceName,
    within: Duration,
    attributes: Attributes,
) -> Result<Option<Guard>, AcquireError> {
    request::check(inner, &resource)?;
    let session = inner.ready().await.map_err(AcquireError::SessionOver)?;
    let claim = Some(ResourceClaim::new(inner, resource.clone()));
    let lease = None;
    let is_in_doubt = false;
    let inner_too = inner.clone();
    let mut offer =
        Offer { inner: inner_too, resource, session, claim, lease, is_in_doubt, within, attributes };
    let lease = offer.ask().await?;
    let mut sets = inner.sets();
    let until = inner.clock().now().plus(within);
    inner.beat_now();
    loop {
        let known = sets.borrow_and_update().clone();
        let beat = known.map(|known| known.beat).filter(|beat| beat.session == session);
        let held = beat.as_ref().and_then(|beat| beat.leases.iter().find(|held| held.lease == lease));
        if let (Some(beat), Some(held)) = (&beat, held) {
            let attributes = offer.attributes.clone();
            return hold(inner, beat, held, attributes, &mut offer.claim).await;
        }
        let now = inner.clock().now();
        if now >= until || inner.live_session() != Some(session) {
            return Ok(None);
        }
        let look_at = now.plus(LOOK_EVERY).min(until);
        tokio::select! {
            changed = sets.changed() => if changed.is_err() { return Ok(None) },
            () = inner.clock().wait_until(look_at) => inner.beat_now(),
        }
    }
}
