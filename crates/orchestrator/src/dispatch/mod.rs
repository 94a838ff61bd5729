//! Dispatchers: they send tasks to workers, and receive their reports.
//!
//! Delivery is at least once: a task without a confirmation is sent again. So a report counts only for the present
//! attempt of its stage, and only the first one.

pub mod celery;
pub mod http;
pub mod kafka;
mod wire;

use std::{fmt, sync::Arc};

use async_trait::async_trait;

use self::{
    celery::Celery,
    http::Http,
    kafka::{Kafka, KafkaConfig},
};
use crate::config::Settings;
use crate::model::{
    pipeline::{DispatchKind, StagePlan},
    task::{Report, Task, TaskId},
};

pub type Dispatchers = Vec<(DispatchKind, Arc<dyn Dispatch>)>;

/// A dispatcher's configuration that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("dispatchers.{}: {what}", .dispatcher.name())]
pub struct InvalidDispatcher {
    pub dispatcher: DispatchKind,
    pub what: String,
}

impl InvalidDispatcher {
    fn new(dispatcher: DispatchKind, what: impl Into<String>) -> Self {
        Self { dispatcher, what: what.into() }
    }
}

/// All dispatchers that the configuration has. Nothing is connected yet.
pub(crate) fn open(
    settings: &Settings,
    reports: &Arc<dyn Reports>,
) -> Result<Dispatchers, InvalidDispatcher> {
    let mut dispatchers = Dispatchers::new();
    if let Some(config) = &settings.dispatchers.celery {
        dispatchers.push((DispatchKind::Celery, Arc::new(Celery::new(config)?)));
    }
    if let Some(file) = &settings.dispatchers.kafka {
        let group = file.group.clone();
        let config = KafkaConfig {
            brokers: settings.kafka.brokers.clone(),
            reports_topic: file.reports_topic.clone(),
            group: group.unwrap_or_else(|| format!("{}-reports", settings.consumer.group)),
            session_timeout: settings.kafka.session_timeout,
        };
        dispatchers.push((DispatchKind::Kafka, Arc::new(Kafka::new(&config)?)));
    }
    if let Some(config) = &settings.dispatchers.http {
        dispatchers.push((DispatchKind::Http, Arc::new(Http::new(config, reports.clone())?)));
    }
    Ok(dispatchers)
}

/// Why a task was not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DispatchError {
    /// The broker or service cannot be reached, or does not confirm. The task is sent again.
    #[error("{0}")]
    Unreachable(String),
    /// The task was rejected, and would be again: the attempt has failed.
    #[error("{0}")]
    Refused(String),
}

#[async_trait]
pub trait Dispatch: Send + Sync {
    /// Sends tasks, and returns in the same order whether each was confirmed. Implementations bound the time.
    async fn send(&self, tasks: &[Task]) -> Vec<Result<(), DispatchError>>;

    /// Requests workers to drop a task, to save work: its report no longer counts.
    async fn revoke(&self, task: &TaskId);

    /// Delivers reports until it fails. A report is acknowledged to the broker only after [`Reports::deliver`].
    async fn reports(&self, to: &dyn Reports) -> DispatchError;

    /// Compares the settings of brokers and workers with what the stages need.
    async fn check(&self, stages: &[StagePlan]) -> Result<Vec<Finding>, DispatchError>;
}

#[async_trait]
pub trait Reports: Send + Sync {
    /// Stores reports for the owners of their jobs' partitions. A report that is delivered twice counts once.
    async fn deliver(&self, reports: Vec<Report>) -> Result<(), solehold_sql::Error>;
}

/// How much a finding of `--check` matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// As it should be, or unknown.
    Note,
    /// Jobs still end, but later or with more work than necessary.
    Warning,
    /// Jobs do not end.
    Problem,
}

/// One thing that was compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub weight: Weight,
    /// What was found, its consequence, and what to change.
    pub text: String,
}

impl Finding {
    pub(crate) fn note(text: impl Into<String>) -> Self {
        Self { weight: Weight::Note, text: text.into() }
    }

    pub(crate) fn warning(text: impl Into<String>) -> Self {
        Self { weight: Weight::Warning, text: text.into() }
    }

    pub(crate) fn problem(text: impl Into<String>) -> Self {
        Self { weight: Weight::Problem, text: text.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weight = match self.weight {
            Weight::Note => "note",
            Weight::Warning => "warning",
            Weight::Problem => "problem",
        };
        write!(f, "{weight}: {}", self.text)
    }
}
