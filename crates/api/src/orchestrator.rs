//! The jobs of an orchestrator, as the server passes them on.
//!
//! The orchestrator answers under `/jobs` and `/letters` with the same fields. What another version leaves out is left
//! out here; what it has beyond these fields is dropped.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::page::PageCursor;

/// The states that jobs are listed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum OrchestratorJobState {
    Running,
    Succeeded,
    Failed,
    Cancelled,
}

impl OrchestratorJobState {
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A job of the orchestrator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OrchestratorJob {
    pub job_id: String,
    /// The key of its commands: jobs with the same key are in order with each other.
    pub key: String,
    /// What its commands said of it, such as an organization.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// `running`, `succeeded`, `failed` or `cancelled`.
    pub state: String,
    /// The part of its stages that is done, 0 to 1.
    pub progress: f64,
    /// Why it failed or was cancelled.
    pub reason: Option<String>,
    /// The partition of the topic of commands that it belongs to.
    pub partition: i32,
    /// How often that partition has changed hands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<i64>,
    /// The highest attempt of its stages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub created_at: Option<String>,
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub finished_at: Option<String>,
}

/// A page of jobs, in the order of their ids.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OrchestratorJobList {
    pub jobs: Vec<OrchestratorJob>,
    /// Where the next page begins; null on the last.
    pub next: Option<PageCursor>,
}

/// A job with its stages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OrchestratorJobDetails {
    #[serde(flatten)]
    pub job: OrchestratorJob,
    /// Grows by one with each of its events.
    pub revision: i64,
    /// What it works on.
    pub input: Value,
    pub stages: Vec<OrchestratorStage>,
}

/// A stage of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OrchestratorStage {
    pub stage: String,
    /// The stages that must succeed first.
    #[serde(default)]
    pub after: Vec<String>,
    /// Such as `waiting`, `queued`, `running`, `succeeded`, `failed` or `cancelled`.
    pub state: String,
    /// 0 to 1.
    pub progress: f64,
    /// The present attempt; 0 before the first. A retry, a timeout and a cancel raise it.
    pub attempt: u32,
    /// How many attempts have failed.
    #[serde(default)]
    pub failures: u32,
    /// How many failures are made good by another attempt.
    #[serde(default)]
    pub retries: u32,
    /// Why the last attempt failed.
    pub reason: Option<String>,
    /// What its worker reported at the end.
    #[serde(default)]
    pub result: Value,
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub queued_at: Option<String>,
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub started_at: Option<String>,
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub finished_at: Option<String>,
    /// When the present attempt counts as failed.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub deadline: Option<String>,
}

/// A command that was rejected, or that is parked behind one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OrchestratorLetter {
    /// Its id: the partition and the offset of its message.
    pub letter: String,
    /// The key of its message.
    pub key: String,
    /// `dead` or `parked`.
    pub state: String,
    pub reason: String,
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub since: Option<String>,
}

/// A page of dead letters that nobody has decided on, without their payloads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OrchestratorLetterList {
    pub letters: Vec<OrchestratorLetter>,
    /// Where the next page begins; null on the last.
    pub next: Option<PageCursor>,
}
