//! Sees to it that a server does not outlive the process that started it.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use rustix::process::Pid;

/// A shell that waits on a pipe. When the pipe closes, because this value is dropped or because this
/// process ended in whatever way, it ends the server, if there is one, and removes the folder.
#[derive(Debug)]
pub(crate) struct Watchdog {
    shell: Child,
}

impl Watchdog {
    /// Starts to watch over `folder`; `ending` is the signal that asks the server to end.
    pub(crate) fn start(folder: &Path, ending: &str) -> Result<Self> {
        let shell = Command::new("/bin/sh")
            .args(["-c", include_str!("watchdog.sh"), "watchdog", ending])
            .arg(folder)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Signals to the test's process group are not for the watchdog.
            .process_group(0)
            .spawn()
            .context("cannot start the watchdog shell")?;
        Ok(Self { shell })
    }

    /// From now on the server is `pid`, or does not run.
    pub(crate) fn watch(&mut self, pid: Option<Pid>) -> Result<()> {
        let line = pid.map_or_else(String::new, |pid| pid.to_string());
        let pipe = self.shell.stdin.as_mut().context("the watchdog has finished")?;
        writeln!(pipe, "{line}").context("the watchdog shell is gone")
    }

    /// Ends the server, removes the folder, and waits until both are done.
    pub(crate) fn finish(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.finish();
    }
}
