//! What goes to a worker, and what comes back.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One attempt at a stage of a job. Brokers deliver a task twice and workers outlive their orchestrator: only the
/// report of the present attempt counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TaskId {
    /// The job.
    pub job: String,
    /// The stage.
    pub stage: String,
    /// From 1; raised by a retry, a timeout and a cancel.
    pub attempt: u32,
}

/// What a worker is asked to do.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Which attempt at which stage of which job.
    pub id: TaskId,
    /// What the stage's configuration calls it: the name of a Celery task, a topic, or a path.
    pub name: String,
    /// Where it is queued, if the stage's configuration says so.
    pub queue: Option<String>,
    /// The job's input, and the results of the stages that this one depends on.
    pub input: Value,
    /// The key of the job's commands, so that what is partitioned stays together.
    pub key: String,
    /// How long it may wait for a worker.
    pub queue_timeout: Duration,
    /// How long a worker may take.
    pub run_timeout: Duration,
}

/// What a worker says of a task.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Of which task.
    pub id: TaskId,
    /// What it says.
    pub kind: ReportKind,
}

/// What a worker says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ReportKind {
    /// A worker has begun.
    Started,
    /// How far it is.
    Progress {
        /// From 0 to 1.
        fraction: f64,
    },
    /// It is done.
    Succeeded {
        /// What came of it.
        result: Value,
    },
    /// It failed.
    Failed {
        /// Why, in the worker's words.
        reason: String,
    },
}
