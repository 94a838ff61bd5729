//! The window of a relay: which event may be sent next, and how far the cursor may go. A machine that reads no clock
//! and sends nothing: it adds retries, backoff and dead letters to [`OrderedWindow`].
//!
//! ```text
//!   offer --> ready --next--> in flight --confirmed--> settled --> the cursor passes it
//!               ^                |
//!               |                +-- Away: nothing is sent for a while, then one event probes the destination
//!               +--- delayed <---+-- Busy: this event is retried until it is taken
//!                                +-- Refused: this event is retried; after `attempts_max` it is condemned: it is sent
//!                                    to the dead letters instead
//! ```
//! An event is ready only when every earlier event of its resource is settled, so each resource's events are sent in
//! order whatever happens to the others (rule 20). The cursor stands before the oldest event that is not settled: a
//! relay that resumes from it may send an event again, and misses none.

use std::{collections::BTreeSet, time::Duration};

use solehold_core::{key::ResourceKey, time::Revision};
use solehold_engine::clock::{Backoff, BootTime};
use solehold_window::OrderedWindow;

/// Between attempts while the destination cannot be reached.
const AWAY: Backoff = Backoff { first: Duration::from_millis(100), cap: Duration::from_secs(5) };
/// Between attempts to send one event.
const RETRY: Backoff = Backoff { first: Duration::from_millis(200), cap: Duration::from_secs(30) };

/// Bounds of a window (rule 25).
#[derive(Debug, Clone, Copy)]
pub struct WindowLimits {
    /// Events that are read and not passed by the cursor.
    pub events_max: usize,
    /// Events that are sent and not confirmed.
    pub in_flight_max: usize,
    /// How often an event may be refused before it is condemned; it never is, if none.
    pub attempts_max: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The destination cannot be reached, or the connection broke: nothing is wrong with the event.
    Away(String),
    /// The destination could not take this event now.
    Busy(String),
    /// The destination will not take this event.
    Refused(String),
}

impl Failure {
    pub fn why(&self) -> &str {
        match self {
            Self::Away(why) | Self::Busy(why) | Self::Refused(why) => why,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Retry,
    Condemned,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery<M> {
    pub revision: Revision,
    pub message: M,
    /// Send it to the dead letters, for this reason.
    pub condemned: Option<String>,
}

#[derive(Debug)]
struct PendingEvent<M> {
    message: M,
    failures: u32,
    refusals: u32,
    condemned: Option<String>,
}

#[derive(Debug)]
pub struct Window<M> {
    limits: WindowLimits,
    /// The events after the cursor, in order per resource.
    events: OrderedWindow<Revision, ResourceKey, PendingEvent<M>>,
    /// Events to retry, by the time at which they are due.
    delayed: BTreeSet<(BootTime, Revision)>,
    in_flight: usize,
    /// Consecutive failures to reach the destination; while there are any, one event at a time probes it.
    away: u32,
    paused_until: Option<BootTime>,
}

impl<M: Clone> Window<M> {
    pub fn new(cursor: Revision, limits: WindowLimits) -> Self {
        Self {
            limits,
            events: OrderedWindow::new(cursor),
            delayed: BTreeSet::new(),
            in_flight: 0,
            away: 0,
            paused_until: None,
        }
    }

    /// Every event up to this revision is settled.
    pub fn cursor(&self) -> Revision {
        self.events.settled_to()
    }

    /// Every event up to this revision was offered or skipped.
    pub fn read(&self) -> Revision {
        self.events.last()
    }

    pub fn has_room(&self) -> bool {
        self.events.len() < self.limits.events_max
    }

    #[cfg(test)]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub fn offer(&mut self, revision: Revision, resource: ResourceKey, message: M) {
        let event = PendingEvent { message, failures: 0, refusals: 0, condemned: None };
        self.events.insert(revision, Some(resource), event);
    }

    /// There is nothing to send up to `revision`.
    pub fn skip(&mut self, revision: Revision) {
        self.events.skip(revision);
    }

    /// The next event to send, if one may be sent now.
    pub fn next(&mut self, now: BootTime) -> Option<Delivery<M>> {
        if self.paused_until.is_some_and(|until| now < until) {
            return None;
        }
        let most = if self.away > 0 { 1 } else { self.limits.in_flight_max };
        if self.in_flight >= most {
            return None;
        }
        while let Some(&(due, revision)) = self.delayed.first()
            && due <= now
        {
            self.delayed.pop_first();
            self.events.put_back(revision);
        }
        let revision = self.events.ready().next()?.0;
        let event = self.events.take(revision)?;
        self.in_flight += 1;
        Some(Delivery { revision, message: event.message.clone(), condemned: event.condemned.clone() })
    }

    /// When to call [next](Self::next) again although nothing happened; none, if only an answer or an event changes
    /// anything.
    pub fn wake_at(&self) -> Option<BootTime> {
        let due = self.delayed.first().map(|(due, _)| *due);
        match self.paused_until {
            Some(until) if self.events.ready().next().is_some() => Some(until),
            Some(until) => due.map(|due| due.max(until)),
            None => due,
        }
    }

    /// An event was delivered, or is among the dead letters.
    pub fn confirmed(&mut self, revision: Revision) {
        self.reached();
        if self.events.settle(revision).is_some() {
            self.in_flight -= 1;
        }
    }

    /// An event was not delivered. `unit` is a random number from 0 to 1.
    pub fn failed(&mut self, revision: Revision, failure: &Failure, now: BootTime, unit: f64) -> Fate {
        let Some(event) = self.events.get_mut(revision) else { return Fate::Retry };
        self.in_flight -= 1;
        if let Failure::Away(_) = failure {
            self.events.put_back(revision);
            self.not_reached(now, unit);
            return Fate::Retry;
        }
        event.failures += 1;
        let due = now.plus(RETRY.wait(event.failures, unit));
        let mut fate = Fate::Retry;
        if let Failure::Refused(why) = failure {
            event.refusals += 1;
            let is_last = self.limits.attempts_max.is_some_and(|most| event.refusals >= most);
            if is_last && event.condemned.is_none() {
                event.condemned = Some(why.clone());
                fate = Fate::Condemned;
            }
        }
        match fate {
            Fate::Retry => _ = self.delayed.insert((due, revision)),
            Fate::Condemned => self.events.put_back(revision),
        }
        self.reached();
        fate
    }

    fn reached(&mut self) {
        self.away = 0;
        self.paused_until = None;
    }

    /// Events that were in flight together fail together: that counts as one failure.
    fn not_reached(&mut self, now: BootTime, unit: f64) {
        if self.paused_until.is_none_or(|until| until <= now) {
            self.away = self.away.saturating_add(1);
            self.paused_until = Some(now.plus(AWAY.wait(self.away, unit)));
        }
    }
}

#[cfg(test)]
mod tests;
