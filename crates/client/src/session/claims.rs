//! The claims of a session: which resources have a request under way or a guard, so that nothing else adopts their
//! leases meanwhile.
//!
//! ```text
//!   acquire, hand-over ──> guard ──> release ─────────┐
//!          └── given up ──> cancel, call-off ─────────┴──> answered: the claim is over
//! ```
//! One claim travels this way. It begins before the first request is sent and is over when no request sent under it can
//! end a lease any more: the authority has answered. A request that was given up continues in the background, and so
//! does its claim.
//!
//! A lease without a guard may be adopted only when there is no claim on its resource, and only if the set that shows
//! it was requested after the last cancel, call-off or release was answered. Heartbeats overtake other requests, so an
//! older set may show a lease that has ended since: an answer is as old as its request (rule 4).

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use solehold_clock::BootTime;
use solehold_core::key::LeaseId;

use crate::authority::ResourceName;

/// Most resources whose time of the last answer is remembered; the others share the latest time.
const ANSWERED_MAX: usize = 4_096;
/// Most hand-overs that were called off and are remembered.
const CALLED_OFF_MAX: usize = 1_024;
/// Most requests that were given up and may still be granted. Beyond it nothing new is acquired.
const UNCONFIRMED_MAX: usize = 10_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClaimStatus {
    /// A request, or a guard, is about its resource.
    Claimed,
    /// The set that shows it may be older than the end of the lease.
    Unproven,
    Unclaimed,
}

/// Too many requests were given up and are not confirmed as cancelled.
#[derive(Debug, thiserror::Error)]
#[error("{0} abandoned requests are not confirmed as cancelled yet, which is the limit; try again later")]
pub(crate) struct TooManyUnconfirmed(usize);

#[derive(Debug, Default)]
pub(crate) struct Claims {
    table: Mutex<ClaimTable>,
    unconfirmed: AtomicUsize,
}

/// The claims on a resource that are not over.
#[derive(Debug, Default)]
struct OpenClaims {
    all: usize,
    /// Those of acquires that go on.
    acquires: usize,
}

#[derive(Debug, Default)]
struct ClaimTable {
    open: HashMap<ResourceName, OpenClaims>,
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
        // At the same instant the order is unknown.
        if answered.is_some_and(|at| asked <= at) { ClaimStatus::Unproven } else { ClaimStatus::Unclaimed }
    }
}

impl Claims {
    pub fn begin(&self, resource: &ResourceName) {
        self.table.lock().open.entry(resource.clone()).or_default().all += 1;
    }

    /// The claim that was begun last is that of an acquire.
    pub fn begin_acquire(&self, resource: &ResourceName) {
        if let Some(open) = self.table.lock().open.get_mut(resource) {
            open.acquires += 1;
        }
    }

    /// An acquire is over, and its claim goes on.
    pub fn end_acquire(&self, resource: &ResourceName) {
        if let Some(open) = self.table.lock().open.get_mut(resource) {
            open.acquires -= 1;
        }
    }

    /// The first claim on the resource of a lease; false if the lease may not be adopted.
    pub fn begin_if_unclaimed(&self, resource: &ResourceName, lease: LeaseId, asked: BootTime) -> bool {
        let mut table = self.table.lock();
        let is_unclaimed = table.status(resource, lease, asked) == ClaimStatus::Unclaimed;
        if is_unclaimed {
            table.open.insert(resource.clone(), OpenClaims { all: 1, acquires: 0 });
        }
        is_unclaimed
    }

    /// One claim less. `answered` is when the last request under it was answered, if it sent any that end leases.
    pub fn end(&self, resource: &ResourceName, answered: Option<BootTime>) {
        let mut table = self.table.lock();
        if let Some(open) = table.open.get_mut(resource) {
            open.all -= 1;
            if open.all == 0 {
                table.open.remove(resource);
            }
        }
        if let Some(now) = answered {
            table.answered(resource.clone(), now);
        }
    }

    /// A request was given up, and may still be granted.
    pub fn begin_unconfirmed(&self) {
        self.unconfirmed.fetch_add(1, Ordering::Relaxed);
    }

    /// A request that was given up is known to be spent.
    pub fn end_unconfirmed(&self) {
        self.unconfirmed.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a lease may be adopted that is shown by a set which was requested at `asked`.
    pub fn status(&self, resource: &ResourceName, lease: LeaseId, asked: BootTime) -> ClaimStatus {
        self.table.lock().status(resource, lease, asked)
    }

    /// A set is known that was requested at `asked`: it reflects everything that was answered before.
    pub fn learned(&self, asked: BootTime) {
        let mut table = self.table.lock();
        table.answered.retain(|_, answered| *answered >= asked);
        table.others_answered = table.others_answered.filter(|answered| *answered >= asked);
    }

    /// A hand-over is called off: its lease is no longer wanted, whenever it shows up.
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

    pub fn is_only(&self, resource: &ResourceName) -> bool {
        self.table.lock().open.get(resource).is_some_and(|open| open.all == 1)
    }

    /// Whether all that is under way about a resource are acquires.
    pub fn are_acquires(&self, resource: &ResourceName) -> bool {
        self.table.lock().open.get(resource).is_some_and(|open| open.all == open.acquires)
    }

    /// Nothing more may be acquired while too many requests that were given up may still be granted.
    pub fn check_room(&self) -> Result<(), TooManyUnconfirmed> {
        let count = self.unconfirmed.load(Ordering::Relaxed);
        if count < UNCONFIRMED_MAX { Ok(()) } else { Err(TooManyUnconfirmed(count)) }
    }
}
