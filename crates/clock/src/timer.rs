//! A kernel timer. Tokio's timers stop while the machine is suspended; this one does not.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use crate::BootTime;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// A file that becomes readable at a [`BootTime`].
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// A timer that is not set.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Self(timerfd_create(TimerfdClockId::Boottime, flags)?))
    }

    /// Sets it. A time that has passed makes it readable at once.
    pub fn set(&self, at: BootTime) -> io::Result<()> {
        // Zero would switch it off.
        let nanos = at.as_nanos().max(1);
        let it_value = Timespec {
            tv_sec: (nanos / NANOS_PER_SECOND) as i64,
            tv_nsec: (nanos % NANOS_PER_SECOND) as i64,
        };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval, it_value })?;
        Ok(())
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<Timer> for OwnedFd {
    fn from(timer: Timer) -> Self {
        timer.0
    }
}
