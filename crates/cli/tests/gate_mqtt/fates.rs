//! What becomes of each sort of message.

use anyhow::Result;
use rumqttc::{PublishOptions, QoS};
use serde_json::{Value, json};

use crate::world::{World, topic};

#[tokio::test]
async fn stale_messages_are_refused_counted_and_diverted() -> Result<()> {
    let world = World::new().await?;
    let first = world.server.acquire("a").await?;
    let gate = world.gate(&[]).await?;
    world.publisher.position("a", 1, first).await?;
    world.inbox.has_all("gated/", 1..2).await?;
    let second = world.server.pass_on("a", first).await?;
    world.publisher.position("a", 2, second).await?;
    world.publisher.position("a", 3, first).await?;
    world.publisher.position("a", 4, second).await?;
    let passed = world.inbox.count("gated/", 3).await?;
    assert_eq!(
        passed.iter().map(|(topic, _)| topic.as_str()).collect::<Vec<_>>(),
        ["gated/plant/line/a/speed"; 3]
    );
    let dead = world.inbox.count("dead/", 1).await?;
    assert_eq!(dead.len(), 1, "{dead:?}");
    assert_eq!(dead[0].0, "dead/stale/plant/line/a/speed");
    assert_eq!(serde_json::from_str::<Value>(&dead[0].1)?["n"], json!(3), "as it was");
    assert_eq!(world.inbox.numbers("gated/").into_iter().collect::<Vec<_>>(), [1, 2, 4]);
    gate.measures("messages_passed_total", |count| count == 3.0).await?;
    assert_eq!(gate.refused("stale").await?, 1.0);
    gate.measures("messages_unacknowledged", |count| count == 0.0).await?;
    assert_eq!(gate.text("/readyz").await?, "ready\n");
    Ok(())
}

#[tokio::test]
async fn every_odd_message_has_a_fate_and_none_stops_the_others() -> Result<()> {
    let world = World::new().await?;
    let token = world.server.acquire("a").await?;
    // Retained before the gate is there.
    let retained = PublishOptions::new(QoS::AtLeastOnce).retained();
    let good = json!({ "n": 0, "token": token }).to_string();
    world.publisher.send_with(&topic("a"), good.clone(), retained).await?;
    let gate = world.gate(&["--strip", "--message-max", "100000"]).await?;
    let huge = json!({ "x": "y".repeat(1024 * 1024), "token": token }).to_string();
    let never = json!({ "token": 9_007_199_254_740_991u64 }).to_string();
    let odd: [(&str, &str, Vec<u8>); 11] = [
        ("a", "not_json", b"{\"n\": 1, \"token\": ".to_vec()),
        ("a", "not_json", vec![0xff, 0x00]),
        ("a", "not_json", Vec::new()),
        ("a", "no_token", b"{\"n\": 1}".to_vec()),
        ("a", "bad_token", b"{\"token\": -1}".to_vec()),
        ("a", "bad_token", format!("{{\"token\": \"{token}\"}}").into()),
        ("a", "bad_token", b"{\"token\": 1.5}".to_vec()),
        ("a", "too_large", huge.into()),
        ("a", "unknown", never.into()),
        ("nobody", "unknown", good.clone().into()),
        (&"k".repeat(300), "bad_topic", good.clone().into()),
    ];
    for (key, _, payload) in &odd {
        world.publisher.send(&topic(key), payload.clone()).await?;
    }
    world.publisher.position("a", 1, token).await?;
    world.inbox.has_all("gated/", 1..2).await?;
    // A message that is published live with the retain flag is treated like any other.
    world.publisher.send_with(&topic("a"), json!({ "n": 2, "token": token }).to_string(), retained).await?;
    // Nobody can be asked to send these again, but they pass like others.
    let fire_and_forget = PublishOptions::new(QoS::AtMostOnce);
    world
        .publisher
        .send_with(&topic("a"), json!({ "n": 3, "token": token }).to_string(), fire_and_forget)
        .await?;
    world.inbox.has_all("gated/", 1..4).await?;
    let dead = world.inbox.count("dead/", odd.len() + 1).await?;
    let reasons =
        |reason: &str| dead.iter().filter(|(topic, _)| topic.split('/').nth(1) == Some(reason)).count();
    for (reason, count) in [
        ("not_json", 3),
        ("no_token", 1),
        ("bad_token", 3),
        ("too_large", 1),
        ("unknown", 2),
        ("bad_topic", 1),
        ("retained", 1),
    ] {
        assert_eq!((reasons(reason), gate.refused(reason).await?), (count, count as f64), "{reason}");
    }
    let too_large = dead.iter().find(|(topic, _)| topic.starts_with("dead/too_large")).expect("it is there");
    assert_eq!(too_large.1, "", "not the whole of it");
    let passed = world.inbox.all("gated/");
    assert!(passed.iter().all(|(_, payload)| !payload.contains("token")), "{passed:?}");
    gate.measures("messages_unacknowledged", |count| count == 0.0).await?;
    Ok(())
}

#[tokio::test]
async fn retained_messages_pass_if_they_are_wanted() -> Result<()> {
    let world = World::new().await?;
    let token = world.server.acquire("a").await?;
    let retained = PublishOptions::new(QoS::AtLeastOnce).retained();
    world.publisher.send_with(&topic("a"), json!({ "n": 1, "token": token }).to_string(), retained).await?;
    let odd = json!({ "n": 2, "token": token }).to_string();
    world.publisher.send_with(&topic("nobody"), odd, retained).await?;
    let gate = world.gate(&["--retained", "pass"]).await?;
    world.inbox.has_all("gated/", 1..2).await?;
    world.inbox.count("dead/unknown/", 1).await?;
    assert_eq!(gate.refused("retained").await?, 0.0);
    // A consumer that comes later finds it.
    let (late, _task) = crate::world::subscribe_as("late", world.broker.port(), &["gated/#"], None).await?;
    late.has_all("gated/", 1..2).await?;
    Ok(())
}
