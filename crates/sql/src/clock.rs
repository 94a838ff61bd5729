//! The only place of this crate that reads a clock of this machine. It never judges a lease: that is the database's business.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A reading of `CLOCK_BOOTTIME`: it never steps, and counts on through suspend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tick(Duration);

impl Tick {
    /// Reads the clock.
    pub(crate) fn now() -> Self {
        let time = clock_gettime(ClockId::Boottime);
        Self(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }

    /// How long ago `earlier` was; nothing if it was not.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// So much later.
    pub(crate) fn plus(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }
}
