//! Taking over a resource from its present holder, with no moment in which nobody holds it (rule 16).

use std::{sync::Arc, time::Duration};

use super::{acquire::AcquireError, guard::Guard, inner::Inner};
use crate::authority::{Beat, Grant, HeldLease, Resource};
use solehold_core::key::{LeaseId, SessionId};

/// How often to look whether the present holder has released, beside being told.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How often the present holder is asked again, where an answer was lost.
const ATTEMPTS: u32 = 3;

/// Calls the hand-over off if nobody waits for it any more.
struct Pending {
    inner: Arc<Inner>,
    resource: Resource,
    lease: LeaseId,
    is_wanted: bool,
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.is_wanted {
            return;
        }
        let (inner, resource, lease) = (self.inner.clone(), self.resource.clone(), self.lease);
        self.inner.spawn(async move {
            // If it has become active meanwhile, this releases it.
            if let Err(error) = inner.authority.call_off(&resource, lease).await {
                tracing::debug!(%error, %resource, "a hand-over could not be called off: it lapses");
            }
        });
    }
}

/// Asks the present holder to hand over, and waits until it has; none if it has not within the time.
pub(super) async fn take_over(
    inner: &Arc<Inner>,
    resource: Resource,
    within: Duration,
) -> Result<Option<Guard>, AcquireError> {
    let session = inner.ready().await.map_err(AcquireError::SessionOver)?;
    let lease = ask(inner, &resource, session, within).await?;
    let mut pending = Pending { inner: inner.clone(), resource: resource.clone(), lease, is_wanted: true };
    let (mut sets, until) = (inner.sets(), inner.clock().now().plus(within));
    inner.has_news();
    loop {
        let beat = sets.borrow_and_update().clone();
        let beat = beat.filter(|beat| beat.session == session);
        let held = beat.as_ref().and_then(|beat| beat.leases.iter().find(|held| held.lease == lease));
        if let (Some(beat), Some(held)) = (&beat, held) {
            let guard = hold(inner, session, beat, held).await?;
            pending.is_wanted = guard.is_none();
            return Ok(guard);
        }
        let now = inner.clock().now();
        if now >= until || inner.live_session() != Some(session) {
            return Ok(None);
        }
        let look_at = now.plus(LOOK_EVERY).min(until);
        tokio::select! {
            changed = sets.changed() => if changed.is_err() { return Ok(None) },
            () = inner.clock().wait_until(look_at) => inner.has_news(),
        }
    }
}

/// Takes up a lease that is the session's without having been asked for.
pub(super) async fn adopt(inner: &Arc<Inner>, lease: &HeldLease) -> Result<Option<Guard>, AcquireError> {
    let Some(beat) = inner.set().filter(|beat| beat.leases.contains(lease)) else { return Ok(None) };
    if inner.is_guarded(lease.lease) {
        return Ok(None);
    }
    hold(inner, beat.session, &beat, lease).await
}

/// Asks the present holder, under an id of our own, so that it can be asked again where an answer was lost.
async fn ask(
    inner: &Arc<Inner>,
    resource: &Resource,
    session: SessionId,
    within: Duration,
) -> Result<LeaseId, AcquireError> {
    let request = inner.fresh_id();
    for failures in 1.. {
        match inner.authority.hand_over(resource, request, session, within).await {
            Ok(Ok(lease)) => return Ok(lease),
            Ok(Err(refusal)) => return Err(AcquireError::Refused { resource: resource.clone(), refusal }),
            Err(error) if failures > ATTEMPTS => {
                return Err(AcquireError::Authority { resource: resource.clone(), error });
            }
            Err(error) => inner.pause(inner.backoff(failures, error.retry_after())).await,
        }
    }
    unreachable!("it is asked until there is an answer, or no attempt left")
}

/// Takes up the lease that has become active.
async fn hold(
    inner: &Arc<Inner>,
    session: SessionId,
    beat: &Beat,
    held: &HeldLease,
) -> Result<Option<Guard>, AcquireError> {
    let state = match inner.authority.read_state(&held.resource).await {
        Ok(Ok(state)) => state,
        Ok(Err(refusal)) => return Err(AcquireError::Refused { resource: held.resource.clone(), refusal }),
        Err(error) => return Err(AcquireError::Authority { resource: held.resource.clone(), error }),
    };
    let (ttl_left, slack, epoch) = (beat.ttl_left, beat.slack, beat.epoch);
    let grant = Grant { held: held.clone(), ttl_left, slack, epoch, state, confirm_within: None };
    Ok(inner.hold(session, grant).map(|holding| Guard::new(inner.clone(), holding)))
}
