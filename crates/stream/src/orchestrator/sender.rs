//! Sends the outbox: each channel on its own, the rows of one job one after the other, those of different jobs at the
//! same time. A row is deleted, under the epoch, when it is confirmed; what is not known to have arrived is sent again.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use super::{
    ReportKind, Task, TaskId,
    attend::{Attendance, Next},
    dispatch::{Dispatch, DispatchError},
    job::{Input, Job},
    jobs::{Jobs, StepError},
    limits::OUTBOX_BATCH,
    publish::{Outgoing, Publish},
    store::{EVENTS, LETTERS, LetterId, OutboxKind, OutboxRow},
};

/// One way out.
pub(super) enum Channel {
    /// To workers.
    Workers(&'static str, Arc<dyn Dispatch>),
    /// Events, or copies of letters, to a topic.
    Topic(&'static str, String, Arc<dyn Publish>),
}

/// What became of rows.
#[derive(Default)]
struct Sent {
    /// To be deleted.
    done: Vec<i64>,
    /// Attempts that nobody takes.
    refused: Vec<(TaskId, String)>,
    /// Why the rest is still there.
    stuck: Option<String>,
}

impl Channel {
    /// All of them.
    pub fn of(jobs: &Jobs) -> Vec<Self> {
        let parts = &jobs.parts;
        let workers = parts.dispatchers.iter().map(|(kind, way)| Self::Workers(kind.name(), way.clone()));
        let topics = [(EVENTS, &parts.events_topic), (LETTERS, &parts.dead_letter_topic)];
        let topics = topics
            .into_iter()
            .filter_map(|(name, topic)| Some(Self::Topic(name, topic.clone()?, parts.publisher.clone())));
        workers.chain(topics).collect()
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Workers(name, _) | Self::Topic(name, ..) => name,
        }
    }

    /// Sends the first rows of the channel.
    pub async fn send(&self, attendance: &Attendance<'_>) -> Result<Next, StepError> {
        let (jobs, partition) = (attendance.jobs, attendance.partition());
        let store = jobs.store();
        let client = store.pool().get().await?;
        let rows = store.outbox(&client, partition, self.name(), OUTBOX_BATCH).await?;
        drop(client);
        if rows.is_empty() {
            return Ok(Next::Idle);
        }
        attendance.still_ours().await?;
        let count = rows.len();
        let sent = self.send_rows(attendance, rows).await?;
        let (done, refused) = (&sent.done, &sent.refused);
        if !done.is_empty() {
            let delete = async |batch: &mut super::store::Batch<'_>, client: &tokio_postgres::Client| {
                store.delete_outbox(client, attendance.tenure, self.name(), done).await?;
                batch.load(refused.iter().map(|(task, _)| task.job.as_str())).await?;
                for (task, reason) in refused {
                    let kind = ReportKind::Failed { reason: format!("it could not be dispatched: {reason}") };
                    let input = Input::Report { stage: task.stage.clone(), attempt: task.attempt, kind };
                    if let Err(refusal) = batch.apply(&task.job, &input) {
                        tracing::debug!(job = task.job, %refusal, "a refusal of a task was refused");
                    }
                }
                Ok(())
            };
            jobs.under_epoch(attendance.tenure, delete).await?;
        }
        if let Some(why) = sent.stuck {
            tracing::warn!(
                partition,
                channel = self.name(),
                left = count - sent.done.len(),
                why,
                "the outbox waits"
            );
            return Ok(Next::Pause);
        }
        Ok(Next::More)
    }

    /// Sends rows in waves: the first of each job, then the second, and so on.
    async fn send_rows(
        &self,
        attendance: &Attendance<'_>,
        rows: Vec<(i64, OutboxRow)>,
    ) -> Result<Sent, StepError> {
        let known = self.jobs_of(attendance, &rows).await?;
        let mut lines: BTreeMap<String, VecDeque<(i64, OutboxRow)>> = BTreeMap::new();
        for (sequence, row) in rows {
            lines.entry(row.job_id.clone()).or_default().push_back((sequence, row));
        }
        let mut sent = Sent::default();
        while !lines.is_empty() {
            let wave: Vec<(i64, OutboxRow)> = lines.values_mut().filter_map(VecDeque::pop_front).collect();
            let failed = self.send_wave(attendance, &known, wave, &mut sent).await?;
            // What comes after a row that was not sent waits for it.
            lines.retain(|job, line| !line.is_empty() && !failed.contains(job));
        }
        Ok(sent)
    }

    async fn jobs_of(
        &self,
        attendance: &Attendance<'_>,
        rows: &[(i64, OutboxRow)],
    ) -> Result<HashMap<String, Job>, StepError> {
        let sends = rows.iter().filter(|(_, row)| matches!(row.kind, OutboxKind::Send(_)));
        let ids: HashSet<&str> = sends.map(|(_, row)| row.job_id.as_str()).collect();
        let ids: Vec<&str> = ids.into_iter().collect();
        let jobs = attendance.jobs.store().jobs(&ids).await?;
        Ok(jobs.into_iter().map(|job| (job.id.clone(), job)).collect())
    }

    /// Sends rows of different jobs, and returns the jobs whose row is still there.
    async fn send_wave(
        &self,
        attendance: &Attendance<'_>,
        known: &HashMap<String, Job>,
        wave: Vec<(i64, OutboxRow)>,
        sent: &mut Sent,
    ) -> Result<HashSet<String>, StepError> {
        let results = match self {
            Self::Workers(_, way) => to_workers(way.as_ref(), known, &wave).await,
            Self::Topic(_, topic, publisher) => {
                to_topic(attendance, publisher.as_ref(), topic, &wave).await?
            }
        };
        let mut failed = HashSet::new();
        for ((sequence, row), result) in wave.into_iter().zip(results) {
            match result {
                Ok(()) => sent.done.push(sequence),
                Err(DispatchError::Refused(reason)) => {
                    tracing::warn!(job = row.job_id, channel = self.name(), reason, "it was refused");
                    sent.done.push(sequence);
                    if let OutboxKind::Send(task) = row.kind {
                        sent.refused.push((task, reason));
                    }
                }
                Err(DispatchError::Unreachable(why)) => {
                    sent.stuck = Some(why);
                    failed.insert(row.job_id);
                }
            }
        }
        Ok(failed)
    }
}

type Results = Vec<Result<(), DispatchError>>;

/// Tasks whose attempt is no longer the present one are not sent any more.
async fn to_workers(way: &dyn Dispatch, known: &HashMap<String, Job>, wave: &[(i64, OutboxRow)]) -> Results {
    let mut results: Vec<Option<Result<(), DispatchError>>> = Vec::with_capacity(wave.len());
    let mut tasks: Vec<Task> = Vec::new();
    for (_, row) in wave {
        let result = match &row.kind {
            OutboxKind::Send(id) => {
                match known.get(&id.job).and_then(|job| job.task(&id.stage, id.attempt)) {
                    Some(task) => {
                        tasks.push(task);
                        None
                    }
                    None => Some(Ok(())),
                }
            }
            OutboxKind::Revoke(id) => {
                way.revoke(id).await;
                Some(Ok(()))
            }
            OutboxKind::Event(_) | OutboxKind::Letter { .. } => Some(Ok(())),
        };
        results.push(result);
    }
    let mut of_tasks = if tasks.is_empty() { Vec::new() } else { way.send(&tasks).await }.into_iter();
    let missing = || Err(DispatchError::Unreachable("the dispatcher gave no answer".to_owned()));
    results
        .into_iter()
        .map(|result| result.unwrap_or_else(|| of_tasks.next().unwrap_or_else(missing)))
        .collect()
}

async fn to_topic(
    attendance: &Attendance<'_>,
    publisher: &dyn Publish,
    topic: &str,
    wave: &[(i64, OutboxRow)],
) -> Result<Results, StepError> {
    let store = attendance.jobs.store();
    let (partition, source) = (attendance.partition(), &attendance.tenure.partition.topic);
    let mut messages: Vec<Option<Outgoing>> = Vec::with_capacity(wave.len());
    for (_, row) in wave {
        messages.push(match &row.kind {
            OutboxKind::Event(event) => {
                let part = |name: &str| event[name].as_str().unwrap_or_default();
                let key = super::job::key(part("organization_id"), part("match_id"));
                Some(Outgoing { key, payload: event.to_string().into_bytes(), headers: Vec::new() })
            }
            OutboxKind::Letter { position, generation } => {
                let client = store.pool().get().await?;
                let id = LetterId { partition, generation: *generation, position: *position };
                let letter = store.letter(&client, id).await?;
                letter.map(|letter| Outgoing::of_letter(&letter, source, publisher.has_headers()))
            }
            OutboxKind::Send(_) | OutboxKind::Revoke(_) => None,
        });
    }
    let some: Vec<Outgoing> = messages.iter().flatten().cloned().collect();
    let mut published =
        if some.is_empty() { Vec::new() } else { publisher.publish(topic, &some).await }.into_iter();
    let missing = || Err(DispatchError::Unreachable("no confirmation".to_owned()));
    let result = |message: Option<Outgoing>| match message {
        Some(_) => published.next().unwrap_or_else(missing),
        None => Ok(()),
    };
    Ok(messages.into_iter().map(result).collect())
}
