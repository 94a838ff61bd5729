//! An embedded store whose disk has no room, as a process: a bound on the size of its files stands in for the disk.

mod common;

use std::{fs::Permissions, os::unix::fs::PermissionsExt as _};

use anyhow::{Context, Result, ensure};
use common::{BINARY, SOON, ask, server, write};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::Value;
use solehold_testkit::{Solehold, TempDir, wait_for};

/// The server with a signal ignored that would end it in place of a failing write.
fn ignoring_the_bound(folder: &TempDir) -> Result<std::path::PathBuf> {
    let script =
        write(folder.path(), "solehold", &format!("#!/bin/sh\ntrap '' XFSZ\nexec {BINARY} \"$@\"\n"))?;
    std::fs::set_permissions(&script, Permissions::from_mode(0o755))?;
    Ok(script.into())
}

/// No file of the server may grow beyond this, as if the disk were full.
fn bound(server: &Solehold, bytes: Option<u64>) -> Result<()> {
    let pid = Pid::from_raw(server.pid()?.cast_signed()).context("a process id")?;
    prlimit(Some(pid), Resource::Fsize, Rlimit { current: bytes, maximum: None })?;
    Ok(())
}

async fn ready(server: &Solehold) -> Result<(u16, Value)> {
    let response = reqwest::get(format!("{}/readyz", server.url())).await?;
    Ok((response.status().as_u16(), serde_json::from_str(&response.text().await?)?))
}

async fn is_up(server: &Solehold, value: u8) -> Result<bool> {
    let metrics = reqwest::get(format!("{}/metrics", server.url())).await?.text().await?;
    Ok(metrics.contains(&format!("solehold_store_up {value}")))
}

#[tokio::test]
async fn a_store_that_cannot_be_written_is_not_ready_and_recovers_by_itself() -> Result<()> {
    let folder = TempDir::new()?;
    let server = server().binary(ignoring_the_bound(&folder)?).start().await?;
    ask(&server, "lease acquire job/before --holder ann --ttl 5m").await?.good()?;
    ensure!(ready(&server).await?.0 == 200, "ready at first");

    bound(&server, Some(1))?;
    wait_for("503 from /readyz", SOON, async || ready(&server).await.is_ok_and(|(status, _)| status == 503))
        .await?;
    wait_for("solehold_store_up 0", SOON, async || is_up(&server, 0).await.unwrap_or_default()).await?;
    let (_, problem) = ready(&server).await?;
    let detail = problem["detail"].as_str().unwrap_or_default();
    ensure!(detail.contains("can be read, but not written: cannot write the journal"), "{problem}");
    for n in 0..5 {
        let refused = ask(&server, &format!("lease acquire job/{n} --holder ann")).await?;
        ensure!(refused.code == Some(5), "{refused:?}");
    }
    // Reads go on, and it stays unready meanwhile: a read says nothing about writing.
    ask(&server, "lease get job/before").await?.good()?;
    ensure!(ready(&server).await?.0 == 503, "ready while nothing can be written");

    bound(&server, None)?;
    wait_for("200 from /readyz", SOON, async || ready(&server).await.is_ok_and(|(status, _)| status == 200))
        .await?;
    wait_for("solehold_store_up 1", SOON, async || is_up(&server, 1).await.unwrap_or_default()).await?;
    ask(&server, "lease acquire job/after --holder ann").await?.good()?;
    ask(&server, "lease get job/before").await?.good()?;

    server.terminate().await?;
    let logs = server.logs();
    let lines = |part: &str| logs.lines().filter(|line| line.contains(part)).count();
    ensure!(lines("the journal cannot be written; serving reads only") == 1, "{logs}");
    ensure!(lines("the journal can be written again") == 1, "{logs}");
    ensure!(lines("maintenance failed") <= 2, "{logs}");
    Ok(())
}
