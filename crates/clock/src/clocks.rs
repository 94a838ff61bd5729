//! Where readings come from: the machine, a test, or a simulation. Time is an argument of everything that can be
//! simulated.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tokio::{net::unix::pipe, sync::Notify, time::Instant};

use crate::{BootTime, Timer};

/// How often [`BootClock`] reads the clock while it waits where the kernel gives no timer, as when files run out.
const POLL_EVERY: Duration = Duration::from_millis(50);

/// A clock that can be read.
pub trait Clock: Send + Sync + 'static {
    /// Reads the clock.
    fn now(&self) -> BootTime;
}

/// A clock that can also be waited for.
#[async_trait]
pub trait AlarmClock: Clock {
    /// Waits until the clock shows `until` or later.
    async fn wait_until(&self, until: BootTime);
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> BootTime {
        (**self).now()
    }
}

/// The machine's own clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> BootTime {
        BootTime::now()
    }
}

#[async_trait]
impl AlarmClock for BootClock {
    async fn wait_until(&self, until: BootTime) {
        while self.now() < until {
            match timer(until) {
                // Whatever it says, the clock is read next.
                Ok(timer) => drop(timer.readable().await),
                Err(_) => tokio::time::sleep(POLL_EVERY.min(until.since(self.now()))).await,
            }
        }
    }
}

/// A timer that the runtime waits for. All that tokio's pipe asks of a file is that it becomes readable.
fn timer(until: BootTime) -> io::Result<pipe::Receiver> {
    let timer = Timer::new()?;
    timer.set(until)?;
    pipe::Receiver::from_owned_fd_unchecked(timer.into())
}

/// A clock that moves only when it is told to: for tests and simulations.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Lets `ms` milliseconds pass.
    pub fn advance_ms(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> BootTime {
        BootTime::from_ms(self.0.load(Ordering::SeqCst))
    }
}

/// A clock for simulations. It follows tokio's time, which a test can pause, and jumps when the simulated machine is
/// suspended: then the timers of tokio stand still and this clock does not.
#[derive(Debug)]
pub struct VirtualClock {
    began: Instant,
    suspended_ns: AtomicU64,
    resumed: Notify,
}

impl Default for VirtualClock {
    fn default() -> Self {
        Self { began: Instant::now(), suspended_ns: AtomicU64::new(0), resumed: Notify::new() }
    }
}

impl VirtualClock {
    /// Suspends the machine for `time` and resumes it.
    pub fn suspend(&self, time: Duration) {
        self.suspended_ns.fetch_add(time.as_nanos() as u64, Ordering::SeqCst);
        self.resumed.notify_waiters();
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> BootTime {
        let suspended = Duration::from_nanos(self.suspended_ns.load(Ordering::SeqCst));
        // It begins an hour after boot, so that there are times before its beginning.
        BootTime::from_ms(3_600_000).plus(self.began.elapsed()).plus(suspended)
    }
}

#[async_trait]
impl AlarmClock for VirtualClock {
    async fn wait_until(&self, until: BootTime) {
        loop {
            let resumed = self.resumed.notified();
            let left = until.since(self.now());
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
        BootClock.wait_until(BootTime::from_nanos(0)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspended_machine_wakes_late_but_knows_it() {
        let clock = Arc::new(VirtualClock::default());
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
}
