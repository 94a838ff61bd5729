//! Claims: what this session is doing about a resource, so that nothing else takes its lease up meanwhile.
//!
//! ```text
//!   acquire, hand-over ──> guard ──> release ─────────┐
//!          └── given up ──> cancel, call-off ─────────┴──> answered: the claim is over
//! ```
//! One claim travels this way. It begins before the first request is sent and is over when no request that was sent
//! under it can end a lease any more: the authority has answered. A request that nobody waits for any more goes on in
//! the background, and so does its claim.
//!
//! A lease without a guard may be adopted only when nobody has a claim on its resource, and only if the set that shows
//! it was asked for after the last cancel, call-off or release was answered. Heartbeats overtake other requests, so an
//! older set may show a lease that has ended since: an answer is as old as its question (rule 4).

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use solehold_core::key::LeaseId;

use super::inner::Inner;
use crate::{authority::ResourceName, clock::BootTime};

/// Most resources of which it is remembered when their last request was answered; the others share the latest time.
const ANSWERED_MAX: usize = 4_096;
/// Most hand-overs that were called off and are remembered.
const CALLED_OFF_MAX: usize = 1_024;
/// Most requests that were given up and may still be granted. Beyond it nothing new is acquired.
const UNCONFIRMED_MAX: usize = 10_000;

/// Whether a lease without a guard may be taken up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClaimStatus {
    /// A request, or a guard, is about its resource.
    Claimed,
    /// The set that shows it may be older than the end of the lease.
    Unproven,
    Unclaimed,
}

/// The claims of a session.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    table: Mutex<ClaimTable>,
    unconfirmed: AtomicUsize,
}

#[derive(Debug, Default)]
struct ClaimTable {
    open: HashMap<ResourceName, usize>,
    /// When the last request that ends leases was answered, until a set is known that was asked for later.
    answered: HashMap<ResourceName, BootTime>,
    /// The same for the resources that did not fit.
    others_answered: Option<BootTime>,
    /// A late repeat of the hand-over can bring such a lease back, and a late repeat of the call-off can end it again.
    called_off: HashSet<LeaseId>,
    called_off_in_order: VecDeque<LeaseId>,
}

impl ClaimTable {
    fn answered(&mut self, resource: ResourceName, now: BootTime) {
        if self.answered.len() >= ANSWERED_MAX {
            let latest = self.answered.drain().map(|(_, at)| at).max();
            self.others_answered = self.others_answered.max(latest);
        }
        self.answered.insert(resource, now);
    }

    fn status(&self, resource: &ResourceName, lease: LeaseId, asked: BootTime) -> ClaimStatus {
        if self.open.contains_key(resource) || self.called_off.contains(&lease) {
            return ClaimStatus::Claimed;
        }
        let answered = self.answered.get(resource).copied().max(self.others_answered);
        // At the same moment nobody knows which came first.
        if answered.is_some_and(|at| asked <= at) { ClaimStatus::Unproven } else { ClaimStatus::Unclaimed }
    }
}

impl Claims {
    /// How a lease stands that is shown by a set which was asked for then.
    pub fn status(&self, resource: &ResourceName, lease: LeaseId, asked: BootTime) -> ClaimStatus {
        self.table.lock().status(resource, lease, asked)
    }

    /// A set is known that was asked for then: what was answered before is in it.
    pub fn learned(&self, asked: BootTime) {
        let mut table = self.table.lock();
        table.answered.retain(|_, answered| *answered >= asked);
        table.others_answered = table.others_answered.filter(|answered| *answered >= asked);
    }

    /// A hand-over is called off: its lease is wanted no more, whenever it shows up.
    pub fn called_off(&self, lease: LeaseId) {
        let mut table = self.table.lock();
        if !table.called_off.insert(lease) {
            return;
        }
        table.called_off_in_order.push_back(lease);
        if table.called_off.len() > CALLED_OFF_MAX
            && let Some(oldest) = table.called_off_in_order.pop_front()
        {
            table.called_off.remove(&oldest);
        }
    }

    /// Whether a lease is one that was called off while nothing is under way about its resource.
    pub fn is_back(&self, resource: &ResourceName, lease: LeaseId) -> bool {
        let table = self.table.lock();
        table.called_off.contains(&lease) && !table.open.contains_key(resource)
    }

    /// Whether there is one claim on a resource and no other.
    pub fn is_only(&self, resource: &ResourceName) -> bool {
        self.table.lock().open.get(resource) == Some(&1)
    }

    /// Why nothing more may be acquired, if so many requests were given up that may still be granted.
    pub fn refuse_if_full(&self) -> Result<(), String> {
        let count = self.unconfirmed.load(Ordering::Relaxed);
        if count < UNCONFIRMED_MAX {
            return Ok(());
        }
        Err(format!(
            "{count} requests that were given up are not known to be spent, which is the most there may be"
        ))
    }
}

/// A claim on a resource, for as long as this value lives.
#[derive(Debug)]
pub(crate) struct ResourceClaim {
    inner: Arc<Inner>,
    resource: ResourceName,
    ends_leases: AtomicBool,
    is_given_up: bool,
}

impl ResourceClaim {
    pub fn new(inner: &Arc<Inner>, resource: ResourceName) -> Self {
        *inner.claims.table.lock().open.entry(resource.clone()).or_default() += 1;
        Self::of(inner, resource)
    }

    /// A claim on the resource of a lease that nobody has a claim on, as a set shows it that was asked for then.
    pub fn of_unclaimed(
        inner: &Arc<Inner>,
        resource: &ResourceName,
        lease: LeaseId,
        asked: BootTime,
    ) -> Option<Self> {
        let mut table = inner.claims.table.lock();
        if table.status(resource, lease, asked) != ClaimStatus::Unclaimed {
            return None;
        }
        table.open.insert(resource.clone(), 1);
        drop(table);
        Some(Self::of(inner, resource.clone()))
    }

    fn of(inner: &Arc<Inner>, resource: ResourceName) -> Self {
        Self { inner: inner.clone(), resource, ends_leases: AtomicBool::new(false), is_given_up: false }
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

    /// Its request was given up, and may still be granted.
    pub fn given_up(&mut self) {
        if !std::mem::replace(&mut self.is_given_up, true) {
            self.inner.claims.unconfirmed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for ResourceClaim {
    fn drop(&mut self) {
        if self.is_given_up {
            self.inner.claims.unconfirmed.fetch_sub(1, Ordering::Relaxed);
        }
        let now = self.inner.clock().now();
        let mut table = self.inner.claims.table.lock();
        if let Some(count) = table.open.get_mut(&self.resource) {
            *count -= 1;
            if *count == 0 {
                table.open.remove(&self.resource);
            }
        }
        if *self.ends_leases.get_mut() {
            table.answered(self.resource.clone(), now);
        }
    }
}
