//! Drives the machine: tells it what happened, does what it says, and judges nothing.
//!
//! ```text
//!   session ── grants, losses, renewals ──┐                 ┌── Acquire, Release ──> leases, a task each
//!   workers ── what they say and do ──────┼──> machine ─────┼── Start, Tell, Stop ─> hosts, a task each
//!   file, signals, assignments ───────────┘                 └── Finish
//! ```

mod leases;
mod reload;
mod sync;

use std::{
    collections::BTreeMap, env, fs, io, os::unix::fs::DirBuilderExt, path::PathBuf, process, sync::Arc,
    time::Duration,
};

use secrecy::ExposeSecret;
use solehold_client::{Contact, Http, OpenError, Policy, Resource, Session, SessionConfig};
use solehold_clock::{AlarmClock, BootClock, BootTime};
use tokio::{
    sync::{mpsc, watch},
    time::{MissedTickBehavior, interval, timeout},
};
use uuid::Uuid;

pub use self::reload::Reloader;
use self::{
    leases::{Lease, LeaseNews},
    reload::Reloaded,
};
use crate::{
    config::{Settings, Source},
    health::Status,
    keep::{Farewell, Keepers, LeaseTerm},
    machine::{Action, Event, Machine, News, Rules, Want, WorkerId},
    worker::{Assignment, Host, Run, Wish, notify_path, socket_path},
};

/// News that wait to be taken up.
const NEWS_MAX: usize = 1_024;
/// How often the deadline is looked at: a part of the ttl, within these bounds.
const LOOKS_IN_TTL: u32 = 30;
const LOOK_EVERY_MIN: Duration = Duration::from_millis(20);
const LOOK_EVERY_MAX: Duration = Duration::from_secs(1);
/// How often the file is looked at, and what the server assigns is asked for.
const RELOAD_EVERY: Duration = Duration::from_secs(1);
/// How often the configuration of what is worked on is read again.
const CONFIGURATIONS_EVERY: Duration = Duration::from_secs(5);
/// How long the server may take to close the session in the end; otherwise it runs out.
const CLOSE_MAX: Duration = Duration::from_secs(3);
/// A worker gets SIGTERM this part of the ttl before its deadline if no renewal came, and at most this long before it.
const WARN_PART: u32 = 6;
const WARN_MAX: Duration = Duration::from_secs(10);
/// Variables that an outer `run` or agent may have set, and that are not for these workers.
const NOT_PASSED_ON: [&str; 6] = [
    "SOLEHOLD_API_KEY",
    "SOLEHOLD_HELD",
    "SOLEHOLD_HOLDER",
    "SOLEHOLD_LEASE_ID",
    "SOLEHOLD_LOCK",
    "SOLEHOLD_TOKEN",
];

/// Why the agent could not start, or had to end.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The session.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The system.
    #[error("{0}: {1}")]
    Io(&'static str, #[source] io::Error),
    /// Another program has taken the name.
    #[error("this agent has ended: {0}")]
    Over(String),
}

/// What ends the agent, from outside.
pub type Ending = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs an agent until `ending`, and then drains it. `ready` is called once it is registered.
pub async fn run(
    mut reloader: Reloader,
    settings: Settings,
    ready: impl FnOnce(&str),
    ending: Ending,
) -> Result<(), AgentError> {
    let status = Arc::new(Status::default());
    if let Some((host, port)) = &settings.metrics {
        let serving = crate::health::serve(host, *port, status.clone()).await;
        serving.map_err(|error| AgentError::Io("cannot serve health and metrics", error))?;
    }
    let mut ending = ending;
    let http = Http::new(settings.server.http()).expect("it was checked with the file");
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
async fn open(http: Arc<Http>, settings: &Settings) -> Result<Session, AgentError> {
    let config = SessionConfig {
        ttl: settings.lease.ttl,
        every: Some(settings.lease.every),
        policy: settings.lease.policy,
        open_timeout: Duration::ZERO,
        ..SessionConfig::new(&settings.runner.runner_id)
    };
    let mut is_told = false;
    loop {
        match Session::open(http.clone(), config.clone()).await {
            Err(OpenError::Authority(error)) => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!(%error, "no session yet; trying again");
                }
                tokio::time::sleep(settings.lease.retry.min(RELOAD_EVERY)).await;
            }
            opened => return Ok(opened?),
        }
    }
}

struct Driver {
    settings: Settings,
    machine: Machine,
    session: Session,
    http: Arc<Http>,
    keepers: Keepers,
    leases: BTreeMap<Resource, Lease>,
    hosts: BTreeMap<WorkerId, Host>,
    /// What each worker's file of assignments says.
    written: BTreeMap<WorkerId, Vec<Assignment>>,
    /// The deadline that was seen last while nothing was lost.
    trusted_until: BootTime,
    folder: PathBuf,
    status: Arc<Status>,
    lease_news: (mpsc::Sender<LeaseNews>, mpsc::Receiver<LeaseNews>),
    worker_news: (mpsc::Sender<(WorkerId, u32, News)>, mpsc::Receiver<(WorkerId, u32, News)>),
    is_finished: bool,
    over: Option<String>,
}

impl Driver {
    fn new(
        settings: Settings,
        http: Arc<Http>,
        session: Session,
        status: Arc<Status>,
    ) -> Result<Self, AgentError> {
        let keepers = Keepers::new().map_err(|error| AgentError::Io("cannot keep workers", error))?;
        let random = Uuid::new_v4().simple().to_string();
        let folder = env::temp_dir().join(format!("solehold-agent-{}", &random[..8]));
        // Sockets are in it: nobody else may connect to them.
        let made = fs::DirBuilder::new().mode(0o700).create(&folder);
        made.map_err(|error| AgentError::Io("cannot make a folder for the workers", error))?;
        let trusted_until = session.deadline();
        Ok(Self {
            machine: Machine::new(rules(&settings), trusted_until),
            settings,
            session,
            http,
            keepers,
            leases: BTreeMap::new(),
            hosts: BTreeMap::new(),
            written: BTreeMap::new(),
            trusted_until,
            folder,
            status,
            lease_news: mpsc::channel(NEWS_MAX),
            worker_news: mpsc::channel(NEWS_MAX),
            is_finished: false,
            over: None,
        })
    }

    async fn drive(&mut self, reloader: &mut Reloader, mut ending: Ending) -> Result<(), AgentError> {
        let mut contact = self.session.contact();
        let every = (self.settings.lease.ttl / LOOKS_IN_TTL).clamp(LOOK_EVERY_MIN, LOOK_EVERY_MAX);
        let (mut looks, mut reloads) = (interval(every), interval(RELOAD_EVERY));
        let mut configurations = interval(CONFIGURATIONS_EVERY);
        configurations.set_missed_tick_behavior(MissedTickBehavior::Delay);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        reloads.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.follow_source().await;
        while !self.is_finished {
            let due = self.machine.due().unwrap_or(BootTime::from_ms(u64::MAX));
            tokio::select! {
                Some(news) = self.lease_news.1.recv() => self.take_lease_news(news),
                Some((id, run, news)) = self.worker_news.1.recv() => self.take_worker_news(id, run, news),
                () = BootClock.wait_until(due) => self.tell(Event::Tick),
                _ = looks.tick() => self.look(),
                _ = reloads.tick() => self.reload(reloader).await,
                _ = configurations.tick() => {
                    let held = self.leases.keys().cloned().collect();
                    sync::refresh(self.http.clone(), held, self.lease_news.0.clone());
                }
                () = &mut ending, if !self.machine.is_draining() => self.drain("it was asked to end"),
                Ok(()) = contact.changed() => follow_contact(&contact),
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
        self.tell(Event::Drain);
    }

    /// Tells the machine something and does what it says.
    fn tell(&mut self, event: Event) {
        let actions = self.machine.handle(BootTime::now(), rand::random(), event);
        for action in actions {
            self.act(action);
        }
        self.sync();
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Acquire(resource) | Action::TakeOver(resource) => {
                let (session, http) = (self.session.clone(), self.http.clone());
                leases::acquire(session, http, resource, self.lease_news.0.clone());
            }
            Action::Release { resource, state, why } => self.release(resource, state, &why),
            Action::WriteState { resource, document } => {
                if let Some(lease) = self.leases.get(&resource) {
                    lease.write_state(document);
                }
            }
            Action::Start { worker, run, assignments } => self.start(worker, run, &assignments),
            Action::Tell { worker, message } => {
                if let Some(host) = self.hosts.get(&worker)
                    && !host.tell(message)
                {
                    tracing::warn!(worker = self.name(worker), "it does not read what it is told");
                }
            }
            Action::Stop { worker, grace, why } => {
                let shown = humantime::format_duration(Duration::from_millis(grace.as_millis() as u64));
                tracing::info!(worker = self.name(worker), why, grace = %shown, "stopping a worker");
                if let Some(host) = self.hosts.get(&worker) {
                    host.wish.send_modify(|wish| wish.stop = Some(grace));
                }
            }
            Action::Note(text) => tracing::warn!("{text}"),
            Action::Finish => self.is_finished = true,
        }
    }

    fn release(&mut self, resource: Resource, state: Option<serde_json::Value>, why: &str) {
        tracing::info!(%resource, why, "releasing");
        match self.leases.remove(&resource) {
            Some(lease) => lease.release(state, self.lease_news.0.clone()),
            None => self.tell(Event::Released(resource)),
        }
    }

    fn name(&self, worker: WorkerId) -> String {
        format!("{}/{worker}", self.settings.runner.runner_id)
    }

    fn start(&mut self, id: WorkerId, run: u32, assignments: &[Assignment]) {
        let folder = self.folder.join(id.to_string());
        if let Err(error) = fs::create_dir_all(&folder) {
            tracing::error!(%error, "cannot make a folder for a worker");
        }
        self.write_assignments(id, assignments);
        let (name, worker) = (self.name(id), &self.settings.worker);
        let resources: Vec<&str> = assignments.iter().map(|a| a.resource.as_str()).collect();
        tracing::info!(worker = name, run, resources = resources.join(" "), "starting a worker");
        let run = Run {
            id,
            run,
            command: worker.command.iter().map(|word| self.filled(word, id, assignments).into()).collect(),
            env: self.variables(id, &name, assignments),
            env_remove: NOT_PASSED_ON.map(str::to_owned).to_vec(),
            name,
            warn: self.warn(),
            wish: self.wish(id, None),
            folder,
        };
        self.hosts.insert(id, Host::start(&self.keepers, run, self.worker_news.0.clone()));
    }

    /// Less than half of the ttl, so that a worker is not ended while renewals are on time.
    fn warn(&self) -> Duration {
        (self.settings.lease.ttl / WARN_PART).min(WARN_MAX)
    }

    fn assignments_file(&self, id: WorkerId) -> PathBuf {
        self.folder.join(id.to_string()).join("assignments.json")
    }

    /// A word of the command line with its placeholders filled in.
    fn filled(&self, word: &str, id: WorkerId, assignments: &[Assignment]) -> String {
        let resource = assignments.first().map(|a| a.resource.clone()).unwrap_or_default();
        word.replace("{config}", &self.assignments_file(id).to_string_lossy())
            .replace("{runner_id}", &self.settings.runner.runner_id)
            .replace("{shard_id}", &format!("shard-{id}"))
            .replace("{manager_pid}", &process::id().to_string())
            .replace("{worker}", &self.name(id))
            .replace("{resource}", &resource)
    }

    /// What a worker is told that does not change while it runs.
    fn variables(&self, id: WorkerId, name: &str, assignments: &[Assignment]) -> Vec<(String, String)> {
        let folder = self.folder.join(id.to_string());
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let watchdog = self.settings.worker.bounds.watchdog.as_micros().to_string();
        let mut all = vec![
            ("SOLEHOLD_WORKER", name.to_owned()),
            ("SOLEHOLD_RUNNER_ID", self.settings.runner.runner_id.clone()),
            ("SOLEHOLD_WORKER_SOCKET", text(socket_path(&folder))),
            ("SOLEHOLD_ASSIGNMENTS_FILE", text(self.assignments_file(id))),
            ("NOTIFY_SOCKET", text(notify_path(&folder))),
            ("WATCHDOG_USEC", watchdog),
        ];
        if let [only] = assignments
            && self.settings.worker.per_worker == 1
        {
            all.push(("SOLEHOLD_RESOURCE", only.resource.clone()));
            all.push(("SOLEHOLD_TOKEN", only.token.to_string()));
            all.push(("SOLEHOLD_LEASE_ID", only.lease_id.to_string()));
        }
        let own = self.settings.worker.env.iter().map(|(name, value)| (name.clone(), value.clone()));
        all.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(own).collect()
    }

    /// How things stand for a worker.
    fn wish(&self, id: WorkerId, stop: Option<Duration>) -> Wish {
        let deadline = self.trusted_until.as_ms().to_string();
        let variables = vec![("SOLEHOLD_DEADLINE_BOOTTIME_MS".to_owned(), deadline)];
        let term = LeaseTerm { stop_at_ms: self.stop_at(self.trusted_until).as_ms(), variables };
        let bound = self.machine.bound(id).map(|bound| self.stop_at(bound));
        Wish { term, bound, farewell: self.farewell(id), stop }
    }

    fn stop_at(&self, deadline: BootTime) -> BootTime {
        match self.settings.lease.policy {
            Policy::Grace(grace) => deadline.plus(grace),
            Policy::Immediate | Policy::Deadline => deadline,
        }
    }

    /// What a worker's keeper does once nothing of the worker is left, if this process is gone by then.
    fn farewell(&self, id: WorkerId) -> Farewell {
        let release = |assignment: &Assignment| {
            ["lease", "release", &assignment.lease_id.to_string()].map(str::to_owned).to_vec()
        };
        let server = &self.settings.server;
        let key = server.api_key.as_ref().map(|key| key.expose_secret().to_owned());
        let variables = [
            ("SOLEHOLD_SERVER", Some(server.servers.join(","))),
            ("SOLEHOLD_API_KEY", key),
            ("SOLEHOLD_TENANT", server.tenant.clone()),
            ("SOLEHOLD_CA_CERT", server.ca_file.as_ref().map(|path| path.to_string_lossy().into_owned())),
        ];
        let env = variables.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.into())));
        Farewell { commands: self.machine.assignments(id).iter().map(release).collect(), env: env.collect() }
    }

    /// Brings what workers and others see up to date with the machine.
    fn sync(&mut self) {
        let ids: Vec<WorkerId> = self.hosts.keys().copied().collect();
        for id in ids {
            let assignments = self.machine.assignments(id);
            let is_written = self.written.get(&id).is_some_and(|written| is_same(written, &assignments));
            if !is_written {
                self.write_assignments(id, &assignments);
            }
            let Some(host) = self.hosts.get(&id) else { continue };
            let next = self.wish(id, host.wish.borrow().stop);
            host.wish.send_if_modified(|wish| {
                let is_new = *wish != next;
                *wish = next;
                is_new
            });
        }
        self.show();
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
            keepers: keepers.collect(),
            is_registered: self.session.is_live(),
            is_draining: self.machine.is_draining(),
            no_contact: contact,
        });
    }

    /// A reader sees the old list or the new one, never a part.
    fn write_assignments(&mut self, id: WorkerId, assignments: &[Assignment]) {
        let file = self.assignments_file(id);
        let next = file.with_extension("next");
        let text = serde_json::json!({
            "runner_id": self.settings.runner.runner_id,
            "shard_id": format!("shard-{id}"),
            "assignments": assignments,
        });
        let written = fs::write(&next, format!("{text}\n")).and_then(|()| fs::rename(&next, &file));
        if let Err(error) = written {
            tracing::error!(%error, file = %file.display(), "cannot write the assignments of a worker");
        }
        self.written.insert(id, assignments.to_vec());
    }

    fn take_worker_news(&mut self, id: WorkerId, run: u32, news: News) {
        if let News::Ended(end) = &news {
            tracing::info!(worker = self.name(id), run, ?end, "a worker has ended");
            if self.hosts.get(&id).is_some_and(|host| host.run == run) {
                self.hosts.remove(&id);
                self.written.remove(&id);
            }
        }
        self.tell(Event::Worker { id, run, news });
    }

    fn take_lease_news(&mut self, news: LeaseNews) {
        match news {
            LeaseNews::Won(resource, guard, config) => {
                let (lease, granted) = Lease::tend(*guard, config, self.lease_news.0.clone());
                tracing::info!(%resource, token = granted.token, "acquired");
                self.leases.insert(resource.clone(), lease);
                self.tell(Event::Granted { resource, granted });
            }
            LeaseNews::NotWon(resource, why, retry_after) => {
                tracing::debug!(%resource, why, "not acquired");
                self.tell(Event::NotGranted { resource, retry_after });
            }
            LeaseNews::Lost(resource, why) => {
                if let Some(lease) = self.leases.get_mut(&resource) {
                    lease.is_told = true;
                }
                self.tell(Event::Lost { resource, why, until: self.trusted_until });
            }
            LeaseNews::Released(resource) => self.tell(Event::Released(resource)),
            LeaseNews::Configured(resource, config) => self.tell(Event::Configured { resource, config }),
            LeaseNews::SessionOver(why) => {
                self.over.get_or_insert(why);
                if !self.machine.is_draining() {
                    self.drain("its session is over");
                }
            }
        }
    }

    /// Follows the deadline. One that is seen after a loss is not recorded before the loss is told: what was lost ends
    /// by the deadline that it had.
    fn look(&mut self) {
        let deadline = self.session.deadline();
        if self.leases.values().any(Lease::is_lost_untold) {
            return;
        }
        if deadline != self.trusted_until {
            self.trusted_until = deadline;
            return self.tell(Event::Renewed(deadline));
        }
        self.show();
        self.session.set_metrics(self.status.metrics());
    }

    /// What this agent is to work on.
    async fn follow_source(&mut self) {
        let wanted = match &self.settings.source {
            Source::Static(resources) => {
                resources.iter().map(|resource| (resource.clone(), Want::Free)).collect()
            }
            Source::Assigned => BTreeMap::new(),
        };
        self.tell(Event::Wanted(wanted));
    }

    async fn reload(&mut self, reloader: &mut Reloader) {
        let next = match reloader.look(&self.settings) {
            Reloaded::Same => return,
            Reloaded::Refused(why) => {
                return tracing::error!(why, "the new configuration is refused; the old one stays");
            }
            Reloaded::Changed(next) => *next,
        };
        let (before, after) = (&self.settings.lease, &next.lease);
        if (before.ttl, before.every) != (after.ttl, after.every)
            && let Err(error) = self.session.set_timing(after.ttl, after.every)
        {
            return tracing::error!(%error, "the new configuration is refused; the old one stays");
        }
        if self.settings.server != next.server
            && let Err(error) = self.http.reconfigure(&next.server.http())
        {
            return tracing::error!(%error, "the new configuration is refused; the old one stays");
        }
        tracing::info!("the new configuration is in force");
        self.settings = next;
        self.tell(Event::Rules(Box::new(rules(&self.settings))));
        self.follow_source().await;
    }

    /// Nothing of the workers is left, or time is up: then their keepers see to it.
    async fn finish(&mut self) {
        if timeout(CLOSE_MAX, self.session.close()).await.is_err() {
            tracing::warn!("the session could not be closed: it runs out by itself");
        }
        self.hosts.clear();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn rules(settings: &Settings) -> Rules {
    let worker = &settings.worker;
    Rules {
        max_workers: worker.max,
        per_worker: worker.per_worker,
        capacity: settings.runner.capacity.and_then(|capacity| usize::try_from(capacity).ok()).unwrap_or(1),
        bounds: worker.bounds.clone(),
        retry: settings.lease.retry,
        penalty: worker.penalty,
        drain: settings.drain,
        hands_over: false,
    }
}

/// Whether a worker has the same work as before; its deadline is in another file.
fn is_same(before: &[Assignment], now: &[Assignment]) -> bool {
    let without = |a: &Assignment| Assignment { deadline_boottime_ms: 0, ..a.clone() };
    before.len() == now.len() && before.iter().zip(now).all(|(a, b)| without(a) == without(b))
}

fn follow_contact(contact: &watch::Receiver<Contact>) {
    match &*contact.borrow() {
        Contact::Kept => tracing::info!("the server answers again"),
        Contact::Missing(why) => {
            tracing::warn!(why, "the server does not answer; workers go on until the deadline")
        }
    }
}
