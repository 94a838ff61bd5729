//! `--check`: reads the file, and asks everyone that it names.

use std::{path::Path, time::Duration};

use parking_lot::Mutex;
use rdkafka::{
    ClientConfig, ClientContext,
    config::{FromClientConfigAndContext as _, RDKafkaLogLevel},
    error::{KafkaError, RDKafkaErrorCode},
    message::DeliveryResult,
    producer::{BaseProducer, Producer as _, ProducerContext},
};
use serde_json::Value;
use solehold_api::paths;

use super::{
    config::KafkaSettings,
    dispatch::{Finding, StageLimits, Weight},
    pipeline::StagePlan,
    run::{Made, brokers, lease_server, make},
};
use crate::running::{Flags, RunError};

/// How long brokers may take to say which topics they have.
const ASK_WITHIN: Duration = Duration::from_secs(5);
/// How long the client may take to say what it met on the way.
const HEARD_WITHIN: Duration = Duration::from_millis(100);

/// Reads the file, and makes sure of everything that it names. Changes nothing but that the tables are made.
pub async fn check(path: &Path, flags: Flags) -> Result<Vec<String>, RunError> {
    let Made { settings, jobs, .. } = make(path, flags, false).await?;
    let kafka = &settings.kafka;
    let partitions = partitions(kafka, brokers(&settings).client()).await?;
    let mut found: Vec<(&str, Finding)> =
        topics(kafka, &partitions).into_iter().map(|finding| ("commands", finding)).collect();
    if let Some(server) = lease_server(&settings)? {
        let asked = server.get::<Value>(format!("{}?limit=1", paths::RUNNERS)).await;
        let asked = asked.map_err(|error| RunError::Unavailable(format!("leases: {error}")))?;
        asked.map_err(|refusal| RunError::Usage(format!("leases: {}", refusal.detail)))?;
        found.push(("leases", Finding::note("the Solehold server answers")));
    }
    for (kind, way) in &jobs.parts().dispatchers {
        let stages = settings.pipeline.stages().iter().filter(|stage| stage.dispatch == *kind);
        let stages: Vec<StageLimits> = stages.map(limits_of).collect();
        let findings = way.check(&stages).await;
        let findings = findings
            .map_err(|error| RunError::Unavailable(format!("dispatchers.{}: {error}", kind.name())))?;
        found.extend(findings.into_iter().map(|finding| (kind.name(), finding)));
    }
    let mut said: Vec<String> = found.iter().map(|(of, finding)| format!("{of}: {finding}")).collect();
    if found.iter().any(|(_, finding)| finding.weight == Weight::Problem) {
        return Err(RunError::Usage(said.join("; ")));
    }
    let stages: Vec<&str> = settings.pipeline.stages().iter().map(|stage| stage.name.as_str()).collect();
    let (topic, group) = (&kafka.topic, &kafka.group);
    said.push(format!(
        "the configuration is good: commands from {topic} in group {group}, stages {}",
        stages.join(", ")
    ));
    Ok(said)
}

fn limits_of(plan: &StagePlan) -> StageLimits {
    StageLimits {
        stage: plan.name.clone(),
        name: plan.task.clone(),
        queue: plan.queue.clone(),
        queue_timeout: plan.queue_timeout,
        run_timeout: plan.run_timeout,
    }
}

/// The topics of the brokers, with how many partitions each has.
type Partitions = Vec<(String, usize)>;

/// Why brokers were not reached: the client tells it by the way, and an answer that did not come says nothing of it.
#[derive(Default)]
struct Heard(Mutex<Option<String>>);

impl ClientContext for Heard {
    fn log(&self, _: RDKafkaLogLevel, _: &str, _: &str) {}

    fn error(&self, error: KafkaError, reason: &str) {
        if error.rdkafka_error_code() != Some(RDKafkaErrorCode::AllBrokersDown) {
            *self.0.lock() = Some(reason.to_owned());
        }
    }
}

impl ProducerContext for Heard {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}

/// Asks for all topics: asked for one that is missing, old brokers would make it.
async fn partitions(kafka: &KafkaSettings, client: ClientConfig) -> Result<Partitions, RunError> {
    let asking = tokio::task::spawn_blocking(move || {
        let asker = BaseProducer::from_config_and_context(&client, Heard::default());
        let asker = asker.map_err(|error| error.to_string())?;
        let metadata = asker.client().fetch_metadata(None, ASK_WITHIN).map_err(|error| {
            asker.poll(HEARD_WITHIN);
            asker.context().0.lock().take().unwrap_or_else(|| error.to_string())
        })?;
        let topics = metadata.topics().iter();
        Ok(topics.map(|topic| (topic.name().to_owned(), topic.partitions().len())).collect())
    });
    let asked = asking.await.map_err(|error| RunError::Failed(error.to_string()))?;
    asked.map_err(|why: String| {
        let version = match kafka.broker_version {
            Some(_) => "",
            None => ", and brokers before Kafka 0.10 need kafka.broker_version",
        };
        RunError::Unavailable(format!(
            "no broker of kafka.brokers ({}) answers: {why}; is Kafka running there? kafka.properties has what a \
             secured one asks for{version}",
            kafka.brokers
        ))
    })
}

/// Findings about the topics named in the file.
fn topics(kafka: &KafkaSettings, found: &Partitions) -> Vec<Finding> {
    let count_of = |name: &str| found.iter().find(|(topic, _)| topic == name).map(|(_, count)| *count);
    let (topic, expected) = (&kafka.topic, kafka.partitions);
    let mut findings = vec![match count_of(topic) {
        None => Finding::problem(format!(
            "there is no topic {topic}: create it with {expected} partitions (kafka.partitions); an orchestrator waits \
             until it is there"
        )),
        Some(count) if usize::try_from(expected) == Ok(count) => Finding::note(format!(
            "the broker answers, and topic {topic} has {count} partitions, as configured"
        )),
        Some(count) => Finding::problem(format!(
            "topic {topic} has {count} partitions, and kafka.partitions is {expected}: an orchestrator would not start, \
             since a key belongs to a partition by their number; set kafka.partitions to {count} in every process, \
             after everything that was sent before a change of their number has taken effect"
        )),
    }];
    let others = [
        ("events_topic", &kafka.events_topic, "events wait"),
        ("dead_letter_topic", &kafka.dead_letter_topic, "copies of dead letters wait"),
    ];
    for (key, topic, what) in others {
        let Some(topic) = topic.as_ref().filter(|topic| count_of(topic).is_none()) else { continue };
        findings.push(Finding::warning(format!(
            "there is no topic {topic} (kafka.{key}): {what} in the outbox until it is there"
        )));
    }
    findings
}
