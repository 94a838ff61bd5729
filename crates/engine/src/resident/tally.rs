//! Counts of rows, kept in step with them: a quota check must not walk through all rows.

use std::collections::BTreeMap;

use solehold_core::{
    key::Name,
    lease::Resource,
    ledger::{Dirty, Ledger},
    session::Session,
    time::StoreTime,
};

use super::timers::{Item, Timers};
use crate::store::Usage;

/// What each tenant has, dead or alive.
#[derive(Debug, Default)]
pub(super) struct Tally(BTreeMap<Name, Usage>);

impl Tally {
    pub(super) fn of(state: &Ledger) -> Self {
        let mut tally = Self::default();
        state.resources().for_each(|resource| tally.count_resource(resource, 1));
        state.sessions().for_each(|session| tally.count_session(session, 1));
        tally
    }

    /// Takes note of rows of `state` that are about to become as they are in `part`.
    pub(super) fn touch(&mut self, state: &Ledger, part: &Ledger, dirty: &Dirty) {
        for key in &dirty.resources {
            state.resource(key).into_iter().for_each(|old| self.count_resource(old, -1));
            part.resource(key).into_iter().for_each(|new| self.count_resource(new, 1));
        }
        for id in &dirty.sessions {
            state.session(*id).into_iter().for_each(|old| self.count_session(old, -1));
            part.session(*id).into_iter().for_each(|new| self.count_session(new, 1));
        }
        self.0.retain(|_, usage| *usage != Usage::default());
    }

    fn count_resource(&mut self, resource: &Resource, by: i64) {
        let usage = self.0.entry(resource.key.tenant.clone()).or_default();
        add(&mut usage.resources, if resource.key.is_slot() { 0 } else { by });
        add(&mut usage.live_leases, if resource.lease.is_some() { by } else { 0 });
        add(&mut usage.waiters, by * i64::from(resource.queued));
    }

    fn count_session(&mut self, session: &Session, by: i64) {
        // A waiting room belongs to a replica, not to a tenant.
        if session.is_room() {
            return;
        }
        add(&mut self.0.entry(session.holder.tenant.clone()).or_default().sessions, by);
    }

    /// How much there is at `now`: what has run out and was not swept yet does not count.
    pub(super) fn usage(
        &self,
        state: &Ledger,
        timers: &Timers,
        tenant: Option<&Name>,
        now: StoreTime,
    ) -> Usage {
        let is_its = |name: &Name| tenant.is_none_or(|t| t == name);
        let mut usage = Usage::default();
        for (_, its) in self.0.iter().filter(|(name, _)| is_its(name)) {
            usage.live_leases += its.live_leases;
            usage.resources += its.resources;
            usage.sessions += its.sessions;
            usage.waiters += its.waiters;
        }
        for item in timers.overdue(now) {
            match item {
                Item::Resource(key) if is_its(&key.tenant) => {
                    let lease = state.resource(key).and_then(|r| r.lease.as_ref());
                    // A lease on a dead session is counted with the session.
                    let hangs = |id| state.session(id).is_some_and(|s| s.is_live(now));
                    let is_dead = lease.is_some_and(|l| {
                        l.tenure.session().is_none_or(hangs) && state.deadline_of(l).is_ok_and(|at| at <= now)
                    });
                    add(&mut usage.live_leases, if is_dead { -1 } else { 0 });
                }
                Item::Session(id) => {
                    let is_its = |s: &&Session| is_its(&s.holder.tenant) && !s.is_room();
                    let dead = state.session(*id).filter(|s| !s.is_live(now)).filter(is_its);
                    add(&mut usage.sessions, if dead.is_some() { -1 } else { 0 });
                    // As many as hang there by lease; whatever waits there is no lease yet.
                    add(&mut usage.live_leases, dead.map_or(0, |s| -i64::from(s.lease_count)));
                }
                Item::Resource(_) => {}
            }
        }
        usage
    }
}

fn add(count: &mut u64, by: i64) {
    *count = count.saturating_add_signed(by);
}
