//! Detects a data folder that is a copy or an earlier state of the one that was last in use (rule 23).
//!
//! ```text
//!   solehold.db, table meta    a number of this run, and which file it stands in (inode, time of birth)
//!   incarnation                the same number, and how far the history had come one second ago
//! ```
//! A copy of the folder stands in another file than it says. A database that was put back alone bears another number
//! than the file beside it, or is behind it. What cannot be told: a whole volume that was rolled back, or both files
//! written over in place. For those there is `solehold admin restored`.

use std::{
    fs,
    io::Write,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::SystemTime,
};

use rusqlite::{Connection, OptionalExtension, params};
use serde::{Deserialize, Serialize};
use solehold_core::time::StoreTime;
use uuid::Uuid;

use super::{
    folder::{private_file, sync_names},
    unreadable,
};
use crate::{
    resident::{Image, SetBack},
    store::{Cursor, StoreError},
};

/// Which file it is, as far as the file system says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FileIdentity {
    inode: u64,
    /// In nanoseconds since the Unix epoch; nothing, where the file system does not know.
    born: Option<u64>,
}

impl FileIdentity {
    fn of(file: &Path) -> Result<Self, StoreError> {
        let is = fs::metadata(file).map_err(|e| unreadable("database", e))?;
        let born = is.created().ok().and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
        Ok(Self { inode: is.ino(), born: born.map(|since| since.as_nanos() as u64) })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct DatabaseStamp {
    run: Uuid,
    place: FileIdentity,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FileStamp {
    run: Uuid,
    /// The run before, until the database has the number of this one, too.
    before: Option<Uuid>,
    cursor: Cursor,
    now: StoreTime,
}

#[derive(Debug)]
pub(super) struct Incarnation {
    path: PathBuf,
    place: FileIdentity,
    /// What was last written beside the database by this process.
    written: Option<FileStamp>,
}

impl Incarnation {
    pub(super) fn of(folder: &Path, database: &Path) -> Result<Self, StoreError> {
        Ok(Self { path: folder.join("incarnation"), place: FileIdentity::of(database)?, written: None })
    }

    /// Why what was loaded is not what was left, if it is not.
    pub(super) fn set_back(&self, db: &Connection, image: &Image) -> Result<Option<SetBack>, StoreError> {
        let within = within(db)?;
        let beside = self.beside()?;
        let Some(mark) = &image.mark else { return Ok(None) };
        let seen = beside.as_ref().map(|beside| beside.cursor);
        let why = match (within, beside) {
            // Left by a version that did not know of this.
            (None, None) => return Ok(None),
            (None, Some(_)) => "the database is older than the file beside it",
            (Some(_), None) => "the file `incarnation` beside the database is gone",
            (Some(within), _) if within.place != self.place => "the database is a copy in another file",
            (Some(within), Some(beside)) => {
                let is_its = within.run == beside.run || Some(within.run) == beside.before;
                if !is_its {
                    "the database is of another run than the file beside it"
                } else if image.cursor < beside.cursor || mark.now < beside.now {
                    "the database is behind the file beside it"
                } else {
                    return Ok(None);
                }
            }
        };
        Ok(Some(SetBack { seen, why: why.to_owned() }))
    }

    fn beside(&self) -> Result<Option<FileStamp>, StoreError> {
        match fs::read(&self.path) {
            Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|e| unreadable("incarnation", e)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unreadable("incarnation", error)),
        }
    }

    /// What was loaded goes on from here: both places get the number of this run.
    pub(super) fn adopt(
        &mut self,
        db: &Connection,
        cursor: Cursor,
        now: StoreTime,
    ) -> Result<(), StoreError> {
        let run = Uuid::new_v4();
        let before = within(db)?.map(|within| within.run);
        self.write(FileStamp { run, before, cursor, now })?;
        // The file is durable before the database has its number: after a power loss the two must not disagree. Later
        // writes only say how far the history has come, so they need no such sync.
        self.path.parent().map_or(Ok(()), sync_names).map_err(|e| self.unwritten(e))?;
        let within = DatabaseStamp { run, place: self.place.clone() };
        let text = serde_json::to_string(&within).map_err(|e| unreadable("incarnation", e))?;
        let sql = "INSERT OR REPLACE INTO meta (name, value) VALUES ('incarnation', ?1)";
        db.execute(sql, params![text])?;
        self.write(FileStamp { run, before: None, cursor, now })
    }

    /// The database has come as far as this. It is written after that, so that it is never ahead of the database.
    pub(super) fn came_to(&mut self, cursor: Cursor, now: StoreTime) -> Result<(), StoreError> {
        match &self.written {
            Some(written) => self.write(FileStamp { cursor, now, ..written.clone() }),
            None => Ok(()),
        }
    }

    fn write(&mut self, beside: FileStamp) -> Result<(), StoreError> {
        let text = serde_json::to_vec(&beside).map_err(|e| unreadable("incarnation", e))?;
        let partial = self.path.with_extension("partial");
        let write = || -> std::io::Result<()> {
            let mut file = private_file(&partial)?;
            file.set_len(0)?;
            file.write_all(&text)?;
            file.sync_data()?;
            fs::rename(&partial, &self.path)
        };
        write().map_err(|e| self.unwritten(e))?;
        self.written = Some(beside);
        Ok(())
    }

    fn unwritten(&self, error: std::io::Error) -> StoreError {
        StoreError::Unknown(format!("cannot write {}: {error}", self.path.display()))
    }
}

fn within(db: &Connection) -> Result<Option<DatabaseStamp>, StoreError> {
    let sql = "SELECT value FROM meta WHERE name = 'incarnation'";
    let found: Option<String> = db.query_row(sql, [], |r| r.get(0)).optional()?;
    found.map(|text| serde_json::from_str(&text).map_err(|e| unreadable("incarnation", e))).transpose()
}
