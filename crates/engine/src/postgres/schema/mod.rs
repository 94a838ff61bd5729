//! Migrates the schema; the first replica to start does it. No advisory locks: a row is the lock.

use std::time::Duration;

use solehold_core::key::{Name, ResourceKey};
use tokio_postgres::types::Type;

use crate::postgres::{
    connection::pool::{Conn, in_time},
    fault::Fault,
    tables::unreadable,
};
use crate::{clock::RetryPauses, store::StoreError};

/// The schema's versions, in order; the first is 1.
const VERSIONS: [&str; 11] = [
    include_str!("version_1.sql"),
    include_str!("version_2.sql"),
    include_str!("version_3.sql"),
    include_str!("version_4.sql"),
    include_str!("version_5.sql"),
    include_str!("version_6.sql"),
    include_str!("version_7.sql"),
    include_str!("version_8.sql"),
    include_str!("version_9.sql"),
    include_str!("version_10.sql"),
    include_str!("version_11.sql"),
];
/// The version that this program writes, and the newest that it reads.
pub const SCHEMA_VERSION: u32 = VERSIONS.len() as u32;
/// Since this version resources have marks.
const MARKED: usize = 3;
/// A migration may rewrite tables.
const MIGRATION: Duration = Duration::from_secs(300);
/// How many attempts are made while other replicas migrate, too.
const ATTEMPTS: u32 = 60;

const PREPARE: &str = "CREATE SCHEMA IF NOT EXISTS solehold; \
    CREATE TABLE IF NOT EXISTS solehold.migrations (version int PRIMARY KEY, applied_at timestamptz NOT NULL); \
    INSERT INTO solehold.migrations VALUES (0, clock_timestamp()) ON CONFLICT DO NOTHING";

/// Applies what is missing. A schema newer than this program knows is refused.
pub(crate) async fn migrate(conn: &Conn) -> Result<(), Fault> {
    let mut pauses = RetryPauses::default();
    for attempt in 1.. {
        let fault = match attempt_all(conn).await {
            Ok(()) => return Ok(()),
            Err(fault) => fault,
        };
        // Two replicas that create the same thing at once get these; 40001 and the like where the default isolation is
        // stricter.
        let in_the_way = fault.is_contention()
            || matches!(
                fault.code(),
                Some("42P06" | "42P07" | "42710" | "XX000" | "3F000" | "42P01" | "0A000")
            );
        if !in_the_way || attempt >= ATTEMPTS {
            return Err(match fault {
                Fault::Postgres(_) if !fault.is_lost_connection() => {
                    StoreError::Unusable(format!("cannot migrate the schema: {fault}")).into()
                }
                fault => fault,
            });
        }
        conn.simple("ROLLBACK").await?;
        pauses.pause().await;
    }
    Ok(())
}

async fn attempt_all(conn: &Conn) -> Result<(), Fault> {
    // If everything is in place, the user needs no right to create anything.
    if version(conn).await.ok() == Some(VERSIONS.len()) {
        return Ok(());
    }
    in_time("applying migrations", MIGRATION, async {
        conn.simple("SET statement_timeout = '300s'; SET lock_timeout = '60s'").await?;
        if version(conn).await.is_err() {
            conn.simple(PREPARE).await?;
        }
        conn.simple("BEGIN; SELECT version FROM solehold.migrations WHERE version = 0 FOR UPDATE").await?;
        let done = version(conn).await?;
        if done > VERSIONS.len() {
            let text = format!(
                "the database has version {done} of the schema, and this program knows versions up to {}: use a newer program",
                VERSIONS.len()
            );
            return Err(StoreError::Unusable(text).into());
        }
        for (number, sql) in (1..).zip(VERSIONS).skip(done) {
            tracing::info!(version = number, of = VERSIONS.len(), "applying schema migration");
            conn.simple(sql).await?;
            if number == MARKED {
                mark_all(conn).await?;
            }
            conn.simple(&format!("INSERT INTO solehold.migrations VALUES ({number}, clock_timestamp())")).await?;
            tracing::info!(version = number, "applied schema migration");
        }
        conn.simple("COMMIT").await
    })
    .await
}

/// Gives resources of earlier versions their marks, which PostgreSQL cannot compute.
async fn mark_all(conn: &Conn) -> Result<(), Fault> {
    let sql = "SELECT id, tenant, kind, key FROM solehold.resources";
    let found = conn.client.query_typed(sql, &[]).await?;
    let mut ids = Vec::<i64>::new();
    let mut marks = Vec::<i32>::new();
    for row in &found {
        let name = |at: usize| Name::new(row.try_get::<_, &str>(at)?).map_err(unreadable);
        ids.push(row.try_get(0)?);
        marks.push(ResourceKey::new(name(1)?, name(2)?, name(3)?).mark() as i32);
    }
    let sql = "UPDATE solehold.resources r SET mark = u.mark \
               FROM unnest($1::bigint[], $2::int[]) AS u(id, mark) WHERE r.id = u.id";
    conn.client.execute_typed(sql, &[(&ids, Type::INT8_ARRAY), (&marks, Type::INT4_ARRAY)]).await?;
    Ok(())
}

/// Whether there is a store in the database, of whichever version.
pub(crate) async fn is_there(conn: &Conn) -> Result<bool, Fault> {
    match version(conn).await {
        Ok(version) => Ok(version > 0),
        // No such schema, no such table, and no right to look into a schema of that name.
        Err(fault) if matches!(fault.code(), Some("3F000" | "42P01" | "42501")) => Ok(false),
        Err(fault) => Err(fault),
    }
}

/// The last version that was applied; 0 if only the table of them is there.
async fn version(conn: &Conn) -> Result<usize, Fault> {
    let last: Option<i32> = conn.value("SELECT max(version) FROM solehold.migrations").await?.flatten();
    Ok(last.unwrap_or(0).max(0) as usize)
}
