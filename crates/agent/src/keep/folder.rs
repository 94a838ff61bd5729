//! A folder that a program shares with its keepers: the last of them to end removes it. Where all of them were killed,
//! the next program that makes one does.
//!
//! Each holds a shared lock on a file in it, which the kernel takes back when a process ends, however it ends.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, flock},
    process::getuid,
};
use uuid::Uuid;

/// The file that is locked. It is locked before it has this name: without it a folder is not for others to remove.
const LOCK: &str = "in-use";

/// A folder that is in use for as long as this value is there.
#[derive(Debug)]
pub struct SharedFolder {
    path: PathBuf,
    lock: File,
}

impl SharedFolder {
    /// Makes a folder in `parent` whose name begins with `prefix`, and removes unused ones like it.
    pub fn make(parent: &Path, prefix: &str) -> io::Result<Self> {
        remove_unused(parent, prefix);
        let random = Uuid::new_v4().simple().to_string();
        let path = parent.join(format!("{prefix}{}", &random[..8]));
        // It contains sockets: other users must not connect to them.
        DirBuilder::new().mode(0o700).create(&path)?;
        let new = path.join("new");
        let lock = File::create(&new)?;
        flock(&lock, FlockOperation::LockShared)?;
        fs::rename(new, path.join(LOCK))?;
        Ok(Self { path, lock })
    }

    /// Uses the folder of another process.
    pub fn join(path: &Path) -> io::Result<Self> {
        let lock = File::open(path.join(LOCK))?;
        flock(&lock, FlockOperation::NonBlockingLockShared)?;
        Ok(Self { path: path.to_owned(), lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Ends its use, and removes it; false if another process still uses it.
    pub fn leave(&self) -> bool {
        let is_last = flock(&self.lock, FlockOperation::NonBlockingLockExclusive).is_ok();
        if is_last {
            let _ = fs::remove_dir_all(&self.path);
        }
        is_last
    }
}

fn remove_unused(parent: &Path, prefix: &str) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let is_ours = entry.metadata().is_ok_and(|seen| seen.is_dir() && seen.uid() == getuid().as_raw());
        if is_ours && entry.file_name().to_string_lossy().starts_with(prefix) {
            let _ = SharedFolder::join(&entry.path()).map(|unused| unused.leave());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_stays_while_anyone_uses_it_and_is_removed_by_the_last() {
        let parent = tempfile::tempdir().expect("a folder");
        let make = || SharedFolder::make(parent.path(), "agent-").expect("made");
        let agent = make();
        let keeper = SharedFolder::join(agent.path()).expect("it is there");
        let path = agent.path().to_owned();
        drop(agent);
        let next = make();
        assert!(path.exists(), "the keeper of a killed agent uses it");
        assert!(!SharedFolder::join(&path).expect("it is there").leave() && keeper.leave());
        assert!(!path.exists() && next.path().exists());
        let left = next.path().to_owned();
        drop(next);
        let other = parent.path().join("other-folder");
        fs::create_dir(&other).expect("made");
        fs::create_dir(parent.path().join("agent-of-before")).expect("made");
        let last = make();
        assert!(!left.exists(), "nobody uses it any more");
        assert!(other.exists() && parent.path().join("agent-of-before").exists(), "not of this kind");
        last.leave();
        assert!(!last.path().exists());
    }
}
