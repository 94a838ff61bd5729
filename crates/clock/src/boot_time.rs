//! Readings of this machine's clocks.

use std::{
    fmt, fs,
    time::{Duration, SystemTime},
};

use rustix::time::{ClockId, clock_gettime};

const NANOS_PER_MS: u64 = 1_000_000;

/// A reading of `CLOCK_BOOTTIME`, in nanoseconds. Two readings can be compared only within one boot of one machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootTime(u64);

impl BootTime {
    /// Reads the clock.
    pub fn now() -> Self {
        let time = clock_gettime(ClockId::Boottime);
        Self(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }

    /// The time `nanos` nanoseconds after boot.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since boot.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time `ms` milliseconds after boot: a reading that was stored, or came from another process, on the same
    /// boot.
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms.saturating_mul(NANOS_PER_MS))
    }

    /// Milliseconds since boot, rounded down.
    pub const fn as_ms(self) -> u64 {
        self.0 / NANOS_PER_MS
    }

    /// `time` later, or the end of time if that comes first.
    #[must_use]
    pub fn plus(self, time: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The time from `earlier` to this; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for BootTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} after boot", Duration::from_nanos(self.0))
    }
}

/// The wall clock, in milliseconds since the Unix epoch: for times that people read, never to decide.
pub fn wall_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Distinguishes this boot of this machine from any other; empty where the kernel does not say.
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_saturate() {
        let early = BootTime::from_nanos(5);
        let late = BootTime::from_nanos(9);
        assert_eq!(late.since(early), Duration::from_nanos(4));
        assert_eq!(early.since(late), Duration::ZERO);
        assert_eq!(late.plus(Duration::MAX), BootTime::from_nanos(u64::MAX));
        assert_eq!(BootTime::from_ms(u64::MAX), BootTime::from_nanos(u64::MAX));
        assert_eq!(BootTime::from_nanos(2_999_999).as_ms(), 2);
    }
}
