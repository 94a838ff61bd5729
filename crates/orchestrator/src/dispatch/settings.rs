//! How workers are reached, as `orchestrator.yaml` says it under `dispatchers`.

use std::{collections::BTreeMap, fmt, path::PathBuf, sync::Arc, time::Duration};

use serde::Deserialize;

use super::{
    Dispatch, Reports,
    celery::{Celery, CeleryConfig},
    http::{Http, HttpConfig},
    kafka::{Kafka, KafkaConfig},
};
use crate::{
    config::{KafkaSettings, Time},
    pipeline::DispatchKind,
};

/// How long one request to a service may take, unless the file says otherwise.
const HTTP_TIMEOUT: Duration = Duration::from_secs(10);

/// The ways to workers.
pub type Ways = Vec<(DispatchKind, Arc<dyn Dispatch>)>;

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
    /// Their broker: `amqp://` or `redis://`, over TLS `amqps://` or `rediss://`.
    pub broker: String,
    /// A file of authorities that are trusted in place of the system's, as PEM.
    pub ca_cert: Option<PathBuf>,
    /// The queue of stages that name none: `celery` if not given.
    pub queue: Option<String>,
    /// Where workers send states and results: `solehold.results` if not given.
    pub result_queue: Option<String>,
    /// Whether a revoked task that already runs is ended together with the process that runs it: not, unless it is set.
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
    /// How long one request may take: 10 s if not given.
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

    /// Every way to workers that there is a section for. Nothing is connected yet; an error is a mistake in the file.
    pub fn open(&self, kafka: &KafkaSettings, reports: &Arc<dyn Reports>) -> Result<Ways, String> {
        let mut ways = Ways::new();
        if let Some(file) = &self.celery {
            let celery = Celery::new(&file.config()).map_err(|what| format!("dispatchers.celery: {what}"))?;
            ways.push((DispatchKind::Celery, Arc::new(celery)));
        }
        if let Some(file) = &self.kafka {
            let way = Kafka::new(&file.config(kafka)).map_err(|what| format!("dispatchers.kafka: {what}"))?;
            ways.push((DispatchKind::Kafka, Arc::new(way)));
        }
        if let Some(file) = &self.http {
            let http = Http::new(&file.config(), reports.clone());
            ways.push((
                DispatchKind::Http,
                Arc::new(http.map_err(|what| format!("dispatchers.http: {what}"))?),
            ));
        }
        Ok(ways)
    }
}

impl CeleryFile {
    fn config(&self) -> CeleryConfig {
        let defaults = CeleryConfig::new(&self.broker);
        CeleryConfig {
            queue: self.queue.clone().unwrap_or(defaults.queue),
            result_queue: self.result_queue.clone().unwrap_or(defaults.result_queue),
            terminate: self.terminate.unwrap_or(defaults.terminate),
            consumer_timeout: self.consumer_timeout.map(|Time(time)| time),
            ca_cert: self.ca_cert.clone(),
            broker: defaults.broker,
        }
    }
}

impl KafkaTasksFile {
    fn config(&self, kafka: &KafkaSettings) -> KafkaConfig {
        KafkaConfig {
            brokers: kafka.brokers.clone(),
            reports_topic: self.reports_topic.clone(),
            group: self.group.clone().unwrap_or_else(|| format!("{}-reports", kafka.group)),
            session_timeout: kafka.session_timeout,
        }
    }
}

impl HttpTasksFile {
    fn config(&self) -> HttpConfig {
        HttpConfig {
            url: self.url.clone(),
            headers: self.headers.clone(),
            timeout: self.timeout.map_or(HTTP_TIMEOUT, |Time(time)| time),
            report_to: self.report_to.clone(),
        }
    }
}
