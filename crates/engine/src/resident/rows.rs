//! The rows of a resident store, and its clock.

use std::{collections::VecDeque, sync::Arc};

use solehold_core::{
    event::Event,
    lease::Tenure,
    ledger::{Dirty, Ledger},
    time::{Revision, StoreTime},
};

use super::{WINDOW_EVENTS, tally::Tally, timers::Timers};
use crate::{
    clock::BootTime,
    store::{BatchDecision, Cursor, StoreError},
};

pub(super) struct Rows {
    /// Shared only with the layer that a batch is decided in.
    pub(super) state: Arc<Ledger>,
    pub(super) events: VecDeque<Event>,
    pub(super) timers: Timers,
    pub(super) tally: Tally,
    pub(super) cursor: Cursor,
    pub(super) floor: Revision,
    /// Whether the journal has the events that are no longer in memory.
    pub(super) keeps_events: bool,
    /// Nothing is granted before this time (rule 23).
    pub(super) barred_until: StoreTime,
    pub(super) retired_to: Option<String>,
    /// Store time at a tick, from which it counts.
    pub(super) since: (StoreTime, BootTime),
}

impl Rows {
    pub(super) fn now(&self, tick: BootTime) -> StoreTime {
        let (time, at) = self.since;
        time.plus_ms(tick.since(at).as_millis() as u64)
    }

    pub(super) fn absorb(&mut self, part: &Ledger, dirty: &Dirty, decided: &BatchDecision) {
        self.tally.touch(&self.state, part, dirty);
        Arc::make_mut(&mut self.state).absorb(part, dirty);
        self.timers.touch(&self.state, dirty);
        self.cursor.revision = decided.revision;
        self.events.extend(decided.events.iter().cloned());
        self.drop_events(|_, count| count > WINDOW_EVENTS);
    }

    /// Drops events from memory, the oldest first, while `is_over` of the first and of their number.
    pub(super) fn drop_events(&mut self, is_over: impl Fn(&Event, usize) -> bool) {
        while let Some(event) = self.events.front().filter(|e| is_over(e, self.events.len())) {
            if !self.keeps_events {
                self.floor = event.revision;
            }
            self.events.pop_front();
        }
    }

    pub(super) fn check_retired(&self) -> Result<(), StoreError> {
        match &self.retired_to {
            Some(to) => Err(StoreError::Retired { to: to.clone() }),
            None => Ok(()),
        }
    }

    /// The revision before the first event in memory.
    pub(super) fn window_floor(&self) -> Revision {
        self.events.front().map_or(self.cursor.revision, |e| Revision(e.revision.0 - 1))
    }
}

/// The longest ttl of anything in `state`.
pub(super) fn longest_ttl_ms(state: &Ledger) -> u64 {
    let sessions = state.sessions().map(|session| session.ttl_ms);
    let own = state.resources().filter_map(|resource| match resource.lease.as_ref()?.tenure {
        Tenure::Own { ttl_ms, .. } => Some(ttl_ms),
        Tenure::Session(_) => None,
    });
    sessions.chain(own).max().unwrap_or_default()
}
