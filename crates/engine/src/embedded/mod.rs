//! The journal of the embedded store: one SQLite file in a folder that one process at a time may have (rule 24).
//!
//! What is in the file, for people who open it with `sqlite3`:
//! - `log`: every batch since the last snapshot, as rows after it, in order; appended and synced before anyone is
//!   answered.
//! - `sessions`, `holders`, `resources`, `requests`, `records`, `waiters`: the snapshot, views of the one table `rows`.
//!   After a clean stop the snapshot is all there is, and the log is empty.
//! - `lease_events`: the history of events, one line per event; a view of `event_batches`, which has the events of a
//!   batch in one row. `event_index` is for looking events up.
//! - `meta`: the clock's mark, the epoch, the revision, the floor of the events, and which incarnation of the folder it
//!   is.
//!
//! The state is the snapshot and then the log. Appending was measured at ten times the speed of updates in place; the
//! snapshot is brought up to date once in a while, from memory, and the log is emptied in the same transaction.

mod batches;
mod folder;
mod history;
mod incarnation;
mod log;
mod pace;
mod snapshot;
mod trail;
mod version_3;

use std::{io::Read as _, path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior, params};
use solehold_core::{
    ledger::{Dirty, Ledger},
    time::{Revision, StoreTime},
};

use crate::{
    clock::BootTime,
    history::Seal,
    resident::{Entry, Fold, Image, Journal, JournaledEvents, Mark, RowId, Unfolded},
    store::{Cursor, Retention, StoreError},
};

pub use folder::{Lock, sync_names};
use incarnation::Incarnation;
use pace::DiskPace;
pub use snapshot::SCHEMA_VERSION;

const FILE: &str = "solehold.db";

/// Older versions of SQLite can corrupt a database in WAL mode.
const SQLITE_LEAST: i32 = 3_051_003;

/// Pages of 4 KiB that are written ahead before they are copied to their places.
const WAL_PAGES_MAX: u32 = 8_192;

/// A large append does not keep more memory than this.
const JSON_BYTES_KEPT: usize = 1024 * 1024;

#[derive(Debug, Clone, Copy)]
pub struct FolderLimits {
    /// The log is folded into the snapshot when it is larger than this.
    pub log_bytes_max: usize,
    /// Events that are dropped in one round at most.
    pub drop_events_max: u64,
    /// Events that are entered in the index in one round at most.
    pub enter_events_max: u64,
    /// The file may have this many pages of 4 KiB; no bound but the disk's, if none.
    pub pages_max: Option<u32>,
    /// An append that takes no longer than this is quick: where many are, small ones are made in place.
    pub quick: Duration,
}

impl Default for FolderLimits {
    fn default() -> Self {
        Self {
            log_bytes_max: 8 * 1024 * 1024,
            drop_events_max: 20_000,
            enter_events_max: 10_000,
            pages_max: None,
            quick: pace::QUICK,
        }
    }
}

/// A data folder that this process has.
pub struct Folder {
    /// None once it is closed.
    db: Arc<Mutex<Option<Connection>>>,
    limits: FolderLimits,
    cursor: Cursor,
    /// Rows that the log has and the snapshot lacks.
    unfolded: Unfolded,
    /// More of them, as they were appended: they are sorted only when the log is folded.
    unsorted: Vec<RowId>,
    log_bytes: usize,
    /// The number of the last line of the log. A number is not used twice while the folder is open, so that a line that
    /// was removed from outside leaves a gap.
    log_seq: i64,
    /// What appends encode into, kept for its memory.
    json: Vec<u8>,
    pace: DiskPace,
    /// How many events there were at most when the history stood at a revision: counting them takes long.
    counted: Option<(u64, Revision)>,
    history: Arc<history::Reader>,
    incarnation: Incarnation,
    /// Whether it was told from a copy already.
    is_known: bool,
    /// Held for as long as the process has the folder.
    lock: Option<Lock>,
}

impl std::fmt::Debug for Folder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Folder").field("cursor", &self.cursor).finish_non_exhaustive()
    }
}

impl Folder {
    /// Whether there is a store in the folder.
    pub fn is_there(path: &Path) -> bool {
        path.join(FILE).is_file()
    }

    /// Opens a data folder, making it if there is none. Refused while another process has it.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Self::open_with(path, FolderLimits::default())
    }

    pub fn open_with(path: &Path, limits: FolderLimits) -> Result<Self, StoreError> {
        let lock = Lock::take(path)?;
        Self::open_locked(path, limits, lock).map_err(|error| or_full_disk(path, error))
    }

    fn open_locked(path: &Path, limits: FolderLimits, lock: Lock) -> Result<Self, StoreError> {
        if rusqlite::version_number() < SQLITE_LEAST {
            let text = format!("SQLite {} is too old: 3.51.3 is the least", rusqlite::version());
            return Err(StoreError::Unusable(text));
        }
        let file = path.join(FILE);
        let unusable = |e: rusqlite::Error| StoreError::Unusable(format!("{}: {e}", file.display()));
        // SQLite's own files beside it get the same rights.
        let private = folder::private_file(&file);
        private.map_err(|e| StoreError::Unusable(format!("{}: {e}", file.display())))?;
        let db = Connection::open(&file).map_err(unusable)?;
        db.pragma_update(None, "journal_mode", "WAL").map_err(unusable)?;
        db.pragma_update(None, "synchronous", "FULL").map_err(unusable)?;
        // Fewer, larger checkpoints: a page that is written again and again is copied once.
        db.pragma_update(None, "wal_autocheckpoint", WAL_PAGES_MAX).map_err(unusable)?;
        if let Some(pages) = limits.pages_max {
            db.pragma_update(None, "max_page_count", pages).map_err(unusable)?;
        }
        db.set_prepared_statement_cache_capacity(64);
        snapshot::migrate(&db)?;
        Ok(Self {
            db: Arc::new(Mutex::new(Some(db))),
            limits,
            cursor: Cursor { epoch: 1, revision: Revision(0) },
            unfolded: Unfolded::default(),
            unsorted: Vec::new(),
            log_bytes: 0,
            log_seq: 0,
            json: Vec::new(),
            pace: DiskPace::new(limits.quick),
            counted: None,
            history: Arc::new(history::Reader::open(&file)?),
            incarnation: Incarnation::of(path, &file)?,
            is_known: false,
            lock: Some(lock),
        })
    }

    /// Works with the file on a thread that may wait for the disk.
    async fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let db = self.db.clone();
        let done = tokio::task::spawn_blocking(move || with(&db, work)).await;
        done.map_err(|e| StoreError::Unknown(format!("cannot write the journal: {e}")))?
    }

    fn sort_unfolded(&mut self) {
        let mut more = Dirty::default();
        for id in std::mem::take(&mut self.unsorted) {
            id.add_to(&mut more);
        }
        self.unfolded.extend(more);
    }

    fn folded(&mut self) {
        self.unfolded = Unfolded::default();
        self.log_bytes = 0;
    }
}

fn with<T>(
    db: &Mutex<Option<Connection>>,
    work: impl FnOnce(&mut Connection) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    match &mut *db.lock() {
        Some(db) => work(db),
        None => Err(StoreError::Unavailable("the data folder is closed".to_owned())),
    }
}

/// The key that seals cursors, created on first use.
fn seal_of(db: &mut Connection) -> Result<Seal, StoreError> {
    let read = "SELECT value FROM meta WHERE name = 'seal'";
    let kept: Option<String> = db.query_row(read, [], |row| row.get(0)).optional()?;
    if let Some(kept) = kept {
        let key = blake3::Hash::from_hex(&kept).map_err(|e| unreadable("seal", e))?;
        return Seal::of_key(key.as_bytes()).ok_or_else(|| unreadable("seal", "not a key"));
    }
    let seal = Seal::random();
    let key: String = seal.key().iter().map(|byte| format!("{byte:02x}")).collect();
    db.execute("INSERT INTO meta (name, value) VALUES ('seal', ?1)", params![key])?;
    Ok(seal)
}

/// Brings the snapshot up to date and empties the log.
fn fold(db: &mut Connection, fold: &Fold) -> Result<(), StoreError> {
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    snapshot::write(&tx, fold)?;
    snapshot::write_clock(&tx, &fold.entry.mark, fold.entry.cursor)?;
    tx.execute("DELETE FROM log", [])?;
    Ok(tx.commit()?)
}

#[async_trait]
impl Journal for Folder {
    fn history(&self) -> Option<Arc<dyn JournaledEvents>> {
        Some(self.history.clone())
    }

    fn load(&mut self) -> Result<Image, StoreError> {
        let (image, log) = with(&self.db, |db| {
            let mut image = snapshot::read(db)?;
            let log = log::replay(db, &mut image)?;
            image.events = trail::newest(db)?;
            if !self.is_known {
                image.set_back = self.incarnation.set_back(db, &image)?;
            }
            Ok((image, log))
        })?;
        self.is_known = true;
        self.unfolded = log.unfolded;
        self.unsorted.clear();
        self.log_bytes = log.bytes;
        // Lines that are folded by now have had their numbers, too.
        self.log_seq = self.log_seq.max(log.seq);
        self.cursor = image.cursor;
        Ok(image)
    }

    fn seal(&mut self) -> Result<Seal, StoreError> {
        with(&self.db, seal_of)
    }

    fn adopt(&mut self, now: StoreTime) -> Result<(), StoreError> {
        let Self { db, incarnation, cursor, .. } = self;
        with(db, |db| incarnation.adopt(db, *cursor, now))
    }

    async fn append(&mut self, entry: Entry) -> Result<(), StoreError> {
        let seq = self.log_seq;
        let mut json = std::mem::take(&mut self.json);
        let may_wait = self.pace.may_wait(&entry, pace::threads());
        let write = move |db: &mut Connection| {
            let began = BootTime::now();
            let (seq, bytes) = log::append(db, &entry, seq, &mut json)?;
            json.shrink_to(JSON_BYTES_KEPT);
            Ok((entry, seq, bytes, json, BootTime::now().since(began)))
        };
        // Until it has succeeded, the disk counts as slow.
        let pace = std::mem::replace(&mut self.pace, DiskPace::new(self.limits.quick));
        let (entry, seq, bytes, json, took) =
            if may_wait { with(&self.db, write)? } else { self.aside(write).await? };
        self.pace = pace;
        self.pace.took(took);
        self.unsorted.extend(entry.ids());
        self.log_seq = seq;
        self.log_bytes += bytes;
        self.json = json;
        self.cursor = entry.cursor;
        Ok(())
    }

    fn unfolded(&mut self) -> Option<&Unfolded> {
        let is_time = self.log_bytes > self.limits.log_bytes_max;
        is_time.then(|| {
            self.sort_unfolded();
            &self.unfolded
        })
    }

    fn fold(&mut self, state: &Ledger, more: Dirty, mark: Mark) -> Result<(), StoreError> {
        let now = mark.now;
        self.sort_unfolded();
        self.unfolded.extend(more);
        let folded = Fold::new(state, &self.unfolded, mark, self.cursor);
        with(&self.db, |db| fold(db, &folded))?;
        self.folded();
        self.incarnation.came_to(self.cursor, now)
    }

    async fn tidy(
        &mut self,
        folded: Option<Fold>,
        mark: Mark,
        retention: &Retention,
    ) -> Result<Option<Revision>, StoreError> {
        if let Some(folded) = folded {
            self.aside(move |db| fold(db, &folded)).await?;
            self.folded();
        }
        let cursor = self.cursor;
        let retention = *retention;
        let limits = self.limits;
        let counted = self.counted;
        let now = mark.now;
        let tidied = self.aside(move |db| {
            snapshot::write_clock(db, &mark, cursor)?;
            trail::enter(db, limits.enter_events_max)?;
            trail::drop_old(db, mark.now, cursor.revision, &retention, limits.drop_events_max, counted)
        });
        let (floor, counted) = tidied.await?;
        self.counted = counted;
        self.incarnation.came_to(cursor, now)?;
        Ok(floor)
    }

    fn set_floor(&mut self, floor: Revision) -> Result<(), StoreError> {
        let sql = "INSERT OR REPLACE INTO meta (name, value) VALUES ('floor', ?1)";
        with(&self.db, |db| Ok(db.execute(sql, params![floor.0.to_string()]).map(drop)?))
    }

    fn close(&mut self) -> Result<(), StoreError> {
        self.history.close();
        let db = self.db.lock().take();
        // The lock goes last: the next process to take the folder finds it at rest.
        let lock = self.lock.take();
        let closed = db.map_or(Ok(()), |db| db.close().map_err(|(_, error)| error.into()));
        drop(lock);
        closed
    }
}

/// A write that failed may or may not have reached the disk.
impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Unknown(format!("cannot write the journal: {error}"))
    }
}

/// The version of the schema of the store in a folder, whether a process has it or not; none if there is no store.
/// Changes nothing.
pub fn schema_version(path: &Path) -> Result<Option<u32>, StoreError> {
    let file = path.join(FILE);
    let odd = |error: &dyn std::fmt::Display| StoreError::Unusable(format!("{}: {error}", file.display()));
    let mut header = Vec::new();
    match std::fs::File::open(&file) {
        Ok(opened) => drop(opened.take(100).read_to_end(&mut header).map_err(|error| odd(&error))?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(odd(&error)),
    }
    let is_there = |suffix: &str| path.join(format!("{FILE}{suffix}")).exists();
    // A start that was cut short, as by a power loss: the next one makes the store.
    if is_there("-journal") || header.is_empty() && !is_there("-wal") {
        return Ok(None);
    }
    // What was written ahead may be newer than the header, and only SQLite can read it.
    let version = if is_there("-wal") {
        let db = Connection::open_with_flags(&file, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(|e| odd(&e))?;
        db.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(|e| odd(&e))?
    } else if header.starts_with(b"SQLite format 3\0")
        && let Some(version) = header.get(60..64).and_then(|bytes| bytes.try_into().ok())
    {
        u32::from_be_bytes(version)
    } else {
        return Err(odd(&"not a database"));
    };
    Ok(Some(version))
}

/// A disk with less room than this is full for a store that is being made.
const ROOM_BYTES_MIN: u64 = 256 * 1024;

/// Why a folder could not be opened: SQLite reports a full disk in many ways, and as an I/O error in some of them.
pub fn or_full_disk(path: &Path, error: StoreError) -> StoreError {
    let room = rustix::fs::statvfs(path).map(|disk| disk.f_bavail * disk.f_frsize);
    match room {
        Ok(bytes) if bytes < ROOM_BYTES_MIN => StoreError::Unavailable(format!(
            "the disk of data folder {} is full ({bytes} bytes left); free some space and start again ({error})",
            path.display()
        )),
        _ => error,
    }
}

/// What cannot be read is not guessed at.
fn unreadable(what: &str, error: impl std::fmt::Display) -> StoreError {
    StoreError::Unusable(format!("cannot read the data folder's {what}: {error}"))
}
