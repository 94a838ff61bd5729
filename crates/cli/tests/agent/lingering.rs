//! What an agent leaves behind: workers that do not want to end, servers that hang, files.

use std::{fs, time::Instant};

use anyhow::{Context, Result};
use solehold_testkit::{Postgres, TempDir, wait_for};

use crate::{
    common::{SOON, ask, server},
    world::{Agent, held_by, holder, script},
};

/// A worker that ignores SIGTERM is being stopped for another reason, and has longer for that than the drain leaves.
/// Nothing is released before it has ended.
#[tokio::test]
async fn a_drain_releases_nothing_that_is_still_worked_on() -> Result<()> {
    let server = server().start().await?;
    let folder = TempDir::new()?;
    let written = folder.path().join("written");
    let worker = serde_json::to_string(&format!(
        r#"
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open("{}-" + os.environ["SOLEHOLD_RESOURCE"].replace("/", "-"), "w") as file:
    while True:
        file.seek(0)
        file.write("%.6f" % time.time())
        file.flush()
        time.sleep(0.001)
"#,
        written.display()
    ))?;
    let worker =
        format!("  command: [python3, -c, {worker}]\n  protocol: none\n  stop_timeout_seconds: 600\n");
    let top = "resources: [job/a]\nmax_resources_per_worker: 1\ndrain_budget_seconds: 4";
    let agent = Agent::start(&server, "first", top, &worker).await?;
    // The worker of job/b writes to a file of its own.
    let written = folder.path().join("written-job-a");
    wait_for("the work", SOON, async || written.exists()).await?;
    let before = agent.configuration()?;
    agent.configure(&before.replace("[job/a]", "[job/b]"))?;
    agent.logs("stopping worker").await?;
    agent.drained().await?;
    let last_write: f64 = fs::read_to_string(&written)?.parse()?;
    let history = ask(&server, "lease history job/a --json").await?.json()?;
    let events = history["events"].as_array().context("events")?;
    let released = events.iter().find(|event| event["event_type"] == "lease_released");
    let released = released.with_context(|| format!("not released: {history:#}"))?["timestamp"].as_str();
    let released = humantime::parse_rfc3339_weak(released.context("a time")?)?;
    let released = released.duration_since(std::time::UNIX_EPOCH)?.as_secs_f64();
    // Times of events are whole milliseconds.
    assert!(last_write < released + 0.001, "released at {released}, and worked until {last_write}");
    Ok(())
}

/// One of two servers is stopped: it accepts connections, and never answers. The leases last for five minutes.
#[tokio::test]
async fn a_stopped_server_does_not_keep_a_killed_agent_s_leases() -> Result<()> {
    let url = Postgres::shared().await?.create_database("agent").await?;
    let stopped = server().engine(&url).start().await?;
    let other = server().engine(&url).start().await?;
    let servers = format!("[{}, {}]", stopped.url(), other.url());
    let top = "placement: assigned\nmax_resources_per_worker: 1\nlease_ttl_seconds: 300\nheartbeat_interval_seconds: 1";
    ask(&other, "resource put job/a").await?.good()?;
    let first = Agent::start_at(&servers, "first", top, &script("exec sleep 600")).await?;
    first.runs("sleep", 1).await?;
    let next = Agent::start_at(&servers, "next", top, &script("exec sleep 600")).await?;
    stopped.pause().await?;
    let began = Instant::now();
    first.program().kill9().await?;
    let is_free =
        async || holder(&other, "job/a").await.is_ok_and(|holder| holder.as_deref() != Some("first"));
    wait_for("the release", SOON, is_free).await?;
    println!("released after {:?}", began.elapsed());
    held_by(&other, "job/a", "next").await.with_context(|| next.program().logs())?;
    println!("granted after {:?}", began.elapsed());
    next.runs("sleep", 1).await?;
    stopped.resume()?;
    next.drained().await?;
    Ok(())
}

#[tokio::test]
async fn the_files_of_a_killed_agent_are_removed() -> Result<()> {
    let server = server().start().await?;
    let top = "resources: [job/a]\nmax_resources_per_worker: 1";
    let agent = Agent::start(&server, "first", top, &script("exec sleep 600")).await?;
    agent.runs("sleep", 1).await?;
    assert_eq!(agent.files()?.len(), 1, "{:?}", agent.files());
    agent.program().kill9().await?;
    let is_empty = async || agent.files().is_ok_and(|files| files.is_empty());
    wait_for("the files to go", SOON, is_empty).await?;
    let second = Agent::start(&server, "second", top, &script("exec sleep 600")).await?;
    second.runs("sleep", 1).await?;
    second.drained().await?;
    assert_eq!(second.files()?.len(), 0, "{:?}", second.files());
    Ok(())
}
