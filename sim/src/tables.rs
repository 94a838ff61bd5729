//! The tables of an application that consumes a partition: its row, with the epoch, and jobs, by the real machine
//! (`solehold_orchestrator::model::job`). And the workers of the jobs, who report as workers do: late, twice, in any
//! order, or never.
//!
//! Transactions wait for the lock of the partition's row, and the database ends one that nothing is heard of.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use solehold_client::clock::{Clock, VirtualClock};
use solehold_kafka::Message;
use solehold_orchestrator::model::{
    job::{Effect, Input, Job, NewJob, decide},
    pipeline::{DispatchKind, Pipeline, StagePlan},
    task::{Report, ReportKind, TaskId},
};
use solehold_sql::partitions::{Partition, PartitionRow, Raised, Standing, Tenure};
use tokio::time::timeout;

use crate::{
    chance::SeededChance,
    chronicle::{Chronicle, Happening},
    process::Process,
    virtual_time::pass,
};

/// As `solehold_sql` bounds the pause of a writer.
const WRITER_PAUSE_MAX: Duration = Duration::from_millis(1_500);
/// How long a statement takes, and one that is slow.
const STATEMENT_MS: (u64, u64) = (1, 10);
const SLOW_MS: u64 = 800;
/// How long a worker takes to start, and to work. Some take longer than they may.
const START_MS: (u64, u64) = (10, 1_000);
const WORK_MS: (u64, u64) = (10, 2_000);
/// How late a report may come.
const LATE_MS: (u64, u64) = (1, 6_000);
/// Mail in one transaction.
const MAIL_MAX: usize = 8;

pub fn partition() -> Partition {
    Partition { group: "sim".to_owned(), topic: "jobs".to_owned(), number: 0 }
}

/// The stages of a job, and which ones must succeed before each begins.
const STAGES: [(&str, &[&str]); 3] = [("detect", &[]), ("track", &[]), ("match", &["detect", "track"])];

pub fn stages_before(stage: &str) -> &'static [&'static str] {
    STAGES.iter().find(|(name, _)| *name == stage).map_or(&[], |(_, before)| before)
}

fn pipeline() -> Arc<Pipeline> {
    let stage = |name: &str, after: &[&str]| StagePlan {
        name: name.to_owned(),
        after: after.iter().map(|name| (*name).to_owned()).collect(),
        task: name.to_owned(),
        dispatch: DispatchKind::Http,
        queue: None,
        queue_timeout: Duration::from_millis(800),
        run_timeout: Duration::from_millis(1_500),
        retries: 1,
        args: None,
        kwargs: None,
    };
    let stages = STAGES.iter().map(|(name, after)| stage(name, after)).collect();
    Arc::new(Pipeline::new(stages).expect("a good pipeline"))
}

fn key_of(message: &Message) -> String {
    String::from_utf8_lossy(message.key.as_deref().unwrap_or_default()).into_owned()
}

/// What a transaction does beside moving the position.
pub enum Change {
    /// Messages take effect: by their commands, or as dead letters.
    Messages(Vec<(Message, Outcome)>),
    /// Reports in the mailbox, and stages that take too long.
    Mail,
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Done,
    Dead,
}

struct Rows {
    row: PartitionRow,
    /// The inbox: the messages that have taken effect.
    inbox: BTreeSet<i64>,
    jobs: BTreeMap<String, Job>,
    mailbox: VecDeque<Report>,
}

pub struct Tables {
    clock: Arc<VirtualClock>,
    chronicle: Arc<Chronicle>,
    chance: SeededChance,
    pipeline: Arc<Pipeline>,
    rows: Mutex<Rows>,
    /// The partition's row is locked by one transaction at a time.
    lock: tokio::sync::Mutex<()>,
}

impl Tables {
    pub fn new(clock: Arc<VirtualClock>, chronicle: Arc<Chronicle>, chance: SeededChance) -> Arc<Self> {
        let row =
            PartitionRow { epoch: 0, token: 0, owner: String::new(), next_offset: None, checkpoint: None };
        let rows =
            Mutex::new(Rows { row, inbox: BTreeSet::new(), jobs: BTreeMap::new(), mailbox: VecDeque::new() });
        let lock = tokio::sync::Mutex::default();
        Arc::new(Self { clock, chronicle, chance, pipeline: pipeline(), rows, lock })
    }

    async fn statement(&self) {
        let most = if self.chance.one_in(40) { SLOW_MS } else { STATEMENT_MS.1 };
        pass(self.chance.millis(STATEMENT_MS.0, most)).await;
    }

    pub async fn look(&self) -> PartitionRow {
        self.statement().await;
        let row = self.rows.lock().row.clone();
        self.statement().await;
        row
    }

    /// `UPDATE ... SET epoch = epoch + 1 WHERE epoch = seen`, which waits for the lock of the row.
    pub async fn raise_from(&self, seen: i64, who: &str, member: u64, first: i64) -> Raised {
        self.statement().await;
        let raised = {
            let _locked = self.lock.lock().await;
            let row = &mut self.rows.lock().row;
            if row.epoch == seen {
                row.epoch += 1;
                row.owner = who.to_owned();
                let next_offset = *row.next_offset.get_or_insert(first);
                self.chronicle.note(who, Happening::Raised(member, row.epoch));
                Raised::Ours(Tenure { partition: partition(), epoch: row.epoch, next_offset })
            } else {
                Raised::Overtaken(row.clone())
            }
        };
        self.statement().await;
        raised
    }

    /// One transaction under a tenure: the epoch is checked first. An error means that it was rolled back.
    pub async fn transact(
        self: &Arc<Self>,
        process: &Process,
        tenure: &Tenure,
        next_offset: Option<i64>,
        change: Change,
    ) -> Result<Standing, String> {
        self.statement().await;
        let _locked = self.lock.lock().await;
        if self.rows.lock().row.epoch != tenure.epoch {
            return Ok(Standing::Fenced);
        }
        let statements = async {
            self.statement().await;
            process.running().await;
        };
        if timeout(WRITER_PAUSE_MAX, statements).await.is_err() {
            return Err("the transaction was idle for too long".to_owned());
        }
        let tasks = {
            let rows = &mut *self.rows.lock();
            if let Some(next_offset) = next_offset {
                let kept = rows.row.next_offset.get_or_insert(next_offset);
                *kept = (*kept).max(next_offset);
            }
            self.apply(rows, &process.name, tenure.epoch, change)
        };
        tasks.into_iter().for_each(|task| self.send(task));
        self.statement().await;
        Ok(Standing::Ours)
    }

    /// Applies a change and returns the tasks to be sent.
    fn apply(&self, rows: &mut Rows, who: &str, epoch: i64, change: Change) -> Vec<TaskId> {
        let mut tasks = Vec::new();
        match change {
            Change::Messages(messages) => {
                let is_new = |(message, _): &(Message, Outcome)| rows.inbox.insert(message.offset);
                let messages: Vec<_> = messages.into_iter().filter(is_new).collect();
                let named = messages.iter().map(|(message, _)| (message.offset, key_of(message)));
                let took_effect = named.collect();
                let position = rows.row.next_offset.unwrap_or_default();
                self.chronicle.note(who, Happening::TookEffect { epoch, messages: took_effect, position });
                let done = messages.into_iter().filter(|(_, outcome)| *outcome == Outcome::Done);
                for (message, _) in done {
                    let payload = message.payload.as_deref().unwrap_or_default();
                    let text = String::from_utf8_lossy(payload).into_owned();
                    let Some((command, job)) = text.split_once(' ') else { continue };
                    let input = match command {
                        "cancel" => Input::Cancel,
                        "retry" => Input::Retry,
                        _ => Input::Create(self.new_job(job)),
                    };
                    tasks.extend(self.decide(rows, who, job, &input));
                }
            }
            Change::Mail => {
                let count = rows.mailbox.len().min(MAIL_MAX);
                for Report { id, kind } in rows.mailbox.drain(..count).collect::<Vec<_>>() {
                    let has_succeeded = matches!(kind, ReportKind::Succeeded { .. });
                    self.chronicle.note(who, Happening::Report(id.clone(), has_succeeded));
                    let TaskId { job, stage, attempt } = id;
                    tasks.extend(self.decide(rows, who, &job, &Input::Report { stage, attempt, kind }));
                }
                for (job, stage, attempt) in self.overdue(rows) {
                    tasks.extend(self.decide(rows, who, &job, &Input::Timeout { stage, attempt }));
                }
            }
        }
        tasks
    }

    fn new_job(&self, job: &str) -> NewJob {
        NewJob {
            id: job.to_owned(),
            key: job.to_owned(),
            labels: BTreeMap::new(),
            input: Arc::new(serde_json::Value::Null),
            pipeline: self.pipeline.clone(),
        }
    }

    fn now_ms(&self) -> i64 {
        self.clock.now().as_ms() as i64
    }

    fn overdue(&self, rows: &Rows) -> Vec<(String, String, u32)> {
        let now_ms = self.now_ms();
        let stages = rows.jobs.values().flat_map(|job| job.each_stage().map(move |each| (job, each)));
        let late = stages.filter(|(_, (_, stage))| stage.deadline_ms.is_some_and(|at_ms| at_ms <= now_ms));
        late.map(|(job, (plan, stage))| (job.id.clone(), plan.name.clone(), stage.attempt)).collect()
    }

    fn decide(&self, rows: &mut Rows, who: &str, job: &str, input: &Input) -> Vec<TaskId> {
        // A command for a job that does not exist is a dead letter.
        let Ok(decision) = decide(rows.jobs.get(job).cloned(), input, self.now_ms()) else {
            return Vec::new();
        };
        rows.jobs.insert(job.to_owned(), decision.job);
        let mut tasks = Vec::new();
        for effect in decision.effects {
            match effect {
                Effect::Event(event) => self.chronicle.note(who, Happening::Job(Box::new(event))),
                Effect::Send { task, .. } => {
                    self.chronicle.note(who, Happening::Task(task.clone()));
                    tasks.push(task);
                }
                Effect::Revoke { .. } => {}
            }
        }
        tasks
    }

    /// Gives a task to a worker, or to two: an outbox sends at least once.
    fn send(self: &Arc<Self>, task: TaskId) {
        let count = if self.chance.one_in(8) { 2 } else { 1 };
        for _ in 0..count {
            let tables = self.clone();
            let task = task.clone();
            let chance = self.chance.branch();
            tokio::spawn(async move {
                pass(chance.millis(START_MS.0, START_MS.1)).await;
                tables.report(&chance, &task, ReportKind::Started);
                pass(chance.millis(WORK_MS.0, WORK_MS.1)).await;
                let end = match chance.below(8) {
                    0 => ReportKind::Failed { reason: "it does not work".to_owned() },
                    1 => return,
                    _ => ReportKind::Succeeded { result: serde_json::Value::Null },
                };
                tables.report(&chance, &task, end);
            });
        }
    }

    /// A report arrives in the mailbox, soon or late, once or twice.
    fn report(self: &Arc<Self>, chance: &SeededChance, task: &TaskId, kind: ReportKind) {
        let is_late = chance.one_in(4);
        let count = if chance.one_in(6) { 2 } else { 1 };
        for _ in 0..count {
            let most = if is_late { LATE_MS.1 } else { LATE_MS.0 + 50 };
            let after = chance.millis(LATE_MS.0, most);
            let report = Report { id: task.clone(), kind: kind.clone() };
            let tables = self.clone();
            tokio::spawn(async move {
                pass(after).await;
                tables.rows.lock().mailbox.push_back(report);
            });
        }
    }

    /// Whether there is mail, or a stage takes too long.
    pub fn has_work(&self) -> bool {
        let rows = self.rows.lock();
        !rows.mailbox.is_empty() || !self.overdue(&rows).is_empty()
    }

    /// What is left to do once there are no more messages than this: the first that has not taken effect, or a job.
    pub fn remaining(&self, messages: i64) -> Option<String> {
        let rows = self.rows.lock();
        let position = rows.row.next_offset.unwrap_or_default();
        if position < messages {
            return Some(format!("message {position}"));
        }
        let job = rows.jobs.values().find(|job| job.finished_ms.is_none());
        job.map(|job| job.id.clone())
    }
}
