//! The settings of a consumer: brokers, topic and group, and limits.

use std::{collections::BTreeMap, fmt, time::Duration};

use rdkafka::{ClientConfig, error::KafkaError};
use serde::{Deserialize, Serialize};
use solehold_clock::Backoff;

use super::{
    lane::Bounds,
    security::{self, Sasl, Tls, given},
};

/// How to connect to the brokers, for consumers and producers alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Brokers {
    /// One or more of them, as `host:port`, with commas in between.
    pub brokers: String,
    /// The name of this program in the logs of the brokers.
    pub client_id: String,
    /// The version of brokers that are too old to report it (before 0.10), such as `0.9.0.1`.
    pub broker_version: Option<String>,
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub sasl: Option<Sasl>,
    /// More properties, by the names that librdkafka gives them.
    pub librdkafka: Properties,
}

/// Properties of librdkafka. Their values are not shown: some are passwords.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Properties(pub BTreeMap<String, String>);

impl fmt::Debug for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// What is wrong with the settings of the brokers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct BrokersError {
    pub key: String,
    pub what: String,
}

impl Default for Brokers {
    fn default() -> Self {
        Self {
            brokers: "127.0.0.1:9092".to_owned(),
            client_id: "solehold".to_owned(),
            broker_version: None,
            tls: None,
            sasl: None,
            librdkafka: Properties::default(),
        }
    }
}

impl Brokers {
    pub fn at(brokers: impl Into<String>) -> Self {
        Self { brokers: brokers.into(), ..Self::default() }
    }

    /// The properties that all clients have in common. Reads the certificates and the password.
    pub fn client(&self) -> Result<ClientConfig, BrokersError> {
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", &self.brokers).set("client.id", &self.client_id);
        // Reconnect soon after a broker has restarted.
        client.set("reconnect.backoff.max.ms", "1000");
        // A broker that has just started does not know its topics yet, and librdkafka caches that for this long.
        client.set("topic.metadata.refresh.interval.ms", "5000");
        if let Some(version) = &self.broker_version {
            client.set("api.version.request", "false").set("broker.version.fallback", version);
        }
        security::secure(self, &mut client)?;
        self.override_in(&mut client);
        match client.create_native_config() {
            Ok(_) => Ok(client),
            // Without the value, which may be secret.
            Err(KafkaError::ClientConfig(_, why, name, _)) => {
                Err(BrokersError { what: format!("property {name}: {why}"), key: name })
            }
            Err(error) => Err(BrokersError { key: "brokers".to_owned(), what: error.to_string() }),
        }
    }

    fn override_in(&self, client: &mut ClientConfig) {
        for (name, value) in &self.librdkafka.0 {
            client.set(name, value);
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartitionAssignment {
    /// The broker: a consumer group.
    #[default]
    Group,
    /// A Solehold server: each partition is a lease.
    Leases,
}

/// Where to begin with a partition that has no position, neither in the database nor in the consumer group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Begin {
    /// With its first message.
    #[default]
    Earliest,
    /// With messages that are produced from now on.
    Latest,
}

/// What to do when the broker has deleted messages that were not committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LostMessages {
    /// Stop the partition until an operator decides; the others continue.
    #[default]
    Stop,
    /// Report the lost offsets, and continue with the first message that exists.
    Skip,
}

/// What a consumer does. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConsumerSettings {
    pub topic: String,
    /// The group: consumers of one group share the partitions, and the rows of their positions.
    pub group: String,
    /// How many partitions the topic must have. A key belongs to another partition when their number changes.
    pub partitions: i32,
    pub partition_assignment: PartitionAssignment,
    /// A fixed name for this member of the group, for deployments whose pods keep theirs. A member with a fixed name
    /// does not leave: when it ends, its partitions wait for it until the session times out.
    pub group_instance_id: Option<String>,
    /// How long a member of the group keeps its partitions without a heartbeat; with leases, the ttl.
    #[serde(with = "seconds")]
    pub session_timeout: Duration,
    pub auto_offset_reset: Begin,
    pub lost_messages: LostMessages,
    /// With leases: the most partitions that this consumer takes.
    pub capacity: u32,
    /// Messages of one partition that are processed in parallel, of different keys.
    pub parallel: usize,
    /// Messages of one partition that are kept in memory; then it is paused.
    pub buffered_messages: usize,
    pub buffered_bytes: usize,
    /// The most offsets between the first message that is not committed and the last that is.
    pub span: i64,
    /// The most messages in one transaction.
    pub batch: usize,
    /// How often a message is processed before it becomes a dead letter.
    pub attempts: u32,
    /// The first pause between two attempts; it doubles.
    #[serde(with = "seconds")]
    pub retry_first: Duration,
    /// The longest pause between two attempts.
    #[serde(with = "seconds")]
    pub retry_max: Duration,
    /// How long the messages in progress may still take when a partition is revoked.
    #[serde(with = "seconds")]
    pub leave_timeout: Duration,
}

/// Why a consumer or a producer cannot be made from its settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    #[error("topic is {0:?}; write 1 to 249 letters, digits, dots, dashes, underscores")]
    Topic(String),
    #[error("group is {0:?}; write 1 to 200 printable characters")]
    Group(String),
    #[error("group_instance_id is for partition_assignment: group; leases go by the holder's name")]
    InstanceId,
    #[error(
        "leave_timeout is {leave:?}; it must be at most half of session_timeout, {session:?}: the broker removes a member \
         that takes longer over a revoked partition from the group"
    )]
    LeaveTimeout { leave: Duration, session: Duration },
    #[error("{key} is {value}; it must be {least} to {most}")]
    OutOfBounds { key: &'static str, value: u64, least: u64, most: u64 },
    #[error("partition_assignment: leases needs a Solehold server")]
    NoServer,
    #[error(transparent)]
    Brokers(#[from] BrokersError),
    /// librdkafka rejected them.
    #[error(transparent)]
    Client(#[from] KafkaError),
}

impl Default for ConsumerSettings {
    fn default() -> Self {
        Self {
            topic: "jobs.commands".to_owned(),
            group: "orchestrator".to_owned(),
            partitions: 12,
            partition_assignment: PartitionAssignment::Group,
            group_instance_id: None,
            session_timeout: Duration::from_secs(10),
            auto_offset_reset: Begin::Earliest,
            lost_messages: LostMessages::Stop,
            capacity: 100,
            parallel: 32,
            buffered_messages: 2_000,
            buffered_bytes: 16 * 1024 * 1024,
            span: 10_000,
            batch: 500,
            attempts: 5,
            retry_first: Duration::from_millis(200),
            retry_max: Duration::from_secs(10),
            leave_timeout: Duration::from_secs(2),
        }
    }
}

impl ConsumerSettings {
    /// Checks names and bounds.
    pub fn check(&self) -> Result<(), SettingsError> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if self.topic.is_empty() || self.topic.len() > 249 || !self.topic.bytes().all(is_name) {
            return Err(SettingsError::Topic(self.topic.clone()));
        }
        if self.group.is_empty() || self.group.len() > 200 || self.group.chars().any(char::is_control) {
            return Err(SettingsError::Group(self.group.clone()));
        }
        if self.group_instance_id.is_some() && self.partition_assignment == PartitionAssignment::Leases {
            return Err(SettingsError::InstanceId);
        }
        let leave = self.leave_timeout;
        let session = self.session_timeout;
        if leave.as_millis() * 2 > session.as_millis() {
            return Err(SettingsError::LeaveTimeout { leave, session });
        }
        let session_ms = u64::try_from(session.as_millis()).unwrap_or(u64::MAX);
        for (key, value, least, most) in [
            ("session_timeout (ms)", session_ms, 1_000, 3_600_000),
            ("partitions", self.partitions.max(0) as u64, 1, 10_000),
            ("capacity", self.capacity.into(), 1, 100),
            ("parallel", self.parallel as u64, 1, 10_000),
            ("buffered_messages", self.buffered_messages as u64, 2, 1_000_000),
            ("buffered_bytes", self.buffered_bytes as u64, 1_024, 1 << 32),
            ("span", self.span.max(0) as u64, 1, 1_000_000),
            ("batch", self.batch as u64, 1, 10_000),
            ("attempts", self.attempts.into(), 1, 1_000),
        ] {
            if !(least..=most).contains(&value) {
                return Err(SettingsError::OutOfBounds { key, value, least, most });
            }
        }
        Ok(())
    }

    pub(super) fn bounds(&self) -> Bounds {
        Bounds {
            parallel: self.parallel,
            messages: self.buffered_messages,
            bytes: self.buffered_bytes,
            span: self.span,
            batch: self.batch,
            attempts: self.attempts,
            backoff: Backoff { first: self.retry_first, cap: self.retry_max },
        }
    }

    pub(super) fn client(&self, brokers: &Brokers) -> Result<ClientConfig, BrokersError> {
        let mut client = brokers.client()?;
        let ms = |time: Duration| time.as_millis().to_string();
        client
            .set("group.id", &self.group)
            .set("session.timeout.ms", ms(self.session_timeout))
            .set("heartbeat.interval.ms", ms((self.session_timeout / 5).min(Duration::from_secs(3))))
            .set("partition.assignment.strategy", "cooperative-sticky")
            // We commit positions ourselves and always set the start; anything else must be reported as an error.
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "error")
            .set("statistics.interval.ms", "1000")
            // Messages fetched ahead are discarded by a pause: no more than fit into the lanes.
            .set("queued.min.messages", self.buffered_messages.to_string())
            .set("queued.max.messages.kbytes", (self.buffered_bytes / 1024).clamp(1, 2_097_151).to_string())
            .set("fetch.wait.max.ms", "100");
        if let Some(name) = &self.group_instance_id {
            client.set("group.instance.id", name);
        }
        brokers.override_in(&mut client);
        Ok(client)
    }
}

mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(time.as_secs_f64())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(deserializer)?;
        Duration::try_from_secs_f64(seconds)
            .map_err(|_| D::Error::custom(format!("{seconds} is not a number of seconds")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_documented_ones() {
        let settings: ConsumerSettings = serde_json::from_str("{}").expect("all have defaults");
        assert_eq!(settings.check(), Ok(()));
        assert_eq!((settings.topic.as_str(), settings.partitions), ("jobs.commands", 12));
        assert_eq!(settings.group, "orchestrator");
        assert_eq!(settings.session_timeout, Duration::from_secs(10));
        let client = settings.client(&Brokers::default()).expect("good");
        assert_eq!(client.get("enable.auto.commit"), Some("false"));
        assert_eq!(client.get("partition.assignment.strategy"), Some("cooperative-sticky"));
        assert_eq!(client.get("group.instance.id"), None);
        assert_eq!(client.get("api.version.request"), None);
    }

    #[test]
    fn extra_properties_and_the_broker_version_reach_every_client() {
        let text = r#"{"brokers": "a:1,b:2", "broker_version": "0.9.0.1", "librdkafka": {"fetch.wait.max.ms": "5"}}"#;
        let brokers: Brokers = serde_json::from_str(text).expect("good");
        let client = ConsumerSettings::default().client(&brokers).expect("good");
        let told =
            ["bootstrap.servers", "api.version.request", "broker.version.fallback", "fetch.wait.max.ms"]
                .map(|name| client.get(name).unwrap_or_default());
        assert_eq!(told, ["a:1,b:2", "false", "0.9.0.1", "5"]);
        assert!(serde_json::from_str::<Brokers>(r#"{"broker": "a:1"}"#).is_err(), "not a setting");
    }

    #[test]
    fn invalid_settings_are_rejected_by_name() {
        let fault = |change: &dyn Fn(&mut ConsumerSettings)| {
            let mut settings = ConsumerSettings::default();
            change(&mut settings);
            settings.check().expect_err("invalid").to_string()
        };
        assert!(fault(&|s| s.topic = "a b".to_owned()).contains("topic is \"a b\""));
        assert!(fault(&|s| s.group = String::new()).contains("group"));
        assert!(fault(&|s| s.partitions = 0).contains("partitions is 0; it must be 1 to"));
        assert!(fault(&|s| s.session_timeout = Duration::from_secs(3)).contains("at most half"));
        let named = |s: &mut ConsumerSettings| {
            s.group_instance_id = Some("pod-1".to_owned());
            s.partition_assignment = PartitionAssignment::Leases;
        };
        assert!(fault(&named).contains("group_instance_id"));
    }
}
