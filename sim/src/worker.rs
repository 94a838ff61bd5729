//! A simulated worker under a simulated keeper: it works on what it is assigned, says what the protocol asks of it, and
//! is ended at its deadline, whatever becomes of the agent.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use solehold_agent::{
    keep::JobEnd,
    machine::{News, WorkerId},
    worker::{Assignment, FromWorker, ToWorker},
};
use solehold_client::{
    ResourceName,
    clock::{BootTime, Clock},
};
use tokio::sync::{mpsc, watch};

use crate::{
    agent::Inbound,
    chance::SeededChance,
    chronicle::{Chronicle, Happening, Working},
    process::Process,
    sink::{Sink, WRITE_MS},
    virtual_time::pass,
};

/// Messages that wait for a worker.
const MESSAGES_MAX: usize = 64;
/// How often a worker writes and says that it is alive.
const TURN_MS: (u64, u64) = (150, 600);
/// How long a worker takes to start, and to finish with something.
const START_MS: (u64, u64) = (20, 400);
const FINISH_MS: (u64, u64) = (5, 600);
/// How long it takes until nothing is left of a worker that is killed.
const KILL_MS: (u64, u64) = (1, 20);

/// How things stand for a worker, by its agent's word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// It is ended then, unless this moves.
    pub stop_at: BootTime,
    /// It is ended then, whatever moves.
    pub bound: Option<BootTime>,
    /// It is asked to end, and killed after the grace.
    pub stop: Option<Duration>,
}

/// A run of a worker, as its agent sees it.
pub struct Hosted {
    pub run: u32,
    pub standing: watch::Sender<Standing>,
    messages: mpsc::Sender<ToWorker>,
    crash: watch::Sender<bool>,
}

/// What a run of a worker needs.
pub struct Surrounding {
    pub process: Arc<Process>,
    pub chronicle: Arc<Chronicle>,
    pub sink: Arc<Sink>,
    pub inbox: mpsc::Sender<Inbound>,
    pub chance: SeededChance,
}

impl Hosted {
    pub fn start(
        id: WorkerId,
        run: u32,
        standing: Standing,
        given: Vec<Assignment>,
        around: Surrounding,
    ) -> Self {
        let (messages, told) = mpsc::channel(MESSAGES_MAX);
        let standing = watch::Sender::new(standing);
        let crash = watch::Sender::new(false);
        let who = format!("{}/{id}", around.process.name);
        let job = Job { id, run, who, around, works: BTreeMap::new(), standing: standing.subscribe() };
        tokio::spawn(job.keep(given, told, crash.subscribe()));
        Self { run, standing, messages, crash }
    }

    pub fn tell(&self, message: ToWorker) {
        // One that does not read loses messages, as with a socket that is full.
        let _ = self.messages.try_send(message);
    }

    pub fn crash(&self) {
        self.crash.send_replace(true);
    }
}

struct Job {
    id: WorkerId,
    run: u32,
    who: String,
    around: Surrounding,
    /// What it works on, and under which token.
    works: BTreeMap<ResourceName, u64>,
    standing: watch::Receiver<Standing>,
}

impl Job {
    /// The keeper's part: ends the worker in time, and tells the agent when nothing of it is left.
    async fn keep(
        mut self,
        given: Vec<Assignment>,
        told: mpsc::Receiver<ToWorker>,
        mut crash: watch::Receiver<bool>,
    ) {
        self.says(&format!("run {} starts", self.run));
        let process = self.around.process.clone();
        let standing = self.standing.clone();
        let end = tokio::select! {
            biased;
            end = overdue(process.clone(), standing) => end,
            () = process.dead() => JobEnd::Lost(None),
            _ = crash.wait_for(|is_so| *is_so) => JobEnd::Exited(1),
            () = self.work(given, told) => JobEnd::Exited(0),
        };
        if end != JobEnd::Exited(0) {
            let kill = self.around.chance.millis(KILL_MS.0, KILL_MS.1);
            pass(kill).await;
        }
        for (resource, token) in std::mem::take(&mut self.works) {
            self.around.chronicle.ends(&self.who, &resource, token, "it has ended");
        }
        self.says(&format!("run {} ends: {end:?}", self.run));
        self.news(News::Ended(end)).await;
    }

    fn says(&self, what: &str) {
        let what = Happening::Worker(self.id, what.to_owned());
        self.around.chronicle.note(&self.around.process.name, what);
    }

    async fn news(&self, news: News) {
        let _ = self.around.inbox.send(Inbound::Worker(self.id, self.run, news)).await;
    }

    async fn said(&self, said: FromWorker) {
        self.news(News::Said(said)).await;
    }

    /// The worker's part; it returns when it was asked to end, and has.
    async fn work(&mut self, given: Vec<Assignment>, mut told: mpsc::Receiver<ToWorker>) {
        let start = self.around.chance.millis(START_MS.0, START_MS.1);
        pass(start).await;
        self.news(News::Connected).await;
        self.said(FromWorker::Ready {}).await;
        given.into_iter().for_each(|assignment| self.begin(&assignment));
        let mut standing = self.standing.clone();
        loop {
            let turn = self.around.chance.millis(TURN_MS.0, TURN_MS.1);
            tokio::select! {
                biased;
                () = is_asked_to_end(&mut standing) => {
                    let finish = self.around.chance.millis(FINISH_MS.0, FINISH_MS.1);
                    return pass(finish).await;
                }
                Some(message) = told.recv() => self.hear(message).await,
                () = pass(turn) => {
                    self.said(FromWorker::Heartbeat { stats: Default::default(), resources: BTreeMap::new() })
                        .await;
                    self.write();
                }
            }
        }
    }

    fn begin(&mut self, assignment: &Assignment) {
        let named =
            assignment.resource.split_once('/').and_then(|(kind, key)| ResourceName::new(kind, key).ok());
        let Some(resource) = named else { return };
        let token = assignment.token;
        match self.works.insert(resource.clone(), token) {
            Some(before) if before == token => return,
            Some(before) => self.around.chronicle.ends(&self.who, &resource, before, "has another token"),
            None => {}
        }
        let working = Working { who: self.who.clone(), resource, token };
        self.around.chronicle.begins(working, "assigned", Box::new(|| true));
    }

    async fn hear(&mut self, message: ToWorker) {
        match message {
            ToWorker::Assign(assignment) => self.begin(&assignment),
            ToWorker::Prepare { id, .. } => {
                pass(self.around.chance.millis(FINISH_MS.0, FINISH_MS.1)).await;
                self.said(FromWorker::Prepared { id }).await;
            }
            ToWorker::Revoke { id, resource, .. } => {
                pass(self.around.chance.millis(FINISH_MS.0, FINISH_MS.1)).await;
                let named =
                    resource.split_once('/').and_then(|(kind, key)| ResourceName::new(kind, key).ok());
                if let Some(resource) = named
                    && let Some(token) = self.works.remove(&resource)
                {
                    self.around.chronicle.ends(&self.who, &resource, token, "was asked to");
                }
                self.said(FromWorker::Drained { id, state: None }).await;
            }
            ToWorker::Config { .. } | ToWorker::Error { .. } => {}
        }
    }

    fn write(&self) {
        for (resource, token) in self.works.clone() {
            let delay = self.around.chance.millis(WRITE_MS.0, WRITE_MS.1);
            let sink = self.around.sink.clone();
            let who = self.who.clone();
            tokio::spawn(async move {
                pass(delay).await;
                sink.take(&who, &resource, token).await;
            });
        }
    }
}

async fn is_asked_to_end(standing: &mut watch::Receiver<Standing>) {
    if standing.wait_for(|standing| standing.stop.is_some()).await.is_err() {
        // The agent is gone: nobody asks any more.
        std::future::pending().await
    }
}

/// Waits until the worker must be ended: its time is out, or it did not end within the grace.
async fn overdue(process: Arc<Process>, mut standing: watch::Receiver<Standing>) -> JobEnd {
    let mut kill_at = None;
    loop {
        let now = process.now();
        let Standing { stop_at, bound, stop } = standing.borrow_and_update().clone();
        kill_at = match (kill_at, stop) {
            (None, Some(grace)) => Some(now.plus(grace)),
            (kill_at, _) => kill_at,
        };
        let lost_at = bound.map_or(stop_at, |bound| bound.min(stop_at));
        if now >= lost_at {
            return JobEnd::Lost(None);
        }
        if kill_at.is_some_and(|kill_at| now >= kill_at) {
            return JobEnd::Exited(137);
        }
        let next = kill_at.map_or(lost_at, |kill_at| kill_at.min(lost_at));
        tokio::select! {
            () = process.passes(next) => {}
            // The agent is gone; then so is its word, and the last one counts.
            Ok(()) = standing.changed() => {}
        }
    }
}
