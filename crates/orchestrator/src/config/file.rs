//! What `orchestrator.yaml` may say. Nearly everything may be missing; nothing may be unknown. The settings in
//! [`super`] describe most of the keys.

use std::{collections::BTreeMap, fmt, marker::PhantomData, path::PathBuf, time::Duration};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::Value;

use crate::model::{command::CommandKind, pipeline::DispatchKind};
use solehold_kafka::{Begin, LostMessages, PartitionAssignment, Properties, Sasl, Tls, given};

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OrchestratorFile {
    /// The name of this process [host and a random suffix].
    pub name: Option<String>,
    pub kafka: KafkaFile,
    pub commands: CommandsFile,
    pub postgres: PostgresFile,
    /// How partitions are leased, with `partition_assignment: leases`.
    pub leases: LeasesFile,
    pub dispatchers: DispatchersFile,
    pub stages: BTreeMap<String, StageFile>,
    pub http: HttpFile,
    pub limits: LimitsFile,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KafkaFile {
    /// Brokers to begin with, `HOST:PORT`, with commas between.
    pub brokers: Option<String>,
    pub topic: Option<String>,
    pub group: Option<String>,
    pub partitions: Option<i32>,
    pub session_timeout: Option<Time>,
    pub partition_assignment: Option<PartitionAssignment>,
    pub auto_offset_reset: Option<Begin>,
    pub lost_messages: Option<LostMessages>,
    pub static_member: Option<String>,
    pub events_topic: Option<String>,
    pub dead_letter_topic: Option<String>,
    /// The version of brokers that are too old to be asked for it (before 0.10), such as `0.9.0.1`.
    pub broker_version: Option<String>,
    /// Whether the brokers know headers of messages: those before Kafka 0.11 do not.
    pub headers: Option<bool>,
    #[serde(deserialize_with = "given")]
    pub tls: Option<Tls>,
    #[serde(deserialize_with = "given")]
    pub sasl: Option<Sasl>,
    /// Further settings of librdkafka, by its names.
    pub properties: Properties,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CommandsFile {
    pub job_id: Option<String>,
    pub command_id: Option<String>,
    /// Where it says what is asked for.
    pub r#type: Option<OrPath<TypeFile>>,
    pub input: Option<OrPath<PlaceFile<Value>>>,
    /// What is kept with the job and compared with later commands, by name.
    pub labels: BTreeMap<String, OrPath<PlaceFile<String>>>,
    pub key: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "T: Deserialize<'de>"))]
pub struct PlaceFile<T> {
    pub path: String,
    /// What it is in a message that has none. It may be null.
    #[serde(default, deserialize_with = "given")]
    pub default: Option<T>,
}

impl<T> From<String> for PlaceFile<T> {
    fn from(path: String) -> Self {
        Self { path, default: None }
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TypeFile {
    pub path: String,
    /// What a message asks for that does not say it.
    #[serde(default)]
    pub default: Option<CommandKind>,
    /// What its values mean, if they are not CREATE, CANCEL and RETRY.
    #[serde(default)]
    pub values: BTreeMap<String, CommandKind>,
}

impl From<String> for TypeFile {
    fn from(path: String) -> Self {
        Self { path, default: None, values: BTreeMap::new() }
    }
}

/// A path by itself, or with more to say.
#[derive(Debug, Clone)]
pub struct OrPath<T>(pub T);

impl<'de, T: Deserialize<'de> + From<String>> Deserialize<'de> for OrPath<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PathVisitor(PhantomData))
    }
}

struct PathVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de> + From<String>> Visitor<'de> for PathVisitor<T> {
    type Value = OrPath<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a path, or `path` and `default`")
    }

    fn visit_str<E: Error>(self, path: &str) -> Result<OrPath<T>, E> {
        Ok(OrPath(path.to_owned().into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<OrPath<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(OrPath)
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PostgresFile {
    pub url: Option<String>,
    pub url_file: Option<PathBuf>,
    pub schema: Option<String>,
    pub connections: Option<usize>,
    pub wait: Option<Time>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LeasesFile {
    /// The servers, with commas between.
    pub server: Option<String>,
    pub api_key: Option<String>,
    pub api_key_file: Option<PathBuf>,
    pub tenant: Option<String>,
    pub ca_cert: Option<PathBuf>,
    pub ttl: Option<Time>,
    pub capacity: Option<u32>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageFile {
    pub task: String,
    pub dispatch: DispatchKind,
    #[serde(default)]
    pub after: Vec<String>,
    pub queue: Option<String>,
    pub queue_timeout: Option<Time>,
    pub run_timeout: Option<Time>,
    pub retries: Option<u32>,
    pub args: Option<Value>,
    pub kwargs: Option<Value>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpFile {
    /// `IP:PORT`.
    pub listen: Option<String>,
    pub api_key: Option<String>,
    pub api_key_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsFile {
    pub batch: Option<usize>,
    pub parallel: Option<usize>,
    pub span: Option<i64>,
    pub attempts: Option<u32>,
    /// How long inbox marks are kept: longer than the topic keeps its messages.
    pub inbox_retention: Option<Time>,
    /// How long jobs are kept after their end: no less than their marks.
    pub job_retention: Option<Time>,
}

/// A time such as `90s` or `1h 30m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Time(pub Duration);

impl TryFrom<String> for Time {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let time = humantime::parse_duration(&text);
        time.map(Self).map_err(|error| format!("{text:?} is not a time such as 90s or 1h 30m: {error}"))
    }
}

/// One section per dispatcher. A dispatcher that no stage uses may be missing.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DispatchersFile {
    pub celery: Option<CeleryConfig>,
    pub kafka: Option<KafkaTasksFile>,
    pub http: Option<HttpTasksConfig>,
}

/// Where Celery's workers are.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CeleryConfig {
    /// `amqp://user:password@host:port/vhost` or `redis://host:port/database`; over TLS `amqps://` or `rediss://`.
    pub broker: String,
    /// A file of authorities that are trusted in place of the system's, as PEM.
    pub ca_cert: Option<PathBuf>,
    pub queue: Option<String>,
    pub result_queue: Option<String>,
    /// Whether to end the process of a revoked task that is running: false if not given.
    pub terminate: Option<bool>,
    /// `consumer_timeout` of RabbitMQ's configuration, which cannot be queried.
    pub consumer_timeout: Option<Time>,
}

impl CeleryConfig {
    /// The workers at this broker, with all defaults.
    pub fn new(broker: impl Into<String>) -> Self {
        Self { broker: broker.into(), ..Self::default() }
    }

    /// The queue of stages without one.
    pub fn queue(&self) -> &str {
        self.queue.as_deref().unwrap_or("celery")
    }

    /// Where workers send states and results.
    pub fn result_queue(&self) -> &str {
        self.result_queue.as_deref().unwrap_or("solehold.results")
    }
}

/// Workers that read a topic; a stage's `task` is the topic.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KafkaTasksFile {
    pub reports_topic: String,
    /// The group in which the orchestrators read them [that of the commands, with `-reports`].
    pub group: Option<String>,
}

/// Workers behind HTTP; a stage's `task` is the path.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpTasksConfig {
    /// What the paths of the stages are appended to.
    pub url: String,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// How long one request may take: 10 s if not given.
    pub timeout: Option<Time>,
    /// Where the service reports what it did not answer at once: the orchestrators, as the service reaches them.
    pub report_to: Option<String>,
}

/// Without the broker's password.
impl fmt::Debug for CeleryConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CeleryConfig").field("queue", &self.queue).finish_non_exhaustive()
    }
}

/// Without the headers' values.
impl fmt::Debug for HttpTasksConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpTasksConfig").field("url", &self.url).finish_non_exhaustive()
    }
}

impl DispatchersFile {
    pub fn has(&self, kind: DispatchKind) -> bool {
        match kind {
            DispatchKind::Celery => self.celery.is_some(),
            DispatchKind::Kafka => self.kafka.is_some(),
            DispatchKind::Http => self.http.is_some(),
        }
    }
}
