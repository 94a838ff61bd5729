//! Events of jobs, for other systems.

use serde::{Deserialize, Serialize};

use crate::model::job::Labels;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    Created,
    StageStarted,
    StageProgress,
    StageSucceeded,
    /// An attempt at a stage has failed; the next one is queued.
    StageRetried,
    /// A stage has no attempt left.
    StageFailed,
    /// Failed and cancelled stages are tried again, by a command or an operator.
    Retried,
    Succeeded,
    Failed,
    Cancelled,
}

/// An event of a job. Delivered at least once and in order; `revision` grows by one with each event of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobEvent {
    #[serde(rename = "type")]
    pub kind: EventKind,
    pub job_id: String,
    pub key: String,
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The progress of the stage, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage_progress: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
