//! The holder's side: starts the keeper, tells it what becomes of the lease, and sees to it that nothing is left.

use std::{
    collections::BTreeSet,
    env,
    ffi::OsString,
    fs,
    io::{self, Write, stdin},
    os::unix::{net::UnixStream, process::CommandExt},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use nix::sys::signal::Signal as SignalName;
use rustix::process::{Pid, Signal, WaitOptions, getpgrp, getpid, kill_process, set_child_subreaper, wait};
use solehold_clock::BootTime;
use tokio::{sync::watch, time::sleep};
use uuid::Uuid;

use super::{
    plan::Plan,
    proc,
    signals::{SignalStream, letting_through},
    terminal,
    wire::{self, Available, Farewell, Inbox, LeaseTerm, Order, Report, Start},
};

/// How long the keeper may take to read what it is to start.
const HEAR_MAX: Duration = Duration::from_secs(10);
/// How often the holder looks whether the keeper has done what was due, in case the keeper was stopped. Timers of this
/// sort stand still while the machine is suspended, so that it looks often rather than once.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long the dying are given.
const BETWEEN_PASSES: Duration = Duration::from_millis(5);
/// A keeper that has reported nothing this long after the kill was due is killed itself.
const KEEPER_SILENT_MAX_MS: u64 = 2_000;

/// What to run.
#[derive(Debug)]
pub struct Job {
    /// What is held, for people who list processes.
    pub what: String,
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// What is added to its environment.
    pub env: Vec<(String, String)>,
    /// What is removed from it.
    pub env_remove: Vec<String>,
    /// How long before the deadline it is asked to end if no renewal comes.
    pub warn: Duration,
    /// What the keeper does in the end if this process is gone by then.
    pub farewell: Option<Farewell>,
}

/// How the lease stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// How long the command may run.
    pub lasting: LeaseTerm,
    /// When it was lost: how long the command has between SIGTERM and SIGKILL, if that ends before the deadline.
    pub lost: Option<Duration>,
}

/// How it ended. Nothing of the command is left by then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobEnd {
    /// By itself, with this code.
    Exited(u8),
    /// It was ended because the lease was lost or ran out; its own code, if it gave one.
    Lost(Option<u8>),
    /// The keeper did not start it.
    NotStarted(String),
    /// The keeper was killed.
    KeeperDied,
}

/// Runs the command for as long as the lease stands.
pub async fn supervise(
    job: Job,
    mut standing: watch::Receiver<Standing>,
    signals: &mut SignalStream,
) -> io::Result<JobEnd> {
    let lasting = standing.borrow_and_update().lasting.clone();
    let mut holder = Holder::start(job, lasting)?;
    let ended = holder.hold(&mut standing, signals).await;
    // However it ended, even by an unexpected error: nothing may be left.
    holder.leave_nothing().await;
    ended
}

struct Holder {
    keeper: Child,
    socket: tokio::net::UnixStream,
    inbox: Inbox,
    plan: Plan,
    /// Children that this process had before, from a shell that became it.
    before: BTreeSet<i32>,
    folder: PathBuf,
    terminal_of: Option<Pid>,
    command: Option<Pid>,
    code: Option<u8>,
    is_lost: bool,
    is_gone: bool,
}

impl Holder {
    fn start(job: Job, lasting: LeaseTerm) -> io::Result<Self> {
        // Whatever is left when the keeper is killed comes to us.
        set_child_subreaper(Some(getpid()))?;
        let before = proc::children(getpid()).iter().map(|pid| pid.as_raw_nonzero().get()).collect();
        let folder = env::temp_dir().join(format!("solehold-{}", Uuid::new_v4()));
        let terminal_of = terminal::ours(stdin());
        let stop_at_ms = lasting.stop_at_ms;
        let warn_ms = u64::try_from(job.warn.as_millis()).unwrap_or(u64::MAX);
        let start = Start {
            command: job.command,
            env: job.env,
            env_remove: job.env_remove,
            folder: folder.clone().into_os_string(),
            lasting,
            warn_ms,
            terminal_of: terminal_of.map(|group| group.as_raw_nonzero().get()),
            farewell: job.farewell,
        };
        let (ours, theirs) = UnixStream::pair()?;
        // A signal to our group is not for the keeper: it is passed on once, by us.
        let mut keeper = Command::new("/proc/self/exe");
        keeper.arg0(super::KEEPER_NAME).args([super::KEEPER, &job.what]).process_group(0);
        let keeper = keeper.stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs))).spawn()?;
        ours.set_write_timeout(Some(HEAR_MAX))?;
        wire::send_file(&ours, std::os::fd::AsFd::as_fd(&stdin()))?;
        (&ours).write_all(&wire::line(&Order::Start(Box::new(start)))?)?;
        ours.set_nonblocking(true)?;
        Ok(Self {
            keeper,
            socket: tokio::net::UnixStream::from_std(ours)?,
            inbox: Inbox::default(),
            plan: Plan::new(stop_at_ms, warn_ms),
            before,
            folder,
            terminal_of,
            command: None,
            code: None,
            is_lost: false,
            is_gone: false,
        })
    }

    async fn hold(
        &mut self,
        standing: &mut watch::Receiver<Standing>,
        signals: &mut SignalStream,
    ) -> io::Result<JobEnd> {
        loop {
            self.enforce();
            tokio::select! {
                ready = self.socket.readable() => {
                    ready?;
                    let is_open = self.inbox.fill(&mut Available(&self.socket))?;
                    if let Some(ended) = self.read_reports(is_open)? {
                        return Ok(ended);
                    }
                }
                number = signals.next() => self.pass_on(number)?,
                Ok(()) = standing.changed() => {
                    let standing = standing.borrow_and_update().clone();
                    self.follow(&standing)?;
                }
                () = sleep(LOOK_EVERY) => {}
            }
        }
    }

    fn read_reports(&mut self, is_open: bool) -> io::Result<Option<JobEnd>> {
        while let Some(report) = self.inbox.take()? {
            match report {
                Report::Started(pid) => self.command = Pid::from_raw(pid),
                Report::NotStarted(why) => return Ok(Some(JobEnd::NotStarted(why))),
                Report::Stopped(signal) => self.suspend(signal),
                Report::Warned => {
                    self.plan.asked();
                    self.is_lost = true;
                }
                Report::Exited(code) => self.code = Some(code),
                Report::Gone => self.is_gone = true,
            }
        }
        Ok(match (self.is_gone, self.code) {
            (true, code) if self.is_lost => Some(JobEnd::Lost(code)),
            (true, Some(code)) => Some(JobEnd::Exited(code)),
            _ if !is_open && self.is_lost => Some(JobEnd::Lost(self.code)),
            _ if !is_open => Some(JobEnd::KeeperDied),
            _ => None,
        })
    }

    fn follow(&mut self, standing: &Standing) -> io::Result<()> {
        let Some(grace) = standing.lost else {
            self.plan.extend(standing.lasting.stop_at_ms);
            return self.order(&Order::Renewed(standing.lasting.clone()));
        };
        // A command that had ended before did all of its work under the lease.
        self.is_lost |= self.code.is_none();
        let now_ms = BootTime::now().as_ms();
        let kill_at_ms = now_ms.saturating_add(u64::try_from(grace.as_millis()).unwrap_or(u64::MAX));
        self.plan.lose(now_ms, kill_at_ms);
        self.order(&Order::Stop(kill_at_ms))
    }

    fn pass_on(&mut self, number: i32) -> io::Result<()> {
        if number == SignalName::SIGCHLD as i32 {
            return Ok(());
        }
        if number == SignalName::SIGCONT as i32
            && let (Some(_), Some(command)) = (self.terminal_of, self.command)
            && terminal::is_foreground(stdin(), getpgrp())
        {
            terminal::give(stdin(), command);
        }
        self.order(&Order::Signal(number))
    }

    /// As if the terminal had stopped us with the command. It goes on when we do; if there is no renewal until the
    /// deadline, the keeper ends it.
    fn suspend(&self, signal: i32) {
        let by_terminal = [SignalName::SIGTSTP, SignalName::SIGTTIN, SignalName::SIGTTOU];
        if !by_terminal.iter().any(|named| *named as i32 == signal) {
            return;
        }
        if let (Some(group), Some(command)) = (self.terminal_of, self.command) {
            terminal::take_back(stdin(), command, group);
        }
        stop_here();
        let _ = kill_process(getpid(), Signal::CONT);
    }

    fn order(&self, order: &Order) -> io::Result<()> {
        let line = wire::line(order)?;
        // That the keeper ended is seen where it is read from; that it does not read, at the deadline.
        let _ = self.socket.try_write(&line);
        Ok(())
    }

    /// The keeper does this too, and first, unless it was stopped.
    fn enforce(&mut self) {
        if BootTime::now().as_ms() < self.plan.kill_at_ms() {
            return;
        }
        self.is_lost |= self.code.is_none();
        let keeper = Pid::from_child(&self.keeper);
        proc::signal_below(keeper, &BTreeSet::new(), Signal::KILL);
        let silent_ms = BootTime::now().as_ms().saturating_sub(self.plan.kill_at_ms());
        if silent_ms > KEEPER_SILENT_MAX_MS && !proc::any_below(keeper, &BTreeSet::new()) {
            let _ = self.keeper.kill();
        }
    }

    /// Ends what a keeper that died left behind.
    async fn leave_nothing(&mut self) {
        if self.is_gone {
            let _ = self.keeper.wait();
            return;
        }
        // Without its orders it ends what it has, and then itself.
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
        while proc::any_below(getpid(), &self.before) {
            proc::kill_below(getpid(), &self.before);
            while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
            sleep(BETWEEN_PASSES).await;
        }
        if let (Some(group), Some(command)) = (self.terminal_of, self.command) {
            terminal::take_back(stdin(), command, group);
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Stops this process and its group, as the terminal would, until a shell continues it.
pub fn stop_here() {
    for peer in proc::peers() {
        let _ = kill_process(peer, Signal::TSTP);
    }
    letting_through(SignalName::SIGTSTP, || {
        // To this thread: the one that reads signals would take it away otherwise. Without a shell that could continue
        // us the kernel does not stop us.
        let _ = nix::sys::signal::raise(SignalName::SIGTSTP);
    });
}
