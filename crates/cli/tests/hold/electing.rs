//! Leader election for programs: one leads, the others know who, and the next one takes over.

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use solehold_testkit::wait_for;

use crate::{
    common::{SOON, ask, json_of, server},
    world::Run,
};

const LEAD: &str = "echo leading $SOLEHOLD_RESOURCE $SOLEHOLD_TOKEN; sleep 600";

/// The token with which it leads.
async fn leads(run: &mut Run) -> Result<u64> {
    let line = run.next_line().await?.context("a line")?;
    let token = line.strip_prefix("leading role/db ").context(line.clone())?;
    Ok(token.parse()?)
}

#[tokio::test]
async fn one_leads_and_the_next_takes_over_with_a_larger_token() -> Result<()> {
    let server = server().start().await?;
    let mut first = Run::script(&server, "elect db --holder one", LEAD)?;
    let token = leads(&mut first).await?;
    let mut second = Run::script(&server, "elect db --holder two", LEAD)?;
    let knows = async || second.said().contains(&format!("with token {token}, since"));
    wait_for("the follower to know the leader", SOON, knows).await?;
    ensure!(second.said().contains("db is led by one-"), "{}", second.said());
    let mut observer = Run::start(&server, ["elect", "db", "--observe", "--json"].map(Into::into))?;
    let seen: Value = serde_json::from_str(&observer.next_line().await?.context("a line")?)?;
    ensure!(seen["token"] == token && seen["role"] == "db" && seen["since"].is_string(), "{seen}");

    first.signal(Signal::TERM)?;
    assert_eq!(first.ended().await?.code, 143, "a signal resigns");
    let next = leads(&mut second).await?;
    ensure!(next > token, "{next} after {token}");
    loop {
        let seen: Value = serde_json::from_str(&observer.next_line().await?.context("a line")?)?;
        if seen["token"] == next {
            ensure!(seen["leader"].as_str().is_some_and(|leader| leader.starts_with("two-")), "{seen}");
            break;
        }
        ensure!(seen["leader"].is_null(), "nobody in between: {seen}");
    }
    observer.signal(Signal::INT)?;
    assert_eq!(observer.ended().await?.code, 130);
    second.signal(Signal::TERM)?;
    assert_eq!(second.ended().await?.code, 143);
    Ok(())
}

#[tokio::test]
async fn a_candidate_stands_again_when_its_command_or_its_leadership_ends() -> Result<()> {
    let server = server().start().await?;
    let mut run =
        Run::script(&server, "elect db --ttl 3s", "echo leading $SOLEHOLD_RESOURCE $SOLEHOLD_TOKEN; exit 3")?;
    let first = leads(&mut run).await?;
    let second = leads(&mut run).await?;
    ensure!(second > first, "another term has another token: {first}, {second}");
    run.signal(Signal::TERM)?;
    run.ended().await?;

    let mut run = Run::script(&server, "elect db --ttl 3s", LEAD)?;
    let first = leads(&mut run).await?;
    ask(&server, "lease revoke role/db").await?.good()?;
    let second = leads(&mut run).await?;
    ensure!(second > first, "{second} after {first}");
    ensure!(run.said().contains("standing for role/db again"), "{}", run.said());
    run.signal(Signal::TERM)?;
    assert_eq!(run.ended().await?.code, 143);
    Ok(())
}

#[tokio::test]
async fn once_is_enough_where_that_is_asked_for() -> Result<()> {
    let server = server().start().await?;
    for (script, code) in [("exit 0", 0), ("exit 9", 9)] {
        let run = Run::script(&server, "elect db --once", script)?;
        assert_eq!(run.ended().await?.code, code);
    }
    let seen = json_of(&server, "lease history role/db").await?;
    ensure!(seen["events"].as_array().is_some_and(|events| events.len() == 4), "two terms: {seen}");
    let refused = ask(&server, "elect db").await?;
    ensure!(refused.code == Some(102) && refused.stderr.contains("no command is given"), "{refused:?}");
    Ok(())
}
