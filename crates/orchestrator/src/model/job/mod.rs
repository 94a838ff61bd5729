//! Jobs and their state machine, [`decide`]: without a clock or any I/O.
//!
//! ```text
//!   job       running ──> succeeded        all stages have
//!                 │  ├───> failed           a stage has no attempt left; retry continues from there
//!                 │  └───> cancelled        by command; retry continues from there
//!   stage     waiting ──> queued ──> running ──> succeeded
//!                ^           └─────┬────┘
//!                │ retry           └── failed, timed out: queued again as the next attempt, or failed
//! ```
//!
//! Inputs arrive at least once and in any order. So a report counts only for the present attempt of its stage, and only
//! the first result counts. A late or duplicate input changes nothing.

mod decide;
mod event;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub(crate) use self::decide::millis;
pub use self::{
    decide::{Decision, Effect, Input, NewJob, Rejection, decide},
    event::{EventKind, JobEvent},
};
use crate::model::{
    pipeline::{Pipeline, StagePlan},
    task::{Arguments, Task, TaskId},
    template::{FillError, Template},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Stages remain.
    Running,
    Succeeded,
    /// A stage has failed and has no attempt left.
    Failed,
    /// It was cancelled by a command or an operator.
    Cancelled,
}

impl JobState {
    pub const ALL: [Self; 4] = [Self::Running, Self::Succeeded, Self::Failed, Self::Cancelled];

    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StageState {
    /// It waits for other stages.
    #[default]
    Waiting,
    /// Its task was sent, or will be; no worker has started it.
    Queued,
    /// A worker has started its task.
    Running,
    Succeeded,
    Failed,
    /// The job was cancelled, or another stage has failed.
    Cancelled,
}

impl StageState {
    pub const ALL: [Self; 6] =
        [Self::Waiting, Self::Queued, Self::Running, Self::Succeeded, Self::Failed, Self::Cancelled];

    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stage {
    pub state: StageState,
    /// The present attempt, 0 before the first.
    pub attempt: u32,
    /// Attempts that failed since the job was created or retried.
    pub failures: u32,
    /// From 0 to 1.
    pub progress: f64,
    pub result: Option<Arc<Value>>,
    /// Why the last attempt failed.
    pub reason: Option<String>,
    /// When the present attempt was queued, in the database's milliseconds since 1970.
    pub queued_ms: Option<i64>,
    pub started_ms: Option<i64>,
    pub finished_ms: Option<i64>,
    /// When the present attempt times out.
    pub deadline_ms: Option<i64>,
}

impl Stage {
    /// Whether a report on its present attempt would count.
    pub fn is_under_way(&self) -> bool {
        matches!(self.state, StageState::Queued | StageState::Running)
    }
}

/// Why the arguments of a task cannot be made from its templates.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} of stage {stage}: {source}")]
pub struct ArgumentsError {
    /// `args` or `kwargs`.
    pub name: &'static str,
    pub stage: String,
    pub source: FillError,
}

/// Values that are stored with a job and compared with its later commands, by name.
pub type Labels = BTreeMap<String, String>;

#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Its id, given by the command that created it.
    pub id: String,
    /// The key of its commands. Messages of one key are in order, and in one partition.
    pub key: String,
    /// Copied from the command that created it, and compared with later commands.
    pub labels: Labels,
    /// The input of its stages.
    pub input: Arc<Value>,
    /// The stages, as they were configured when it was created.
    pub pipeline: Arc<Pipeline>,
    pub state: JobState,
    /// Why it failed.
    pub reason: Option<String>,
    /// The number of its last event.
    pub revision: i64,
    pub created_ms: i64,
    pub finished_ms: Option<i64>,
    /// One for each stage of the pipeline, in its order.
    pub stages: Vec<Stage>,
}

impl Job {
    /// How far it is, from 0 to 1.
    pub fn progress(&self) -> f64 {
        let sum: f64 = self.stages.iter().map(|stage| stage.progress).sum();
        if self.stages.is_empty() { 0.0 } else { sum / self.stages.len() as f64 }
    }

    /// The plan and the state of each stage, in order.
    pub fn each_stage(&self) -> impl Iterator<Item = (&StagePlan, &Stage)> {
        self.pipeline.stages().iter().zip(&self.stages)
    }

    /// The task of an attempt, if it is the present one and under way. An error means that its arguments cannot be
    /// made.
    pub fn task(&self, stage: &str, attempt: u32) -> Option<Result<Task, ArgumentsError>> {
        let at = self.position(stage)?;
        let stage = &self.stages[at];
        (stage.is_under_way() && stage.attempt == attempt).then(|| self.task_at(at))
    }

    fn task_at(&self, at: usize) -> Result<Task, ArgumentsError> {
        let plan = &self.pipeline.stages()[at];
        let id = self.task_id(at);
        let input = json!({ "input": &*self.input, "results": self.results_for(plan) });
        let arguments = if plan.has_arguments() { Some(self.arguments(plan, &id, &input)?) } else { None };
        Ok(Task {
            id,
            name: plan.task.clone(),
            queue: plan.queue.clone(),
            input,
            arguments,
            key: self.key.clone(),
            run_timeout: plan.run_timeout,
        })
    }

    /// The arguments of a task whose stage has templates for them.
    fn arguments(&self, plan: &StagePlan, id: &TaskId, input: &Value) -> Result<Arguments, ArgumentsError> {
        let about = json!({
            "job_id": self.id, "key": self.key, "labels": self.labels, "stage": plan.name, "attempt": id.attempt,
        });
        let fill = |name: &'static str, template: &Option<Template>| {
            let filled = template
                .as_ref()
                .map(|template| template.fill(|path| path.find(input).or_else(|| path.find(&about))));
            filled.transpose().map_err(|source| ArgumentsError { name, stage: plan.name.clone(), source })
        };
        let args = match fill("args", &plan.args)? {
            Some(Value::Array(args)) => args,
            _ => Vec::new(),
        };
        let kwargs = match fill("kwargs", &plan.kwargs)? {
            Some(Value::Object(kwargs)) => kwargs,
            _ => serde_json::Map::new(),
        };
        Ok(Arguments { args, kwargs })
    }

    fn results_for(&self, plan: &StagePlan) -> BTreeMap<&str, &Value> {
        let before = self.each_stage().filter(|(other, _)| plan.after.contains(&other.name));
        before
            .map(|(other, stage)| (other.name.as_str(), stage.result.as_deref().unwrap_or(&Value::Null)))
            .collect()
    }

    fn task_id(&self, at: usize) -> TaskId {
        let stage = self.pipeline.stages()[at].name.clone();
        TaskId { job: self.id.clone(), stage, attempt: self.stages[at].attempt }
    }

    fn position(&self, stage: &str) -> Option<usize> {
        self.pipeline.stages().iter().position(|plan| plan.name == stage)
    }
}
