//! The messages of one partition that have not taken effect: which may be worked on, and how far the position is.
//!
//! ```text
//!   arrive ──> waiting ──> running ──> finished ──> committing ──> gone
//!                 ^           │            ^             │
//!                 │ after a   │            └── returned ─┘   the transaction failed: from now on it is alone in one
//!                 └── while ──┘ failed
//! ```
//!
//! - Messages of one key go one after the other: the next begins when the one before is committed. Others go on.
//! - The position is the lowest offset that has not taken effect: everything below it has.
//! - What is worked on is less than `span` above the position, so that no more than that comes again after a crash.
//! - No clock, no network: time and chance are arguments.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use bytes::Bytes;
use solehold_clock::{Backoff, BootTime};
use solehold_sql::partitions::Landmark;

use super::Message;

/// What a message takes beside its key and payload, about.
const ENTRY_BYTES: usize = 256;

/// How much of everything.
#[derive(Debug, Clone, PartialEq)]
pub struct Bounds {
    /// Messages that are worked on at the same time.
    pub parallel: usize,
    /// Messages that are kept; at this many the partition is paused, and resumed at half.
    pub messages: usize,
    /// The same, in bytes.
    pub bytes: usize,
    /// From the position to the highest offset that is worked on.
    pub span: i64,
    /// Messages in one transaction.
    pub batch: usize,
    /// How often a message is tried.
    pub attempts: u32,
    /// How long to wait in between.
    pub backoff: Backoff,
}

/// What became of a message that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// It waits for its turn.
    Taken,
    /// It has taken effect before this tenure, or has arrived already.
    Old,
    /// It is not the message that had this offset before: this is another topic of the same name.
    Foreign,
}

/// What to do about a message that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// It is tried again, not before this time.
    NotBefore(BootTime),
    /// It was tried often enough: it is a dead letter.
    GiveUp,
}

/// Whether messages of the partition are to be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Stop fetching until there is room.
    Pause,
    /// There is room again.
    Resume,
}

/// What one transaction commits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Messages, in the order of their offsets.
    pub offsets: Vec<i64>,
    /// The position when they have taken effect.
    pub next_offset: i64,
    /// One of them by which the topic is known again.
    pub landmark: Option<Landmark>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waiting,
    Running,
    Finished,
    Committing,
}

#[derive(Debug)]
struct Entry {
    message: Message,
    stage: Stage,
    failures: u32,
    is_alone: bool,
}

/// The messages of one partition that have not taken effect.
#[derive(Debug)]
pub struct Lane {
    bounds: Bounds,
    entries: BTreeMap<i64, Entry>,
    /// The offsets of each key, in order: only the first may be worked on.
    keys: HashMap<Bytes, VecDeque<i64>>,
    /// Those that may begin.
    ready: BTreeSet<i64>,
    /// Those that may begin again after a time.
    delayed: BTreeSet<(BootTime, i64)>,
    finished: BTreeSet<i64>,
    running: usize,
    committing: usize,
    bytes: usize,
    /// Above everything that has arrived.
    next: i64,
    landmark: Option<Landmark>,
    is_paused: bool,
    is_ending: bool,
}

impl Lane {
    /// A lane whose first message has this offset, or a higher one. If a landmark is given, the message at its offset
    /// must be that one, should it arrive.
    pub fn new(next_offset: i64, landmark: Option<Landmark>, bounds: Bounds) -> Self {
        Self {
            bounds,
            entries: BTreeMap::new(),
            keys: HashMap::new(),
            ready: BTreeSet::new(),
            delayed: BTreeSet::new(),
            finished: BTreeSet::new(),
            running: 0,
            committing: 0,
            bytes: 0,
            next: next_offset,
            landmark,
            is_paused: false,
            is_ending: false,
        }
    }

    /// A message was fetched. They arrive in the order of their offsets, with gaps.
    pub fn arrive(&mut self, message: Message) -> Arrival {
        let offset = message.offset;
        if self.landmark.is_some_and(|mark| mark.offset == offset && mark.digest != message.digest()) {
            return Arrival::Foreign;
        }
        if offset < self.next {
            return Arrival::Old;
        }
        self.next = offset + 1;
        self.bytes += size(&message);
        let is_first = message.key.as_ref().is_none_or(|key| {
            let line = self.keys.entry(key.clone()).or_default();
            line.push_back(offset);
            line.len() == 1
        });
        if is_first {
            self.ready.insert(offset);
        }
        self.entries.insert(offset, Entry { message, stage: Stage::Waiting, failures: 0, is_alone: false });
        Arrival::Taken
    }

    /// The next message to work on, if one may begin.
    pub fn begin(&mut self, now: BootTime) -> Option<Message> {
        while let Some((time, offset)) = self.delayed.first().copied().filter(|(time, _)| *time <= now) {
            self.delayed.remove(&(time, offset));
            self.ready.insert(offset);
        }
        if self.is_ending || self.running >= self.bounds.parallel {
            return None;
        }
        let offset = *self.ready.first()?;
        if offset >= self.position().saturating_add(self.bounds.span) {
            return None;
        }
        self.ready.remove(&offset);
        self.running += 1;
        let entry = self.entries.get_mut(&offset)?;
        entry.stage = Stage::Running;
        Some(entry.message.clone())
    }

    /// A message was worked on, and what came of it can be committed.
    pub fn finish(&mut self, offset: i64) {
        if let Some(entry) = self.entries.get_mut(&offset).filter(|entry| entry.stage == Stage::Running) {
            entry.stage = Stage::Finished;
            self.running -= 1;
            self.finished.insert(offset);
        }
    }

    /// A message was worked on, and should be tried again. `unit` is a random number from 0 to 1.
    pub fn fail(&mut self, offset: i64, now: BootTime, unit: f64) -> Retry {
        let Some(entry) = self.entries.get_mut(&offset).filter(|entry| entry.stage == Stage::Running) else {
            return Retry::GiveUp;
        };
        entry.failures += 1;
        if entry.failures >= self.bounds.attempts {
            return Retry::GiveUp;
        }
        let time = now.plus(self.bounds.backoff.wait(entry.failures, unit));
        entry.stage = Stage::Waiting;
        self.running -= 1;
        self.delayed.insert((time, offset));
        Retry::NotBefore(time)
    }

    /// What can be committed now: the lowest offsets first. Call [committed](Self::committed) for it, or
    /// [returned](Self::returned).
    pub fn batch(&mut self) -> Option<Batch> {
        let first = *self.finished.first()?;
        let is_alone = |offset: &i64| self.entries.get(offset).is_some_and(|entry| entry.is_alone);
        let offsets: Vec<i64> = match is_alone(&first) {
            true => vec![first],
            false => {
                let together = self.finished.iter().filter(|offset| !is_alone(offset));
                together.take(self.bounds.batch).copied().collect()
            }
        };
        for offset in &offsets {
            self.finished.remove(offset);
            if let Some(entry) = self.entries.get_mut(offset) {
                entry.stage = Stage::Committing;
            }
        }
        self.committing += offsets.len();
        let next_offset = self.position_without(&offsets);
        let landmark = offsets.iter().rev().find(|offset| **offset < next_offset);
        let landmark = landmark
            .and_then(|offset| self.entries.get(offset))
            .map(|entry| Landmark { offset: entry.message.offset, digest: entry.message.digest() });
        Some(Batch { offsets, next_offset, landmark })
    }

    /// A batch has taken effect.
    pub fn committed(&mut self, offsets: &[i64]) {
        for offset in offsets {
            let Some(entry) = self.entries.remove(offset) else { continue };
            self.committing -= 1;
            self.bytes -= size(&entry.message);
            let Some(key) = entry.message.key else { continue };
            let Some(line) = self.keys.get_mut(&key) else { continue };
            line.pop_front();
            match line.front() {
                Some(next) => _ = self.ready.insert(*next),
                None => _ = self.keys.remove(&key),
            }
        }
    }

    /// A batch was rolled back. Its messages are tried in transactions of their own if `is_alone`, so that one of them
    /// does not keep back the others.
    pub fn returned(&mut self, offsets: &[i64], is_alone: bool) {
        for offset in offsets {
            let Some(entry) = self.entries.get_mut(offset) else { continue };
            entry.stage = Stage::Finished;
            entry.is_alone |= is_alone;
            self.committing -= 1;
            self.finished.insert(*offset);
        }
    }

    /// The lowest offset that has not taken effect.
    pub fn position(&self) -> i64 {
        self.entries.first_key_value().map_or(self.next, |(offset, _)| *offset)
    }

    fn position_without(&self, offsets: &[i64]) -> i64 {
        let mut without = offsets.iter();
        let mut rest = self.entries.keys().skip_while(|offset| without.next() == Some(offset));
        rest.next().copied().unwrap_or(self.next)
    }

    /// Begins nothing new from now on.
    pub fn end(&mut self) {
        self.is_ending = true;
    }

    /// Whether nothing is under way.
    pub fn is_quiet(&self) -> bool {
        self.running == 0 && self.committing == 0 && self.finished.is_empty()
    }

    /// When a message that failed may be tried again.
    pub fn next_retry(&self) -> Option<BootTime> {
        self.delayed.first().map(|(time, _)| *time)
    }

    /// What is to change about fetching, if something is.
    pub fn flow(&mut self) -> Option<Flow> {
        let (messages, bytes) = (self.entries.len(), self.bytes);
        let is_full = messages >= self.bounds.messages || bytes >= self.bounds.bytes;
        let has_room = messages <= self.bounds.messages / 2 && bytes <= self.bounds.bytes / 2;
        let (is_paused, flow) = match self.is_paused {
            false if is_full => (true, Flow::Pause),
            true if has_room => (false, Flow::Resume),
            _ => return None,
        };
        self.is_paused = is_paused;
        Some(flow)
    }

    /// How many messages it has.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

fn size(message: &Message) -> usize {
    let bytes = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
    let headers: usize = message.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    ENTRY_BYTES + bytes(&message.key) + bytes(&message.payload) + headers
}
