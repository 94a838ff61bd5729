//! Tasks, what was reported of them, and Celery's workers.

use std::{
    process::Command,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use async_trait::async_trait;
use serde_json::Value;
use solehold_orchestrator::{
    dispatch::{Dispatch, DispatchError, Reports},
    model::{
        pipeline::{DispatchKind, StagePlan},
        task::{Report, ReportKind, Task, TaskId},
    },
};
use solehold_testkit::{Program, package_file, python, wait_for};
use tokio::task::JoinSet;

/// Long enough for anything that a busy machine does.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub fn id(job: &str, stage: &str, attempt: u32) -> TaskId {
    TaskId { job: job.to_owned(), stage: stage.to_owned(), attempt }
}

pub fn task(id: TaskId, name: &str, input: Value) -> Task {
    let name = name.to_owned();
    let key = "acme:final".to_owned();
    Task { id, name, queue: None, input, arguments: None, key, run_timeout: PATIENCE }
}

/// A stage whose tasks have this name, and this much time.
pub fn stage(name: &str, task: &str, timeout: Duration) -> StagePlan {
    StagePlan {
        name: name.to_owned(),
        after: Vec::new(),
        task: task.to_owned(),
        dispatch: DispatchKind::Celery,
        queue: None,
        queue_timeout: timeout,
        run_timeout: timeout,
        retries: 0,
        args: None,
        kwargs: None,
    }
}

/// Where the database would be: it keeps every report, and refuses them if it is told to.
#[derive(Debug, Clone, Default)]
pub struct Kept {
    reports: Arc<Mutex<Vec<Report>>>,
    is_away: Arc<AtomicBool>,
    refused: Arc<Mutex<usize>>,
}

#[async_trait]
impl Reports for Kept {
    async fn deliver(&self, reports: Vec<Report>) -> Result<(), solehold_sql::Error> {
        if self.is_away.load(Ordering::SeqCst) {
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) += reports.len();
            return Err(solehold_sql::Error::Connection("the database is away".to_owned()));
        }
        self.reports.lock().unwrap_or_else(PoisonError::into_inner).extend(reports);
        Ok(())
    }
}

impl Kept {
    pub fn go_away(&self) {
        self.is_away.store(true, Ordering::SeqCst);
    }

    pub fn come_back(&self) {
        self.is_away.store(false, Ordering::SeqCst);
    }

    pub fn refused(&self) -> usize {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was said of a task, in order.
    pub fn of(&self, id: &TaskId) -> Vec<ReportKind> {
        let reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        reports.iter().filter(|report| report.id == *id).map(|report| report.kind.clone()).collect()
    }

    /// What a task came to, each time that it was said.
    pub fn ends(&self, id: &TaskId) -> Vec<ReportKind> {
        let is_end =
            |kind: &ReportKind| matches!(kind, ReportKind::Succeeded { .. } | ReportKind::Failed { .. });
        self.of(id).into_iter().filter(is_end).collect()
    }

    /// Waits for what a task comes to.
    pub async fn end(&self, id: &TaskId) -> Result<ReportKind> {
        wait_for(&format!("{id} to end"), PATIENCE, async || self.ends(id).pop()).await
    }

    pub async fn said(&self, id: &TaskId, kind: &ReportKind) -> Result<()> {
        wait_for(&format!("{kind:?} of {id}"), PATIENCE, async || self.of(id).contains(kind)).await
    }
}

/// Delivers reports until it is dropped, and begins again when the broker was away, as the orchestrator does.
pub fn deliver(from: &Arc<impl Dispatch + 'static>, to: &Kept) -> JoinSet<()> {
    let from = Arc::clone(from);
    let to = to.clone();
    let mut task = JoinSet::new();
    task.spawn(async move {
        let mut pace = tokio::time::interval(Duration::from_millis(50));
        loop {
            pace.tick().await;
            println!("reports ended: {}", from.reports(&to).await);
        }
    });
    task
}

/// Sends a task until it is taken over.
pub async fn send(by: &impl Dispatch, task: &Task) -> Result<()> {
    wait_for(&format!("{} to be sent", task.id), PATIENCE, async || {
        let sent = by.send(std::slice::from_ref(task)).await;
        sent.iter().all(Result::is_ok)
    })
    .await
}

pub async fn refusal(by: &impl Dispatch, task: &Task) -> Option<DispatchError> {
    by.send(std::slice::from_ref(task)).await.pop().and_then(Result::err)
}

/// A Celery worker, and how it is started.
pub struct Worker {
    pub broker: String,
    pub name: &'static str,
    pub pool: &'static str,
    pub transport_options: Value,
    pub settings: Value,
}

impl Worker {
    pub fn new(broker: &str, name: &'static str) -> Self {
        let broker = broker.to_owned();
        let none = || Value::Object(serde_json::Map::new());
        Self { broker, name, pool: "solo", transport_options: none(), settings: none() }
    }

    pub async fn start(&self) -> Result<Program> {
        let folder = package_file("tests/dispatch");
        let mut command = Command::new(python("peers")?);
        command.args(["-m", "celery", "--workdir"]).arg(folder);
        command.args(["-A", "worker", "worker", "--concurrency", "1", "--loglevel", "info"]);
        command.args(["--pool", self.pool, "--hostname", &format!("{}@test", self.name)]);
        command.env("BROKER", &self.broker).env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("TRANSPORT_OPTIONS", self.transport_options.to_string());
        command.env("SETTINGS", self.settings.to_string());
        Program::start("celery", &command, "ready ").await
    }
}
