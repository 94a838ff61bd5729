//! Which history this is (rule 23), and whether it is kept safely.

use solehold_core::time::{Revision, StoreTime};
use tokio_postgres::Client;

use super::{
    PostgresStore,
    clock::Reading,
    fault::Fault,
    pool::{Conn, ROUND_TRIP, in_time},
};
use crate::store::StoreError;

/// Revisions, and so tokens, jump by this with the epoch: more than could have been lost.
const EPOCH_JUMP: i64 = 1 << 32;
/// Nothing is granted for at most this long after a failover.
const BARRED_MS_MAX: i64 = 5 * 60 * 1_000;

/// The cluster and the timeline that a connection leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    system_id: String,
    timeline: String,
}

impl Identity {
    /// Asks the server; nothing, if it does not know (CockroachDB) or does not say. The control file would show a new
    /// timeline only after a checkpoint, the name of the current log file shows it at once.
    pub(super) async fn of(client: &Client) -> Result<Option<Self>, Fault> {
        let sql = "SELECT (SELECT system_identifier::text FROM pg_control_system()), \
                   substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)";
        match client.query_typed(sql, &[]).await {
            Ok(rows) => match rows.first() {
                Some(row) => Ok(Some(Self { system_id: row.try_get(0)?, timeline: row.try_get(1)? })),
                None => Ok(None),
            },
            Err(error) if error.as_db_error().is_some() && !client.is_closed() => {
                tracing::debug!(%error, "the server does not say which timeline it is on");
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Refuses a server that would forget what it has confirmed.
pub(super) async fn check_durability(client: &Client) -> Result<(), Fault> {
    let sql = "SELECT current_setting('fsync', true), current_setting('synchronous_commit', true)";
    let rows = client.query_typed(sql, &[]).await?;
    let Some(row) = rows.first() else { return Ok(()) };
    let (fsync, commit): (Option<String>, Option<String>) = (row.try_get(0)?, row.try_get(1)?);
    let refuse = |what: &str| {
        let text = format!(
            "PostgreSQL runs with {what}: a crash would lose grants that were confirmed. Set it to on"
        );
        Err(StoreError::Unusable(text).into())
    };
    if fsync.as_deref() == Some("off") {
        return refuse("fsync = off");
    }
    match commit.as_deref() {
        None | Some("on" | "remote_apply") => Ok(()),
        Some(other) => refuse(&format!("synchronous_commit = {other}")),
    }
}

impl PostgresStore {
    /// Checks that a new connection leads to the history that is known. If it does not, the store was restored or has failed
    /// over: the epoch is raised, and what may have been granted and lost is waited out.
    pub(super) async fn check_identity(&self, conn: &Conn) -> Result<(), Fault> {
        let Some(identity) = &conn.identity else { return Ok(()) };
        {
            let known = self.identity.lock().unwrap_or_else(|e| e.into_inner());
            if known.as_ref() == Some(identity) {
                return Ok(());
            }
        }
        in_time("checking the timeline", ROUND_TRIP, self.adopt(conn, identity)).await?;
        *self.identity.lock().unwrap_or_else(|e| e.into_inner()) = Some(identity.clone());
        Ok(())
    }

    async fn adopt(&self, conn: &Conn, identity: &Identity) -> Result<(), Fault> {
        conn.simple("BEGIN").await?;
        let reading = self.lock_clock(conn).await?;
        let rows = conn
            .client
            .query_typed("SELECT system_id, timeline FROM solehold.clock WHERE id = 1", &[])
            .await?;
        let kept = match rows.first() {
            Some(row) => match (row.try_get::<_, Option<String>>(0)?, row.try_get::<_, Option<String>>(1)?) {
                (Some(system_id), Some(timeline)) => Some(Identity { system_id, timeline }),
                _ => None,
            },
            None => None,
        };
        if kept.as_ref() == Some(identity) {
            return conn.simple("ROLLBACK").await;
        }
        let now = self.time(&reading).or_else(|fault| match fault {
            // Another machine's clock: corrected by the first batch. Until then the later of the two is safe.
            Fault::Stepped => Ok(StoreTime(self.given_ms().max(reading.last_ms) as u64)),
            other => Err(other),
        })?;
        let (jump, barred_until) = match kept {
            None => (0, 0),
            Some(_) => (EPOCH_JUMP, self.bar(conn, &reading, now).await?),
        };
        let set = "UPDATE solehold.clock SET system_id = $1, timeline = $2, epoch = epoch + $3, \
                   grants_barred_until_ms = greatest(grants_barred_until_ms, $4) WHERE id = 1";
        let raise: i64 = (jump > 0).into();
        let set = conn.client.prepare(set).await?;
        conn.client.execute(&set, &[&identity.system_id, &identity.timeline, &raise, &barred_until]).await?;
        if jump > 0 {
            let revision = Revision(reading.revision.0 + jump as u64);
            self.go_on(conn, &reading, revision, now).await?;
        }
        conn.simple("COMMIT").await?;
        if jump > 0 {
            tracing::warn!(
                epoch = reading.epoch + 1,
                barred_ms = (barred_until - now.0 as i64).max(0),
                "PostgreSQL is on another timeline than before: it was restored or has failed over"
            );
            self.pool.renew();
        }
        Ok(())
    }

    /// Until when nothing is granted: whoever holds a lease that was lost has stopped by then.
    async fn bar(&self, conn: &Conn, reading: &Reading, now: StoreTime) -> Result<i64, Fault> {
        if reading.was_synchronous {
            return Ok(0);
        }
        let sql = "SELECT greatest((SELECT max(ttl_ms) FROM solehold.sessions), \
                                   (SELECT max(ttl_ms) FROM solehold.leases WHERE lease_id IS NOT NULL))";
        let rows = conn.client.query_typed(sql, &[]).await?;
        let longest: Option<i64> = rows.first().map(|row| row.try_get(0)).transpose()?.flatten();
        Ok(now.0 as i64 + longest.unwrap_or(BARRED_MS_MAX).min(BARRED_MS_MAX))
    }

    /// Refuses while grants are barred.
    pub(super) fn check_barred(reading: &Reading, now: StoreTime) -> Result<(), Fault> {
        let left_ms = reading.barred_until - now.0 as i64;
        if left_ms <= 0 {
            return Ok(());
        }
        Err(StoreError::Barred { retry_after_ms: left_ms as u64 }.into())
    }
}
