//! Until when a worker may run: each lease is trusted until its own deadline, and nothing is started that would be
//! ended at once.

use std::collections::BTreeMap;

use solehold_client::ResourceName;
use solehold_clock::BootTime;
use uuid::Uuid;

use super::{Holding, LeaseState, Machine, Slot, WorkerId};

impl Slot {
    /// The lease that a worker may work under.
    pub(super) fn holding(&self) -> Option<&Holding> {
        match &self.lease {
            LeaseState::Held(holding) => Some(holding),
            LeaseState::Ending(ending) => Some(&ending.holding),
            LeaseState::None | LeaseState::Preparing(_) | LeaseState::Asked | LeaseState::Releasing => None,
        }
    }

    /// Whether its worker has something to do about it. What was only asked for may never be granted.
    fn is_work(&self) -> bool {
        match &self.lease {
            LeaseState::Held(_) | LeaseState::Ending(_) | LeaseState::Preparing(_) => true,
            LeaseState::Asked => self.prepared.is_some(),
            LeaseState::None | LeaseState::Releasing => false,
        }
    }

    pub(super) fn holding_mut(&mut self) -> Option<&mut Holding> {
        match &mut self.lease {
            LeaseState::Held(holding) => Some(holding),
            LeaseState::Ending(ending) => Some(&mut ending.holding),
            LeaseState::None | LeaseState::Preparing(_) | LeaseState::Asked | LeaseState::Releasing => None,
        }
    }
}

impl Machine {
    /// Each lease that is not lost is trusted until its own deadline.
    pub(super) fn renewed(&mut self, session: BootTime, leases: &BTreeMap<ResourceName, BootTime>) {
        self.trusted_until = session;
        for (resource, until) in leases {
            let holding = self.slots.get_mut(resource).and_then(Slot::holding_mut);
            if let Some(holding) = holding.filter(|holding| holding.lost.is_none()) {
                holding.granted.trusted_until = *until;
            }
        }
    }

    /// Until when a worker may run unless a lease is renewed: the first deadline among those of its leases that are
    /// not lost. For one that holds nothing, that of the session.
    pub fn term(&self, worker: WorkerId) -> BootTime {
        let of = |holding: &Holding| holding.lost.is_none().then_some(holding.granted.trusted_until);
        self.holdings(worker).filter_map(of).min().unwrap_or(self.trusted_until)
    }

    /// By when a worker must have ended unless it says before that it has finished with what was lost.
    pub fn bound(&self, worker: WorkerId) -> Option<BootTime> {
        self.holdings(worker).filter_map(|holding| holding.lost).min()
    }

    /// The leases that a worker works under, also of what it is to finish with.
    pub fn lease_ids(&self, worker: WorkerId) -> Vec<Uuid> {
        self.holdings(worker).map(|holding| holding.granted.lease_id).collect()
    }

    /// Whether a worker can be started: it holds something or prepares for it, and enough time is left, since its
    /// keeper refuses one that it would have to end.
    pub(super) fn is_startable(&self, now: BootTime, worker: WorkerId) -> bool {
        if !self.slots.values().any(|slot| slot.worker == Some(worker) && slot.is_work()) {
            return false;
        }
        let deadline = self.term(worker).min(self.bound(worker).unwrap_or(BootTime::from_ms(u64::MAX)));
        now.plus(self.rules.start_before) < deadline.plus(self.rules.grace)
    }

    fn holdings(&self, worker: WorkerId) -> impl Iterator<Item = &Holding> {
        self.slots.values().filter(move |slot| slot.worker == Some(worker)).filter_map(Slot::holding)
    }
}
