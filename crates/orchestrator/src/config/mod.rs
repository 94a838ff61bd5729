//! The configuration file: read, checked, and completed with defaults. Errors name the line.

mod commands;
mod file;

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
use solehold_api::limits::{CAPACITY_MAX, CAPACITY_MIN};
use solehold_client::{HttpConfig, transport};
use solehold_engine::postgres::Target;
pub use solehold_process::config::ConfigError;
use solehold_process::config::{InvalidValue, invalid};

pub use self::file::{
    CeleryConfig, CommandsFile, DispatchersFile, HttpTasksConfig, KafkaTasksFile, OrchestratorFile, Time,
};
use crate::model::{
    command::Mapping,
    pipeline::{Pipeline, StagePlan},
    template::Template,
};
use solehold_kafka::{Brokers, ConsumerSettings, PartitionAssignment};

/// The whole configuration, checked.
#[derive(Debug, Clone)]
pub struct Settings {
    pub name: String,
    pub kafka: KafkaSettings,
    /// How commands are consumed.
    pub consumer: ConsumerSettings,
    /// The server that leases partitions, if they are leased.
    pub leases: Option<HttpConfig>,
    pub commands: Arc<Mapping>,
    pub postgres: PostgresSettings,
    pub dispatchers: DispatchersFile,
    /// The stages of new jobs.
    pub pipeline: Arc<Pipeline>,
    pub http: HttpSettings,
    pub inbox_retention: Duration,
    pub job_retention: Duration,
}

/// The brokers, and the topics besides that of the commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaSettings {
    pub brokers: Brokers,
    /// A process that does not send heartbeats for this long loses its partitions.
    pub session_timeout: Duration,
    pub events_topic: Option<String>,
    pub dead_letter_topic: Option<String>,
    /// Whether the brokers support message headers.
    pub headers: bool,
}

/// Where jobs are kept.
#[derive(Debug, Clone)]
pub struct PostgresSettings {
    pub url: SecretString,
    pub schema: String,
    /// The most connections of this process.
    pub connections: usize,
    /// How long to wait for the database at the start.
    pub wait: Duration,
}

#[derive(Debug, Clone)]
pub struct HttpSettings {
    pub listen: SocketAddr,
    /// The API key that requests must have.
    pub api_key: Option<SecretString>,
}

/// Flags and environment variables that override the keys of `leases` in the file.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    pub server: Option<String>,
    pub api_key: Option<String>,
    pub tenant: Option<String>,
    pub ca_cert: Option<PathBuf>,
}

impl Flags {
    pub(crate) fn apply(self, file: &mut OrchestratorFile) {
        let leases = &mut file.leases;
        leases.server = self.server.or(leases.server.take());
        if self.api_key.is_some() {
            leases.api_key = self.api_key;
            leases.api_key_file = None;
        }
        leases.tenant = self.tenant.or(leases.tenant.take());
        leases.ca_cert = self.ca_cert.or(leases.ca_cert.take());
    }
}

/// Reads a file; `change` may override its values.
pub fn load(path: &Path, change: impl FnOnce(&mut OrchestratorFile)) -> Result<Settings, ConfigError> {
    solehold_process::config::load(path, change, settle)
}

/// Checks all values and fills in the defaults.
fn settle(file: OrchestratorFile) -> Result<Settings, InvalidValue> {
    let commands = commands::settle(&file.commands)?;
    let pipeline = pipeline(&file, &commands)?;
    let name = file.name.clone().unwrap_or_else(|| solehold_process::name::unique("orchestrator"));
    let (kafka, mut consumer) = kafka(&file, &name)?;
    let postgres = postgres(&file)?;
    let leases = match consumer.partition_assignment {
        PartitionAssignment::Group => None,
        PartitionAssignment::Leases => Some(leases(&file, &mut consumer)?),
    };
    let http = http(&file)?;
    let (inbox_retention, job_retention) = limits(&file, &mut consumer)?;
    consumer.leave_timeout = consumer.leave_timeout.min(consumer.session_timeout / 2);
    Ok(Settings {
        name,
        kafka,
        consumer,
        leases,
        commands: Arc::new(commands),
        postgres,
        dispatchers: file.dispatchers,
        pipeline: Arc::new(pipeline),
        http,
        inbox_retention,
        job_retention,
    })
}

fn pipeline(file: &OrchestratorFile, commands: &Mapping) -> Result<Pipeline, InvalidValue> {
    if file.stages.is_empty() {
        return invalid(
            "stages",
            "stages is missing: a job has at least one stage, with a task and a dispatch",
        );
    }
    let hour = Duration::from_secs(60 * 60);
    let time = |given: Option<Time>| given.map_or(hour, |Time(time)| time);
    let stages = file.stages.iter().map(|(name, stage)| {
        Ok(StagePlan {
            name: name.clone(),
            after: stage.after.clone(),
            task: stage.task.clone(),
            dispatch: stage.dispatch,
            queue: stage.queue.clone(),
            queue_timeout: time(stage.queue_timeout),
            run_timeout: time(stage.run_timeout),
            retries: stage.retries.unwrap_or(3),
            args: template(name, "args", &stage.args)?,
            kwargs: template(name, "kwargs", &stage.kwargs)?,
        })
    });
    let pipeline = Pipeline::new(stages.collect::<Result<_, InvalidValue>>()?).map_err(|error| {
        let key = ["stages"].into_iter().chain(error.stage.as_deref()).chain(error.key);
        InvalidValue { key: Some(key.collect::<Vec<_>>().join("/")), message: error.what }
    })?;
    for stage in pipeline.stages() {
        commands::check_labels(stage, commands)?;
    }
    let missing = pipeline.stages().iter().find(|stage| !file.dispatchers.has(stage.dispatch));
    match missing.map(|stage| (&stage.name, stage.dispatch.name())) {
        Some((name, kind)) => {
            let key = format!("stages/{name}");
            invalid(&key, format!("stage {name} is dispatched by {kind}, and dispatchers.{kind} is missing"))
        }
        None => Ok(pipeline),
    }
}

fn template(stage: &str, key: &str, given: &Option<Value>) -> Result<Option<Template>, InvalidValue> {
    let template = given.clone().map(Template::try_from).transpose();
    template.or_else(|error| {
        invalid(&format!("stages/{stage}/{key}"), format!("{key} of stage {stage}: {error}"))
    })
}

fn kafka(file: &OrchestratorFile, name: &str) -> Result<(KafkaSettings, ConsumerSettings), InvalidValue> {
    let asked = &file.kafka;
    let Some(addresses) = asked.brokers.clone().filter(|brokers| !brokers.trim().is_empty()) else {
        return invalid(
            "kafka",
            "kafka.brokers is missing: write it as HOST:PORT, with commas between several",
        );
    };
    let defaults = ConsumerSettings::default();
    let partitions = asked.partitions.unwrap_or(defaults.partitions);
    if !(1..=100_000).contains(&partitions) {
        return invalid("partitions", format!("partitions is {partitions}; it must be 1 to 100000"));
    }
    let session_timeout = asked.session_timeout.map_or(defaults.session_timeout, |Time(time)| time);
    if !(Duration::from_secs(1)..=Duration::from_secs(300)).contains(&session_timeout) {
        return invalid("session_timeout", "session_timeout must be 1s to 5m");
    }
    let topics = [("topic", &asked.topic), ("group", &asked.group), ("events_topic", &asked.events_topic)];
    for (key, given) in topics.into_iter().chain([("dead_letter_topic", &asked.dead_letter_topic)]) {
        if given.as_ref().is_some_and(|text| text.is_empty() || text.len() > 249) {
            return invalid(key, format!("{key} must have 1 to 249 characters"));
        }
    }
    if asked.static_member.is_some() && asked.partition_assignment == Some(PartitionAssignment::Leases) {
        return invalid("static_member", "static_member is for partition_assignment: group");
    }
    let brokers = Brokers {
        brokers: addresses,
        client_id: name.to_owned(),
        broker_version: asked.broker_version.clone(),
        tls: asked.tls.clone(),
        sasl: asked.sasl.clone(),
        librdkafka: asked.properties.clone(),
    };
    if let Err(error) = brokers.client() {
        return invalid(&error.key, format!("kafka: {error}"));
    }
    let kafka = KafkaSettings {
        brokers,
        session_timeout,
        events_topic: asked.events_topic.clone(),
        dead_letter_topic: asked.dead_letter_topic.clone(),
        headers: asked.headers.unwrap_or(asked.broker_version.is_none()),
    };
    let consumer = ConsumerSettings {
        topic: asked.topic.clone().unwrap_or(defaults.topic),
        group: asked.group.clone().unwrap_or(defaults.group),
        partitions,
        partition_assignment: asked.partition_assignment.unwrap_or_default(),
        group_instance_id: asked.static_member.clone(),
        session_timeout,
        auto_offset_reset: asked.auto_offset_reset.unwrap_or_default(),
        lost_messages: asked.lost_messages.unwrap_or_default(),
        ..defaults
    };
    Ok((kafka, consumer))
}

const POSTGRES_WAIT: Duration = Duration::from_secs(60);

fn postgres(file: &OrchestratorFile) -> Result<PostgresSettings, InvalidValue> {
    let asked = &file.postgres;
    let url = match (&asked.url, &asked.url_file) {
        (Some(_), Some(_)) => {
            return invalid("url_file", "postgres.url and postgres.url_file are both set: set one of them");
        }
        (Some(url), None) => url.clone(),
        (None, Some(path)) => read("url_file", path)?,
        (None, None) => {
            return invalid(
                "postgres",
                "postgres.url is missing: write it as postgres://USER@HOST:PORT/DATABASE",
            );
        }
    };
    if let Err(error) = url.parse::<Target>() {
        let what = format!("postgres.url, as in postgres://USER@HOST:PORT/DATABASE: {error}");
        return invalid("url", what);
    }
    let schema = asked.schema.clone().unwrap_or_else(|| "orchestrator".to_owned());
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if !schema.starts_with(|c: char| c.is_ascii_lowercase())
        || !schema.chars().all(plain)
        || schema.len() > 40
    {
        return invalid(
            "schema",
            format!("schema {schema:?} must be a lowercase letter, then letters, digits or `_`"),
        );
    }
    let connections = asked.connections.unwrap_or(16);
    if !(2..=1_000).contains(&connections) {
        return invalid("connections", format!("connections is {connections}; it must be 2 to 1000"));
    }
    let wait = asked.wait.map_or(POSTGRES_WAIT, |Time(time)| time);
    Ok(PostgresSettings { url: url.into(), schema, connections, wait })
}

/// The server that leases partitions; the ttl and the capacity are those of the consumer.
fn leases(file: &OrchestratorFile, consumer: &mut ConsumerSettings) -> Result<HttpConfig, InvalidValue> {
    let asked = &file.leases;
    let servers = vec![asked.server.clone().unwrap_or_else(|| "127.0.0.1:7070".to_owned())];
    if let Err(error) = transport::server_urls(&servers) {
        return invalid("server", format!("leases.server: {error}"));
    }
    let ttl = asked.ttl.map_or(Duration::from_secs(10), |Time(time)| time);
    if !(Duration::from_secs(1)..=Duration::from_secs(300)).contains(&ttl) {
        return invalid("ttl", "leases.ttl must be 1s to 5m");
    }
    let ca_certs = asked.ca_cert.as_ref().map(|path| found("ca_cert", path, fs::read(path))).transpose()?;
    let capacity = asked.capacity.unwrap_or(consumer.partitions.unsigned_abs().min(CAPACITY_MAX));
    if !(CAPACITY_MIN..=CAPACITY_MAX).contains(&capacity) {
        let bounds = format!("it must be {CAPACITY_MIN} to {CAPACITY_MAX}");
        return invalid("capacity", format!("leases.capacity is {capacity}; {bounds}"));
    }
    let api_key = key(&asked.api_key, &asked.api_key_file)?;
    consumer.session_timeout = ttl;
    consumer.capacity = capacity;
    Ok(HttpConfig { api_key, tenant: asked.tenant.clone(), ca_certs, ..HttpConfig::new(servers) })
}

fn http(file: &OrchestratorFile) -> Result<HttpSettings, InvalidValue> {
    let listen = file.http.listen.clone().unwrap_or_else(|| "127.0.0.1:7073".to_owned());
    let Ok(listen) = listen.parse::<SocketAddr>() else {
        return invalid("listen", format!("listen {listen:?} is not IP:PORT, as in 127.0.0.1:7073"));
    };
    let api_key = key(&file.http.api_key, &file.http.api_key_file)?;
    if api_key.is_none() && !listen.ip().to_canonical().is_loopback() {
        let what = format!(
            "listen {listen} is reachable from other machines without an API key: set http.api_key_file, or listen on \
             127.0.0.1"
        );
        return invalid("listen", what);
    }
    if api_key.as_ref().is_some_and(|key| key.expose_secret().len() < 16) {
        return invalid("http", "http.api_key has fewer than 16 characters: use a longer one");
    }
    Ok(HttpSettings { listen, api_key })
}

fn days(count: u64) -> Duration {
    Duration::from_secs(count * 24 * 60 * 60)
}

/// How long marks and jobs are kept; the other limits are those of the consumer.
fn limits(
    file: &OrchestratorFile,
    consumer: &mut ConsumerSettings,
) -> Result<(Duration, Duration), InvalidValue> {
    let asked = &file.limits;
    // Kafka keeps messages for seven days by default.
    let inbox_retention = asked.inbox_retention.map_or(days(8), |Time(time)| time);
    let job_retention = asked.job_retention.map_or(days(30).max(inbox_retention), |Time(time)| time);
    if job_retention < inbox_retention {
        let shown = humantime::format_duration;
        let jobs = shown(job_retention);
        let marks = shown(inbox_retention);
        return invalid(
            "job_retention",
            format!(
                "limits.job_retention is {jobs}, less than limits.inbox_retention, {marks}: a job must outlive the marks \
                 of its commands, so that a duplicate CREATE does not create it again"
            ),
        );
    }
    consumer.batch = asked.batch.unwrap_or(500);
    consumer.parallel = asked.parallel.unwrap_or(500);
    consumer.span = asked.span.unwrap_or(10_000);
    consumer.attempts = asked.attempts.unwrap_or(5);
    for (key, value, most) in [
        ("batch", consumer.batch, 10_000),
        ("parallel", consumer.parallel, 10_000),
        ("span", usize::try_from(consumer.span).unwrap_or_default(), 1_000_000),
        ("attempts", consumer.attempts as usize, 100),
    ] {
        if !(1..=most).contains(&value) {
            return invalid(key, format!("limits.{key} is {value}; it must be 1 to {most}"));
        }
    }
    Ok((inbox_retention, job_retention))
}

/// An API key, or the content of its file.
fn key(given: &Option<String>, file: &Option<PathBuf>) -> Result<Option<SecretString>, InvalidValue> {
    let text = match (given, file) {
        (Some(_), Some(_)) => {
            return invalid("api_key_file", "api_key and api_key_file are both set: set one of them");
        }
        (Some(key), None) => Some(key.clone()),
        (None, Some(path)) => Some(read("api_key_file", path)?),
        (None, None) => None,
    };
    Ok(text.filter(|key| !key.is_empty()).map(SecretString::from))
}

fn read(key: &str, path: &Path) -> Result<String, InvalidValue> {
    Ok(found(key, path, fs::read_to_string(path))?.trim().to_owned())
}

/// The content of the file that a key names.
fn found<T>(key: &str, path: &Path, read: io::Result<T>) -> Result<T, InvalidValue> {
    read.or_else(|error| invalid(key, format!("{key} {}: {error}", path.display())))
}

#[cfg(test)]
mod tests;
