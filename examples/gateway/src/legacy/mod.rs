//! Locks on chat sessions, shared with gateways that still use a lock table of their own.
//!
//! ```text
//!   session_locks(session_id TEXT PRIMARY KEY, owner_id TEXT, acquired_at TIMESTAMPTZ, expires_at TIMESTAMPTZ)
//!
//!   old nodes      row
//!   bridging nodes row, then lock        the row excludes old nodes, the lock excludes new ones
//!   new nodes           lock
//! ```
//! Every bridging node takes the row first, so two nodes never wait for each other. It works only while it has both.
//! The database's clock alone judges the row; its local deadline counts from before the request was sent, as a lease's
//! does.
//!
//! A task owns the row: it takes it, renews it, publishes a [`RowState`] after each step, and deletes the row when the
//! [`LockedSession`] that reads this state is dropped.

use std::{
    future::{pending, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use solehold_client::{
    AcquireError, Cluster, Guard, GuardError, LockConfig, Locks, Lost, Token,
    chance::{Chance as _, MachineChance},
    clock::{AlarmClock as _, BootClock, BootTime, deadline::local_deadline},
};
use tokio::sync::{Mutex, watch};
use tokio_postgres::{Client, NoTls};

/// How far the database's clock may step unnoticed, as in every margin on PostgreSQL.
const SLACK: Duration = Duration::from_millis(500);
const ANSWER_MAX: Duration = Duration::from_secs(5);
const DELETE_ATTEMPTS: u32 = 5;

/// Takes a row that is free, has expired, or is this owner's already, as after an answer that was lost.
const TAKE: &str = "INSERT INTO session_locks (session_id, owner_id, acquired_at, expires_at) \
     VALUES ($1, $2, clock_timestamp(), clock_timestamp() + $3::float8 * interval '1 millisecond') \
     ON CONFLICT (session_id) DO UPDATE SET owner_id = EXCLUDED.owner_id, acquired_at = EXCLUDED.acquired_at, \
         expires_at = EXCLUDED.expires_at \
     WHERE session_locks.expires_at <= clock_timestamp() OR session_locks.owner_id = EXCLUDED.owner_id";
const RENEW: &str = "UPDATE session_locks SET expires_at = clock_timestamp() + $3::float8 * interval '1 millisecond' \
     WHERE session_id = $1 AND owner_id = $2 AND expires_at > clock_timestamp()";
const DELETE: &str = "DELETE FROM session_locks WHERE session_id = $1 AND owner_id = $2";

/// Why a row is not, or no longer, held.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RowError {
    #[error("another node holds the session's row in session_locks")]
    Held,
    #[error("another node has taken the session's row in session_locks")]
    Taken,
    #[error("the session's row in session_locks was not renewed by its deadline")]
    Expired,
    #[error("the database of session_locks did not answer within {} s", ANSWER_MAX.as_secs())]
    NoAnswer,
    /// What the server reported; never the connection string.
    #[error("cannot use the table session_locks: {0}")]
    Database(String),
}

impl From<tokio_postgres::Error> for RowError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(
            error.as_db_error().map_or_else(|| error.to_string(), |error| error.message().to_owned()),
        )
    }
}

/// Why a session was not locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error(transparent)]
    Lease(#[from] AcquireError),
    #[error(transparent)]
    Row(#[from] RowError),
}

/// Why a lock on a session is lost.
#[derive(Debug, thiserror::Error)]
pub enum LockLost {
    #[error(transparent)]
    Lease(#[from] Lost),
    #[error(transparent)]
    Row(#[from] RowError),
}

#[derive(Debug, Clone)]
enum RowState {
    Waiting,
    /// Trusted until this time, unless it is renewed before.
    Held(BootTime),
    Over(RowError),
}

/// Locks a session; `None` if session locks are not enabled. With a table, its row is locked as well.
pub async fn lock_session(
    cluster: &Cluster,
    table: Option<&LegacyTable>,
    session_id: &str,
) -> Result<Option<LockedSession>, LockError> {
    if let (Some(table), Some(locks)) = (table, cluster.locks()) {
        return Ok(Some(table.lock_with_row(locks, cluster.node_id(), session_id).await?));
    }
    let guard = cluster.lock_session(session_id).await?;
    Ok(guard.map(|guard| LockedSession { row: None, guard }))
}

/// A session that this node may work on, until the lease or the row is lost.
pub struct LockedSession {
    /// Dropped first: the row is deleted in the background.
    row: Option<watch::Receiver<RowState>>,
    guard: Guard,
}

impl LockedSession {
    pub fn token(&self) -> Token {
        self.guard.token()
    }

    pub fn check(&self) -> Result<Token, LockLost> {
        self.check_row()?;
        Ok(self.guard.check()?)
    }

    fn check_row(&self) -> Result<(), RowError> {
        let Some(row) = &self.row else { return Ok(()) };
        match &*row.borrow() {
            RowState::Held(until) if BootTime::now() < *until => Ok(()),
            RowState::Over(why) => Err(why.clone()),
            RowState::Held(_) | RowState::Waiting => Err(RowError::Expired),
        }
    }

    /// Runs `work` while the session is locked. When the lock is lost, `work` is dropped and not polled again.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, LockLost> {
        let mut work = pin!(work);
        let mut row_over = pin!(self.row_over());
        let checked = poll_fn(|context| {
            if let Poll::Ready(why) = row_over.as_mut().poll(context) {
                return Poll::Ready(Err(why));
            }
            // By the clock, too: after a long pause the row's task may not have run yet.
            if let Err(why) = self.check_row() {
                return Poll::Ready(Err(why));
            }
            work.as_mut().poll(context).map(Ok)
        });
        Ok(self.guard.run(checked).await??)
    }

    async fn row_over(&self) -> RowError {
        match self.row.clone() {
            Some(mut row) => over(&mut row).await,
            None => pending().await,
        }
    }

    pub async fn release(self) -> Result<(), GuardError> {
        drop(self.row);
        self.guard.release().await
    }
}

/// Waits until the row is lost.
async fn over(row: &mut watch::Receiver<RowState>) -> RowError {
    match row.wait_for(|state| matches!(state, RowState::Over(_))).await.as_deref() {
        Ok(RowState::Over(why)) => why.clone(),
        Ok(RowState::Held(_) | RowState::Waiting) | Err(_) => RowError::Expired,
    }
}

/// The old lock table. Clones share a connection.
#[derive(Clone)]
pub struct LegacyTable {
    config: Arc<tokio_postgres::Config>,
    client: Arc<Mutex<Option<Arc<Client>>>>,
}

impl LegacyTable {
    /// The table in the database at `url`, without TLS. Connects when first used, and again after a lost connection.
    pub fn at(url: &str) -> Result<Self, tokio_postgres::Error> {
        Ok(Self { config: Arc::new(url.parse()?), client: Arc::default() })
    }

    /// Takes the row, then the lock, within `acquire_timeout` in total.
    async fn lock_with_row(
        &self,
        locks: &Locks,
        node_id: &str,
        session_id: &str,
    ) -> Result<LockedSession, LockError> {
        let config = locks.config();
        let give_up = BootTime::now().plus(config.acquire_timeout);
        let (state, mut row) = watch::channel(RowState::Waiting);
        let owner_id = format!("{node_id}/{}", MachineChance.id());
        let session = session_id.to_owned();
        let owner = RowOwner { table: self.clone(), session_id: session, owner_id, config, state };
        tokio::spawn(owner.own(give_up));
        let decided = row.wait_for(|state| !matches!(state, RowState::Waiting)).await;
        let decided = decided.map(|state| state.clone());
        match decided {
            Ok(RowState::Held(_)) => {}
            Ok(RowState::Over(why)) => return Err(why.into()),
            Ok(RowState::Waiting) | Err(_) => return Err(RowError::Expired.into()),
        }
        let left = give_up.since(BootTime::now());
        let guard = tokio::select! {
            guard = locks.acquire_within(session_id, left) => guard?,
            why = over(&mut row) => return Err(why.into()),
        };
        Ok(LockedSession { row: Some(row), guard })
    }

    async fn client(&self) -> Result<Arc<Client>, RowError> {
        let mut shared = self.client.lock().await;
        if let Some(client) = shared.as_ref().filter(|client| !client.is_closed()) {
            return Ok(client.clone());
        }
        let (client, connection) = self.config.connect(NoTls).await?;
        // Ends when the client is dropped; the client's callers get its errors.
        tokio::spawn(connection);
        let client = Arc::new(client);
        *shared = Some(client.clone());
        Ok(client)
    }
}

/// The task behind one row. The owner id is new for each acquire, so that two tasks of a node exclude each other.
struct RowOwner {
    table: LegacyTable,
    session_id: String,
    owner_id: String,
    config: LockConfig,
    state: watch::Sender<RowState>,
}

impl RowOwner {
    async fn own(self, give_up: BootTime) {
        match self.take(give_up).await {
            Ok(until) => {
                self.state.send_replace(RowState::Held(until));
                if let Err(why) = self.renew_from(until).await {
                    self.state.send_replace(RowState::Over(why));
                    // The work may take a moment to stop.
                    self.state.closed().await;
                }
            }
            Err(why) => {
                self.state.send_replace(RowState::Over(why));
            }
        }
        self.delete().await;
    }

    /// Polls for the row every `poll_interval`: the table has no queue.
    async fn take(&self, give_up: BootTime) -> Result<BootTime, RowError> {
        loop {
            let sent = BootTime::now();
            let taken = self.change(TAKE, true).await;
            if let Ok(true) = taken {
                return Ok(local_deadline(sent, self.config.ttl, SLACK));
            }
            let is_late = BootTime::now().plus(self.config.poll_interval) >= give_up;
            if is_late || self.state.is_closed() {
                return taken.and(Err(RowError::Held));
            }
            self.pause().await;
        }
    }

    /// Renews the row until the session is no longer locked; the error is why the row was lost before.
    async fn renew_from(&self, mut until: BootTime) -> Result<(), RowError> {
        let mut next = BootTime::now().plus(self.config.refresh_interval);
        loop {
            tokio::select! {
                () = self.state.closed() => return Ok(()),
                () = BootClock.wait_until(next.min(until)) => {}
            }
            let sent = BootTime::now();
            if sent >= until {
                return Err(RowError::Expired);
            }
            let renewed = tokio::select! {
                renewed = self.change(RENEW, true) => renewed,
                () = BootClock.wait_until(until) => return Err(RowError::Expired),
            };
            let pause = match renewed {
                Ok(true) => {
                    until = local_deadline(sent, self.config.ttl, SLACK);
                    self.state.send_replace(RowState::Held(until));
                    self.config.refresh_interval
                }
                Ok(false) => return Err(RowError::Taken),
                Err(error) => {
                    tracing::warn!(%error, session = self.session_id, "cannot renew a row of session_locks; retrying");
                    self.config.poll_interval
                }
            };
            next = BootTime::now().plus(pause);
        }
    }

    async fn delete(&self) {
        for _ in 0..DELETE_ATTEMPTS {
            match self.change(DELETE, false).await {
                Ok(_) => return,
                Err(error) => {
                    tracing::debug!(%error, session = self.session_id, "cannot delete a session_locks row; retrying");
                }
            }
            self.pause().await;
        }
        tracing::warn!(
            session = self.session_id,
            "cannot delete a row of session_locks; other nodes wait until it expires"
        );
    }

    async fn pause(&self) {
        BootClock.wait_until(BootTime::now().plus(self.config.poll_interval)).await;
    }

    /// Runs a statement about the row, and returns whether it changed the row.
    async fn change(&self, sql: &str, has_ttl: bool) -> Result<bool, RowError> {
        let changing = async {
            let client = self.table.client().await?;
            let statement = client.prepare(sql).await?;
            let ttl_ms = self.config.ttl.as_millis() as f64;
            let changed = if has_ttl {
                client.execute(&statement, &[&self.session_id, &self.owner_id, &ttl_ms]).await?
            } else {
                client.execute(&statement, &[&self.session_id, &self.owner_id]).await?
            };
            Ok(changed > 0)
        };
        tokio::time::timeout(ANSWER_MAX, changing).await.map_err(|_| RowError::NoAnswer)?
    }
}

#[cfg(test)]
mod tests;
