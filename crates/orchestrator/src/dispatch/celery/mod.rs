//! Celery's workers, over RabbitMQ or Redis.
//!
//! ```text
//!   task ──> queue of the broker ──> worker (unmodified)
//!                                      │ result_backend = "rpc://": states and results go where the task says
//!   reports <── result queue <─────────┘
//! ```
//!
//! The result queue is durable and shared by all orchestrators, so a task that outlives the orchestrator that sent it
//! still counts. Results are removed from the queue once they are in the database.

mod check;
mod control;
mod envelope;
mod rabbitmq;
mod redis;

#[doc(hidden)] // for the fuzz targets
pub use self::envelope::report;
pub use crate::config::CeleryConfig;

use std::{fmt, fs, path::PathBuf, time::Duration};

use async_trait::async_trait;
use serde_json::Value;
use solehold_process::deadline::DeadlineError;

use self::{envelope::Envelope, rabbitmq::RabbitMq, redis::Redis};
use crate::dispatch::{Dispatch, DispatchError, Finding, InvalidDispatcher, Reports};
use crate::model::{
    pipeline::{DispatchKind, StagePlan},
    task::{Report, Task, TaskId},
};

/// How many reports are delivered at once.
const REPORTS_MAX: u16 = 500;
/// The longest name that AMQP can carry.
const ID_BYTES_MAX: usize = 255;
/// RabbitMQ's default for the time within which a consumer acknowledges a task.
const CONSUMER_TIMEOUT: Duration = Duration::from_secs(30 * 60);

#[async_trait]
trait Broker: Send + Sync {
    async fn send(&self, messages: &[Message<'_>]) -> Vec<Result<(), DispatchError>>;
    async fn broadcast(&self, what: &Value) -> Result<(), DispatchError>;
    /// Sends a query to all workers, and collects their replies within this time.
    async fn query(
        &self,
        method: &str,
        arguments: Value,
        within: Duration,
    ) -> Result<Vec<Value>, DispatchError>;
    /// Delivers messages of the result queue as reports.
    async fn results(&self, to: &dyn Reports) -> DispatchError;
}

struct Message<'a> {
    queue: &'a str,
    envelope: Envelope,
}

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
    /// Nothing is connected yet.
    pub fn new(config: &CeleryConfig) -> Result<Self, InvalidDispatcher> {
        let kind = match config.broker.split_once("://") {
            Some(("amqp" | "amqps", _)) => BrokerKind::RabbitMq,
            Some(("redis" | "rediss", _)) => BrokerKind::Redis,
            _ => return invalid("`broker` must begin with amqp://, amqps://, redis:// or rediss://"),
        };
        let read = |file: &PathBuf| {
            fs::read(file).or_else(|error| invalid(format!("`ca_cert`: {}: {error}", file.display())))
        };
        let ca_cert = config.ca_cert.as_ref().map(read).transpose()?;
        if ca_cert.is_some() && !["amqps://", "rediss://"].iter().any(|tls| config.broker.starts_with(tls)) {
            return invalid("`ca_cert` is for a broker over TLS: amqps:// or rediss://");
        }
        for (name, queue) in [("queue", config.queue()), ("result_queue", config.result_queue())] {
            if queue.is_empty() || queue.len() > ID_BYTES_MAX {
                return invalid(format!("`{name}` must have 1 to {ID_BYTES_MAX} bytes"));
            }
        }
        let broker: Box<dyn Broker> = match kind {
            BrokerKind::RabbitMq => Box::new(RabbitMq::new(config, ca_cert)),
            BrokerKind::Redis => Box::new(Redis::new(config, ca_cert)?),
        };
        Ok(Self { config: config.clone(), kind, broker })
    }
}

fn invalid<T>(what: impl Into<String>) -> Result<T, InvalidDispatcher> {
    Err(InvalidDispatcher::new(DispatchKind::Celery, what))
}

#[async_trait]
impl Dispatch for Celery {
    async fn send(&self, tasks: &[Task]) -> Vec<Result<(), DispatchError>> {
        let too_long = |task: &Task| task.id.to_string().len() > ID_BYTES_MAX;
        let messages: Vec<_> = tasks
            .iter()
            .filter(|task| !too_long(task))
            .map(|task| {
                let queue = task.queue.as_deref().unwrap_or(self.config.queue());
                Message { queue, envelope: Envelope::new(task) }
            })
            .collect();
        let mut sent = self.broker.send(&messages).await.into_iter();
        let result = |task: &Task| {
            if too_long(task) {
                let reason = format!("the task id has more than {ID_BYTES_MAX} bytes: {}", task.id);
                return Err(DispatchError::Refused(reason));
            }
            sent.next().unwrap_or_else(|| Err(DispatchError::Unreachable("not sent".to_owned())))
        };
        tasks.iter().map(result).collect()
    }

    async fn revoke(&self, task: &TaskId) {
        let what = control::revoke(&task.to_string(), self.config.terminate.unwrap_or_default());
        if let Err(error) = self.broker.broadcast(&what).await {
            tracing::debug!(%task, %error, "cannot revoke a task; its report will not count");
        }
    }

    async fn reports(&self, to: &dyn Reports) -> DispatchError {
        self.broker.results(to).await
    }

    async fn check(&self, stages: &[StagePlan]) -> Result<Vec<Finding>, DispatchError> {
        let workers = check::query_workers(self.broker.as_ref()).await?;
        Ok(check::judge(&workers, self.kind, &self.config, stages))
    }
}

/// The report in a message of the result queue, if it is about a task of an orchestrator.
fn read(correlation_id: Option<&str>, body: &[u8]) -> Option<Report> {
    envelope::report(correlation_id, body).unwrap_or_else(|error| {
        tracing::warn!(%error, "foreign message in the result queue; dropped");
        None
    })
}

impl<E: fmt::Display> From<DeadlineError<E>> for DispatchError {
    fn from(error: DeadlineError<E>) -> Self {
        Self::Unreachable(error.to_string())
    }
}
