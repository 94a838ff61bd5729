//! What the kernel says of a process, and signals to it and its children.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

/// A process and its children. PostgreSQL has no grandchildren, and nor do we.
pub(crate) fn family(pid: Pid) -> Vec<Pid> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| Pid::from_raw(child.parse().ok()?));
    std::iter::once(pid).chain(children).collect()
}

/// True when nothing of the process runs any more; a zombie has ended.
pub(crate) fn ended(pid: Pid) -> bool {
    matches!(state(pid), None | Some('Z' | 'X'))
}

/// True when the process stands still, by SIGSTOP or because it has ended.
pub(crate) fn stands_still(pid: Pid) -> bool {
    matches!(state(pid), None | Some('T' | 'Z' | 'X'))
}

/// Sends a signal; a process that has ended does not mind.
pub(crate) fn signal(pids: &[Pid], signal: Signal) {
    for pid in pids {
        let _ = kill_process(*pid, signal);
    }
}

/// The letter after the name in `/proc/PID/stat`; the name may hold spaces and parentheses.
fn state(pid: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}
