//! What brokers newer than Apache Kafka 0.9 know: headers, and members with a fixed name. librdkafka's mock cluster
//! stands in for one where that is enough; `make test-nisshi` runs all of it against a whole one.

use std::time::Instant;

use rdkafka::{
    message::{Header, OwnedHeaders},
    mocking::MockCluster,
    producer::{DefaultProducerContext, FutureProducer, FutureRecord},
    types::{RDKafkaApiKey, RDKafkaRespErr},
};
use solehold_testkit::{Kafka, Postgres, wait_for};

use crate::kit::{Kit, Orders, PARTITIONS, PATIENCE, Running, brokers};

type Mock = MockCluster<'static, DefaultProducerContext>;

async fn kit_on(mock: &Mock) -> anyhow::Result<Kit> {
    mock.create_topic("commands", PARTITIONS, 1)?;
    let kafka: &'static Kafka = Box::leak(Box::new(Kafka::at(mock.bootstrap_servers())));
    let database = Postgres::shared().await?.create_database("consumer").await?;
    Kit::with(kafka, "commands".to_owned(), database).await
}

fn named(kit: &Kit, name: &str, member: &str) -> Orders {
    let mut orders = kit.orders(name);
    orders.settings.group_instance_id = Some(member.to_owned());
    orders
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_arrive_with_their_message() -> anyhow::Result<()> {
    let mock = MockCluster::new(1)?;
    let kit = kit_on(&mock).await?;
    let headers =
        [("reason", "stage decode is not known"), ("topic", "jobs"), ("partition", "3"), ("offset", "41")];
    let add = |all: OwnedHeaders, (key, value)| all.insert(Header { key, value: Some(value) });
    let headers = headers.into_iter().fold(OwnedHeaders::new(), add);
    let producer: FutureProducer = brokers(kit.kafka).client()?.create()?;
    let record = FutureRecord::to(&kit.topic).key("acme:final").payload("headers-1").headers(headers);
    producer.send(record, PATIENCE).await.map_err(|(error, _)| error)?;
    let one = Running::start(kit.orders("one"));
    kit.effects(1).await;
    let row = kit.client.query_one("SELECT message, key FROM effects", &[]).await?;
    let expected = "reason=stage decode is not known,topic=jobs,partition=3,offset=41";
    assert_eq!((row.get::<_, &str>(0), row.get::<_, &str>(1)), (expected, "acme:final"));
    one.end().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_whose_name_another_has_taken_ends() -> anyhow::Result<()> {
    let mock = MockCluster::new(1)?;
    let kit = kit_on(&mock).await?;
    let one = Running::start(named(&kit, "one", "pod-1"));
    kit.shared_by(&["one"]).await;
    // What a broker tells the former member. Every poll would be empty from now on.
    let fenced = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_FENCED_INSTANCE_ID; 3];
    mock.request_errors(RDKafkaApiKey::Heartbeat, &fenced);
    let error = one.ended().await.expect_err("it has failed permanently").to_string();
    assert!(error.contains("failed permanently") && error.contains("FencedInstanceId"), "{error}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_partitions_of_a_fixed_name_wait_for_it() -> anyhow::Result<()> {
    let kit = Kit::new().await?;
    let session = kit.orders("").settings.session_timeout;
    let one = Running::start(named(&kit, "one", "pod-1"));
    let two = Running::start(named(&kit, "two", "pod-2"));
    kit.shared_by(&["one", "two"]).await;
    kit.send_many("a", 500, 60);
    kit.flush().await;
    kit.effects(500).await;
    let rebalances = two.metrics.rebalances.get();
    let ended = Instant::now();
    one.end().await?;
    if kit.kafka.broker_version().is_some() {
        // A broker that knows no fixed names has not been told that the member left.
        kit.shared_by(&["two"]).await;
        assert!(ended.elapsed() > session / 2, "taken over after {:?}", ended.elapsed());
        two.end().await?;
        return Ok(());
    }
    let again = Running::start(named(&kit, "one-again", "pod-1"));
    kit.shared_by(&["one-again", "two"]).await;
    assert_eq!(two.metrics.rebalances.get(), rebalances, "the others keep on working");
    // Another program under the name of the one that runs puts it out.
    let thief = Running::start(named(&kit, "thief", "pod-1"));
    let error = again.ended().await.expect_err("its name is taken").to_string();
    assert!(error.contains("failed permanently"), "{error}");
    kit.shared_by(&["thief", "two"]).await;
    kit.send_many("b", 500, 60);
    kit.flush().await;
    kit.check(1_000).await;
    thief.end().await?;
    two.end().await?;
    wait_for("the broker to display everything", PATIENCE, async || {
        let displayed = kit.displayed().unwrap_or_default();
        displayed.iter().filter_map(|offset| offset.to_raw()).sum::<i64>() == 1_000
    })
    .await
}
