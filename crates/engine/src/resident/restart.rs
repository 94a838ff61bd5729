//! Resumes store time at a start, so that no lease loses time while the store was down (rule 3).

use std::collections::BTreeSet;

use solehold_core::{
    key::{RequestKey, ResourceKey, SessionId},
    lease::{Resource, Tenure},
    ledger::{Dirty, Ledger},
    limits::RESTART_GRACE_MS,
    resume,
    time::StoreTime,
    waiter::PlaceKey,
};

use super::Mark;
use crate::clock::{BootTime, wall_ms};

/// Store time at a start: by the tick on the same boot; otherwise from the wall clock if that is later than the mark,
/// and everything that was live keeps the time that it had left. Returns the rows that this has changed.
pub(super) fn resume_time(state: &mut Ledger, mark: Option<&Mark>, tick: BootTime) -> (StoreTime, Dirty) {
    let Some(mark) = mark else { return (StoreTime(wall_ms()), Dirty::default()) };
    if mark.is_of_this_boot(tick) {
        let passed = tick.as_ms().saturating_sub(mark.tick_ms);
        let now = mark.now.plus_ms(passed);
        return (now, give_back(state, mark.now, 0, now, RESTART_GRACE_MS));
    }
    let now = mark.now.max(StoreTime(wall_ms()));
    (now, give_back(state, mark.now, now.ms_after(mark.now), now, RESTART_GRACE_MS))
}

/// Gives back `gap_ms` during which no store was running; returns the rows that this has changed.
pub(super) fn give_back(
    state: &mut Ledger,
    stopped_at: StoreTime,
    gap_ms: u64,
    now: StoreTime,
    grace_ms: u64,
) -> Dirty {
    let before = Times::of(state);
    resume(state, stopped_at, gap_ms, now, grace_ms);
    state.take_dirty();
    before.changed(state)
}

/// Every time of a row that a restart may move. Most rows have none, and need not be written again.
struct Times {
    sessions: Vec<(SessionId, StoreTime)>,
    resources: Vec<(ResourceKey, [Option<StoreTime>; 4])>,
    waiters: Vec<(PlaceKey, StoreTime)>,
    requests: Vec<(RequestKey, StoreTime)>,
}

impl Times {
    fn of(state: &Ledger) -> Self {
        let resources = state.resources().map(|r| (r, times(r))).filter(|(_, t)| *t != [None; 4]);
        Self {
            sessions: state.sessions().map(|s| (s.id, s.deadline)).collect(),
            resources: resources.map(|(r, times)| (r.key.clone(), times)).collect(),
            waiters: state.waiters().map(|w| (w.place(), w.deadline)).collect(),
            requests: state.requests().map(|(request, spent)| (request, spent.until)).collect(),
        }
    }

    fn changed(self, state: &Ledger) -> Dirty {
        fn moved<K: Ord, T: Copy>(all: Vec<(K, T)>, is_moved: impl Fn(&K, T) -> bool) -> BTreeSet<K> {
            all.into_iter().filter(|(key, was)| is_moved(key, *was)).map(|(key, _)| key).collect()
        }
        Dirty {
            sessions: moved(self.sessions, |id, was| state.session(*id).is_some_and(|s| s.deadline != was)),
            resources: moved(self.resources, |key, was| state.resource(key).is_some_and(|r| times(r) != was)),
            waiters: moved(self.waiters, |place, was| state.waiter(place).is_some_and(|w| w.deadline != was)),
            requests: moved(self.requests, |request, was| {
                state.spent(request).is_none_or(|spent| spent.until != was)
            }),
            ..Default::default()
        }
    }
}

fn times(resource: &Resource) -> [Option<StoreTime>; 4] {
    let own = resource.lease.as_ref().and_then(|l| match l.tenure {
        Tenure::Own { deadline, .. } => Some(deadline),
        Tenure::Session(_) => None,
    });
    let confirm_by = resource.lease.as_ref().and_then(|l| l.confirm_by);
    [own, confirm_by, resource.pending.as_ref().map(|p| p.deadline), resource.held_back_until]
}
