//! What makes a partition stand still ends its tenure, is seen, and is tried again.

use std::{collections::BTreeSet, sync::atomic::Ordering, time::Duration};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use solehold_kafka::{ConsumerMetrics, LostMessages};
use solehold_testkit::{Kafka, Postgres, wait_for};

use crate::kit::{Kit, PARTITIONS, PATIENCE, Running, brokers, connect};

fn text(metrics: &ConsumerMetrics) -> String {
    let mut registry = prometheus_client::registry::Registry::default();
    metrics.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("text");
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn an_assign_that_fails_ends_the_tenure_and_is_tried_again() -> anyhow::Result<()> {
    let kit = Kit::new().await?;
    let mut orders = kit.orders("one");
    // A client of this strategy refuses to be assigned partitions one by one.
    let strategy = ("partition.assignment.strategy".to_owned(), "range".to_owned());
    orders.brokers.librdkafka.0.extend([strategy]);
    let one = Running::start(orders);
    let stalled = async || one.metrics.stalls.get() > 3 * PARTITIONS as u64;
    wait_for("several attempts at every partition", PATIENCE, stalled).await?;
    let stopped = one.metrics.stopped();
    assert_eq!(stopped.keys().copied().collect::<BTreeSet<_>>(), (0..PARTITIONS).collect());
    assert!(stopped.values().all(|why| why.contains("cannot be fetched")), "{stopped:?}");
    let page = text(&one.metrics);
    assert!(page.contains(&format!("consumer_stopped_partitions {PARTITIONS}\n")), "{page}");
    one.end().await?;
    // A client that can do it finds everything.
    let two = Running::start(kit.orders("two"));
    kit.send_many("m", 100, 20);
    kit.flush().await;
    kit.check(100).await;
    assert!(two.metrics.stopped().is_empty(), "{:?}", two.metrics.stopped());
    two.end().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_epoch_that_was_raised_without_a_new_owner_is_noticed_without_a_message() -> anyhow::Result<()> {
    let kit = Kit::new().await?;
    let one = Running::start(kit.orders("one"));
    kit.shared_by(&["one"]).await;
    let raise = "UPDATE partitions SET epoch = epoch + 1 WHERE partition = 0 RETURNING epoch";
    let raised: i64 = kit.client.query_one(raise, &[]).await?.get(0);
    let again = format!("partitions WHERE partition = 0 AND epoch > {raised} AND owner = 'one'");
    wait_for("the partition to be won again", PATIENCE, async || kit.count(&again).await == 1).await?;
    kit.send_to(0, "key", "m-0");
    kit.flush().await;
    kit.check(1).await;
    assert_eq!(kit.count(&format!("effects WHERE epoch > {raised}")).await, 1);
    assert!(one.metrics.stopped().is_empty(), "{:?}", one.metrics.stopped());
    one.end().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attendance_that_ends_without_an_error_is_begun_again() -> anyhow::Result<()> {
    let kit = Kit::new().await?;
    let one = Running::start(kit.orders("one"));
    let attended = async |count: usize| {
        let is_reached = async || one.handler.attended.load(Ordering::SeqCst) >= count;
        wait_for(&format!("{count} times that a partition is attended to"), PATIENCE, is_reached).await
    };
    attended(PARTITIONS as usize).await?;
    kit.shared_by(&["one"]).await;
    let epochs = "SELECT sum(epoch)::bigint FROM partitions";
    let before: i64 = kit.client.query_one(epochs, &[]).await?.get(0);
    one.handler.end_attending.notify_waiters();
    attended(2 * PARTITIONS as usize).await?;
    let after: i64 = kit.client.query_one(epochs, &[]).await?.get(0);
    assert!(after - before >= i64::from(PARTITIONS), "each was won again: {before} to {after}");
    kit.send_many("m", 100, 20);
    kit.flush().await;
    kit.check(100).await;
    wait_for("every partition to go on", PATIENCE, async || one.metrics.stopped().is_empty()).await?;
    one.end().await?;
    Ok(())
}

/// The first offset of partition 0 that the broker still has.
async fn first_offset(kit: &Kit) -> anyhow::Result<i64> {
    let config = brokers(kit.kafka).client().expect("good");
    let topic = kit.topic.clone();
    let asked = tokio::task::spawn_blocking(move || {
        let asking: BaseConsumer = config.create()?;
        asking.fetch_watermarks(&topic, 0, Duration::from_secs(10))
    });
    Ok(asked.await??.0)
}

/// Sends messages to partition 0 until the broker has deleted everything below `offset`.
async fn delete_below(kit: &Kit, offset: i64) -> anyhow::Result<i64> {
    let low = async || {
        (0..20).for_each(|number| kit.send_to(0, &format!("filler-{number}"), &"x".repeat(1_000)));
        kit.flush().await;
        first_offset(kit).await.ok().filter(|low| *low > offset)
    };
    wait_for("old messages to be deleted", PATIENCE * 3, low).await
}

async fn position(kit: &Kit) -> i64 {
    let sql = "SELECT coalesce(max(next_offset), 0) FROM partitions WHERE partition = 0";
    kit.client.query_one(sql, &[]).await.expect("a position").get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_that_passed_the_position_stops_the_partition_and_not_the_others() -> anyhow::Result<()> {
    if std::env::var_os("SOLEHOLD_TEST_NISSHI").is_some() || std::env::var_os("SOLEHOLD_TEST_KAFKA").is_some()
    {
        eprintln!("retention is set for Apache Kafka only");
        return Ok(());
    }
    let kafka = Kafka::builder()?.retention_bytes(100_000).start().await?;
    let kafka: &'static Kafka = Box::leak(Box::new(kafka));
    let topic = kafka.create_topic("commands", PARTITIONS).await?;
    let database = Postgres::shared().await?.create_database("retention").await?;
    let kit = Kit::with(kafka, topic, database).await?;
    let first = Running::start(kit.orders("first"));
    (0..3).for_each(|number| kit.send_to(0, "key", &format!("m-{number}")));
    kit.flush().await;
    kit.effects(3).await;
    first.end().await?;
    delete_below(&kit, 3).await?;

    // By default the partition stops, and says which messages are lost; the others go on.
    let stopping = Running::start(kit.orders("stopping"));
    let why =
        wait_for("the partition to stop", PATIENCE, async || stopping.metrics.stopped().remove(&0)).await?;
    let low = first_offset(&kit).await?;
    assert!(why.starts_with("messages 3 to ") && why.contains("of partition 0"), "{why}");
    assert!(why.contains("Deleted messages"), "{why}");
    kit.send_to(5, "key", "other-1");
    kit.flush().await;
    wait_for("another partition", PATIENCE, async || {
        kit.count("effects WHERE message = 'other-1'").await == 1
    })
    .await?;
    assert_eq!(position(&kit).await, 3, "nothing is skipped silently");
    // Someone decides: the partition goes on by itself.
    let sql = "UPDATE partitions SET epoch = epoch + 1, next_offset = $1 WHERE partition = 0";
    kit.client.execute(sql, &[&low]).await?;
    kit.send_to(0, "key", "after-1");
    kit.flush().await;
    wait_for("the next message", PATIENCE, async || {
        kit.count("effects WHERE message = 'after-1'").await == 1
    })
    .await?;
    assert!(stopping.metrics.stopped().is_empty());
    stopping.end().await?;

    // It can be told to skip, and reports how much; also when retention overtakes a consumer that runs.
    let mut orders = kit.orders("skipping");
    orders.settings.lost_messages = LostMessages::Skip;
    (orders.settings.buffered_messages, orders.settings.batch) = (2, 2);
    let skipping = Running::start(orders);
    kit.shared_by(&["skipping"]).await;
    let blocker = connect(&kit.database).await?;
    blocker.batch_execute("BEGIN; SELECT 1 FROM partitions WHERE partition = 0 FOR UPDATE").await?;
    let before = position(&kit).await;
    delete_below(&kit, before + 60).await?;
    blocker.batch_execute("COMMIT").await?;
    kit.send_to(0, "key", "last-1");
    kit.flush().await;
    wait_for("the last message", PATIENCE * 2, async || {
        kit.count("effects WHERE message = 'last-1'").await == 1
    })
    .await?;
    assert!(skipping.metrics.lost_messages.get() > 0 && skipping.metrics.stalls.get() > 0);
    assert!(skipping.metrics.stopped().is_empty());
    skipping.end().await?;
    Ok(())
}

/// It was retried for ever, and nothing but a log line showed it.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_cannot_even_be_kept_as_a_letter_is_reported() -> anyhow::Result<()> {
    let kit = Kit::new().await?;
    kit.client
        .batch_execute("ALTER TABLE letters ADD CONSTRAINT none CHECK (message NOT LIKE 'refused%')")
        .await?;
    let one = Running::start(kit.orders("one"));
    kit.send_to(3, "a", "refused-1");
    kit.send_to(3, "b", "good-1");
    kit.flush().await;
    let stopped = async || one.metrics.stopped().get(&3).cloned();
    let why = wait_for("the partition to count as stopped", PATIENCE, stopped).await?;
    assert!(
        why.starts_with("message 0 can be committed neither as an effect nor as a dead letter: "),
        "{why}"
    );
    assert!(why.contains("none"), "{why}");
    kit.client.batch_execute("ALTER TABLE letters DROP CONSTRAINT none").await?;
    wait_for("the partition to go on", PATIENCE, async || one.metrics.stopped().is_empty()).await?;
    kit.effects(1).await;
    assert_eq!(kit.count("letters").await, 1);
    one.end().await?;
    Ok(())
}
