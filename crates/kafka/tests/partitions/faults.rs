//! The broker and PostgreSQL go away and come back.

use solehold_testkit::{Kafka, Postgres, wait_for};

use crate::kit::{Kit, PARTITIONS, PATIENCE, Running};

#[tokio::test(flavor = "multi_thread")]
async fn the_broker_and_postgres_are_restarted() -> anyhow::Result<()> {
    let (kafka, postgres) = tokio::try_join!(Kafka::start(), Postgres::start())?;
    let kafka: &'static Kafka = Box::leak(Box::new(kafka));
    let topic = kafka.create_topic("commands", PARTITIONS).await?;
    let mut kit = Kit::with(kafka, topic, postgres.create_database("restarts").await?).await?;
    let one = Running::start(kit.orders("one"));
    let two = Running::start(kit.orders("two"));
    kit.shared_by(&["one", "two"]).await;

    kit.send_many("a", 500, 60);
    postgres.stop().await?;
    kit.send_many("b", 500, 60);
    postgres.start_again().await?;
    kit.client = crate::kit::connect(&kit.database).await?;
    kit.effects(1_000).await;

    kit.send_many("c", 500, 60);
    kafka.kill9().await?;
    kit.send_many("d", 500, 60);
    kafka.start_again().await?;
    kit.flush().await;
    // The producer may have sent again what the broker had taken: that counts as other messages.
    let distinct = "(SELECT DISTINCT message FROM effects) AS each";
    wait_for("2000 distinct effects", PATIENCE, async || kit.count(distinct).await == 2_000).await?;
    one.end().await?;
    two.end().await?;
    Ok(())
}
