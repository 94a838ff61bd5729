//! `--check`: checks the configuration against the brokers, the database and the workers.

use std::{path::Path, time::Duration};

use rdkafka::{
    ClientConfig,
    config::FromClientConfigAndContext as _,
    producer::{BaseProducer, Producer as _},
};
use serde_json::Value;
use solehold_api::paths;
use solehold_clock::BootTime;

use super::start::{Assembled, assemble, lease_server};
use crate::{
    config::{Flags, KafkaSettings, Settings},
    dispatch::{Finding, Weight},
    error::RunError,
};
use solehold_kafka::{BrokerErrors, BrokerProblem, REPORTED_WITHIN};

/// How long brokers may take to list their topics.
const METADATA_WITHIN: Duration = Duration::from_secs(5);
/// How often errors of the client are looked at meanwhile.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// Checks a configuration, and returns the findings. Creates missing tables; changes nothing else.
pub async fn check(path: &Path, flags: Flags) -> Result<Vec<String>, RunError> {
    let Assembled { settings, orchestrator, .. } = assemble(path, flags, false).await?;
    let partitions = partitions(&settings.kafka).await?;
    let mut found: Vec<(&str, Finding)> =
        topics(&settings, &partitions).into_iter().map(|finding| ("commands", finding)).collect();
    if let Some(server) = lease_server(&settings)? {
        let asked = server.get::<Value>(format!("{}?limit=1", paths::RUNNERS)).await;
        let asked = asked.map_err(|error| RunError::Unavailable(format!("leases: {error}")))?;
        asked.map_err(|refusal| RunError::Usage(format!("leases: {}", refusal.detail)))?;
        found.push(("leases", Finding::note("the Solehold server responds")));
    }
    for (kind, dispatcher) in &orchestrator.parts.dispatchers {
        let stages = settings.pipeline.stages().iter().filter(|stage| stage.dispatch == *kind);
        let findings = dispatcher.check(&stages.cloned().collect::<Vec<_>>()).await;
        let findings = findings
            .map_err(|error| RunError::Unavailable(format!("dispatchers.{}: {error}", kind.name())))?;
        found.extend(findings.into_iter().map(|finding| (kind.name(), finding)));
    }
    let mut lines: Vec<String> = found.iter().map(|(of, finding)| format!("{of}: {finding}")).collect();
    if found.iter().any(|(_, finding)| finding.weight == Weight::Problem) {
        return Err(RunError::Usage(lines.join("; ")));
    }
    let stages: Vec<&str> = settings.pipeline.stages().iter().map(|stage| stage.name.as_str()).collect();
    lines.push(format!(
        "the configuration is good: commands from {} in group {}, stages {}",
        settings.consumer.topic,
        settings.consumer.group,
        stages.join(", ")
    ));
    Ok(lines)
}

/// The topics of the brokers, with how many partitions each has.
type Partitions = Vec<(String, usize)>;

/// Lists all topics: old brokers create a missing topic whose metadata is requested.
async fn partitions(kafka: &KafkaSettings) -> Result<Partitions, RunError> {
    let config = kafka.brokers.client().map_err(|error| RunError::Usage(format!("kafka: {error}")))?;
    let listing = tokio::task::spawn_blocking(move || list_topics(&config));
    let listed = listing.await.map_err(|error| RunError::Failed(error.to_string()))?;
    listed.map_err(|BrokerProblem { text, is_lasting }| {
        let version = match kafka.brokers.broker_version {
            Some(_) => "",
            None => ", and brokers before Kafka 0.10 need kafka.broker_version",
        };
        let hint = if is_lasting {
            String::new()
        } else {
            format!(
                "; is Kafka running there? kafka.tls and kafka.sasl are for brokers that need them{version}"
            )
        };
        let brokers = &kafka.brokers.brokers;
        RunError::Unavailable(format!("no broker of kafka.brokers ({brokers}) responds: {text}{hint}"))
    })
}

/// Retries until a broker responds or an error will not go away.
fn list_topics(config: &ClientConfig) -> Result<Partitions, BrokerProblem> {
    let failed = |text: String| BrokerProblem { text, is_lasting: false };
    let client = BaseProducer::from_config_and_context(config, BrokerErrors::kept());
    let client = client.map_err(|error| failed(error.to_string()))?;
    let until = BootTime::now().plus(METADATA_WITHIN);
    loop {
        let error = match client.client().fetch_metadata(None, RETRY_EVERY) {
            Ok(metadata) => {
                let topics = metadata.topics().iter();
                return Ok(topics.map(|topic| (topic.name().to_owned(), topic.partitions().len())).collect());
            }
            Err(error) => error,
        };
        client.poll(REPORTED_WITHIN);
        let met = client.context().last();
        if met.as_ref().is_some_and(|met| met.is_lasting) || until.since(BootTime::now()).is_zero() {
            return Err(met.unwrap_or_else(|| failed(error.to_string())));
        }
    }
}

/// Findings about the topics named in the file.
fn topics(settings: &Settings, found: &Partitions) -> Vec<Finding> {
    let count_of = |name: &str| found.iter().find(|(topic, _)| topic == name).map(|(_, count)| *count);
    let topic = &settings.consumer.topic;
    let expected = settings.consumer.partitions;
    let mut findings = vec![match count_of(topic) {
        None => Finding::problem(format!(
            "topic {topic} does not exist: create it with {expected} partitions (kafka.partitions); an orchestrator \
             waits until it exists"
        )),
        Some(count) if usize::try_from(expected) == Ok(count) => Finding::note(format!(
            "the broker responds, and topic {topic} has {count} partitions, as configured"
        )),
        Some(count) => Finding::problem(format!(
            "topic {topic} has {count} partitions, and kafka.partitions is {expected}: an orchestrator would not start, \
             since a key belongs to a partition by their number; set kafka.partitions to {count} in every process, \
             after everything that was sent before a change of their number has taken effect"
        )),
    }];
    let others = [
        ("events_topic", &settings.kafka.events_topic, "events wait"),
        ("dead_letter_topic", &settings.kafka.dead_letter_topic, "copies of dead letters wait"),
    ];
    for (key, topic, what) in others {
        let Some(topic) = topic.as_ref().filter(|topic| count_of(topic).is_none()) else { continue };
        findings.push(Finding::warning(format!(
            "topic {topic} (kafka.{key}) does not exist: {what} in the outbox until it does"
        )));
    }
    findings
}
