//! Requests that end leases, and go on in the background until they are answered or the session is over: releases,
//! cancels of acquires, and call-offs of hand-overs. Each keeps its claim until then.

use std::sync::Arc;

use solehold_clock::BootTime;
use solehold_core::key::{LeaseId, Name, SessionId};

use super::{
    claim::ResourceClaim,
    inner::{Inner, Phase},
};
use crate::authority::{AuthorityError, HeldLease, Operation, Reply};

/// Whether the authority said that the lease is over; otherwise it is to be told again.
fn is_over<T>(told: &Reply<T>) -> bool {
    match told {
        Ok(Ok(_)) => true,
        Ok(Err(refusal)) => refusal.ends_lease() || refusal.ends_session(),
        Err(_) => false,
    }
}

/// Waits before a request is repeated that was not done, as far as is known.
async fn pause<T>(inner: &Inner, what: &'static str, claim: &ResourceClaim, told: &Reply<T>, failures: u32) {
    let (why, retry_after) = match told {
        Ok(Ok(_)) => return,
        Ok(Err(refusal)) => (refusal.to_string(), refusal.retry_after),
        Err(error) => (error.to_string(), error.retry_after()),
    };
    tracing::debug!(holder = %inner.holder, resource = %claim.resource(), why, "{what} not confirmed; retrying");
    inner.pause(inner.backoff(failures, retry_after)).await;
}

/// Releases a lease that is no longer wanted. It is tried until the lease is known to be over, for as long as the
/// session keeps the lease alive.
pub(super) fn release(claim: ResourceClaim, held: HeldLease) {
    claim.ends_leases();
    let inner = claim.inner().clone();
    let began = inner.live_session();
    inner.clone().spawn(async move {
        for failures in 1.. {
            let release = Operation::Release { held: held.clone(), state: None };
            let told = inner.coalescer.submit(release).await;
            // A release that was answered too late is found out from the set.
            let is_unknown = matches!(told, Err(AuthorityError::Unknown(_)));
            let has_ended = is_over(&told) || is_unknown && inner.has_ended(&held);
            if has_ended || inner.live_session() != began {
                break;
            }
            pause(&inner, "release", &claim, &told, failures).await;
        }
        drop(claim);
    });
}

/// Spends a request whose outcome is no longer wanted: what it got, or would get, is released (rule 7). It is tried
/// for as long as the session could keep the lease alive.
pub(super) fn spend(mut claim: ResourceClaim, request: Name) {
    claim.ends_leases();
    claim.given_up();
    let inner = claim.inner().clone();
    inner.clone().spawn(async move {
        for failures in 1.. {
            let permit = inner.spending.acquire().await;
            let told = inner.authority.cancel(claim.resource(), &inner.holder, &request).await;
            drop(permit);
            if matches!(told, Ok(Ok(()))) || matches!(inner.phase(), Phase::Over(_)) {
                break;
            }
            pause(&inner, "cancellation", &claim, &told, failures).await;
        }
        drop(claim);
    });
}

/// Calls a hand-over off, by the id of its lease. If the lease has become active meanwhile, this releases it.
pub(super) fn call_off(mut claim: ResourceClaim, session: SessionId, lease: LeaseId) {
    claim.ends_leases();
    claim.given_up();
    let inner = claim.inner().clone();
    inner.claims.called_off(lease);
    inner.clone().spawn(async move {
        for failures in 1.. {
            let told = inner.authority.call_off(claim.resource(), lease).await;
            if is_over(&told) || is_over_for(&inner, session) {
                break;
            }
            pause(&inner, "call-off of a hand-over", &claim, &told, failures).await;
        }
        drop(claim);
    });
}

/// Calls off a hand-over whose request was not answered, so that the id of its lease is not known: it is called off
/// when the session is seen to have it. Its claim is over with the first set that was asked for after the hand-over
/// has lapsed, if it was made at all.
pub(super) fn call_off_unanswered(mut claim: ResourceClaim, session: SessionId, lapses_at: BootTime) {
    claim.given_up();
    let inner = claim.inner().clone();
    inner.clone().spawn(async move {
        let mut sets = inner.sets();
        let mut phases = inner.phases();
        loop {
            if is_over_for(&inner, session) {
                return;
            }
            let known = sets.borrow_and_update().clone().filter(|known| known.beat.session == session);
            if let Some(known) = known {
                if let Some(lease) = known.lease_of(claim.resource())
                    && !inner.is_guarded(lease)
                    // Otherwise the lease may be another request's.
                    && inner.claims.is_only(claim.resource())
                {
                    return call_off(claim, session, lease);
                }
                if known.asked > lapses_at {
                    return;
                }
            }
            let changed = tokio::select! {
                changed = sets.changed() => changed,
                changed = phases.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
        }
    });
}

/// Calls off leases again that a late repeat of their hand-over request has brought back.
pub(super) fn end_returned(inner: &Arc<Inner>) {
    let Some(known) = inner.set() else { return };
    for held in known.beat.leases.iter() {
        if inner.claims.is_back(&held.resource, held.lease) && !inner.is_guarded(held.lease) {
            call_off(ResourceClaim::new(inner, held.resource.clone()), known.beat.session, held.lease);
        }
    }
}

/// Whether a session is over, and with it every request that was sent for it.
fn is_over_for(inner: &Inner, session: SessionId) -> bool {
    match inner.phase() {
        Phase::Live(present) => present != session,
        Phase::Reopening => false,
        Phase::Over(_) => true,
    }
}
