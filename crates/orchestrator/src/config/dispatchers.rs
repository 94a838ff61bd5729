//! `dispatchers` in the file: the ways to workers.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use serde::Deserialize;

use super::file::Time;
use crate::model::pipeline::DispatchKind;

/// One section per dispatcher. A dispatcher that no stage uses may be missing.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DispatchersFile {
    pub celery: Option<CeleryFile>,
    pub kafka: Option<KafkaTasksFile>,
    pub http: Option<HttpTasksFile>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CeleryFile {
    pub broker: String,
    pub ca_cert: Option<PathBuf>,
    /// The queue of stages without one: `celery` if not given.
    pub queue: Option<String>,
    /// Where workers send states and results: `solehold.results` if not given.
    pub result_queue: Option<String>,
    /// Whether to end the process of a revoked task that is running: false if not given.
    pub terminate: Option<bool>,
    pub consumer_timeout: Option<Time>,
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
pub struct HttpTasksFile {
    pub url: String,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// How long one request may take: 10 s if not given.
    pub timeout: Option<Time>,
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
    pub fn has(&self, kind: DispatchKind) -> bool {
        match kind {
            DispatchKind::Celery => self.celery.is_some(),
            DispatchKind::Kafka => self.kafka.is_some(),
            DispatchKind::Http => self.http.is_some(),
        }
    }
}
