//! A job goes through its stages in order: its events are numbered without a gap, a stage is started after those before
//! it, succeeds once, and only by a report on its last attempt.

use std::collections::{BTreeMap, BTreeSet};

use solehold_orchestrator::model::{
    job::{EventKind, JobEvent},
    task::TaskId,
};

use super::Invariant;
use crate::{
    chronicle::{Happening, Record},
    tables::stages_before,
};

#[derive(Default)]
struct Progress {
    revision: i64,
    /// The last attempt of each stage that was sent.
    attempts: BTreeMap<String, u32>,
    succeeded: BTreeSet<String>,
}

#[derive(Default)]
pub struct JobsInOrder {
    jobs: BTreeMap<String, Progress>,
    /// The last task of which success was reported.
    reported: Option<TaskId>,
}

impl JobsInOrder {
    fn event(&mut self, event: &JobEvent) -> Result<(), String> {
        let job = self.jobs.entry(event.job_id.clone()).or_default();
        let id = &event.job_id;
        if event.revision != job.revision + 1 {
            return Err(format!("event {} of {id} follows event {}", event.revision, job.revision));
        }
        job.revision = event.revision;
        let (EventKind::StageSucceeded, Some(stage)) = (event.kind, &event.stage) else { return Ok(()) };
        let attempt = job.attempts.get(stage).copied().unwrap_or_default();
        let task = TaskId { job: id.clone(), stage: stage.clone(), attempt };
        if self.reported.as_ref() != Some(&task) {
            let reported = self.reported.as_ref().map(ToString::to_string).unwrap_or_default();
            return Err(format!("{stage} of {id} succeeds by a report on task {reported}, not {task}"));
        }
        if !job.succeeded.insert(stage.clone()) {
            return Err(format!("{stage} of {id} succeeds once more"));
        }
        Ok(())
    }
}

impl Invariant for JobsInOrder {
    fn name(&self) -> &'static str {
        "a stage of a job begins after those before it, and succeeds once, by its last attempt"
    }

    fn see(&mut self, record: &Record) -> Result<(), String> {
        match &record.what {
            Happening::Job(event) => self.event(event),
            Happening::Report(task, has_succeeded) => {
                self.reported = has_succeeded.then(|| task.clone());
                Ok(())
            }
            Happening::Task(task) => {
                let job = self.jobs.entry(task.job.clone()).or_default();
                job.attempts.insert(task.stage.clone(), task.attempt);
                let missing =
                    stages_before(&task.stage).iter().find(|stage| !job.succeeded.contains(**stage));
                match missing {
                    Some(stage) => Err(format!("{task} is sent, and {stage} has not succeeded")),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}
