//! A command under test, and all processes that come from it, found by a mark in their environment.

use std::{
    ffi::OsString,
    fs,
    os::unix::process::ExitStatusExt,
    process::Stdio,
    sync::{Arc, Mutex},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use solehold_testkit::{Solehold, wait_for};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    task::JoinHandle,
};
use uuid::Uuid;

use crate::common::{BINARY, SOON, command};

/// Something of every sort: in the group, in a session of its own, and orphaned by a double fork. Says when all are
/// there.
pub const FAMILY: &str = r#"
    sleep 600 &
    setsid sleep 600 &
    (setsid sh -c 'sleep 600 & exec sleep 600' &)
    echo ready
    wait
    sleep 600
"#;
/// How many processes of [`FAMILY`] sleep.
pub const SLEEPERS: usize = 4;

/// A running `solehold`.
pub struct Run {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    stderr: Arc<Mutex<Vec<u8>>>,
    reading: JoinHandle<()>,
    mark: String,
}

/// How it ended.
pub struct Ended {
    /// As a shell would say it.
    pub code: i32,
    pub stderr: String,
}

impl Run {
    /// Runs arguments separated by blanks, then `--`, then a shell with this script.
    pub fn script(server: &Solehold, args: &str, script: &str) -> Result<Self> {
        let args = args.split_whitespace().chain(["--", "sh", "-c", script]);
        Self::start(server, args.map(OsString::from))
    }

    pub fn start(server: &Solehold, args: impl IntoIterator<Item = OsString>) -> Result<Self> {
        let mut run = command(args);
        run.env("SOLEHOLD_SERVER", server.url());
        Self::spawn(run)
    }

    /// The same, where the arguments name the server.
    pub fn alone(args: impl IntoIterator<Item = OsString>) -> Result<Self> {
        Self::spawn(command(args))
    }

    fn spawn(mut run: Command) -> Result<Self> {
        let mark = Uuid::new_v4().to_string();
        let mut child = run.env("HOLD_TEST_MARK", &mark).stdin(Stdio::piped()).spawn()?;
        let lines = BufReader::new(child.stdout.take().context("stdout")?).lines();
        let stderr = Arc::<Mutex<Vec<u8>>>::default();
        let heard = stderr.clone();
        let mut said = child.stderr.take().context("stderr")?;
        let reading = tokio::spawn(async move {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = said.read(&mut piece).await {
                heard.lock().unwrap_or_else(|e| e.into_inner()).extend_from_slice(&piece[..count]);
            }
        });
        Ok(Self { child, lines, stderr, reading, mark })
    }

    /// What it has written to stderr so far.
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&self.stderr.lock().unwrap_or_else(|e| e.into_inner())).into_owned()
    }

    /// The same with [`FAMILY`], once all of it is there.
    pub async fn family(server: &Solehold, args: &str, prelude: &str) -> Result<Self> {
        let mut run = Self::script(server, args, &format!("{prelude}\n{FAMILY}"))?;
        run.line("ready").await?;
        wait_for("the family", SOON, async || run.sleepers() == SLEEPERS).await?;
        Ok(run)
    }

    /// Waits for a line of its stdout; others before it are skipped.
    pub async fn line(&mut self, wanted: &str) -> Result<()> {
        while let Some(line) = self.next_line().await? {
            if line == wanted {
                return Ok(());
            }
        }
        bail!("stdout ended without {wanted:?}")
    }

    pub async fn next_line(&mut self) -> Result<Option<String>> {
        Ok(tokio::time::timeout(SOON, self.lines.next_line()).await.context("no line")??)
    }

    pub fn holder(&self) -> Result<Pid> {
        pid_of(self.child.id().context("it has ended")?)
    }

    /// The keeper: the holder's only child.
    pub fn keeper(&self) -> Result<Pid> {
        let holder = self.holder()?;
        let is_keeper = |pid: &u32| parent_of(*pid) == Some(holder) && is_ours(*pid);
        pid_of(self.marked().into_iter().find(is_keeper).context("no keeper")?)
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(self.holder()?, signal)?)
    }

    /// All processes with the mark that have not ended.
    fn marked(&self) -> Vec<u32> {
        let mark = format!("HOLD_TEST_MARK={}", self.mark);
        let has_mark = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        };
        processes().into_iter().filter(has_mark).collect()
    }

    /// What came from the command, whether it still is the shim or not.
    pub fn descendants(&self) -> Vec<u32> {
        let keeper = self.marked().into_iter().filter(|pid| is_ours(*pid));
        let ours: Vec<u32> = keeper.collect();
        self.marked().into_iter().filter(|pid| !ours.contains(pid)).collect()
    }

    pub fn sleepers(&self) -> usize {
        let is_sleep =
            |pid: &u32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|c| c.starts_with(b"sleep\0"));
        self.marked().iter().filter(|pid| is_sleep(pid)).count()
    }

    /// Waits until nothing of the command is left.
    pub async fn nothing_left(&self) -> Result<()> {
        wait_for("the command and all that came from it to be gone", SOON, async || {
            self.descendants().is_empty()
        })
        .await
    }

    /// Waits until it ends by itself, and checks that it left nothing.
    pub async fn ended(mut self) -> Result<Ended> {
        drop(self.child.stdin.take());
        let status = tokio::time::timeout(SOON, self.child.wait()).await.context("it does not end")??;
        let left = self.descendants();
        anyhow::ensure!(left.is_empty(), "left behind: {left:?}");
        tokio::time::timeout(SOON, &mut self.reading).await.context("stderr does not end")??;
        let code = status.code().or(status.signal().map(|signal| 128 + signal)).context("no code")?;
        Ok(Ended { code, stderr: self.said() })
    }
}

impl Drop for Run {
    /// A test that fails must not leave what it was to show is ended.
    fn drop(&mut self) {
        for pid in self.marked() {
            if let Ok(pid) = pid_of(pid) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

fn pid_of(pid: u32) -> Result<Pid> {
    Pid::from_raw(pid.try_into()?).context("no pid")
}

fn processes() -> Vec<u32> {
    let folder = fs::read_dir("/proc").into_iter().flatten().flatten();
    folder.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Whether it is holder or keeper: this binary, and not about to become the command.
fn is_ours(pid: u32) -> bool {
    let is_binary = fs::read_link(format!("/proc/{pid}/exe"))
        .is_ok_and(|exe| exe == fs::canonicalize(BINARY).unwrap_or_else(|_| BINARY.into()));
    let is_shim = fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|line| line.split(|byte| *byte == 0).any(|arg| arg == b"__shim"));
    is_binary && !is_shim
}

fn parent_of(pid: u32) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
    Pid::from_raw(parent)
}

impl Run {
    /// Waits until neither the command nor the keeper is left; of a holder that was killed.
    pub async fn nobody_left(&self) -> Result<()> {
        wait_for("everybody to be gone", SOON, async || self.marked().is_empty()).await
    }

    /// Waits until the keeper is there.
    pub async fn has_keeper(&self) -> Result<()> {
        wait_for("the keeper", SOON, async || self.keeper().is_ok()).await
    }
}
