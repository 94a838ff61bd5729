//! Celery's workers, over RabbitMQ or Redis.
//!
//! ```text
//!   task ──> queue of the broker ──> worker (unmodified)
//!                                      │ result_backend = "rpc://": states and results go where the task says
//!   reports <── result queue <─────────┘
//! ```
//!
//! The result queue is durable and shared by all orchestrators, so a task that outlives the orchestrator that sent it
//! still counts. Results leave the queue when they are in the database.

mod check;
mod control;
mod envelope;
mod rabbitmq;
mod redis;

#[doc(hidden)] // for the fuzz targets
pub use self::envelope::report;

use std::{fmt, fs, path::PathBuf, time::Duration};

use async_trait::async_trait;
use serde_json::Value;
use solehold_process::deadline::DeadlineError;

use self::{envelope::Envelope, rabbitmq::RabbitMq, redis::Redis};
use super::{Dispatch, DispatchError, Finding, Reports, StageLimits};
use crate::{Task, TaskId};

/// How many reports are delivered at once.
const REPORTS_MAX: u16 = 500;
/// The longest name that AMQP can carry.
const ID_BYTES_MAX: usize = 255;
/// What RabbitMQ gives a consumer to acknowledge a task, unless it is told otherwise.
const CONSUMER_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Where Celery's workers are.
#[derive(Clone)]
pub struct CeleryConfig {
    /// `amqp://user:password@host:port/vhost` or `redis://host:port/database`; over TLS `amqps://` or `rediss://`.
    pub broker: String,
    /// A file of authorities that are trusted in place of the system's, as PEM.
    pub ca_cert: Option<PathBuf>,
    /// Where tasks go whose stage names no queue.
    pub queue: String,
    /// Where workers send states and results.
    pub result_queue: String,
    /// Whether a revoked task that already runs is ended together with the process that runs it.
    pub terminate: bool,
    /// What `consumer_timeout` is in RabbitMQ's configuration: it cannot be asked.
    pub consumer_timeout: Option<Duration>,
}

impl CeleryConfig {
    /// The names that Celery itself uses, and a result queue of our own.
    pub fn new(broker: impl Into<String>) -> Self {
        Self {
            broker: broker.into(),
            ca_cert: None,
            queue: "celery".to_owned(),
            result_queue: "solehold.results".to_owned(),
            terminate: false,
            consumer_timeout: None,
        }
    }
}

/// Without the broker's password.
impl fmt::Debug for CeleryConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.broker.split("://").next().unwrap_or_default();
        let mut f = f.debug_struct("CeleryConfig");
        f.field("broker", &scheme).field("queue", &self.queue).field("result_queue", &self.result_queue);
        f.finish_non_exhaustive()
    }
}

/// What is different from broker to broker.
#[async_trait]
trait Broker: Send + Sync {
    /// Puts each message into its queue.
    async fn send(&self, messages: &[Message<'_>]) -> Vec<Result<(), DispatchError>>;
    /// Tells all workers something.
    async fn tell(&self, what: &Value) -> Result<(), DispatchError>;
    /// Asks all workers something, and collects what they answer in this time.
    async fn ask(
        &self,
        method: &str,
        arguments: Value,
        within: Duration,
    ) -> Result<Vec<Value>, DispatchError>;
    /// Delivers what comes to the result queue.
    async fn results(&self, to: &dyn Reports) -> DispatchError;
}

/// A task and its queue.
struct Message<'a> {
    queue: &'a str,
    envelope: Envelope,
}

/// Sends tasks to Celery's workers.
pub struct Celery {
    config: CeleryConfig,
    kind: BrokerKind,
    broker: Box<dyn Broker>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BrokerKind {
    RabbitMq,
    Redis,
}

impl Celery {
    /// Nothing is connected yet; an error is a mistake in the configuration.
    pub fn new(config: &CeleryConfig) -> Result<Self, String> {
        let kind = match config.broker.split_once("://") {
            Some(("amqp" | "amqps", _)) => BrokerKind::RabbitMq,
            Some(("redis" | "rediss", _)) => BrokerKind::Redis,
            _ => return Err("`broker` must begin with amqp://, amqps://, redis:// or rediss://".to_owned()),
        };
        let read = |file: &PathBuf| {
            fs::read(file).map_err(|error| format!("`ca_cert`: {}: {error}", file.display()))
        };
        let ca_cert = config.ca_cert.as_ref().map(read).transpose()?;
        if ca_cert.is_some() && !["amqps://", "rediss://"].iter().any(|tls| config.broker.starts_with(tls)) {
            return Err("`ca_cert` is for a broker over TLS: amqps:// or rediss://".to_owned());
        }
        for (name, queue) in [("queue", &config.queue), ("result_queue", &config.result_queue)] {
            if queue.is_empty() || queue.len() > ID_BYTES_MAX {
                return Err(format!("`{name}` must have 1 to {ID_BYTES_MAX} bytes"));
            }
        }
        let broker: Box<dyn Broker> = match kind {
            BrokerKind::RabbitMq => Box::new(RabbitMq::new(config, ca_cert)),
            BrokerKind::Redis => Box::new(Redis::new(config, ca_cert)?),
        };
        Ok(Self { config: config.clone(), kind, broker })
    }
}

#[async_trait]
impl Dispatch for Celery {
    async fn send(&self, tasks: &[Task]) -> Vec<Result<(), DispatchError>> {
        let too_long = |task: &Task| task.id.to_string().len() > ID_BYTES_MAX;
        let messages: Vec<_> = tasks
            .iter()
            .filter(|task| !too_long(task))
            .map(|task| {
                let queue = task.queue.as_deref().unwrap_or(&self.config.queue);
                Message { queue, envelope: Envelope::new(task) }
            })
            .collect();
        let mut sent = self.broker.send(&messages).await.into_iter();
        let result = |task: &Task| match too_long(task) {
            true => {
                Err(DispatchError::Refused(format!("its id has more than {ID_BYTES_MAX} bytes: {}", task.id)))
            }
            false => sent.next().unwrap_or_else(|| Err(DispatchError::Unreachable("not sent".to_owned()))),
        };
        tasks.iter().map(result).collect()
    }

    async fn revoke(&self, task: &TaskId) {
        let what = control::revoke(&task.to_string(), self.config.terminate);
        if let Err(error) = self.broker.tell(&what).await {
            tracing::debug!(%task, %error, "workers were not told to drop a task");
        }
    }

    async fn reports(&self, to: &dyn Reports) -> DispatchError {
        self.broker.results(to).await
    }

    async fn check(&self, stages: &[StageLimits]) -> Result<Vec<Finding>, DispatchError> {
        let workers = check::ask(self.broker.as_ref()).await?;
        Ok(check::judge(&workers, self.kind, &self.config, stages))
    }
}

/// What a result message comes to. What is not about a task of ours is not kept.
fn read(correlation_id: Option<&str>, body: &[u8]) -> Option<crate::Report> {
    envelope::report(correlation_id, body).unwrap_or_else(|why| {
        tracing::warn!(%why, "a message in the result queue is not about a task of ours; it is dropped");
        None
    })
}

impl<E: fmt::Display> From<DeadlineError<E>> for DispatchError {
    fn from(error: DeadlineError<E>) -> Self {
        Self::Unreachable(error.to_string())
    }
}
