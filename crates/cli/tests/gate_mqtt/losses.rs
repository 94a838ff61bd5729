//! What is lost when something is away, paused or killed: nothing that bears the newest token.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use solehold_testkit::wait_for;

use crate::world::{Gate, PATIENCE, TTL, World};

#[tokio::test]
async fn killing_the_gate_loses_nothing_that_bears_the_newest_token() -> Result<()> {
    const EACH: u64 = 400;
    let world = World::new().await?;
    let token = world.server.acquire("a").await?;
    let mut gate = world.gate(&[]).await?;
    for round in 0..3 {
        let publish = async {
            for number in round * EACH..(round + 1) * EACH {
                world.publisher.position("a", number, token).await?;
            }
            anyhow::Ok(())
        };
        // In the middle of it, as far as that can be told from outside.
        let kill = async {
            wait_for("messages to pass", PATIENCE, async || {
                world.inbox.numbers("gated/").len() as u64 > round * EACH + EACH / 4
            })
            .await?;
            gate.program.kill9().await
        };
        let (published, killed) = tokio::join!(publish, kill);
        published?;
        killed?;
        gate = world.gate(&[]).await?;
    }
    world.inbox.has_all("gated/", 0..3 * EACH).await?;
    let came = world.inbox.all("gated/").len() as u64;
    println!("{} messages came for {} after three kills", came, 3 * EACH);
    gate.measures("messages_unacknowledged", |count| count == 0.0).await?;
    Ok(())
}

#[tokio::test]
async fn while_the_server_is_away_messages_are_held_and_then_pass() -> Result<()> {
    let mut world = World::new().await?;
    let token = world.server.acquire("a").await?;
    let gate = world.gate(&[]).await?;
    world.publisher.position("a", 0, token).await?;
    world.inbox.has_all("gated/", 0..1).await?;
    world.server.go_away().await?;
    gate.measures("up_to_date", |is_known| is_known == 0.0).await?;
    let seen = world.inbox.numbers("gated/").len() as u64;
    for number in 1..50 {
        world.publisher.position("a", number, token).await?;
    }
    // The gate's own lease runs out, too, and it leaves the broker alone.
    gate.measures("shards_connected", |count| count == 0.0).await?;
    ensure!(world.inbox.numbers("gated/").len() as u64 == seen, "something passed that nobody could decide");
    world.server.come_back().await?;
    world.inbox.has_all("gated/", 0..50).await?;
    ensure!(world.inbox.all("dead/").is_empty(), "{:?}", world.inbox.all("dead/"));
    let newer = world.server.pass_on("a", token).await?;
    world.publisher.position("a", 50, newer).await?;
    world.inbox.has_all("gated/", 50..51).await?;
    world.publisher.position("a", 51, token).await?;
    world.inbox.count("dead/stale/", 1).await?;
    ensure!(!world.inbox.numbers("gated/").contains(&51));
    Ok(())
}

#[tokio::test]
async fn a_paused_gate_is_taken_over_and_does_not_fight_its_successor() -> Result<()> {
    let world = World::new().await?;
    let token = world.server.acquire("a").await?;
    let first = world.gate(&["--holder", "first"]).await?;
    let second = Gate::start(&world.server, &world.broker.url(), &["--holder", "second"]).await?;
    world.publisher.position("a", 0, token).await?;
    world.inbox.has_all("gated/", 0..1).await?;
    first.program.pause().await?;
    let paused = Instant::now();
    for number in 1..100 {
        world.publisher.position("a", number, token).await?;
    }
    second.measures("shards_connected", |count| count == 1.0).await?;
    let taken_over = paused.elapsed();
    println!("taken over {taken_over:?} after the pause, with a ttl of {TTL:?}");
    ensure!(taken_over < TTL + Duration::from_secs(10), "{taken_over:?}");
    world.inbox.has_all("gated/", 0..100).await?;
    first.program.resume()?;
    let newer = world.server.pass_on("a", token).await?;
    for number in 100..200 {
        world.publisher.position("a", number, newer).await?;
    }
    world.inbox.has_all("gated/", 0..200).await?;
    first.measures("shards", |count| count == 0.0).await?;
    let of_first = first.measured("connects_total").await?;
    let of_second = second.measured("connects_total").await?;
    println!("the first gate connected {of_first} times, the second {of_second} times");
    ensure!(of_first <= 2.0 && of_second <= 2.0, "they fight: {of_first} and {of_second}");
    // The other way round, politely.
    second.program.terminate().await?;
    first.measures("shards_connected", |count| count == 1.0).await?;
    world.publisher.position("a", 200, newer).await?;
    world.inbox.has_all("gated/", 0..201).await?;
    Ok(())
}

#[tokio::test]
async fn a_broker_that_restarts_loses_nothing() -> Result<()> {
    let world = World::new().await?;
    let token = world.server.acquire("a").await?;
    let gate = world.gate(&[]).await?;
    for number in 0..200 {
        world.publisher.position("a", number, token).await?;
    }
    world.broker.stop().await?;
    gate.measures("shards_connected", |count| count == 0.0).await?;
    ensure!(gate.text("/readyz").await?.starts_with("shard 0: "), "{}", gate.text("/readyz").await?);
    world.broker.restart().await?;
    world.inbox.has_all("gated/", 0..200).await?;
    gate.measures("shards_connected", |count| count == 1.0).await?;
    world.publisher.position("a", 200, token).await?;
    world.inbox.has_all("gated/", 0..201).await?;
    Ok(())
}

#[tokio::test]
async fn two_gates_share_four_shards_and_each_message_passes_through_one() -> Result<()> {
    let world = World::new().await?;
    let keys: Vec<String> = (0..16).map(|number| format!("k-{number}")).collect();
    let mut tokens = Vec::new();
    for key in &keys {
        tokens.push(world.server.acquire(key).await?);
    }
    let share = ["--shards", "4", "--hold", "2"];
    let gates = (world.gate(&share).await?, world.gate(&share).await?);
    for gate in [&gates.0, &gates.1] {
        gate.measures("shards_connected", |count| count == 2.0).await?;
    }
    for (number, (key, token)) in keys.iter().zip(&tokens).enumerate() {
        world.publisher.position(key, number as u64, *token).await?;
    }
    world.inbox.has_all("gated/", 0..16).await?;
    for gate in [&gates.0, &gates.1] {
        gate.measures("messages_unacknowledged", |count| count == 0.0).await?;
        let passed = gate.measured("messages_passed_total").await?;
        ensure!(passed > 0.0 && passed < 16.0, "one gate did it all");
    }
    let ignored = async |gate: &Gate| gate.measured("messages_ignored_total").await;
    assert_eq!(
        ignored(&gates.0).await? + ignored(&gates.1).await?,
        3.0 * 16.0,
        "each shard sees every message"
    );
    assert_eq!(world.inbox.all("gated/").len(), 16);
    Ok(())
}
