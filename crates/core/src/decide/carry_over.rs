//! What becomes of leases and sessions when a store may have lost its latest commits (rule 23).

use super::Draft;
use crate::{
    event::{Change, Ended, What},
    state::State,
    time::{Moment, StoreTime},
};

/// Why everything ended, as events say it.
const SET_BACK: &str = "the store was set back to an earlier state";

/// Ends all that a store still shows after it was restored, imported or failed over to a copy that may lack its latest
/// commits. A lease that the rows show may have gone to another holder in the part that is missing, so nothing is renewed
/// under its old token: every lease is revoked, every pending lease and every place in line is dropped, and every session,
/// waiting rooms included, is over. A heartbeat of one is refused, just as that of a session that the store has lost.
///
/// Nothing is held back for the time that holders were promised: nothing is granted before `barred_until`, which covers
/// that. A resource that has a lock-delay is held back for as long beyond.
///
/// `state` may be all rows, or one page at a time: resources with their waiters, and sessions with their holders after
/// all resources. The moment must already be of the new history, whose revisions begin above all that may be lost. The
/// changes are for [`crate::apply()`], in order; events go on from the moment that is returned.
pub fn carry_over(state: &State, moment: Moment, barred_until: StoreTime) -> (Vec<Change>, Moment) {
    let mut draft = Draft::new(state, moment);
    for resource in state.resources() {
        let mut resource = resource.clone();
        if let Some(pending) = resource.pending.clone() {
            draft.emit(&mut resource, What::Expired(Ended::of_pending(&pending, SET_BACK)));
        }
        let lock_delay_ms = resource.lock_delay_ms();
        draft.end(&mut resource, What::Revoked, |ended| {
            ended.held_back_until = (lock_delay_ms > 0).then(|| barred_until.plus_ms(lock_delay_ms));
            ended.reason = Some(SET_BACK.to_owned());
        });
    }
    for waiter in state.waiters() {
        let (key, arrival, at) = (waiter.key.clone(), waiter.arrival, moment.now);
        draft.changes.push(Change::WaitEnded { key, arrival, at });
    }
    for session in state.sessions() {
        draft.end_session(session.id);
    }
    (draft.changes, draft.moment)
}
