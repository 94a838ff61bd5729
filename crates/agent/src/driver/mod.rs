//! Drives the machine: tells it what happened, does what it says, and judges nothing.
//!
//! ```text
//!   session ── grants, losses, renewals ──┐                 ┌── Acquire, Release ──> leases, a task each
//!   workers ── what they say and do ──────┼──> machine ─────┼── Start, Tell, Stop ─> hosts, a task each
//!   file, signals, assignments ───────────┘                 └── Finish
//! ```

mod assignments;
mod cache;
mod configurations;
mod leases;
mod reload;
mod shard_config;
mod stats;
mod workers;

use std::{collections::BTreeMap, env, io, sync::Arc, time::Duration};

use serde_json::Value;
use solehold_client::{
    ClientSession, Contact, Guard, HeldLease, Http, OpenError, Policy, ResourceName, SessionConfig,
    assignments::AssignmentError,
};
use solehold_clock::{AlarmClock, BootClock, BootTime};
use tokio::{
    sync::{mpsc, watch},
    task::AbortHandle,
    time::{MissedTickBehavior, interval, timeout},
};

pub use self::reload::Reloader;
use self::{
    cache::Cache,
    configurations::Configurations,
    leases::{LeaseNews, LeaseRequests, LeaseTask},
    reload::Reloaded,
};
use crate::{
    config::{Settings, Source},
    health::Status,
    keep::{Keepers, SharedFolder, kill_before},
    machine::{Action, Input, Machine, News, Rules, WorkerId},
    worker::{Assignment, Host, ToWorker},
};

/// What the folder of an agent's files is called in the system's temporary folder.
const FOLDER_PREFIX: &str = "solehold-agent-";
/// News that wait to be taken up.
const NEWS_MAX: usize = 1_024;
/// How often the deadline is looked at: a part of the ttl, within these bounds.
const LOOKS_IN_TTL: u32 = 30;
const LOOK_EVERY_MIN: Duration = Duration::from_millis(20);
const LOOK_EVERY_MAX: Duration = Duration::from_secs(1);
/// How often the file is looked at, and a server that did not answer is asked again what it assigns.
const RELOAD_EVERY: Duration = Duration::from_secs(1);
/// How often the configurations of resources are read again without a notification.
const CONFIGURATIONS_EVERY: Duration = Duration::from_secs(30);
/// How long after a word it is read again.
const READ_WITHIN: Duration = Duration::from_millis(200);
/// How long the present holder of a resource has to hand it over, at least.
const TAKE_OVER_MIN: Duration = Duration::from_secs(5);
/// How long the server may take to close the session in the end; otherwise it runs out.
const CLOSE_MAX: Duration = Duration::from_secs(3);

/// Why the agent could not start, or had to end.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("{0}: {1}")]
    Io(&'static str, #[source] io::Error),
    /// Another program has taken the name.
    #[error("the agent's session is over: {0}")]
    Over(String),
}

/// What ends the agent, from outside.
pub type Shutdown = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs an agent until `ending`, and then drains it. `ready` is called once it is registered.
pub async fn run(
    mut reloader: Reloader,
    settings: Settings,
    ready: impl FnOnce(&str),
    ending: Shutdown,
) -> Result<(), AgentError> {
    let status = Arc::new(Status::default());
    if let Some((host, port)) = &settings.metrics {
        let serving = crate::health::serve(host, *port, status.clone()).await;
        serving.map_err(|error| AgentError::Io("cannot serve health and metrics", error))?;
    }
    let mut ending = ending;
    let http = Http::new(settings.server.clone()).expect("it was checked with the file");
    let http = Arc::new(http.registering(settings.runner.clone()));
    let opened = tokio::select! {
        opened = open(http.clone(), &settings) => opened?,
        () = &mut ending => return Ok(()),
    };
    let mut driver = Driver::new(settings, http, opened, status)?;
    ready(&driver.session.id().map(|id| id.to_string()).unwrap_or_default());
    let ended = driver.drive(&mut reloader, ending).await;
    driver.finish().await;
    ended
}

/// Opens the session, for as long as that takes: a server may come up after its agents.
async fn open(http: Arc<Http>, settings: &Settings) -> Result<ClientSession, AgentError> {
    let config = SessionConfig {
        ttl: settings.lease.ttl,
        every: Some(settings.lease.every),
        policy: settings.lease.policy,
        open_timeout: Duration::ZERO,
        ..SessionConfig::new(&settings.runner.runner_id)
    };
    let mut is_told = false;
    loop {
        match ClientSession::open(http.clone(), config.clone()).await {
            Err(OpenError::Authority(error)) => {
                if !is_told {
                    is_told = true;
                    tracing::warn!(%error, "cannot reach the server yet; retrying");
                }
                tokio::time::sleep(settings.lease.retry.min(RELOAD_EVERY)).await;
            }
            opened => return Ok(opened?),
        }
    }
}

/// News of a worker, and of which run.
type WorkerNews = (WorkerId, u32, News);

struct Driver {
    settings: Settings,
    machine: Machine,
    session: ClientSession,
    http: Arc<Http>,
    requests: LeaseRequests,
    lease_news: mpsc::Receiver<LeaseNews>,
    keepers: Keepers,
    leases: BTreeMap<ResourceName, LeaseTask>,
    hosts: BTreeMap<WorkerId, Host>,
    /// What each worker's file of assignments says.
    written: BTreeMap<WorkerId, Vec<Assignment>>,
    /// The deadlines that the machine knows: of the session, and of each lease.
    trusted: (BootTime, BTreeMap<ResourceName, BootTime>),
    /// Of the workers' files and sockets; their keepers use it too.
    folder: SharedFolder,
    status: Arc<Status>,
    worker_news: (mpsc::Sender<WorkerNews>, mpsc::Receiver<WorkerNews>),
    /// What was last reported of the work under each lease.
    reported: stats::Reported,
    /// The configuration of what workers prepare for.
    prepared: BTreeMap<ResourceName, Value>,
    /// The server was asked what it assigns, and has not answered yet.
    asking: Option<AbortHandle>,
    /// The version of what the server assigned last.
    known_version: Option<String>,
    /// The server knows that this runner drains.
    is_drain_known: bool,
    /// Why the assignments cannot be read, while they cannot.
    no_assignments: Option<AssignmentError>,
    is_finished: bool,
    over: Option<String>,
}

impl Driver {
    fn new(
        settings: Settings,
        http: Arc<Http>,
        session: ClientSession,
        status: Arc<Status>,
    ) -> Result<Self, AgentError> {
        let keepers = Keepers::new().map_err(|error| AgentError::Io("cannot keep workers", error))?;
        let folder = SharedFolder::make(&env::temp_dir(), FOLDER_PREFIX);
        let folder = folder.map_err(|error| AgentError::Io("cannot make a folder for the workers", error))?;
        let cache = Cache::open(settings.cache.as_deref());
        let cache = cache.map_err(|error| AgentError::Io("cannot use cache_dir", error))?;
        let configurations = Arc::new(Configurations::new(http.clone(), cache));
        let (news, lease_news) = mpsc::channel(NEWS_MAX);
        let trusted_until = session.deadline();
        Ok(Self {
            requests: LeaseRequests { session: session.clone(), configurations, news },
            lease_news,
            machine: Machine::new(rules(&settings), trusted_until),
            settings,
            session,
            http,
            keepers,
            leases: BTreeMap::new(),
            hosts: BTreeMap::new(),
            written: BTreeMap::new(),
            trusted: (trusted_until, BTreeMap::new()),
            folder,
            status,
            worker_news: mpsc::channel(NEWS_MAX),
            reported: stats::Reported::default(),
            prepared: BTreeMap::new(),
            asking: None,
            known_version: None,
            is_drain_known: false,
            no_assignments: None,
            is_finished: false,
            over: None,
        })
    }

    async fn drive(&mut self, reloader: &mut Reloader, mut ending: Shutdown) -> Result<(), AgentError> {
        let mut contact = self.session.contact();
        let mut notifications = self.session.notifications();
        let every = (self.settings.lease.ttl / LOOKS_IN_TTL).clamp(LOOK_EVERY_MIN, LOOK_EVERY_MAX);
        let [mut looks, mut reloads, mut reports, mut configurations] =
            [every, RELOAD_EVERY, self.settings.lease.every, CONFIGURATIONS_EVERY].map(interval);
        for ticks in [&mut looks, &mut reloads, &mut reports, &mut configurations] {
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        }
        let mut is_told = false;
        self.follow_source();
        let session = self.session.clone();
        let mut over = std::pin::pin!(session.over());
        while !self.is_finished {
            let due = self.machine.due().unwrap_or(BootTime::from_ms(u64::MAX));
            tokio::select! {
                Some(news) = self.lease_news.recv() => self.take_lease_news(news),
                Some((id, run, news)) = self.worker_news.1.recv() => self.take_worker_news(id, run, news),
                () = BootClock.wait_until(due) => self.tell(Input::Tick),
                _ = looks.tick() => self.look(),
                _ = reloads.tick() => {
                    self.reload(reloader);
                    // All processes of the workers are looked at: not more often than this.
                    self.session.set_metrics(self.status.heartbeat_metrics());
                    if self.settings.source == Source::Assigned {
                        self.follow_source();
                    }
                }
                _ = reports.tick() => self.reported.report(&self.http, self.machine.lease_stats()),
                _ = configurations.tick() => {
                    is_told = false;
                    self.read_configurations();
                }
                // A configuration may have changed. All of them are read again, so not after every notification: while
                // many resources move there are many, and the moves come first.
                Ok(()) = notifications.changed() => if !is_told {
                    is_told = true;
                    configurations.reset_after(READ_WITHIN);
                },
                () = &mut ending, if !self.machine.is_draining() => self.drain("the agent was asked to end"),
                Ok(()) = contact.changed() => follow_contact(&contact),
                lost = &mut over, if self.over.is_none() => self.end_for_good(lost.to_string()),
            }
        }
        match self.over.take() {
            Some(why) => Err(AgentError::Over(why)),
            None => Ok(()),
        }
    }

    fn drain(&mut self, why: &str) {
        let budget = humantime::format_duration(self.settings.drain);
        tracing::info!(why, %budget, "draining");
        match self.session.id() {
            Some(session) if self.settings.source == Source::Assigned => {
                let runner = self.settings.runner.runner_id.clone();
                let http = self.http.clone();
                let news = self.requests.news.clone();
                assignments::report_draining(http, runner, session, news);
            }
            // Without a session of its own it would speak for another agent of its name.
            _ => self.hand_over_nothing(),
        }
        self.tell(Input::Drain);
    }

    /// Another program has taken the name: there will be no other session.
    fn end_for_good(&mut self, why: String) {
        self.over = Some(why);
        if !self.machine.is_draining() {
            self.drain("the agent's session is over");
        }
    }

    /// Nobody will take over what is held: it is released without waiting for that.
    fn hand_over_nothing(&mut self) {
        let rules = Rules { hands_over: false, ..rules(&self.settings) };
        self.tell(Input::Rules(Box::new(rules)));
    }

    /// Tells the machine something and does what it says.
    fn tell(&mut self, event: Input) {
        let actions = self.machine.handle(BootTime::now(), rand::random(), event);
        for action in actions {
            self.act(action);
        }
        self.sync();
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Acquire(resource) => {
                let shard = self.machine.worker_of(&resource);
                self.requests.clone().acquire(resource, shard);
            }
            Action::TakeOver(resource) => {
                let within = self.settings.worker.bounds.stop.max(TAKE_OVER_MIN);
                let config = self.prepared.remove(&resource);
                let shard = self.machine.worker_of(&resource);
                self.requests.clone().take_over(resource, shard, config, within);
            }
            Action::Adopt(resource) => self.adopt(resource),
            Action::Release { resource, state, why } => self.release(resource, state, &why),
            Action::WriteState { resource, document } => {
                if let Some(lease) = self.leases.get(&resource) {
                    lease.write_state(document);
                }
            }
            Action::Start { worker, run, assignments } => self.start(worker, run, &assignments),
            Action::Tell { worker, message: message @ ToWorker::Prepare { .. } } => {
                let Some(host) = self.hosts.get(&worker) else { return };
                self.requests.clone().prepare(worker, host.run, message);
            }
            Action::Tell { worker, message } => {
                if let Some(host) = self.hosts.get(&worker)
                    && !host.tell(message)
                {
                    tracing::warn!(
                        worker = self.name(worker),
                        "worker is not reading its socket; message dropped"
                    );
                }
            }
            Action::Stop { worker, grace, why } => {
                let shown = humantime::format_duration(Duration::from_millis(grace.as_millis() as u64));
                tracing::info!(worker = self.name(worker), why, grace = %shown, "stopping worker");
                if let Some(host) = self.hosts.get(&worker) {
                    host.desired.send_modify(|desired| desired.stop = Some(grace));
                }
            }
            Action::Report { resource, why } => {
                let runner = self.settings.runner.runner_id.clone();
                assignments::report_failure(self.http.clone(), runner, self.session.id(), resource, why);
            }
            Action::Note(text) => tracing::warn!("{text}"),
            Action::Finish => self.is_finished = true,
        }
    }

    fn release(&mut self, resource: ResourceName, state: Option<Value>, why: &str) {
        tracing::info!(%resource, why, "releasing lease");
        match self.leases.remove(&resource) {
            Some(lease) => lease.release(state, self.requests.news.clone()),
            None => self.tell(Input::Released(resource)),
        }
    }

    fn adopt(&mut self, resource: ResourceName) {
        match self.session.unclaimed().into_iter().find(|lease| lease.resource == resource) {
            Some(lease) => {
                tracing::info!(%resource, "adopting a lease that was handed over to this runner");
                self.requests.clone().adopt(lease);
            }
            None => self.tell(Input::NotGranted { resource, retry_after: None }),
        }
    }

    /// Finds what the session holds without having asked for it. What is still being released or called off, however
    /// long that takes, is not among it.
    fn find_strays(&mut self) {
        for HeldLease { resource, .. } in self.session.unclaimed() {
            if !self.leases.contains_key(&resource) && !self.machine.is_busy_with(&resource) {
                self.tell(Input::Found(resource));
            }
        }
    }

    /// Keeps the configuration that a worker prepares with, so that it need not be read while no worker is active.
    fn remember(&mut self, message: &ToWorker) {
        let ToWorker::Prepare { resource, config: Some(config), .. } = message else { return };
        let named = resource.split_once('/').and_then(|(kind, key)| ResourceName::new(kind, key).ok());
        self.prepared.retain(|resource, _| self.machine.knows(resource));
        self.prepared.extend(named.map(|resource| (resource, config.clone())));
    }

    fn name(&self, worker: WorkerId) -> String {
        leases::worker_name(&self.settings.runner.runner_id, worker)
    }

    fn show(&self) {
        let contact = match &*self.session.contact().borrow() {
            Contact::Kept => None,
            Contact::Missing(why) => Some(why.clone()),
        };
        let keepers = self.hosts.iter().filter_map(|(id, host)| Some((*id, host.keeper()?)));
        self.status.set(crate::health::Snapshot {
            runner_id: self.settings.runner.runner_id.clone(),
            workers: self.machine.workers(),
            resources: self.machine.resources(),
            failed: self.machine.failed_resources(),
            keepers: keepers.collect(),
            is_registered: self.session.is_live(),
            is_draining: self.machine.is_draining(),
            no_contact: contact,
        });
    }

    fn take_worker_news(&mut self, id: WorkerId, run: u32, news: News) {
        if let News::Ended(end) = &news {
            tracing::info!(worker = self.name(id), run, ?end, "worker ended");
            if self.hosts.get(&id).is_some_and(|host| host.run == run) {
                self.hosts.remove(&id);
                self.written.remove(&id);
            }
        }
        self.tell(Input::Worker { id, run, news });
    }

    fn take_lease_news(&mut self, news: LeaseNews) {
        match news {
            LeaseNews::Won(resource, guard, config) => self.take_up(resource, *guard, config),
            LeaseNews::NotWon(resource, why, retry_after) => {
                tracing::debug!(%resource, why, "cannot acquire; retrying later");
                self.tell(Input::NotGranted { resource, retry_after });
            }
            LeaseNews::Lost => self.find_losses(),
            LeaseNews::WonBack(resource, token, lease_id) => {
                tracing::info!(%resource, %token, "reclaimed an expired lease");
                self.tell(Input::WonBack { resource, token: token.0, lease_id: lease_id.0 });
            }
            LeaseNews::Assigned { told, as_draining } => self.take_assignments(told, as_draining),
            LeaseNews::Draining(Ok(())) => {
                self.is_drain_known = true;
                self.ask_anew();
            }
            LeaseNews::Draining(Err(why)) => {
                tracing::info!(%why, "server cannot move this runner's leases; releasing them");
                self.hand_over_nothing();
            }
            LeaseNews::Prepare(worker, run, message) => {
                self.remember(&message);
                if let Some(host) = self.hosts.get(&worker).filter(|host| host.run == run) {
                    host.tell(*message);
                }
            }
            LeaseNews::HandOver(resource, Some((to, until))) => {
                let why = format!("the resource is handed over to {to}");
                self.tell(Input::Asked { resource, id: None, why, until });
            }
            LeaseNews::HandOver(resource, None) => self.tell(Input::CalledOff(resource)),
            LeaseNews::Released(resource) => self.tell(Input::Released(resource)),
            LeaseNews::Configured(resource, config) => self.tell(Input::Configured { resource, config }),
        }
    }

    /// Takes up a lease that was granted, unless it was lost while its configuration was read.
    fn take_up(&mut self, resource: ResourceName, guard: Guard, config: Option<Value>) {
        let (mut lease, granted) = LeaseTask::tend(guard, config, self.requests.news.clone());
        tracing::info!(%resource, token = granted.token, "acquired lease");
        let lost = lease.lost();
        lease.is_told = lost.is_some();
        self.leases.insert(resource.clone(), lease);
        match lost {
            Some(why) => self.tell(Input::LostAtGrant { resource, why }),
            None => self.tell(Input::Granted { resource, granted }),
        }
    }

    /// Tells the machine of leases that are lost, each with the deadline that it had.
    fn find_losses(&mut self) {
        let untold = self.leases.iter_mut().filter(|(_, lease)| !lease.is_told);
        let lost = |(resource, lease): (&ResourceName, &mut LeaseTask)| {
            let why = lease.lost()?;
            lease.is_told = true;
            Some(Input::Lost { resource: resource.clone(), why, until: lease.deadline() })
        };
        let losses: Vec<Input> = untold.filter_map(lost).collect();
        if losses.is_empty() {
            return;
        }
        for loss in losses {
            self.tell(loss);
        }
        if self.settings.source == Source::Assigned {
            self.ask_anew();
        }
    }

    /// Follows the deadlines: of the session, and of each lease.
    fn look(&mut self) {
        self.find_losses();
        let session = self.session.deadline();
        let deadlines = self.leases.iter().map(|(resource, lease)| (resource.clone(), lease.deadline()));
        let leases: BTreeMap<ResourceName, BootTime> = deadlines.collect();
        if (session, &leases) != (self.trusted.0, &self.trusted.1) {
            self.trusted = (session, leases.clone());
            self.tell(Input::Renewed { session, leases });
            return self.find_strays();
        }
        self.show();
    }

    fn read_configurations(&self) {
        self.requests.clone().refresh(self.leases.keys().cloned().collect());
    }

    fn reload(&mut self, reloader: &mut Reloader) {
        let next = match reloader.look(&self.settings) {
            Reloaded::Same => return,
            Reloaded::Refused(why) => {
                return tracing::error!(why, "invalid configuration; keeping the previous one");
            }
            Reloaded::Changed(next) => *next,
        };
        let before = &self.settings.lease;
        let after = &next.lease;
        if (before.ttl, before.every) != (after.ttl, after.every)
            && let Err(error) = self.session.set_timing(after.ttl, after.every)
        {
            return tracing::error!(%error, "invalid configuration; keeping the previous one");
        }
        if !self.settings.has_same_server(&next)
            && let Err(error) = self.http.reconfigure(&next.server)
        {
            return tracing::error!(%error, "invalid configuration; keeping the previous one");
        }
        tracing::info!("configuration reloaded");
        self.settings = next;
        // The workers' files have some of it.
        self.written.clear();
        self.tell(Input::Rules(Box::new(rules(&self.settings))));
        self.follow_source();
    }

    /// Nothing of the workers is left, or time is up: then their keepers end them and release their leases, as they do
    /// for an agent that was killed.
    async fn finish(&mut self) {
        for resource in self.leases.keys() {
            tracing::warn!(%resource, "work did not end in time; leaving its lease to the worker's keeper");
        }
        // A guard that is dropped releases its lease, and nothing here proves that the work on it has ended.
        std::mem::forget(std::mem::take(&mut self.leases));
        if timeout(CLOSE_MAX, self.session.close()).await.is_err() {
            tracing::warn!("cannot close the session; it ends when its ttl is over");
        }
        self.folder.leave();
    }
}

fn rules(settings: &Settings) -> Rules {
    let worker = &settings.worker;
    let lease = &settings.lease;
    Rules {
        max_workers: worker.max,
        per_worker: worker.per_worker,
        capacity: settings.runner.capacity.and_then(|capacity| usize::try_from(capacity).ok()).unwrap_or(1),
        bounds: worker.bounds.clone(),
        retry: settings.lease.retry,
        penalty: worker.penalty,
        drain: settings.drain,
        start_before: workers::warn(lease.ttl) + kill_before(lease.ttl) * 2,
        grace: match lease.policy {
            Policy::Grace(grace) => grace,
            Policy::Immediate | Policy::Deadline => Duration::ZERO,
        },
        hands_over: settings.source == Source::Assigned,
    }
}

fn follow_contact(contact: &watch::Receiver<Contact>) {
    match &*contact.borrow() {
        Contact::Kept => tracing::info!("reconnected to the server"),
        Contact::Missing(why) => {
            tracing::warn!(why, "cannot reach the server; workers continue until their lease deadline")
        }
    }
}
