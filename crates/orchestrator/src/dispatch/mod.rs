//! How tasks reach workers, and how reports come back.
//!
//! Sending is at least once: a task is sent again if it is not known whether it arrived. So a report counts only for
//! the present attempt of its stage, and only the first one.

pub mod celery;
mod check;
pub mod http;
pub mod kafka;
mod settings;

use async_trait::async_trait;

pub use self::settings::{CeleryFile, DispatchersFile, HttpTasksFile, KafkaTasksFile, Ways};
use super::{Report, Task, TaskId};
pub use check::{Finding, StageLimits, Weight};

/// Why a task was not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DispatchError {
    /// The broker or service cannot be reached, or does not confirm. It is tried again.
    #[error("{0}")]
    Unreachable(String),
    /// It refuses this task, and will refuse it again: the attempt has failed.
    #[error("{0}")]
    Refused(String),
}

/// A way to send tasks to workers.
#[async_trait]
pub trait Dispatch: Send + Sync {
    /// Sends tasks, and returns in the same order whether each has been taken over for certain. It has a bound in time
    /// of its own.
    async fn send(&self, tasks: &[Task]) -> Vec<Result<(), DispatchError>>;

    /// Asks workers to drop a task, as a courtesy: its report no longer counts.
    async fn revoke(&self, task: &TaskId);

    /// Delivers reports until it is dropped. It acknowledges them to the broker only after [`Reports::deliver`].
    async fn reports(&self, to: &dyn Reports) -> DispatchError;

    /// Compares what brokers and workers are set to with what the stages need.
    async fn check(&self, stages: &[StageLimits]) -> Result<Vec<Finding>, DispatchError>;
}

/// Where reports go.
#[async_trait]
pub trait Reports: Send + Sync {
    /// Keeps reports for the owners of their jobs' partitions. When it returns they are in the database; a report that
    /// is delivered twice counts once.
    async fn deliver(&self, reports: Vec<Report>) -> Result<(), solehold_sql::Error>;
}
