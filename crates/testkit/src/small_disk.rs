//! A disk that can be full.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::watchdog::Watchdog;

/// A disk of a few megabytes, in memory. It goes with this value, or with the process.
#[derive(Debug)]
pub struct SmallDisk {
    folder: PathBuf,
    _watchdog: Watchdog,
}

impl SmallDisk {
    /// Mounts one, for which the process has to be root.
    pub fn mount(bytes: usize) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("solehold-disk-").tempdir()?;
        let watchdog = Watchdog::start(folder.path(), "KILL")?;
        // The watchdog unmounts the disk and removes the folder.
        let disk = Self { folder: folder.keep(), _watchdog: watchdog };
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"]).arg(&disk.folder);
        let mounted = mount.stdin(Stdio::null()).output().context("cannot run mount")?;
        let words = String::from_utf8_lossy(&mounted.stderr);
        ensure!(mounted.status.success(), "cannot mount a small disk, which needs root: {}", words.trim());
        Ok(disk)
    }

    /// The folder in which it is.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Takes all the room that is left. [`Self::free`] gives it back.
    pub fn fill(&self) -> Result<()> {
        let mut filler = fs::File::create(self.filler())?;
        for size in [1 << 20, 512] {
            let block = vec![0; size];
            while filler.write_all(&block).is_ok() {}
        }
        Ok(())
    }

    /// Gives back what [`Self::fill`] took.
    pub fn free(&self) -> Result<()> {
        fs::remove_file(self.filler()).context("cannot remove what fills the disk")
    }

    fn filler(&self) -> PathBuf {
        self.folder.join("filler")
    }
}
