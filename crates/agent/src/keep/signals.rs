//! The signals that this process is sent, read one by one instead of interrupting it, so that they can be passed on.

use std::{
    fs, future, io,
    os::fd::{AsFd, BorrowedFd},
    thread,
};

use nix::sys::{
    signal::{SigSet, Signal as SignalName},
    signalfd::{SfdFlags, SignalFd},
};
use rustix::event::{PollFd, PollFlags, poll};
use tokio::sync::mpsc;

/// These tell of a fault of our own and cannot wait.
const FAULTS: [SignalName; 6] = [
    SignalName::SIGSEGV,
    SignalName::SIGBUS,
    SignalName::SIGILL,
    SignalName::SIGFPE,
    SignalName::SIGSYS,
    SignalName::SIGTRAP,
];

/// Every signal that can be caught, except faults and those that our parent process had ignored.
#[derive(Debug)]
pub struct Signals(SignalFd);

impl Signals {
    /// From now on signals are kept to be read. Call it before the process has a second thread.
    pub fn take() -> io::Result<Self> {
        let mut set = SigSet::all();
        let ignored = ignored()?;
        for signal in SignalName::iterator() {
            // Ignored is inherited: under `nohup` SIGHUP is for neither us nor the command.
            if FAULTS.contains(&signal) || ignored & (1 << (signal as i32 - 1)) != 0 {
                set.remove(signal);
            }
        }
        set.thread_block()?;
        Ok(Self(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?))
    }

    fn wait(&self) -> io::Result<i32> {
        loop {
            if let Some(number) = self.next()? {
                return Ok(number);
            }
            let _ = poll(&mut [PollFd::new(self, PollFlags::IN)], None);
        }
    }

    /// The number of the next signal, if one is there.
    pub fn next(&self) -> io::Result<Option<i32>> {
        Ok(self.0.read_signal()?.map(|info| info.ssi_signo as i32))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// How many unread signals are kept here; more wait in the kernel.
const WAITING_MAX: usize = 64;

/// The signals that ask a program to end.
const ENDING: [SignalName; 4] =
    [SignalName::SIGHUP, SignalName::SIGINT, SignalName::SIGQUIT, SignalName::SIGTERM];

/// Reads signals in a thread of its own, for a program that waits for other things too.
#[derive(Debug)]
pub struct SignalStream {
    numbers: mpsc::Receiver<i32>,
    ending: Option<i32>,
}

impl SignalStream {
    /// As [`Signals::take`].
    pub fn take() -> io::Result<Self> {
        let signals = Signals::take()?;
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let read = move || {
            while let Ok(number) = signals.wait() {
                if sender.blocking_send(number).is_err() {
                    break;
                }
            }
        };
        thread::Builder::new().name("signals".to_owned()).spawn(read)?;
        Ok(Self { numbers: receiver, ending: None })
    }

    pub async fn next(&mut self) -> i32 {
        let Some(number) = self.numbers.recv().await else { return future::pending().await };
        if ENDING.iter().any(|ending| *ending as i32 == number) {
            self.ending = Some(number);
        }
        number
    }

    /// The last signal that asked this program to end, if one has come: the command that it was passed on to is not to
    /// be started again.
    pub fn ending(&self) -> Option<i32> {
        self.ending
    }
}

/// The signals that are ignored, a bit each.
fn ignored() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .ok_or_else(|| io::Error::other("/proc/self/status does not say which signals are ignored"))
}

/// Does something while this thread lets one more signal through.
pub fn letting_through(signal: SignalName, act: impl FnOnce()) {
    let mut set = SigSet::empty();
    set.add(signal);
    let _ = set.thread_unblock();
    act();
    let _ = set.thread_block();
}

pub fn unblock_all() {
    let _ = SigSet::empty().thread_set_mask();
}

/// Keeps a signal from this thread.
pub fn block(signal: SignalName) {
    let mut set = SigSet::empty();
    set.add(signal);
    let _ = set.thread_block();
}
