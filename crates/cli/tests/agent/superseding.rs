//! A second agent under the same name ends the first one, and nothing else.

use anyhow::Result;

use crate::{
    common::{ask, server},
    world::{Agent, held_by, script},
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
