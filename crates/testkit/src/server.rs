//! A child process with a folder, output, signals and a watchdog: what every server here is made of.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal};

use crate::output::Output;
use crate::watchdog::Watchdog;
use crate::{proc, wait_for};

/// How long a process may take to obey a signal that it cannot refuse.
const OBEY: Duration = Duration::from_secs(30);
/// How long to wait for the last output of a server that did not become ready.
const LAST_OUTPUT: Duration = Duration::from_secs(1);
/// How many lines of output go into an error, or to stderr when a test panics.
const TAIL: usize = 60;

/// The user that a server runs as.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// A server that can be started, stopped and disturbed repeatedly, and ends with this value.
#[derive(Debug)]
pub(crate) struct Server {
    name: &'static str,
    folder: PathBuf,
    output: Output,
    running: Mutex<ChildProcess>,
}

#[derive(Debug)]
struct ChildProcess {
    child: Option<Child>,
    watchdog: Watchdog,
}

impl ChildProcess {
    /// Reaps the child if it has ended, and tells the watchdog to forget its pid.
    fn reap(&mut self) -> Result<Option<ExitStatus>> {
        let Some(child) = &mut self.child else { return Ok(None) };
        let pid = child.id();
        let Some(status) = child.try_wait()? else { return Ok(None) };
        self.child = None;
        self.watchdog.watch(None)?;
        // libfaketime leaves these.
        for file in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
            let _ = fs::remove_file(Path::new("/dev/shm").join(file));
        }
        Ok(Some(status))
    }
}

impl Server {
    /// An empty folder and no process yet; `ending` is the signal that ends it for good.
    pub(crate) fn new(name: &'static str, ending: &str) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix(&format!("solehold-{name}-")).tempdir()?;
        let watchdog = Watchdog::start(folder.path(), ending)?;
        let running = Mutex::new(ChildProcess { child: None, watchdog });
        // The watchdog removes the folder.
        Ok(Self { name, folder: folder.keep(), output: Output::default(), running })
    }

    /// The server's own folder, in which it also runs.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// What it printed.
    pub(crate) fn output(&self) -> &Output {
        &self.output
    }

    /// Starts `command`, of which program, arguments and environment count.
    pub(crate) fn spawn(&self, command: &Command, user: Option<User>) -> Result<()> {
        let mut running = self.lock();
        ensure!(running.child.is_none(), "{} runs already", self.name);
        let mut child = gated(command, &self.folder, user)
            .spawn()
            .with_context(|| format!("cannot start a shell for {}", self.name))?;
        let gate = child.stdin.take();
        self.output.follow(child.stdout.take().context("no stdout")?);
        self.output.follow(child.stderr.take().context("no stderr")?);
        let watched = running.watchdog.watch(Some(Pid::from_child(&child)));
        running.child = Some(child);
        watched?;
        // Only now may it begin: if we had died before, the gate would have closed and nothing be left behind.
        std::io::Write::write_all(&mut gate.context("no stdin")?, b"go\n").context("cannot open the gate")
    }

    /// The process, if it runs.
    pub(crate) fn pid(&self) -> Result<Pid> {
        let running = self.lock();
        let child = running.child.as_ref().with_context(|| format!("{} does not run", self.name))?;
        Ok(Pid::from_child(child))
    }

    /// Waits until `ready` gives a value; if the process ends before, that is an error with its last words.
    pub(crate) async fn wait_ready<T>(&self, timeout: Duration, ready: impl Fn() -> Option<T>) -> Result<T> {
        let what = format!("{} to be ready", self.name);
        let started = wait_for(&what, timeout, async || match self.lock().reap() {
            Ok(None) => ready().map(Ok),
            Ok(Some(status)) => Some(Err(anyhow::anyhow!("{} ended at start with {status}", self.name))),
            Err(error) => Some(Err(error)),
        });
        match started.await.and_then(|result| result) {
            Ok(value) => Ok(value),
            Err(error) => {
                // What was read so far has to do: the server may still run.
                let _ = self.output.read_to_end(LAST_OUTPUT).await;
                Err(error.context(format!("its last output:\n{}", self.output.tail(TAIL))))
            }
        }
    }

    /// Sends one signal to the main process, and waits until it has ended and all its output has been read.
    pub(crate) async fn end_by(&self, signal: Signal, timeout: Duration) -> Result<ExitStatus> {
        proc::signal(&[self.pid()?], signal);
        let what = format!("{} to end by {signal:?}", self.name);
        let status = wait_for(&what, timeout, async || self.lock().reap().transpose()).await??;
        let read = self.output.read_to_end(timeout).await;
        read.with_context(|| {
            format!("{} has ended, but something it started keeps its output open", self.name)
        })?;
        Ok(status)
    }

    /// SIGKILL to the process and all its children; waits until all have ended.
    pub(crate) async fn kill9(&self) -> Result<()> {
        let family = self.freeze().await?;
        proc::signal(&family, Signal::KILL);
        self.end_by(Signal::KILL, OBEY).await?;
        let what = format!("the children of {} to end", self.name);
        wait_for(&what, OBEY, async || family.iter().all(|pid| proc::ended(*pid))).await
    }

    /// SIGSTOP to the process and all its children; waits until all stand still.
    pub(crate) async fn pause(&self) -> Result<()> {
        let family = self.freeze().await?;
        proc::signal(&family, Signal::STOP);
        let what = format!("{} to stand still", self.name);
        wait_for(&what, OBEY, async || family.iter().all(|pid| proc::stands_still(*pid))).await
    }

    /// SIGCONT to the process and all its children.
    pub(crate) fn resume(&self) -> Result<()> {
        proc::signal(&proc::family(self.pid()?), Signal::CONT);
        Ok(())
    }

    /// Stops the main process alone, so that it neither starts nor reaps children: the family is complete,
    /// and no pid in it can become somebody else's.
    async fn freeze(&self) -> Result<Vec<Pid>> {
        let pid = self.pid()?;
        proc::signal(&[pid], Signal::STOP);
        let what = format!("{} to stop", self.name);
        wait_for(&what, OBEY, async || proc::stands_still(pid)).await?;
        if proc::ended(pid) {
            bail!("{} has ended; its last output:\n{}", self.name, self.output.tail(TAIL));
        }
        Ok(proc::family(pid))
    }

    fn lock(&self) -> MutexGuard<'_, ChildProcess> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let running = self.running.get_mut().unwrap_or_else(PoisonError::into_inner);
        running.watchdog.finish();
        if let Some(child) = &mut running.child {
            // In case somebody killed the watchdog.
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- the last output of {}\n{}---", self.name, self.output.tail(TAIL));
        }
    }
}

/// The same command behind a shell that waits for a line before it becomes the command, under the same pid.
fn gated(command: &Command, folder: &Path, user: Option<User>) -> Command {
    let mut gated = Command::new("/bin/sh");
    gated
        .args(["-c", r#"read -r go && exec "$@" </dev/null"#, "gate"])
        .arg(command.get_program())
        .args(command.get_args())
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Ctrl-C is for the test; the server ends after it, by the watchdog.
        .process_group(0);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => gated.env(name, value),
            None => gated.env_remove(name),
        };
    }
    if let Some(user) = user {
        gated.uid(user.uid).gid(user.gid);
    }
    gated
}
