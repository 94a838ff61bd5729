//! Clients that do not read what they asked for.

use std::time::Duration;

use anyhow::{Result, ensure};
use reqwest::Client;
use serde_json::json;
use solehold_testkit::wait_for;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    common::{SOON, server},
    crowd, mib_for_crowd,
    wire::{connect_all, connect_narrow, pour, problem, said_to},
    world::World,
};

/// Few connections, each of which would fill much.
const FEW: usize = 32;
/// A connection that takes nothing for this long has stopped reading.
const FULL_AFTER: Duration = Duration::from_millis(500);

#[tokio::test]
async fn idle_connections_cost_little() -> Result<()> {
    let world = World::new().await?;
    let idle = connect_all(world.address(), crowd()).await?;
    let are_open = || async { world.connections().await.is_ok_and(|open| open >= crowd() as u64) };
    wait_for("all connections to be open", SOON, are_open).await?;
    world.survives(&format!("{} idle connections", idle.len()), mib_for_crowd(32)).await
}

#[tokio::test]
async fn idle_watches_cost_little() -> Result<()> {
    let world = World::new().await?;
    let mut watches = connect_all(world.address(), crowd() - 1).await?;
    for watch in &mut watches {
        watch.write_all(b"GET /api/v1/watch HTTP/1.1\r\nHost: localhost\r\n\r\n").await?;
    }
    for watch in &mut watches {
        let count = tokio::time::timeout(SOON, watch.read(&mut [0; 4_096])).await??;
        ensure!(count > 0, "a watch was closed");
    }
    world.survives(&format!("{} idle watches", watches.len()), mib_for_crowd(128)).await
}

/// What nobody reads is not kept for anyone: frames are made when a connection can take them.
#[tokio::test]
async fn watchers_that_never_read_keep_nothing() -> Result<()> {
    let world = World::new().await?;
    let mut watches = Vec::new();
    for _ in 0..FEW {
        let mut watch = connect_narrow(world.address()).await?;
        watch.write_all(b"GET /api/v1/watch?from=1.0 HTTP/1.1\r\nHost: localhost\r\n\r\n").await?;
        watches.push(watch);
    }
    let http = Client::new();
    let note = "x".repeat(30_000);
    for number in 0..crowd() {
        let url = format!("{}/api/v1/resources/job/{}", world.server.url(), number % 16);
        let body = json!({"attributes": {"note": note, "number": number}}).to_string();
        http.put(url).body(body).send().await?.error_for_status()?;
    }
    world.survives(&format!("{FEW} watchers that never read {} events", crowd()), 256).await
}

/// A client that sends requests and never reads an answer took a connection for ever.
#[tokio::test]
async fn a_client_that_never_reads_is_disconnected() -> Result<()> {
    let world = World::with_idle_timeout("3s").await?;
    let request = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(100);
    let mut full = Vec::new();
    for _ in 0..FEW {
        let mut stream = connect_narrow(world.address()).await?;
        let (written, _) = pour(&mut stream, &request, 64 * 1024 * 1024, FULL_AFTER).await;
        ensure!(written < 64 * 1024 * 1024, "the server has read {written} bytes of requests");
        full.push(stream);
    }
    world.is_served().await?;
    let are_gone = || async { world.connections().await.is_ok_and(|open| open < FEW as u64 / 2) };
    wait_for("the server to close them", SOON, are_gone).await?;
    drop(full);
    world.survives(&format!("{FEW} clients that pipeline and never read"), 256).await
}

/// One watch more than the server allows is told the bound.
#[tokio::test]
async fn one_watch_too_many_is_told_the_bound() -> Result<()> {
    let server = server().env("SOLEHOLD_LIMITS_WATCHES_MAX", "1").start().await?;
    let watch = reqwest::get(format!("{}/api/v1/watch", server.url())).await?;
    ensure!(watch.status() == 200);
    let address = server.url().trim_start_matches("http://");
    let request = b"GET /api/v1/watch HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let refused = said_to(address, request).await?;
    let refused = problem(&refused)?;
    ensure!(refused["code"] == "overloaded" && refused["limit"]["name"] == "watches", "{refused}");
    Ok(())
}
