//! Locks: the holder of each, and the waiters in line.

use serde::{Deserialize, Serialize};
use solehold_core::waiter;
use uuid::Uuid;

use crate::{
    page::PageCursor,
    resources::{HeldLease, ResourceBody},
    time::Timestamp,
};

/// A waiter in line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LockWaiter {
    pub holder: String,
    /// The session that its lease will be attached to, if not one of its own.
    pub session_id: Option<Uuid>,
    /// When it joined the line.
    pub since: Timestamp,
    /// When its present wait ends, unless it repeats the request.
    pub until: Timestamp,
}

impl LockWaiter {
    pub fn of(waiter: &waiter::Waiter) -> Self {
        Self {
            holder: waiter.holder.to_string(),
            session_id: waiter.session().map(|id| id.0),
            since: waiter.since.into(),
            until: waiter.deadline.into(),
        }
    }
}

/// A lock that is held, held back or waited for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Lock {
    pub name: String,
    pub tenant: String,
    /// The lease on it, until it expires.
    pub lease: Option<HeldLease>,
    /// The leases of those who share it, in the order of their slots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared: Vec<HeldLease>,
    /// Milliseconds for which it cannot be acquired; 0 if it is not held back.
    pub held_back_ms: u64,
    /// The number of waiters in line.
    pub waiting: u32,
    /// The first of them, in order.
    pub waiters: Vec<LockWaiter>,
}

impl From<ResourceBody> for Lock {
    fn from(resource: ResourceBody) -> Self {
        let ResourceBody { tenant, key: name, lease, shared, held_back_ms, waiting, waiters, .. } = resource;
        Self { name, tenant, lease, shared, held_back_ms, waiting, waiters }
    }
}

/// A page of locks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LockList {
    pub locks: Vec<Lock>,
    /// Where the next page begins; null on the last.
    pub next: Option<PageCursor>,
}
