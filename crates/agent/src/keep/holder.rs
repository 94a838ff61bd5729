//! The holder's side: starts the keeper, tells it what becomes of the lease, and sees to it that nothing is left.

use std::{
    collections::BTreeSet,
    env,
    ffi::OsString,
    fs,
    io::{self, Write, stdin},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    path::PathBuf,
    process::{Child, ChildStderr, ChildStdout, Command, Stdio},
    time::Duration,
};

use nix::sys::signal::Signal as SignalName;
use rustix::process::{Pid, Signal, getpgrp, getpid, kill_process};
use solehold_clock::BootTime;
use tokio::{sync::watch, time::sleep};
use uuid::Uuid;

use super::{
    cgroup,
    keepers::Keepers,
    plan::Plan,
    proc,
    signals::{SignalStream, letting_through},
    terminal,
    wire::{self, Available, ExitHook, Inbox, KeeperOrder, LeaseTerm, Outbox, Report, Start},
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

#[derive(Debug, Clone)]
pub struct Job {
    /// The name of the lease, for process lists.
    pub what: String,
    pub command: Vec<OsString>,
    pub env: Vec<(String, String)>,
    pub env_remove: Vec<String>,
    /// How long before the deadline it is asked to end if no renewal comes.
    pub warn: Duration,
    /// What the keeper does in the end if this process is gone by then.
    pub exit_hook: ExitHook,
    /// A folder of this process for files of the command's, if it has one.
    pub folder: Option<PathBuf>,
}

/// What a command reads, and where its output goes.
#[derive(Debug)]
pub enum Streams {
    /// Those of this process, and the terminal if it has one.
    Inherited,
    /// It reads nothing; its output is read by this process. It inherits the socket.
    Own(UnixStream),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseStatus {
    /// How long the command may run.
    pub lasting: LeaseTerm,
    /// When it was lost: how long the command has between SIGTERM and SIGKILL, if that ends before the deadline.
    pub lost: Option<Duration>,
    /// The next holder waits for it: the command gets SIGTERM, and no deadline.
    pub is_asked_for: bool,
}

/// How a command ended. None of its processes is left by then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobEnd {
    /// With this code, on its own.
    Exited(u8),
    /// It was ended because the lease was lost or ran out; its own code, if it gave one.
    Lost(Option<u8>),
    /// It was not started, because the lease was about to run out.
    TooLate,
    NotStarted(String),
    KeeperDied,
}

/// Runs the command while the lease is held.
pub async fn supervise(
    job: Job,
    mut status: watch::Receiver<LeaseStatus>,
    signals: &mut SignalStream,
) -> io::Result<JobEnd> {
    let lasting = status.borrow_and_update().lasting.clone();
    let mut holder = Holder::start(&Keepers::new()?, job, Streams::Inherited, lasting)?;
    let ended = holder.hold(&mut status, signals).await;
    // However it ended, even by an unexpected error: nothing may be left.
    holder.leave_nothing().await;
    ended
}

#[derive(Debug)]
pub struct Holder {
    keepers: Keepers,
    keeper: Child,
    socket: tokio::net::UnixStream,
    /// The same socket. A write by tokio would be given up while it does not know yet that the socket takes something.
    orders: Outbox,
    inbox: Inbox,
    plan: Plan,
    folder: PathBuf,
    cgroup: Option<PathBuf>,
    terminal_of: Option<Pid>,
    /// The command has the streams of this process, and so is stopped and continued with it.
    is_inherited: bool,
    command: Option<Pid>,
    code: Option<u8>,
    is_lost: bool,
    /// It was asked to end for the next holder.
    was_asked: bool,
    is_gone: bool,
}

impl Holder {
    /// Starts a keeper, which starts the command.
    pub fn start(keepers: &Keepers, job: Job, streams: Streams, lasting: LeaseTerm) -> io::Result<Self> {
        let name = format!("solehold-{}", Uuid::new_v4());
        let parent = job.folder.clone().unwrap_or_else(env::temp_dir);
        let folder = parent.join(&name);
        let cgroup = cgroup::folder(&name);
        let is_inherited = matches!(streams, Streams::Inherited);
        let terminal_of = is_inherited.then(|| terminal::ours(stdin())).flatten();
        let stop_at_ms = lasting.stop_at_ms;
        let warn_ms = u64::try_from(job.warn.as_millis()).unwrap_or(u64::MAX);
        let start = Start {
            command: job.command,
            env: job.env,
            env_remove: job.env_remove,
            folder: folder.clone().into_os_string(),
            shared_folder: job.folder.map(PathBuf::into_os_string),
            lasting,
            warn_ms,
            terminal_of: terminal_of.map(|group| group.as_raw_nonzero().get()),
            cgroup: cgroup.clone().map(PathBuf::into_os_string),
            exit_hook: job.exit_hook,
        };
        let (ours, theirs) = UnixStream::pair()?;
        let mut keeper = Command::new("/proc/self/exe");
        keeper.arg0(super::KEEPER_NAME).args([super::KEEPER, &job.what]);
        if is_inherited {
            // A signal to our group is not for the keeper: it is passed on once, by us.
            keeper.process_group(0);
        } else {
            // Without a group of its own it makes a session of its own.
            keeper.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let keeper = keepers.spawn(keeper.stdin(Stdio::from(OwnedFd::from(theirs))))?;
        let mut holder = Self {
            keepers: keepers.clone(),
            keeper,
            socket: tokio::net::UnixStream::from_std(nonblocking(ours.try_clone()?)?)?,
            orders: Outbox::new(ours.try_clone()?),
            inbox: Inbox::default(),
            plan: Plan::new(stop_at_ms, warn_ms),
            folder,
            cgroup,
            terminal_of,
            is_inherited,
            command: None,
            code: None,
            is_lost: false,
            was_asked: false,
            is_gone: false,
        };
        if let Err(error) = tell_start(&ours, &streams, start) {
            holder.end_keeper();
            return Err(error);
        }
        Ok(holder)
    }

    /// The pid of the keeper, above all that comes from the command.
    pub fn keeper(&self) -> Pid {
        Pid::from_child(&self.keeper)
    }

    /// The command's output, where it is read by this process; once.
    pub fn output(&mut self) -> Option<(ChildStdout, ChildStderr)> {
        self.keeper.stdout.take().zip(self.keeper.stderr.take())
    }

    /// The lease was renewed: the command may run until then.
    pub fn extend(&mut self, lasting: LeaseTerm) -> io::Result<()> {
        self.plan.extend(lasting.stop_at_ms);
        self.order(&KeeperOrder::Renewed(lasting))
    }

    /// One of several leases is lost, or the work on it has ended: all ends by then, whatever renewals come.
    pub fn bound(&mut self, bound: Option<BootTime>) -> io::Result<()> {
        let bound_ms = bound.map(BootTime::as_ms);
        self.plan.bound(bound_ms);
        self.order(&KeeperOrder::Bound(bound_ms))
    }

    /// What the keeper does in the end if this process is gone by then.
    pub fn set_exit_hook(&mut self, exit_hook: ExitHook) -> io::Result<()> {
        self.order(&KeeperOrder::ExitHook(exit_hook))
    }

    /// Asks everything to end, and kills it after the grace or at the deadline.
    pub fn stop(&mut self, grace: Duration) -> io::Result<()> {
        // A command that had ended before did all of its work under the lease.
        self.is_lost |= self.code.is_none();
        let now_ms = BootTime::now().as_ms();
        let kill_at_ms = now_ms.saturating_add(u64::try_from(grace.as_millis()).unwrap_or(u64::MAX));
        self.plan.lose(now_ms, kill_at_ms);
        self.order(&KeeperOrder::Stop(kill_at_ms))
    }

    /// Waits for a while, and does what the keeper should have done; tells how it ended once nothing is left. It may be
    /// dropped and called again.
    pub async fn ended(&mut self) -> io::Result<Option<JobEnd>> {
        self.enforce();
        self.orders.flush();
        tokio::select! {
            ready = self.socket.readable() => {
                ready?;
                let is_open = self.inbox.fill(&mut Available(&self.socket))?;
                self.read_reports(is_open)
            }
            () = sleep(LOOK_EVERY) => Ok(None),
        }
    }

    async fn hold(
        &mut self,
        status: &mut watch::Receiver<LeaseStatus>,
        signals: &mut SignalStream,
    ) -> io::Result<JobEnd> {
        loop {
            tokio::select! {
                ended = self.ended() => if let Some(ended) = ended? {
                    return Ok(ended);
                },
                number = signals.next() => self.pass_on(number)?,
                Ok(()) = status.changed() => {
                    let status = status.borrow_and_update().clone();
                    match status.lost {
                        Some(grace) => self.stop(grace)?,
                        None => self.extend(status.lasting)?,
                    }
                    if status.is_asked_for && !self.was_asked {
                        self.was_asked = true;
                        self.order(&KeeperOrder::Signal(SignalName::SIGTERM as i32))?;
                    }
                }
            }
        }
    }

    fn read_reports(&mut self, is_open: bool) -> io::Result<Option<JobEnd>> {
        while let Some(report) = self.inbox.take()? {
            match report {
                Report::Started(pid) => self.command = Pid::from_raw(pid),
                Report::NotStarted(why) => return Ok(Some(JobEnd::NotStarted(why))),
                Report::TooLate => return Ok(Some(JobEnd::TooLate)),
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
        self.order(&KeeperOrder::Signal(number))
    }

    /// As if the terminal had stopped us with the command. It goes on when we do; if there is no renewal until the
    /// deadline, the keeper ends it. A program that reads the command's output is not stopped with it.
    fn suspend(&self, signal: i32) {
        let by_terminal = [SignalName::SIGTSTP, SignalName::SIGTTIN, SignalName::SIGTTOU];
        if !self.is_inherited || !by_terminal.iter().any(|named| *named as i32 == signal) {
            return;
        }
        if let (Some(group), Some(command)) = (self.terminal_of, self.command) {
            terminal::take_back(stdin(), command, group);
        }
        stop_here();
        let _ = kill_process(getpid(), Signal::CONT);
    }

    fn order(&mut self, order: &KeeperOrder) -> io::Result<()> {
        // A keeper that reads nothing any more is noticed at the deadline.
        self.orders.send(order)?;
        Ok(())
    }

    /// The keeper does this too, and first, unless it was stopped.
    fn enforce(&mut self) {
        if BootTime::now().as_ms() < self.plan.kill_at_ms() {
            return;
        }
        self.is_lost |= self.code.is_none();
        if let Some(cgroup) = &self.cgroup {
            cgroup::kill(cgroup);
        }
        proc::kill_below(self.keeper(), &BTreeSet::new());
        let silent_ms = BootTime::now().as_ms().saturating_sub(self.plan.kill_at_ms());
        if silent_ms > KEEPER_SILENT_MAX_MS && !proc::any_below(self.keeper(), &BTreeSet::new()) {
            let _ = self.keeper.kill();
        }
    }

    fn end_keeper(&mut self) {
        // Without its orders it ends what it has, and then itself.
        let _ = self.keeper.kill();
        self.keepers.wait(&mut self.keeper);
    }

    /// Ends what a keeper that died left behind.
    pub async fn leave_nothing(&mut self) {
        if self.is_gone {
            self.keepers.wait(&mut self.keeper);
            return;
        }
        self.end_keeper();
        if let Some(cgroup) = &self.cgroup {
            cgroup::kill(cgroup);
        }
        while self.keepers.kill_orphans() {
            sleep(BETWEEN_PASSES).await;
        }
        if let (Some(group), Some(command)) = (self.terminal_of, self.command) {
            terminal::take_back(stdin(), command, group);
        }
        let _ = fs::remove_dir_all(&self.folder);
        if let Some(cgroup) = &self.cgroup {
            cgroup::remove(cgroup);
        }
    }
}

fn nonblocking(socket: UnixStream) -> io::Result<UnixStream> {
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Tells the keeper what to start, waiting until it reads.
fn tell_start(keeper: &UnixStream, streams: &Streams, start: Start) -> io::Result<()> {
    keeper.set_nonblocking(false)?;
    keeper.set_write_timeout(Some(HEAR_MAX))?;
    match streams {
        Streams::Inherited => wire::send_files(keeper, &[stdin().as_fd()])?,
        Streams::Own(socket) => {
            wire::send_files(keeper, &[fs::File::open("/dev/null")?.as_fd(), socket.as_fd()])?;
        }
    }
    let mut keeper: &UnixStream = keeper;
    keeper.write_all(&wire::line(&KeeperOrder::Start(Box::new(start)))?)?;
    keeper.set_nonblocking(true)
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
