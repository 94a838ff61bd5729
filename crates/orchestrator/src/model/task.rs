//! What goes to a worker, and what comes back.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::model::limits::{ID_BYTES_MAX, REASON_BYTES_MAX, RESULT_BYTES_MAX, STAGE_NAME_BYTES_MAX};

/// One attempt at a stage of a job. Brokers may deliver a task twice and workers may outlive their orchestrator: only
/// the report of the present attempt counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TaskId {
    pub job: String,
    pub stage: String,
    /// From 1; raised by a retry, a timeout and a cancel.
    pub attempt: u32,
}

/// The id for brokers and workers: `job-17:detect:2`. An attempt always has the same id, so that a task that is sent
/// twice can be recognised.
impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.job, self.stage, self.attempt)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid task id {0:?}: expected JOB:STAGE:ATTEMPT")]
pub struct InvalidTaskId(pub String);

/// The id of a job may contain colons; the name of a stage does not.
impl FromStr for TaskId {
    type Err = InvalidTaskId;

    fn from_str(text: &str) -> Result<Self, InvalidTaskId> {
        let mut parts = text.rsplitn(3, ':');
        let attempt = parts.next().and_then(|attempt| attempt.parse().ok());
        match (attempt, parts.next(), parts.next()) {
            (Some(attempt), Some(stage), Some(job)) if !stage.is_empty() && !job.is_empty() => {
                Ok(Self { job: job.to_owned(), stage: stage.to_owned(), attempt })
            }
            _ => Err(InvalidTaskId(text.to_owned())),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    pub id: TaskId,
    /// `task` of the stage: the name of a Celery task, a topic, or a path.
    pub name: String,
    pub queue: Option<String>,
    /// The job's input, and the results of the stages that this one depends on.
    pub input: Value,
    /// The arguments of a Celery task, if the stage has templates for them.
    pub arguments: Option<Arguments>,
    /// The key of the job's commands, for partitioning.
    pub key: String,
    pub run_timeout: Duration,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Arguments {
    pub args: Vec<Value>,
    pub kwargs: Map<String, Value>,
}

/// A worker's report on a task. In JSON it is one object:
/// `{"job": "job-17", "stage": "detect", "attempt": 2, "kind": "succeeded", "result": {}}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    #[serde(flatten)]
    pub id: TaskId,
    #[serde(flatten)]
    pub kind: ReportKind,
}

impl Report {
    /// What is wrong with its ids, if PostgreSQL could not store them.
    pub fn fault(&self) -> Option<String> {
        let ids = [("job", &self.id.job, ID_BYTES_MAX), ("stage", &self.id.stage, STAGE_NAME_BYTES_MAX)];
        let invalid =
            ids.into_iter().find(|(_, id, most)| id.is_empty() || id.len() > *most || id.contains('\0'));
        invalid.map(|(what, id, most)| {
            format!("{what} has {} bytes; it must have 1 to {most}, and no zero characters", id.len())
        })
    }

    /// The report as it is stored. A result that is too large becomes a failure, whose reason is also returned; a long
    /// reason is cut.
    pub fn bounded(mut self) -> (Self, Option<String>) {
        let excess = match &self.kind {
            ReportKind::Succeeded { result } => excess(result),
            _ => None,
        };
        if let Some(reason) = &excess {
            self.kind = ReportKind::Failed { reason: reason.clone() };
        } else if let ReportKind::Failed { reason } = &mut self.kind {
            *reason = bounded_reason(reason);
        }
        (self, excess)
    }
}

/// Why a result is rejected, if it is too large.
pub(crate) fn excess(result: &Value) -> Option<String> {
    let size = result.to_string().len();
    (size > RESULT_BYTES_MAX).then(|| {
        format!(
            "the result has {size} bytes, more than {RESULT_BYTES_MAX}: store it elsewhere, and return its location"
        )
    })
}

/// A reason of bounded length, with dots if it was cut. PostgreSQL stores no zero characters.
pub(crate) fn bounded_reason(reason: &str) -> String {
    let reason = reason.replace('\0', "");
    if reason.len() <= REASON_BYTES_MAX {
        return reason;
    }
    let end = (0..=REASON_BYTES_MAX - 3).rev().find(|at| reason.is_char_boundary(*at)).unwrap_or_default();
    format!("{}...", &reason[..end])
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ReportKind {
    /// A worker has started the task.
    Started,
    /// The task has made progress, from 0 to 1.
    Progress { fraction: f64 },
    /// The task is done.
    Succeeded { result: Value },
    /// The task failed.
    Failed { reason: String },
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_id_is_read_as_it_was_written() {
        for job in ["job-17", "org:match", "a/b", "ü", "x:y:3"] {
            let id = TaskId { job: job.to_owned(), stage: "detect".to_owned(), attempt: 2 };
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        for text in
            ["", "a", "a:b", "a:b:c", ":b:1", "a::1", "a:b:-1", "4d1e6fd2-ffae-4a3c-bf53-0d21a5ff1a4e"]
        {
            assert!(text.parse::<TaskId>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_report_is_one_object() {
        let text = json!({
            "job": "job-17", "stage": "detect", "attempt": 2, "kind": "succeeded", "result": { "frames": 9 },
        });
        let report: Report = serde_json::from_value(text.clone()).expect("a report");
        assert_eq!(report.id.to_string(), "job-17:detect:2");
        assert_eq!(report.kind, ReportKind::Succeeded { result: json!({ "frames": 9 }) });
        assert_eq!(serde_json::to_value(&report).expect("JSON"), text);
        let started = json!({ "job": "j", "stage": "s", "attempt": 1, "kind": "started" });
        assert!(serde_json::from_value::<Report>(started).is_ok());
    }
}
