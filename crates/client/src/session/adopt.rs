//! Taking up a lease that this session has and no guard stands for.
//!
//! An operator may hand a resource over to a session while that session acquires it. The acquire is refused, since the
//! resource is held, and the lease is not adopted, since the acquire has a claim: the session would wait for itself. So
//! the acquire gives its request up, and adopts the lease by the same rule as anyone else.

use std::{sync::Arc, time::Duration};

use super::{
    claim::ResourceClaim,
    guard::Guard,
    inner::Inner,
    request::{AcquireError, Request},
};
use crate::authority::{Attributes, Beat, GrantedLease, HeldLease, ResourceName};

/// A grant from the line has a guard by then, or has lapsed (rule 15).
const TAKEN_UP_WITHIN: Duration = Duration::from_secs(3);

/// How often to look whether a lease may be adopted, beside being told.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Takes up a lease that nothing in this session has a claim on.
pub(super) async fn adopt(inner: &Arc<Inner>, lease: &HeldLease) -> Result<Option<Guard>, AcquireError> {
    let Some((known, claim)) = ResourceClaim::on_unclaimed(inner, lease) else { return Ok(None) };
    hold(inner, &known.beat, lease, Attributes::new(), &mut Some(claim)).await
}

/// The session's exclusive lease on a resource, if no guard stands for it.
fn unguarded(inner: &Inner, resource: &ResourceName) -> Option<HeldLease> {
    let known = inner.set()?;
    let its = |held: &&HeldLease| held.resource == *resource && held.slot.is_none();
    known.beat.leases.iter().find(its).filter(|held| !inner.is_guarded(held.lease)).cloned()
}

/// Waits until the session has an exclusive lease on a resource that all its acquires of it wait for. The grant of one
/// of them gets a guard soon, when its answer arrives.
pub(super) async fn waits_for_itself(inner: &Arc<Inner>, resource: &ResourceName) {
    let mut sets = inner.sets();
    let waits_for =
        || unguarded(inner, resource).map(|held| held.lease).filter(|_| inner.claims.are_acquires(resource));
    loop {
        if let Some(lease) = waits_for() {
            inner.pause(TAKEN_UP_WITHIN).await;
            if waits_for() == Some(lease) {
                return;
            }
        } else if sets.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Adopts the lease that a request was refused for, if it is the session's own, and nothing has a claim on it.
pub(super) async fn unclaimed(refused: &Request) -> Option<Guard> {
    let asks_exclusively = refused.terms().slots.is_none();
    let lease = unguarded(&refused.inner, &refused.resource).filter(|_| asks_exclusively)?;
    adopt(&refused.inner, &lease).await.ok().flatten()
}

/// Adopts the lease that a request was refused for, if it is the session's own: the request is given up for it, and
/// another takes its place if the lease gets another guard, or ends.
pub(super) async fn adopt_instead(refused: &mut Request) -> Option<Guard> {
    let inner = refused.inner.clone();
    let resource = refused.resource.clone();
    if refused.terms().slots.is_some() || !inner.claims.are_acquires(&resource) {
        return None;
    }
    let lease = unguarded(&inner, &resource)?.lease;
    refused.give_up();
    let mut sets = inner.sets();
    while let Some(held) = unguarded(&inner, &resource).filter(|held| held.lease == lease) {
        // Sends a heartbeat if only a newer set is missing.
        if inner.unclaimed().contains(&held)
            && let Ok(Some(guard)) = adopt(&inner, &held).await
        {
            return Some(guard);
        }
        let look_at = inner.clock().now().plus(LOOK_EVERY);
        tokio::select! {
            changed = sets.changed() => if changed.is_err() { break },
            () = inner.clock().wait_until(look_at) => {}
        }
    }
    refused.renew();
    None
}

/// Takes up a lease that has become active. The claim goes on to the guard, if there is one.
pub(super) async fn hold(
    inner: &Arc<Inner>,
    beat: &Beat,
    held: &HeldLease,
    attributes: Attributes,
    claim: &mut Option<ResourceClaim>,
) -> Result<Option<Guard>, AcquireError> {
    let state = match inner.authority.read_state(&held.resource).await {
        Ok(Ok(state)) => state,
        Ok(Err(refusal)) => return Err(AcquireError::Refused { resource: held.resource.clone(), refusal }),
        Err(error) => return Err(AcquireError::Authority { resource: held.resource.clone(), error }),
    };
    let ttl_left = beat.ttl_left;
    let slack = beat.slack;
    let epoch = beat.epoch;
    let grant = GrantedLease { held: held.clone(), ttl_left, slack, epoch, state, confirm_within: None };
    let Some(holding) = inner.hold(beat.session, grant, attributes) else { return Ok(None) };
    Ok(claim.take().map(|claim| Guard::new(holding, claim)))
}
