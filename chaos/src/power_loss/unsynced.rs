//! Syncs that are left out of a recording on purpose: what is judged then is what a store that did not make them would
//! have done, and it must be found out.

use std::path::Path;

/// Which syncs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsynced {
    /// Of the folders above the data folder.
    FoldersAbove,
    /// Of a folder, after a file in it was renamed.
    Renames,
    /// Of the file that is renamed to `incarnation`.
    Incarnation,
    /// Of SQLite's write-ahead log.
    Log,
    /// Of the database, into which the log is copied before it is removed.
    Database,
}

impl Unsynced {
    pub const ALL: [Self; 5] =
        [Self::FoldersAbove, Self::Renames, Self::Incarnation, Self::Log, Self::Database];

    /// What is not synced, in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::FoldersAbove => "the folders above a new data folder",
            Self::Renames => "the data folder, after `incarnation` was renamed",
            Self::Incarnation => "`incarnation`, before it is renamed",
            Self::Log => "SQLite's log, before a commit is answered",
            Self::Database => "the database, before the log that was copied into it goes",
        }
    }

    /// Whether it leaves out the sync of this file or folder.
    pub(super) fn leaves_out(self, path: &Path, is_folder: bool, is_after_rename: bool) -> bool {
        let ends = |ending: &str| !is_folder && path.to_string_lossy().ends_with(ending);
        match self {
            Self::FoldersAbove => is_folder && !path.ends_with(super::DATA),
            Self::Renames => is_folder && is_after_rename,
            Self::Incarnation => ends("incarnation.partial"),
            Self::Log => ends("-wal"),
            Self::Database => ends("solehold.db"),
        }
    }
}
