//! How workers are reached, as `orchestrator.yaml` says it under `dispatchers`.

use std::{collections::BTreeMap, fmt};

use serde::Deserialize;

use super::super::{config::Time, pipeline::DispatchKind};

/// One section for each way of reaching workers; those that no stage uses may be missing.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DispatchersFile {
    /// Workers of Celery.
    pub celery: Option<CeleryFile>,
    /// Workers that read a topic.
    pub kafka: Option<KafkaTasksFile>,
    /// Workers behind HTTP.
    pub http: Option<HttpTasksFile>,
}

/// Workers of Celery.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CeleryFile {
    /// Their broker: `amqp://` or `redis://`.
    pub broker: String,
    /// The queue of stages that name none [celery].
    pub queue: Option<String>,
    /// Where workers send states and results [solehold.results].
    pub result_queue: Option<String>,
    /// Whether a revoked task that already runs is ended together with the process that runs it [no].
    pub terminate: Option<bool>,
    /// What `consumer_timeout` is in RabbitMQ's configuration, which cannot be asked for it.
    pub consumer_timeout: Option<Time>,
}

/// Workers that read a topic; a stage's `task` is the topic.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KafkaTasksFile {
    /// Where they put their reports.
    pub reports_topic: String,
    /// The group in which the orchestrators read them [that of the commands, with `-reports`].
    pub group: Option<String>,
}

/// Workers behind HTTP; a stage's `task` is the path.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpTasksFile {
    /// What the paths begin with.
    pub url: String,
    /// Headers of every request.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// How long one request may take [10s].
    pub timeout: Option<Time>,
    /// Where the service reports what it did not answer at once: `/reports` of the orchestrators, as it reaches them.
    pub report_to: Option<String>,
}

/// Without passwords.
impl fmt::Debug for CeleryFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CeleryFile").field("queue", &self.queue).finish_non_exhaustive()
    }
}

/// Without the headers' values.
impl fmt::Debug for HttpTasksFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpTasksFile").field("url", &self.url).finish_non_exhaustive()
    }
}

impl DispatchersFile {
    /// Whether there is a section for it.
    pub fn has(&self, kind: DispatchKind) -> bool {
        match kind {
            DispatchKind::Celery => self.celery.is_some(),
            DispatchKind::Kafka => self.kafka.is_some(),
            DispatchKind::Http => self.http.is_some(),
        }
    }
}
