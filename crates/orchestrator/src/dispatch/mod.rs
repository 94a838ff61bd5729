//! Dispatchers: they send tasks to workers, and receive their reports.
//!
//! Delivery is at least once: a task without a confirmation is sent again. So a report counts only for the present
//! attempt of its stage, and only the first one.

pub mod celery;
mod check;
pub mod http;
pub mod kafka;
mod open;
mod wire;

use std::sync::Arc;

use async_trait::async_trait;

pub use self::check::{Finding, StageLimits, Weight};
pub(crate) use self::open::open;
use crate::model::{
    pipeline::DispatchKind,
    task::{Report, Task, TaskId},
};

pub type Dispatchers = Vec<(DispatchKind, Arc<dyn Dispatch>)>;

/// A dispatcher's configuration that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidDispatcher(pub String);

impl InvalidDispatcher {
    fn at(self, key: &str) -> Self {
        Self(format!("{key}: {}", self.0))
    }
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

/// A way to send tasks to workers.
#[async_trait]
pub trait Dispatch: Send + Sync {
    /// Sends tasks, and returns in the same order whether each was confirmed. Implementations bound the time.
    async fn send(&self, tasks: &[Task]) -> Vec<Result<(), DispatchError>>;

    /// Requests workers to drop a task, to save work: its report no longer counts.
    async fn revoke(&self, task: &TaskId);

    /// Delivers reports until it fails. A report is acknowledged to the broker only after [`Reports::deliver`].
    async fn reports(&self, to: &dyn Reports) -> DispatchError;

    /// Compares the settings of brokers and workers with what the stages need.
    async fn check(&self, stages: &[StageLimits]) -> Result<Vec<Finding>, DispatchError>;
}

#[async_trait]
pub trait Reports: Send + Sync {
    /// Stores reports for the owners of their jobs' partitions. A report that is delivered twice counts once.
    async fn deliver(&self, reports: Vec<Report>) -> Result<(), solehold_sql::Error>;
}
