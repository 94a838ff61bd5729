//! The suite of claims through the crate, against a real PostgreSQL, and what only the crate has.
#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

mod kit;
mod suite;

use kit::{Kit, LONG, connect, owner};
use solehold_sql::{ClaimOutcome, ClaimTable, Claims, Transition, migrations};

suite::suite!(Claims);

#[tokio::test]
async fn only_columns_of_the_payload_can_be_read() {
    let kit = Kit::new(1).await;
    let row = kit.claim(1, "a").await.remove(0);
    assert_eq!(row.get::<i64>("amount").unwrap(), 10);
    let error = row.get::<i64>("nothing").unwrap_err().to_string();
    assert!(error.contains("nothing") && error.contains("payload"), "{error}");
}

/// PostgreSQL stores no zero bytes.
#[tokio::test]
async fn a_reason_is_cut_at_a_zero_byte() {
    let kit = Kit::new(1).await;
    let row = kit.claim(1, "a").await.remove(0);
    let buried = kit.claims.bury(&kit.client, &[(row.proof, "cannot be parsed\0x".into())]).await.unwrap();
    assert_eq!(buried, [ClaimOutcome::Done]);
    assert_eq!(kit.one::<String>("SELECT dead_reason FROM app.payments", &[]).await, "cannot be parsed");
}

#[tokio::test]
async fn what_a_table_lacks_is_named() {
    let kit = Kit::new(1).await;
    let row = kit.claim(1, "a").await.remove(0);
    let stateless = Claims::new(ClaimTable::builder("app.payments").build().unwrap());
    let change = Transition::new(&row.proof, "pending", "detected");
    let error = stateless.transition(&kit.client, change).await.unwrap_err().to_string();
    assert!(error.contains("state column"), "{error}");
    let buried = stateless.bury(&kit.client, &[(row.proof, "x".into())]).await;
    assert!(buried.unwrap_err().to_string().contains("dead-letter"));
}

#[tokio::test]
async fn columns_may_have_the_names_that_we_use() {
    let kit = Kit::new(0).await;
    let sql = "CREATE TABLE app.odd (id int PRIMARY KEY, now text, claim_id text, ahead text, status text); \
        INSERT INTO app.odd VALUES (1, 'a', 'b', 'c', 'open'), (2, 'd', 'e', 'f', 'open')";
    kit.client.batch_execute(sql).await.unwrap();
    let table = ClaimTable::builder("app.odd").state("status").order(["now", "claim_id"]);
    let claims = Claims::new(table.payload(["now", "claim_id", "ahead", "id"]).build().unwrap());
    migrations::apply(&kit.client, claims.table()).await.unwrap();
    let row = claims.claim(&kit.client, 1, &owner("a"), LONG).await.unwrap().remove(0);
    let payload = ["now", "claim_id", "ahead"].map(|column| row.get::<String>(column).unwrap());
    assert_eq!((payload, row.get::<i32>("id").unwrap()), (["a", "b", "c"].map(str::to_owned), 1));
    assert_eq!(claims.claim(&kit.client, 1, &owner("a"), LONG).await.unwrap().len(), 1);
    let change = Transition::new(&row.proof, "open", "done").set("now", "z");
    assert_eq!(claims.transition(&kit.client, change).await.unwrap(), ClaimOutcome::Done);
}

#[tokio::test]
async fn migrations_are_safe_on_a_live_table_and_may_be_repeated() {
    let kit = Kit::new(10).await;
    kit.client.batch_execute("CREATE TABLE app.live (id bigint PRIMARY KEY, status text)").await.unwrap();
    let live = ClaimTable::builder("app.live")
        .state("status")
        .index(["status", "lease_until", "id"])
        .build()
        .unwrap();
    let error = migrations::check(&kit.client, &live).await.unwrap_err().to_string();
    assert!(error.contains("lease_owner, lease_until, lease_epoch"), "{error}");
    // A reader that holds the table for a while: the migration waits in short turns, and others get in between.
    let reader = connect(&kit.url).await;
    reader.batch_execute("BEGIN; SELECT * FROM app.live").await.unwrap();
    let one = connect(&kit.url).await;
    let two = connect(&kit.url).await;
    let table = live.clone();
    let same = live.clone();
    let first = tokio::spawn(async move { migrations::apply(&one, &table).await });
    let second = tokio::spawn(async move { migrations::apply(&two, &same).await });
    kit.client
        .batch_execute("SET statement_timeout = '30s'; INSERT INTO app.live VALUES (1, 'new')")
        .await
        .unwrap();
    assert!(!first.is_finished() && !second.is_finished());
    reader.batch_execute("COMMIT").await.unwrap();
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    migrations::check(&kit.client, &live).await.unwrap();
    migrations::apply(&kit.client, &live).await.unwrap();
    let invalid = "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'app.live_claim_due'::regclass";
    kit.client.batch_execute(invalid).await.unwrap();
    migrations::apply(&kit.client, &live).await.unwrap();
    let valid = "SELECT count(*) FROM pg_index WHERE indrelid = 'app.live'::regclass AND indisvalid";
    assert_eq!(kit.one::<i64>(valid, &[]).await, 4);
    let missing = ClaimTable::builder("app.nothing").build().unwrap();
    assert!(
        migrations::apply(&kit.client, &missing).await.unwrap_err().to_string().contains("no such table")
    );
    // The printed script does the same.
    kit.client.batch_execute("CREATE TABLE app.by_hand (id bigint PRIMARY KEY)").await.unwrap();
    let by_hand = ClaimTable::builder("app.by_hand").build().unwrap();
    for statement in migrations::print(&by_hand).split(";\n").filter(|sql| !sql.is_empty()) {
        kit.client.batch_execute(statement).await.unwrap();
    }
    migrations::check(&kit.client, &by_hand).await.unwrap();
}
