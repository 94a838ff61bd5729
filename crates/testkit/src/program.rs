//! A program under test, as a process of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;

use crate::server::Server;

const START: Duration = Duration::from_secs(60);
const END: Duration = Duration::from_secs(60);

/// A running program. It is killed when this value is dropped; its output is shown if the test panics.
#[derive(Debug)]
pub struct Program {
    server: Server,
    said: String,
}

impl Program {
    /// Starts `command`, of which program, arguments and environment count, in a folder of its own, and waits until it
    /// prints a line that begins with `ready`.
    pub async fn start(name: &'static str, command: &Command, ready: &str) -> Result<Self> {
        Self::start_in(Server::new(name, "KILL")?, command, ready).await
    }

    pub(crate) async fn start_in(server: Server, command: &Command, ready: &str) -> Result<Self> {
        server.spawn(command, None)?;
        let rest = |line: &String| line.strip_prefix(ready).map(str::to_owned);
        let said = server.wait_ready(START, || server.output().find_map(rest)).await?;
        Ok(Self { server, said })
    }

    /// The rest of the line by which it said that it is ready.
    pub fn said(&self) -> &str {
        &self.said
    }

    /// The process, if it runs.
    pub fn pid(&self) -> Result<u32> {
        Ok(self.server.pid()?.as_raw_nonzero().get().unsigned_abs())
    }

    /// Asks it to end (SIGTERM) and waits until it has. [`Program::logs`] then has everything it printed.
    pub async fn terminate(&self) -> Result<ExitStatus> {
        self.server.end_by(Signal::TERM, END).await
    }

    /// Ends it with SIGKILL, and waits until it has ended. [`Program::logs`] then has everything it printed.
    pub async fn kill9(&self) -> Result<()> {
        self.server.kill9().await
    }

    /// Stops it in its tracks (SIGSTOP), as a long pause of the machine would.
    pub async fn pause(&self) -> Result<()> {
        self.server.pause().await
    }

    /// Lets it go on after [`Program::pause`].
    pub fn resume(&self) -> Result<()> {
        self.server.resume()
    }

    /// The last thousands of lines that it printed, stdout and stderr together.
    pub fn logs(&self) -> String {
        self.server.output().text()
    }
}

/// A program on `PATH`, or in one of the folders that are not on everyone's.
pub(crate) fn on_path(name: &str, more: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(more.iter().map(|folder| Path::new(folder).to_owned()));
    folders.map(|folder| folder.join(name)).find(|program| program.is_file())
}
