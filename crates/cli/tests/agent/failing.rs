//! Workers that fail are started again; those that fail again and again go to another runner.

use std::time::{Duration, Instant};

use anyhow::Result;
use solehold_testkit::{TempDir, wait_for};

use crate::{
    common::{SOON, server},
    world::{Agent, held_by, python, script},
};

const ONE: &str = "resources: [job/a]\nmax_resources_per_worker: 1\nlease_retry_interval_seconds: 0.2";

#[tokio::test]
async fn a_crashed_worker_is_back_at_once_with_its_lease() -> Result<()> {
    let server = server().start().await?;
    let folder = TempDir::new()?;
    let mark = folder.path().join("crash");
    let crash = format!(
        "echo token=$SOLEHOLD_TOKEN; until [ -e {0} ]; do sleep 0.02; done; rm {0}; exit 3",
        mark.display()
    );
    let agent = Agent::start(&server, "first", ONE, &script(&crash)).await?;
    agent.logs("token=").await?;
    std::fs::write(&mark, "")?;
    let began = Instant::now();
    wait_for("the next run", SOON, async || agent.logged("token=") == 2).await?;
    assert!(began.elapsed() < Duration::from_secs(10), "no pause before the first restart");
    agent.logs("the worker exited with code 3; restarting in 0s").await?;
    let logs = agent.program().logs();
    let tokens: Vec<_> =
        logs.lines().filter_map(|line| line.split_once("token=")).map(|(_, token)| token).collect();
    assert_eq!(tokens[0].split(' ').next(), tokens[1].split(' ').next(), "the lease stayed: {logs}");
    agent.drained().await?;
    Ok(())
}

#[tokio::test]
async fn a_crash_loop_goes_to_another_runner_with_the_reason() -> Result<()> {
    let server = server().start().await?;
    let restart = "  restart: {first_seconds: 0.05, cap_seconds: 0.1, burst: 3}\n";
    let broken = Agent::start(&server, "broken", ONE, &format!("{}{restart}", script("exit 9"))).await?;
    broken.logs("the worker failed 3 times in a row: the worker exited with code 9").await?;
    let good = Agent::start(&server, "good", ONE, &script("sleep 600")).await?;
    held_by(&server, "job/a", "good").await?;
    good.runs("sleep", 1).await?;
    assert_eq!(broken.logged("starting worker"), 3);
    broken.drained().await?;
    good.drained().await?;
    Ok(())
}

#[tokio::test]
async fn one_bad_resource_stops_nothing_else() -> Result<()> {
    let server = server().start().await?;
    let worker = script(r#"[ "$SOLEHOLD_RESOURCE" = job/bad ] && exit 1; exec sleep 600"#);
    let restart = "  restart: {first_seconds: 0.05, cap_seconds: 0.1, burst: 3}\n";
    let top = "resources: [job/bad, job/c, job/d]\nmax_resources_per_worker: 1";
    let agent = Agent::start(&server, "first", top, &format!("{worker}{restart}")).await?;
    agent.logs("giving up worker").await?;
    agent.runs("sleep", 2).await?;
    agent.drained().await?;
    Ok(())
}

#[tokio::test]
async fn a_worker_without_heartbeats_is_restarted() -> Result<()> {
    let server = server().start().await?;
    let worker = format!("{}  watchdog_seconds: 0.5\n", python("say(type='ready')\ntime.sleep(600)"));
    let agent = Agent::start(&server, "first", ONE, &worker).await?;
    agent.logs("the worker sent no heartbeat for 500ms").await?;
    wait_for("another run", SOON, async || agent.logged("starting worker") >= 2).await?;
    agent.drained().await?;
    Ok(())
}

#[tokio::test]
async fn a_worker_that_is_not_ready_in_time_has_failed() -> Result<()> {
    let server = server().start().await?;
    let restart =
        "  startup_timeout_seconds: 0.3\n  restart: {first_seconds: 0.05, cap_seconds: 0.1, burst: 2}\n";
    for (name, worker) in [
        // One that connects is expected to be ready; one that does not only where all must speak.
        ("connects", python("time.sleep(600)")),
        ("required", format!("{}  protocol: required\n", script("sleep 600"))),
    ] {
        let agent = Agent::start(&server, name, ONE, &format!("{worker}{restart}")).await?;
        agent.logs("the worker failed 2 times in a row: the worker was not ready within 300ms").await?;
        agent.drained().await?;
    }
    Ok(())
}
