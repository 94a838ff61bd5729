//! Jobs, letters and marks as JSON.

use serde_json::{Value, json};
use solehold_sql::inbox::{ID_SEPARATOR, ListedMark};

use crate::{
    model::job::Job,
    store::{DeadLetter, JobSummary},
};

/// A time as RFC 3339.
fn time(ms: i64) -> Option<String> {
    jiff::Timestamp::from_millisecond(ms).ok().map(|time| time.to_string())
}

pub fn summary(job: &JobSummary) -> Value {
    json!({
        "job_id": job.id,
        "key": job.key,
        "labels": job.labels,
        "state": job.state,
        "progress": job.progress,
        "reason": job.reason,
        "partition": job.partition,
        "epoch": job.epoch,
        "attempts": job.attempts,
        "created_at": time(job.created_ms),
        "finished_at": job.finished_ms.and_then(time),
    })
}

pub fn job(job: &Job, partition: i32) -> Value {
    let stages: Vec<Value> = job
        .each_stage()
        .map(|(plan, stage)| {
            json!({
                "stage": plan.name,
                "after": plan.after,
                "state": stage.state,
                "progress": stage.progress,
                "attempt": stage.attempt,
                "failures": stage.failures,
                "retries": plan.retries,
                "reason": stage.reason,
                "result": stage.result,
                "task": plan.task,
                "dispatch": plan.dispatch,
                "queue": plan.queue,
                "queued_at": stage.queued_ms.and_then(time),
                "started_at": stage.started_ms.and_then(time),
                "finished_at": stage.finished_ms.and_then(time),
                "deadline": stage.deadline_ms.and_then(time),
            })
        })
        .collect();
    json!({
        "job_id": job.id,
        "key": job.key,
        "labels": job.labels,
        "state": job.state,
        "progress": job.progress(),
        "reason": job.reason,
        "partition": partition,
        "revision": job.revision,
        "created_at": time(job.created_ms),
        "finished_at": job.finished_ms.and_then(time),
        "input": &*job.input,
        "stages": stages,
    })
}

pub fn letter(letter: &DeadLetter) -> Value {
    json!({
        "letter": letter.id.to_string(),
        "key": letter.key,
        "state": letter.state,
        "reason": letter.reason,
        "since": time(letter.at_ms),
        "payload": letter.payload.as_deref().map(String::from_utf8_lossy),
    })
}

pub fn mark(mark: &ListedMark) -> Value {
    let (job, id) = mark.id.split_once(ID_SEPARATOR).unwrap_or((&mark.id, &mark.id));
    json!({
        "job_id": job,
        "id": id,
        "type": mark.command,
        "partition": mark.scope,
        "offset": mark.position,
        "at": time(mark.done_ms),
    })
}
