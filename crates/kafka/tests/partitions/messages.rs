//! What becomes of messages: in order, in parallel, again, and as dead letters.

use std::time::Duration;

use solehold_testkit::wait_for;

use crate::kit::{Kit, PATIENCE, Running};

#[tokio::test(flavor = "multi_thread")]
async fn messages_take_effect_once_and_bad_ones_do_not_stop_the_others() -> anyhow::Result<()> {
    let kit = Kit::new().await?;
    let mut orders = kit.orders("one");
    orders.settings.attempts = 4;
    let one = Running::start(orders);
    kit.send_many("good", 2_000, 40);
    // Of one partition: a key whose message never works is in nobody's way but its own.
    for (key, payload) in [("a", "poison-1"), ("b", "never-1"), ("c", "third-1"), ("d", "refused-1")] {
        kit.send_to(3, key, payload);
        kit.send_to(3, key, &format!("after-{key}"));
    }
    kit.flush().await;
    // The good ones, the one that works at the third attempt, and what follows each of the four.
    kit.effects(2_000 + 1 + 4).await;
    assert_eq!(kit.count("effects WHERE message LIKE 'after-%'").await, 4);
    assert_eq!(kit.count("tries WHERE message = 'never-1'").await, 4, "as often as it may be tried");
    assert_eq!(kit.count("tries WHERE message = 'third-1'").await, 3);
    let letters = kit.client.query("SELECT message, reason FROM letters ORDER BY message", &[]).await?;
    let letters: Vec<(String, String)> = letters.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(letters[0], ("never-1".to_owned(), "it never works".to_owned()));
    assert_eq!(letters[1], ("poison-1".to_owned(), "it makes no sense".to_owned()));
    assert!(letters[2].0 == "refused-1" && letters[2].1.contains("null value"), "{letters:?}");
    assert_eq!(letters.len(), 3);
    assert_eq!((one.metrics.messages.get(), one.metrics.dead_letters.get()), (2_008, 3));
    assert!(one.handler.most_running.load(std::sync::atomic::Ordering::SeqCst) > 1, "keys go in parallel");
    let is_ready = async || one.metrics.ready(solehold_clock::BootTime::now()).is_ok();
    wait_for("it to be ready", PATIENCE, is_ready).await?;
    wait_for("the lag to be told", PATIENCE, async || {
        one.metrics.partitions().values().all(|metrics| metrics.lag() == Some(0))
    })
    .await?;
    one.end().await?;
    let overtaken = "(SELECT epoch FROM partitions WHERE next_offset IS NULL) AS none";
    assert_eq!(kit.count(overtaken).await, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_is_full_is_paused_and_resumed() -> anyhow::Result<()> {
    let kit = Kit::new().await?;
    let mut orders = kit.orders("one");
    (orders.settings.buffered_messages, orders.settings.batch, orders.settings.parallel) = (20, 5, 2);
    (0..600)
        .for_each(|number| kit.send_to(number % 2, &format!("key-{}", number % 50), &format!("m-{number}")));
    kit.flush().await;
    let one = Running::start(orders);
    kit.check(600).await;
    assert_eq!((one.metrics.fenced.get(), one.metrics.lost.get()), (0, 0));
    let pauses = one.metrics.pauses.get();
    assert!(pauses > 4, "{pauses}");
    one.end().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_was_made_anew_is_noticed() -> anyhow::Result<()> {
    let kit = Kit::new().await?;
    let one = Running::start(kit.orders("one"));
    kit.send_many("m", 100, 20);
    kit.flush().await;
    kit.check(100).await;
    one.end().await?;
    kit.kafka.delete_topic(&kit.topic).await?;
    kit.kafka.create_topic_named(&kit.topic, 12).await?;
    // It is empty: the positions are above its end.
    let error = Running::start(kit.orders("two")).ended().await.expect_err("another topic").to_string();
    assert!(error.contains("made anew") && error.contains("begin anew"), "{error}");
    // It has as many messages as before, but others.
    let anew = Kit::with_tables_of(&kit).await?;
    anew.send_many("other", 400, 20);
    anew.flush().await;
    let error = Running::start(kit.orders("three")).ended().await.expect_err("another topic").to_string();
    assert!(error.contains("made anew") && error.contains("another message"), "{error}");
    assert_eq!(kit.count("effects").await, 100, "nothing of it took effect");
    // That is meant: the group begins anew.
    let group = kit.orders("four").settings.group;
    kit.client.execute("DELETE FROM marks", &[]).await?;
    crate::kit::partitions().begin_anew(&kit.client, &group, &kit.topic).await?;
    let four = Running::start(kit.orders("four"));
    kit.effects(500).await;
    four.end().await?;
    // Another number of partitions is refused, too.
    let mut orders = kit.orders("five");
    orders.settings.partitions = 6;
    let error = Running::start(orders).ended().await.expect_err("another number").to_string();
    assert!(error.contains("has 12 partitions and not 6"), "{error}");
    let mut orders = kit.orders("six");
    orders.settings.leave_timeout = Duration::from_secs(9);
    assert!(Running::start(orders).ended().await.is_err());
    Ok(())
}
