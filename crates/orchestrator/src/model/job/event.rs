//! Events of jobs, for other systems.

use serde::{Deserialize, Serialize};

use crate::model::job::Labels;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The job was created.
    Created,
    /// A worker has started a stage.
    StageStarted,
    /// A stage has made progress.
    StageProgress,
    /// A stage has a result.
    StageSucceeded,
    /// An attempt at a stage has failed; the next one is queued.
    StageRetried,
    /// A stage has no attempt left.
    StageFailed,
    /// Failed and cancelled stages are tried again, by a command or an operator.
    Retried,
    /// All stages have succeeded.
    Succeeded,
    /// The job has failed.
    Failed,
    /// The job was cancelled.
    Cancelled,
}

/// An event of a job. Delivered at least once and in order; `revision` grows by one with each event of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobEvent {
    /// What happened.
    #[serde(rename = "type")]
    pub kind: EventKind,
    /// The job.
    pub job_id: String,
    /// The key of its commands.
    pub key: String,
    /// The labels of the job.
    pub labels: Labels,
    /// The number of the event among those of its job, from 1.
    pub revision: i64,
    /// When, in milliseconds since 1970 by the database's clock.
    pub at_ms: i64,
    /// The progress of the job, from 0 to 1.
    pub progress: f64,
    /// The stage of an event about a stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// Its attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The progress of the stage, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage_progress: Option<f64>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
