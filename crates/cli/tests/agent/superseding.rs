//! A second agent under the same name ends the first one, and nothing else.

use anyhow::Result;
use solehold_testkit::wait_for;

use crate::{
    common::{SOON, ask, server},
    world::{Agent, held_by, holder, script},
};

const TOP: &str = "lease_ttl_seconds: 30\nheartbeat_interval_seconds: 1\nlease_retry_interval_seconds: 0.5";
const SUPERSEDED: &str = "is another agent running with the same runner_id?";

/// It had nothing to acquire, so it did not notice, and went on for ever.
#[tokio::test]
async fn a_superseded_agent_with_nothing_to_drain_ends_at_once() -> Result<()> {
    let server = server().start().await?;
    let worker = script("exec sleep 600");
    let first = Agent::start(&server, "same", TOP, &worker).await?;
    let second = Agent::start(&server, "same", TOP, &worker).await?;
    first.logs(SUPERSEDED).await?;
    ask(&server, "resource put job/a").await?.good()?;
    held_by(&server, "job/a", "same").await?;
    second.runs("sleep", 1).await?;
    second.drained().await?;
    Ok(())
}

/// When it noticed, it reported by its name alone that it drains. That was taken for an operator's word about the
/// second agent, which was then given nothing.
#[tokio::test]
async fn a_superseded_agent_does_not_make_its_successor_drain() -> Result<()> {
    let server = server().start().await?;
    ask(&server, "resource put job/a").await?.good()?;
    let worker = script("exec sleep 600");
    let first = Agent::start(&server, "same", TOP, &worker).await?;
    first.runs("sleep", 1).await?;
    let second = Agent::start(&server, "same", TOP, &worker).await?;
    first.logs(SUPERSEDED).await?;
    second.runs("sleep", 1).await?;
    let runner = ask(&server, "runner get same --json").await?.json()?;
    assert_eq!(runner["runner"]["status"], "active", "{runner}");
    second.drained().await?;
    Ok(())
}

/// Its session had expired and was forgotten, so nothing told it that it was superseded: it registered again, and the
/// second agent ended.
#[tokio::test]
async fn an_agent_that_was_paused_past_its_ttl_does_not_supersede_its_successor() -> Result<()> {
    let server = server().start().await?;
    ask(&server, "resource put job/a").await?.good()?;
    let worker = script("exec sleep 600");
    let top = "lease_ttl_seconds: 3\nheartbeat_interval_seconds: 0.5\nlease_retry_interval_seconds: 0.5";
    let first = Agent::start(&server, "same", top, &worker).await?;
    first.runs("sleep", 1).await?;
    first.program().pause().await?;
    let second = Agent::start(&server, "same", TOP, &worker).await?;
    // It gets the resource when the first one's session has expired.
    second.runs("sleep", 1).await?;
    first.program().resume()?;
    first.logs(SUPERSEDED).await?;
    assert_eq!(second.logged(SUPERSEDED), 0, "{}", second.program().logs());
    held_by(&server, "job/a", "same").await?;
    second.runs("sleep", 1).await?;
    second.drained().await?;
    Ok(())
}

/// Nobody else has its name: it may come back.
#[tokio::test]
async fn an_agent_that_was_paused_past_its_ttl_comes_back() -> Result<()> {
    let server = server().start().await?;
    ask(&server, "resource put job/a").await?.good()?;
    let worker = script("exec sleep 600");
    let top = "lease_ttl_seconds: 3\nheartbeat_interval_seconds: 0.5\nlease_retry_interval_seconds: 0.5";
    let agent = Agent::start(&server, "alone", top, &worker).await?;
    agent.runs("sleep", 1).await?;
    agent.program().pause().await?;
    let is_free = async || holder(&server, "job/a").await.is_ok_and(|holder| holder.is_none());
    wait_for("the lease to run out", SOON, is_free).await?;
    agent.program().resume()?;
    held_by(&server, "job/a", "alone").await?;
    agent.runs("sleep", 1).await?;
    agent.drained().await?;
    Ok(())
}
