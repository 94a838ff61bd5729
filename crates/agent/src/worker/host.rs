//! One run of a worker: its keeper, its sockets and its output, in one task.

use std::{
    fs, io,
    os::unix::net::UnixStream as StdStream,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::process::Pid;
use solehold_clock::BootTime;
use tokio::{
    net::{UnixDatagram, UnixListener, UnixStream},
    process::{ChildStderr, ChildStdout},
    sync::{mpsc, watch},
    task::JoinHandle,
    time::timeout,
};

use super::{
    link::{HEARD_MAX, Heard, Link},
    notify::{self, DATAGRAM_BYTES_MAX},
    output,
    protocol::ToWorker,
};
use crate::{
    keep::{ExitHook, Holder, Job, JobEnd, Keepers, LeaseTerm, Streams},
    machine::{News, WorkerId},
};

/// Messages that wait for the task of a worker.
const MESSAGES_MAX: usize = 256;
/// How long the last lines of the output are waited for.
const OUTPUT_WAIT: Duration = Duration::from_secs(1);
/// The number of the connection that the worker has inherited.
const INHERITED: u64 = 0;

#[derive(Debug)]
pub struct Run {
    pub id: WorkerId,
    pub run: u32,
    pub job: Job,
    /// A folder of its own, for its sockets.
    pub folder: PathBuf,
    /// At its start.
    pub desired: DesiredState,
}

/// Desired state of a worker; a newer value replaces an older one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredState {
    /// Until when it may run.
    pub term: LeaseTerm,
    /// By when it must have ended, whatever renewals come.
    pub bound: Option<BootTime>,
    /// What its keeper runs if the agent dies.
    pub exit_hook: ExitHook,
    /// Stop it, within this time.
    pub stop: Option<Duration>,
}

#[derive(Debug)]
pub struct Host {
    pub run: u32,
    /// Changed by the driver, followed by the run's task.
    pub desired: watch::Sender<DesiredState>,
    messages: mpsc::Sender<ToWorker>,
    /// The pid of the keeper, once there is one.
    keeper: watch::Receiver<Option<Pid>>,
}

impl Host {
    /// Starts a run, which reports to `news`.
    pub fn start(keepers: &Keepers, run: Run, news: mpsc::Sender<(WorkerId, u32, News)>) -> Self {
        let (desired, desired_states) = watch::channel(run.desired.clone());
        let (messages, to_tell) = mpsc::channel(MESSAGES_MAX);
        let (tell_keeper, keeper) = watch::channel(None);
        let keepers = keepers.clone();
        let number = run.run;
        tokio::spawn(async move {
            let id = run.id;
            let number = run.run;
            let end = host(&keepers, run, desired_states, to_tell, tell_keeper, &news).await;
            let end = end.unwrap_or_else(|error| JobEnd::NotStarted(error.to_string()));
            let _ = news.send((id, number, News::Ended(end))).await;
        });
        Self { run: number, desired, messages, keeper }
    }

    /// Sends a message to the worker; false if earlier messages are still unread.
    pub fn tell(&self, message: ToWorker) -> bool {
        self.messages.try_send(message).is_ok()
    }

    /// The pid of the keeper, above all that comes from the worker.
    pub fn keeper(&self) -> Option<Pid> {
        *self.keeper.borrow()
    }
}

struct Sockets {
    listener: UnixListener,
    notify: UnixDatagram,
    heard: mpsc::Receiver<Heard>,
    tell_heard: mpsc::Sender<Heard>,
    inherited: Link,
    /// Has it spoken over the inherited one?
    has_spoken: bool,
    connected: Option<Link>,
    count: u64,
}

impl Sockets {
    fn open(folder: &Path, ours: StdStream) -> io::Result<Self> {
        let socket = socket_path(folder);
        let notify = notify_path(folder);
        for path in [&socket, &notify] {
            let _ = fs::remove_file(path);
        }
        ours.set_nonblocking(true)?;
        let (tell_heard, heard) = mpsc::channel(HEARD_MAX);
        let inherited = Link::new(INHERITED, UnixStream::from_std(ours)?, tell_heard.clone());
        Ok(Self {
            listener: UnixListener::bind(socket)?,
            notify: UnixDatagram::bind(notify)?,
            heard,
            tell_heard,
            inherited,
            has_spoken: false,
            connected: None,
            count: INHERITED,
        })
    }

    fn link(&self) -> &Link {
        self.connected.as_ref().unwrap_or(&self.inherited)
    }

    /// What the worker does next; dropped and called again, nothing is lost.
    async fn next(&mut self) -> Vec<News> {
        let mut datagram = [0; DATAGRAM_BYTES_MAX];
        tokio::select! {
            accepted = self.listener.accept() => match accepted {
                Ok((stream, _)) => {
                    self.count += 1;
                    self.connected = Some(Link::new(self.count, stream, self.tell_heard.clone()));
                    vec![News::Connected]
                }
                Err(_) => Vec::new(),
            },
            Some((number, message)) = self.heard.recv() => self.take(number, message),
            count = self.notify.recv(&mut datagram) => {
                let count = count.unwrap_or_default();
                notify::read(&datagram[..count]).into_iter().map(News::Notified).collect()
            }
        }
    }

    fn take(&mut self, number: u64, message: Result<super::FromWorker, super::MessageError>) -> Vec<News> {
        let is_first = number == INHERITED && !self.has_spoken;
        self.has_spoken |= is_first;
        if number != self.link().number {
            return Vec::new();
        }
        let first = is_first.then_some(News::Connected);
        let said = match message {
            Ok(said) => Some(News::Said(said)),
            Err(error) => {
                self.link().tell(&ToWorker::Error { message: error.to_string() });
                None
            }
        };
        first.into_iter().chain(said).collect()
    }
}

pub fn socket_path(folder: &Path) -> PathBuf {
    folder.join("socket")
}

pub fn notify_path(folder: &Path) -> PathBuf {
    folder.join("notify")
}

async fn host(
    keepers: &Keepers,
    run: Run,
    mut desired_states: watch::Receiver<DesiredState>,
    mut messages: mpsc::Receiver<ToWorker>,
    tell_keeper: watch::Sender<Option<Pid>>,
    news: &mpsc::Sender<(WorkerId, u32, News)>,
) -> io::Result<JobEnd> {
    let (ours, theirs) = StdStream::pair()?;
    let mut sockets = Sockets::open(&run.folder, ours)?;
    let mut desired = run.desired;
    let name = run.job.what.clone();
    let mut holder = Holder::start(keepers, run.job, Streams::Own(theirs), desired.term.clone())?;
    tell_keeper.send_replace(Some(holder.keeper()));
    let outputs = drain_output(&mut holder, &name)?;
    let ended = loop {
        tokio::select! {
            ended = holder.ended() => match ended {
                Ok(None) => {}
                Ok(Some(ended)) => break Ok(ended),
                Err(error) => break Err(error),
            },
            changed = desired_states.changed() => {
                if changed.is_err() {
                    // The agent is about to end. The keeper ends everything when its socket closes, and then releases
                    // what the worker had.
                    return Ok(JobEnd::Lost(None));
                }
                let next = desired_states.borrow_and_update().clone();
                follow(&mut holder, &desired, &next)?;
                desired = next;
            }
            Some(message) = messages.recv() => {
                if !sockets.link().tell(&message) {
                    tracing::warn!(worker = name, "worker is not reading its socket; message dropped");
                }
            }
            all = sockets.next() => {
                for one in all {
                    let _ = news.send((run.id, run.run, one)).await;
                }
            }
        }
    };
    holder.leave_nothing().await;
    for output in outputs {
        let _ = timeout(OUTPUT_WAIT, output).await;
    }
    ended
}

/// Tells the keeper what has changed.
fn follow(holder: &mut Holder, before: &DesiredState, next: &DesiredState) -> io::Result<()> {
    if before.bound != next.bound {
        holder.bound(next.bound)?;
    }
    if before.term != next.term {
        holder.extend(next.term.clone())?;
    }
    if before.exit_hook != next.exit_hook {
        holder.set_exit_hook(next.exit_hook.clone())?;
    }
    match next.stop {
        Some(grace) if before.stop != next.stop => holder.stop(grace),
        _ => Ok(()),
    }
}

fn drain_output(holder: &mut Holder, name: &str) -> io::Result<Vec<JoinHandle<()>>> {
    let Some((stdout, stderr)) = holder.output() else { return Ok(Vec::new()) };
    Ok(vec![
        tokio::spawn(output::drain(ChildStdout::from_std(stdout)?, name.to_owned(), "stdout")),
        tokio::spawn(output::drain(ChildStderr::from_std(stderr)?, name.to_owned(), "stderr")),
    ])
}
