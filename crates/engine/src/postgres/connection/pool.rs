//! A small, bounded number of connections. A connection on which anything failed is not used again.
//!
//! Written by hand rather than with a pool crate: a connection is used only while its server is the one whose history
//! is followed, all are dropped at once after a failover, and readers and writers have separate limits over the same
//! idle connections. With a crate all of that would be hooks around it.
//!
//! A connection is idle, lent or closed. `lend` and `give_back` move it between the first two; `renew` raises the
//! generation, after which idle connections of an earlier one are closed, and lent ones when they come back.
//!
//! If none is idle, one more is made. If that fails or takes long, since a name cannot be looked up or PostgreSQL has
//! no place left, the open ones go on serving, and the caller waits for one of them.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, Semaphore, SemaphorePermit},
    task::AbortHandle,
};
use tokio_postgres::{
    Client, Row, Statement,
    types::{FromSql, ToSql},
};

use super::{
    connect::Connector,
    identity::{Identity, examine},
};
use crate::postgres::{
    PostgresOptions,
    fault::Fault,
    statements::{self, Sql},
    tables::{
        part::{self, Param, Part},
        unreadable,
    },
};

use crate::store::StoreError;

/// Connections for the lanes, the sweeper and the clock: they never wait behind readers.
const WRITERS: usize = 6;
const READERS: usize = 8;
/// The connections that a store has open at most.
pub const CONNECTIONS_MAX: usize = WRITERS + READERS;
/// Statements of other shapes that a connection keeps prepared.
const SHAPED_MAX: usize = 256;
/// One round trip takes no longer, or the server hangs.
pub(crate) const ROUND_TRIP: Duration = Duration::from_secs(3);
/// Connecting may take this long before a connection that comes back is taken in its place. Not at once: a pool in use
/// would never grow.
const PATIENCE: Duration = Duration::from_millis(250);

pub(crate) struct Conn {
    pub(crate) client: Client,
    statements: Vec<Statement>,
    /// Statements whose text depends on what is asked for.
    shaped: tokio::sync::Mutex<HashMap<String, Statement>>,
    warning: Arc<Mutex<Option<String>>>,
    task: AbortHandle,
    generation: u64,
    /// Which cluster and timeline it leads to.
    pub(crate) identity: Option<Identity>,
}

impl Drop for Conn {
    fn drop(&mut self) {
        // Not only when the last answer has come: a server that hangs would keep the socket, and its locks, for a long
        // time.
        self.task.abort();
    }
}

impl Conn {
    /// Runs a prepared statement. The request is sent when this is first polled.
    pub(crate) async fn query(&self, sql: Sql, params: &[Param<'_>]) -> Result<Vec<Row>, Fault> {
        Ok(self.client.query(&self.statements[sql as usize], params).await?)
    }

    /// As [`Self::query`], unless there is nothing to ask for.
    pub(crate) async fn query_if(
        &self,
        wanted: bool,
        sql: Sql,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Fault> {
        if wanted { self.query(sql, params).await } else { Ok(Vec::new()) }
    }

    /// Runs a prepared statement that gives no rows; returns how many it changed.
    pub(crate) async fn execute(&self, sql: Sql, params: &[Param<'_>]) -> Result<u64, Fault> {
        Ok(self.client.execute(&self.statements[sql as usize], params).await?)
    }

    /// As [`Self::execute`], unless there is nothing to do.
    pub(crate) async fn execute_if(
        &self,
        wanted: bool,
        sql: Sql,
        params: &[Param<'_>],
    ) -> Result<u64, Fault> {
        if wanted { self.execute(sql, params).await } else { Ok(0) }
    }

    /// Writes rows with a statement that takes one array per column, unless there are none.
    pub(crate) async fn write<P: Part>(&self, sql: Sql, rows: &[P]) -> Result<u64, Fault> {
        if rows.is_empty() {
            return Ok(0);
        }
        let params = part::arrays(rows);
        self.execute(sql, &part::refs(&params)).await
    }

    /// Removes rows with a statement that takes their ids, unless there are none.
    pub(crate) async fn remove<T>(&self, sql: Sql, ids: &Vec<T>) -> Result<u64, Fault>
    where
        Vec<T>: ToSql + Sync,
    {
        self.execute_if(!ids.is_empty(), sql, &[ids]).await
    }

    pub(crate) async fn simple(&self, sql: &str) -> Result<(), Fault> {
        Ok(self.client.batch_execute(sql).await?)
    }

    /// The first value of a query without parameters; none if it gives no row.
    pub(crate) async fn value<T: for<'r> FromSql<'r>>(&self, sql: &str) -> Result<Option<T>, Fault> {
        let rows = self.client.query_typed(sql, &[]).await?;
        Ok(rows.first().map(|row| row.try_get(0)).transpose()?)
    }

    /// Prepares a statement whose text depends on what is asked for, once.
    pub(crate) async fn shaped(&self, text: &str) -> Result<Statement, Fault> {
        let mut known = self.shaped.lock().await;
        if let Some(statement) = known.get(text) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(text).await?;
        if known.len() >= SHAPED_MAX {
            known.clear();
        }
        known.insert(text.to_owned(), statement.clone());
        Ok(statement)
    }

    /// The last warning since this was last asked.
    pub(crate) fn take_warning(&self) -> Option<String> {
        self.warning.lock().take()
    }

    async fn prepare(&mut self) -> Result<(), Fault> {
        let all = join_all(statements::ALL.iter().map(|text| self.client.prepare(text))).await;
        self.statements = all.into_iter().collect::<Result<_, _>>()?;
        Ok(())
    }
}

/// Bounds a round trip in time.
pub(crate) async fn in_time<T>(
    what: &'static str,
    limit: Duration,
    work: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    tokio::time::timeout(limit, work).await.map_err(|_| Fault::Slow(what))?
}

/// What a connection is for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    Write,
    Read,
}

pub(crate) struct Pool {
    connector: Connector,
    options: PostgresOptions,
    idle: Mutex<Vec<Arc<Conn>>>,
    writers: Semaphore,
    readers: Semaphore,
    /// Connections of an earlier generation are not used again.
    generation: AtomicU64,
    lent: AtomicUsize,
    /// A lent connection came back, or never will.
    returned: Notify,
}

impl Pool {
    pub(crate) fn new(connector: Connector, options: PostgresOptions) -> Self {
        Self {
            connector,
            options,
            idle: Mutex::default(),
            writers: Semaphore::new(WRITERS),
            readers: Semaphore::new(READERS),
            generation: AtomicU64::new(0),
            lent: AtomicUsize::new(0),
            returned: Notify::new(),
        }
    }

    /// A connection that is not in the pool, without statements: the schema may not be there yet. Of several hosts it
    /// leads to the first that takes writes and that `refuse` does not refuse.
    pub(crate) async fn bare(&self, refuse: impl Fn(&Identity) -> Option<Fault>) -> Result<Conn, Fault> {
        let mut why = None;
        for host in 0..self.connector.hosts() {
            match self.bare_at(host).await {
                Ok(conn) => match conn.identity.as_ref().and_then(&refuse) {
                    None => return Ok(conn),
                    // A refusal says more than a host that cannot be reached.
                    Some(refused) => why = Some(refused),
                },
                Err(fault) => why = why.or(Some(fault)),
            }
        }
        Err(why
            .unwrap_or_else(|| StoreError::Unusable("the connection string names no host".to_owned()).into()))
    }

    /// As [`Self::bare`], if connections have sessions of their own here.
    pub(crate) async fn own_session(
        &self,
        refuse: impl Fn(&Identity) -> Option<Fault>,
    ) -> Result<Conn, Fault> {
        let conn = self.bare(&refuse).await?;
        let beside = self.bare(&refuse).await?;
        refuse_shared_sessions(&conn, &beside).await?;
        Ok(conn)
    }

    /// What all hosts that can be reached, and take writes, say of themselves; nothing where there is only one.
    pub(crate) async fn survey(&self) -> Vec<Identity> {
        if self.connector.hosts() == 1 {
            return Vec::new();
        }
        let all = join_all((0..self.connector.hosts()).map(|host| self.bare_at(host))).await;
        all.into_iter().filter_map(|conn| conn.ok()?.identity.clone()).collect()
    }

    async fn bare_at(&self, host: usize) -> Result<Conn, Fault> {
        let generation = self.generation.load(Ordering::SeqCst);
        let connected = self.connector.connect(host).await?;
        let mut conn = Conn {
            client: connected.client,
            statements: Vec::new(),
            shaped: Default::default(),
            warning: connected.warning,
            task: connected.task,
            generation,
            identity: None,
        };
        let examine = examine(&conn.client, &self.options);
        conn.identity = in_time("asking who it is", ROUND_TRIP, examine).await?;
        Ok(conn)
    }

    /// Lends a connection; true if it is new.
    pub(crate) async fn lend(
        &self,
        purpose: Purpose,
        refuse: impl Fn(&Identity) -> Option<Fault>,
    ) -> Result<(LentConn<'_>, bool), Fault> {
        let no = |why: &str| StoreError::Unavailable(why.to_owned());
        let (room, busy) = match purpose {
            Purpose::Write => (&self.writers, no("all connections are busy")),
            // Leases can be renewed however many readers there are.
            Purpose::Read => {
                let last = "all connections for reads are busy".to_owned();
                (&self.readers, StoreError::Contended { attempts: 1, last })
            }
        };
        let permit = tokio::time::timeout(ROUND_TRIP, room.acquire()).await;
        let permit = permit.map_err(|_| Fault::Told(busy))?.map_err(|_| no("the store is closed"))?;
        if let Some(conn) = self.take_idle() {
            return Ok((self.lent(conn, permit), false));
        }
        let soon = async {
            tokio::time::sleep(PATIENCE).await;
            match self.next_idle().await {
                Some(conn) => conn,
                None => std::future::pending().await,
            }
        };
        let fault = tokio::select! {
            biased;
            made = self.connect(refuse) => match made {
                Ok(conn) => return Ok((self.lent(Arc::new(conn), permit), true)),
                Err(fault) => fault,
            },
            conn = soon => return Ok((self.lent(conn, permit), false)),
        };
        match tokio::time::timeout(ROUND_TRIP, self.next_idle()).await {
            Ok(Some(conn)) => Ok((self.lent(conn, permit), false)),
            _ => Err(Fault::Unconnected(Box::new(fault))),
        }
    }

    /// A new connection, with its statements.
    async fn connect(&self, refuse: impl Fn(&Identity) -> Option<Fault>) -> Result<Conn, Fault> {
        let mut conn = self.bare(refuse).await?;
        in_time("preparing statements", ROUND_TRIP, conn.prepare()).await?;
        Ok(conn)
    }

    fn lent<'a>(&'a self, conn: Arc<Conn>, permit: SemaphorePermit<'a>) -> LentConn<'a> {
        self.lent.fetch_add(1, Ordering::SeqCst);
        LentConn { conn, pool: self, _permit: permit }
    }

    /// The next connection that comes back; none once none is lent.
    async fn next_idle(&self) -> Option<Arc<Conn>> {
        loop {
            let mut returned = std::pin::pin!(self.returned.notified());
            // From here on none goes unnoticed.
            returned.as_mut().enable();
            if let Some(conn) = self.take_idle() {
                return Some(conn);
            }
            if self.lent.load(Ordering::SeqCst) == 0 {
                return None;
            }
            returned.await;
        }
    }

    fn take_idle(&self) -> Option<Arc<Conn>> {
        let generation = self.generation.load(Ordering::SeqCst);
        let mut idle = self.idle.lock();
        while let Some(conn) = idle.pop() {
            if conn.generation == generation && !conn.client.is_closed() {
                return Some(conn);
            }
        }
        None
    }

    /// Something failed. A connection that was lost was most likely cut off together with all others; one that could
    /// not be made says nothing about them.
    pub(crate) fn give_up_after(&self, fault: &Fault) {
        if !matches!(fault, Fault::Unconnected(_)) {
            self.renew();
        }
    }

    /// Gives up all connections made so far: those that are lent go when they come back.
    pub(crate) fn renew(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.idle.lock().clear();
    }

    /// No longer lends anything.
    pub(crate) fn close(&self) {
        self.writers.close();
        self.readers.close();
        self.renew();
    }
}

/// How often the two connections are compared: others may be at the same pooler, and take sessions in between.
const ROUNDS: usize = 8;

/// Refuses a pooler that does not keep a session for each of two open connections.
///
/// A pooler in transaction mode gives each transaction of a client whichever session is free. Prepared statements,
/// settings and timeouts belong to a session, so they would be missing, or another client's. What gives it away is not
/// its name but what it does: two connections that are open at once meet in one session, or one of them changes its
/// session.
async fn refuse_shared_sessions(one: &Conn, two: &Conn) -> Result<(), Fault> {
    let work = async {
        let first = [session_of(one).await?, session_of(two).await?];
        // Of two servers, sessions may have the same number.
        let is_same_server = one.identity.is_some() && one.identity == two.identity;
        let mut is_shared = is_same_server && first[0] == first[1];
        for round in 0..ROUNDS {
            // In either order, and twice in a row: a pooler may prefer the session that was used last, or first.
            let order = if round.is_multiple_of(2) { [0, 0, 1, 1] } else { [1, 0, 1, 0] };
            for at in order {
                is_shared |= session_of([one, two][at]).await? != first[at];
            }
        }
        Ok(is_shared)
    };
    if in_time("looking for a pooler", ROUND_TRIP, work).await? {
        let text = "there is a pooler in front of PostgreSQL that gives transactions of one connection to different \
                    sessions, such as PgBouncer in transaction mode: prepared statements and settings do not survive \
                    that. Connect to PostgreSQL directly, or set the pooler to session mode (pool_mode = session)";
        return Err(StoreError::Unusable(text.to_owned()).into());
    }
    Ok(())
}

/// The number of the session that a statement runs in.
async fn session_of(conn: &Conn) -> Result<i32, Fault> {
    conn.value("SELECT pg_backend_pid()").await?.ok_or_else(|| unreadable("PostgreSQL returned no session"))
}

/// A connection that goes back to its pool by [`LentConn::give_back`] and is closed otherwise: its state is not known.
pub(crate) struct LentConn<'a> {
    conn: Arc<Conn>,
    pool: &'a Pool,
    _permit: SemaphorePermit<'a>,
}

impl LentConn<'_> {
    /// Gives the connection back: no transaction is open on it.
    pub(crate) fn give_back(self) {
        if self.conn.generation == self.pool.generation.load(Ordering::SeqCst)
            && !self.conn.client.is_closed()
        {
            self.pool.idle.lock().push(self.conn.clone());
        }
    }

    /// The connection, for work that keeps a hold on it.
    pub(crate) fn conn(&self) -> Arc<Conn> {
        self.conn.clone()
    }
}

impl Drop for LentConn<'_> {
    fn drop(&mut self) {
        self.pool.lent.fetch_sub(1, Ordering::SeqCst);
        self.pool.returned.notify_waiters();
    }
}

impl std::ops::Deref for LentConn<'_> {
    type Target = Conn;
    fn deref(&self) -> &Conn {
        &self.conn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn too_many_readers_are_not_a_store_that_is_away() {
        let connector = Connector::new("postgres://ann@127.0.0.1:1/nowhere").expect("a connector");
        let pool = Pool::new(connector, PostgresOptions::default());
        let _readers = pool.readers.acquire_many(READERS as u32).await.expect("all connections for reads");
        let Err(fault) = pool.lend(Purpose::Read, |_| None).await else { panic!("none is left") };
        assert!(matches!(fault.told(), StoreError::Contended { .. }));
        let _writers = pool.writers.acquire_many(WRITERS as u32).await.expect("all connections for writes");
        let Err(fault) = pool.lend(Purpose::Write, |_| None).await else { panic!("none is left") };
        assert!(matches!(fault.told(), StoreError::Unavailable(_)), "batches that get nowhere are trouble");
    }
}
