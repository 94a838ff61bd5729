//! The inbox in Redis, against a real one.

use std::{process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use solehold_stream::redis_inbox::{Claim, Claimed, RedisInbox};
use solehold_testkit::{Program, Redis, wait_for};

const PATIENCE: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(600);

fn url(redis: &Redis) -> String {
    format!("redis://{}/0", redis.address())
}

async fn claimed(inbox: &RedisInbox, key: &str) -> Result<Claim> {
    match inbox.claim(key, b"payload").await? {
        Claimed::Yours(claim) => Ok(claim),
        other => anyhow::bail!("not ours: {other:?}"),
    }
}

#[tokio::test]
async fn a_message_is_worked_on_by_one_and_done_once() -> Result<()> {
    let redis = Redis::start().await?;
    let inbox = RedisInbox::new(&url(&redis), "inbox:", LONG)?;
    let other = RedisInbox::new(&url(&redis), "inbox:", LONG)?;
    let claim = claimed(&inbox, "m1").await?;
    let busy = other.claim("m1", b"payload").await?;
    ensure!(matches!(busy, Claimed::Busy(left) if left > Duration::ZERO && left <= LONG), "{busy:?}");
    ensure!(other.claim("m1", b"another").await? == Claimed::OtherPayload);
    ensure!(inbox.renew(&claim).await?);
    ensure!(inbox.finish(&claim).await? && inbox.finish(&claim).await?, "the answer may have been lost");
    ensure!(other.claim("m1", b"payload").await? == Claimed::Done);
    ensure!(other.claim("m1", b"another").await? == Claimed::OtherPayload);
    ensure!(!inbox.renew(&claim).await? && !inbox.give_back(&claim).await?, "what is done stays done");

    let claim = claimed(&inbox, "m2").await?;
    ensure!(inbox.give_back(&claim).await?);
    let next = claimed(&other, "m2").await?;
    ensure!(next.epoch > claim.epoch, "{next:?} after {claim:?}");
    ensure!(!inbox.finish(&claim).await? && !inbox.give_back(&claim).await?, "it was succeeded");
    let (mut marks, end) = inbox.list(0).await?;
    marks.sort_by(|a, b| a.key.cmp(&b.key));
    let seen: Vec<_> = marks.iter().map(|mark| (mark.key.as_str(), mark.is_done)).collect();
    ensure!(end == 0 && seen == [("m1", true), ("m2", false)], "{marks:?}");
    ensure!(inbox.clear("m1").await? && !inbox.clear("m1").await?);
    claimed(&other, "m1").await?;
    Ok(())
}

#[tokio::test]
async fn of_many_one_gets_the_claim() -> Result<()> {
    let redis = Redis::start().await?;
    let inboxes: Vec<_> =
        (0..8).map(|_| RedisInbox::new(&url(&redis), "", LONG)).collect::<Result<_, _>>()?;
    for round in 0..50 {
        let key = format!("m{round}");
        let asking = inboxes.iter().map(|inbox| inbox.claim(&key, b"payload"));
        let answers = futures_util::future::try_join_all(asking).await?;
        let won = answers.iter().filter(|answer| matches!(answer, Claimed::Yours(_))).count();
        ensure!(won == 1, "{answers:?}");
    }
    Ok(())
}

/// The worker of this test: it claims, and is killed before it is done. The test program runs itself.
#[tokio::test]
async fn a_claim_outlives_a_killed_worker_for_its_time_only() -> Result<()> {
    if let Ok(url) = std::env::var("CLAIM_AND_WAIT") {
        let claim = claimed(&RedisInbox::new(&url, "", Duration::from_secs(1))?, "m").await?;
        println!("\nclaimed {}", claim.epoch);
        std::future::pending::<()>().await;
    }
    let redis = Redis::start().await?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--exact", "a_claim_outlives_a_killed_worker_for_its_time_only", "--nocapture"]);
    command.env("CLAIM_AND_WAIT", url(&redis));
    let worker = Program::start("claimant", &command, "claimed ").await?;
    let old = Claim { key: "m".to_owned(), epoch: worker.said().parse().context("an epoch")? };
    let inbox = RedisInbox::new(&url(&redis), "", LONG)?;
    worker.kill9().await?;
    let claim = wait_for("the claim to run out", PATIENCE, async || claimed(&inbox, "m").await.ok()).await?;
    ensure!(claim.epoch > old.epoch);
    ensure!(!inbox.finish(&old).await?, "the dead worker's late word");
    ensure!(inbox.finish(&claim).await?);
    ensure!(inbox.claim("m", b"payload").await? == Claimed::Done);
    Ok(())
}

/// A claim that has run out is still its claimant's until someone else asks.
#[tokio::test]
async fn whoever_is_late_and_not_succeeded_may_finish() -> Result<()> {
    let redis = Redis::start().await?;
    let inbox = RedisInbox::new(&url(&redis), "", Duration::from_millis(100))?;
    let first = claimed(&inbox, "m").await?;
    let second = wait_for("the claim to run out", PATIENCE, async || claimed(&inbox, "m").await.ok()).await?;
    ensure!(second.epoch > first.epoch && !inbox.renew(&first).await?);
    ensure!(inbox.renew(&second).await? && inbox.finish(&second).await?);
    Ok(())
}
