//! Indexes that were made for an older description of a table.

#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

mod kit;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use kit::{Kit, connect, table};
use solehold_sql::{ClaimTable, migrations};

const INDEXES: &str = "SELECT string_agg(indexdef, E'\\n' ORDER BY indexname) FROM pg_indexes WHERE schemaname = 'app' \
    AND tablename = 'payments'";
const VALID: &str = "SELECT count(*) FROM pg_index WHERE indrelid = 'app.payments'::regclass AND indisvalid";

/// As described by a later version of the application.
fn later() -> ClaimTable {
    table()
        .claimable("status = 'pending'")
        .order(["priority", "created_at"])
        .index(["status", "id"])
        .build()
        .unwrap()
}

/// The indexes of a table that was described so from the beginning.
async fn wanted() -> String {
    let kit = Kit::with(0, |_| {
        table().claimable("status = 'pending'").order(["priority", "created_at"]).index(["status", "id"])
    });
    kit.await.one(INDEXES, &[]).await
}

/// An index was believed by its name, and a claim over it read every row.
#[tokio::test]
async fn an_index_of_an_older_description_is_replaced_while_it_serves() {
    let kit = Kit::with(20_000, |table| table.index(["amount"])).await;
    let watcher = connect(&kit.url).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let over = is_over.clone();
    let watching = tokio::spawn(async move {
        let there = "SELECT count(*) FROM pg_index JOIN pg_class ON oid = indexrelid WHERE indisvalid \
            AND indrelid = 'app.payments'::regclass AND relname IN ('payments_claim_fresh', 'payments_claim_due')";
        let mut looks = 0;
        while !over.load(Ordering::Relaxed) {
            assert_eq!(
                watcher.query_one(there, &[]).await.unwrap().get::<_, i64>(0),
                2,
                "an index was missing"
            );
            looks += 1;
        }
        looks
    });
    migrations::apply(&kit.client, &later()).await.unwrap();
    is_over.store(true, Ordering::Relaxed);
    assert!(watching.await.unwrap() > 0);
    assert_eq!(kit.one::<String>(INDEXES, &[]).await, wanted().await);
    // Applied again, it leaves everything as it is.
    let which = "SELECT string_agg(indexrelid::text, ' ' ORDER BY indexrelid) FROM pg_index WHERE indrelid = 'app.payments'::regclass";
    let before: String = kit.one(which, &[]).await;
    migrations::apply(&kit.client, &later()).await.unwrap();
    assert_eq!(kit.one::<String>(which, &[]).await, before);
}

#[tokio::test]
async fn several_processes_may_replace_indexes_at_once() {
    let kit = Kit::with(5_000, |table| table.index(["amount"])).await;
    let mut applying = Vec::new();
    for _ in 0..4 {
        let client = connect(&kit.url).await;
        applying.push(tokio::spawn(async move { migrations::apply(&client, &later()).await }));
    }
    for one in applying {
        one.await.unwrap().unwrap();
    }
    assert_eq!(kit.one::<String>(INDEXES, &[]).await, wanted().await);
    assert_eq!(kit.one::<i64>(VALID, &[]).await, 5);
}

/// As when a process is killed between two steps.
#[tokio::test]
async fn what_an_interrupted_replacement_left_is_cleared() {
    let kit = Kit::new(100).await;
    let left = "CREATE INDEX payments_claim_fresh_new ON app.payments (note); \
        CREATE INDEX payments_claim_due_new ON app.payments (note); \
        UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'app.payments_claim_due_new'::regclass; \
        CREATE INDEX payments_claim_due_old ON app.payments (note)";
    kit.client.batch_execute(left).await.unwrap();
    migrations::apply(&kit.client, &later()).await.unwrap();
    assert_eq!(kit.one::<String>(INDEXES, &[]).await, wanted().await);
    kit.client.batch_execute(left).await.unwrap();
    migrations::apply(&kit.client, &later()).await.unwrap();
    assert_eq!(kit.one::<String>(INDEXES, &[]).await, wanted().await);
}

#[tokio::test]
async fn an_index_of_that_name_on_another_table_is_named() {
    let kit = Kit::new(0).await;
    let taken = "DROP INDEX app.payments_claim_due; CREATE INDEX payments_claim_due ON app.outbox (payment)";
    kit.client.batch_execute(taken).await.unwrap();
    let error = migrations::apply(&kit.client, kit.claims.table()).await.unwrap_err().to_string();
    assert!(error.contains("payments_claim_due") && error.contains("app.outbox"), "{error}");
}

/// Who may only use the tables, not make any, applies what is there already.
#[tokio::test]
async fn a_user_without_temporary_tables_believes_an_index_by_its_name() {
    let kit = Kit::new(10).await;
    let name = kit.url.rsplit('/').next().unwrap();
    let user = format!(
        "REVOKE TEMPORARY ON DATABASE \"{name}\" FROM PUBLIC; CREATE USER {name}_plain; \
         GRANT USAGE ON SCHEMA app TO {name}_plain; GRANT ALL ON ALL TABLES IN SCHEMA app TO {name}_plain"
    );
    kit.client.batch_execute(&user).await.unwrap();
    let plain = connect(&kit.url.replace("postgres@", &format!("{name}_plain@"))).await;
    migrations::apply(&plain, kit.claims.table()).await.unwrap();
}
