//! `--check`: reads the file, and asks everyone that it names.

use std::{path::Path, time::Duration};

use rdkafka::{
    ClientConfig,
    config::FromClientConfigAndContext as _,
    producer::{BaseProducer, Producer as _},
};
use serde_json::Value;
use solehold_api::paths;
use solehold_clock::BootTime;

use crate::running::{Flags, RunError};
use crate::{
    config::KafkaSettings,
    dispatch::{Finding, StageLimits, Weight},
    pipeline::StagePlan,
    run::{Made, lease_server, make},
};
use solehold_kafka::{HEARD_WITHIN, Reason, Trouble};

/// How long brokers may take to say which topics they have.
const ASK_WITHIN: Duration = Duration::from_secs(5);
/// How often it is looked at what the client has met meanwhile.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Reads the file, and makes sure of everything that it names. Changes nothing but that the tables are made.
pub async fn check(path: &Path, flags: Flags) -> Result<Vec<String>, RunError> {
    let Made { settings, jobs, .. } = make(path, flags, false).await?;
    let kafka = &settings.kafka;
    let partitions = partitions(kafka).await?;
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

/// Asks for all topics: asked for one that is missing, old brokers would make it.
async fn partitions(kafka: &KafkaSettings) -> Result<Partitions, RunError> {
    let config = kafka.brokers.client().map_err(|error| RunError::Usage(format!("kafka: {error}")))?;
    let asking = tokio::task::spawn_blocking(move || ask(&config));
    let asked = asking.await.map_err(|error| RunError::Failed(error.to_string()))?;
    asked.map_err(|Reason { text, is_lasting }| {
        let version = match kafka.brokers.broker_version {
            Some(_) => "",
            None => ", and brokers before Kafka 0.10 need kafka.broker_version",
        };
        let hint = match is_lasting {
            true => String::new(),
            false => format!(
                "; is Kafka running there? kafka.tls and kafka.sasl are for brokers that need them{version}"
            ),
        };
        let brokers = &kafka.brokers.brokers;
        RunError::Unavailable(format!("no broker of kafka.brokers ({brokers}) answers: {text}{hint}"))
    })
}

/// Asks until there is an answer, or until it is clear that there will be none.
fn ask(config: &ClientConfig) -> Result<Partitions, Reason> {
    let failed = |text: String| Reason { text, is_lasting: false };
    let asker = BaseProducer::from_config_and_context(config, Trouble::kept());
    let asker = asker.map_err(|error| failed(error.to_string()))?;
    let until = BootTime::now().plus(ASK_WITHIN);
    loop {
        let error = match asker.client().fetch_metadata(None, ASK_AGAIN) {
            Ok(metadata) => {
                let topics = metadata.topics().iter();
                return Ok(topics.map(|topic| (topic.name().to_owned(), topic.partitions().len())).collect());
            }
            Err(error) => error,
        };
        asker.poll(HEARD_WITHIN);
        let met = asker.context().last();
        if met.as_ref().is_some_and(|met| met.is_lasting) || until.since(BootTime::now()).is_zero() {
            return Err(met.unwrap_or_else(|| failed(error.to_string())));
        }
    }
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
