//! `solehold rows`: what a reconciler buried is shown and revived, in the application's own table.

mod common;

use anyhow::Result;
use common::{Ran, run};
use serde_json::json;
use solehold_sql::{ClaimTable, migrations};
use solehold_testkit::Postgres;
use tokio_postgres::{Client, NoTls};

/// Five payments, of which the second and the fourth are buried.
async fn payments() -> Result<(String, Client)> {
    let url = Postgres::shared().await?.create_database("rows").await?;
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    client
        .batch_execute("CREATE SCHEMA app; CREATE TABLE app.payments (id bigint PRIMARY KEY, status text)")
        .await?;
    let table = ClaimTable::builder("app.payments")
        .lease("reconcile_lease_owner", "reconcile_lease_until", "reconcile_lease_epoch")
        .attempts("reconcile_attempts")
        .next_attempt("reconcile_next_attempt_at")
        .dead_letter("reconcile_dead_at", "reconcile_dead_reason")
        .build()?;
    migrations::apply(&client, &table).await?;
    let rows = "INSERT INTO app.payments (id, status, reconcile_attempts, reconcile_dead_at, reconcile_dead_reason) VALUES \
        (1, 'pending', 0, NULL, NULL), (2, 'detected', 20, '2026-11-16T10:00:00Z', 'no address'), \
        (3, 'pending', 0, NULL, NULL), (4, 'pending', 20, '2026-11-16T11:00:00Z', 'the node did not answer'), \
        (5, 'pending', 0, NULL, NULL)";
    client.batch_execute(rows).await?;
    Ok((url, client))
}

async fn rows(url: &str, arguments: &str) -> Result<Ran> {
    let table = ["--database", url, "--table", "app.payments", "--prefix", "reconcile_"];
    run(["rows"].into_iter().chain(arguments.split_whitespace()).chain(table)).await
}

async fn buried(client: &Client) -> Result<i64> {
    let sql = "SELECT count(*) FROM app.payments WHERE reconcile_dead_at IS NOT NULL";
    Ok(client.query_one(sql, &[]).await?.get(0))
}

#[tokio::test]
async fn buried_rows_are_listed_shown_and_revived() -> Result<()> {
    let (url, client) = payments().await?;
    let listed = rows(&url, "buried").await?.good()?;
    assert!(listed.lines().next().is_some_and(|line| line.starts_with("ID")), "{listed}");
    assert!(listed.contains("no address") && listed.contains("the node did not answer"), "{listed}");
    let document = rows(&url, "buried --reason node --json").await?.json()?;
    let expected = json!({"buried": [{"id": "4", "state": "pending", "attempts": 20,
        "buried_at": "2026-11-16T11:00:00.000Z", "reason": "the node did not answer"}]});
    assert_eq!(document, expected);

    // It says what it would do, and does nothing.
    let dry = rows(&url, "revive 2 3").await?;
    assert_eq!(dry.code, Some(0), "{dry:?}");
    assert!(dry.stdout.starts_with("1 row of app.payments would be revived:\n"), "{dry:?}");
    assert!(dry.stderr.contains("nothing was changed; run the same command with --yes"), "{dry:?}");
    assert_eq!(buried(&client).await?, 2);

    let revived = rows(&url, "revive 2 --yes").await?.good()?;
    assert!(revived.starts_with("revived 1 row of app.payments: "), "{revived}");
    assert_eq!(buried(&client).await?, 1);
    let again = rows(&url, "revive 2 --yes").await?;
    assert_eq!(again.code, Some(4), "{again:?}");
    assert_eq!(rows(&url, "revive --all --reason other --yes --json").await?.json()?, json!({"revived": []}));
    assert_eq!(rows(&url, "revive --all --yes --json").await?.json()?, json!({"revived": ["4"]}));
    assert_eq!(buried(&client).await?, 0);
    let reset = "SELECT reconcile_attempts, status FROM app.payments WHERE id = 2";
    let row = client.query_one(reset, &[]).await?;
    assert_eq!((row.get::<_, i32>(0), row.get::<_, &str>(1)), (0, "detected"));
    assert_eq!(rows(&url, "buried").await?.stderr, "no such rows of app.payments are buried\n");
    Ok(())
}

#[tokio::test]
async fn wrong_arguments_are_named() -> Result<()> {
    let (url, client) = payments().await?;
    for (arguments, named) in [
        ("rows buried --table app.payments", "--database"),
        ("rows buried --database URL", "--table"),
        ("rows buried --database URL --table app.nothing", "app.nothing"),
        ("rows buried --database URL --table app.payments", "--prefix"),
        ("rows buried --database URL --table app.payments --prefix reconcile_ --limit 0", "limit"),
        ("rows revive x --database URL --table app.payments --prefix reconcile_", "use a number"),
        ("rows revive --database URL --table app.payments --prefix reconcile_", "IDS"),
        ("rows revive 2 --all --database URL --table app.payments", "--all"),
        ("rows buried --database nonsense --table app.payments", "--database"),
    ] {
        let arguments: Vec<&str> =
            arguments.split_whitespace().map(|word| if word == "URL" { &url } else { word }).collect();
        let refused = run(&arguments).await?;
        assert_eq!(refused.code, Some(2), "{arguments:?}: {refused:?}");
        assert!(refused.stderr.contains(named), "{arguments:?} should name {named}: {refused:?}");
    }
    assert_eq!(buried(&client).await?, 2);
    Ok(())
}
