//! What a reader of figures must know of the machine and the build that they come from.

use std::{num::NonZeroUsize, path::Path, thread};

/// `TMPFS_MAGIC`
const TMPFS: u64 = 0x0102_1994;

pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Why figures of stores in `folder` may mislead, and what to do about a folder that is in memory.
pub fn notes(folder: &Path, advice: &str) -> Vec<String> {
    let mut notes = Vec::new();
    if cfg!(debug_assertions) {
        notes.push("NOTE: this is a debug build; its figures say nothing about a release build".to_owned());
    }
    if rustix::fs::statfs(folder).is_ok_and(|found| found.f_type as u64 == TMPFS) {
        let folder = folder.display();
        notes.push(format!("NOTE: {folder} is in memory, so nothing is synced to a disk; {advice}"));
    }
    notes
}
