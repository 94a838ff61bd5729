//! An orchestrator that is started before its database.

use std::{fs, process::Stdio};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use solehold_testkit::{Postgres, Solehold, TempDir, free_port};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    process::{Child, Command},
    time::timeout,
};

use crate::world::PATIENCE;

/// Its broker is never there, which it does not need to serve.
fn start(files: &TempDir, database: &str) -> Result<Child> {
    let config = json!({
        "name": "pod-1",
        "kafka": { "brokers": format!("127.0.0.1:{}", free_port()?), "topic": "t", "group": "g", "partitions": 1 },
        "postgres": { "url": database, "wait": "10m" },
        "dispatchers": { "http": { "url": "http://127.0.0.1:9", "report_to": "http://us/reports" } },
        "stages": { "decode": { "task": "/work", "dispatch": "http" } },
        "http": { "listen": "127.0.0.1:0" },
    });
    let file = files.path().join("orchestrator.yaml");
    // YAML takes JSON.
    fs::write(&file, Value::to_string(&config))?;
    let mut command = Command::new(Solehold::binary()?);
    command.arg("orchestrator").arg("--config").arg(&file).kill_on_drop(true);
    Ok(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
}

/// The first line that contains `text`. What comes later is read and forgotten, so that nobody waits to write it.
async fn line_with(stream: impl AsyncRead + Unpin + Send + 'static, text: &str) -> Result<String> {
    let mut lines = BufReader::new(stream).lines();
    let found = async {
        while let Some(line) = lines.next_line().await? {
            if line.contains(text) {
                return Ok(line);
            }
        }
        anyhow::bail!("it ended without {text:?}")
    };
    let found = timeout(PATIENCE, found).await.with_context(|| format!("no {text:?} in time"))?;
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    found
}

#[tokio::test]
async fn an_orchestrator_waits_for_its_database() -> Result<()> {
    let files = TempDir::new()?;
    let postgres = Postgres::start().await?;
    postgres.stop().await?;
    let mut child = start(&files, &postgres.url())?;
    let stdout = child.stdout.take().context("stdout")?;
    let stderr = child.stderr.take().context("stderr")?;
    let waits = line_with(stderr, "cannot reach the database of jobs; waiting for it").await?;
    assert!(waits.contains("Connection refused"), "{waits}");
    postgres.start_again().await?;
    line_with(stdout, "solehold orchestrator pod-1 serves jobs on http://").await?;
    Ok(())
}

#[tokio::test]
async fn an_orchestrator_does_not_wait_for_a_database_that_is_wrong() -> Result<()> {
    let files = TempDir::new()?;
    let url = Postgres::shared().await?.create_database("jobs").await?;
    let (host, _) = url.rsplit_once('/').context("a database")?;
    ends_at_once(&files, &format!("{host}/nowhere"), "[3D000]").await
}

async fn ends_at_once(files: &TempDir, url: &str, why: &str) -> Result<()> {
    let child = start(files, url)?;
    let ended = timeout(PATIENCE, child.wait_with_output()).await??;
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && said.contains(why), "{said}");
    assert!(!said.contains("waiting for it"), "{said}");
    Ok(())
}

#[tokio::test]
async fn an_orchestrator_does_not_wait_for_a_password_that_is_wrong() -> Result<()> {
    let files = TempDir::new()?;
    let postgres = Postgres::builder().password("hunter2").start().await?;
    let url = postgres.create_database("jobs").await?;
    ends_at_once(&files, &url.replace("hunter2", "wr0ng"), "[28P01]").await?;
    ends_at_once(&files, &url.replace(":hunter2", ""), "password missing").await?;
    let mut child = start(&files, &url)?;
    line_with(child.stdout.take().context("stdout")?, "solehold orchestrator pod-1 serves jobs on http://")
        .await?;
    Ok(())
}
