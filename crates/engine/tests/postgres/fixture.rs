//! A database for each case of the conformance suite.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use solehold_conformance::Fixture;
use solehold_core::{command::Footprint, time::StoreTime};
use solehold_engine::{
    postgres::{PostgresOptions, PostgresStore},
    store::{Store, StoreError},
};
use solehold_testkit::{Postgres, wait_for};
use tokio_postgres::NoTls;

/// How long a store may be unavailable.
const PATIENCE: Duration = Duration::from_secs(60);

/// A database, and what is done to each that is made for the case.
pub struct Database {
    url: String,
    prepare: &'static str,
}

impl Database {
    /// With this SQL run once the schema is there.
    pub async fn prepared(prepare: &'static str) -> Self {
        let url = create().await;
        open(&url).await.close().await;
        execute(&url, prepare).await;
        Self { url, prepare }
    }
}

async fn create() -> String {
    Postgres::shared().await.expect("PostgreSQL").create_database("suite").await.expect("a database")
}

async fn execute(url: &str, sql: &str) {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a connection");
    let connection = tokio::spawn(connection);
    client.batch_execute(sql).await.expect("the statement");
    drop(client);
    connection.await.expect("the connection").expect("a clean end");
}

/// Opens a store as `serve` does: while it is unavailable, it is tried again. A busy machine may pause a replica
/// between two readings of the clock, which looks like a step.
async fn open(url: &str) -> Arc<dyn Store> {
    let opened = wait_for("the store", PATIENCE, async || {
        match PostgresStore::open(url, PostgresOptions::default()).await {
            Err(StoreError::Unavailable(_)) => None,
            other => Some(other),
        }
    });
    opened.await.expect("an answer").expect("a store")
}

#[async_trait]
impl Fixture for Database {
    async fn open(&self) -> Arc<dyn Store> {
        open(&self.url).await
    }

    async fn open_fresh(&self) -> Arc<dyn Store> {
        open(&Self::prepared(self.prepare).await.url).await
    }

    /// Moves store time on, on purpose: every store follows. Whatever the default isolation, it waits for a batch that
    /// is under way; whatever triggers the case has, they do not fire.
    async fn pass_until(&self, store: &dyn Store, until: StoreTime) {
        let now = store.load(&Footprint::default()).await.expect("the store").now;
        let ms = until.ms_after(now);
        let sql = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL session_replication_role = replica; \
             UPDATE solehold.clock SET offset_ms = offset_ms + {ms}, moves = moves + 1; \
             INSERT INTO solehold.commits (batch_id, at_ms, committed) SELECT gen_random_uuid(), \
                greatest((SELECT max(at_ms) FROM solehold.commits) + {ms}, \
                    (extract(epoch FROM clock_timestamp()) * 1000)::bigint + offset_ms), true FROM solehold.clock; \
             INSERT INTO solehold.ceilings SELECT number + 1, ceiling_ms + {ms}, ceiling_ms + {ms} \
                FROM solehold.ceilings ORDER BY number DESC, ceiling_ms DESC LIMIT 1; \
             COMMIT"
        );
        execute(&self.url, &sql).await;
    }
}
