//! A wall clock that a test can set, for one process and never for the machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result};

use crate::watchdog::Watchdog;

/// A wall clock for child processes, by libfaketime: it runs beside the real one at an offset that a test
/// may change while they run. Monotonic and boot time stay real, as they do when a host's clock is set.
///
/// It reaches programs that ask libc, which Rust's `SystemTime` does, and not those that ask the kernel.
#[derive(Clone, Debug)]
pub struct FakeClock {
    folder: PathBuf,
    libraries: PathBuf,
    /// Removes the folder when the last clone is gone.
    _watchdog: Arc<Watchdog>,
}

impl FakeClock {
    /// A clock that shows real time until it is set.
    pub fn new() -> Result<Self> {
        let libraries = find_libraries()?;
        let folder = tempfile::Builder::new()
            .prefix("solehold-clock-")
            // A PostgreSQL that runs as another user reads it too.
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir()?;
        let watchdog = Arc::new(Watchdog::start(folder.path(), "KILL")?);
        let clock = Self { folder: folder.keep(), libraries, _watchdog: watchdog };
        clock.set_offset_seconds(0)?;
        Ok(clock)
    }

    /// Sets the clock this far from real time; running processes see it when they next read the clock.
    pub fn set_offset_seconds(&self, offset: i64) -> Result<()> {
        self.set_offset_ms(offset * 1_000)
    }

    /// As [`Self::set_offset_seconds`], to the millisecond.
    pub fn set_offset_ms(&self, offset: i64) -> Result<()> {
        // By rename, so that no process reads half a number.
        let next = self.folder.join("next");
        fs::write(&next, format!("{:+.3}\n", offset as f64 / 1_000.0))
            .context("cannot write the fake clock")?;
        fs::rename(&next, self.file()).context("cannot set the fake clock")
    }

    /// Makes a program run by this clock, threads included.
    ///
    /// libfaketime leaves two small files in `/dev/shm`, named after the process; the servers of this crate
    /// remove them.
    pub fn apply(&self, command: &mut Command) {
        self.apply_library(command, "libfaketimeMT.so.1");
    }

    /// The same for a program without threads that reads the clock in signal handlers, where the lock of
    /// the threaded library could block for ever: PostgreSQL.
    pub(crate) fn apply_without_threads(&self, command: &mut Command) {
        self.apply_library(command, "libfaketime.so.1");
    }

    fn apply_library(&self, command: &mut Command, library: &str) {
        command
            .env("LD_PRELOAD", self.libraries.join(library))
            .env("FAKETIME_TIMESTAMP_FILE", self.file())
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("NO_FAKE_STAT", "1");
    }

    fn file(&self) -> PathBuf {
        self.folder.join("offset")
    }
}

fn find_libraries() -> Result<PathBuf> {
    let per_architecture = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let elsewhere = ["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(|path| Path::new(path).to_owned());
    per_architecture
        .chain(elsewhere)
        .map(|path| path.join("faketime"))
        .find(|path| path.join("libfaketimeMT.so.1").exists())
        .context("libfaketime is not here: install the Debian package `faketime`")
}
