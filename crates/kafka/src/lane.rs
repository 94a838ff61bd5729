//! The messages of one partition that are not committed: which ones may be processed, and where the position is. Adds
//! retries, batches and flow control to [`OrderedWindow`].
//!
//! ```text
//!   arrive ──> waiting ──> running ──> finished ──> committing ──> settled
//!                 ^           │            ^             │
//!                 │  after a  │            └── returned ─┘   the transaction failed: from now on the message gets a
//!                 └── backoff ┘ failed                       transaction of its own
//! ```
//!
//! - Messages of one key are processed one after the other: the next begins when the one before is committed. Messages
//!   of other keys do not wait for them.
//! - The position is the lowest offset that is not committed.
//! - Only messages less than `span` above the position are processed, so no more than `span` are redelivered after a
//!   crash.
//! - No clock, no network: time and chance are arguments.

use std::collections::BTreeSet;

use bytes::Bytes;
use solehold_clock::{Backoff, BootTime};
use solehold_sql::partitions::Checkpoint;
use solehold_window::OrderedWindow;

use super::Message;

/// About what a message takes beside its key and payload.
const ENTRY_BYTES: usize = 256;

#[derive(Debug, Clone, PartialEq)]
pub struct Bounds {
    /// Messages that are processed in parallel.
    pub parallel: usize,
    /// Messages that are kept; at this many the partition is paused, and resumed at half.
    pub messages: usize,
    /// The same, in bytes.
    pub bytes: usize,
    /// From the position to the highest offset that is processed.
    pub span: i64,
    /// Messages in one transaction.
    pub batch: usize,
    /// How often a message is processed before it becomes a dead letter.
    pub attempts: u32,
    /// Between two attempts.
    pub backoff: Backoff,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    Taken,
    /// It was committed before this tenure, or has arrived already.
    Old,
    /// It differs from the checkpoint at this offset: this is another topic of the same name.
    Foreign,
}

/// What to do with a message that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    NotBefore(BootTime),
    /// It has used all attempts: it is a dead letter.
    GiveUp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    Pause,
    Resume,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    pub offsets: Vec<i64>,
    /// The position once they are committed.
    pub next_offset: i64,
    /// One of them, by which the topic is recognized later.
    pub checkpoint: Option<Checkpoint>,
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

/// The messages of one partition that are not committed.
#[derive(Debug)]
pub struct Lane {
    bounds: Bounds,
    messages: OrderedWindow<i64, Bytes, Entry>,
    /// Messages to retry, by the time at which they are due.
    delayed: BTreeSet<(BootTime, i64)>,
    finished: BTreeSet<i64>,
    running: usize,
    committing: usize,
    bytes: usize,
    checkpoint: Option<Checkpoint>,
    is_paused: bool,
    is_ending: bool,
}

impl Lane {
    /// A lane whose first message has this offset, or a higher one. If a checkpoint is given, the message at its offset
    /// must be that one, should it arrive.
    pub fn new(next_offset: i64, checkpoint: Option<Checkpoint>, bounds: Bounds) -> Self {
        Self {
            bounds,
            messages: OrderedWindow::new(next_offset - 1),
            delayed: BTreeSet::new(),
            finished: BTreeSet::new(),
            running: 0,
            committing: 0,
            bytes: 0,
            checkpoint,
            is_paused: false,
            is_ending: false,
        }
    }

    /// A message was fetched. They arrive in the order of their offsets, with gaps.
    pub fn arrive(&mut self, message: Message) -> Arrival {
        let offset = message.offset;
        if self.checkpoint.is_some_and(|mark| mark.offset == offset && mark.digest != message.digest()) {
            return Arrival::Foreign;
        }
        let bytes = size(&message);
        let key = message.key.clone();
        let entry = Entry { message, stage: Stage::Waiting, failures: 0, is_alone: false };
        if !self.messages.insert(offset, key, entry) {
            return Arrival::Old;
        }
        self.bytes += bytes;
        Arrival::Taken
    }

    /// The next message to process, if one may begin.
    pub fn begin(&mut self, now: BootTime) -> Option<Message> {
        while let Some((time, offset)) = self.delayed.first().copied().filter(|(time, _)| *time <= now) {
            self.delayed.remove(&(time, offset));
            self.messages.put_back(offset);
        }
        if self.is_ending || self.running >= self.bounds.parallel {
            return None;
        }
        let offset = self.messages.ready().next()?.0;
        if offset >= self.position().saturating_add(self.bounds.span) {
            return None;
        }
        let entry = self.messages.take(offset)?;
        entry.stage = Stage::Running;
        self.running += 1;
        Some(entry.message.clone())
    }

    /// A message was processed, and its effect can be committed.
    pub fn finish(&mut self, offset: i64) {
        if let Some(entry) = self.messages.get_mut(offset).filter(|entry| entry.stage == Stage::Running) {
            entry.stage = Stage::Finished;
            self.running -= 1;
            self.finished.insert(offset);
        }
    }

    /// Processing a message failed. `unit` is a random number from 0 to 1.
    pub fn fail(&mut self, offset: i64, now: BootTime, unit: f64) -> Retry {
        let Some(entry) = self.messages.get_mut(offset).filter(|entry| entry.stage == Stage::Running) else {
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

    /// The messages to commit now, lowest offsets first. Call [committed](Self::committed) for the batch, or
    /// [returned](Self::returned).
    pub fn batch(&mut self) -> Option<Batch> {
        let first = *self.finished.first()?;
        let is_alone = |offset: &i64| self.messages.get(*offset).is_some_and(|entry| entry.is_alone);
        let offsets: Vec<i64> = if is_alone(&first) {
            vec![first]
        } else {
            let together = self.finished.iter().filter(|offset| !is_alone(offset));
            together.take(self.bounds.batch).copied().collect()
        };
        for offset in &offsets {
            self.finished.remove(offset);
            if let Some(entry) = self.messages.get_mut(*offset) {
                entry.stage = Stage::Committing;
            }
        }
        self.committing += offsets.len();
        let next_offset = self.position_without(&offsets);
        let checkpoint = offsets.iter().rev().find(|offset| **offset < next_offset);
        let checkpoint = checkpoint
            .and_then(|offset| self.messages.get(*offset))
            .map(|entry| Checkpoint { offset: entry.message.offset, digest: entry.message.digest() });
        Some(Batch { offsets, next_offset, checkpoint })
    }

    pub fn committed(&mut self, offsets: &[i64]) {
        for offset in offsets {
            if let Some(entry) = self.messages.settle(*offset) {
                self.committing -= 1;
                self.bytes -= size(&entry.message);
            }
        }
    }

    /// A batch was rolled back. If `is_alone`, its messages get transactions of their own, so that a bad one does not
    /// hold up the others.
    pub fn returned(&mut self, offsets: &[i64], is_alone: bool) {
        for offset in offsets {
            let Some(entry) = self.messages.get_mut(*offset) else { continue };
            entry.stage = Stage::Finished;
            entry.is_alone |= is_alone;
            self.committing -= 1;
            self.finished.insert(*offset);
        }
    }

    /// The lowest offset that is not committed.
    pub fn position(&self) -> i64 {
        self.position_without(&[])
    }

    /// The position once these offsets are committed, too.
    fn position_without(&self, offsets: &[i64]) -> i64 {
        let mut without = offsets.iter();
        let mut rest = self.messages.positions().skip_while(|offset| without.next() == Some(offset));
        rest.next().unwrap_or(self.messages.last() + 1)
    }

    /// Begins no more messages.
    pub fn end(&mut self) {
        self.is_ending = true;
    }

    pub fn is_quiet(&self) -> bool {
        self.running == 0 && self.committing == 0 && self.finished.is_empty()
    }

    /// When the next message that failed may be retried.
    pub fn next_retry(&self) -> Option<BootTime> {
        self.delayed.first().map(|(time, _)| *time)
    }

    /// Whether fetching must pause or may resume; none, if neither changes.
    pub fn flow(&mut self) -> Option<Flow> {
        let messages = self.messages.unsettled();
        let is_full = messages >= self.bounds.messages || self.bytes >= self.bounds.bytes;
        let has_room = messages <= self.bounds.messages / 2 && self.bytes <= self.bounds.bytes / 2;
        if !self.is_paused && is_full {
            self.is_paused = true;
            Some(Flow::Pause)
        } else if self.is_paused && has_room {
            self.is_paused = false;
            Some(Flow::Resume)
        } else {
            None
        }
    }

    pub fn len(&self) -> usize {
        self.messages.unsettled()
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}

fn size(message: &Message) -> usize {
    let bytes = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
    let headers: usize = message.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    ENTRY_BYTES + bytes(&message.key) + bytes(&message.payload) + headers
}
