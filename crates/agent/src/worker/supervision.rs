//! When a worker is taken for healthy, when it is ended, and when it is started again: a machine that reads no clock.
//!
//! ```text
//!            ready                            no heartbeat: fault
//!   starting --------> running (plain process) -----------------> stopping ----> ended
//!      |  ^------------- speaks      not ready in time: fault --^                  |
//!      ^-------------- after a pause, unless it has failed too often in a row -----+
//! ```
//! Where workers may or may not speak, each is taken for a plain process, which is ready when it runs, until it speaks.

use std::time::Duration;

use serde::Deserialize;
use solehold_clock::{Backoff, BootTime};

/// Whether workers speak the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// Those that connect to the socket or notify do; all others are plain processes.
    #[default]
    Auto,
    /// All must: one that is not ready in time has failed.
    Required,
    /// None do: all are plain processes.
    None,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Bounds {
    pub protocol: Protocol,
    /// How long it may take to be ready.
    pub startup: Duration,
    /// How long it may be silent.
    pub watchdog: Duration,
    /// How long it has from SIGTERM to SIGKILL.
    pub stop: Duration,
    /// The pauses before the second restart in a row and those after it.
    pub restart: Backoff,
    /// A run of at least this time forgets the failures before it.
    pub good_run: Duration,
    /// This many failures in a row are too many.
    pub burst: u32,
}

/// What is wrong with a worker that runs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It speaks, and was not ready in time.
    #[error("the worker was not ready within {}", humantime::format_duration(*.0))]
    NotReady(Duration),
    /// No heartbeat came in time.
    #[error("the worker sent no heartbeat for {}", humantime::format_duration(*.0))]
    Silent(Duration),
    /// It asked for it.
    #[error("the worker requested a restart")]
    Asked,
}

/// What becomes of a worker that has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// It is started again at this time.
    Restart(BootTime),
    /// It has failed this often in a row: somebody else should try.
    GiveUp(u32),
}

/// One worker's runs, one after the other.
#[derive(Debug, Clone)]
pub struct Supervision {
    started_at: BootTime,
    startup_until: BootTime,
    is_ready: bool,
    /// It has not spoken, and so is taken for a plain process.
    is_assumed: bool,
    /// It is silent, and the time within which those that speak must begin to is not over.
    may_speak_yet: bool,
    /// None while no heartbeat is expected.
    silent_since: Option<BootTime>,
    /// Failures in a row.
    failures: u32,
}

impl Supervision {
    /// A worker that is started now, for the first time.
    pub fn new(now: BootTime, bounds: &Bounds) -> Self {
        let mut new = Self {
            started_at: now,
            startup_until: now,
            is_ready: false,
            is_assumed: false,
            may_speak_yet: false,
            silent_since: None,
            failures: 0,
        };
        new.start(now, bounds);
        new
    }

    pub fn start(&mut self, now: BootTime, bounds: &Bounds) {
        self.started_at = now;
        self.startup_until = now.plus(bounds.startup);
        self.is_ready = bounds.protocol != Protocol::Required;
        let may_speak = bounds.protocol == Protocol::Auto;
        (self.is_assumed, self.may_speak_yet) = (may_speak, may_speak);
        self.silent_since = None;
    }

    /// It has connected to the socket, or notified. One that was taken for a plain process until now begins to start.
    pub fn spoke(&mut self, now: BootTime, bounds: &Bounds) {
        if std::mem::take(&mut self.is_assumed) {
            self.is_ready = false;
            if !std::mem::take(&mut self.may_speak_yet) {
                self.startup_until = now.plus(bounds.startup);
            }
        }
    }

    /// Whether a silent worker may still turn out to speak: it is not restarted to be told something.
    pub fn may_speak_yet(&self) -> bool {
        self.may_speak_yet
    }

    /// It says that it is ready. From now on heartbeats are expected, if it speaks by the socket.
    pub fn ready(&mut self, now: BootTime, will_beat: bool) {
        self.is_ready = true;
        (self.is_assumed, self.may_speak_yet) = (false, false);
        if will_beat {
            self.silent_since = Some(now);
        }
    }

    /// Whether it is ready, or a plain process that cannot say so.
    pub fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// It is alive. One that has said so once must go on saying it.
    pub fn beat(&mut self, now: BootTime) {
        self.silent_since = Some(now);
    }

    /// It needs more time to start.
    pub fn extend(&mut self, now: BootTime, by: Duration) {
        if !self.is_ready {
            self.startup_until = self.startup_until.max(now.plus(by));
        }
        if let Some(since) = &mut self.silent_since {
            *since = (*since).max(now.plus(by));
        }
    }

    /// It is about to end, and need not say that it is alive.
    pub fn stopping(&mut self) {
        self.silent_since = None;
        self.is_ready = true;
    }

    pub fn poll(&mut self, now: BootTime, bounds: &Bounds) -> Option<Fault> {
        if now >= self.startup_until {
            self.may_speak_yet = false;
            if !self.is_ready {
                return Some(Fault::NotReady(bounds.startup));
            }
        }
        let is_silent = self.silent_since.is_some_and(|since| now >= since.plus(bounds.watchdog));
        is_silent.then_some(Fault::Silent(bounds.watchdog))
    }

    /// When [`Self::poll`] must be asked at the latest.
    pub fn due(&self, bounds: &Bounds) -> Option<BootTime> {
        let startup = (!self.is_ready || self.may_speak_yet).then_some(self.startup_until);
        let watchdog = self.silent_since.map(|since| since.plus(bounds.watchdog));
        startup.into_iter().chain(watchdog).min()
    }

    /// It has ended without being asked to, or because of a fault. The first restart after a good run is immediate.
    pub fn failed(&mut self, now: BootTime, bounds: &Bounds, unit: f64) -> Next {
        if self.is_ready && now.since(self.started_at) >= bounds.good_run {
            self.failures = 0;
        }
        self.failures += 1;
        match self.failures {
            failures if failures >= bounds.burst => Next::GiveUp(failures),
            1 => Next::Restart(now),
            failures => Next::Restart(now.plus(bounds.restart.wait(failures - 1, unit))),
        }
    }

    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000;

    fn bounds(protocol: Protocol) -> Bounds {
        let s = Duration::from_secs;
        Bounds {
            protocol,
            startup: s(30),
            watchdog: s(60),
            stop: s(30),
            restart: Backoff { first: s(1), cap: s(30) },
            good_run: s(10),
            burst: 5,
        }
    }

    fn at(seconds: u64) -> BootTime {
        BootTime::from_ms(seconds * SECOND)
    }

    #[test]
    fn a_worker_that_speaks_must_be_ready_in_time() {
        let bounds = bounds(Protocol::Auto);
        let mut worker = Supervision::new(at(100), &bounds);
        worker.spoke(at(101), &bounds);
        assert_eq!((worker.poll(at(129), &bounds), worker.due(&bounds)), (None, Some(at(130))));
        assert_eq!(worker.poll(at(130), &bounds), Some(Fault::NotReady(Duration::from_secs(30))));
        worker.extend(at(120), Duration::from_secs(25));
        assert_eq!(worker.poll(at(144), &bounds), None, "it asked for more time");
        worker.ready(at(144), true);
        assert_eq!(worker.poll(at(203), &bounds), None);
        assert_eq!(worker.poll(at(204), &bounds), Some(Fault::Silent(Duration::from_secs(60))));
        worker.beat(at(203));
        assert_eq!((worker.poll(at(262), &bounds), worker.due(&bounds)), (None, Some(at(263))));
        worker.stopping();
        assert_eq!((worker.poll(at(999), &bounds), worker.due(&bounds)), (None, None));
    }

    /// It was shown as starting for 30 s, and a run within that time never counted as a good one.
    #[test]
    fn a_plain_process_is_ready_when_it_runs() {
        let plain = bounds(Protocol::Auto);
        let mut worker = Supervision::new(at(0), &plain);
        assert!(worker.is_ready());
        assert_eq!((worker.may_speak_yet(), worker.due(&plain)), (true, Some(at(30))));
        for failures in 1..20 {
            assert!(matches!(worker.failed(at(failures * 20), &plain, 0.0), Next::Restart(_)), "{failures}");
            worker.start(at(failures * 20), &plain);
        }
        assert!(Supervision::new(at(0), &bounds(Protocol::None)).is_ready());
        assert!(!Supervision::new(at(0), &bounds(Protocol::Required)).is_ready());
    }

    #[test]
    fn a_worker_that_speaks_nothing_is_a_plain_process_unless_it_must_speak() {
        let plain = bounds(Protocol::Auto);
        let mut worker = Supervision::new(at(0), &plain);
        assert_eq!((worker.poll(at(31), &plain), worker.is_ready(), worker.due(&plain)), (None, true, None));
        assert!(!worker.may_speak_yet());
        worker.spoke(at(40), &plain);
        assert_eq!((worker.is_ready(), worker.due(&plain)), (false, Some(at(70))), "it was only slow");
        let required = bounds(Protocol::Required);
        let mut worker = Supervision::new(at(0), &required);
        assert!(matches!(worker.poll(at(30), &required), Some(Fault::NotReady(_))));
        let none = bounds(Protocol::None);
        let worker = Supervision::new(at(0), &none);
        assert!(worker.is_ready() && !worker.may_speak_yet());
    }

    #[test]
    fn one_that_notifies_readiness_alone_has_no_watchdog() {
        let bounds = bounds(Protocol::Auto);
        let mut worker = Supervision::new(at(0), &bounds);
        worker.ready(at(1), false);
        assert_eq!(worker.poll(at(10_000), &bounds), None);
        worker.beat(at(10_000));
        assert!(worker.poll(at(10_060), &bounds).is_some(), "it began to say that it is alive");
    }

    #[test]
    fn the_first_restart_is_immediate_and_a_loop_is_given_up() {
        let bounds = bounds(Protocol::None);
        let mut worker = Supervision::new(at(0), &bounds);
        assert_eq!(worker.failed(at(5), &bounds, 1.0), Next::Restart(at(5)));
        worker.start(at(5), &bounds);
        assert_eq!(worker.failed(at(6), &bounds, 1.0), Next::Restart(at(7)));
        worker.start(at(7), &bounds);
        assert_eq!(worker.failed(at(8), &bounds, 1.0), Next::Restart(at(10)));
        worker.start(at(10), &bounds);
        assert_eq!(worker.failed(at(20), &bounds, 1.0), Next::Restart(at(20)), "a good run forgets");
        for failures in 2..5 {
            worker.start(at(20), &bounds);
            assert!(matches!(worker.failed(at(21), &bounds, 0.0), Next::Restart(_)), "{failures}");
        }
        worker.start(at(30), &bounds);
        assert_eq!(worker.failed(at(31), &bounds, 0.0), Next::GiveUp(5));
    }
}
