//! What others are told of a job.

use serde::{Deserialize, Serialize};

use crate::command::Labels;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The job was created.
    Created,
    /// A worker has begun with a stage.
    StageStarted,
    /// A stage has made progress.
    StageProgress,
    /// A stage is done.
    StageSucceeded,
    /// An attempt at a stage has failed; the next one is queued.
    StageRetried,
    /// A stage has no attempt left.
    StageFailed,
    /// Someone has asked for failed and cancelled stages to be tried again.
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
    /// To which job.
    pub job_id: String,
    /// The key of its commands.
    pub key: String,
    /// What it is about, and whose it is.
    pub labels: Labels,
    /// The number of the event among those of its job, from 1.
    pub revision: i64,
    /// When, in milliseconds since 1970 by the database's clock.
    pub at_ms: i64,
    /// How far the job is, from 0 to 1.
    pub progress: f64,
    /// The stage, for events of stages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// Its attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// How far the stage is, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage_progress: Option<f64>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
