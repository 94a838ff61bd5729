//! The transitions of a job and its stages.

use std::sync::Arc;

use serde_json::Value;

use crate::model::job::{EventKind, Job, JobEvent, JobState, Stage, StageState};
use crate::model::{
    job::Labels,
    pipeline::{DispatchKind, Pipeline},
    task::{ReportKind, TaskId, bounded_reason as bounded, excess},
};

/// What a job is created from.
#[derive(Debug, Clone, PartialEq)]
pub struct NewJob {
    pub id: String,
    pub key: String,
    pub labels: Labels,
    pub input: Arc<Value>,
    pub pipeline: Arc<Pipeline>,
}

/// An input of the state machine.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// Create the job; a second time, this changes nothing.
    Create(NewJob),
    /// Cancel the job.
    Cancel,
    /// Retry stages that failed or were cancelled.
    Retry,
    /// A worker's report.
    Report { stage: String, attempt: u32, kind: ReportKind },
    /// An attempt may have exceeded its deadline, which is checked here.
    Timeout { stage: String, attempt: u32 },
}

/// An action that follows from a transition.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Send the task of this attempt.
    Send { task: TaskId, by: DispatchKind },
    /// Request workers to drop the task of this attempt.
    Revoke { task: TaskId, by: DispatchKind },
    /// Publish an event.
    Event(JobEvent),
}

/// The result of an input. A late or duplicate input leaves the job unchanged and has no effects.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    pub job: Job,
    /// What to do, in this order.
    pub effects: Vec<Effect>,
}

/// Why a command or another input can never take effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Rejection(pub String);

/// Applies an input to a job; `now_ms` is the database's time.
pub fn decide(job: Option<Job>, input: &Input, now_ms: i64) -> Result<Decision, Rejection> {
    let job = match (job, input) {
        (None, Input::Create(new)) => return create(new, now_ms),
        (None, _) => return Err(Rejection("there is no such job".to_owned())),
        (Some(job), Input::Create(new)) => return created_before(job, new),
        (Some(job), _) => job,
    };
    let mut step = Step { job, effects: Vec::new(), now_ms };
    match input {
        Input::Create(_) => {}
        Input::Cancel => step.cancel(),
        Input::Retry => step.retry(),
        Input::Report { stage, attempt, kind } => step.report(stage, *attempt, kind),
        Input::Timeout { stage, attempt } => step.time_out(stage, *attempt),
    }
    Ok(Decision { job: step.job, effects: step.effects })
}

fn create(new: &NewJob, now_ms: i64) -> Result<Decision, Rejection> {
    new.pipeline.check_input(&new.input).map_err(|error| Rejection(error.to_string()))?;
    let job = Job {
        id: new.id.clone(),
        key: new.key.clone(),
        labels: new.labels.clone(),
        input: new.input.clone(),
        pipeline: new.pipeline.clone(),
        state: JobState::Running,
        reason: None,
        revision: 0,
        created_ms: now_ms,
        finished_ms: None,
        stages: vec![Stage::default(); new.pipeline.stages().len()],
    };
    let mut step = Step { job, effects: Vec::new(), now_ms };
    step.emit(EventKind::Created, None);
    step.queue_ready_stages();
    Ok(Decision { job: step.job, effects: step.effects })
}

fn created_before(job: Job, new: &NewJob) -> Result<Decision, Rejection> {
    if (&job.key, &job.labels) != (&new.key, &new.labels) {
        return Err(Rejection(format!("a job with this id already exists, with the key {}", job.key)));
    }
    Ok(Decision { job, effects: Vec::new() })
}

/// A job in the middle of a transition.
struct Step {
    job: Job,
    effects: Vec<Effect>,
    now_ms: i64,
}

impl Step {
    /// The stage, if this is its present attempt and it has no result yet.
    fn under_way(&self, stage: &str, attempt: u32) -> Option<usize> {
        let at = self.job.position(stage)?;
        let stage = &self.job.stages[at];
        (self.job.state == JobState::Running && stage.is_under_way() && stage.attempt == attempt)
            .then_some(at)
    }

    fn report(&mut self, stage: &str, attempt: u32, kind: &ReportKind) {
        let Some(at) = self.under_way(stage, attempt) else { return };
        match kind {
            ReportKind::Started => self.start(at),
            ReportKind::Progress { fraction } => self.progress(at, *fraction),
            ReportKind::Succeeded { result } => match excess(result) {
                Some(reason) => self.fail_attempt(at, &reason),
                None => self.succeed(at, result),
            },
            ReportKind::Failed { reason } => self.fail_attempt(at, reason),
        }
    }

    fn start(&mut self, at: usize) {
        if self.job.stages[at].state != StageState::Queued {
            return;
        }
        let run_ms = millis(self.job.pipeline.stages()[at].run_timeout);
        let stage = &mut self.job.stages[at];
        stage.state = StageState::Running;
        stage.started_ms = Some(self.now_ms);
        stage.deadline_ms = Some(self.now_ms.saturating_add(run_ms));
        self.emit(EventKind::StageStarted, Some(at));
    }

    fn progress(&mut self, at: usize, fraction: f64) {
        self.start(at);
        let stage = &mut self.job.stages[at];
        // Reports may arrive out of order: progress only grows. NaN counts as 0.
        let fraction = if fraction.is_nan() { 0.0 } else { fraction.min(1.0) };
        if fraction > stage.progress {
            stage.progress = fraction;
            self.emit(EventKind::StageProgress, Some(at));
        }
    }

    fn succeed(&mut self, at: usize, result: &Value) {
        let now_ms = self.now_ms;
        let stage = &mut self.job.stages[at];
        stage.state = StageState::Succeeded;
        stage.progress = 1.0;
        stage.result = Some(Arc::new(result.clone()));
        stage.reason = None;
        stage.deadline_ms = None;
        stage.finished_ms = Some(now_ms);
        self.emit(EventKind::StageSucceeded, Some(at));
        if self.job.stages.iter().all(|stage| stage.state == StageState::Succeeded) {
            self.finish(JobState::Succeeded, None);
        } else {
            self.queue_ready_stages();
        }
    }

    fn time_out(&mut self, stage: &str, attempt: u32) {
        let Some(at) = self.under_way(stage, attempt) else { return };
        let plan = &self.job.pipeline.stages()[at];
        let stage = &self.job.stages[at];
        if stage.deadline_ms.is_none_or(|deadline_ms| deadline_ms > self.now_ms) {
            return;
        }
        let shown = humantime::format_duration;
        let reason = match stage.state {
            StageState::Queued => format!("no worker started the task within {}", shown(plan.queue_timeout)),
            _ => format!("the worker took longer than {}", shown(plan.run_timeout)),
        };
        self.revoke(at);
        self.fail_attempt(at, &reason);
    }

    /// Ends the present attempt, and queues the next if one is left.
    fn fail_attempt(&mut self, at: usize, reason: &str) {
        let retries = self.job.pipeline.stages()[at].retries;
        let stage = &mut self.job.stages[at];
        stage.failures += 1;
        stage.reason = Some(bounded(reason));
        if stage.failures <= retries {
            self.emit(EventKind::StageRetried, Some(at));
            self.queue(at);
            return;
        }
        self.end_stage(at, StageState::Failed);
        self.emit(EventKind::StageFailed, Some(at));
        self.end_other_stages();
        let reason = format!("stage {}: {}", self.job.pipeline.stages()[at].name, bounded(reason));
        self.finish(JobState::Failed, Some(bounded(&reason)));
    }

    fn cancel(&mut self) {
        if self.job.state == JobState::Running {
            self.end_other_stages();
            self.finish(JobState::Cancelled, None);
        }
    }

    fn retry(&mut self) {
        if !matches!(self.job.state, JobState::Failed | JobState::Cancelled) {
            return;
        }
        self.job.state = JobState::Running;
        self.job.reason = None;
        self.job.finished_ms = None;
        for stage in &mut self.job.stages {
            if matches!(stage.state, StageState::Failed | StageState::Cancelled) {
                // Attempt numbers keep growing, so that reports of earlier attempts never count.
                *stage = Stage { attempt: stage.attempt, ..Stage::default() };
            }
        }
        self.emit(EventKind::Retried, None);
        self.queue_ready_stages();
    }

    /// Cancels all stages that are under way.
    fn end_other_stages(&mut self) {
        for at in 0..self.job.stages.len() {
            if self.job.stages[at].is_under_way() {
                self.revoke(at);
                self.end_stage(at, StageState::Cancelled);
            }
        }
    }

    /// Ends a stage without a result. Its attempt is raised, so that late reports do not count.
    fn end_stage(&mut self, at: usize, state: StageState) {
        let now_ms = self.now_ms;
        let stage = &mut self.job.stages[at];
        stage.state = state;
        stage.attempt += 1;
        stage.deadline_ms = None;
        stage.finished_ms = Some(now_ms);
    }

    fn queue_ready_stages(&mut self) {
        for at in 0..self.job.stages.len() {
            let after = &self.job.pipeline.stages()[at].after;
            let is_free = |before: &String| {
                let before = self.job.position(before).map(|at| self.job.stages[at].state);
                before == Some(StageState::Succeeded)
            };
            if self.job.stages[at].state == StageState::Waiting && after.iter().all(is_free) {
                self.queue(at);
            }
        }
    }

    /// Begins the next attempt.
    fn queue(&mut self, at: usize) {
        let plan = &self.job.pipeline.stages()[at];
        let queue_ms = millis(plan.queue_timeout);
        let by = plan.dispatch;
        let now_ms = self.now_ms;
        let stage = &mut self.job.stages[at];
        stage.state = StageState::Queued;
        stage.attempt += 1;
        stage.progress = 0.0;
        stage.queued_ms = Some(now_ms);
        stage.started_ms = None;
        stage.finished_ms = None;
        stage.deadline_ms = Some(now_ms.saturating_add(queue_ms));
        self.effects.push(Effect::Send { task: self.job.task_id(at), by });
    }

    fn revoke(&mut self, at: usize) {
        let by = self.job.pipeline.stages()[at].dispatch;
        self.effects.push(Effect::Revoke { task: self.job.task_id(at), by });
    }

    fn finish(&mut self, state: JobState, reason: Option<String>) {
        self.job.state = state;
        self.job.reason = reason;
        self.job.finished_ms = Some(self.now_ms);
        let kind = match state {
            JobState::Succeeded => EventKind::Succeeded,
            JobState::Cancelled => EventKind::Cancelled,
            JobState::Failed | JobState::Running => EventKind::Failed,
        };
        self.emit(kind, None);
    }

    fn emit(&mut self, kind: EventKind, at: Option<usize>) {
        self.job.revision += 1;
        let job = &self.job;
        let stage = at.map(|at| (&job.pipeline.stages()[at], &job.stages[at]));
        let reason = match kind {
            EventKind::StageRetried | EventKind::StageFailed => {
                stage.and_then(|(_, stage)| stage.reason.clone())
            }
            EventKind::Failed => job.reason.clone(),
            _ => None,
        };
        let event = JobEvent {
            kind,
            job_id: job.id.clone(),
            key: job.key.clone(),
            labels: job.labels.clone(),
            revision: job.revision,
            at_ms: self.now_ms,
            progress: job.progress(),
            stage: stage.map(|(plan, _)| plan.name.clone()),
            attempt: stage.map(|(_, stage)| stage.attempt),
            stage_progress: stage.map(|(_, stage)| stage.progress),
            reason,
        };
        self.effects.push(Effect::Event(event));
    }
}

pub(crate) fn millis(time: std::time::Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
