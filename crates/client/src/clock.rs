//! The only place of the client that reads a clock, and the one that waits for a time on it.
//!
//! Local deadlines are counted by `CLOCK_BOOTTIME`: it never steps, and it counts on while the machine is suspended. The
//! timers of tokio do not, so waiting for a [`Tick`] is a timer of the kernel's on the same clock.

use std::{
    fmt, io,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use tokio::{net::unix::pipe, sync::Notify};

/// Where no timer of the kernel is to be had, as when files run out, the clock is looked at this often.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A reading of `CLOCK_BOOTTIME`, in nanoseconds. Two readings can be compared only within one boot of one machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(u64);

impl Tick {
    /// So many nanoseconds after boot.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since boot.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// This time and `by` more; at the end of time it stays there.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long ago `earlier` was; nothing if it was not.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// How long from `now` until this time; nothing when it has passed.
    pub fn after(self, now: Self) -> Duration {
        self.since(now)
    }
}

impl fmt::Debug for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} after boot", Duration::from_nanos(self.0))
    }
}

/// Where ticks come from: the machine, or a simulation.
#[async_trait]
pub trait Clock: Send + Sync + 'static {
    /// Reads the clock.
    fn now(&self) -> Tick;

    /// Waits until the clock shows `until` or later.
    async fn wait_until(&self, until: Tick);
}

/// The machine's own clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct BootClock;

#[async_trait]
impl Clock for BootClock {
    fn now(&self) -> Tick {
        let time = clock_gettime(ClockId::Boottime);
        Tick(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }

    async fn wait_until(&self, until: Tick) {
        while self.now() < until {
            match Alarm::at(until) {
                Ok(alarm) => alarm.rings().await,
                Err(_) => tokio::time::sleep(LOOK_EVERY.min(until.after(self.now()))).await,
            }
        }
    }
}

/// A timer of the kernel's on `CLOCK_BOOTTIME`. It is a file that can be read once the time has come, which is all that
/// tokio's pipe asks of one.
struct Alarm(pipe::Receiver);

impl Alarm {
    fn at(time: Tick) -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Boottime, flags)?;
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let at = Timespec { tv_sec: (time.0 / 1_000_000_000) as _, tv_nsec: (time.0 % 1_000_000_000) as _ };
        timerfd_settime(
            &timer,
            TimerfdTimerFlags::ABSTIME,
            &Itimerspec { it_interval: never, it_value: at },
        )?;
        Ok(Self(pipe::Receiver::from_owned_fd_unchecked(timer)?))
    }

    async fn rings(&self) {
        // Whatever it says, the clock is looked at next.
        let _ = self.0.readable().await;
    }
}

/// A clock for simulations. It goes with tokio's time, which a test can pause, and jumps when the simulated machine is
/// suspended: then the timers of tokio stand still and this clock does not.
#[derive(Debug)]
pub struct VirtualClock {
    began: tokio::time::Instant,
    suspended_ns: AtomicU64,
    resumed: Notify,
}

impl Default for VirtualClock {
    fn default() -> Self {
        let began = tokio::time::Instant::now();
        Self { began, suspended_ns: AtomicU64::new(0), resumed: Notify::new() }
    }
}

impl VirtualClock {
    /// The machine is suspended for so long, and goes on.
    pub fn suspend(&self, time: Duration) {
        self.suspended_ns.fetch_add(time.as_nanos() as u64, Ordering::SeqCst);
        self.resumed.notify_waiters();
    }
}

#[async_trait]
impl Clock for VirtualClock {
    fn now(&self) -> Tick {
        let suspended = Duration::from_nanos(self.suspended_ns.load(Ordering::SeqCst));
        // Not at the very beginning of time, where a time before could not be told.
        Tick(3_600_000_000_000).plus(self.began.elapsed()).plus(suspended)
    }

    async fn wait_until(&self, until: Tick) {
        loop {
            let resumed = self.resumed.notified();
            let left = until.after(self.now());
            if left.is_zero() {
                return;
            }
            let _ = tokio::time::timeout(left, resumed).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiting_ends_at_the_time_and_not_before() {
        let began = BootClock.now();
        let until = began.plus(Duration::from_millis(30));
        BootClock.wait_until(until).await;
        assert!(BootClock.now() >= until);
        BootClock.wait_until(began).await;
        BootClock.wait_until(Tick::from_nanos(0)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspended_machine_wakes_late_but_knows_it() {
        let clock = std::sync::Arc::new(VirtualClock::default());
        let began = clock.now();
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.wait_until(began.plus(Duration::from_secs(10))).await }
        });
        tokio::task::yield_now().await;
        clock.suspend(Duration::from_secs(60));
        sleeper.await.expect("it wakes");
        assert_eq!(clock.now().since(began), Duration::from_secs(60));
    }

    #[test]
    fn ticks_saturate() {
        let (early, late) = (Tick::from_nanos(5), Tick::from_nanos(9));
        assert_eq!(late.since(early), Duration::from_nanos(4));
        assert_eq!(early.since(late), Duration::ZERO);
        assert_eq!(late.plus(Duration::MAX), Tick::from_nanos(u64::MAX));
    }
}
