//! An orchestrator's heart on a real PostgreSQL, without Kafka: messages and tenures are made up here.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use deadpool_postgres::{Manager, Pool, Runtime};
use serde_json::{Value, json};
use solehold_kafka::{Done, Failure, Handler, Message};
use solehold_orchestrator::{
    Mailbox, Orchestrator, Parts,
    dispatch::{Dispatch, DispatchError, Finding, Reports},
    model::{
        command::{Command, Mapping, Place},
        job::{Job, JobState},
        pipeline::{DispatchKind, Pipeline, StagePlan},
        task::{Report, ReportKind, Task, TaskId},
    },
    publish::{Outgoing, Publish},
    store::{Prepared, Store},
};
use solehold_sql::partitions::{Partition, Raised, Standing, Tenure};
use solehold_testkit::{Postgres, wait_for};
use tokio::sync::watch;
use tokio_postgres::NoTls;

pub const PATIENCE: Duration = Duration::from_secs(60);
pub const HOUR: Duration = Duration::from_secs(3_600);
pub const GROUP: &str = "orchestrators";
pub const TOPIC: &str = "jobs.commands";

/// Takes tasks, and keeps them. Those of `refuses` are refused; while it is `down`, nothing arrives.
#[derive(Default)]
pub struct Workers {
    pub taken: Mutex<Vec<Task>>,
    pub revoked: Mutex<Vec<TaskId>>,
    pub refuses: Mutex<HashSet<String>>,
    pub is_down: watch::Sender<bool>,
    /// While it is set, workers do not answer requests to drop a task.
    pub revokes_hang: watch::Sender<bool>,
}

#[async_trait]
impl Dispatch for Workers {
    async fn send(&self, tasks: &[Task]) -> Vec<Result<(), DispatchError>> {
        let send = |task: &Task| {
            if *self.is_down.borrow() {
                return Err(DispatchError::Unreachable("the broker is away".to_owned()));
            }
            if self.refuses.lock().unwrap().contains(&task.id.stage) {
                return Err(DispatchError::Refused("no such queue".to_owned()));
            }
            self.taken.lock().unwrap().push(task.clone());
            Ok(())
        };
        tasks.iter().map(send).collect()
    }

    async fn revoke(&self, task: &TaskId) {
        let _ = self.revokes_hang.subscribe().wait_for(|hang| !hang).await;
        self.revoked.lock().unwrap().push(task.clone());
    }

    async fn reports(&self, _to: &dyn Reports) -> DispatchError {
        std::future::pending().await
    }

    async fn check(&self, _stages: &[StagePlan]) -> Result<Vec<Finding>, DispatchError> {
        Ok(Vec::new())
    }
}

impl Workers {
    pub fn taken(&self) -> Vec<TaskId> {
        self.taken.lock().unwrap().iter().map(|task| task.id.clone()).collect()
    }

    pub fn took(&self, job: &str) -> Vec<(String, u32)> {
        let of_job = self.taken().into_iter().filter(|task| task.job == job);
        of_job.map(|task| (task.stage, task.attempt)).collect()
    }
}

/// Keeps what is published.
#[derive(Default)]
pub struct Topics {
    pub published: Mutex<Vec<(String, Outgoing)>>,
}

#[async_trait]
impl Publish for Topics {
    async fn publish(&self, topic: &str, messages: &[Outgoing]) -> Vec<Result<(), DispatchError>> {
        let mut published = self.published.lock().unwrap();
        published.extend(messages.iter().map(|message| (topic.to_owned(), message.clone())));
        messages.iter().map(|_| Ok(())).collect()
    }

    fn has_headers(&self) -> bool {
        true
    }
}

impl Topics {
    /// The revisions of a job's events, in the order in which they were published.
    pub fn revisions(&self, job: &str) -> Vec<i64> {
        let published = self.published.lock().unwrap();
        let events = published.iter().filter(|(topic, _)| topic == "events");
        let events = events.map(|(_, message)| serde_json::from_slice::<Value>(&message.payload).unwrap());
        events
            .filter(|event| event["job_id"] == job)
            .map(|event| event["revision"].as_i64().unwrap())
            .collect()
    }
}

/// An orchestrator's heart.
pub struct Kit {
    pub jobs: Orchestrator,
    pub workers: Arc<Workers>,
    pub topics: Arc<Topics>,
    next_offsets: Mutex<BTreeMap<i32, i64>>,
}

pub fn stage(name: &str, after: &[&str]) -> StagePlan {
    StagePlan {
        name: name.to_owned(),
        after: after.iter().map(|name| (*name).to_owned()).collect(),
        task: format!("video.{name}"),
        dispatch: DispatchKind::Celery,
        queue: None,
        queue_timeout: Duration::from_secs(600),
        run_timeout: Duration::from_secs(600),
        retries: 2,
        args: None,
        kwargs: None,
    }
}

/// Commands with two labels, of which their key is made.
fn labelled() -> Mapping {
    let label = |name: &str| (name.to_owned(), Place { path: name.parse().unwrap(), default: None });
    Mapping {
        labels: [label("organization_id"), label("match_id")].into(),
        key: Some("{labels.organization_id}:{labels.match_id}".parse().unwrap()),
        ..Mapping::default()
    }
}

pub fn pool(url: &str) -> Pool {
    let manager = Manager::new(url.parse().unwrap(), NoTls);
    Pool::builder(manager).max_size(12).runtime(Runtime::Tokio1).build().unwrap()
}

impl Kit {
    /// decode, then detect.
    pub async fn new() -> Self {
        Self::with(vec![stage("decode", &[]), stage("detect", &["decode"])]).await
    }

    pub async fn with(stages: Vec<StagePlan>) -> Self {
        Self::with_retention(stages, HOUR, HOUR).await
    }

    pub async fn with_retention(
        stages: Vec<StagePlan>,
        inbox_retention: Duration,
        job_retention: Duration,
    ) -> Self {
        let url = Postgres::shared().await.unwrap().create_database("jobs").await.unwrap();
        let store = Arc::new(Store::new(pool(&url), "orchestrator").unwrap());
        assert_eq!(store.prepare(GROUP, TOPIC).await.unwrap(), Prepared::Ready);
        let workers = Arc::new(Workers::default());
        let topics = Arc::new(Topics::default());
        let parts = Parts {
            mailbox: Arc::new(Mailbox::new(store)),
            commands: Arc::new(labelled()),
            pipeline: Arc::new(Pipeline::new(stages).unwrap()),
            dispatchers: vec![(DispatchKind::Celery, workers.clone())],
            publisher: topics.clone(),
            events_topic: Some("events".to_owned()),
            dead_letter_topic: Some("letters".to_owned()),
            inbox_retention,
            job_retention,
        };
        Self { jobs: Orchestrator::new(parts), workers, topics, next_offsets: Mutex::default() }
    }

    /// The same database and workers with another process: nothing of the first one's memory.
    pub fn restarted(&self, parts: impl FnOnce(Parts) -> Parts) -> Self {
        let next_offsets = Mutex::new(self.next_offsets.lock().unwrap().clone());
        let workers = self.workers.clone();
        let topics = self.topics.clone();
        let mailbox = Arc::new(Mailbox::new(self.jobs.store().clone()));
        let parts = parts(Parts { mailbox, ..self.jobs.parts.clone() });
        Self { jobs: Orchestrator::new(parts), workers, topics, next_offsets }
    }

    pub fn store(&self) -> &Store {
        self.jobs.store()
    }

    /// Takes a partition, as a new owner.
    pub async fn tenure(&self, number: i32) -> Tenure {
        let partition = Partition { group: GROUP.to_owned(), topic: TOPIC.to_owned(), number };
        let client = self.store().pool.get().await.unwrap();
        let row = self.store().partitions.look(&**client, &partition).await.unwrap();
        let raised = self.store().partitions.raise_from(&**client, &partition, row.epoch, "test", 0).await;
        let Raised::Ours(tenure) = raised.unwrap() else { panic!("another owner came between") };
        tenure
    }

    /// A message at the partition's next offset.
    pub fn message(&self, tenure: &Tenure, key: &str, payload: impl ToString) -> Message {
        let number = tenure.partition.number;
        let mut next_offsets = self.next_offsets.lock().unwrap();
        let next = next_offsets.entry(number).or_default();
        *next += 1;
        Message {
            topic: TOPIC.into(),
            partition: number,
            offset: *next - 1,
            key: Some(key.to_owned().into_bytes().into()),
            payload: Some(payload.to_string().into_bytes().into()),
            headers: Vec::new(),
            timestamp_ms: None,
        }
    }

    pub fn command(&self, tenure: &Tenure, kind: &str, job: &str) -> Message {
        self.command_of(tenure, kind, job, &format!("m-{job}"))
    }

    pub fn command_of(&self, tenure: &Tenure, kind: &str, job: &str, of: &str) -> Message {
        let payload = json!({
            "job_id": job, "organization_id": "org", "match_id": of, "type": kind, "input": {"video": job},
        });
        self.message(tenure, &format!("org:{of}"), payload)
    }

    async fn worked(&self, messages: &[Message]) -> Vec<Done<Command>> {
        let mut done = Vec::new();
        for message in messages {
            let effect: Result<Command, Failure> = self.jobs.work(message).await;
            done.push(Done { message: message.clone(), effect });
        }
        done
    }

    /// Handles messages as a consumer does, in one transaction. Not committed if `crash`.
    pub async fn handle(&self, tenure: &Tenure, messages: &[Message], crash: bool) -> Standing {
        let done = self.worked(messages).await;
        let mut client = self.store().pool.get().await.unwrap();
        let tx = client.transaction().await.unwrap();
        let next = messages.iter().map(|message| message.offset + 1).max().unwrap_or_default();
        let standing = self.store().partitions.advance(&*tx, tenure, next, None).await.unwrap();
        if standing == Standing::Fenced {
            return standing;
        }
        let tally = self.jobs.commit(&tx, tenure, &done).await.unwrap();
        if crash {
            tx.rollback().await.unwrap();
            return standing;
        }
        tx.commit().await.unwrap();
        self.jobs.committed(tenure, tally);
        standing
    }

    pub async fn take(&self, tenure: &Tenure, messages: &[Message]) {
        assert_eq!(self.handle(tenure, messages, false).await, Standing::Ours);
    }

    /// Attends to a partition until the guard is dropped.
    pub fn attend(&self, tenure: &Tenure) -> Attending {
        let (leave, leaving) = watch::channel(false);
        let jobs = self.jobs.clone();
        let tenure = tenure.clone();
        let task = tokio::spawn(async move { jobs.attend(tenure, leaving).await });
        Attending { leave, task }
    }

    pub async fn report(&self, job: &str, stage: &str, attempt: u32, kind: ReportKind) {
        let id = TaskId { job: job.to_owned(), stage: stage.to_owned(), attempt };
        self.jobs.mailbox().deliver(vec![Report { id, kind }]).await.unwrap();
    }

    pub async fn succeed(&self, job: &str, stage: &str, attempt: u32) {
        self.report(job, stage, attempt, ReportKind::Succeeded { result: json!({ "by": attempt }) }).await;
    }

    pub async fn job(&self, id: &str) -> Job {
        self.store().job(id).await.unwrap().unwrap_or_else(|| panic!("no job {id}")).0
    }

    pub async fn job_when(&self, id: &str, is: impl Fn(&Job) -> bool) -> Job {
        let look = async || Some(self.store().job(id).await.unwrap()?.0).filter(|job| is(job));
        wait_for("the job to come so far", PATIENCE, look).await.unwrap()
    }

    pub async fn state_when(&self, id: &str, state: JobState) -> Job {
        self.job_when(id, |job| job.state == state).await
    }

    /// Waits until workers have taken this attempt.
    pub async fn taken_when(&self, job: &str, stage: &str, attempt: u32) {
        let wanted = (stage.to_owned(), attempt);
        let look = async || self.workers.took(job).contains(&wanted).then_some(());
        wait_for("the task to be sent", PATIENCE, look).await.unwrap();
    }

    pub async fn execute(&self, sql: &str) {
        self.store().pool.get().await.unwrap().batch_execute(sql).await.unwrap();
    }

    pub async fn count(&self, what: &str) -> i64 {
        self.count_of(&format!("orchestrator.{what}")).await
    }

    pub async fn count_of(&self, what: &str) -> i64 {
        let client = self.store().pool.get().await.unwrap();
        client.query_one(&format!("SELECT count(*) FROM {what}"), &[]).await.unwrap().get(0)
    }

    pub async fn count_when(&self, what: &str, count: i64) {
        let look = async || (self.count(what).await == count).then_some(());
        wait_for(what, PATIENCE, look).await.unwrap();
    }
}

/// A partition that is attended to.
pub struct Attending {
    leave: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
}

impl Attending {
    /// Lets go of the partition, and waits until nothing more is done.
    pub async fn leave(self) {
        self.leave.send_replace(true);
        self.task.await.unwrap();
    }

    /// Waits until it ends by itself.
    pub async fn ended(self) {
        tokio::time::timeout(PATIENCE, self.task).await.expect("it goes on").unwrap();
    }

    /// As when the process is killed.
    pub fn kill(self) {
        self.task.abort();
    }
}
