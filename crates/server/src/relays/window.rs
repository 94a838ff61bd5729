//! The window of a relay: which event may be sent next, and how far the cursor may go. A machine that reads no clock
//! and sends nothing.
//!
//! ```text
//!   offer --> ready --next--> in flight --confirmed--> settled --> the cursor passes it
//!               ^                |
//!               |                +-- Away: nothing is sent for a while, then one event to find out
//!               +--- waiting <---+-- Busy: this event waits, as often as it must
//!                                +-- Refused: this event waits; after `attempts_max` it is condemned, which means that
//!                                    it is sent to the dead letters instead
//! ```
//! An event is ready only when every earlier event of its resource is settled, so each resource's events go out in
//! order whatever becomes of the others (rule 20). The cursor stands before the oldest event that is not settled: a
//! relay that goes on from it may send an event again, and leaves none out.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use solehold_core::{key::ResourceKey, time::Revision};
use solehold_engine::clock::{Backoff, BootTime};

/// Between attempts while the destination cannot be reached.
const AWAY: Backoff = Backoff { first: Duration::from_millis(100), cap: Duration::from_secs(5) };
/// Between attempts to send one event.
const AGAIN: Backoff = Backoff { first: Duration::from_millis(200), cap: Duration::from_secs(30) };

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

/// Why an event was not delivered.
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
    /// The reason, for people.
    pub fn why(&self) -> &str {
        match self {
            Self::Away(why) | Self::Busy(why) | Self::Refused(why) => why,
        }
    }
}

/// What becomes of an event that was not delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is sent again.
    Again,
    /// It goes to the dead letters.
    Condemned,
}

/// An event to send now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job<M> {
    /// Which one.
    pub revision: Revision,
    /// What to send.
    pub message: M,
    /// Send it to the dead letters, for this reason.
    pub condemned: Option<String>,
}

#[derive(Debug)]
struct Entry<M> {
    revision: Revision,
    /// None once it is settled.
    unsettled: Option<Unsettled<M>>,
}

#[derive(Debug)]
struct Unsettled<M> {
    resource: ResourceKey,
    message: M,
    failures: u32,
    refusals: u32,
    condemned: Option<String>,
}

/// The window of a relay.
#[derive(Debug)]
pub struct Window<M> {
    limits: WindowLimits,
    /// Everything after the cursor that was read, oldest first.
    entries: VecDeque<Entry<M>>,
    /// The unsettled events of each resource, oldest first: only the first may be sent.
    lines: HashMap<ResourceKey, VecDeque<Revision>>,
    ready: BTreeSet<Revision>,
    waiting: BTreeSet<(BootTime, Revision)>,
    in_flight: usize,
    cursor: Revision,
    /// Failures in a row to reach the destination, and until when nothing is sent because of them.
    away: u32,
    paused_until: Option<BootTime>,
}

impl<M: Clone> Window<M> {
    /// A window after `cursor`.
    pub fn new(cursor: Revision, limits: WindowLimits) -> Self {
        Self {
            limits,
            entries: VecDeque::new(),
            lines: HashMap::new(),
            ready: BTreeSet::new(),
            waiting: BTreeSet::new(),
            in_flight: 0,
            cursor,
            away: 0,
            paused_until: None,
        }
    }

    /// Everything up to here is settled.
    pub fn cursor(&self) -> Revision {
        self.cursor
    }

    /// Everything up to here was offered or skipped.
    pub fn read(&self) -> Revision {
        self.entries.back().map_or(self.cursor, |last| last.revision)
    }

    /// Whether it can take another event.
    pub fn has_room(&self) -> bool {
        self.entries.len() < self.limits.events_max
    }

    /// The number of events that are in flight.
    #[cfg(test)]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Takes in the next event.
    pub fn offer(&mut self, revision: Revision, resource: ResourceKey, message: M) {
        if revision <= self.read() {
            return;
        }
        let line = self.lines.entry(resource.clone()).or_default();
        line.push_back(revision);
        if line.len() == 1 {
            self.ready.insert(revision);
        }
        let unsettled = Unsettled { resource, message, failures: 0, refusals: 0, condemned: None };
        self.entries.push_back(Entry { revision, unsettled: Some(unsettled) });
    }

    /// There is nothing to send up to `revision`.
    pub fn skip(&mut self, revision: Revision) {
        if revision <= self.read() {
            return;
        }
        match self.entries.back_mut() {
            None => self.cursor = revision,
            // Settled already: the cursor may as well pass both at once.
            Some(last) if last.unsettled.is_none() => last.revision = revision,
            Some(_) => self.entries.push_back(Entry { revision, unsettled: None }),
        }
    }

    /// The next event to send, if one may be sent now.
    pub fn next(&mut self, now: BootTime) -> Option<Job<M>> {
        if self.paused_until.is_some_and(|until| now < until) {
            return None;
        }
        let most = if self.away > 0 { 1 } else { self.limits.in_flight_max };
        if self.in_flight >= most {
            return None;
        }
        while let Some(&(due, revision)) = self.waiting.first()
            && due <= now
        {
            self.waiting.pop_first();
            self.ready.insert(revision);
        }
        let revision = self.ready.pop_first()?;
        let event = self.unsettled(revision)?;
        let (message, condemned) = (event.message.clone(), event.condemned.clone());
        self.in_flight += 1;
        Some(Job { revision, message, condemned })
    }

    /// When to ask again although nothing happened; none, if only an answer or an event changes anything.
    pub fn wake_at(&self) -> Option<BootTime> {
        let due = self.waiting.first().map(|(due, _)| *due);
        match self.paused_until {
            Some(until) if !self.ready.is_empty() => Some(until),
            Some(until) => due.map(|due| due.max(until)),
            None => due,
        }
    }

    /// An event was delivered, or is among the dead letters.
    pub fn confirmed(&mut self, revision: Revision) {
        self.reached();
        let Some(settled) = self.entry(revision).and_then(|entry| entry.unsettled.take()) else { return };
        self.in_flight -= 1;
        if let Some(line) = self.lines.get_mut(&settled.resource) {
            line.pop_front();
            match line.front() {
                Some(next) => drop(self.ready.insert(*next)),
                None => drop(self.lines.remove(&settled.resource)),
            }
        }
        while let Some(first) = self.entries.front()
            && first.unsettled.is_none()
        {
            self.cursor = first.revision;
            self.entries.pop_front();
        }
    }

    /// An event was not delivered. `unit` is a random number from 0 to 1.
    pub fn failed(&mut self, revision: Revision, failure: &Failure, now: BootTime, unit: f64) -> Verdict {
        let attempts_max = self.limits.attempts_max;
        let Some(event) = self.unsettled(revision) else { return Verdict::Again };
        let mut verdict = Verdict::Again;
        let wait = match failure {
            Failure::Away(_) => None,
            Failure::Busy(_) => {
                event.failures += 1;
                Some(AGAIN.wait(event.failures, unit))
            }
            Failure::Refused(why) => {
                event.failures += 1;
                event.refusals += 1;
                if event.condemned.is_none() && attempts_max.is_some_and(|most| event.refusals >= most) {
                    event.condemned = Some(why.clone());
                    verdict = Verdict::Condemned;
                }
                Some(AGAIN.wait(event.failures, unit))
            }
        };
        self.in_flight -= 1;
        match wait {
            Some(wait) if verdict == Verdict::Again => drop(self.waiting.insert((now.plus(wait), revision))),
            _ => drop(self.ready.insert(revision)),
        }
        match failure {
            Failure::Away(_) => self.not_reached(now, unit),
            Failure::Busy(_) | Failure::Refused(_) => self.reached(),
        }
        verdict
    }

    fn reached(&mut self) {
        (self.away, self.paused_until) = (0, None);
    }

    /// Those that were in flight together fail together: that is one failure.
    fn not_reached(&mut self, now: BootTime, unit: f64) {
        if self.paused_until.is_none_or(|until| until <= now) {
            self.away = self.away.saturating_add(1);
            self.paused_until = Some(now.plus(AWAY.wait(self.away, unit)));
        }
    }

    fn entry(&mut self, revision: Revision) -> Option<&mut Entry<M>> {
        let at = self.entries.partition_point(|entry| entry.revision < revision);
        self.entries.get_mut(at).filter(|entry| entry.revision == revision)
    }

    fn unsettled(&mut self, revision: Revision) -> Option<&mut Unsettled<M>> {
        self.entry(revision)?.unsettled.as_mut()
    }
}

#[cfg(test)]
mod tests;
