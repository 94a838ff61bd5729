//! Whether a batch is written on the thread that decided it, or on one that may wait for the disk.
//!
//! To wake another thread and to be woken by it takes longer than a quick disk takes to sync a small batch. But a
//! thread that waits for the disk runs no other task of its runtime. So only small batches are written in place, on a
//! disk that was quick many times in a row, and only where another thread runs the other tasks.

use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};

/// A write and its sync that take no longer are quick.
pub(super) const QUICK: Duration = Duration::from_micros(500);
/// So many appends in a row must have been quick. One that is slow after all is therefore one of many.
const IN_A_ROW: u32 = 256;
/// A batch with more rows takes long to encode, and so many callers wait for it that two wake-ups more do not matter.
const ROWS_MAX: usize = 16;

/// How quick the disk was lately.
#[derive(Debug, Clone, Copy)]
pub(super) struct DiskPace {
    /// An append that takes no longer is quick.
    quick: Duration,
    quick_in_a_row: u32,
}

impl DiskPace {
    /// Of a disk that is not known yet.
    pub fn new(quick: Duration) -> Self {
        Self { quick, quick_in_a_row: 0 }
    }

    /// Whether the next append may be made in place, by its number of rows, in a runtime with so many threads.
    pub fn may_wait(self, rows: usize, threads: usize) -> bool {
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
    use super::*;

    const SLOW: Duration = Duration::from_millis(5);

    fn after(appends: u32) -> DiskPace {
        let mut pace = DiskPace::new(QUICK);
        (0..appends).for_each(|_| pace.took(QUICK));
        pace
    }

    #[test]
    fn an_append_in_place_follows_many_quick_ones() {
        assert!(!after(IN_A_ROW - 1).may_wait(1, 2));
        assert!(after(IN_A_ROW).may_wait(1, 2));
    }

    #[test]
    fn a_slow_append_ends_it_until_the_disk_has_been_quick_for_long() {
        let mut pace = after(10 * IN_A_ROW);
        pace.took(SLOW);
        (1..IN_A_ROW).for_each(|_| pace.took(QUICK));
        assert!(!pace.may_wait(1, 2));
        pace.took(QUICK);
        assert!(pace.may_wait(1, 2));
    }

    #[test]
    fn a_large_batch_goes_to_another_thread() {
        assert!(after(IN_A_ROW).may_wait(ROWS_MAX, 2));
        assert!(!after(IN_A_ROW).may_wait(ROWS_MAX + 1, 2));
    }

    #[test]
    fn the_only_thread_of_a_runtime_never_waits_for_the_disk() {
        assert!(!after(IN_A_ROW).may_wait(1, 1));
    }
}
