//! Workers that read a topic and write reports to another.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use rdkafka::{
    ClientConfig, Message as _,
    consumer::{Consumer as _, StreamConsumer},
    message::Headers as _,
    mocking::MockCluster,
    producer::{FutureProducer, FutureRecord},
};
use serde_json::{Value, json};
use solehold_kafka::Brokers;
use solehold_orchestrator::{
    dispatch::{
        Dispatch as _, DispatchError,
        kafka::{Kafka, KafkaConfig},
    },
    model::task::ReportKind,
    publish::{KafkaPublisher, Outgoing, Publish as _},
    store::{DeadLetter, DeadLetterId, DeadLetterState},
};
use solehold_testkit::wait_for;

use crate::world::{Kept, PATIENCE, deliver, id, refusal, send, stage, task};

fn brokers(broker: &solehold_testkit::Kafka) -> Brokers {
    Brokers { broker_version: broker.broker_version().map(str::to_owned), ..Brokers::at(broker.address()) }
}

fn client(broker: &solehold_testkit::Kafka) -> Result<ClientConfig> {
    Ok(brokers(broker).client()?)
}

fn sender(broker: &solehold_testkit::Kafka, reports: &str) -> Result<Arc<Kafka>> {
    let config = KafkaConfig {
        brokers: brokers(broker),
        reports_topic: reports.to_owned(),
        group: format!("{reports}-group"),
        session_timeout: Duration::from_secs(6),
    };
    Ok(Arc::new(Kafka::new(&config).map_err(anyhow::Error::msg)?))
}

const DONE: &str = r#"{"job": "j", "stage": "decode", "attempt": 3, "kind": "succeeded", "result": 7}"#;

async fn report(broker: &solehold_testkit::Kafka, topic: &str, payloads: &[&str]) -> Result<()> {
    let producer: FutureProducer = client(broker)?.create()?;
    for payload in payloads {
        let record = FutureRecord::to(topic).key("acme:final").payload(*payload);
        let sent = producer.send(record, PATIENCE).await;
        sent.map_err(|(error, _)| error)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_are_given_up_even_if_the_broker_is_gone() -> Result<()> {
    let broker = solehold_testkit::Kafka::start().await?;
    let reports = broker.create_topic("reports", 2).await?;
    let sender = sender(&broker, &reports)?;
    let kept = Kept::default();
    let mut delivering = deliver(&sender, &kept);
    report(&broker, &reports, &[DONE]).await?;
    ensure!(kept.end(&id("j", "decode", 3)).await? == ReportKind::Succeeded { result: json!(7) });
    broker.kill9().await?;
    tokio::time::timeout(PATIENCE, delivering.shutdown()).await.context("it waits for the broker")
}

#[tokio::test]
async fn tasks_go_to_a_topic_and_reports_come_back() -> Result<()> {
    let broker = solehold_testkit::Kafka::shared().await?;
    let tasks = broker.create_topic("tasks", 3).await?;
    let reports = broker.create_topic("reports", 2).await?;
    let sender = sender(broker, &reports)?;
    let job = id("j", "decode", 3);
    send(sender.as_ref(), &task(job.clone(), &tasks, json!({ "file": "a.mp4" }))).await?;

    let worker: StreamConsumer = client(broker)?
        .set("group.id", format!("{tasks}-group"))
        .set("auto.offset.reset", "earliest")
        .create()?;
    worker.subscribe(&[&tasks])?;
    let message = tokio::time::timeout(PATIENCE, worker.recv()).await.context("a task")??;
    ensure!(message.key() == Some(b"acme:final".as_slice()));
    let said: Value = serde_json::from_slice(message.payload().unwrap_or_default())?;
    ensure!((&said["id"], &said["attempt"]) == (&json!("j:decode:3"), &json!(3)), "{said}");
    ensure!(said["input"] == json!({ "file": "a.mp4" }), "{said}");

    // Reports that are not kept come again; what is no report is passed over.
    report(broker, &reports, &["{", "{\"job\": \"j\"}", DONE]).await?;
    let kept = Kept::default();
    kept.go_away();
    let delivering = deliver(&sender, &kept);
    wait_for("a report that is not kept", PATIENCE, async || kept.refused() > 0).await?;
    drop(delivering);
    kept.come_back();
    let _delivering = deliver(&sender, &kept);
    ensure!(kept.end(&job).await? == ReportKind::Succeeded { result: json!(7) });

    let stage = stage("detect", "nowhere", PATIENCE);
    let findings = sender.check(&[stage]).await?;
    ensure!(findings.len() == 1 && findings[0].text.contains("topic nowhere does not exist"), "{findings:?}");
    let large = refusal(sender.as_ref(), &task(job, &tasks, json!("a".repeat(2_000_000)))).await;
    ensure!(matches!(large, Some(DispatchError::Refused(_))), "{large:?}");
    Ok(())
}

#[tokio::test]
async fn the_copy_of_a_dead_letter_names_its_origin_in_headers() -> Result<()> {
    // The tests' Kafka is older than headers.
    let mock = MockCluster::new(1)?;
    mock.create_topic("letters", 1, 1)?;
    let letter = DeadLetter {
        id: DeadLetterId { partition: 3, generation: 0, position: 41 },
        key: "acme:final".to_owned(),
        payload: Some(b"{}".to_vec()),
        digest: None,
        state: DeadLetterState::Dead,
        reason: "stage decode is not known".to_owned(),
        at_ms: 0,
    };
    let brokers = Brokers::at(mock.bootstrap_servers());
    let publisher = KafkaPublisher::new(&brokers, true).map_err(anyhow::Error::msg)?;
    let copy = Outgoing::of_dead_letter(&letter, "jobs", publisher.has_headers());
    for published in publisher.publish("letters", &[copy]).await {
        published?;
    }
    let reader: StreamConsumer =
        brokers.client()?.set("group.id", "reader").set("auto.offset.reset", "earliest").create()?;
    reader.subscribe(&["letters"])?;
    let message = tokio::time::timeout(PATIENCE, reader.recv()).await.context("a letter")??;
    let header = |header: rdkafka::message::Header<'_, &[u8]>| {
        (header.key.to_owned(), String::from_utf8_lossy(header.value.unwrap_or_default()).into_owned())
    };
    let headers: Vec<_> = message.headers().context("headers")?.iter().map(header).collect();
    let expected =
        [("reason", "stage decode is not known"), ("topic", "jobs"), ("partition", "3"), ("offset", "41")];
    ensure!(headers == expected.map(|(name, value)| (name.to_owned(), value.to_owned())), "{headers:?}");
    ensure!(message.key() == Some(b"acme:final".as_slice()));
    Ok(())
}
