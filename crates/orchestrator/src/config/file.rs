//! What `orchestrator.yaml` may say. Nearly everything may be missing; nothing may be unknown.

use std::{collections::BTreeMap, fmt, marker::PhantomData, path::PathBuf, time::Duration};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::Value;

use crate::{
    config::DispatchersFile,
    model::{command::CommandKind, pipeline::DispatchKind},
};
use solehold_kafka::{Begin, LostMessages, Properties, Sasl, Tls, given};

/// The file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OrchestratorFile {
    /// The name of this process [host and a random suffix].
    pub name: Option<String>,
    /// Where commands come from.
    pub kafka: KafkaFile,
    /// What commands look like.
    pub commands: CommandsFile,
    /// Where jobs are kept.
    pub postgres: PostgresFile,
    /// How partitions are leased, with `partition_assignment: leases`.
    pub leases: LeasesFile,
    /// How workers are reached.
    pub dispatchers: DispatchersFile,
    /// The stages of a job, by name.
    pub stages: BTreeMap<String, StageFile>,
    /// Where jobs can be read and steered.
    pub http: HttpFile,
    /// Bounds.
    pub limits: LimitsFile,
}

/// Where commands come from.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KafkaFile {
    /// Brokers to begin with, `HOST:PORT`, with commas between.
    pub brokers: Option<String>,
    /// The topic of commands.
    pub topic: Option<String>,
    /// The group of consumers.
    pub group: Option<String>,
    /// How many partitions the topic has.
    pub partitions: Option<i32>,
    /// After this time a process that does not answer has lost its partitions.
    pub session_timeout: Option<Time>,
    /// Who says which partition is whose.
    pub partition_assignment: Option<Assignment>,
    /// Where to begin with a partition of which neither the database nor the consumer group knows anything.
    pub auto_offset_reset: Option<Begin>,
    /// What to do when the broker has deleted commands that have not taken effect.
    pub lost_messages: Option<LostMessages>,
    /// The name of a fixed member of the group, for processes that are never replaced by others.
    pub static_member: Option<String>,
    /// Where job events go.
    pub events_topic: Option<String>,
    /// Where copies of dead letters go.
    pub dead_letter_topic: Option<String>,
    /// The version of brokers that are too old to be asked for it (before 0.10), such as `0.9.0.1`.
    pub broker_version: Option<String>,
    /// Whether the brokers know headers of messages: those before Kafka 0.11 do not.
    pub headers: Option<bool>,
    /// Encrypts the connections to the brokers.
    #[serde(deserialize_with = "given")]
    pub tls: Option<Tls>,
    /// Logs in to the brokers.
    #[serde(deserialize_with = "given")]
    pub sasl: Option<Sasl>,
    /// Further settings of librdkafka, by its names.
    pub properties: Properties,
}

/// Who says which partition is whose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Assignment {
    /// The broker's consumer group.
    #[default]
    Group,
    /// Each partition is a lease of a Solehold server.
    Leases,
}

/// What commands look like.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CommandsFile {
    /// Where the job's id is.
    pub job_id: Option<String>,
    /// Where the command's own id is.
    pub command_id: Option<String>,
    /// Where it says what is asked for.
    pub r#type: Option<OrPath<TypeFile>>,
    /// Where the job's input is.
    pub input: Option<OrPath<PlaceFile<Value>>>,
    /// What is kept with the job and compared with later commands, by name.
    pub labels: BTreeMap<String, OrPath<PlaceFile<String>>>,
    /// The key that messages must have.
    pub key: Option<String>,
}

/// Where a value is.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "T: Deserialize<'de>"))]
pub struct PlaceFile<T> {
    /// The path.
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

/// Where a message says what is asked for.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TypeFile {
    /// The path.
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

/// Where jobs are kept.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PostgresFile {
    /// The database.
    pub url: Option<String>,
    /// The file that has its URL.
    pub url_file: Option<PathBuf>,
    /// The schema of its tables.
    pub schema: Option<String>,
    /// The most connections of this process.
    pub connections: Option<usize>,
    /// How long to wait for the database at the start.
    pub wait: Option<Time>,
}

/// How partitions are leased.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LeasesFile {
    /// The servers, with commas between.
    pub server: Option<String>,
    /// The key to show them.
    pub api_key: Option<String>,
    /// The file with that key.
    pub api_key_file: Option<PathBuf>,
    /// The tenant to act for.
    pub tenant: Option<String>,
    /// Certificates to trust besides the system's.
    pub ca_cert: Option<PathBuf>,
    /// How long a process that was killed keeps its partitions.
    pub ttl: Option<Time>,
    /// The most partitions of this process.
    pub capacity: Option<u32>,
}

/// A stage.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageFile {
    /// What its tasks are called.
    pub task: String,
    /// How its tasks reach workers.
    pub dispatch: DispatchKind,
    /// The stages that must succeed before.
    #[serde(default)]
    pub after: Vec<String>,
    /// Where its tasks are queued.
    pub queue: Option<String>,
    /// How long a task may wait for a worker.
    pub queue_timeout: Option<Time>,
    /// How long a worker may take.
    pub run_timeout: Option<Time>,
    /// How many attempts may follow the first.
    pub retries: Option<u32>,
    /// What its Celery tasks get by position.
    pub args: Option<Value>,
    /// What its Celery tasks get by name.
    pub kwargs: Option<Value>,
}

/// Where jobs can be read and steered.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpFile {
    /// `IP:PORT`.
    pub listen: Option<String>,
    /// The key that requests must show.
    pub api_key: Option<String>,
    /// The file with that key.
    pub api_key_file: Option<PathBuf>,
}

/// Bounds.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsFile {
    /// How many messages one transaction takes.
    pub batch: Option<usize>,
    /// How many messages of one partition are worked on at the same time.
    pub parallel: Option<usize>,
    /// How far the highest finished offset may be ahead of the lowest unfinished one.
    pub span: Option<i64>,
    /// How often a command that failed is tried before it is a dead letter.
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
