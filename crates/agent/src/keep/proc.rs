//! Finding and signalling the processes below one, whatever sessions and groups they made for themselves.

use std::{collections::BTreeSet, fs, process::Command};

use rustix::{
    io::Errno,
    param::{clock_ticks_per_second, page_size},
    process::{
        Pid, PidfdFlags, Signal, getpgrp, getpid, getppid, kill_process, kill_process_group, pidfd_open,
        pidfd_send_signal, setpriority_process,
    },
};

/// A priority as `nice` counts: before everything else.
pub const NICE: i32 = -20;

/// How often everything is killed without a pause: something that forks all the time must be caught between two forks.
const PASSES_AT_ONCE: usize = 200;

/// What `/proc/PID/stat` says that is needed here.
#[derive(Debug, Clone, Copy)]
struct Stat {
    state: char,
    parent: Option<Pid>,
    group: Option<Pid>,
}

impl Stat {
    fn of(pid: Pid) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name before may hold blanks and parentheses.
        let mut fields = text.rsplit_once(") ")?.1.split(' ');
        let state = fields.next()?.chars().next()?;
        let mut id = || pid_of(fields.next()?);
        let (parent, group) = (id(), id());
        Some(Self { state, parent, group })
    }

    fn has_ended(self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// A process and the parent by which it was found.
#[derive(Debug, Clone, Copy)]
struct Found {
    pid: Pid,
    parent: Pid,
}

/// The children of a process.
pub fn children(pid: Pid) -> Vec<Pid> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = threads.flatten().map(|thread| fs::read_to_string(thread.path().join("children")));
    let lists: Result<Vec<String>, _> = lists.collect();
    match lists {
        Ok(lists) => lists.iter().flat_map(|list| list.split_whitespace()).filter_map(pid_of).collect(),
        // A kernel without these lists, or a thread that has just ended.
        Err(_) => {
            all().into_iter().filter(|one| Stat::of(*one).is_some_and(|s| s.parent == Some(pid))).collect()
        }
    }
}

fn all() -> Vec<Pid> {
    let Ok(folder) = fs::read_dir("/proc") else { return Vec::new() };
    folder.flatten().filter_map(|entry| pid_of(entry.file_name().to_str()?)).collect()
}

/// A process that is just being reaped has the group -1, which is none.
fn pid_of(text: &str) -> Option<Pid> {
    text.parse().ok().filter(|raw| *raw > 0).and_then(Pid::from_raw)
}

/// All that is below a process, without the trees of `except`.
fn below(root: Pid, except: &BTreeSet<i32>) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    let mut seen = except.clone();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for pid in children(parent) {
            if seen.insert(pid.as_raw_nonzero().get()) {
                found.push(Found { pid, parent });
                parents.push(pid);
            }
        }
    }
    found
}

/// What processes use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// How many there are.
    pub processes: usize,
    /// Processor time so far, in milliseconds; also of those that have ended and were waited for.
    pub cpu_ms: u64,
    /// Memory in use, in bytes; what they share counts for each of them.
    pub rss_bytes: u64,
}

/// What all below a process use.
pub fn usage_below(root: Pid) -> Usage {
    let (tick_ms, page) = (1_000 / clock_ticks_per_second().max(1), page_size() as u64);
    let mut usage = Usage::default();
    for found in below(root, &BTreeSet::new()) {
        let Ok(text) = fs::read_to_string(format!("/proc/{}/stat", found.pid)) else { continue };
        let Some((_, rest)) = text.rsplit_once(") ") else { continue };
        // The first field after the name is the third of all.
        let fields: Vec<u64> = rest.split(' ').map(|field| field.parse().unwrap_or_default()).collect();
        let ticks: u64 = fields.iter().skip(11).take(4).sum();
        usage.processes += 1;
        usage.cpu_ms += ticks * tick_ms;
        usage.rss_bytes += fields.get(21).copied().unwrap_or_default() * page;
    }
    usage
}

/// Sends a signal to all below `root`, and says how many of them it reached that have not ended.
pub fn signal_below(root: Pid, except: &BTreeSet<i32>, signal: Signal) -> usize {
    below(root, except).into_iter().filter(|found| signal_found(*found, root, None, signal)).count()
}

/// Lets all below `root` run before everything else, where that is allowed: what is killed has ended only when it has
/// run once more.
pub fn hurry_below(root: Pid) {
    for Found { pid, parent } in below(root, &BTreeSet::new()) {
        if Stat::of(pid).is_some_and(|stat| stat.parent == Some(parent)) {
            let _ = setpriority_process(Some(pid), NICE);
        }
    }
}

/// Kills all below `root`; some may still be dying.
pub fn kill_below(root: Pid, except: &BTreeSet<i32>) {
    for _ in 0..PASSES_AT_ONCE {
        if signal_below(root, except, Signal::KILL) == 0 {
            break;
        }
    }
}

/// Sends a signal once to a process group, and to all below `root` that are not in it.
pub fn signal_group_and_below(group: Option<Pid>, root: Pid, signal: Signal) {
    if let Some(group) = group {
        let _ = kill_process_group(group, signal);
    }
    for found in below(root, &BTreeSet::new()) {
        signal_found(found, root, group, signal);
    }
}

/// True while something below `root` has not ended.
pub fn any_below(root: Pid, except: &BTreeSet<i32>) -> bool {
    below(root, except).into_iter().any(|found| Stat::of(found.pid).is_some_and(|stat| !stat.has_ended()))
}

/// A handle is taken before the process is looked at: its number may be somebody else's by now.
fn signal_found(found: Found, root: Pid, outside: Option<Pid>, signal: Signal) -> bool {
    let handle = match pidfd_open(found.pid, PidfdFlags::empty()) {
        Ok(handle) => Some(handle),
        Err(Errno::NOSYS) => None,
        Err(_) => return false,
    };
    let Some(stat) = Stat::of(found.pid) else { return false };
    let is_the_same = stat.parent == Some(found.parent) || stat.parent == Some(root);
    let is_reached = outside.is_some() && stat.group == outside;
    if stat.has_ended() || !is_the_same || is_reached {
        return false;
    }
    match handle {
        Some(handle) => pidfd_send_signal(handle, signal).is_ok(),
        None => kill_process(found.pid, signal).is_ok(),
    }
}

/// Sends a signal by its number to a process group whose leader has not been reaped.
pub fn signal_group(group: Pid, number: i32) {
    match Signal::from_named_raw(number) {
        Some(signal) => drop(kill_process_group(group, signal)),
        // The real-time ones have no name that safe code could say.
        None => {
            let script = r#"kill -s "$0" -- -"$1""#;
            let mut kill = Command::new("/bin/sh");
            kill.args(["-c", script, &number.to_string(), &group.to_string()]);
            // Reaped with everything else below the keeper.
            drop(kill.spawn());
        }
    }
}

/// Who else is in our process group.
pub fn peers() -> Vec<Pid> {
    let group = Some(getpgrp());
    let is_peer = |pid: &Pid| {
        *pid != getpid() && Stat::of(*pid).is_some_and(|stat| stat.group == group && !stat.has_ended())
    };
    all().into_iter().filter(is_peer).collect()
}

/// True if one of them does not wait for us, as the rest of a pipeline does not.
pub fn is_in_pipeline() -> bool {
    let mut ancestors = Vec::new();
    let mut ancestor = getppid();
    while let Some(pid) = ancestor {
        ancestors.push(pid);
        ancestor = Stat::of(pid).and_then(|stat| stat.parent);
    }
    peers().iter().any(|peer| !ancestors.contains(peer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_are_found_and_signalled_by_the_parent_that_they_have() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
        let pid = Pid::from_child(&child);
        assert!(children(getpid()).contains(&pid));
        let stat = Stat::of(pid).expect("it runs");
        assert_eq!((stat.parent, stat.has_ended()), (Some(getpid()), false));
        let stranger = Found { pid, parent: Pid::INIT };
        assert!(
            !signal_found(stranger, Pid::INIT, None, Signal::KILL),
            "found below somebody else: not the same"
        );
        assert!(signal_found(Found { pid, parent: getpid() }, getpid(), None, Signal::KILL));
        assert!(!child.wait().expect("it ends").success());
    }

    #[test]
    fn what_was_there_before_is_left_alone() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
        let pid = Pid::from_child(&child).as_raw_nonzero().get();
        let found = below(getpid(), &BTreeSet::from([pid]));
        assert!(found.iter().all(|found| found.pid.as_raw_nonzero().get() != pid));
        child.kill().expect("it runs");
        child.wait().expect("it ends");
    }

    #[test]
    fn what_is_no_process_is_none() {
        assert_eq!(pid_of("1").map(|pid| pid.as_raw_nonzero().get()), Some(1));
        for text in ["-1", "0", "", "self", "99999999999"] {
            assert_eq!(pid_of(text), None, "{text}");
        }
    }
}
