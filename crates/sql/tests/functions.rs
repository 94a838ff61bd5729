//! The suite of claims through the SQL functions, against a real PostgreSQL, and what only the functions have.
#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

mod kit;
mod suite;

use kit::driver::{ByFunctions, Case};
use kit::{Kit, connect};
use solehold_sql::functions::{Functions, LOST, NOT_BURIED};
use solehold_sql::{ClaimTable, Error, migrations};
use tokio_postgres::Client;

suite::suite!(ByFunctions);

/// What a caller that looks at no result sees: the outcome is an error, and the transaction cannot commit.
async fn refused(client: &Client, sql: &str) -> (String, String) {
    let error = Error::from(client.simple_query(sql).await.unwrap_err());
    (error.code().unwrap().to_owned(), error.to_string())
}

#[tokio::test]
async fn a_lost_claim_fails_the_transaction_of_a_caller_that_looks_at_nothing() {
    let case = Case::<ByFunctions>::new(1).await;
    let client = &case.client;
    case.claim(1, "a").await;
    client.batch_execute("SELECT app.payments_extend('a', 1, 1, 60)").await.unwrap();
    case.run_out().await;
    case.claim_when_there(1, "b").await;
    for call in [
        "extend('a', 1, 1, 60)",
        "release('a', 1, 1)",
        "defer('a', 1, 1, 5)",
        "fail('a', 1, 1, 'no', 5)",
        "fail('a', 1, 1, 'no', 5, 0)",
        "complete('a', 1, 1, 'pending', 'confirmed')",
        "complete('b', 1, 1, 'pending', 'confirmed')",
        "complete('a', 1, 2, 'pending', 'confirmed', '{\"note\": \"x\"}')",
    ] {
        client.batch_execute("BEGIN; INSERT INTO app.outbox (payment, epoch) VALUES (1, 1)").await.unwrap();
        let (code, message) = refused(client, &format!("SELECT app.payments_{call}")).await;
        assert_eq!(code, LOST, "{call}: {message}");
        assert!(message.contains("row 1 of app.payments"), "{message}");
        // COMMIT of a failed transaction rolls back, and says so in its tag only.
        client.batch_execute("COMMIT").await.unwrap();
    }
    assert_eq!(case.one::<i64>("SELECT count(*) FROM app.outbox", &[]).await, 0);
    assert_eq!(case.one::<String>("SELECT lease_owner || lease_epoch FROM app.payments", &[]).await, "b2");
    client.batch_execute("SELECT app.payments_complete('b', 1, 2, 'pending', 'confirmed')").await.unwrap();
    assert_eq!(case.state(1).await, "confirmed");
    let (_, message) = refused(client, "SELECT app.payments_release('b', 1, 2)").await;
    assert!(message.contains("(ended)"), "{message}");
    let (_, message) = refused(client, "SELECT app.payments_release('b', 7, 2)").await;
    assert!(message.contains("(gone)"), "{message}");
}

#[tokio::test]
async fn a_row_that_fails_too_often_is_buried_and_revived() {
    let case = Case::<ByFunctions>::new(1).await;
    let fail = |epoch: i64| format!("SELECT app.payments_fail('a', 1, {epoch}, 'no address', 0, 2)");
    case.claim_when_there(1, "a").await;
    assert_eq!(case.one::<String>(&fail(1), &[]).await, "deferred");
    case.claim_when_there(1, "a").await;
    assert_eq!(case.one::<String>(&fail(2), &[]).await, "buried");
    assert_eq!(case.one::<String>("SELECT dead_reason FROM app.payments", &[]).await, "no address");
    assert_eq!(case.claim(1, "a").await.len(), 0);
    case.client.batch_execute("SELECT app.payments_revive(1)").await.unwrap();
    assert_eq!(case.claim_when_there(1, "a").await[0].attempts, 1);
    let (code, message) = refused(&case.client, "SELECT app.payments_revive(1)").await;
    assert!(code == NOT_BURIED && message.contains("row 1 of app.payments is not buried"), "{message}");
}

#[tokio::test]
async fn arguments_that_are_wrong_are_named() {
    let case = Case::<ByFunctions>::new(2).await;
    case.claim(2, "a").await;
    for (call, expected) in [
        ("claim(NULL, 1, 60)", "owner"),
        ("claim('', 1, 60)", "owner"),
        ("claim('a', NULL, 60)", "max_rows"),
        ("claim('a', 1, NULL)", "lease_seconds"),
        ("claim('a', 1, 'NaN')", "lease_seconds"),
        ("extend('a', 1, 1, 0)", "lease_seconds"),
        ("extend('a', NULL, 1, 60)", "null"),
        ("extend_all('a', ARRAY[1, 2], ARRAY[1], 60)", "same length"),
        ("defer('a', 1, 1, -1)", "pause_seconds"),
        ("defer('a', 1, 1, 1, 'count')", "'reset' or 'restore'"),
        ("complete_all('a', ARRAY[1], ARRAY[1], ARRAY['pending'], ARRAY['x'], '{}')", "JSON array"),
        ("complete('a', 1, 1, 'pending', 'x', '[]')", "one object"),
        (
            "complete_all('a', ARRAY[1, 2], ARRAY[1, 1], ARRAY['pending', 'pending'], ARRAY['x', 'x'], '[{\"note\": 1}, {}]')",
            "same columns",
        ),
        ("complete('a', 1, 1, 'pending', 'x', '{\"note\\\" = 1 --\": 1}')", "does not exist"),
        ("complete('a', 1, 1, 'pending', 'x', '{\"attempts\": 1}')", "column attempts"),
    ] {
        let (_, message) = refused(&case.client, &format!("SELECT app.payments_{call}")).await;
        assert!(message.contains(expected), "{call} should name {expected}: {message}");
    }
    let held = "SELECT count(*) FROM app.payments WHERE lease_owner = 'a' AND lease_epoch = 1 AND status = 'pending'";
    assert_eq!(case.one::<i64>(held, &[]).await, 2);
}

#[tokio::test]
async fn the_search_path_of_the_caller_changes_nothing() {
    let case = Case::<ByFunctions>::new(3).await;
    // Functions of the same names as PostgreSQL's own, first in the path, and a table of the same name.
    let hostile = "CREATE SCHEMA hostile; CREATE TABLE hostile.payments (id int); \
        CREATE FUNCTION hostile.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT 'infinity'::timestamptz $$; \
        CREATE FUNCTION hostile.array_fill(text, int[]) RETURNS text[] LANGUAGE sql AS $$ SELECT NULL::text[] $$; \
        SET search_path = hostile, pg_catalog";
    case.client.batch_execute(hostile).await.unwrap();
    assert_eq!(case.claim(2, "a").await.len(), 2);
    case.client
        .batch_execute("SELECT app.payments_complete('a', 1, 1, 'pending', 'confirmed')")
        .await
        .unwrap();
    let soon = "SELECT lease_until < now() + interval '1 day' FROM app.payments WHERE id = 2";
    assert!(case.one::<bool>(soon, &[]).await);
    assert_eq!(case.one::<String>("SELECT current_setting('search_path')", &[]).await, "hostile, pg_catalog");
}

/// The rights are the caller's: to have the functions is not to have the table.
#[tokio::test]
async fn a_caller_needs_its_own_rights() {
    let case = Case::<ByFunctions>::new(1).await;
    let database: String = case.one("SELECT current_database()::text", &[]).await;
    let role = format!("nobody_of_{database}");
    let sql = format!("CREATE ROLE {role}; GRANT USAGE ON SCHEMA app TO {role}; SET ROLE {role}");
    case.client.batch_execute(&sql).await.unwrap();
    let (code, _) = refused(&case.client, "SELECT app.payments_claim('a', 1, 60)").await;
    assert_eq!(code, "42501");
    let drop = format!("RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}");
    case.client.batch_execute(&drop).await.unwrap();
}

#[tokio::test]
async fn columns_may_have_the_names_that_we_use() {
    let kit = Kit::new(0).await;
    let sql = "CREATE TABLE app.odd (id int PRIMARY KEY, now text, claim_id text, owner text, ids text, status text); \
        INSERT INTO app.odd VALUES (1, 'a', 'b', 'c', 'd', 'open'), (2, 'e', 'f', 'g', 'h', 'open')";
    kit.client.batch_execute(sql).await.unwrap();
    let table = ClaimTable::builder("app.odd").state("status").order(["now", "claim_id"]);
    let table = table.payload(["now", "claim_id", "owner", "id", "ids"]).build().unwrap();
    migrations::apply(&kit.client, &table).await.unwrap();
    let functions = Functions::describe(&kit.client, &table, Some("app.work_")).await.unwrap();
    functions.apply(&kit.client).await.unwrap();
    let claim = "SELECT concat_ws(' ', claim_id, now, payload_claim_id, payload_owner, id, ids) \
        FROM app.work_claim('me', 1, 60)";
    assert_eq!(kit.one::<String>(claim, &[]).await, "1 a b c 1 d");
    assert_eq!(kit.one::<String>(claim, &[]).await, "2 e f g 2 h");
    let complete = "SELECT app.work_complete('me', 1, 1, 'open', 'done', '{\"now\": \"z\"}')";
    kit.client.batch_execute(complete).await.unwrap();
    assert_eq!(kit.one::<String>("SELECT now FROM app.odd WHERE id = 1", &[]).await, "z");
}

#[tokio::test]
async fn they_are_replaced_and_dropped_and_the_table_stays() {
    let kit = Kit::new(2).await;
    let describe = async |table: ClaimTable| Functions::describe(&kit.client, &table, None).await;
    let narrow = kit::table().payload(["amount"]).build().unwrap();
    let narrow = describe(narrow).await.unwrap();
    narrow.apply(&kit.client).await.unwrap();
    narrow.apply(&kit.client).await.unwrap();
    // Another result: PostgreSQL would refuse to replace it.
    let wide = describe(kit::table().build().unwrap()).await.unwrap();
    let one = connect(&kit.url).await;
    let (first, second) = tokio::join!(wide.apply(&kit.client), wide.apply(&one));
    first.unwrap();
    second.unwrap();
    kit.client.batch_execute("SELECT created_at FROM app.payments_claim('a', 1, 60)").await.unwrap();
    let there = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'app'::regnamespace";
    assert_eq!(kit.one::<i64>(there, &[]).await as usize, wide.names().len());
    wide.remove(&kit.client).await.unwrap();
    assert_eq!(kit.one::<i64>(there, &[]).await, 0);
    assert_eq!(kit.one::<i64>("SELECT count(*) FROM app.payments WHERE lease_epoch = 1", &[]).await, 1);
}

#[tokio::test]
async fn what_is_missing_is_named_before_anything_is_made() {
    let kit = Kit::new(1).await;
    kit.client.batch_execute("CREATE TABLE app.bare (id bigint PRIMARY KEY)").await.unwrap();
    let described = async |table: solehold_sql::ClaimTableBuilder, prefix: Option<&str>| {
        let table = table.build().unwrap();
        let functions = Functions::describe(&kit.client, &table, prefix).await;
        match functions {
            Ok(functions) => functions.apply(&kit.client).await.unwrap_err().to_string(),
            Err(error) => error.to_string(),
        }
    };
    let bare = || ClaimTable::builder("app.bare");
    let error = described(bare(), None).await;
    assert!(error.contains("lease_owner") && error.contains("apply the migrations"), "{error}");
    let columns =
        "ALTER TABLE app.bare ADD lease_owner text, ADD lease_until timestamptz, ADD lease_epoch bigint";
    kit.client.batch_execute(columns).await.unwrap();
    let error = described(bare(), None).await;
    assert!(error.contains("bare_claim_fresh") && error.contains("apply the migrations"), "{error}");
    migrations::apply(&kit.client, &bare().build().unwrap()).await.unwrap();
    let error = described(bare(), Some(&"x".repeat(60))).await;
    assert!(error.contains("prefix of the functions"), "{error}");
    let error = described(bare().claimable("nothing = 1"), None).await;
    assert!(error.contains("nothing"), "{error}");
    let error = described(bare().claimable("'$solehold$' <> ''"), None).await;
    assert!(error.contains("$solehold$"), "{error}");
    // A table without state and dead letter has the functions that make sense for it.
    let functions = Functions::describe(&kit.client, &bare().build().unwrap(), None).await.unwrap();
    functions.apply(&kit.client).await.unwrap();
    assert!(!functions.names().iter().any(|name| name.contains("complete") || name.contains("revive")));
    kit.client
        .batch_execute("INSERT INTO app.bare VALUES (1); SELECT app.bare_claim('a', 1, 60)")
        .await
        .unwrap();
    let (_, message) = refused(&kit.client, "SELECT app.bare_fail('a', 1, 1, 'no', 1, 3)").await;
    assert!(message.contains("dead-letter columns"), "{message}");
    assert_eq!(kit.one::<String>("SELECT app.bare_fail('a', 1, 1, 'no', 1)", &[]).await, "deferred");
}
