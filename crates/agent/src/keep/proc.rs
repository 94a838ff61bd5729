//! Finding and signalling the processes below one, whatever sessions and groups they made for themselves.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fs,
    process::Command,
};

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
        let parent = id();
        let group = id();
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

/// Who is whose child.
#[derive(Debug, Default)]
struct Family {
    /// Of all processes, read when a list of children could not be: not every kernel has them.
    of: Option<HashMap<Pid, Vec<Pid>>>,
}

impl Family {
    fn children(&mut self, pid: Pid) -> Vec<Pid> {
        if self.of.is_none()
            && let Some(listed) = listed_children(pid)
        {
            return listed;
        }
        self.of.get_or_insert_with(families).get(&pid).cloned().unwrap_or_default()
    }
}

pub fn children(pid: Pid) -> Vec<Pid> {
    Family::default().children(pid)
}

/// The children of a process by the kernel's lists; none where it has none, or a thread has just ended.
fn listed_children(pid: Pid) -> Option<Vec<Pid>> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Some(Vec::new()) };
    let lists = threads.flatten().map(|thread| fs::read_to_string(thread.path().join("children")));
    let lists: Vec<String> = lists.collect::<Result<_, _>>().ok()?;
    Some(lists.iter().flat_map(|list| list.split_whitespace()).filter_map(pid_of).collect())
}

fn families() -> HashMap<Pid, Vec<Pid>> {
    let mut of: HashMap<Pid, Vec<Pid>> = HashMap::new();
    for pid in all() {
        if let Some(parent) = Stat::of(pid).and_then(|stat| stat.parent) {
            of.entry(parent).or_default().push(pid);
        }
    }
    of
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
    let mut family = Family::default();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for pid in family.children(parent) {
            if seen.insert(pid.as_raw_nonzero().get()) {
                found.push(Found { pid, parent });
                parents.push(pid);
            }
        }
    }
    found
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub processes: usize,
    /// Processor time so far, in milliseconds; also of those that have ended and were waited for.
    pub cpu_ms: u64,
    /// Memory in use, in bytes; what they share counts for each of them.
    pub rss_bytes: u64,
}

pub fn usage_below(root: Pid) -> Usage {
    let tick_ms = 1_000 / clock_ticks_per_second().max(1);
    let page = page_size() as u64;
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

/// Kills all below `root`; some may still be dying afterwards. A process with a pending SIGKILL cannot fork, so the
/// passes end when one of them finds no new process.
pub fn kill_below(root: Pid, except: &BTreeSet<i32>) {
    let mut killed = HashSet::new();
    for _ in 0..PASSES_AT_ONCE {
        let before = killed.len();
        for found in below(root, except) {
            if !killed.contains(&found.pid) && signal_found(found, root, None, Signal::KILL) {
                hurry(Some(found.pid));
                killed.insert(found.pid);
            }
        }
        if killed.len() == before {
            break;
        }
    }
}

/// Lets a process, or this one, run before everything else, where that is allowed: what is killed has ended only when
/// it has run once more.
pub fn hurry(pid: Option<Pid>) {
    let _ = setpriority_process(pid, NICE);
    // Where the kernel groups processes by session, a priority counts within the session only.
    let name = pid.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
    let _ = fs::write(format!("/proc/{name}/autogroup"), NICE.to_string());
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
