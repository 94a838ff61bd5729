//! `dispatchers` in the file: the ways to workers.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use serde::Deserialize;

use super::file::Time;
use crate::model::pipeline::DispatchKind;

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
