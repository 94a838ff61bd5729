//! Fenced writes in PostgreSQL, in every form, with a paused writer and the unfenced control beside it.

#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

use std::time::Duration;

use solehold_sql::fenced::{Fencing, Marks, NO_TOKEN, STALE, column, guarded_update, is_stale};
use solehold_testkit::{Postgres, wait_for};
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

async fn database() -> (Client, String) {
    let url = Postgres::shared().await.unwrap().create_database("fenced").await.unwrap();
    (connect(&url).await, url)
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn text(client: &Client, sql: &str) -> String {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_paused_writer_is_refused_by_the_column() {
    let (client, _) = database().await;
    let tables = "CREATE TABLE tracks (scene_id text PRIMARY KEY, positions text); \
         CREATE TABLE unfenced (scene_id text PRIMARY KEY, positions text); \
         INSERT INTO tracks VALUES ('lobby', ''); INSERT INTO unfenced VALUES ('lobby', '')";
    client.batch_execute(tables).await.unwrap();
    client.batch_execute(&column("tracks", "fence").unwrap()).await.unwrap();
    let fenced = guarded_update("tracks", "scene_id", "fence", &["positions"]).unwrap();
    let control = "UPDATE unfenced SET positions = $2 WHERE scene_id = $1";
    let write = async |token: i64, what: &str| {
        client.execute(control, &[&"lobby", &what]).await.unwrap();
        client.execute(&fenced, &[&"lobby", &token, &what]).await.unwrap()
    };
    assert_eq!(write(7, "of the first").await, 1);
    assert_eq!(write(9, "of the second").await, 1);
    // The first was paused after it had looked at its clock.
    assert_eq!(write(7, "of the first, late").await, 0);
    assert_eq!(write(9, "of the second again").await, 1);
    assert_eq!(write(7, "late again").await, 0);
    assert_eq!(text(&client, "SELECT positions FROM tracks").await, "of the second again");
    assert_eq!(text(&client, "SELECT positions FROM unfenced").await, "late again", "without a fence");
}

#[tokio::test]
async fn a_paused_writer_is_refused_by_the_trigger_whatever_it_writes() {
    let (mut client, _) = database().await;
    let marks = Marks::new("fences").unwrap();
    client.batch_execute("CREATE TABLE tracks (id int PRIMARY KEY, scene_id text, at int)").await.unwrap();
    for _ in 0..2 {
        client.batch_execute(&marks.schema()).await.unwrap();
        client.batch_execute(&marks.trigger("tracks", "scene", "scene_id").unwrap()).await.unwrap();
    }
    let mut write = async |token: Option<u64>, sql: &str| {
        let transaction = client.transaction().await.unwrap();
        if let Some(token) = token {
            marks.show(&transaction, token).await.unwrap();
        }
        match transaction.execute(sql, &[]).await {
            Ok(_) => transaction.commit().await.map(|()| "done".to_owned()).unwrap(),
            Err(error) => {
                assert_eq!(is_stale(&error), error.code().unwrap().code() == STALE);
                let words = error.as_db_error().unwrap().message().to_owned();
                format!("{}: {words}", error.code().unwrap().code())
            }
        }
    };
    let stale = |shown: u64| format!("{STALE}: token {shown} of scene/lobby is stale, the newest is 9");
    assert_eq!(write(Some(7), "INSERT INTO tracks VALUES (1, 'lobby', 1)").await, "done");
    assert_eq!(write(Some(9), "UPDATE tracks SET at = 2").await, "done");
    assert_eq!(write(Some(7), "UPDATE tracks SET at = 3").await, stale(7));
    assert_eq!(write(Some(8), "INSERT INTO tracks VALUES (2, 'lobby', 1)").await, stale(8));
    assert_eq!(write(Some(7), "DELETE FROM tracks").await, stale(7));
    assert_eq!(write(Some(7), "INSERT INTO tracks VALUES (3, 'hall', 1)").await, "done", "another resource");
    // A row cannot be moved out of its scene, nor into another, under an old token.
    assert_eq!(write(Some(8), "UPDATE tracks SET scene_id = 'hall' WHERE id = 1").await, stale(8));
    assert_eq!(write(Some(8), "UPDATE tracks SET scene_id = 'lobby' WHERE id = 3").await, stale(8));
    let none = format!("{NO_TOKEN}: tracks is fenced, and this transaction shows no token");
    assert_eq!(write(None, "DELETE FROM tracks").await, none);
    // The mark stays when the last row is gone.
    assert_eq!(write(Some(9), "DELETE FROM tracks WHERE scene_id = 'lobby'").await, "done");
    assert_eq!(write(Some(7), "INSERT INTO tracks VALUES (1, 'lobby', 1)").await, stale(7));
}

/// Runs statements in one transaction under a token: "done", or the code and message of the refusal.
async fn write(client: &mut Client, token: Option<u64>, statements: &[&str]) -> String {
    let transaction = client.transaction().await.unwrap();
    if let Some(token) = token {
        Marks::new("fences").unwrap().show(&transaction, token).await.unwrap();
    }
    for sql in statements {
        if let Err(error) = transaction.batch_execute(sql).await {
            let refused = error.as_db_error().unwrap();
            return format!("{}: {}", refused.code().code(), refused.message());
        }
    }
    transaction.commit().await.map(|()| "done".to_owned()).unwrap()
}

async fn fence(client: &Client) {
    let marks = Marks::new("fences").unwrap();
    client.batch_execute(&marks.schema()).await.unwrap();
    client.batch_execute(&marks.trigger("tracks", "scene", "scene_id").unwrap()).await.unwrap();
}

#[tokio::test]
async fn truncate_is_refused_under_an_old_token_or_none() {
    let (mut client, url) = database().await;
    client.batch_execute("CREATE TABLE tracks (id int PRIMARY KEY, scene_id text, at int)").await.unwrap();
    // Rows from before the fence have no mark yet.
    client.batch_execute("INSERT INTO tracks VALUES (1, 'hall', 1)").await.unwrap();
    fence(&client).await;
    assert_eq!(write(&mut client, Some(9), &["INSERT INTO tracks VALUES (2, 'lobby', 1)"]).await, "done");
    let none = format!("{NO_TOKEN}: tracks is fenced, and this transaction shows no token");
    assert_eq!(write(&mut client, None, &["TRUNCATE tracks"]).await, none);
    let stale = format!("{STALE}: token 8 of scene/lobby is stale, the newest is 9");
    assert_eq!(write(&mut client, Some(8), &["TRUNCATE tracks"]).await, stale);
    assert_eq!(text(&client, "SELECT count(*)::text FROM tracks").await, "2");
    // A snapshot may be older than rows that TRUNCATE removes, and cannot judge them.
    let mut other = connect(&url).await;
    let refused = {
        let transaction =
            other.build_transaction().isolation_level(tokio_postgres::IsolationLevel::RepeatableRead);
        let transaction = transaction.start().await.unwrap();
        Marks::new("fences").unwrap().show(&transaction, 9).await.unwrap();
        transaction.batch_execute("TRUNCATE tracks").await.unwrap_err()
    };
    assert!(refused.as_db_error().unwrap().message().contains("read committed"), "{refused:?}");
    assert_eq!(write(&mut client, Some(9), &["TRUNCATE tracks"]).await, "done");
    assert_eq!(text(&client, "SELECT count(*)::text FROM tracks").await, "0");
    // It has raised the marks of all that it removed.
    let stale = format!("{STALE}: token 8 of scene/hall is stale, the newest is 9");
    assert_eq!(write(&mut client, Some(8), &["INSERT INTO tracks VALUES (3, 'hall', 1)"]).await, stale);
    assert_eq!(write(&mut client, Some(8), &["INSERT INTO tracks VALUES (3, 'garden', 1)"]).await, "done");
}

/// The trigger of the whole table does not fire for it.
#[tokio::test]
async fn truncate_of_one_partition_by_its_own_name_is_refused_under_an_old_token_or_none() {
    let (mut client, _) = database().await;
    let tables = "CREATE TABLE tracks (id int, scene_id text, at int) PARTITION BY LIST (scene_id); \
         CREATE TABLE \"the lobby's\" PARTITION OF tracks FOR VALUES IN ('lobby') PARTITION BY RANGE (at); \
         CREATE TABLE early PARTITION OF \"the lobby's\" FOR VALUES FROM (0) TO (10); \
         CREATE TABLE hall PARTITION OF tracks FOR VALUES IN ('hall')";
    client.batch_execute(tables).await.unwrap();
    fence(&client).await;
    let rows = ["INSERT INTO tracks VALUES (1, 'lobby', 1)", "INSERT INTO tracks VALUES (2, 'hall', 1)"];
    assert_eq!(write(&mut client, Some(9), &rows).await, "done");
    let stale = format!("{STALE}: token 8 of scene/lobby is stale, the newest is 9");
    for name in ["early", "\"the lobby's\""] {
        let truncate = format!("TRUNCATE {name}");
        assert_eq!(write(&mut client, Some(8), &[&truncate]).await, stale, "{name}");
        let none = write(&mut client, None, &[&truncate]).await;
        assert!(none.starts_with(NO_TOKEN), "{name}: {none}");
    }
    assert_eq!(text(&client, "SELECT count(*)::text FROM tracks").await, "2");
    // One that is made later is guarded when the SQL is applied again.
    client.batch_execute("CREATE TABLE late PARTITION OF tracks FOR VALUES IN ('garden')").await.unwrap();
    fence(&client).await;
    assert_eq!(write(&mut client, Some(9), &["INSERT INTO tracks VALUES (3, 'garden', 1)"]).await, "done");
    let stale = format!("{STALE}: token 8 of scene/garden is stale, the newest is 9");
    assert_eq!(write(&mut client, Some(8), &["TRUNCATE late"]).await, stale);
    assert_eq!(write(&mut client, Some(9), &["TRUNCATE late", "TRUNCATE early"]).await, "done");
    assert_eq!(text(&client, "SELECT count(*)::text FROM tracks").await, "1");
    assert_eq!(write(&mut client, Some(9), &["TRUNCATE tracks"]).await, "done");
    assert_eq!(text(&client, "SELECT count(*)::text FROM tracks").await, "0");
}

#[tokio::test]
async fn a_later_trigger_cannot_move_a_row_past_the_fence() {
    let (mut client, _) = database().await;
    let tables = "CREATE TABLE tracks (id int PRIMARY KEY, scene_id text, at int);
        CREATE FUNCTION redirect() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN IF NEW.at = 13 THEN NEW.scene_id := 'lobby'; END IF; RETURN NEW; END $$;
        CREATE TRIGGER zz_redirect BEFORE INSERT OR UPDATE ON tracks FOR EACH ROW EXECUTE FUNCTION redirect()";
    client.batch_execute(tables).await.unwrap();
    fence(&client).await;
    assert_eq!(write(&mut client, Some(9), &["INSERT INTO tracks VALUES (1, 'lobby', 1)"]).await, "done");
    let stale = format!("{STALE}: token 7 of scene/lobby is stale, the newest is 9");
    assert_eq!(write(&mut client, Some(7), &["INSERT INTO tracks VALUES (2, 'hall', 13)"]).await, stale);
    assert_eq!(write(&mut client, Some(7), &["INSERT INTO tracks VALUES (2, 'hall', 1)"]).await, "done");
    assert_eq!(write(&mut client, Some(7), &["UPDATE tracks SET at = 13 WHERE id = 2"]).await, stale);
    assert_eq!(text(&client, "SELECT string_agg(scene_id, ' ' ORDER BY id) FROM tracks").await, "lobby hall");
}

#[tokio::test]
async fn a_fence_of_the_first_form_is_replaced_by_applying_it_again() {
    let (mut client, _) = database().await;
    client.batch_execute("CREATE TABLE tracks (id int PRIMARY KEY, scene_id text, at int)").await.unwrap();
    client.batch_execute(include_str!("fence_of_the_first_form.sql")).await.unwrap();
    assert_eq!(write(&mut client, Some(9), &["INSERT INTO tracks VALUES (1, 'lobby', 1)"]).await, "done");
    let stale = format!("{STALE}: token 7 of scene/lobby is stale, the newest is 9");
    for _ in 0..2 {
        // The new function serves the trigger that is there, too.
        client.batch_execute(&Marks::new("fences").unwrap().schema()).await.unwrap();
        assert_eq!(write(&mut client, Some(9), &["UPDATE tracks SET at = at + 1"]).await, "done");
        assert_eq!(write(&mut client, Some(7), &["UPDATE tracks SET at = 0"]).await, stale);
        fence(&client).await;
    }
    let triggers = "SELECT string_agg(tgname::text, ' ' ORDER BY tgname) FROM pg_trigger WHERE tgrelid = 'tracks'::regclass";
    assert_eq!(text(&client, triggers).await, "solehold_fence solehold_fence_truncate");
    assert_eq!(write(&mut client, Some(7), &["UPDATE tracks SET at = 0"]).await, stale);
    assert_eq!(write(&mut client, Some(7), &["TRUNCATE tracks"]).await, stale);
    assert_eq!(text(&client, "SELECT at::text FROM tracks").await, "3");
}

#[tokio::test]
async fn a_mark_that_a_trigger_raised_is_no_longer_of_the_former_session() {
    let (mut client, _) = database().await;
    client.batch_execute("CREATE TABLE tracks (id int PRIMARY KEY, scene_id text, at int)").await.unwrap();
    fence(&client).await;
    let marks = Marks::new("fences").unwrap();
    let one = Some(Uuid::from_u128(1));
    let two = Some(Uuid::from_u128(2));
    assert_eq!(marks.admit(&client, "scene/lobby", 7, one).await.unwrap(), Fencing::Admitted);
    assert_eq!(write(&mut client, Some(9), &["INSERT INTO tracks VALUES (1, 'lobby', 1)"]).await, "done");
    assert_eq!(marks.admit(&client, "scene/lobby", 9, two).await.unwrap(), Fencing::Admitted);
    assert_eq!(marks.admit(&client, "scene/lobby", 9, one).await.unwrap(), Fencing::Stale { newest: 9 });
}

#[tokio::test]
async fn a_statement_of_many_rows_leaves_one_version_of_its_mark() {
    let (mut client, url) = database().await;
    client.batch_execute("CREATE TABLE tracks (id int PRIMARY KEY, scene_id text, at int)").await.unwrap();
    fence(&client).await;
    let insert = "INSERT INTO tracks SELECT i, 'lobby', 1 FROM generate_series(1, 500) AS i";
    assert_eq!(write(&mut client, Some(9), &[insert]).await, "done");
    let version = "SELECT ctid::text FROM fences";
    let first = text(&client, version).await;
    assert_eq!(first, "(0,1)");
    assert_eq!(write(&mut client, Some(9), &["UPDATE tracks SET at = 2"]).await, "done");
    assert_eq!(text(&client, version).await, first);
    // Though nothing was written to it, the mark is locked: a newer token waits for the older one to commit.
    let transaction = client.transaction().await.unwrap();
    let marks = Marks::new("fences").unwrap();
    marks.show(&transaction, 9).await.unwrap();
    transaction.batch_execute("UPDATE tracks SET at = 3").await.unwrap();
    let newer = tokio::spawn({
        let marks = marks.clone();
        let client = connect(&url).await;
        async move { marks.admit(&client, "scene/lobby", 10, None).await.unwrap() }
    });
    let waits = "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let watcher = connect(&url).await;
    wait_for("the newer token to wait", Duration::from_secs(60), async || {
        watcher.query_one(waits, &[]).await.unwrap().get::<_, bool>(0)
    })
    .await
    .unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(newer.await.unwrap(), Fencing::Admitted);
    assert!(write(&mut client, Some(9), &["UPDATE tracks SET at = 4"]).await.starts_with(STALE));
}

#[tokio::test]
async fn rows_of_no_resource_are_refused_by_name() {
    let (mut client, _) = database().await;
    client.batch_execute("CREATE TABLE tracks (id int PRIMARY KEY, scene_id text, at int)").await.unwrap();
    fence(&client).await;
    let refused = write(&mut client, Some(9), &["INSERT INTO tracks VALUES (1, NULL, 1)"]).await;
    assert!(refused.contains("scene_id of tracks is null"), "{refused}");
    let marks = Marks::new("fences").unwrap();
    for kind in ["", "a\nb"] {
        assert!(marks.trigger("tracks", kind, "scene_id").unwrap_err().to_string().contains("kind"));
    }
    client.batch_execute(&marks.trigger("tracks", "it's a \\ scene", "scene_id").unwrap()).await.unwrap();
    assert_eq!(write(&mut client, Some(9), &["INSERT INTO tracks VALUES (1, 'x', 1)"]).await, "done");
    assert_eq!(text(&client, "SELECT resource FROM fences").await, "it's a \\ scene/x");
}

#[tokio::test]
async fn a_mark_is_raised_in_the_transaction_of_the_write() {
    let (mut client, url) = database().await;
    let mut other = connect(&url).await;
    let marks = Marks::new("fences").unwrap();
    client.batch_execute(&marks.schema()).await.unwrap();
    let one = Some(Uuid::from_u128(1));
    let two = Some(Uuid::from_u128(2));

    // A write that is rolled back has raised nothing.
    let transaction = client.transaction().await.unwrap();
    assert_eq!(marks.admit(&transaction, "scene/lobby", 9, one).await.unwrap(), Fencing::Admitted);
    transaction.rollback().await.unwrap();
    assert_eq!(marks.admit(&client, "scene/lobby", 7, None).await.unwrap(), Fencing::Admitted);

    // While one under a newer token is under way, an older one waits for its end, and is refused.
    let transaction = client.transaction().await.unwrap();
    assert_eq!(marks.admit(&transaction, "scene/lobby", 9, one).await.unwrap(), Fencing::Admitted);
    let late = tokio::spawn({
        let marks = marks.clone();
        async move {
            let transaction = other.transaction().await.unwrap();
            marks.admit(&transaction, "scene/lobby", 7, None).await.unwrap()
        }
    });
    transaction.commit().await.unwrap();
    assert_eq!(late.await.unwrap(), Fencing::Stale { newest: 9 });

    assert_eq!(marks.admit(&client, "scene/lobby", 9, two).await.unwrap(), Fencing::Stale { newest: 9 });
    assert_eq!(marks.admit(&client, "scene/lobby", 9, one).await.unwrap(), Fencing::Admitted);
    assert_eq!(marks.admit(&client, "scene/lobby", 9, None).await.unwrap(), Fencing::Admitted);
    assert_eq!(marks.admit(&client, "scene/lobby", 10, two).await.unwrap(), Fencing::Admitted);
    for (resource, token) in [("", 1), ("scene/lobby", 0), ("scene/lobby", u64::MAX)] {
        let refused = marks.admit(&client, resource, token, None).await.unwrap_err().to_string();
        assert!(refused.starts_with("invalid "), "{refused}");
    }
    assert!(Marks::new("fences; DROP TABLE x").is_err());
}
