//! The identity of the server behind a connection, and whether its commits are durable.

use tokio_postgres::Client;

use crate::postgres::{Failover, PostgresOptions, fault::Fault, tables::unreadable};
use crate::store::StoreError;

/// The cluster, the timeline and the table that a connection leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) system_id: String,
    pub(crate) timeline: u32,
    /// The database and the clock's table, by their numbers: a schema that was restored has another table, and a copy
    /// of a database is another database. None before the schema exists.
    pub(crate) database: i64,
    pub(crate) table: Option<i64>,
}

/// Refuses a server that would forget what it has confirmed, and warns of one that is not what the configuration says.
/// Returns its identity; none for a server that has no timelines, such as CockroachDB.
pub(crate) async fn examine(client: &Client, options: &PostgresOptions) -> Result<Option<Identity>, Fault> {
    let settings =
        "SELECT current_setting('fsync', true), current_setting('synchronous_standby_names', true)";
    let rows = client.query_typed(settings, &[]).await?;
    let row = rows.first().ok_or_else(|| unreadable("PostgreSQL returned no settings"))?;
    let fsync: Option<String> = row.try_get(0)?;
    let standbys: Option<String> = row.try_get(1)?;
    let identity = Identity::of(client).await?;
    if fsync.as_deref() == Some("off") && !options.allow_unsafe_durability {
        let text =
            "PostgreSQL runs with fsync = off: a crash would lose grants that were confirmed. Set it to on";
        return Err(StoreError::Unusable(text.to_owned()).into());
    }
    if options.failover == Failover::Lossless && standbys.as_deref().is_none_or(str::is_empty) {
        tracing::warn!(
            "failover is configured as lossless, but PostgreSQL has no synchronous standby; \
             set synchronous_standby_names, or configure failover as lossy"
        );
    }
    Ok(identity)
}

impl Identity {
    /// Nothing, if the server has no timelines. The control file would show a new one only after a checkpoint; the name
    /// of the current log file shows it at once.
    pub(crate) async fn of(client: &Client) -> Result<Option<Self>, Fault> {
        let sql = "SELECT (SELECT system_identifier::text FROM pg_control_system()), \
                   substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8), \
                   (SELECT oid::bigint FROM pg_database WHERE datname = current_database()), \
                   to_regclass('solehold.clock')::oid::bigint";
        let error = match client.query_typed(sql, &[]).await {
            Ok(rows) => {
                let row =
                    rows.first().ok_or_else(|| unreadable("PostgreSQL returned no system identifier"))?;
                let timeline: String = row.try_get(1)?;
                let timeline = u32::from_str_radix(&timeline, 16)
                    .map_err(|_| unreadable(format!("{timeline:?} is not a timeline")))?;
                return Ok(Some(Self {
                    system_id: row.try_get(0)?,
                    timeline,
                    database: row.try_get(2)?,
                    table: row.try_get(3)?,
                }));
            }
            Err(error) => Fault::from(error),
        };
        match error.code() {
            // Undefined function, or a feature that is not supported: another kind of server.
            Some("42883" | "0A000") => {
                warn_once();
                Ok(None)
            }
            Some("42501") => {
                let text = format!(
                    "this user may not see which timeline PostgreSQL is on ({error}): \
                     GRANT EXECUTE ON FUNCTION pg_control_system() to it, without which a failover goes unnoticed"
                );
                Err(StoreError::Unusable(text).into())
            }
            _ => Err(error),
        }
    }

    /// Whether this is an earlier timeline of the same cluster: what ran there has been replaced.
    pub(crate) fn is_older_than(&self, other: &Self) -> bool {
        self.system_id == other.system_id && self.timeline < other.timeline
    }

    /// Whether `kept` is this, noted by a version that did not note the table.
    pub(crate) fn was_noted_without_table(&self, kept: &Self) -> bool {
        kept.table.is_none() && kept.system_id == self.system_id && kept.timeline == self.timeline
    }

    /// Whether only the timeline differs, as after a failover.
    pub(crate) fn is_failover_of(&self, other: &Self) -> bool {
        Self { timeline: other.timeline, ..self.clone() } == *other
    }
}

fn warn_once() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        tracing::warn!(
            "PostgreSQL does not report its timeline; a failover that loses commits, or a restore while no Solehold \
             server is running, cannot be detected. Run `solehold admin restored` after one"
        );
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_timeline_is_told_from_a_failover_and_a_copy() {
        let identity = |system: &str, timeline, table| Identity {
            system_id: system.to_owned(),
            timeline,
            database: 5,
            table: Some(table),
        };
        let now = identity("a", 2, 7);
        assert!(identity("a", 1, 7).is_older_than(&now) && !identity("b", 1, 7).is_older_than(&now));
        assert!(identity("a", 3, 7).is_failover_of(&now));
        assert!(!identity("a", 3, 8).is_failover_of(&now) && !identity("b", 3, 7).is_failover_of(&now));
    }
}
