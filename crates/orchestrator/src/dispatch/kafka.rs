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

use super::{Dispatch, DispatchError, Finding, Reports, StageLimits};
use crate::{Report, Task, TaskId, wire};
use solehold_kafka::{Brokers, Member, Trouble};

/// How long a task may take to be confirmed.
const CONFIRM_WITHIN: Duration = Duration::from_secs(30);
const ASK_WITHIN: Duration = Duration::from_secs(5);
/// Heartbeats in the time of a session: librdkafka's own interval of 3 s would be too long for short sessions.
const HEARTBEATS: u32 = 5;
/// How many reports are delivered at once.
const REPORTS_MAX: usize = 500;

/// Where tasks and reports go.
#[derive(Debug, Clone)]
pub struct KafkaConfig {
    /// The brokers.
    pub brokers: Brokers,
    /// Where workers write reports.
    pub reports_topic: String,
    /// The group in which the orchestrators read them.
    pub group: String,
    /// After this time the reports that an orchestrator was reading are read by another one.
    pub session_timeout: Duration,
}

/// Sends tasks to topics.
pub struct Kafka {
    config: KafkaConfig,
    producer: FutureProducer<Trouble>,
}

impl Kafka {
    /// Nothing is connected yet; an error is a mistake in the configuration.
    pub fn new(config: &KafkaConfig) -> Result<Self, String> {
        let mut client = config.brokers.client().map_err(|error| error.to_string())?;
        client.set("acks", "all").set("linger.ms", "5");
        client.set("message.timeout.ms", CONFIRM_WITHIN.as_millis().to_string());
        let producer = client.create_with_context(Trouble::logged());
        let producer = producer.map_err(|error| format!("Kafka's producer: {error}"))?;
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

    fn consumer(&self) -> Result<Member, String> {
        let mut client = self.config.brokers.client().map_err(|error| error.to_string())?;
        let session = self.config.session_timeout;
        client.set("session.timeout.ms", session.as_millis().to_string());
        client.set("heartbeat.interval.ms", (session / HEARTBEATS).as_millis().to_string());
        client.set("group.id", &self.config.group).set("enable.auto.commit", "false");
        client.set("auto.offset.reset", "earliest").set("partition.assignment.strategy", "roundrobin");
        let consumer = client.create_with_context::<_, StreamConsumer<_>>(Trouble::logged());
        let consumer = consumer.map_err(|error| error.to_string())?;
        consumer.subscribe(&[&self.config.reports_topic]).map_err(|error| error.to_string())?;
        Ok(Member::new(consumer))
    }
}

fn judge(error: &KafkaError, topic: &str) -> DispatchError {
    let text = format!("the task was not written to the topic {topic}: {error}");
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

    /// A topic cannot take back what is in it.
    async fn revoke(&self, _task: &TaskId) {}

    async fn reports(&self, to: &dyn Reports) -> DispatchError {
        let consumer = match self.consumer() {
            Ok(consumer) => consumer,
            Err(error) => return DispatchError::Unreachable(format!("Kafka's consumer of reports: {error}")),
        };
        loop {
            if let Err(error) = deliver(&consumer, &self.config.reports_topic, to).await {
                return error;
            }
        }
    }

    async fn check(&self, stages: &[StageLimits]) -> Result<Vec<Finding>, DispatchError> {
        let (producer, config) = (self.producer.clone(), self.config.clone());
        let names: Vec<(String, String)> = stages
            .iter()
            .map(|stage| (format!("stage {}", stage.stage), stage.name.clone()))
            .chain([("reports".to_owned(), config.reports_topic.clone())])
            .collect();
        let asking = tokio::task::spawn_blocking(move || {
            let metadata = producer.client().fetch_metadata(None, ASK_WITHIN);
            let metadata = metadata.map_err(|error| DispatchError::Unreachable(error.to_string()))?;
            let has = |name: &str| metadata.topics().iter().any(|topic| topic.name() == name);
            let missing = names.iter().filter(|(_, topic)| !has(topic));
            let text = |(what, topic): &(String, String)| {
                Finding::warning(format!("{what}: there is no topic {topic}"))
            };
            Ok(missing.map(text).collect())
        });
        asking.await.unwrap_or_else(|error| Err(DispatchError::Unreachable(error.to_string())))
    }
}

/// Delivers everything that has come, and commits its offsets afterwards.
async fn deliver(
    consumer: &StreamConsumer<Trouble>,
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
            // The client connects again by itself.
            Err(KafkaError::MessageConsumption(
                RDKafkaErrorCode::AllBrokersDown | RDKafkaErrorCode::BrokerTransportFailure,
            )) => break,
            Err(error) => return Err(unreachable("reading reports", error.to_string())),
        };
        reports.extend(read(&message));
        offsets.insert(message.partition(), message.offset() + 1);
    }
    to.deliver(reports).await.map_err(|error| unreachable("reports were not kept", error.to_string()))?;
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
        // The group has changed: someone else reads them again.
        Ok(()) | Err(KafkaError::ConsumerCommit(_)) => Ok(()),
        Err(error) => Err(unreachable("committing reports", error.to_string())),
    }
}

/// What is no report is not kept: nobody could tell which task it is about.
fn read(message: &BorrowedMessage<'_>) -> Option<Report> {
    let report = wire::report(message.payload().unwrap_or_default());
    report
        .inspect_err(|why| {
            let (partition, offset) = (message.partition(), message.offset());
            tracing::warn!(partition, offset, %why, "a message in the topic of reports was dropped");
        })
        .ok()
}
