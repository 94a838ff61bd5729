//! Counts the processes of workers that are left at the deadline of their lease, however their agent ends.
//!
//! `solehold-bench survivors 1000 16` runs each way of ending a thousand times, sixteen at once. Each worker ignores
//! SIGTERM, and has children in its group, in a session of their own, and orphaned by a double fork. An agent is killed
//! (SIGKILL), stopped (SIGSTOP), or stays alive and gets no renewal (`setsid` alone). `survivors 1000 4 stopped` runs
//! one of the three ways alone.
//!
//! A machine that stands still runs neither keepers nor workers. So the observer, which sleeps for 2 ms at a time,
//! records how late it woke, and runs in which it was late by more than the margin of the lease are counted separately.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::net::UnixStream,
    process::{Command, Stdio},
    time::Duration,
};

use clap::{Args, ValueEnum};
use rustix::process::{Pid, Signal, kill_process};
use solehold_agent::keep::{ExitHook, Holder, Job, Keepers, LeaseTerm, Streams, kill_before};
use solehold_clock::{BootTime, deadline};

const FAMILY: &str = "trap '' TERM\nsleep 600 &\nsetsid sleep 600 &\n(setsid sh -c 'sleep 600 & exec sleep 600' &)\nwait\nsleep 600";
/// The shell, the one that it started by `setsid`, and four that sleep.
const FAMILY_MIN: usize = 5;
const TTL: Duration = Duration::from_secs(3);
const MARK: &str = "SURVIVORS_MARK";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
enum Way {
    Killed,
    Stopped,
    NotRenewed,
}

#[derive(Debug, Args)]
pub struct Options {
    /// Runs of each way
    #[arg(default_value_t = 10)]
    count: usize,
    /// Runs at once
    #[arg(default_value_t = 8)]
    at_once: usize,
    /// The one way to run
    way: Option<Way>,
}

#[derive(Debug, Args)]
pub struct Agent {
    /// When the worker's lease ends by the local clock, in milliseconds since boot
    deadline_ms: u64,
}

pub fn run(&Options { count, at_once, way }: &Options) {
    let ways = way.map_or_else(|| Way::value_variants().to_vec(), |way| vec![way]);
    for way in ways {
        report(way, count, at_once);
    }
}

/// Runs an agent with one worker, which gets no renewal.
pub fn run_agent(&Agent { deadline_ms }: &Agent) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (_ours, theirs) = UnixStream::pair().expect("a pair");
        let job = Job {
            what: "survivors".to_owned(),
            command: ["sh", "-c", FAMILY].map(Into::into).into(),
            env: Vec::new(),
            env_remove: Vec::new(),
            warn: TTL / 6,
            exit_hook: ExitHook::default(),
            folder: None,
        };
        let stop_at_ms = deadline_ms - kill_before(TTL).as_millis() as u64;
        let term = LeaseTerm { stop_at_ms, variables: Vec::new() };
        let keepers = Keepers::new().expect("a subreaper");
        let mut holder = Holder::start(&keepers, job, Streams::Own(theirs), term).expect("started");
        println!("started");
        while let Ok(None) = holder.ended().await {}
        holder.leave_nothing().await;
    });
}

/// What one run came to.
#[derive(Debug, Default)]
struct Outcome {
    is_counted: bool,
    survivors: usize,
    /// The observer itself woke too late to tell.
    stood_still: bool,
    /// From the local deadline until nothing was left; negative before it.
    gone_ms: i64,
}

fn report(way: Way, count: usize, at_once: usize) {
    let mut counted = 0;
    let mut survivors = 0;
    let mut gone_ms = Vec::new();
    let mut still = 0;
    let mut survivors_still = 0;
    let mut left = count;
    while left > 0 {
        let now = left.min(at_once);
        left -= now;
        let runs: Vec<_> = (0..now).map(|_| std::thread::spawn(move || one(way))).collect();
        for outcome in
            runs.into_iter().map(|run| run.join().expect("a run")).filter(|outcome| outcome.is_counted)
        {
            if outcome.stood_still {
                still += 1;
                survivors_still += outcome.survivors;
                continue;
            }
            counted += 1;
            survivors += outcome.survivors;
            gone_ms.push(outcome.gone_ms);
        }
    }
    gone_ms.sort_unstable();
    let at =
        |part: f64| gone_ms.get(((gone_ms.len() as f64 - 1.0) * part) as usize).copied().unwrap_or_default();
    println!(
        "{way:?}: {counted} of {count} runs, {survivors} live descendants at the lease's deadline; the last was gone {} ms (median), {} ms (p99), {} ms (worst) after the local deadline, which is 100 ms earlier; {still} more runs in which the machine stood still, with {survivors_still}",
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

fn one(way: Way) -> Outcome {
    let mark = uuid::Uuid::new_v4().to_string();
    let local = deadline::local_deadline(BootTime::now(), TTL, Duration::ZERO);
    let lease_ends = local.plus(deadline::margin(TTL, Duration::ZERO));
    let mut command = Command::new("/proc/self/exe");
    command.args(["survivors-agent", &local.as_ms().to_string()]).env(MARK, &mark).stdout(Stdio::piped());
    let mut agent = command.spawn().expect("an agent");
    let mut line = String::new();
    let stdout = agent.stdout.take().expect("piped");
    let _ = BufReader::new(stdout).read_line(&mut line);
    let mut outcome = Outcome::default();
    while descendants(&mark).len() < FAMILY_MIN && BootTime::now() < local {
        std::thread::sleep(Duration::from_millis(10));
    }
    // Too late on a machine that is too busy: nothing would be shown.
    outcome.is_counted = BootTime::now() < local && line == "started\n";
    let pid = Pid::from_child(&agent);
    match way {
        Way::Killed => drop(kill_process(pid, Signal::KILL)),
        Way::Stopped => drop(kill_process(pid, Signal::STOP)),
        Way::NotRenewed => {}
    }
    // Looking at all processes takes long: until the end only those are looked at that are known.
    let known = descendants(&mark);
    let margin_ms = deadline::margin(TTL, Duration::ZERO).as_millis() as u64;
    let mut nap = || {
        let before = BootTime::now();
        std::thread::sleep(Duration::from_millis(2));
        outcome.stood_still |= BootTime::now().as_ms() - before.as_ms() > margin_ms;
    };
    while BootTime::now() < lease_ends && known.iter().any(is_alive) {
        nap();
    }
    let gone_ms = BootTime::now().as_ms() as i64 - local.as_ms() as i64;
    while BootTime::now() < lease_ends {
        nap();
    }
    outcome.gone_ms = gone_ms;
    outcome.survivors = descendants(&mark).len();
    let _ = agent.kill();
    let _ = agent.wait();
    outcome
}

fn is_alive(pid: &u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !"ZX".contains(state))
}

/// The live processes that came from a worker: not the agent, the keeper or a shim that has not become the worker yet.
fn descendants(mark: &str) -> Vec<u32> {
    let ours = fs::read_link("/proc/self/exe").ok();
    let wanted = format!("{MARK}={mark}");
    let is_marked = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    };
    let is_ours = |pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).ok() == ours;
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| is_marked(pid) && !is_ours(pid) && is_alive(pid)).collect()
}
