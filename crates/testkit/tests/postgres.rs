//! The private PostgreSQL does what its handle says.

use std::time::Duration;

use anyhow::Result;
use solehold_testkit::{Postgres, wait_for};

const SOON: Duration = Duration::from_secs(30);

async fn ask(postgres: &Postgres, sql: &str) -> Result<String> {
    Ok(postgres.connect().await?.query_one(sql, &[]).await?.try_get(0)?)
}

async fn clock_offset(postgres: &Postgres) -> Result<i64> {
    let sql = "SELECT extract(epoch FROM clock_timestamp())::bigint";
    let theirs: i64 = postgres.connect().await?.query_one(sql, &[]).await?.try_get(0)?;
    let ours = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
    Ok(theirs - i64::try_from(ours)?)
}

async fn write_row(postgres: &Postgres) -> Result<()> {
    Ok(postgres.connect().await?.batch_execute("CREATE TABLE kept AS SELECT 'here' AS word").await?)
}

#[tokio::test]
async fn is_durable_by_default_and_takes_settings() -> Result<()> {
    let postgres =
        Postgres::builder().setting("default_transaction_isolation", "serializable").start().await?;
    assert_eq!(ask(&postgres, "SHOW fsync").await?, "on");
    assert_eq!(ask(&postgres, "SHOW max_connections").await?, "200");
    assert_eq!(ask(&postgres, "SHOW transaction_isolation").await?, "serializable");
    postgres.restart_with(&[("work_mem", "5MB")], &[("PGTZ", "UTC")]).await?;
    assert_eq!(ask(&postgres, "SHOW work_mem").await?, "5MB");
    assert_eq!(ask(&postgres, "SHOW transaction_isolation").await?, "serializable");
    Ok(())
}

#[tokio::test]
async fn keeps_data_and_port_through_stop_and_kill() -> Result<()> {
    let postgres = Postgres::start().await?;
    let url = postgres.url();
    write_row(&postgres).await?;

    postgres.stop().await?;
    assert!(postgres.connect().await.is_err());
    assert!(postgres.pid().is_err());
    postgres.start_again().await?;
    assert_eq!(ask(&postgres, "SELECT word FROM kept").await?, "here");

    let client = postgres.connect().await?;
    postgres.kill9().await?;
    assert!(client.simple_query("SELECT 1").await.is_err());
    postgres.start_again().await?;
    assert_eq!(ask(&postgres, "SELECT word FROM kept").await?, "here");
    assert_eq!(postgres.url(), url);
    Ok(())
}

#[tokio::test]
async fn answers_nothing_while_paused() -> Result<()> {
    let postgres = Postgres::start().await?;
    let client = postgres.connect().await?;
    postgres.pause().await?;
    let mut query = std::pin::pin!(client.simple_query("SELECT 1"));
    let moment = Duration::from_millis(100);
    assert!(tokio::time::timeout(moment, &mut query).await.is_err(), "a paused server answered");
    postgres.resume()?;
    tokio::time::timeout(SOON, query).await??;

    // A paused server can be killed, and one that is paused when its handle goes is no obstacle.
    postgres.pause().await?;
    postgres.kill9().await?;
    postgres.start_again().await?;
    postgres.pause().await
}

#[tokio::test]
async fn gives_each_test_a_database() -> Result<()> {
    let postgres = Postgres::shared().await?;
    let (one, two) = tokio::try_join!(postgres.create_database("it"), postgres.create_database("it"))?;
    assert_ne!(one, two);
    for url in [one, two] {
        let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        client.batch_execute("CREATE TABLE mine (id int)").await?;
    }
    Ok(())
}

#[tokio::test]
async fn shares_one_server_in_a_process() -> Result<()> {
    let (one, two) = tokio::try_join!(Postgres::shared(), Postgres::shared())?;
    assert_eq!(one.pid()?, two.pid()?);
    Ok(())
}

#[tokio::test]
async fn runs_by_a_clock_that_the_test_sets() -> Result<()> {
    let postgres = Postgres::builder().fake_clock().start().await?;
    for offset in [0, 3600, -3600, 86_400] {
        postgres.set_clock_offset(offset)?;
        let difference = clock_offset(&postgres).await? - offset;
        assert!(difference.abs() < 60, "{difference} s away from an offset of {offset} s");
    }
    postgres.stop().await?;
    postgres.set_clock_offset(-86_400)?;
    postgres.start_again().await?;
    assert!((clock_offset(&postgres).await? + 86_400).abs() < 60);
    assert!(Postgres::shared().await?.set_clock_offset(1).is_err());
    Ok(())
}

#[tokio::test]
async fn a_start_that_fails_shows_the_log() {
    let error = Postgres::builder().setting("no_such_setting", "1").start().await.expect_err("it started");
    assert!(format!("{error:#}").contains("no_such_setting"), "{error:#}");
}

#[tokio::test]
async fn is_gone_with_its_handle() -> Result<()> {
    let postgres = Postgres::start().await?;
    let pid = postgres.pid()?;
    let data = ask(&postgres, "SHOW data_directory").await?;
    drop(postgres);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    assert!(!std::path::Path::new(&data).exists());
    Ok(())
}

#[tokio::test]
async fn waits_inside_a_task() -> Result<()> {
    let postgres = Postgres::shared().await?;
    let waiting = tokio::spawn(async move {
        wait_for("an answer", SOON, async || ask(postgres, "SELECT 'yes'").await.ok()).await
    });
    assert_eq!(waiting.await??, "yes");
    Ok(())
}
