//! Where the next read of a table begins.
//!
//! Rows of the mailbox and the outbox are deleted soon after they were written. Their dead index entries stay until
//! vacuum removes them, which an old snapshot anywhere in the database prevents. A read from the beginning would scan
//! all of them, each time. So reads begin at a floor, and an occasional full read finds rows below it: mail that was
//! committed late, or the rows of a database that was restored from a backup. The longer full reads take, the rarer
//! they are.

use std::{collections::VecDeque, time::Duration};

use solehold_clock::BootTime;
use solehold_sql::limits::{FULL_PASS_PAUSE_MAX, FULL_PASS_SHARE};

use crate::model::limits::{LATE_MAIL_MAX, POLL_EVERY};

/// Marks that are kept at once: the floor lags behind in steps of this part of [`LATE_MAIL_MAX`].
const MARKS: u32 = 8;

/// When to read from the beginning.
#[derive(Debug)]
pub(crate) struct FullReads {
    /// The least time between two full reads.
    every: Duration,
    next: Option<BootTime>,
}

impl FullReads {
    pub fn new(every: Duration) -> Self {
        Self { every, next: None }
    }

    pub fn is_due(&self, now: BootTime) -> bool {
        self.next.is_none_or(|next| now >= next)
    }

    /// Records a full read. They may use one part in [`FULL_PASS_SHARE`] of the time.
    pub fn made(&mut self, began: BootTime, now: BootTime) {
        let pause = now.since(began).saturating_mul(FULL_PASS_SHARE).min(FULL_PASS_PAUSE_MAX);
        self.next = Some(now.plus(pause.max(self.every)));
    }
}

/// Where the next read of a mailbox begins. Several processes write to it at once, so an entry may be committed after
/// entries with a higher arrival: the floor lags behind the entries that were taken by [`LATE_MAIL_MAX`].
#[derive(Debug)]
pub(crate) struct Floor {
    at: i64,
    /// Times, and the arrivals below which all mail had been taken by then.
    taken: VecDeque<(BootTime, i64)>,
    full: FullReads,
}

/// A read of a mailbox that is about to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MailRead {
    /// The lowest arrival to read.
    pub from: i64,
    is_full: bool,
    began: BootTime,
}

impl Default for Floor {
    fn default() -> Self {
        Self { at: i64::MIN, taken: VecDeque::new(), full: FullReads::new(POLL_EVERY) }
    }
}

impl Floor {
    /// Where the read that begins now starts.
    pub fn begin(&mut self, now: BootTime) -> MailRead {
        while let Some((when, below)) = self.taken.front().copied()
            && now.since(when) >= LATE_MAIL_MAX
        {
            self.at = below;
            self.taken.pop_front();
        }
        let is_full = self.full.is_due(now);
        MailRead { from: if is_full { i64::MIN } else { self.at }, is_full, began: now }
    }

    /// Records how long the database took to respond, without the time to apply the mail.
    pub fn answered(&mut self, read: MailRead, now: BootTime) {
        if read.is_full {
            self.full.made(read.began, now);
        }
    }

    /// All mail that was read below `below` has been taken; `is_all` if the read found no more.
    pub fn took(&mut self, below: i64, is_all: bool, now: BootTime) {
        if below < self.at {
            // A full read found mail below the floor. There may be more.
            if !is_all {
                self.at = below;
                self.taken.clear();
            }
            return;
        }
        match self.taken.back_mut() {
            Some((when, last)) if now.since(*when) < LATE_MAIL_MAX / MARKS => *last = below.max(*last),
            _ => self.taken.push_back((now, below)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> BootTime {
        BootTime::from_nanos(1).plus(Duration::from_millis(ms))
    }

    #[test]
    fn full_reads_use_a_small_share_of_the_time() {
        let mut full = FullReads::new(POLL_EVERY);
        assert!(full.is_due(at(0)));
        full.made(at(0), at(1));
        assert!(!full.is_due(at(1_000)) && full.is_due(at(1_001)), "no more than one in this time");
        full.made(at(2_000), at(2_100));
        assert!(!full.is_due(at(4_099)) && full.is_due(at(4_100)), "100 ms in two seconds");
    }

    /// A floor under which entries up to 99 were taken at 0 ms, and the time when it has come up.
    fn raised() -> (Floor, u64) {
        let mut floor = Floor::default();
        let read = floor.begin(at(0));
        floor.answered(read, at(0));
        floor.took(100, true, at(0));
        assert_eq!(floor.begin(at(999)).from, i64::MIN, "late mail may still come");
        let late = u64::try_from(LATE_MAIL_MAX.as_millis()).expect("a few seconds");
        let read = floor.begin(at(late));
        assert!(read.is_full && read.from == i64::MIN);
        floor.answered(read, at(late));
        assert_eq!(floor.begin(at(late + 1)).from, 100);
        (floor, late + 1)
    }

    #[test]
    fn the_floor_lags_behind_mail_that_was_taken() {
        let (mut floor, now) = raised();
        (0..1_000).for_each(|n| floor.took(101 + n, true, at(now + u64::try_from(n).expect("small"))));
        assert!(floor.taken.len() <= MARKS as usize, "{:?}", floor.taken);
        assert_eq!(floor.begin(at(now + 10)).from, 100);
    }

    #[test]
    fn mail_found_below_the_floor_and_not_taken_is_read_again() {
        let (mut floor, now) = raised();
        let read = floor.begin(at(now + 60_000));
        assert_eq!(read.from, i64::MIN);
        floor.answered(read, at(now + 60_000));
        // An entry that takes several transactions.
        floor.took(7, false, at(now + 60_000));
        assert_eq!(floor.begin(at(now + 60_001)).from, 7);
        // More entries than one read takes.
        let (mut floor, now) = raised();
        let read = floor.begin(at(now + 60_000));
        floor.answered(read, at(now + 60_000));
        floor.took(50, false, at(now + 60_000));
        assert_eq!(floor.begin(at(now + 60_001)).from, 50);
        // All late mail was taken.
        let (mut floor, now) = raised();
        let read = floor.begin(at(now + 60_000));
        floor.answered(read, at(now + 60_000));
        floor.took(50, true, at(now + 60_000));
        assert_eq!(floor.begin(at(now + 60_001)).from, 100);
    }
}
