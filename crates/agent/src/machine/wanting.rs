//! Which resources this agent acquires, keeps and releases.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use solehold_client::{ResourceName, assignments::Want};
use solehold_clock::BootTime;

use super::{Action, LeaseState, Machine, Rules, Slot};

/// The longest pause before asking again for what the server assigns.
const ASSIGNED_RETRY_MAX: Duration = Duration::from_secs(1);

/// What a resource is to this agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Need {
    /// It is not to be worked on.
    #[default]
    None,
    /// It is worked on while it is held, and not acquired again once it is lost.
    WhileHeld,
    /// It is to be had.
    Get(Want),
}

impl Need {
    pub fn is_some(self) -> bool {
        self != Self::None
    }

    pub fn is_to_get(self) -> bool {
        matches!(self, Self::Get(_))
    }
}

impl Rules {
    /// How long to wait before asking again. What a server assigns is worth asking for when it says so again.
    pub(super) fn pause(&self) -> Duration {
        if self.hands_over { self.retry.min(ASSIGNED_RETRY_MAX) } else { self.retry }
    }
}

impl Machine {
    pub(super) fn want(&mut self, now: BootTime, wanted: BTreeMap<ResourceName, Want>) {
        for slot in self.slots.values_mut() {
            slot.need = Need::None;
        }
        for (resource, want) in wanted {
            self.slots.entry(resource).or_default().need = Need::Get(want);
        }
        self.end_unwanted(now);
    }

    /// What the server assigns. Only what it says to acquire is acquired: what is lost is not asked for again before
    /// the server has said so, since it may have been deleted.
    pub(super) fn assigned(
        &mut self,
        now: BootTime,
        acquire: BTreeMap<ResourceName, Want>,
        keep: &BTreeSet<ResourceName>,
        release: &BTreeSet<ResourceName>,
    ) {
        for (resource, slot) in &mut self.slots {
            let is_held = matches!(slot.lease, LeaseState::Held(_) | LeaseState::Ending(_));
            let is_kept = (is_held || keep.contains(resource)) && !release.contains(resource);
            slot.need = if is_kept { Need::WhileHeld } else { Need::None };
        }
        for (resource, want) in acquire {
            let failed_until = self.failed.get(&resource).map(|(_, until)| *until);
            let slot = self.slots.entry(resource).or_default();
            (slot.need, slot.not_before) = (Need::Get(want), slot.not_before.max(failed_until));
        }
        self.end_unwanted(now);
    }

    fn end_unwanted(&mut self, now: BootTime) {
        self.drop_unwanted_preparations();
        let unwanted = |slot: &Slot| !slot.need.is_some() && matches!(slot.lease, LeaseState::Held(_));
        let why = match self.drain {
            Some(_) => "this runner is being drained, and no other runner takes the resource over",
            None => "the resource is no longer assigned to this runner",
        };
        for resource in self.those(unwanted) {
            self.end(now, &resource, None, why);
        }
    }

    pub(super) fn those(&self, is_so: impl Fn(&Slot) -> bool) -> Vec<ResourceName> {
        let of = |(resource, slot): (&ResourceName, &Slot)| is_so(slot).then(|| resource.clone());
        self.slots.iter().filter_map(of).collect()
    }

    /// Asks for what is wanted, as far as there is room.
    pub(super) fn acquire(&mut self, now: BootTime) {
        if self.drain.is_some() {
            return;
        }
        let is_due = |slot: &Slot| {
            slot.need.is_to_get()
                && matches!(slot.lease, LeaseState::None)
                && slot.not_before.is_none_or(|time| now >= time)
        };
        for resource in self.those(is_due).into_iter().take(self.room()) {
            let Some(slot) = self.slots.get_mut(&resource) else { continue };
            slot.not_before = None;
            if slot.need == Need::Get(Want::Moves) {
                self.prepare(now, resource);
            } else {
                slot.lease = LeaseState::Asked;
                // Chosen now, since the lease says which shard works under it. It is started when it holds something.
                self.choose_worker(now, &resource);
                self.actions.push(Action::Acquire(resource));
            }
        }
    }

    /// For how many more there is room: by the capacity, and with the workers. One on its way out takes nothing, and
    /// nothing can be started in its place before it is gone.
    fn room(&self) -> usize {
        let count = |of: fn(&Slot) -> bool| self.slots.values().filter(|slot| of(slot)).count();
        let taken = count(|slot| !matches!(slot.lease, LeaseState::None));
        let unplaced = count(|slot| matches!(slot.lease, LeaseState::Asked) && slot.worker.is_none());
        let per_worker = self.rules.per_worker;
        let workers = self.workers.values();
        let free = workers
            .filter(|worker| !worker.is_stopping())
            .map(|w| per_worker.saturating_sub(w.resources.len()));
        let new = self.rules.max_workers.saturating_sub(self.workers.len()) * per_worker;
        let with_workers = (free.sum::<usize>() + new).saturating_sub(unplaced);
        self.rules.capacity.saturating_sub(taken).min(with_workers)
    }

    pub(super) fn has_room(&self) -> bool {
        self.drain.is_none() && self.room() > 0
    }
}
