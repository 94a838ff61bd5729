//! The PostgreSQL store: any number of replicas over one database, without a coordinator.
//!
//! ```text
//!   batch/          WantedRows     the rows that the commands name (wanted.rs)
//!     plan.rs    -> Plan           what to lock, mostly remembered (cache.rs)            0 or 1 round trip
//!     lock.rs    -> LockedRows     lock, load, read the clock                            1 round trip
//!     mod.rs     -> BatchDecision  decide: here, by core
//!     write.rs   -> Writes         write, leave a row in commits, COMMIT                 1 round trip
//!
//!   read/, transfer.rs   without locks: rows by name, by query, all of them; everything out and in
//!   sweep/               what has run out, what can be forgotten, and which replica's turn it is
//!   history/             is this the history that was followed so far, or was the store set back?
//!   clock/               store time over a wall clock that may be stepped
//!   schema/              the tables and how they came to be
//!   connection/          the connections, and which server each leads to
//!   statements.rs        every fixed statement
//!   tables/              each table described once; rows as core has them
//! ```
//!
//! Each of these imports only from those below it.
//!
//! **Stored**, in the schema `solehold`: the clock's one row (offset, epoch), the last commits (revision, time),
//! ceilings of store time, sessions, holders, resources (what was declared of each, rarely written), `leases` (one
//! narrow row per resource with all that is judged under a lock), waiters in line, state documents, spent requests,
//! records, events, and whose turn it is to sweep.
//! **Not stored**: whether a lease or a session is live (the time decides), the token of a lease apart from the
//! resource's last token (they are the same while it is held), the deadline of a lease on a session (it is the
//! session's), renewals as events (rule 19), and what this process remembers to save a query: a locked row must confirm
//! that before it is used.
//!
//! **Locks** (rule 10): session rows by id, holder rows by name, lease rows by resource, the clock's row last and only
//! by batches that may make events. Those are serialized by it from the moment they know their time until they have
//! committed, so what only they change may be read without a lock once it is held. Renewals never wait for it. Missing
//! rows are not inserted beforehand: a batch that finds none looks again under the clock's lock, without which none can
//! be made.
//!
//! **Isolation**: READ COMMITTED is enough and is what is usually there; under a stricter default, failures to
//! serialize are tried again. **A lost COMMIT**: a batch with events inserts a row with an id of its own into
//! `commits`; if no answer comes, the same row is inserted again, which waits for the first and shows whether it was
//! there. A batch of renewals is simply run again.
//!
//! No LISTEN, no advisory locks, no functions, no triggers.

mod batch;
mod clock;
mod connection;
mod fault;
mod history;
mod read;
mod schema;
mod statements;
mod sweep;
mod tables;
mod transfer;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

pub use self::{
    clock::pace,
    connection::{pool::CONNECTIONS_MAX, target::Target},
    schema::SCHEMA_VERSION,
};
use async_trait::async_trait;
use parking_lot::Mutex;
use solehold_core::{command::Footprint, key::Name, record::Record};
use tokio::sync::{Semaphore, watch};
use uuid::Uuid;

use self::{
    batch::{cache::Cache, wanted::WantedRows},
    clock::Point,
    connection::{
        connect::Connector,
        pool::{Conn, LentConn, Pool, Purpose},
    },
    fault::Fault,
    history::KnownHistory,
    pace::Timekeeper,
    statements::Sql,
    sweep::{SweepProgress, spent::SpentRequests},
    tables::{columns::CursorPart, part, rows, unreadable},
};
use crate::{
    clock::{BootTime, RetryPauses},
    flow::{Exporter, Outlet},
    history::{Bar, TTL_MAX_MS},
    observe::Lane,
    store::{
        BatchDecision, Cursor, Decider, EventPage, EventQuery, HolderPage, HolderQuery, Import, LoadedRows,
        Nominations, ResourcePage, ResourceQuery, Retention, Store, StoreError, Usage,
    },
};

/// How often the history is read while a watcher waits for commits of other replicas.
const NEWS_EVERY: Duration = Duration::from_millis(50);
/// A wait for news ends after this in any case.
const NEWS_WAIT: Duration = Duration::from_secs(1);
/// How many attempts are made to open a store that other replicas open, too.
const OPEN_ATTEMPTS: u32 = 20;

/// How far its clock may run ahead of a holder's unnoticed, within one lease (rule 2).
pub const CLOCK_SLACK: Duration = Duration::from_millis(clock::pace::TOLERANCE_MS.unsigned_abs());

/// How a [`PostgresStore`] is opened.
#[derive(Debug, Clone, Copy, Default)]
pub struct PostgresOptions {
    /// Accept a server with `fsync = off`, which can lose what it confirmed. For tests.
    pub allow_unsafe_durability: bool,
    pub failover: Failover,
    /// The longest ttl that may be requested. Unless given, it is the stored one, or [`TTL_MAX_MS`]. After a failover
    /// or a restore, no command is decided for the longest ttl that any server of the store was given.
    pub ttl_max_ms: Option<u64>,
    /// Refuse a database in which there is no store, instead of making one.
    pub must_exist: bool,
}

/// Whether commits can be lost when a standby takes over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Failover {
    /// The standby may lack the last ones: nothing is granted until leases that were lost have run out.
    #[default]
    Lossy,
    /// Only a standby that every commit waited for is ever promoted: nothing is lost.
    Lossless,
}

/// Rows in PostgreSQL.
pub struct PostgresStore {
    pool: Pool,
    cache: Cache,
    time: Mutex<Timekeeper>,
    /// One claim at a time.
    claiming: tokio::sync::Mutex<()>,
    options: PostgresOptions,
    /// The longest ttl that may be asked for.
    ttl_max_ms: AtomicU64,
    /// The history that is followed.
    history: Mutex<KnownHistory>,
    /// Where the history stands, as far as this process has seen.
    head: watch::Sender<Cursor>,
    /// When each task of the sweep was last done.
    sweep_progress: Mutex<SweepProgress>,
    /// Spent requests, counted.
    spent: Mutex<SpentRequests>,
    /// The id of this replica among those that take turns.
    replica: Uuid,
    /// Snapshots and exports take turns, so that connections are left for other reads.
    bulk: Semaphore,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("head", &*self.head.borrow()).finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Connects, brings the schema up to date and takes up the clock where it stopped. [`StoreError::Unavailable`]
    /// means that PostgreSQL is not there yet, and that it is worth while to try again.
    ///
    /// `url` is a connection string as libpq has them, with several hosts if there are several
    /// (`postgres://user@one,two/solehold`); the one that takes writes is used. It is never logged.
    pub async fn open(url: &str, options: PostgresOptions) -> Result<Arc<Self>, StoreError> {
        let store = Self {
            pool: Pool::new(Connector::new(url)?, options),
            cache: Cache::default(),
            time: Mutex::default(),
            claiming: tokio::sync::Mutex::default(),
            options,
            ttl_max_ms: AtomicU64::new(options.ttl_max_ms.unwrap_or(TTL_MAX_MS)),
            history: Mutex::default(),
            head: watch::Sender::new(Cursor { epoch: 0, revision: Default::default() }),
            sweep_progress: Mutex::default(),
            spent: Mutex::default(),
            replica: Uuid::new_v4(),
            bulk: Semaphore::new(read::scan::BULK_READS_MAX),
        };
        store.survey().await;
        let conn = store
            .pool
            .own_session(|identity| store.refuse_older(identity))
            .await
            .map_err(Fault::told_at_start)?;
        if options.must_exist && !schema::is_there(&conn).await.map_err(Fault::told_at_start)? {
            return Err(StoreError::Unusable("there is no store in this database".to_owned()));
        }
        schema::migrate(&conn).await.map_err(Fault::told_at_start)?;
        drop(conn);
        let mut pauses = RetryPauses::default();
        let mut attempt = 1;
        while let Err(fault) = store.take_up().await {
            // A machine that stood still between two looks at the clock takes it for stepped.
            let is_stepped = matches!(fault, Fault::Stepped);
            if !(is_stepped || fault.is_contention()) || attempt >= OPEN_ATTEMPTS {
                return Err(fault.told_at_start());
            }
            if is_stepped {
                store.mend_and_retry(&fault).await?;
            }
            attempt += 1;
            pauses.pause().await;
        }
        Ok(Arc::new(store))
    }

    /// Connects and looks whether there is a store, and changes nothing.
    pub async fn is_there(url: &str, options: PostgresOptions) -> Result<bool, StoreError> {
        let pool = Pool::new(Connector::new(url)?, options);
        let conn = pool.own_session(|_| None).await.map_err(Fault::told_at_start)?;
        schema::is_there(&conn).await.map_err(Fault::told_at_start)
    }

    /// Takes up the clock where it stopped.
    async fn take_up(&self) -> Result<(), Fault> {
        let lent = self.lend(Purpose::Write).await?;
        self.resume_clock(&lent).await?;
        self.take_ceiling(&lent).await?;
        self.take_seal(&lent).await?;
        self.keep_ttl_max(&lent).await?;
        let reading = self.read_clock(&lent).await?;
        self.time_of_retired(&reading)?;
        self.tell(reading.cursor());
        lent.give_back();
        Ok(())
    }

    /// Lends a connection that leads to the history that is known.
    async fn lend(&self, purpose: Purpose) -> Result<LentConn<'_>, Fault> {
        let (lent, is_new) = self.pool.lend(purpose, |identity| self.refuse_older(identity)).await?;
        if is_new {
            self.check_identity(&lent).await?;
        }
        Ok(lent)
    }

    /// Mends what keeps a reading from being used: a clock that was stepped, or a store that was set back.
    async fn mend(&self, fault: &Fault) -> Result<(), Fault> {
        match fault {
            Fault::SetBack => self.mend_history().await,
            _ => self.claim_ceiling(false).await,
        }
    }

    /// As [`Self::mend`], for a caller that tries again, whether or not others were in the way.
    async fn mend_and_retry(&self, fault: &Fault) -> Result<(), StoreError> {
        match self.mend(fault).await {
            Err(fault) if !fault.is_contention() => Err(fault.told()),
            _ => Ok(()),
        }
    }

    async fn read_cursor(&self, conn: &Conn) -> Result<Cursor, Fault> {
        let asked = BootTime::now();
        let rows = conn.query(Sql::Cursor, &[]).await?;
        let row = rows.first().ok_or_else(|| unreadable("the table solehold.clock has no row"))?;
        let CursorPart { epoch, revision, last_ms } = part::read(row)?;
        let cursor = Cursor { epoch, revision };
        self.history.lock().follow(Point { cursor, last_ms }, asked, BootTime::now())?;
        Ok(cursor)
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn clock_slack_ms(&self) -> u64 {
        clock::pace::TOLERANCE_MS as u64
    }

    async fn transact(
        &self,
        footprint: &Footprint,
        lane: Lane,
        decider: &mut dyn Decider,
    ) -> Result<BatchDecision, StoreError> {
        self.run(WantedRows::of(footprint), lane, decider).await
    }

    async fn load(&self, footprint: &Footprint) -> Result<LoadedRows, StoreError> {
        let wanted = &WantedRows::of(footprint);
        self.read(Purpose::Read, "reading rows", |conn| async move { self.load_once(&conn, wanted).await })
            .await
    }

    async fn find_resources(&self, query: &ResourceQuery) -> Result<ResourcePage, StoreError> {
        self.read(Purpose::Read, "finding resources", |conn| async move { self.find(&conn, query).await })
            .await
    }

    async fn find_holders(&self, query: &HolderQuery) -> Result<HolderPage, StoreError> {
        self.read(Purpose::Read, "finding holders", |conn| async move { self.find_names(&conn, query).await })
            .await
    }

    async fn records(&self, collection: &Name) -> Result<Vec<Record>, StoreError> {
        self.read(Purpose::Read, "reading records", |conn| async move {
            let rows = conn.query(Sql::CollectionRecords, &[&collection.as_str()]).await?;
            rows.iter().map(rows::record).collect()
        })
        .await
    }

    async fn events(&self, query: &EventQuery) -> Result<EventPage, StoreError> {
        self.read(Purpose::Read, "reading events", |conn| async move { self.read_events(&conn, query).await })
            .await
    }

    async fn news(&self, after: Cursor) -> Result<Cursor, StoreError> {
        let mut head = self.head.subscribe();
        let began = BootTime::now();
        loop {
            head.mark_unchanged();
            let now = self
                .read(Purpose::Write, "looking for news", |conn| async move { self.read_cursor(&conn).await })
                .await?;
            self.tell(now);
            let waited = BootTime::now().since(began);
            if now != after || waited >= NEWS_WAIT {
                return Ok(now);
            }
            // Woken by a commit of this process; those of others are seen by looking.
            let _ = tokio::time::timeout(NEWS_EVERY.min(NEWS_WAIT - waited), head.changed()).await;
        }
    }

    async fn due(&self, limit: usize) -> Result<Nominations, StoreError> {
        self.read(Purpose::Write, "looking for what is due", |conn| async move {
            self.nominate(&conn, limit).await
        })
        .await
    }

    async fn maintain(&self, retention: &Retention) -> Result<(), StoreError> {
        self.maintain_once(retention).await
    }

    async fn usage(&self, tenant: Option<&Name>) -> Result<Usage, StoreError> {
        self.read(Purpose::Read, "counting", |conn| async move { self.count(&conn, tenant).await }).await
    }

    async fn scan(&self, query: &ResourceQuery, pages: &Outlet<ResourcePage>) -> Result<(), StoreError> {
        self.scan_all(query, pages).await
    }

    async fn export(&self, rows: &mut Exporter) -> Result<(), StoreError> {
        self.export_all(rows).await
    }

    async fn import(&self, import: Import) -> Result<(), StoreError> {
        self.import_all(import).await
    }

    fn ttl_max_ms(&self) -> u64 {
        self.ttl_max_ms.load(Ordering::SeqCst)
    }

    async fn lower_ttl_max(&self, ttl_max_ms: u64) -> Result<(), StoreError> {
        self.lower_ttl_max_to(ttl_max_ms).await.map_err(Fault::told)
    }

    fn seal(&self, cursor: Cursor) -> Option<String> {
        self.seal_cursor(cursor)
    }

    async fn witness(&self, sealed: &str) -> Result<(), StoreError> {
        self.witness_cursor(sealed).await
    }

    async fn retire(&self, to: &str) -> Result<(), StoreError> {
        self.retire_to(to).await.map_err(Fault::told)
    }

    fn cursor(&self) -> Cursor {
        self.history.lock().seen().unwrap_or(*self.head.borrow())
    }

    async fn set_back(&self, seen: Option<Cursor>, bar: Bar) -> Result<(), StoreError> {
        self.told_set_back(seen, bar).await.map_err(Fault::told)
    }

    async fn close(&self) {
        self.give_turn_back().await;
        self.pool.close();
    }
}
