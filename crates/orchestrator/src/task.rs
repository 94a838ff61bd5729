//! What goes to a worker, and what comes back.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::limits::{ID_BYTES_MAX, REASON_BYTES_MAX, RESULT_BYTES_MAX, STAGE_NAME_BYTES_MAX};

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

/// As brokers and workers see it: `job-17:detect:2`. The same attempt always has the same id, so that a task that is
/// sent twice can be recognised.
impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.job, self.stage, self.attempt)
    }
}

/// A job may have colons in its id; a stage has none in its name.
impl FromStr for TaskId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.rsplitn(3, ':');
        let attempt = parts.next().and_then(|attempt| attempt.parse().ok());
        match (attempt, parts.next(), parts.next()) {
            (Some(attempt), Some(stage), Some(job)) if !stage.is_empty() && !job.is_empty() => {
                Ok(Self { job: job.to_owned(), stage: stage.to_owned(), attempt })
            }
            _ => Err(format!("{text:?} is not the id of a task: it looks like JOB:STAGE:ATTEMPT")),
        }
    }
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
    /// What a Celery task gets, if the stage's configuration says so.
    pub arguments: Option<Arguments>,
    /// The key of the job's commands, so that what is partitioned stays together.
    pub key: String,
    /// How long it may wait for a worker.
    pub queue_timeout: Duration,
    /// How long a worker may take.
    pub run_timeout: Duration,
}

/// What a Celery task gets.
#[derive(Debug, Clone, PartialEq)]
pub struct Arguments {
    /// By position.
    pub args: Vec<Value>,
    /// By name.
    pub kwargs: Map<String, Value>,
}

/// What a worker says of a task. In JSON it is one object:
/// `{"job": "job-17", "stage": "detect", "attempt": 2, "kind": "succeeded", "result": {}}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Of which task.
    #[serde(flatten)]
    pub id: TaskId,
    /// What it says.
    #[serde(flatten)]
    pub kind: ReportKind,
}

impl Report {
    /// Why it cannot be about any task, if it cannot: PostgreSQL would not take it, however often it is asked.
    pub fn fault(&self) -> Option<String> {
        let ids = [("job", &self.id.job, ID_BYTES_MAX), ("stage", &self.id.stage, STAGE_NAME_BYTES_MAX)];
        let odd =
            ids.into_iter().find(|(_, id, most)| id.is_empty() || id.len() > *most || id.contains('\0'));
        odd.map(|(what, id, most)| {
            format!("{what} has {} bytes; it has 1 to {most}, and no zero characters", id.len())
        })
    }

    /// The report as it is kept: what is too large fails the attempt, with the reason that is returned beside it, and a
    /// long reason is cut.
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

/// Why a result is not kept, if it is too large.
pub(super) fn excess(result: &Value) -> Option<String> {
    let size = result.to_string().len();
    (size > RESULT_BYTES_MAX).then(|| {
        format!(
            "its result has {size} bytes, more than {RESULT_BYTES_MAX}: store it elsewhere, and return where"
        )
    })
}

/// A reason of bounded length; what is cut says so. PostgreSQL keeps no zero characters.
pub(super) fn bounded_reason(reason: &str) -> String {
    let reason = reason.replace('\0', "");
    if reason.len() <= REASON_BYTES_MAX {
        return reason;
    }
    let end = (0..=REASON_BYTES_MAX - 3).rev().find(|at| reason.is_char_boundary(*at)).unwrap_or_default();
    format!("{}...", &reason[..end])
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
