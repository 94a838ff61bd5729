//! Tasks to a topic, and reports from a topic.
//!
//! A stage's task is the topic that its tasks go to, under the key of the job's commands. Workers write reports to one
//! topic, in JSON; the orchestrators read it as a group of their own, and commit its offsets when the reports are in
//! the database.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use futures_util::{FutureExt as _, future::join_all};
use rdkafka::{
    Message as _, TopicPartitionList,
    consumer::{CommitMode, Consumer as _, StreamConsumer},
    error::{KafkaError, RDKafkaErrorCode},
    message::BorrowedMessage,
    producer::{FutureProducer, FutureRecord, Producer as _},
};

use crate::dispatch::{Dispatch, DispatchError, Finding, InvalidDispatcher, Reports};
use crate::{
    dispatch::wire,
    model::{
        pipeline::{DispatchKind, StagePlan},
        task::{Report, Task, TaskId},
    },
};
use solehold_kafka::{BrokerErrors, Brokers, Member};

const CONFIRM_WITHIN: Duration = Duration::from_secs(30);
const METADATA_WITHIN: Duration = Duration::from_secs(5);
/// Heartbeats per session timeout: librdkafka's default interval of 3 s is too long for short sessions.
const HEARTBEATS: u32 = 5;
/// How many reports are delivered at once.
const REPORTS_MAX: usize = 500;

#[derive(Debug, Clone)]
pub struct KafkaConfig {
    pub brokers: Brokers,
    /// Where workers write reports.
    pub reports_topic: String,
    /// The group in which the orchestrators read them.
    pub group: String,
    /// An orchestrator that does not send heartbeats for this long loses its partitions of the reports topic.
    pub session_timeout: Duration,
}

pub struct Kafka {
    config: KafkaConfig,
    producer: FutureProducer<BrokerErrors>,
}

impl Kafka {
    /// Nothing is connected yet.
    pub fn new(config: &KafkaConfig) -> Result<Self, InvalidDispatcher> {
        let invalid = |what: String| InvalidDispatcher::new(DispatchKind::Kafka, what);
        let mut client = config.brokers.client().map_err(|error| invalid(error.to_string()))?;
        client.set("acks", "all").set("linger.ms", "5");
        client.set("message.timeout.ms", CONFIRM_WITHIN.as_millis().to_string());
        let producer = client.create_with_context(BrokerErrors::logged());
        let producer = producer.map_err(|error| invalid(format!("Kafka's producer: {error}")))?;
        Ok(Self { config: config.clone(), producer })
    }

    async fn send_one(&self, task: &Task) -> Result<(), DispatchError> {
        let payload = wire::task(task, None).to_string();
        let record = FutureRecord::to(&task.name).key(&task.key).payload(&payload);
        match self.producer.send(record, CONFIRM_WITHIN).await {
            Ok(_) => Ok(()),
            Err((error, _)) => Err(judge(&error, &task.name)),
        }
    }

    fn consumer(&self) -> Result<Member, DispatchError> {
        let failed =
            |error: String| DispatchError::Unreachable(format!("Kafka's consumer of reports: {error}"));
        let mut client = self.config.brokers.client().map_err(|error| failed(error.to_string()))?;
        let session = self.config.session_timeout;
        client.set("session.timeout.ms", session.as_millis().to_string());
        client.set("heartbeat.interval.ms", (session / HEARTBEATS).as_millis().to_string());
        client.set("group.id", &self.config.group).set("enable.auto.commit", "false");
        client.set("auto.offset.reset", "earliest").set("partition.assignment.strategy", "roundrobin");
        let consumer = client.create_with_context::<_, StreamConsumer<_>>(BrokerErrors::logged());
        let consumer = consumer.map_err(|error| failed(error.to_string()))?;
        consumer.subscribe(&[&self.config.reports_topic]).map_err(|error| failed(error.to_string()))?;
        Ok(Member::new(consumer))
    }
}

fn judge(error: &KafkaError, topic: &str) -> DispatchError {
    let text = format!("cannot write the task to topic {topic}: {error}");
    match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::MessageSizeTooLarge | RDKafkaErrorCode::InvalidTopic) => {
            DispatchError::Refused(text)
        }
        _ => DispatchError::Unreachable(text),
    }
}

#[async_trait]
impl Dispatch for Kafka {
    async fn send(&self, tasks: &[Task]) -> Vec<Result<(), DispatchError>> {
        join_all(tasks.iter().map(|task| self.send_one(task))).await
    }

    /// A message cannot be removed from a topic.
    async fn revoke(&self, _task: &TaskId) {}

    async fn reports(&self, to: &dyn Reports) -> DispatchError {
        let consumer = match self.consumer() {
            Ok(consumer) => consumer,
            Err(error) => return error,
        };
        loop {
            if let Err(error) = deliver(&consumer, &self.config.reports_topic, to).await {
                return error;
            }
        }
    }

    async fn check(&self, stages: &[StagePlan]) -> Result<Vec<Finding>, DispatchError> {
        let producer = self.producer.clone();
        let names: Vec<(String, String)> = stages
            .iter()
            .map(|stage| (format!("stage {}", stage.name), stage.task.clone()))
            .chain([("reports".to_owned(), self.config.reports_topic.clone())])
            .collect();
        let asking = tokio::task::spawn_blocking(move || {
            let metadata = producer.client().fetch_metadata(None, METADATA_WITHIN);
            let metadata = metadata.map_err(|error| DispatchError::Unreachable(error.to_string()))?;
            let has = |name: &str| metadata.topics().iter().any(|topic| topic.name() == name);
            let missing = names.iter().filter(|(_, topic)| !has(topic));
            let text = |(what, topic): &(String, String)| {
                Finding::warning(format!("{what}: topic {topic} does not exist"))
            };
            Ok(missing.map(text).collect())
        });
        asking.await.unwrap_or_else(|error| Err(DispatchError::Unreachable(error.to_string())))
    }
}

/// Delivers all reports that have arrived, then commits their offsets.
async fn deliver(
    consumer: &StreamConsumer<BrokerErrors>,
    topic: &str,
    to: &dyn Reports,
) -> Result<(), DispatchError> {
    let unreachable = |what: &str, error: String| DispatchError::Unreachable(format!("{what}: {error}"));
    let mut reports = Vec::new();
    let mut offsets: BTreeMap<i32, i64> = BTreeMap::new();
    for at in 0..REPORTS_MAX {
        let next = if at == 0 { Some(consumer.recv().await) } else { consumer.recv().now_or_never() };
        let Some(message) = next else { break };
        let message = match message {
            Ok(message) => message,
            // librdkafka reconnects.
            Err(KafkaError::MessageConsumption(
                RDKafkaErrorCode::AllBrokersDown | RDKafkaErrorCode::BrokerTransportFailure,
            )) => break,
            Err(error) => return Err(unreachable("reading reports", error.to_string())),
        };
        reports.extend(read(&message));
        offsets.insert(message.partition(), message.offset() + 1);
    }
    to.deliver(reports).await.map_err(|error| unreachable("cannot store reports", error.to_string()))?;
    if offsets.is_empty() {
        return Ok(());
    }
    let mut list = TopicPartitionList::new();
    for (partition, offset) in offsets {
        let offset = rdkafka::Offset::Offset(offset);
        let added = list.add_partition_offset(topic, partition, offset);
        added.map_err(|error| unreachable("committing reports", error.to_string()))?;
    }
    match consumer.commit(&list, CommitMode::Async) {
        // After a rebalance, another member reads them again.
        Ok(()) | Err(KafkaError::ConsumerCommit(_)) => Ok(()),
        Err(error) => Err(unreachable("committing reports", error.to_string())),
    }
}

/// Messages that are not reports are dropped: they have no task.
fn read(message: &BorrowedMessage<'_>) -> Option<Report> {
    let report = wire::report(message.payload().unwrap_or_default());
    report
        .inspect_err(|error| {
            let partition = message.partition();
            let offset = message.offset();
            tracing::warn!(partition, offset, %error, "invalid message in the reports topic; dropped");
        })
        .ok()
}
