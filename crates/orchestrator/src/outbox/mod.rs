//! Sends the outbox: each channel separately, the rows of one job one after another, rows of different jobs in
//! parallel.
//!
//! A row is deleted under the epoch once its receiver has confirmed it. A row without a confirmation is sent again,
//! and holds back only later rows of its own job. [`backlog`] decides which rows to read next.

mod backlog;
mod revokes;

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use solehold_clock::BootTime;
use solehold_sql::partitions::Tenure;

use self::{
    backlog::{Backlog, Span, SpanKind, Tried},
    revokes::Revokes,
};
use crate::{
    dispatch::{Dispatch, DispatchError},
    model::{
        job::{ArgumentsError, Input, Job},
        limits::{OUTBOX_BATCH, OUTBOX_SEARCH_EVERY},
        task::{ReportKind, Task, TaskId},
    },
    orchestrator::{Next, Orchestrator, Parts, StepError},
    publish::{Outgoing, Publish},
    store::{DeadLetterId, EVENTS, FullReads, LETTERS, OutboxKind, OutboxRow},
};

/// Where rows of the outbox go.
pub(crate) enum Channel {
    /// Tasks, to workers.
    Workers(&'static str, Arc<dyn Dispatch>),
    /// Events or copies of dead letters, to a topic.
    Topic(&'static str, String, Arc<dyn Publish>),
}

impl Channel {
    pub fn all(parts: &Parts) -> Vec<Self> {
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
}

/// Sends one channel of one partition. What it remembers is lost with the partition: a new owner reads all rows.
pub(crate) struct OutboxSender<'a> {
    orchestrator: &'a Orchestrator,
    tenure: &'a Tenure,
    channel: Channel,
    backlog: Backlog,
    revokes: Revokes,
    searches: FullReads,
}

type Row = (i64, OutboxRow);

/// One result per row; none if the row's request is still under way.
type Results = Vec<Option<Result<(), DispatchError>>>;

#[derive(Default)]
struct Sent {
    /// Rows to delete.
    done: Vec<i64>,
    /// Tasks that were rejected, with the reason: their attempts have failed.
    rejected: Vec<(TaskId, String)>,
    /// Why rows were left.
    failure: Option<String>,
}

impl<'a> OutboxSender<'a> {
    pub fn new(orchestrator: &'a Orchestrator, tenure: &'a Tenure, channel: Channel) -> Self {
        Self {
            orchestrator,
            tenure,
            channel,
            backlog: Backlog::default(),
            revokes: Revokes::default(),
            searches: FullReads::new(OUTBOX_SEARCH_EVERY),
        }
    }

    fn partition(&self) -> i32 {
        self.tenure.partition.number
    }

    /// Sends a batch of rows that were not tried yet, and one of rows that were left, if their time has come.
    pub async fn send(&mut self) -> Result<Next, StepError> {
        self.search().await?;
        for kind in [SpanKind::Fresh, SpanKind::Left] {
            if let Some(span) = self.backlog.span(kind, BootTime::now()) {
                let tried = self.send_span(span).await?;
                self.backlog.tried(span, &tried, BootTime::now());
            }
        }
        if self.backlog.is_ready() {
            return Ok(Next::Now);
        }
        Ok(self.backlog.next().map_or(Next::Idle, Next::At))
    }

    /// Looks for rows below those that have all been sent: a database that was restored from a backup has some.
    async fn search(&mut self) -> Result<(), StepError> {
        let began = BootTime::now();
        if !self.searches.is_due(began) {
            return Ok(());
        }
        let store = self.orchestrator.store();
        let sent = i64::MIN..self.backlog.floor();
        let client = store.pool.get().await?;
        let found = store.outbox(&client, self.partition(), self.channel.name(), sent, 1).await?;
        self.searches.made(began, BootTime::now());
        if !found.is_empty() {
            let channel = self.channel.name();
            tracing::warn!(
                partition = self.partition(),
                channel,
                "outbox has old rows again; reading it from the start"
            );
            self.backlog = Backlog::default();
        }
        Ok(())
    }

    /// Sends the first rows of a span.
    async fn send_span(&mut self, span: Span) -> Result<Tried, StepError> {
        let store = self.orchestrator.store();
        let client = store.pool.get().await?;
        let numbers = span.from..span.below;
        let rows =
            store.outbox(&client, self.partition(), self.channel.name(), numbers, OUTBOX_BATCH).await?;
        drop(client);
        let last = rows.last().map(|(sequence, _)| *sequence);
        let is_all = rows.len() < OUTBOX_BATCH.unsigned_abs() as usize;
        let mut left: BTreeMap<i64, String> =
            rows.iter().map(|(sequence, row)| (*sequence, row.job_id.clone())).collect();
        let free = rows.into_iter().filter(|(_, row)| !self.backlog.holds(span.kind, &row.job_id));
        let free: Vec<Row> = free.collect();
        let mut is_stuck = false;
        if !free.is_empty() {
            self.orchestrator.check_owner(self.tenure).await?;
            let sent = self.send_rows(free).await?;
            self.delete_sent(&sent).await?;
            is_stuck = sent.done.is_empty() && sent.failure.is_some();
            for sequence in &sent.done {
                left.remove(sequence);
            }
            if let Some(error) = sent.failure {
                let channel = self.channel.name();
                let partition = self.partition();
                tracing::warn!(
                    partition,
                    channel,
                    left = left.len(),
                    error,
                    "cannot send outbox rows; retrying"
                );
            }
        }
        Ok(Tried { last, is_all, left: left.into_iter().collect(), is_stuck })
    }

    /// Deletes rows that were sent, and fails the attempts whose tasks were rejected.
    async fn delete_sent(&self, sent: &Sent) -> Result<(), StepError> {
        if sent.done.is_empty() {
            return Ok(());
        }
        let store = self.orchestrator.store();
        self.orchestrator
            .transact(self.tenure, async |batch, client| {
                store.delete_outbox(client, self.tenure, self.channel.name(), &sent.done).await?;
                batch.load(sent.rejected.iter().map(|(task, _)| task.job.as_str())).await?;
                for (task, reason) in &sent.rejected {
                    let kind = ReportKind::Failed { reason: format!("the task was rejected: {reason}") };
                    let input = Input::Report { stage: task.stage.clone(), attempt: task.attempt, kind };
                    if let Err(rejection) = batch.apply(&task.job, &input) {
                        tracing::debug!(%task, %rejection, "rejection of a task had no effect");
                    }
                }
                Ok(())
            })
            .await
    }

    /// Sends rows in waves: the first row of each job, then the second, and so on.
    async fn send_rows(&mut self, rows: Vec<Row>) -> Result<Sent, StepError> {
        let jobs = self.jobs_of(&rows).await?;
        let mut queues: BTreeMap<String, VecDeque<Row>> = BTreeMap::new();
        for (sequence, row) in rows {
            queues.entry(row.job_id.clone()).or_default().push_back((sequence, row));
        }
        let mut sent = Sent::default();
        while !queues.is_empty() {
            let wave: Vec<Row> = queues.values_mut().filter_map(VecDeque::pop_front).collect();
            let results = match &self.channel {
                Channel::Workers(_, way) => to_workers(way, &mut self.revokes, &jobs, &wave).await,
                Channel::Topic(_, topic, publisher) => {
                    self.to_topic(publisher.as_ref(), topic, &wave).await?
                }
            };
            let failed = self.collect(wave, results, &mut sent);
            // Rows behind one that was not sent wait for it.
            queues.retain(|job, queue| !queue.is_empty() && !failed.contains(job));
        }
        Ok(sent)
    }

    async fn jobs_of(&self, rows: &[Row]) -> Result<HashMap<String, Job>, StepError> {
        let sends = rows.iter().filter(|(_, row)| matches!(row.kind, OutboxKind::Send(_)));
        let ids: HashSet<&str> = sends.map(|(_, row)| row.job_id.as_str()).collect();
        let ids: Vec<&str> = ids.into_iter().collect();
        let jobs = self.orchestrator.store().jobs(&ids).await?;
        Ok(jobs.into_iter().map(|job| (job.id.clone(), job)).collect())
    }

    /// Collects the results of a wave, and returns the jobs whose row was not sent.
    fn collect(&self, wave: Vec<Row>, results: Results, sent: &mut Sent) -> HashSet<String> {
        let mut failed = HashSet::new();
        for ((sequence, row), result) in wave.into_iter().zip(results) {
            match result {
                Some(Ok(())) => sent.done.push(sequence),
                Some(Err(DispatchError::Refused(reason))) => {
                    let channel = self.channel.name();
                    tracing::warn!(job = row.job_id, channel, reason, "outbox row rejected; not sent again");
                    sent.done.push(sequence);
                    if let OutboxKind::Send(task) = row.kind {
                        sent.rejected.push((task, reason));
                    }
                }
                Some(Err(DispatchError::Unreachable(error))) => {
                    sent.failure = Some(error);
                    failed.insert(row.job_id);
                }
                None => {
                    failed.insert(row.job_id);
                }
            }
        }
        failed
    }

    async fn to_topic(
        &self,
        publisher: &dyn Publish,
        topic: &str,
        wave: &[Row],
    ) -> Result<Results, StepError> {
        let store = self.orchestrator.store();
        let source = &self.tenure.partition.topic;
        let mut messages: Vec<Option<Outgoing>> = Vec::with_capacity(wave.len());
        for (_, row) in wave {
            messages.push(match &row.kind {
                OutboxKind::Event(event) => {
                    let key = event["key"].as_str().unwrap_or_default().to_owned();
                    Some(Outgoing { key, payload: event.to_string().into_bytes(), headers: Vec::new() })
                }
                OutboxKind::DeadLetter { position, generation } => {
                    let client = store.pool.get().await?;
                    let partition = self.partition();
                    let id = DeadLetterId { partition, generation: *generation, position: *position };
                    let letter = store.dead_letter(&client, id).await?;
                    letter.map(|letter| Outgoing::of_dead_letter(&letter, source, publisher.has_headers()))
                }
                OutboxKind::Send(_) | OutboxKind::Revoke(_) => None,
            });
        }
        let outgoing: Vec<Outgoing> = messages.iter().flatten().cloned().collect();
        let published =
            if outgoing.is_empty() { Vec::new() } else { publisher.publish(topic, &outgoing).await };
        let mut published = published.into_iter();
        let missing = || Err(DispatchError::Unreachable("no confirmation".to_owned()));
        let result = |message: Option<Outgoing>| match message {
            Some(_) => Some(published.next().unwrap_or_else(missing)),
            None => Some(Ok(())),
        };
        Ok(messages.into_iter().map(result).collect())
    }
}

/// Sends tasks, except those of attempts that have been replaced, and requests to revoke tasks in parallel.
async fn to_workers(
    way: &Arc<dyn Dispatch>,
    revokes: &mut Revokes,
    jobs: &HashMap<String, Job>,
    wave: &[Row],
) -> Results {
    let task_of = |row: &OutboxRow| match &row.kind {
        OutboxKind::Send(id) => jobs.get(&id.job).and_then(|job| job.task(&id.stage, id.attempt)),
        _ => None,
    };
    let tasks: Vec<_> = wave.iter().map(|(_, row)| task_of(row)).collect();
    let to_send: Vec<Task> = tasks.iter().flatten().flatten().cloned().collect();
    let to_revoke = wave.iter().filter_map(|(sequence, row)| match &row.kind {
        OutboxKind::Revoke(id) => Some((*sequence, id.clone())),
        _ => None,
    });
    let send = async { if to_send.is_empty() { Vec::new() } else { way.send(&to_send).await } };
    let (sent, ()) = tokio::join!(send, revokes.request(way, to_revoke.collect()));
    let mut sent = sent.into_iter();
    let missing = || Err(DispatchError::Unreachable("the dispatcher returned no result".to_owned()));
    let result =
        |((sequence, row), task): (&Row, Option<Result<Task, ArgumentsError>>)| match (&row.kind, task) {
            (OutboxKind::Revoke(_), _) => revokes.has_ended(*sequence).then_some(Ok(())),
            (_, Some(Ok(_))) => Some(sent.next().unwrap_or_else(missing)),
            (_, Some(Err(error))) => Some(Err(DispatchError::Refused(error.to_string()))),
            (_, None) => Some(Ok(())),
        };
    wave.iter().zip(tasks).map(result).collect()
}
