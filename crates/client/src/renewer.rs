//! The renewer: what a session does to stay trusted, as a machine that reads no clock and sends nothing.
//!
//! ```text
//!            poll: now >= next beat                    on_answer: trusted longer
//!   idle ---------------------------> beats in flight ------------------------> idle
//!    |                                 |  ^  |   on_failure: `immediate` loses,
//!    |                                 |  +--+   the others try again, sooner and then slower;
//!    |                                 |         poll: no answer for a while: another one beside it
//!    |  poll: now >= stop              |   on_refusal
//!    v                                 v
//!   lost  <----------------------------+          nothing leads out of here
//! ```
//! The driver asks [`Renewer::poll`] what to do, does it, and tells how it went.
//!
//! # Slow answers
//!
//! A heartbeat without an answer is not given up for that: the first one may use all of the time that is left. After a
//! while another one is sent beside it, to another server if there is one, and so on, up to a bound. Whichever is
//! answered counts from when it was sent. So a server that has died costs a pause, and one that is slow costs nothing.
//!
//! # What vouches for a lease
//!
//! Only the answer to a heartbeat moves trust, because only that answer comes with the full set of leases: each lease
//! that is held is in the set, or was granted after it (and then to a session that the authority had renewed already),
//! or it has ended and is told as ended in the same step. The renewal of a single lease says nothing about the others,
//! one of which may have been revoked since, so the machine is never told of one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use solehold_api::watch::Cursor;
use solehold_clock::{Backoff, BootTime, deadline::local_deadline};
use solehold_core::{key::LeaseId, time::Token};

use crate::{
    authority::{Beat, HeldLease, RefusalReason},
    history::{History, OlderHistory},
};

/// The least time after which another heartbeat is sent beside one that is not answered.
const BESIDE_AFTER_MIN: Duration = Duration::from_millis(250);
/// The same as a part of the ttl: with so many heartbeats at once, each of them has a quarter of the ttl at least.
const BESIDE_AFTER_TTLS: u32 = 24;
/// The longest pause between retries, as a part of the ttl: a server that is back in the last tenth of it is found.
const RETRY_CAP_TTLS: u32 = 12;
/// Most heartbeats of a session that are under way at once.
const FLIGHTS_MAX: u32 = 8;

/// What to do when a renewal fails. A refusal stops the work at once under each of them, but for rule 22.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Stop at the first renewal that fails, even though the lease is still ours.
    Immediate,
    /// Try again until the local deadline, then stop.
    #[default]
    Deadline,
    /// Go on for this long past the deadline while the authority cannot be reached. Only for work that goes through a
    /// gate: someone else may hold the lease by then, and only its fencing token tells.
    Grace(Duration),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    #[error("the lease is lost: {0}")]
    Refused(RefusalReason),
    /// The authority's set of the session's leases lacks it: an operator or another request ended it.
    #[error("the lease is lost: the server has ended it")]
    Ended,
    /// The authority was not reached until the deadline, or until the grace after it was over.
    #[error("the lease is lost: it was not renewed by its deadline")]
    Deadline,
    /// The store was set back, or an old one came back: its answers about the lease are out of date.
    #[error("the lease is lost: {0}")]
    OlderHistory(#[from] OlderHistory),
    /// One renewal failed, and the policy is to stop then.
    #[error("the lease is lost: a renewal failed ({0})")]
    Failed(String),
    #[error("the lease is lost: its session was closed")]
    Closed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// How long a heartbeat keeps it.
    pub ttl: Duration,
    /// How often to renew, before jitter.
    pub every: Duration,
    pub policy: Policy,
}

impl Timing {
    fn grace(&self) -> Duration {
        match self.policy {
            Policy::Grace(grace) => grace,
            Policy::Immediate | Policy::Deadline => Duration::ZERO,
        }
    }

    /// Retries begin quickly, since the time left is short, and never come less often than heartbeats do.
    fn backoff(&self) -> Backoff {
        let first = (self.every / 8).min(Duration::from_millis(200));
        Backoff { first, cap: self.every.min(self.ttl / RETRY_CAP_TTLS) }
    }

    fn beside_after(&self) -> Duration {
        (self.every / 3).max(BESIDE_AFTER_MIN).max(self.ttl / BESIDE_AFTER_TTLS)
    }

    /// Where one failure is the end, nothing is sent beside a heartbeat.
    fn flights_max(&self) -> usize {
        match self.policy {
            Policy::Immediate => 1,
            Policy::Deadline | Policy::Grace(_) => FLIGHTS_MAX as usize,
        }
    }

    /// How long a heartbeat may take that has not all of the time that is left: one beside another, one where a failure
    /// is the end, and one that a session begins with.
    pub fn patience(&self) -> Duration {
        match self.policy {
            Policy::Immediate => self.every.max(self.ttl / 3),
            Policy::Deadline | Policy::Grace(_) => self.beside_after() * (FLIGHTS_MAX - 1),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentHeartbeat {
    /// Tells it from others.
    pub number: u64,
    /// What its answer counts from.
    pub sent: BootTime,
    /// It has failed if it is not answered by then.
    pub until: BootTime,
    /// How many others are under way.
    pub beside: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Send a heartbeat, and tell how it went. Do not wait for it.
    Beat(SentHeartbeat),
    /// Nothing until then.
    Sleep(BootTime),
    /// The session is lost, and everything attached to it.
    Lost(Lost),
}

/// What the answer to a heartbeat came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Heard {
    /// The leases that have ended: those that the set lacks although it is newer than their grant (rule 9). They must
    /// stop before the new deadline is shown to anyone.
    pub ended: Vec<LeaseId>,
    /// Whether no set is known that is newer. Of an older one nothing is taken up.
    pub is_newest: bool,
}

#[derive(Debug, Clone)]
pub struct Renewer {
    timing: Timing,
    trusted_until: BootTime,
    next_beat: BootTime,
    /// The heartbeats that are under way, by their numbers, and none that was sent before the last answered one.
    flights: BTreeMap<u64, BootTime>,
    flights_sent: u64,
    /// When the newest heartbeat was sent that was answered.
    answered: BootTime,
    /// Something happened while a heartbeat was on its way, which may have been answered before.
    has_news: bool,
    failures: u32,
    lost: Option<Lost>,
    history: History,
    /// What is held, and where its grant stands in the history: a token is the revision of its grant.
    held: BTreeMap<LeaseId, Cursor>,
    set: NewestSet,
}

/// The newest set that was heard of.
#[derive(Debug, Clone)]
struct NewestSet {
    cursor: Cursor,
    leases: Arc<[HeldLease]>,
    /// A lease under another token is another grant.
    grants: BTreeSet<(LeaseId, Token)>,
}

impl NewestSet {
    fn new(cursor: Cursor, leases: &Arc<[HeldLease]>) -> Self {
        let grants = leases.iter().map(|held| (held.lease, held.token)).collect();
        Self { cursor, leases: leases.clone(), grants }
    }
}

impl Renewer {
    /// A session that was opened by what was sent at `sent`, by a holder with this history behind it.
    pub fn new(
        timing: Timing,
        sent: BootTime,
        opened: &Beat,
        mut history: History,
        unit: f64,
    ) -> Result<Self, OlderHistory> {
        let epoch = history.follow(opened.epoch)?;
        history.keep(opened.sealed_cursor.as_deref());
        let trusted_until = local_deadline(sent, opened.ttl_left, opened.slack);
        Ok(Self {
            trusted_until,
            next_beat: next_beat(&timing, sent, trusted_until, unit),
            timing,
            flights: BTreeMap::new(),
            flights_sent: 0,
            answered: sent,
            has_news: false,
            failures: 0,
            lost: None,
            history,
            held: BTreeMap::new(),
            set: NewestSet::new(Cursor { epoch, revision: opened.revision.0 }, &opened.leases),
        })
    }

    /// What is known of the store's history: for the next heartbeat, and for the next session.
    pub fn history(&self) -> &History {
        &self.history
    }

    pub fn timing(&self) -> Timing {
        self.timing
    }

    /// Renews this often from now on, or as often as the ttl of this session needs.
    pub fn set_every(&mut self, every: Duration) {
        self.timing.every = every.min(self.timing.ttl / 3);
    }

    /// The local deadline: until then nobody else holds what this session holds.
    pub fn trusted_until(&self) -> BootTime {
        self.trusted_until
    }

    /// The work stops then, unless a renewal comes first: the deadline, and the grace if there is one.
    pub fn stop_at(&self) -> BootTime {
        self.trusted_until.plus(self.timing.grace())
    }

    /// When [`Self::poll`] must be asked at the latest.
    pub fn next_wake(&self) -> BootTime {
        if self.has_room() { self.next_beat.min(self.stop_at()) } else { self.stop_at() }
    }

    pub fn poll(&mut self, now: BootTime) -> Step {
        if let Some(lost) = self.poll_lost(now) {
            return Step::Lost(lost.clone());
        }
        if self.has_room() && now >= self.next_beat {
            return Step::Beat(self.send(now));
        }
        Step::Sleep(self.next_wake())
    }

    fn has_room(&self) -> bool {
        self.flights.len() < self.timing.flights_max()
    }

    fn send(&mut self, now: BootTime) -> SentHeartbeat {
        let beside = self.flights.len() as u32;
        let has_all = beside == 0 && self.timing.policy != Policy::Immediate;
        let patience = now.plus(self.timing.patience()).min(self.stop_at());
        let until = if has_all { self.stop_at() } else { patience };
        self.flights_sent += 1;
        self.flights.insert(self.flights_sent, now);
        self.next_beat = now.plus(self.timing.beside_after());
        SentHeartbeat { number: self.flights_sent, sent: now, until, beside }
    }

    /// A heartbeat that was sent at `sent` was answered. What is lost stays lost, however good the news. Of an answer
    /// from an older history nothing is taken up.
    pub fn on_answer(&mut self, sent: BootTime, now: BootTime, beat: &Beat, unit: f64) -> Heard {
        // Those that were sent before have nothing more to say.
        self.flights.retain(|_, other| *other > sent);
        if self.poll_lost(now).is_some() {
            return Heard::default();
        }
        let epoch = match self.history.follow(beat.epoch) {
            Ok(epoch) => epoch,
            Err(older) => {
                self.lost = Some(older.into());
                return Heard::default();
            }
        };
        self.history.keep(beat.sealed_cursor.as_deref());
        self.failures = 0;
        self.trust(sent, beat.ttl_left, beat.slack);
        if sent >= self.answered {
            self.answered = sent;
            self.next_beat = next_beat(&self.timing, sent, self.trusted_until, unit).max(now);
        }
        if std::mem::take(&mut self.has_news) {
            self.next_beat = now;
        }
        self.take_set(Cursor { epoch, revision: beat.revision.0 }, &beat.leases)
    }

    /// Takes up a set, unless a newer one came before.
    fn take_set(&mut self, cursor: Cursor, leases: &Arc<[HeldLease]>) -> Heard {
        if cursor < self.set.cursor {
            return Heard::default();
        }
        // The authority was shown this very set, and says that it is the same still.
        if cursor == self.set.cursor && Arc::ptr_eq(leases, &self.set.leases) {
            return Heard { ended: Vec::new(), is_newest: true };
        }
        self.set = NewestSet::new(cursor, leases);
        let is_over = |(lease, grant): (&LeaseId, &Cursor)| self.has_ended(*lease, *grant).then_some(*lease);
        let ended: Vec<LeaseId> = self.held.iter().filter_map(is_over).collect();
        for lease in &ended {
            self.held.remove(lease);
        }
        Heard { ended, is_newest: true }
    }

    /// A heartbeat was refused: the session is over.
    pub fn on_refusal(&mut self, refusal: RefusalReason) {
        self.lost.get_or_insert(Lost::Refused(refusal));
    }

    /// The outcome of a heartbeat is unknown, or the authority was not reached. False if a later one was answered.
    pub fn on_failure(&mut self, flight: u64, now: BootTime, why: &str, unit: f64) -> bool {
        if self.flights.remove(&flight).is_none() {
            return false;
        }
        self.failures = self.failures.saturating_add(1);
        if self.timing.policy == Policy::Immediate {
            self.lost.get_or_insert(Lost::Failed(why.to_owned()));
        }
        let again = now.plus(self.timing.backoff().wait(self.failures, unit));
        // What is sent beside another one is not put off.
        self.next_beat = if self.flights.is_empty() { again } else { self.next_beat.min(again) };
        true
    }

    /// Something has happened to the session: it is asked about now, or again if it is being asked about already.
    pub fn on_news(&mut self, now: BootTime) {
        self.has_news = !self.flights.is_empty();
        if !self.has_news {
            self.next_beat = self.next_beat.min(now);
        }
    }

    /// A lease was granted; false if it is known by now that it has ended again, that the session is lost, or that the
    /// grant belongs to an older history.
    pub fn granted(&mut self, lease: LeaseId, token: Token, epoch: Option<u64>, now: BootTime) -> bool {
        if self.poll_lost(now).is_some() {
            return false;
        }
        let Ok(epoch) = self.history.follow(epoch) else { return false };
        let grant = Cursor { epoch, revision: token.0 };
        if self.has_ended(lease, grant) {
            return false;
        }
        self.held.insert(lease, grant);
        true
    }

    pub fn released(&mut self, lease: LeaseId) {
        self.held.remove(&lease);
    }

    /// Whether the newest set is newer than a grant and lacks it.
    pub fn is_known_to_have_ended(&self, lease: LeaseId, token: Token) -> bool {
        self.has_ended(lease, Cursor { epoch: self.set.cursor.epoch, revision: token.0 })
    }

    pub fn lost(&self) -> Option<&Lost> {
        self.lost.as_ref()
    }

    fn poll_lost(&mut self, now: BootTime) -> Option<&Lost> {
        if self.lost.is_none() && now >= self.stop_at() {
            self.lost = Some(Lost::Deadline);
        }
        self.lost.as_ref()
    }

    /// A set that is newer than a grant and lacks it says that it has ended; an older one says nothing.
    fn has_ended(&self, lease: LeaseId, grant: Cursor) -> bool {
        self.set.cursor >= grant && !self.set.grants.contains(&(lease, Token(grant.revision)))
    }

    /// Trust never shrinks: each answer was true when it was given.
    fn trust(&mut self, sent: BootTime, ttl_left: Duration, slack: Duration) {
        self.trusted_until = self.trusted_until.max(local_deadline(sent, ttl_left, slack));
    }
}

/// When to renew a session that is trusted until then by the answer to a heartbeat that was sent at `sent`: at half of
/// that time at the latest, so that a slow answer comes before its end.
fn next_beat(timing: &Timing, sent: BootTime, trusted_until: BootTime, unit: f64) -> BootTime {
    sent.plus(jittered(timing.every.min(trusted_until.since(sent) / 2), unit))
}

/// Up to a fifth earlier, so that a fleet that started together does not beat together.
fn jittered(every: Duration, unit: f64) -> Duration {
    every.mul_f64(1.0 - 0.2 * unit.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests;
