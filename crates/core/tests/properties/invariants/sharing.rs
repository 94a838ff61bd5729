//! Shared holds: as many as were asked for, and none beside an exclusive one (rule 29).

use solehold_core::{
    event::What,
    lease::{Lease, Resource},
    time::StoreTime,
};

use crate::{
    promises::{Hold, How},
    step::{Step, acquires},
};

/// A resource counts its slots that are taken, and they are there only while they are.
pub fn is_counted(step: &Step<'_>) {
    for resource in step.after.resources() {
        let is_its = |r: &&Resource| r.key.is_slot() && r.key.whole() == resource.key.whole();
        let slots: Vec<_> = step.after.resources().filter(is_its).collect();
        let whole = step.after.resource(&resource.key.whole()).expect("a slot is of a resource");
        assert_eq!(whole.taken as usize, slots.len(), "{}", whole.key);
        assert_eq!(step.after.slots_of(&whole.key), Ok(slots.clone()), "{}", whole.key);
        for slot in slots {
            assert!(slot.last_token <= whole.last_token, "{slot:?} is ahead of {whole:?}");
            assert!(slot.lease.is_some() || slot.held_back_until.is_some(), "{slot:?} is free");
            assert_eq!((slot.queued, slot.taken, &slot.pending), (0, 0, &None), "{slot:?}");
        }
    }
}

/// Until when the holder may work, by what it was promised.
fn may_work_until(step: &Step<'_>, hold: &Hold) -> StoreTime {
    match hold.end {
        None => step.promises.until(hold),
        Some(end) if matches!(end.how, How::Released | How::Fenced) => end.at,
        Some(end) => end.until.plus_ms(end.lock_delay_ms),
    }
}

/// Who has a slot of a number of them never shares with more others than that, however many those agree to.
pub fn keeps_to_the_number_of_slots(step: &Step<'_>) {
    for event in step.events() {
        let What::Acquired(Lease { id, slots, .. }) = &event.what else { continue };
        assert_eq!(asked(step, *id), *slots, "{} was asked for otherwise", event.key);
        assert_eq!(event.key.is_slot(), slots.is_some(), "{} was asked for otherwise", event.key);
    }
    for key in step.promises.holds.keys().filter(|key| key.slot == 1) {
        let works = |hold: &Hold| may_work_until(step, hold) > step.now();
        let sharers: Vec<_> = step.promises.holds_of(key).filter(|(_, hold)| works(hold)).collect();
        let agreed = sharers.iter().filter_map(|(_, hold)| hold.slots).min().unwrap_or(u32::MAX);
        assert!(sharers.len() <= agreed as usize, "{sharers:?} share {key}");
    }
}

/// Of how many slots the one is that a lease was asked for with.
fn asked(step: &Step<'_>, lease: solehold_core::key::LeaseId) -> Option<u32> {
    if let Some(waiter) = step.before.waiter_of_lease(lease) {
        return waiter.slots;
    }
    acquires(step.command).iter().find(|ask| ask.lease == lease).and_then(|ask| ask.slots)
}

/// While one may work on the whole, nobody may on a slot.
pub fn excludes_who_wants_it_alone(step: &Step<'_>) {
    for key in step.promises.holds.keys().filter(|key| !key.is_slot()) {
        let works = |hold: &Hold| may_work_until(step, hold) > step.now();
        let working = step.promises.holds_of(key).filter(|(_, hold)| works(hold));
        let (slots, alone): (Vec<_>, Vec<_>) = working.partition(|(key, _)| key.is_slot());
        assert!(slots.is_empty() || alone.is_empty(), "{alone:?} beside {slots:?}");
    }
}
