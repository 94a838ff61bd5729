//! A camera pipeline's client against the binary, through a whole life: without a key, as the README starts the server,
//! and with a key of its tenant; on an embedded store and on PostgreSQL. The client is `client.py`, beside this file.

#[path = "../common/mod.rs"]
mod common;

use anyhow::{Result, ensure};
use common::{ask, ran, server};
use solehold_testkit::{Postgres, SoleholdBuilder, package_file};
use tokio::process::Command;

/// A life without a key, and another one with a key of the tenant.
async fn lives(builder: SoleholdBuilder) -> Result<()> {
    let server = builder.start().await?;
    life(server.url(), None).await?;
    let created = ask(&server, "admin key create --name manager --role admin --tenant tenant-01").await?;
    life(server.url(), Some(created.good()?.trim())).await
}

async fn life(url: &str, key: Option<&str>) -> Result<()> {
    let mut client = Command::new("python3");
    client.arg("-B").arg(package_file("tests/pipeline/client.py")).arg(url).args(key).kill_on_drop(true);
    let lived = ran(client).await?;
    ensure!(lived.code == Some(0), "with a key: {}: {}{}", key.is_some(), lived.stdout, lived.stderr);
    Ok(())
}

#[tokio::test]
async fn the_pipeline_s_client_lives_on_an_embedded_store() -> Result<()> {
    lives(server()).await
}

#[tokio::test]
async fn the_pipeline_s_client_lives_on_postgres() -> Result<()> {
    let database = Postgres::shared().await?.create_database("pipeline").await?;
    lives(server().engine(database)).await
}
