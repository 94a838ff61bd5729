//! The callers that wait at this replica, and their places in line.
//!
//! A [`PlaceInLine`] adds its caller when it is made and removes it when it is dropped. Everything else (commits here,
//! the events of other replicas, the upkeep of the room) only notifies callers and notes whether they are in line.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use solehold_core::{
    call::{Actor, Call},
    command::{Acquire, Command},
    key::{LeaseId, RequestKey, ResourceKey},
};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use uuid::Uuid;

use super::WaitingRoom;

pub(super) enum Notice {
    Granted,
    /// The place in line may be lost: submit the acquire again.
    TryAgain,
}

pub(super) struct Caller {
    /// Its current acquire. A retry of the same request at another replica takes the place in line over.
    pub(super) acquire: Acquire,
    pub(super) by: Actor,
    /// Its position among all callers that ever came.
    pub(super) arrival: u64,
    /// Taken by the first notice.
    notice: Option<oneshot::Sender<Notice>>,
    /// Whether the store has it in line, as far as this replica knows.
    is_in_line: bool,
}

impl Caller {
    pub(super) fn request(&self) -> Option<RequestKey> {
        let Acquire { key, holder, request, .. } = &self.acquire;
        let request = request.clone()?;
        Some(RequestKey { resource: key.clone(), holder: holder.clone(), request })
    }
}

#[derive(Default)]
pub(super) struct Callers {
    pub(super) by_lease: BTreeMap<LeaseId, Caller>,
    count_by_key: BTreeMap<ResourceKey, usize>,
    /// The number of callers that have ever come.
    arrivals: u64,
}

impl Callers {
    /// Adds a caller under the lease id that its acquire proposes.
    fn add(&mut self, acquire: &Acquire, by: &Actor, arrival: u64) -> oneshot::Receiver<Notice> {
        let (sender, notice) = oneshot::channel();
        let caller = Caller {
            acquire: acquire.clone(),
            by: by.clone(),
            arrival,
            notice: Some(sender),
            is_in_line: false,
        };
        self.by_lease.insert(acquire.lease, caller);
        notice
    }

    pub(super) fn in_line(&self) -> impl Iterator<Item = &Caller> {
        self.by_lease.values().filter(|caller| caller.is_in_line)
    }

    pub(super) fn joined_line(&mut self, acquire: &Acquire) {
        if let Some(caller) = self.by_lease.get_mut(&acquire.lease) {
            caller.acquire = acquire.clone();
            caller.is_in_line = true;
        }
    }

    pub(super) fn left_line(&mut self, lease: LeaseId) {
        if let Some(caller) = self.by_lease.get_mut(&lease) {
            caller.is_in_line = false;
        }
    }

    pub(super) fn notify(&mut self, lease: LeaseId, notice: Notice) {
        let sender = self.by_lease.get_mut(&lease).and_then(|caller| caller.notice.take());
        if let Some(sender) = sender {
            // A caller that has just disconnected does not receive it.
            let _ = sender.send(notice);
        }
    }

    pub(super) fn all_try_again(&mut self) {
        for caller in self.by_lease.values_mut().filter(|caller| caller.is_in_line) {
            if let Some(sender) = caller.notice.take() {
                let _ = sender.send(Notice::TryAgain);
            }
        }
    }
}

/// A caller's place in line. A place that is dropped before it is settled leaves the line.
pub(super) struct PlaceInLine {
    room: Arc<WaitingRoom>,
    by: Actor,
    key: ResourceKey,
    pub(super) lease: LeaseId,
    arrival: u64,
    /// The lease id of the acquire before this one. The store may still have it in line, if the answer to the newer
    /// acquire was lost.
    pub(super) former: Option<LeaseId>,
    pub(super) notice: oneshot::Receiver<Notice>,
    /// Whether it was the only caller here for its resource when it came.
    pub(super) is_alone: bool,
    pub(super) has_waited: bool,
    /// Whether the client gave the request its id, and may have repeated it at another replica.
    is_named: bool,
    /// The acquire was answered: there is no line to leave.
    pub(super) is_settled: bool,
    permit: Option<OwnedSemaphorePermit>,
}

impl PlaceInLine {
    pub(super) fn take(
        room: &Arc<WaitingRoom>,
        acquire: &Acquire,
        by: Actor,
        permit: OwnedSemaphorePermit,
        is_named: bool,
    ) -> Self {
        room.count.fetch_add(1, Ordering::SeqCst);
        let mut callers = room.callers.lock();
        callers.arrivals += 1;
        let arrival = callers.arrivals;
        let count = callers.count_by_key.entry(acquire.key.clone()).or_default();
        *count += 1;
        let is_alone = *count == 1;
        Self {
            room: room.clone(),
            key: acquire.key.clone(),
            lease: acquire.lease,
            arrival,
            former: None,
            notice: callers.add(acquire, &by, arrival),
            by,
            is_alone,
            has_waited: false,
            is_named,
            is_settled: false,
            permit: Some(permit),
        }
    }

    pub(super) fn call(&self, acquire: &Acquire) -> Call {
        Call::new(Command::Acquire(acquire.clone()), self.by.clone())
    }

    /// Proposes another lease id for the next attempt.
    pub(super) fn renew(&mut self, acquire: &mut Acquire) {
        let mut callers = self.room.callers.lock();
        callers.by_lease.remove(&self.lease);
        acquire.lease = LeaseId::new(&acquire.key, Uuid::new_v4());
        self.former = Some(self.lease);
        self.lease = acquire.lease;
        self.notice = callers.add(acquire, &self.by, self.arrival);
    }
}

impl Drop for PlaceInLine {
    fn drop(&mut self) {
        {
            let mut callers = self.room.callers.lock();
            callers.by_lease.remove(&self.lease);
            if let Some(count) = callers.count_by_key.get_mut(&self.key) {
                *count -= 1;
                if *count == 0 {
                    callers.count_by_key.remove(&self.key);
                }
            }
        }
        self.room.count.fetch_sub(1, Ordering::SeqCst);
        if self.is_settled || self.room.is_stopping.load(Ordering::SeqCst) {
            return;
        }
        let room = self.room.clone();
        let key = self.key.clone();
        let by = self.by.clone();
        let leases = [Some(self.lease), self.former];
        let permit = self.permit.take();
        let keeps_grant = self.is_named;
        self.room.runtime.spawn(async move {
            for lease in leases.into_iter().flatten() {
                room.leave(key.clone(), lease, &by, keeps_grant).await;
            }
            // Only now may another caller have the place.
            drop(permit);
        });
    }
}
