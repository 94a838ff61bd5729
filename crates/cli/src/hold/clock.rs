//! The clock that deadlines are counted by, which goes on while the machine is suspended.

use std::{io, os::fd::OwnedFd};

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

/// `CLOCK_BOOTTIME` in milliseconds.
pub fn boottime_ms() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec.unsigned_abs() * 1_000 + time.tv_nsec.unsigned_abs() / 1_000_000
}

/// A timer of the kernel on that clock: readable once its time has come.
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// A timer that is not set.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Self(timerfd_create(TimerfdClockId::Boottime, flags)?))
    }

    /// Sets it, also to a time that has passed: then it is readable at once.
    pub fn set(&self, at_ms: u64) -> io::Result<()> {
        // Zero would switch it off.
        let at_ms = at_ms.clamp(1, i64::MAX as u64);
        let it_value =
            Timespec { tv_sec: (at_ms / 1_000) as i64, tv_nsec: (at_ms % 1_000 * 1_000_000) as i64 };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval, it_value })?;
        Ok(())
    }
}

impl std::os::fd::AsFd for Timer {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}
