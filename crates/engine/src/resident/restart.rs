//! Resumes store time at a start, so that no lease loses time while the store was down (rule 3).

use solehold_core::{
    ledger::{Dirty, Ledger},
    limits::RESTART_GRACE_MS,
    resume,
    time::StoreTime,
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
    resume(state, stopped_at, gap_ms, now, grace_ms);
    state.take_dirty()
}
