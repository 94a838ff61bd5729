//! The only place of the engine that reads a clock of this machine.

use std::{
    fs,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use rustix::time::{ClockId, clock_gettime};

/// A reading of `CLOCK_BOOTTIME`: it never steps, and counts on through suspend. Two readings can be compared only
/// within one boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tick(u64);

impl Tick {
    /// Reads the clock.
    pub fn now() -> Self {
        let time = clock_gettime(ClockId::Boottime);
        Self(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }

    /// A reading as it was stored on the same boot.
    pub fn from_ms(ms: u64) -> Self {
        Self(ms * 1_000_000)
    }

    /// Milliseconds since boot, rounded down.
    pub fn as_ms(self) -> u64 {
        self.0 / 1_000_000
    }

    /// How long ago `earlier` was; nothing if it was not.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// The time of the wall, in milliseconds since the Unix epoch: used to make store time readable when a store is first
/// opened, never to decide.
pub fn wall_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Tells this boot of this machine from any other; empty where the kernel does not say.
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// Where ticks come from: the machine, or a test.
pub trait Ticks: Send + Sync + 'static {
    /// Reads the clock.
    fn now(&self) -> Tick;
}

/// The machine's own ticks.
#[derive(Debug, Clone, Copy, Default)]
pub struct BootTicks;

impl Ticks for BootTicks {
    fn now(&self) -> Tick {
        Tick::now()
    }
}

/// Ticks that move only when they are told to: for tests and simulations.
#[derive(Debug, Default)]
pub struct ManualTicks(AtomicU64);

impl ManualTicks {
    /// Lets `ms` pass.
    pub fn advance_ms(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Ticks for ManualTicks {
    fn now(&self) -> Tick {
        Tick::from_ms(self.0.load(Ordering::SeqCst))
    }
}

impl<T: Ticks> Ticks for std::sync::Arc<T> {
    fn now(&self) -> Tick {
        (**self).now()
    }
}
