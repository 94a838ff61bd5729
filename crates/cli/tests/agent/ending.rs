//! Nothing is left of a worker, grandchildren in sessions of their own included, however its agent ends.

use std::time::{Duration, Instant};

use anyhow::Result;
use solehold_testkit::wait_for;

use crate::{
    common::{SOON, server},
    world::{Agent, held_by, holder, script},
};

/// Something of every sort, in the group, in a session of its own, and orphaned by a double fork; none ends by SIGTERM.
const FAMILY: &str = "trap '' TERM\nsleep 600 &\nsetsid sleep 600 &\n(setsid sh -c 'sleep 600 & exec sleep 600' &)\nwait\nsleep 600";
const SLEEPERS: usize = 4;
const ONE: &str = "resources: [job/a]\nmax_resources_per_worker: 1\nlease_retry_interval_seconds: 0.5";

fn with_ttl(seconds: u32) -> String {
    format!("{ONE}\nlease_ttl_seconds: {seconds}\nheartbeat_interval_seconds: 1")
}

#[tokio::test]
async fn a_killed_agent_leaves_nothing_behind_and_another_has_the_work() -> Result<()> {
    let server = server().start().await?;
    let agent = Agent::start(&server, "first", &with_ttl(60), &script(FAMILY)).await?;
    agent.runs("sleep", SLEEPERS).await?;
    let next = Agent::start(&server, "next", &with_ttl(60), &script("sleep 600")).await?;
    let began = Instant::now();
    agent.program().kill9().await?;
    agent.nothing_left().await?;
    held_by(&server, "job/a", "next").await?;
    next.runs("sleep", 1).await?;
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "the keeper released it, so nobody waited for the ttl"
    );
    next.drained().await?;
    Ok(())
}

#[tokio::test]
async fn a_frozen_agent_s_worker_is_ended_at_the_deadline_by_its_keeper() -> Result<()> {
    let server = server().start().await?;
    let agent = Agent::start(&server, "first", &with_ttl(3), &script(FAMILY)).await?;
    agent.runs("sleep", SLEEPERS).await?;
    agent.program().pause().await?;
    let is_free = async || holder(&server, "job/a").await.is_ok_and(|holder| holder.is_none());
    wait_for("the lease to run out", SOON, is_free).await?;
    assert_eq!(agent.descendants(), [0; 0], "they are gone before the lease can be somebody else's");
    agent.program().resume()?;
    agent.logs("the lease is lost").await?;
    agent.runs("sleep", SLEEPERS).await?;
    agent.program().kill9().await?;
    agent.nothing_left().await?;
    Ok(())
}

#[tokio::test]
async fn sigterm_drains_within_the_budget_and_nothing_waits_for_a_ttl() -> Result<()> {
    let server = server().start().await?;
    let worker = format!("{}  stop_timeout_seconds: 2\n", script(FAMILY));
    let top = "resources: [job/a, job/b, job/c]\nmax_resources_per_worker: 1\ndrain_budget_seconds: 6";
    let agent = Agent::start(&server, "first", top, &worker).await?;
    agent.runs("sleep", 3 * SLEEPERS).await?;
    let took = agent.drained().await?;
    assert!(took < Duration::from_secs(6), "stubborn workers are killed in parallel: {took:?}");
    assert_eq!(holder(&server, "job/b").await?, None);
    assert_eq!(agent.logged("releasing lease"), 3);
    Ok(())
}

#[tokio::test]
async fn a_revoked_lease_ends_its_worker_and_no_other() -> Result<()> {
    let server = server().start().await?;
    let top = "resources: [job/a, job/b]\nmax_resources_per_worker: 1\nlease_ttl_seconds: 3\nheartbeat_interval_seconds: 1";
    let agent = Agent::start(&server, "first", top, &script("sleep 600")).await?;
    agent.runs("sleep", 2).await?;
    crate::common::ask(&server, "lease revoke job/a").await?.good()?;
    agent.logs("job/a: the lease is lost").await?;
    agent.runs("sleep", 1).await?;
    assert_eq!(holder(&server, "job/b").await?.as_deref(), Some("first"));
    agent.drained().await?;
    Ok(())
}
