//! Waiting in line: first come, first served among those who are there, and nobody who left is granted (rule 15).

use std::collections::{BTreeMap, BTreeSet};

use solehold_core::{
    command::{AskedTenure, Command, OpenSession, Undeclared},
    event::{Change, What},
    key::{LeaseId, ResourceKey, SessionId},
    limits,
    session::Standing,
    time::Revision,
    waiter::Waiter,
};

use crate::step::{Invariant, Step, acquires};

/// The lines of a step, as its changes go by.
struct Lines<'a> {
    step: &'a Step<'a>,
    lines: BTreeMap<ResourceKey, BTreeMap<Revision, Waiter>>,
    /// By how many the leases of each session have changed in this step.
    taken: BTreeMap<SessionId, i32>,
    declared: BTreeSet<ResourceKey>,
}

impl<'a> Lines<'a> {
    fn before(step: &'a Step<'a>) -> Self {
        let mut lines: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
        for waiter in step.before.waiters() {
            lines.entry(waiter.key.clone()).or_default().insert(waiter.arrival, waiter.clone());
        }
        let declared = step.before.resources().filter(|r| r.declared.is_some()).map(|r| r.key.clone());
        Self { step, lines, taken: BTreeMap::new(), declared: declared.collect() }
    }

    /// Whether someone is there and can take what it waits for.
    fn can_take(&self, waiter: &Waiter) -> bool {
        let now = self.step.now();
        let session = |id| self.step.before.session(id).expect("who waits hangs on a session that exists");
        let is_able = match waiter.tenure {
            AskedTenure::Own { .. } => true,
            AskedTenure::Session(id) => {
                let session = session(id);
                let taken = self.taken.get(&id).copied().unwrap_or(0);
                let is_full = session.lease_count.strict_add_signed(taken)
                    >= session.capacity.unwrap_or(limits::SESSION_LEASES_MAX);
                session.is_live(now) && session.standing == Standing::Current && !is_full
            }
        };
        let is_wanted = waiter.undeclared == Undeclared::Allow || self.declared.contains(&waiter.key);
        is_able && is_wanted && now < waiter.deadline && session(waiter.room).is_live(now)
    }

    fn first(&self, key: &ResourceKey) -> Option<&Waiter> {
        self.lines.get(key)?.values().find(|waiter| self.can_take(waiter))
    }

    /// Whether the command itself takes someone out of the line.
    fn is_taken_out(&self, waiter: &Waiter) -> bool {
        let hangs_on = |id: SessionId| waiter.sessions().any(|s| s == id);
        match self.step.command {
            Command::LeaveQueue { lease, .. } => waiter.lease == *lease,
            Command::CancelRequest(request) => waiter.request_key().as_ref() == Some(request),
            Command::CloseSession { session, .. } => hangs_on(*session),
            Command::OpenSession(OpenSession { replace, .. }) => replace.is_some_and(hangs_on),
            Command::RemoveHolder { holder, .. } => {
                self.step.before.holder(holder).and_then(|h| h.session).is_some_and(hangs_on)
            }
            _ => false,
        }
    }
}

/// A grant goes to the first in line who can take it, and never past one. Nobody is dropped who could.
pub fn is_first_come_first_served(step: &Step<'_>) {
    let mut lines = Lines::before(step);
    let mut granted = BTreeSet::new();
    for change in &step.decision.changes {
        match change {
            Change::Event(event) => match &event.what {
                What::Acquired(lease) => {
                    let pending = step.before.resource(&event.key).and_then(|r| r.pending.as_ref());
                    if pending.is_none_or(|p| p.id != lease.id) {
                        let first = lines.first(&event.key.whole());
                        let is_waiter = lease.confirm_by.is_some();
                        assert_eq!(
                            first.map(|w| w.lease),
                            is_waiter.then_some(lease.id),
                            "{} goes to {lease:?}",
                            event.key
                        );
                    }
                    granted.insert(lease.id);
                    if let Some(id) = lease.tenure.session() {
                        *lines.taken.entry(id).or_default() += 1;
                    }
                }
                What::Released(ended) | What::Expired(ended) | What::Revoked(ended) => {
                    if let Some(id) = ended.session.filter(|_| ended.token.is_some()) {
                        *lines.taken.entry(id).or_default() -= 1;
                    }
                }
                What::Declared(_) => drop(lines.declared.insert(event.key.clone())),
                What::Deleted => drop(lines.declared.remove(&event.key)),
                _ => {}
            },
            Change::Waits(waiter) => {
                let line = lines.lines.entry(waiter.key.clone()).or_default();
                match line.insert(waiter.arrival, waiter.clone()) {
                    Some(stood) => assert_eq!(
                        (&stood.holder, stood.request.as_ref().or(Some(&stood.holder))),
                        (&waiter.holder, waiter.request.as_ref().or(Some(&waiter.holder))),
                        "only the same request keeps a place"
                    ),
                    None => assert_eq!(line.last_key_value().map(|(at, _)| *at), Some(waiter.arrival)),
                }
            }
            Change::WaitEnded { key, arrival, .. } => {
                let line = lines.lines.get_mut(key).expect("there is a line");
                let gone = line.remove(arrival).expect("it stood there");
                let is_right =
                    granted.contains(&gone.lease) || lines.is_taken_out(&gone) || !lines.can_take(&gone);
                assert!(is_right, "{gone:?} is dropped");
            }
            _ => {}
        }
    }
}

/// Whatever frees a resource grants it: nobody who could take it waits for what is free.
pub fn ends_with_what_is_free(step: &Step<'_>) {
    // Who leaves may have stood between those behind and a free slot.
    let is_shared = |key: &&ResourceKey| step.before.resource(key).is_some_and(|r| r.taken > 0);
    let left = step.decision.changes.iter().filter_map(|change| match change {
        Change::WaitEnded { key, .. } => Some(key).filter(is_shared).cloned(),
        _ => None,
    });
    let touched: BTreeSet<_> = step.events().map(|e| e.key.whole()).chain(left).collect();
    let now = step.now();
    for resource in step.after.resources().filter(|r| touched.contains(&r.key)) {
        let is_held_back = resource.held_back_until.is_some_and(|until| until > now);
        if resource.lease.is_some() || is_held_back {
            continue;
        }
        if let Some(first) = step.after.waiters_for(&resource.key).next() {
            let taken = step.after.slots_of(&resource.key).expect("the whole state is here");
            let agreed = taken.iter().map(|slot| slot.slots).min().unwrap_or(u32::MAX);
            let is_free = match first.slots {
                None => taken.is_empty(),
                Some(slots) => taken.len() < slots.min(agreed) as usize,
            };
            assert!(!is_free, "{} is free for {first:?}", resource.key);
        }
    }
}

/// Everyone waits for as long as was asked, and for the time that nobody looked, too.
pub fn lasts_as_promised(step: &Step<'_>) {
    for waiter in step.after.waiters() {
        let promised = step.promises.waiting.get(&waiter.place()).expect("who waits has asked");
        assert_eq!(waiter.deadline, promised.deadline, "{waiter:?}");
    }
}

/// The counts of a line are those of its rows.
pub fn is_counted(step: &Step<'_>) {
    for resource in step.after.resources() {
        let rows = step.after.waiters_for(&resource.key).count();
        assert_eq!(resource.queued as usize, rows, "{}", resource.key);
    }
    for session in step.after.sessions() {
        let rows = step.after.waiters().filter(|w| w.sessions().any(|id| id == session.id)).count();
        assert_eq!(session.waiting as usize, rows, "session {}", session.id);
        assert_eq!(step.after.waiters_on(session.id).count(), rows);
    }
    for waiter in step.after.waiters() {
        assert!(step.after.resource(&waiter.key).is_some(), "{waiter:?} waits for nothing");
        assert!(waiter.sessions().all(|id| step.after.session(id).is_some()), "{waiter:?} hangs on nothing");
        assert_eq!(step.after.waiter_of_lease(waiter.lease), Some(waiter));
        let by_request = waiter.request_key().and_then(|request| step.after.waiter_of_request(&request));
        assert!(waiter.request.is_none() || by_request == Some(waiter), "{waiter:?}");
    }
}

/// Who left the line, or moved on to another grant id, is granted nothing by the former.
#[derive(Default)]
pub struct WhoLeftGetsNothing {
    left: BTreeSet<LeaseId>,
}

impl Invariant for WhoLeftGetsNothing {
    fn check(&mut self, step: &Step<'_>) {
        let is_asked = |id: LeaseId| acquires(step.command).iter().any(|ask| ask.lease == id);
        let place_of = |key: &ResourceKey, arrival: Revision| step.before.waiter(&(key.clone(), arrival));
        for change in &step.decision.changes {
            match change {
                Change::Event(event) => {
                    if let What::Acquired(lease) = &event.what {
                        let is_asked_anew = is_asked(lease.id) && lease.confirm_by.is_none();
                        assert!(
                            is_asked_anew || !self.left.contains(&lease.id),
                            "{lease:?} had left the line"
                        );
                    }
                }
                Change::Waits(waiter) => {
                    self.left.extend(place_of(&waiter.key, waiter.arrival).map(|w| w.lease));
                    self.left.remove(&waiter.lease);
                }
                Change::WaitEnded { key, arrival, .. } => {
                    self.left.extend(place_of(key, *arrival).map(|w| w.lease));
                }
                _ => {}
            }
        }
    }
}
