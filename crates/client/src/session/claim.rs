//! One claim on a resource. Dropped, it ends.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use super::inner::{Inner, KnownSet};
use crate::authority::{HeldLease, ResourceName};

#[derive(Debug)]
pub(crate) struct ResourceClaim {
    inner: Arc<Inner>,
    resource: ResourceName,
    ends_leases: AtomicBool,
    is_given_up: bool,
    /// Its acquire goes on.
    is_acquire: bool,
}

impl ResourceClaim {
    pub fn new(inner: &Arc<Inner>, resource: ResourceName) -> Self {
        inner.claims.begin(&resource);
        Self::begun(inner, resource)
    }

    /// The claim of an acquire.
    pub fn of_acquire(inner: &Arc<Inner>, resource: ResourceName) -> Self {
        let mut claim = Self::new(inner, resource);
        inner.claims.begin_acquire(&claim.resource);
        claim.is_acquire = true;
        claim
    }

    /// The first claim on the resource of a lease, and the set that shows the lease; none if it may not be adopted.
    pub fn on_unclaimed(inner: &Arc<Inner>, lease: &HeldLease) -> Option<(KnownSet, Self)> {
        inner.while_unguarded(lease, |known| {
            let is_ours = inner.claims.begin_if_unclaimed(&lease.resource, lease.lease, known.asked);
            is_ours.then(|| (known, Self::begun(inner, lease.resource.clone())))
        })
    }

    fn begun(inner: &Arc<Inner>, resource: ResourceName) -> Self {
        let inner = inner.clone();
        let ends_leases = AtomicBool::new(false);
        Self { inner, resource, ends_leases, is_given_up: false, is_acquire: false }
    }

    pub fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    pub fn resource(&self) -> &ResourceName {
        &self.resource
    }

    /// From now on requests are sent under this claim that end leases.
    pub fn ends_leases(&self) {
        self.ends_leases.store(true, Ordering::SeqCst);
    }

    /// Its acquire is over: granted, refused for good or given up.
    pub fn end_acquire(&mut self) {
        if std::mem::take(&mut self.is_acquire) {
            self.inner.claims.end_acquire(&self.resource);
        }
    }

    /// Its request was given up, and may still be granted.
    pub fn given_up(&mut self) {
        self.end_acquire();
        if !self.is_given_up {
            self.is_given_up = true;
            self.inner.claims.begin_unconfirmed();
        }
    }
}

impl Drop for ResourceClaim {
    fn drop(&mut self) {
        self.end_acquire();
        if self.is_given_up {
            self.inner.claims.end_unconfirmed();
        }
        let answered = self.ends_leases.get_mut().then(|| self.inner.clock().now());
        self.inner.claims.end(&self.resource, answered);
    }
}
