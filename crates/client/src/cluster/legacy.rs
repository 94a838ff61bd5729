//! The table of session locks that gateways had before, beside ours, while a fleet moves over without stopping.
//!
//! ```text
//!   session_locks(session_id TEXT PRIMARY KEY, owner_id TEXT, acquired_at TIMESTAMPTZ, expires_at TIMESTAMPTZ)
//!
//!   old nodes      row
//!   bridging nodes row, then lock        the row keeps them apart from old nodes, the lock from new ones
//!   new nodes           lock
//! ```
//! Every bridging node takes the row first, so that no two wait for each other. It works only while it has both. The
//! row is judged by the database's clock alone, and its local deadline counts from before it was asked for, as that of
//! a lease does.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::Mutex;
use tokio_postgres::{Client, NoTls};
use tokio_util::sync::CancellationToken;

use super::error::{LegacyError, LockSessionError};
use crate::{
    clock::{BootTime, deadline::local_deadline},
    locks::Locks,
    renewer::Lost,
    session::{AcquireError, Bond, Guard, Holding, Inner},
};

/// How far the database's clock may step unnoticed, as in every margin on PostgreSQL.
const SLACK: Duration = Duration::from_millis(500);
/// How long the database may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// How many times the deletion of an unused row is tried.
const DELETE_ATTEMPTS: u32 = 5;

/// Takes a row that is free, that has run out, or that is this owner's already, as after an answer that was lost.
const TAKE: &str = "INSERT INTO session_locks (session_id, owner_id, acquired_at, expires_at) \
     VALUES ($1, $2, clock_timestamp(), clock_timestamp() + $3::float8 * interval '1 millisecond') \
     ON CONFLICT (session_id) DO UPDATE SET owner_id = EXCLUDED.owner_id, acquired_at = EXCLUDED.acquired_at, \
         expires_at = EXCLUDED.expires_at \
     WHERE session_locks.expires_at <= clock_timestamp() OR session_locks.owner_id = EXCLUDED.owner_id";
const RENEW: &str = "UPDATE session_locks SET expires_at = clock_timestamp() + $3::float8 * interval '1 millisecond' \
     WHERE session_id = $1 AND owner_id = $2 AND expires_at > clock_timestamp()";
const GIVE_BACK: &str = "DELETE FROM session_locks WHERE session_id = $1 AND owner_id = $2";

type Connecting = Pin<Box<dyn Future<Output = Result<Client, LegacyError>> + Send>>;

/// The old table. Clones share a connection.
#[derive(Clone)]
pub struct LegacyTable {
    connect: Arc<dyn Fn() -> Connecting + Send + Sync>,
    client: Arc<Mutex<Option<Arc<Client>>>>,
}

impl std::fmt::Debug for LegacyTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LegacyTable")
    }
}

impl LegacyTable {
    /// The table in the database that `url` names, without TLS. It is connected to when it is needed, and again when
    /// the connection is lost.
    pub fn at(url: &str) -> Result<Self, LegacyError> {
        let config: tokio_postgres::Config = url.parse()?;
        Ok(Self::with(move || {
            let config = config.clone();
            async move {
                let (client, connection) = config.connect(NoTls).await?;
                // It ends when the client is dropped; what goes wrong is reported to the callers of the client.
                tokio::spawn(connection);
                Ok(client)
            }
        }))
    }

    /// The table behind connections that the application makes, as with TLS.
    pub fn with<F, C>(connect: F) -> Self
    where
        F: Fn() -> C + Send + Sync + 'static,
        C: Future<Output = Result<Client, tokio_postgres::Error>> + Send + 'static,
    {
        let connect = move || -> Connecting {
            let connecting = connect();
            Box::pin(async move { Ok(connecting.await?) })
        };
        Self { connect: Arc::new(connect), client: Arc::default() }
    }

    async fn client(&self) -> Result<Arc<Client>, LegacyError> {
        let mut kept = self.client.lock().await;
        if let Some(client) = kept.as_ref().filter(|client| !client.is_closed()) {
            return Ok(client.clone());
        }
        let client = Arc::new((self.connect)().await?);
        *kept = Some(client.clone());
        Ok(client)
    }

    /// Runs a statement about one row; tells whether it was changed.
    async fn change(&self, sql: &str, row: &Row, ttl: Option<Duration>) -> Result<bool, LegacyError> {
        let changing = async {
            let client = self.client().await?;
            let statement = client.prepare(sql).await?;
            let ms = ttl.map(|ttl| ttl.as_millis() as f64);
            let changed = match &ms {
                Some(ms) => client.execute(&statement, &[&row.session_id, &row.owner_id, ms]).await?,
                None => client.execute(&statement, &[&row.session_id, &row.owner_id]).await?,
            };
            Ok(changed > 0)
        };
        let slow = |_| LegacyError("no answer in time".to_owned());
        tokio::time::timeout(ANSWER_MAX, changing).await.map_err(slow)?
    }
}

/// One lock in the old table. The owner is another one at each acquire, so that two tasks of a node exclude each other.
#[derive(Debug, Clone)]
struct Row {
    session_id: String,
    owner_id: String,
}

/// A row that may have been taken. Dropped before it is in a guard's hands, it is given back.
struct Taking {
    inner: Arc<Inner>,
    table: LegacyTable,
    row: Row,
    is_kept: bool,
}

impl Drop for Taking {
    fn drop(&mut self) {
        if !self.is_kept {
            self.inner.spawn(give_back(self.inner.clone(), self.table.clone(), self.row.clone()));
        }
    }
}

async fn give_back(inner: Arc<Inner>, table: LegacyTable, row: Row) {
    for failures in 1..=DELETE_ATTEMPTS {
        match table.change(GIVE_BACK, &row, None).await {
            Ok(_) => return,
            Err(error) => tracing::debug!(%error, session = row.session_id, "a row is not given back yet"),
        }
        inner.pause(inner.backoff(failures, None)).await;
    }
    tracing::warn!(
        session = row.session_id,
        "a row of the old table could not be given back: its time runs out"
    );
}

/// Takes the row and then the lock, within `acquire_timeout`; the guard is lost with either of them.
pub(super) async fn lock_both(
    table: &LegacyTable,
    locks: &Locks,
    node_id: &str,
    session_id: &str,
) -> Result<Guard, LockSessionError> {
    let inner = locks.session().inner();
    let give_up = inner.clock().now().plus(locks.config().acquire_timeout);
    let row =
        Row { session_id: session_id.to_owned(), owner_id: format!("{node_id}/{}", inner.fresh_request()) };
    let mut taking = Taking { inner: inner.clone(), table: table.clone(), row, is_kept: false };
    let mut until = taking.row_until(locks, give_up).await?;
    let left = give_up.since(inner.clock().now());
    let waiting = locks.acquire_within(session_id, left);
    // The wait for the lock may be longer than the row lasts.
    let guard = tokio::select! {
        guard = waiting => guard?,
        lost = taking.keep(locks, &mut until) => return Err(LegacyError(lost).into()),
    };
    let bond = Bond { until: Arc::new(AtomicU64::new(until.as_nanos())), over: CancellationToken::new() };
    guard.holding().tie(bond.clone());
    taking.is_kept = true;
    let holder = Arc::downgrade(guard.holding());
    let kept = Kept { inner: inner.clone(), table: table.clone(), row: taking.row.clone(), bond };
    inner.spawn(kept.run(locks.clone(), holder));
    Ok(guard)
}

impl Taking {
    /// Asks for the row every `poll_interval` until it is taken: there is no line in that table.
    async fn row_until(&self, locks: &Locks, give_up: BootTime) -> Result<BootTime, LockSessionError> {
        let config = locks.config();
        loop {
            let sent = self.inner.clock().now();
            let taken = self.table.change(TAKE, &self.row, Some(config.ttl)).await;
            if let Ok(true) = taken {
                return Ok(local_deadline(sent, config.ttl, SLACK));
            }
            if self.inner.clock().now().plus(config.poll_interval) >= give_up {
                let resource = crate::ResourceName::new(crate::LOCK_KIND, &self.row.session_id);
                let resource = resource.map_err(AcquireError::from)?;
                taken?;
                return Err(AcquireError::TimedOut { resource, holder: None }.into());
            }
            self.inner.pause(config.poll_interval).await;
        }
    }

    /// Renews the row for as long as it is polled; ends when the row is lost.
    async fn keep(&self, locks: &Locks, until: &mut BootTime) -> String {
        let config = locks.config();
        let mut pause = config.refresh_interval;
        loop {
            self.inner.pause(pause).await;
            pause = config.refresh_interval;
            match renewed(&self.inner, &self.table, &self.row, config.ttl).await {
                Ok(Some(later)) => *until = later,
                Ok(None) => return "another node has taken the row".to_owned(),
                Err(error) if self.inner.clock().now() >= *until => return error.to_string(),
                Err(_) => pause = config.poll_interval,
            }
        }
    }
}

/// The row's new local deadline; none if it is another's.
async fn renewed(
    inner: &Inner,
    table: &LegacyTable,
    row: &Row,
    ttl: Duration,
) -> Result<Option<BootTime>, LegacyError> {
    let sent = inner.clock().now();
    let is_ours = table.change(RENEW, row, Some(ttl)).await?;
    Ok(is_ours.then(|| local_deadline(sent, ttl, SLACK)))
}

/// A row that goes with a guard.
struct Kept {
    inner: Arc<Inner>,
    table: LegacyTable,
    row: Row,
    bond: Bond,
}

impl Kept {
    /// Renews the row until the guard is gone, then gives it back. A row that is lost takes the guard with it.
    async fn run(self, locks: Locks, holding: std::sync::Weak<Holding>) {
        let config = locks.config();
        drop(locks);
        let clock = self.inner.clock_handle();
        let until = || BootTime::from_nanos(self.bond.until.load(Ordering::SeqCst));
        let mut next = clock.now().plus(config.refresh_interval);
        let lost = loop {
            tokio::select! {
                () = self.bond.over.cancelled() => break None,
                () = clock.wait_until(next.min(until())) => {}
            }
            if clock.now() >= until() {
                break Some("it was not renewed by its deadline".to_owned());
            }
            let renewed = tokio::select! {
                renewed = renewed(&self.inner, &self.table, &self.row, config.ttl) => renewed,
                () = clock.wait_until(until()) => continue,
            };
            let pause = match renewed {
                Ok(Some(later)) => {
                    self.bond.until.store(later.as_nanos(), Ordering::SeqCst);
                    config.refresh_interval
                }
                Ok(None) => break Some("another node has taken it".to_owned()),
                Err(error) => {
                    tracing::warn!(%error, session = self.row.session_id, "a row was not renewed");
                    config.poll_interval
                }
            };
            next = clock.now().plus(pause);
        };
        if let (Some(why), Some(holding)) = (lost, holding.upgrade()) {
            self.bond.until.store(0, Ordering::SeqCst);
            holding.lose(Lost::Legacy(why));
        }
        // The work may go on for a moment after it is told to stop, but the guard's owner drops it soon.
        self.bond.over.cancelled().await;
        give_back(self.inner.clone(), self.table.clone(), self.row.clone()).await;
    }
}
