//! Sends the outbox: each channel on its own, the rows of one job one after the other, those of different jobs at the
//! same time. A row is deleted, under the epoch, when it is confirmed; what is not known to have arrived is sent again,
//! and the rows of other jobs go on meanwhile.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use solehold_clock::BootTime;

use crate::{
    ReportKind, Task, TaskId,
    attend::{Attendance, Next},
    backlog::{Backlog, Part, Span, Tried},
    dispatch::{Dispatch, DispatchError},
    floor::FullReads,
    job::{Input, Job},
    jobs::{Jobs, StepError},
    limits::{OUTBOX_BATCH, OUTBOX_SEARCH_EVERY},
    publish::{Outgoing, Publish},
    revokes::Revokes,
    store::{EVENTS, LETTERS, LetterId, OutboxKind, OutboxRow},
};

/// One way out.
pub(super) enum Channel {
    /// To workers.
    Workers(&'static str, Arc<dyn Dispatch>),
    /// Events, or copies of letters, to a topic.
    Topic(&'static str, String, Arc<dyn Publish>),
}

/// What is remembered of a channel while its partition is ours.
pub(super) struct Sending {
    backlog: Backlog,
    revokes: Revokes,
    searches: FullReads,
}

impl Default for Sending {
    fn default() -> Self {
        Self {
            backlog: Backlog::default(),
            revokes: Revokes::default(),
            searches: FullReads::new(OUTBOX_SEARCH_EVERY),
        }
    }
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

    /// Sends a batch of rows that were not tried yet, and one of those that were left, if it is time for them.
    pub async fn send(&self, attendance: &Attendance<'_>, sending: &mut Sending) -> Result<Next, StepError> {
        self.search(attendance, sending).await?;
        for part in [Part::Fresh, Part::Left] {
            if let Some(span) = sending.backlog.span(part, BootTime::now()) {
                let tried = self.send_span(attendance, sending, span).await?;
                sending.backlog.tried(span, &tried, BootTime::now());
            }
        }
        let backlog = &sending.backlog;
        Ok(if backlog.is_ready() { Next::More } else { backlog.next().map_or(Next::Idle, Next::At) })
    }

    /// Looks for rows where all have been sent: they come from a database that was set back to an earlier state.
    async fn search(&self, attendance: &Attendance<'_>, sending: &mut Sending) -> Result<(), StepError> {
        let began = BootTime::now();
        if !sending.searches.is_due(began) {
            return Ok(());
        }
        let (store, sent) = (attendance.jobs.store(), i64::MIN..sending.backlog.floor());
        let client = store.pool().get().await?;
        let found = store.outbox(&client, attendance.partition(), self.name(), sent, 1).await?;
        sending.searches.made(began, BootTime::now());
        if !found.is_empty() {
            tracing::warn!(
                partition = attendance.partition(),
                channel = self.name(),
                "the outbox was set back"
            );
            sending.backlog = Backlog::default();
        }
        Ok(())
    }

    /// Sends the first rows of a span.
    async fn send_span(
        &self,
        attendance: &Attendance<'_>,
        sending: &mut Sending,
        span: Span,
    ) -> Result<Tried, StepError> {
        let (jobs, partition) = (attendance.jobs, attendance.partition());
        let store = jobs.store();
        let client = store.pool().get().await?;
        let numbers = span.from..span.below;
        let rows = store.outbox(&client, partition, self.name(), numbers, OUTBOX_BATCH).await?;
        drop(client);
        let (last, count) = (rows.last().map(|(sequence, _)| *sequence), rows.len());
        let is_all = count < OUTBOX_BATCH.unsigned_abs() as usize;
        let mut left: BTreeMap<i64, String> =
            (rows.iter()).map(|(sequence, row)| (*sequence, row.job_id.clone())).collect();
        let free = rows.into_iter().filter(|(_, row)| !sending.backlog.holds(span.part, &row.job_id));
        let free: Vec<(i64, OutboxRow)> = free.collect();
        let mut is_stuck = false;
        if !free.is_empty() {
            attendance.still_ours().await?;
            let sent = self.send_rows(attendance, &mut sending.revokes, free).await?;
            self.note_sent(attendance, &sent).await?;
            is_stuck = sent.done.is_empty() && sent.stuck.is_some();
            sent.done.iter().for_each(|sequence| drop(left.remove(sequence)));
            if let Some(why) = sent.stuck {
                tracing::warn!(partition, channel = self.name(), left = left.len(), why, "the outbox waits");
            }
        }
        Ok(Tried { last, is_all, left: left.into_iter().collect(), is_stuck })
    }

    /// Deletes rows that were sent; attempts that nobody takes have failed.
    async fn note_sent(&self, attendance: &Attendance<'_>, sent: &Sent) -> Result<(), StepError> {
        let (store, done, refused) = (attendance.jobs.store(), &sent.done, &sent.refused);
        if done.is_empty() {
            return Ok(());
        }
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
        attendance.jobs.under_epoch(attendance.tenure, delete).await
    }

    /// Sends rows in waves: the first of each job, then the second, and so on.
    async fn send_rows(
        &self,
        attendance: &Attendance<'_>,
        revokes: &mut Revokes,
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
            let results = match self {
                Self::Workers(_, way) => to_workers(way, revokes, &known, &wave).await,
                Self::Topic(_, topic, publisher) => {
                    to_topic(attendance, publisher.as_ref(), topic, &wave).await?
                }
            };
            let failed = self.judge(wave, results, &mut sent);
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

    /// Takes note of what became of rows of different jobs, and returns the jobs whose row is still there.
    fn judge(&self, wave: Vec<(i64, OutboxRow)>, results: Results, sent: &mut Sent) -> HashSet<String> {
        let mut failed = HashSet::new();
        for ((sequence, row), result) in wave.into_iter().zip(results) {
            match result {
                Some(Ok(())) => sent.done.push(sequence),
                Some(Err(DispatchError::Refused(reason))) => {
                    tracing::warn!(job = row.job_id, channel = self.name(), reason, "it was refused");
                    sent.done.push(sequence);
                    if let OutboxKind::Send(task) = row.kind {
                        sent.refused.push((task, reason));
                    }
                }
                Some(Err(DispatchError::Unreachable(why))) => {
                    sent.stuck = Some(why);
                    failed.insert(row.job_id);
                }
                None => drop(failed.insert(row.job_id)),
            }
        }
        failed
    }
}

/// What became of each row; nothing if that is not known yet.
type Results = Vec<Option<Result<(), DispatchError>>>;

/// Tasks whose attempt is no longer the present one are not sent any more. Requests to drop tasks go beside.
async fn to_workers(
    way: &Arc<dyn Dispatch>,
    revokes: &mut Revokes,
    known: &HashMap<String, Job>,
    wave: &[(i64, OutboxRow)],
) -> Results {
    let task_of = |row: &OutboxRow| match &row.kind {
        OutboxKind::Send(id) => known.get(&id.job).and_then(|job| job.task(&id.stage, id.attempt)),
        _ => None,
    };
    let tasks: Vec<Option<Result<Task, String>>> = wave.iter().map(|(_, row)| task_of(row)).collect();
    let to_send: Vec<Task> = tasks.iter().flatten().flatten().cloned().collect();
    let to_revoke = wave.iter().filter_map(|(sequence, row)| match &row.kind {
        OutboxKind::Revoke(id) => Some((*sequence, id.clone())),
        _ => None,
    });
    let send = async { if to_send.is_empty() { Vec::new() } else { way.send(&to_send).await } };
    let (sent, ()) = tokio::join!(send, revokes.ask(way, to_revoke.collect()));
    let mut sent = sent.into_iter();
    let missing = || Err(DispatchError::Unreachable("the dispatcher gave no answer".to_owned()));
    let result = |((sequence, row), task): (&(i64, OutboxRow), _)| match (&row.kind, task) {
        (OutboxKind::Revoke(_), _) => revokes.has_ended(*sequence).then_some(Ok(())),
        (_, Some(Ok(_))) => Some(sent.next().unwrap_or_else(missing)),
        (_, Some(Err(why))) => Some(Err(DispatchError::Refused(why))),
        (_, None) => Some(Ok(())),
    };
    wave.iter().zip(tasks).map(result).collect()
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
                let key = event["key"].as_str().unwrap_or_default().to_owned();
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
        Some(_) => Some(published.next().unwrap_or_else(missing)),
        None => Some(Ok(())),
    };
    Ok(messages.into_iter().map(result).collect())
}
