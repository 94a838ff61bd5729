//! What a broker's limits do to the promise, and how a gate says so.

use anyhow::{Result, ensure};
use solehold_testkit::Mosquitto;

use crate::{common::run, world::TOPICS};

async fn check(broker: &Mosquitto) -> Result<crate::common::Ran> {
    run(check_of(&broker.url())).await
}

/// A check of a gate that reads the usual topics.
fn check_of(broker: &str) -> [&str; 9] {
    ["gate", "mqtt", "--check", "--broker", broker, "--topics", TOPICS, "--kind", "job"]
}

#[tokio::test]
async fn a_broker_that_would_lose_messages_is_told_apart() -> Result<()> {
    let plain =
        Mosquitto::configured(|_, port| Ok(format!("listener {port} 127.0.0.1\nallow_anonymous true\n")))
            .await?;
    let ran = check(&plain).await?;
    ensure!(ran.code == Some(3), "{ran:?}");
    let text = &ran.stdout;
    let error = &ran.stderr;
    ensure!(text.contains("queue      1000 messages") && text.contains("in flight  20 messages"), "{text}");
    ensure!(text.contains("max_queued_messages 0") && text.contains("persistence true"), "{text}");
    ensure!(error.contains("messages are lost while no gate is connected"), "{error}");

    let lines = "allow_anonymous true\nmax_queued_messages 0\nmax_inflight_messages 1000\n";
    let good = Mosquitto::configured(|_, port| Ok(format!("listener {port} 127.0.0.1\n{lines}"))).await?;
    let text = check(&good).await?.good()?;
    ensure!(text.contains("3000 or more messages") && text.contains("1000 or more messages"), "{text}");
    ensure!(!text.contains("Further messages are dropped"), "{text}");
    Ok(())
}

#[tokio::test]
async fn bad_arguments_are_told_in_the_words_of_the_user() -> Result<()> {
    let refused = async |args: &[&str], words: &str| {
        let ran = run(check_of("mqtt://127.0.0.1:1").iter().chain(args)).await?;
        ensure!(ran.code == Some(2) && ran.stderr.contains(words), "{args:?}: {ran:?}");
        anyhow::Ok(())
    };
    refused(&["--topics", "a/b"], "needs {key} once").await?;
    refused(&["--prefix", "plant"], "would be read again by plant/line/{key}/+").await?;
    refused(&["--dead-letter", "plant/line"], "would be read again").await?;
    refused(&["--shards", "0"], "1 to 64 shards").await?;
    refused(&["--name", "a b"], "is not a name for a gate").await?;
    refused(&["--broker-ca", "/nowhere"], "--broker-ca /nowhere").await?;
    let ran = run(check_of("mqtt://127.0.0.1:1")).await?;
    ensure!(ran.code == Some(5) && ran.stderr.contains("mqtt://127.0.0.1:1"), "{ran:?}");
    let ran = run(check_of("http://u:secret@h")).await?;
    ensure!(ran.code == Some(2) && !ran.stderr.contains("secret"), "{ran:?}");
    let ran = run(["gate", "mqtt", "--check", "--broker", "mqtt://127.0.0.1:1"]).await?;
    ensure!(ran.code == Some(2), "no topics are guessed: {ran:?}");
    ensure!(ran.stderr.contains("--topics <PATTERN>") && ran.stderr.contains("--kind <KIND>"), "{ran:?}");
    Ok(())
}
