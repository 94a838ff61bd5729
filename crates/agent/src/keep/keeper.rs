//! The process between holder and command. It outlives the holder for as long as it takes to end all its descendants.
//!
//! It has one thread, for two reasons: the kernel sends the parent-death signal when the *thread* ends that started the
//! command, and there is nothing that could hang.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write, stdin},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio, exit},
    thread,
    time::Duration,
};

use nix::sys::signal::Signal as SignalName;
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    process::{
        Pid, Signal, WaitOptions, WaitStatus, getpgrp, getpid, getpriority_process, set_child_subreaper,
        setsid, wait,
    },
    time::Timespec,
};
use solehold_clock::{BootTime, Timer};

use super::{
    cgroup, code_of_signal,
    folder::SharedFolder,
    plan::Plan,
    proc, shim,
    signals::Signals,
    terminal,
    wire::{self, ExitHook, Inbox, KeeperOrder, LeaseTerm, Report, Start},
};

/// How long the dying are given between two such bursts.
const BETWEEN_PASSES: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
/// How long a command of the exit hook may take.
const EXIT_HOOK_TIMEOUT: &str = "5s";
/// How often the removal of the shared folder is tried; another keeper may use it, or the next agent removes it.
const LEAVE_ATTEMPTS: usize = 200;
/// How often to check whether one of them has finished.
const EXIT_HOOK_POLL_EVERY: Duration = Duration::from_millis(5);

/// Starts a command on request, and exits when no process of it is left.
pub fn main() -> ! {
    // Only the holder needs to know, and it sees the socket close.
    exit(i32::from(run().is_err()))
}

fn run() -> io::Result<()> {
    set_child_subreaper(Some(getpid()))?;
    rustix::thread::set_name(&std::ffi::CString::new(super::KEEPER_NAME)?)?;
    let has_session = getpgrp() != getpid() && setsid().is_ok();
    let nice = getpriority_process(None).unwrap_or_default();
    // One that wakes late on a busy machine ends its command late.
    proc::hurry(None);
    let signals = Signals::take()?;
    let holder = UnixStream::from(stdin().as_fd().try_clone_to_owned()?);
    rustix::stdio::dup2_stdin(fs::File::open("/dev/null")?)?;
    let (stdin, socket) = wire::receive_files(&holder)?;
    holder.set_nonblocking(true)?;
    let mut keeper = Keeper {
        holder,
        inbox: Some(Inbox::default()),
        signals,
        timer: Timer::new()?,
        plan: Plan::new(u64::MAX, 0),
        stdin,
        socket,
        folder: PathBuf::new(),
        shared_folder: None,
        cgroup: None,
        terminal_of: None,
        has_session,
        nice,
        command: None,
        was_asked: false,
        exit_hook: ExitHook::default(),
    };
    let Some(start) = keeper.first_order()? else { return Ok(()) };
    match keeper.start(&start) {
        Ok(true) => keeper.keep(),
        Ok(false) => {
            keeper.remove_folders();
            keeper.tell(&Report::TooLate);
            Ok(())
        }
        Err(error) => {
            keeper.tell(&Report::NotStarted(error.to_string()));
            keeper.remove_folders();
            Err(error)
        }
    }
}

struct Keeper {
    holder: UnixStream,
    /// None once it has ended.
    inbox: Option<Inbox>,
    signals: Signals,
    timer: Timer,
    plan: Plan,
    stdin: OwnedFd,
    /// What the command inherits besides.
    socket: Option<OwnedFd>,
    folder: PathBuf,
    /// The holder's folder, which is in use as long as this process is there.
    shared_folder: Option<SharedFolder>,
    cgroup: Option<PathBuf>,
    terminal_of: Option<Pid>,
    /// It is in a session of its own, and so is the command.
    has_session: bool,
    /// The nice value of the command.
    nice: i32,
    /// None before it was started, and once it has been reaped: its pid may then belong to another process.
    command: Option<Pid>,
    was_asked: bool,
    exit_hook: ExitHook,
}

impl Keeper {
    /// Waits for the command to start; none when the holder ended first.
    fn first_order(&mut self) -> io::Result<Option<Start>> {
        loop {
            let Some(inbox) = &mut self.inbox else { return Ok(None) };
            match inbox.take()? {
                Some(KeeperOrder::Start(start)) => return Ok(Some(*start)),
                Some(other) => return Err(io::Error::other(format!("{other:?} before the start"))),
                None => self.wait(None)?,
            }
            let inbox = self.inbox.get_or_insert_default();
            if !inbox.fill(&mut self.holder)? {
                return Ok(None);
            }
        }
    }

    /// Starts the command; false if its time has run out before that.
    fn start(&mut self, start: &Start) -> io::Result<bool> {
        self.plan = Plan::new(start.lasting.stop_at_ms, start.warn_ms);
        self.folder = PathBuf::from(&start.folder);
        self.exit_hook = start.exit_hook.clone();
        self.terminal_of = start.terminal_of.and_then(Pid::from_raw);
        let shared = start.shared_folder.as_ref().map(|path| SharedFolder::join(Path::new(path)));
        self.shared_folder = shared.transpose()?;
        fs::create_dir(&self.folder)?;
        write_file(&self.folder, &start.lasting)?;
        let cgroup = start.cgroup.as_ref().map(PathBuf::from);
        self.cgroup = cgroup.filter(|folder| cgroup::make(folder).is_ok());
        if BootTime::now().as_ms() >= self.plan.term_at_ms() {
            return Ok(false);
        }
        let mut shim = Command::new("/proc/self/exe");
        for name in &start.env_remove {
            shim.env_remove(name);
        }
        let place = match (self.terminal_of, self.has_session) {
            (Some(_), _) => shim::Place::Terminal,
            (None, true) => shim::Place::Session,
            (None, false) => shim::Place::Group,
        };
        if place != shim::Place::Session {
            shim.process_group(0);
        }
        shim.args(shim::arguments(getpid(), place, self.cgroup.as_deref(), self.nice))
            .args(&start.command)
            .envs(start.env.iter().chain(&start.lasting.variables).map(|(name, value)| (name, value)))
            .env("SOLEHOLD_LEASE_FILE", lease_file(&self.folder))
            .stdin(Stdio::from(self.stdin.try_clone()?));
        // Closed here afterwards, so that the holder sees when the command closes it.
        let socket = self.socket.take();
        if let Some(socket) = &socket {
            rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::empty())?;
            shim.env(super::WORKER_FD, socket.as_raw_fd().to_string());
        }
        let pid = Pid::from_child(&shim.spawn()?);
        drop(socket);
        self.command = Some(pid);
        self.tell(&Report::Started(pid.as_raw_nonzero().get()));
        Ok(true)
    }

    fn remove_folders(&self) {
        let _ = fs::remove_dir_all(&self.folder);
        if let Some(cgroup) = &self.cgroup {
            cgroup::remove(cgroup);
        }
    }

    /// Until nothing is left. A process without children has no descendants, since orphans become its children.
    fn keep(mut self) -> io::Result<()> {
        while self.reap()? {
            let pause = self.act()?;
            self.wait(pause)?;
            self.hear()?;
            self.pass_on_signals()?;
        }
        self.remove_folders();
        self.tell(&Report::Gone);
        self.run_exit_hook();
        Ok(())
    }

    /// Releases what a holder had that is gone. If that does not succeed, its ttl ends it.
    fn run_exit_hook(&self) {
        if self.inbox.is_some() {
            return;
        }
        for args in &self.exit_hook.commands {
            self.tell_servers(args);
        }
        // A holder that was killed closes its socket a moment before its files.
        let leave = || self.shared_folder.as_ref().is_none_or(SharedFolder::leave);
        for _ in 0..LEAVE_ATTEMPTS {
            if leave() {
                break;
            }
            thread::sleep(EXIT_HOOK_POLL_EVERY);
        }
    }

    /// Runs a command for all servers at once, until one of them has done it.
    fn tell_servers(&self, args: &[String]) {
        let of = |server: &String| {
            let mut command = Command::new("/proc/self/exe");
            command.args(args).envs(self.exit_hook.env.iter().map(|(name, value)| (name, value)));
            command.env("SOLEHOLD_SERVER", server).env("SOLEHOLD_TIMEOUT", EXIT_HOOK_TIMEOUT);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()
        };
        let mut running: Vec<Child> = self.exit_hook.servers.iter().filter_map(of).collect();
        let mut is_done = false;
        while !running.is_empty() && !is_done {
            thread::sleep(EXIT_HOOK_POLL_EVERY);
            running.retain_mut(|child| {
                let ended = child.try_wait();
                is_done |= ended.as_ref().is_ok_and(|ended| ended.as_ref().is_some_and(ExitStatus::success));
                matches!(ended, Ok(None))
            });
        }
        for mut child in running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Reaps what has ended; false when no child is left.
    fn reap(&mut self) -> io::Result<bool> {
        loop {
            match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) if self.command == Some(pid) => self.command_changed(pid, status),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return Ok(true),
                Err(Errno::CHILD) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn command_changed(&mut self, pid: Pid, status: WaitStatus) {
        if let Some(signal) = status.stopping_signal() {
            return self.tell(&Report::Stopped(signal));
        }
        let code = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => code as u8,
            (None, Some(signal)) => code_of_signal(signal),
            (None, None) => return,
        };
        self.command = None;
        self.plan.leftovers(BootTime::now().as_ms());
        if let Some(group) = self.terminal_of {
            terminal::take_back(&self.stdin, pid, group);
        }
        self.tell(&Report::Exited(code));
    }

    /// Does what is due, and says how long to wait for news if not until the timer.
    fn act(&mut self) -> io::Result<Option<Timespec>> {
        let now_ms = BootTime::now().as_ms();
        if now_ms >= self.plan.kill_at_ms() {
            self.kill();
            return Ok(Some(BETWEEN_PASSES));
        }
        if !self.was_asked && now_ms >= self.plan.term_at_ms() {
            self.ask();
        }
        let next_ms = if self.was_asked { self.plan.kill_at_ms() } else { self.plan.term_at_ms() };
        self.timer.set(BootTime::from_ms(next_ms))?;
        Ok(None)
    }

    /// SIGTERM to the group and to everything else.
    fn ask(&mut self) {
        self.was_asked = true;
        if self.command.is_some() {
            self.plan.asked();
            self.tell(&Report::Warned);
        }
        for signal in [Signal::TERM, Signal::CONT] {
            // A stopped process receives no signal before SIGCONT.
            proc::signal_group_and_below(self.command, getpid(), signal);
        }
    }

    /// SIGKILL to the group and to everything else.
    fn kill(&self) {
        if let Some(cgroup) = &self.cgroup {
            cgroup::kill(cgroup);
        }
        if let Some(group) = self.command {
            proc::signal_group(group, Signal::KILL.as_raw());
        }
        proc::kill_below(getpid(), &BTreeSet::new());
    }

    /// Waits for the holder, the timer, a signal (also of a child that ended), or as long as `pause`.
    fn wait(&self, pause: Option<Timespec>) -> io::Result<()> {
        let mut sources = vec![
            PollFd::new(&self.signals, PollFlags::IN),
            PollFd::new(&self.timer, PollFlags::IN),
            PollFd::new(&self.holder, PollFlags::IN),
        ];
        if self.inbox.is_none() {
            sources.pop();
        }
        if pause.is_some() {
            // The timer's time has come and stays so.
            sources.swap_remove(1);
        }
        match poll(&mut sources, pause.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn hear(&mut self) -> io::Result<()> {
        let Some(mut inbox) = self.inbox.take() else { return Ok(()) };
        // An error is as bad as the end: either way no more renewals will be reported.
        let is_there = inbox.fill(&mut self.holder).unwrap_or(false);
        while let Ok(Some(order)) = inbox.take() {
            self.obey(order)?;
        }
        if is_there {
            self.inbox = Some(inbox);
        } else {
            self.plan.abandon(BootTime::now().as_ms());
        }
        Ok(())
    }

    fn obey(&mut self, order: KeeperOrder) -> io::Result<()> {
        match order {
            KeeperOrder::Renewed(lasting) => {
                self.plan.extend(lasting.stop_at_ms);
                // What is not told makes the command stop sooner, not later.
                let _ = write_file(&self.folder, &lasting);
            }
            KeeperOrder::Bound(bound_ms) => self.plan.bound(bound_ms),
            KeeperOrder::ExitHook(exit_hook) => self.exit_hook = exit_hook,
            KeeperOrder::Signal(number) => self.pass_on(number),
            KeeperOrder::Stop(kill_at_ms) => self.plan.lose(BootTime::now().as_ms(), kill_at_ms),
            KeeperOrder::Start(_) => return Err(io::Error::other("a second start")),
        }
        Ok(())
    }

    /// Signals to the keeper are meant for the command, like those to the holder.
    fn pass_on_signals(&mut self) -> io::Result<()> {
        while let Some(number) = self.signals.next()? {
            if number != SignalName::SIGCHLD as i32 {
                self.pass_on(number);
            }
        }
        Ok(())
    }

    fn pass_on(&self, number: i32) {
        if let Some(group) = self.command {
            proc::signal_group(group, number);
        }
    }

    fn tell(&self, report: &Report) {
        // A holder that is gone needs no reports, and a socket's buffer holds more of them than there can be.
        let _ = wire::line(report).and_then(|line| (&self.holder).write_all(&line));
    }
}

fn lease_file(folder: &Path) -> PathBuf {
    folder.join("lease")
}

/// Lines that a shell can read. A reader sees the old ones or the new ones, never a part.
fn write_file(folder: &Path, lasting: &LeaseTerm) -> io::Result<()> {
    let next = folder.join("next");
    let lines = lasting.variables.iter().map(|(name, value)| format!("{name}={value}\n"));
    fs::write(&next, lines.collect::<String>())?;
    fs::rename(next, lease_file(folder))
}
