//! `solehold sql`: a table is prepared for claims from any language, and what is missing is named.

mod common;

use anyhow::{Context, Result};
use common::{Ran, run};
use solehold_testkit::Postgres;
use tokio_postgres::{Client, NoTls};

async fn payments() -> Result<(String, Client)> {
    let url = Postgres::shared().await?.create_database("sql").await?;
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    let table = "CREATE SCHEMA app; CREATE TABLE app.payments (id bigint PRIMARY KEY, status text NOT NULL DEFAULT 'pending', \
        created_at timestamptz NOT NULL DEFAULT now(), address text); INSERT INTO app.payments (id, address) VALUES (1, 'x')";
    client.batch_execute(table).await?;
    Ok((url, client))
}

async fn sql(url: &str, arguments: &[&str]) -> Result<Ran> {
    let table = ["--database", url, "--table", "app.payments", "--prefix", "reconcile_"];
    let rows =
        ["--claimable", "status = 'pending'", "--order", "created_at", "--payload", "address,created_at"];
    run(["sql"].iter().chain(arguments).chain(&table).chain(&rows)).await
}

#[tokio::test]
async fn a_table_is_prepared_and_its_rows_are_claimed_by_nothing_but_sql() -> Result<()> {
    let (url, client) = payments().await?;
    let early = sql(&url, &["functions", "--apply"]).await?;
    assert_eq!(early.code, Some(2), "{early:?}");
    assert!(
        early.stderr.contains("reconcile_lease_owner") && early.stderr.contains("sql migrations --apply"),
        "{early:?}"
    );
    let printed = sql(&url, &["migrations"]).await?.good()?;
    assert!(printed.contains("ADD COLUMN IF NOT EXISTS \"reconcile_lease_epoch\" bigint"), "{printed}");
    let migrated = sql(&url, &["migrations", "--apply"]).await?.good()?;
    assert!(migrated.contains("payments_claim_fresh"), "{migrated}");

    // What is printed can be applied by hand, and nothing is changed by printing it.
    let script = sql(&url, &["functions"]).await?.good()?;
    let made = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'app'::regnamespace";
    assert_eq!(client.query_one(made, &[]).await?.get::<_, i64>(0), 0);
    client.batch_execute(&script).await?;
    let made_by_hand: i64 = client.query_one(made, &[]).await?.get(0);
    let applied = sql(&url, &["functions", "--apply", "--json"]).await?.json()?;
    let names = applied["names"].as_array().context("the names")?;
    assert_eq!(
        (names.len() as i64, client.query_one(made, &[]).await?.get::<_, i64>(0)),
        (made_by_hand, made_by_hand)
    );

    let row = client
        .query_one("SELECT claim_id, claim_epoch, address FROM app.payments_claim('go-1', 10, 30)", &[])
        .await?;
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1), row.get::<_, &str>(2)), (1, 1, "x"));
    client.batch_execute("SELECT app.payments_complete('go-1', 1, 1, 'pending', 'confirmed')").await?;
    let guard = sql(&url, &["guard"]).await?.good()?;
    assert!(guard.contains("CREATE TRIGGER \"payments_claim_guard\" BEFORE UPDATE"), "{guard}");
    let triggers = "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'app.payments'::regclass";
    for (arguments, expected) in [(&["guard", "--apply"][..], 1), (&["guard", "--apply", "--drop"], 0)] {
        sql(&url, arguments).await?.good()?;
        assert_eq!(client.query_one(triggers, &[]).await?.get::<_, i64>(0), expected, "{arguments:?}");
    }
    let drop = sql(&url, &["functions", "--drop"]).await?.good()?;
    assert!(drop.contains("DROP FUNCTION IF EXISTS \"app\".\"payments_claim\";"), "{drop}");
    let dropped = sql(&url, &["functions", "--drop", "--apply"]).await?.good()?;
    assert!(dropped.starts_with("dropped the functions of app.payments"), "{dropped}");
    assert_eq!(client.query_one(made, &[]).await?.get::<_, i64>(0), 0);
    Ok(())
}

#[tokio::test]
async fn wrong_arguments_are_named() -> Result<()> {
    let (url, _client) = payments().await?;
    sql(&url, &["migrations", "--apply"]).await?.good()?;
    for (arguments, named) in [
        ("sql functions --table app.payments", "--database"),
        ("sql functions --database URL", "--table"),
        ("sql migrations", "--table"),
        ("sql functions --database URL --table app.nothing", "app.nothing"),
        ("sql functions --database URL --table app.payments", "--prefix"),
        (
            "sql functions --database URL --table app.payments --prefix reconcile_ --payload nothing",
            "nothing",
        ),
        (
            "sql functions --database URL --table app.payments --prefix reconcile_ --function-prefix a-b",
            "a-b",
        ),
        ("sql migrations --table app.payments --claimable (true", "claimable"),
    ] {
        let arguments: Vec<&str> =
            arguments.split_whitespace().map(|word| if word == "URL" { &url } else { word }).collect();
        let refused = run(&arguments).await?;
        assert_eq!(refused.code, Some(2), "{arguments:?}: {refused:?}");
        assert!(refused.stderr.contains(named), "{arguments:?} should name {named}: {refused:?}");
    }
    Ok(())
}
