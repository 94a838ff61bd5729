//! Sessions with many leases on our server, through the interface that our own client stands on.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, anyhow};
use solehold_client::{
    Http, Metrics, ResourceName, SessionId,
    authority::{AcquireRequest, Authority as _, Completion, HeldLease, Opening, Operation, Reply},
};
use solehold_core::key::Name;
use uuid::Uuid;

/// Longer than any run: what lasts as long has no renewal but the measured one.
pub const TTL: Duration = Duration::from_secs(6 * 60 * 60);

/// Opens a session under that name.
pub async fn open(authority: &Http, holder: &str) -> Result<SessionId> {
    let id = SessionId(Uuid::now_v7());
    let holder = Name::new(holder)?;
    let opening = Opening { id, holder, ttl: TTL, metrics: Metrics::new(), follows: None };
    done(authority.open(&opening).await)?;
    Ok(id)
}

/// The acquires of these resources.
pub fn acquires(resources: &[ResourceName], holder: &str, session: SessionId) -> Result<Vec<Operation>> {
    let holder = Name::new(holder)?;
    let mut acquires = Vec::with_capacity(resources.len());
    for resource in resources {
        acquires.push(Operation::Acquire(AcquireRequest {
            resource: resource.clone(),
            holder: holder.clone(),
            session,
            request: Name::new(Uuid::now_v7().to_string())?,
            attributes: Default::default(),
            slots: None,
        }));
    }
    Ok(acquires)
}

/// Acquires them in one request.
pub async fn acquire(authority: &Arc<Http>, acquires: Vec<Operation>) -> Result<Vec<HeldLease>> {
    let held = |reply| match done(reply)? {
        Completion::Held(granted) => Ok(granted.held),
        Completion::Released => Err(anyhow!("an acquire was answered as a release")),
    };
    authority.submit(acquires).await.into_iter().map(held).collect()
}

/// Releases them in one request.
pub async fn release(authority: &Arc<Http>, held: Vec<HeldLease>) -> Result<()> {
    let releases = held.into_iter().map(|held| Operation::Release { held, state: None }).collect();
    authority.submit(releases).await.into_iter().try_for_each(|reply| done(reply).map(|_| ()))
}

/// What was done, if it was.
pub fn done<T>(reply: Reply<T>) -> Result<T> {
    reply.context("our server")?.context("our server refused it")
}
