//! Getting ready for a resource that another runner still holds: only then is its holder asked for it.

use solehold_client::ResourceName;
use solehold_clock::BootTime;

use super::{Action, LeaseState, Machine, Preparing, Slot, Worker, WorkerId};
use crate::worker::{MessageError, Protocol, ToWorker};

impl Machine {
    /// Asks a worker to prepare. A plain process cannot: it would begin to work. For it the holder is asked at once.
    pub(super) fn prepare(&mut self, now: BootTime, resource: ResourceName) {
        let worker = self.choose_worker(now, &resource);
        let can_prepare = self.can_prepare();
        let Some(slot) = self.slots.get_mut(&resource) else { return };
        let Some(worker) = worker.filter(|_| can_prepare) else {
            slot.lease = LeaseState::Asked;
            self.actions.push(Action::TakeOver(resource));
            return;
        };
        self.asked += 1;
        let id = format!("p{}", self.asked);
        let until = now.plus(self.rules.bounds.startup);
        slot.lease = LeaseState::Preparing(Preparing { id, until });
        self.tell_prepare(worker, &resource);
    }

    fn can_prepare(&self) -> bool {
        match self.rules.bounds.protocol {
            Protocol::Required => true,
            Protocol::Auto => self.workers_speak,
            Protocol::None => false,
        }
    }

    /// Tells a worker to prepare, if it hears; otherwise it is told when it has connected.
    pub(super) fn tell_prepare(&mut self, worker: WorkerId, resource: &ResourceName) {
        let Some(LeaseState::Preparing(preparing)) = self.slots.get(resource).map(|slot| &slot.lease) else {
            return;
        };
        if !self.workers.get(&worker).is_some_and(Worker::hears) {
            return;
        }
        let message = ToWorker::Prepare {
            id: preparing.id.clone(),
            resource: resource.to_string(),
            state: None,
            config: None,
            deadline_boottime_ms: preparing.until.as_ms(),
        };
        self.actions.push(Action::Tell { worker, message });
    }

    /// A worker says that it is prepared; only the answer to the present question counts.
    pub(super) fn prepared(&mut self, worker: WorkerId, id: &str) -> Result<(), MessageError> {
        let is_it = |slot: &Slot| {
            slot.worker == Some(worker)
                && matches!(&slot.lease, LeaseState::Preparing(asked) if asked.id == id)
        };
        let Some((resource, slot)) = self.slots.iter_mut().find(|(_, slot)| is_it(slot)) else {
            return Err(MessageError::NoPrepare(id.to_owned()));
        };
        (slot.lease, slot.prepared) = (LeaseState::Asked, Some(id.to_owned()));
        self.actions.push(Action::TakeOver(resource.clone()));
        Ok(())
    }

    /// A worker that is not prepared in time, or that ended meanwhile, holds nothing up: it is tried again later.
    pub(super) fn give_up_preparing(&mut self, now: BootTime) {
        let is_draining = self.drain.is_some();
        let is_over = |slot: &Slot| match &slot.lease {
            LeaseState::Preparing(preparing) => {
                now >= preparing.until || slot.worker.is_none() || is_draining
            }
            _ => false,
        };
        for resource in self.those(is_over) {
            self.not_granted(now, &resource, None);
        }
    }

    pub(super) fn drop_unwanted_preparations(&mut self) {
        let is_unwanted =
            |slot: &Slot| !slot.need.is_to_get() && matches!(slot.lease, LeaseState::Preparing(_));
        for resource in self.those(is_unwanted) {
            self.leave_worker(&resource);
            self.slots.remove(&resource);
        }
    }
}
