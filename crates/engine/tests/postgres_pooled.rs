//! PgBouncer between the replicas and PostgreSQL.

#[path = "postgres/common.rs"]
mod common;

use common::*;
use solehold_engine::{
    postgres::{PostgresOptions, PostgresStore},
    store::{Store, StoreError},
};
use solehold_testkit::{PgBouncer, PoolMode, Postgres};

async fn pooled(mode: PoolMode, connections: usize) -> (PgBouncer, String) {
    let postgres = Postgres::shared().await.expect("PostgreSQL");
    let pooler = PgBouncer::start_in(mode, postgres, connections).await.expect("PgBouncer");
    let url = pooler.url_for(&database().await);
    (pooler, url)
}

/// Whatever the size of the pool: with one connection all clients share it, with more of them none has its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_that_shares_sessions_is_refused() {
    for connections in [1, 2, 40] {
        let (_pooler, url) = pooled(PoolMode::Transaction, connections).await;
        let open = || PostgresStore::open(&url, PostgresOptions::default());
        let (one, two) = tokio::join!(open(), open());
        for refused in [
            one.map(drop),
            two.map(drop),
            PostgresStore::is_there(&url, PostgresOptions::default()).await.map(drop),
        ] {
            match refused {
                Err(StoreError::Unusable(what)) => assert!(what.contains("session mode"), "{what}"),
                other => panic!("{connections} connections: {other:?}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_work_through_a_pooler_in_session_mode() {
    let (_pooler, url) = pooled(PoolMode::Session, 64).await;
    let (one, two) = tokio::join!(open(&url), open(&url));
    for n in 0..20 {
        let job = key(&format!("job-{n}"));
        let granted = grant(one.as_ref(), &job, "ann", 60_000).await;
        assert!(is_live(&lease(two.as_ref(), &job).await), "job {n}");
        done(two.as_ref(), renew(&granted)).await;
        done(two.as_ref(), release(&granted)).await;
        grant(two.as_ref(), &job, "bea", 60_000).await;
    }
    one.close().await;
    two.close().await;
}
