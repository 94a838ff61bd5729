//! Decisions about shared holds (rule 29).
//!
//! A resource that is shared has slots, each a row of its own that is held, renewed, expired and held back as any
//! resource. A row of a slot is there while the slot is taken, and the resource counts them. All who wait stand in the
//! line of the resource: one who wants it for itself gets it when no slot is taken, one who shares it gets the first
//! free slot, and nobody overtakes.

use std::collections::BTreeMap;

use super::{Draft, Stop};
use crate::{
    command::{Acquire, Claim},
    event::Change,
    key::{LeaseId, Name, ResourceKey},
    lease::{Lease, Resource},
    ledger::FoundLate,
    outcome::Refusal,
};

impl Draft<'_> {
    /// A row as this decision has left it.
    pub(super) fn row(&self, key: &ResourceKey) -> Option<&Resource> {
        match self.rows.get(key) {
            Some(row) => row.as_ref(),
            None => self.ledger.resource(key),
        }
    }

    /// Remembers a row that this decision may come back to: a slot, and a resource that is waited for or shared.
    pub(super) fn remember(&mut self, resource: &Resource) {
        if resource.key.is_slot() {
            let taken = Some(resource.clone()).filter(|slot| !slot.is_forgettable(self.now()));
            self.rows.insert(resource.key.clone(), taken);
        } else if resource.queued > 0 || resource.taken > 0 {
            self.rows.insert(resource.key.clone(), Some(resource.clone()));
        }
    }

    /// The slots of a resource that are taken, by their numbers.
    pub(super) fn slots(&self, key: &ResourceKey) -> Result<BTreeMap<u32, Resource>, Stop> {
        let stored = self.ledger.slots_of(key)?.into_iter();
        let mut slots: BTreeMap<_, _> = stored.map(|slot| (slot.key.slot, slot.clone())).collect();
        for (changed, row) in self.rows.range(key.of_slot(1)..=key.of_slot(u32::MAX)) {
            match row {
                Some(slot) => drop(slots.insert(changed.slot, slot.clone())),
                None => drop(slots.remove(&changed.slot)),
            }
        }
        Ok(slots)
    }

    /// The slots of a resource; none without a look at them if none is taken.
    fn taken_slots(&self, resource: &Resource) -> Result<BTreeMap<u32, Resource>, Stop> {
        if resource.taken == 0 { Ok(BTreeMap::new()) } else { self.slots(&resource.key) }
    }

    /// The resource that a slot is of.
    pub(super) fn whole(&self, key: &ResourceKey) -> Result<Resource, Stop> {
        let key = key.whole();
        let mut whole = self.row(&key).cloned().ok_or_else(|| FoundLate::Slots(key.clone()))?;
        whole.queued = self.queued(&key);
        whole.taken = self.slots(&key)?.len() as u32;
        Ok(whole)
    }

    /// How long a resource is held back after a lease that ran out; a slot as its resource.
    pub(super) fn lock_delay_ms(&self, resource: &Resource) -> Result<u64, Stop> {
        if !resource.key.is_slot() {
            return Ok(resource.lock_delay_ms());
        }
        let key = resource.key.whole();
        let whole = self.row(&key).ok_or(FoundLate::Slots(key))?;
        Ok(whole.lock_delay_ms())
    }

    /// Brings a slot up to date with the time, and tells whether that changed it. Nothing is granted.
    pub(super) fn settle_slot(&mut self, slot: &mut Resource) -> Result<bool, Stop> {
        let now = self.now();
        if let Some(lease) = &slot.lease {
            let deadline = self.ledger.deadline_of(lease)?;
            if now < deadline {
                return Ok(false);
            }
            let free_at = deadline.plus_ms(self.lock_delay_ms(slot)?);
            self.run_out(slot, free_at);
            return Ok(true);
        }
        if slot.held_back_until.is_none_or(|until| until > now) {
            return Ok(false);
        }
        self.changes.push(Change::SlotFreed { key: slot.key.clone(), at: now });
        (slot.held_back_until, slot.held_back_by) = (None, None);
        self.remember(slot);
        Ok(true)
    }

    /// Brings all slots of a resource up to date with the time.
    pub(super) fn settle_slots(&mut self, resource: &mut Resource) -> Result<(), Stop> {
        for mut slot in self.taken_slots(resource)?.into_values() {
            self.settle_slot(&mut slot)?;
        }
        resource.taken = self.taken_slots(resource)?.len() as u32;
        Ok(())
    }

    /// Grants the first free slot.
    pub(super) fn grant_slot(
        &mut self,
        resource: &mut Resource,
        lease: Lease,
        by: Option<Name>,
    ) -> Result<Resource, Stop> {
        let taken = self.taken_slots(resource)?;
        let number = (1..).find(|number| !taken.contains_key(number)).unwrap_or(u32::MAX);
        let mut slot = Resource::new(resource.key.of_slot(number), self.now());
        self.grant(&mut slot, lease, by);
        resource.last_token = slot.last_token;
        resource.taken += 1;
        Ok(slot)
    }

    /// The row, of the resource or of one of its slots, with the lease that `is_meant`.
    pub(super) fn with_lease(
        &self,
        resource: &Resource,
        is_meant: impl Fn(&Lease) -> bool,
    ) -> Result<Option<Resource>, Stop> {
        let has_it = |row: &Resource| row.lease.as_ref().is_some_and(&is_meant);
        if has_it(resource) {
            return Ok(Some(resource.clone()));
        }
        Ok(self.taken_slots(resource)?.into_values().find(has_it))
    }

    /// Refuses a request that has got a lease by another key: the end of that lease spends it, so nothing else may be
    /// granted by it (rule 7).
    pub(super) fn refuse_request_of_another(&self, ask: &Acquire, resource: &Resource) -> Result<(), Stop> {
        let is_same = |l: &Lease| l.request.is_some() && l.request == ask.request && l.holder == ask.holder;
        let got = self.with_lease(resource, |lease| lease.id == ask.lease || is_same(lease))?;
        let by = got.as_ref().and_then(|row| row.lease.as_ref()?.by.as_ref());
        Ok(self.refuse_unless_own("lease", by)?)
    }

    /// The row that a claim by key means: the slot that it names, where the resource is shared.
    pub(super) fn claimed_row<'s>(
        &'s self,
        resource: &'s Resource,
        claim: &Claim,
    ) -> Result<&'s Resource, Stop> {
        if resource.taken == 0 {
            return Ok(resource);
        }
        let slots = self.ledger.slots_of(&resource.key)?;
        let mut meant = None;
        for slot in &slots {
            let Some(lease) = &slot.lease else { continue };
            let is_meant = claim.token.is_none_or(|token| token == lease.token)
                && claim.session.is_none_or(|session| lease.tenure.session() == Some(session))
                && claim.holder.as_ref().is_none_or(|holder| *holder == lease.holder)
                && self.now() < self.ledger.deadline_of(lease)?;
            if is_meant && meant.replace(*slot).is_some() {
                return Err(Refusal::NoProof.into());
            }
        }
        // One that is over is held back, perhaps.
        let is_last = |slot: &&&Resource| claim.token == Some(slot.last_token);
        Ok(meant.or_else(|| slots.iter().find(is_last).copied()).unwrap_or(resource))
    }

    /// Whether one more can share a resource, or one have it alone (`slots` is none). The smallest number that any of
    /// its present holders has given is the limit.
    pub(super) fn has_room(&self, resource: &Resource, slots: Option<u32>) -> Result<bool, Stop> {
        let Some(slots) = slots else { return Ok(resource.taken == 0) };
        let agreed = self.taken_slots(resource)?.values().map(|slot| slot.slots).min();
        Ok(resource.taken < agreed.unwrap_or(slots).min(slots))
    }

    /// Refuses unless a slot is free, or all are (`slots` is none), and nobody waits for one.
    pub(super) fn refuse_unless_shareable(
        &self,
        resource: &Resource,
        slots: Option<u32>,
    ) -> Result<(), Stop> {
        // Nobody overtakes those who wait for it alone.
        let is_waited_for = resource.taken > 0 && self.queued(&resource.key) > 0;
        if !is_waited_for && self.has_room(resource, slots)? {
            return Ok(());
        }
        let taken = self.taken_slots(resource)?;
        let ends = taken.values().map(|slot| self.free_at(slot)).collect::<Result<Vec<_>, _>>()?;
        // Who shares needs one of them to end, who wants it for itself needs all.
        let end = if slots.is_some() { ends.iter().min() } else { ends.iter().max() };
        let retry_after_ms = end.map_or(1, |end| end.ms_after(self.now()).max(1));
        let held = taken.values().find_map(|slot| slot.lease.as_ref());
        let last_token = taken.values().map(|slot| slot.last_token).max().unwrap_or_default();
        Err(match held {
            Some(Lease { holder, token, .. }) => {
                Refusal::Held { holder: holder.clone(), token: *token, retry_after_ms }
            }
            None => Refusal::HeldBack { token: last_token, retry_after_ms },
        }
        .into())
    }

    /// Grants what the end of a place in line has made free for those behind it.
    pub(super) fn serve_line(&mut self, key: &ResourceKey) -> Result<(), Stop> {
        let is_shared = self.row(key).is_some_and(|resource| resource.taken > 0 && resource.queued > 0);
        if is_shared { self.activate(&mut self.whole(key)?) } else { Ok(()) }
    }

    /// The lease with this id, on a resource or one of its slots.
    pub(super) fn with_id(&self, resource: &Resource, id: LeaseId) -> Result<Option<Resource>, Stop> {
        self.with_lease(resource, |lease| lease.id == id)
    }
}
