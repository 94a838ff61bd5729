//! `solehold explain`: the whole story of a lease.

mod common;

use anyhow::{Context, Result, ensure};
use common::{SOON, ask, command, json_of, seen, server};
use serde_json::{Value, json};
use solehold_testkit::{Solehold, wait_for};

async fn post(server: &Solehold, path: &str, body: Value) -> Result<Value> {
    let url = format!("{}/api/v1/{path}", server.url());
    let answer = reqwest::Client::new().post(url).json(&body).send().await?.error_for_status()?;
    Ok(answer.json().await?)
}

#[tokio::test]
async fn a_lease_of_a_runner_is_told_from_its_session_to_its_end() -> Result<()> {
    let server = server().start().await?;
    seen(&server, "resource put camera/lobby --lock-delay 5s").await?;
    let runner = json!({"runner_id": "r1", "host": "edge-7", "kinds": ["other"]});
    let session = post(&server, "runners/register", runner).await?["session_id"].clone();
    let session = session.as_str().context("a session")?;
    let acquire = format!("lease acquire camera/lobby --holder r1 --session {session}");
    ask(&server, &acquire).await?.good()?;
    let lease = json_of(&server, "lease get camera/lobby").await?;
    let token = lease["token"].as_u64().context("a token")?;
    post(&server, &format!("sessions/{session}/heartbeat"), json!({})).await.ok();

    let story = ask(&server, "explain camera/lobby").await?.good()?;
    let lines: Vec<String> =
        story.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let has = |begin: &str| lines.iter().any(|line| line.starts_with(begin));
    for begin in [
        "held by r1",
        "host edge-7",
        &format!("token {token}"),
        &format!("lease {}", lease["lease_id"].as_str().context("an id")?),
        &format!("session {session}, current, opened"),
        "since just now (",
        "expires in",
        "if it dies",
    ] {
        ensure!(has(begin), "no {begin:?} in\n{story}");
    }
    ensure!(story.contains("by the store's clock"), "{story}");
    ensure!(story.contains("resource_declared") && story.contains("lease_acquired"), "{story}");

    ask(&server, "lease revoke camera/lobby --reason maintenance").await?.good()?;
    let told = json_of(&server, "explain camera/lobby").await?;
    ensure!(told["lease"].is_null() && told["held_back_ms"].as_u64() > Some(0), "{told}");
    ensure!(told["last_token"] == token && told["lock_delay_ms"] == 5_000, "{told}");
    let last = told["events"].as_array().and_then(|events| events.last()).context("an event")?.clone();
    ensure!(last["event_type"] == "lease_revoked" && last["details"]["reason"] == "maintenance", "{last}");
    ensure!(told["placed"].is_boolean() && told["reason"].is_string(), "placement's part stays: {told}");
    let one = json_of(&server, "explain camera/lobby --events 1").await?;
    ensure!(one["events"].as_array().is_some_and(|events| events.len() == 1), "{one}");
    let people = ask(&server, "explain camera/lobby").await?.good()?;
    ensure!(people.contains("held back") && people.contains("maintenance"), "{people}");
    Ok(())
}

#[tokio::test]
async fn a_lock_is_told_with_its_line_and_also_once_it_is_gone() -> Result<()> {
    let server = server().start().await?;
    let held = ask(&server, "lease acquire lock/a --holder ann --ttl 5m --json").await?.json()?;
    let mut waiter = command(["lock", "a", "--holder", "bob", "--", "true"]);
    let waiter = waiter.env("SOLEHOLD_SERVER", server.url()).spawn()?;
    let in_line = async || {
        let told = json_of(&server, "explain lock/a").await.ok()?;
        (told["waiting"] == 1).then_some(told)
    };
    let told = wait_for("a waiter", SOON, in_line).await?;
    let first = told["waiters"][0]["holder"].as_str().context("a waiter")?;
    ensure!(first.starts_with("bob-") && told["lease"]["holder"] == "ann", "{told}");
    let people = ask(&server, "explain lock/a").await?.good()?;
    ensure!(people.contains("1 waiter: bob-") && people.contains("the first in line gets it"), "{people}");

    let release = format!("lease release lock/a --token {}", held["token"]);
    ask(&server, &release).await?.good()?;
    ensure!(waiter.wait_with_output().await?.status.success(), "the waiter had its turn");
    let gone = async || {
        let told = json_of(&server, "explain lock/a").await.ok()?;
        let is_last = told["events"].as_array()?.last()?["event_type"] == "lease_released";
        (told["lease"].is_null() && is_last).then_some(())
    };
    wait_for("the end of the story", SOON, gone).await
}
