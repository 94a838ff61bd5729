//! Whether a batch is written on the thread that decided it, or on one that may wait for the disk.
//!
//! To wake another thread and to be woken by it takes longer than a quick disk takes to sync a small batch. But a
//! thread that waits for the disk runs no other task of its runtime. So only small batches are written in place, on a
//! disk that was quick many times in a row, and only where another thread runs the other tasks.

use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};

use crate::resident::Entry;

/// An append that takes no longer than this is quick.
pub(super) const QUICK: Duration = Duration::from_micros(500);
/// How many appends in a row must have been quick. So a slow one in place is one of 257 at most.
const IN_A_ROW: u32 = 256;
/// How many rows a batch in place may change or remove. A larger one takes longer to encode, and its many callers share
/// the cost of waking the other thread.
const ROWS_MAX: usize = 16;

/// How quick the disk was lately.
#[derive(Debug, Clone, Copy)]
pub(super) struct DiskPace {
    /// An append that takes no longer than this is quick.
    quick: Duration,
    quick_in_a_row: u32,
}

impl DiskPace {
    /// Of a disk that is not known yet.
    pub fn new(quick: Duration) -> Self {
        Self { quick, quick_in_a_row: 0 }
    }

    /// Whether the entry may be appended in place, in a runtime with this number of threads.
    pub fn may_wait(self, entry: &Entry, threads: usize) -> bool {
        let rows = entry.rows.len() + entry.gone.len();
        self.quick_in_a_row >= IN_A_ROW && rows <= ROWS_MAX && threads > 1
    }

    /// An append took this long.
    pub fn took(&mut self, time: Duration) {
        let is_quick = time <= self.quick;
        self.quick_in_a_row = if is_quick { (self.quick_in_a_row + 1).min(IN_A_ROW) } else { 0 };
    }
}

/// How many threads run the tasks of the current runtime.
pub(super) fn threads() -> usize {
    let runtime = Handle::current();
    match runtime.runtime_flavor() {
        RuntimeFlavor::CurrentThread => 1,
        _ => runtime.metrics().num_workers(),
    }
}

#[cfg(test)]
mod tests {
    use solehold_core::{key::SessionId, time::Revision};
    use uuid::Uuid;

    use super::*;
    use crate::{
        resident::{Mark, RowId},
        store::Cursor,
    };

    const SLOW: Duration = Duration::from_millis(5);

    fn after(appends: u32) -> DiskPace {
        let mut pace = DiskPace::new(QUICK);
        (0..appends).for_each(|_| pace.took(QUICK));
        pace
    }

    /// An entry that removes rows, as when what has ended is forgotten.
    fn removing(rows: usize) -> Entry {
        Entry {
            mark: Mark::default(),
            cursor: Cursor { epoch: 1, revision: Revision(1) },
            rows: Vec::new(),
            gone: vec![RowId::Session(SessionId(Uuid::nil())); rows],
            events: Vec::new(),
        }
    }

    #[test]
    fn an_append_in_place_follows_many_quick_ones() {
        assert!(!after(IN_A_ROW - 1).may_wait(&removing(1), 2));
        assert!(after(IN_A_ROW).may_wait(&removing(1), 2));
    }

    #[test]
    fn a_slow_append_ends_it_until_the_disk_has_been_quick_for_long() {
        let mut pace = after(10 * IN_A_ROW);
        pace.took(SLOW);
        (1..IN_A_ROW).for_each(|_| pace.took(QUICK));
        assert!(!pace.may_wait(&removing(1), 2));
        pace.took(QUICK);
        assert!(pace.may_wait(&removing(1), 2));
    }

    #[test]
    fn a_large_batch_goes_to_another_thread() {
        assert!(after(IN_A_ROW).may_wait(&removing(ROWS_MAX), 2));
        assert!(!after(IN_A_ROW).may_wait(&removing(ROWS_MAX + 1), 2));
    }

    #[test]
    fn the_only_thread_of_a_runtime_never_waits_for_the_disk() {
        assert!(!after(IN_A_ROW).may_wait(&removing(1), 1));
    }
}
