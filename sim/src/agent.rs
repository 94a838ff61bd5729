//! An agent: the real machine (`solehold_agent::machine`), driven as the agent's driver drives it, over a real session
//! and simulated workers.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use solehold_agent::{
    keep::kill_before,
    machine::{Action, Granted, Input, Machine, News, Rules, WorkerId},
    worker::{Bounds, Protocol},
};
use solehold_client::{
    AcquireError, ClientSession, Guard, HeldLease, ResourceName, SessionConfig, Surroundings,
    chance::Chance as _,
    clock::{AlarmClock, Backoff, BootTime, Clock},
};
use tokio::sync::mpsc;

use crate::{
    chance::SeededChance,
    chronicle::{Chronicle, Happening},
    planner::{self, Assigned},
    process::Process,
    remote::Remote,
    server::Server,
    sink::Sink,
    wire::{Kind, REQUEST_TIMEOUT, Wire},
    worker::{Hosted, Standing, Surrounding},
    world::{CAMERAS, TTL},
};

const INBOX_MAX: usize = 1_024;
/// How often the deadlines are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often the server is asked what it assigns.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How long the present holder of a resource has to hand it over.
const TAKE_OVER_WITHIN: Duration = Duration::from_secs(5);
/// How long to wait for a release; after that the lease expires.
const RELEASE_MAX: Duration = Duration::from_secs(10);
/// After the holder's last moment, so that the next attempt comes when it is over.
const AFTER_EXPIRY: Duration = Duration::from_millis(50);

/// What happens to an agent.
pub enum Inbound {
    Won(ResourceName, Box<Guard>),
    NotWon(ResourceName, Option<Duration>),
    Lost,
    HandOver(ResourceName, Option<BootTime>),
    Released(ResourceName),
    Assigned(Assigned),
    Worker(WorkerId, u32, News),
    /// The first worker ends by itself.
    Crash,
}

pub struct Agent {
    pub session: ClientSession,
    inbox: mpsc::Sender<Inbound>,
}

impl Agent {
    /// Starts an agent; none if it could not open its session, and ended.
    pub async fn start(
        wire: &Arc<Wire>,
        chronicle: Arc<Chronicle>,
        sink: Arc<Sink>,
        chance: SeededChance,
    ) -> Option<Self> {
        let process = wire.process.clone();
        let config = SessionConfig { ttl: TTL, ..SessionConfig::new(&process.name) };
        let surroundings = Surroundings { clock: process.clone(), chance: Arc::new(chance.branch()) };
        let remote = Remote::new(wire.clone(), Some(CAMERAS.len() as u32));
        let session = ClientSession::open_in(surroundings, remote, config).await.ok()?;
        let (inbox, inbound) = mpsc::channel(INBOX_MAX);
        let driver = Driver {
            wire: wire.clone(),
            process,
            chronicle,
            sink,
            chance,
            machine: Machine::new(rules(), session.deadline()),
            session: session.clone(),
            inbox: inbox.clone(),
            leases: BTreeMap::new(),
            hosts: BTreeMap::new(),
            trusted: (session.deadline(), BTreeMap::new()),
            is_asking: Arc::default(),
        };
        tokio::spawn(driver.drive(inbound));
        Some(Self { session, inbox })
    }

    pub fn crash(&self) {
        let _ = self.inbox.try_send(Inbound::Crash);
    }
}

fn rules() -> Rules {
    let s = Duration::from_secs;
    Rules {
        max_workers: 2,
        per_worker: 2,
        capacity: CAMERAS.len(),
        bounds: Bounds {
            protocol: Protocol::Auto,
            startup: s(5),
            watchdog: s(3),
            stop: s(2),
            restart: Backoff { first: Duration::from_millis(200), cap: s(2) },
            good_run: s(5),
            burst: 10,
        },
        retry: s(1),
        penalty: s(5),
        drain: s(5),
        start_before: TTL / 6 + kill_before(TTL) * 2,
        grace: Duration::ZERO,
        hands_over: true,
    }
}

/// A lease that is held, and the task that tends it.
struct TendedLease {
    orders: mpsc::Sender<()>,
    guard: Arc<Guard>,
    /// The machine knows that it is lost.
    is_told: bool,
}

struct Driver {
    wire: Arc<Wire>,
    process: Arc<Process>,
    chronicle: Arc<Chronicle>,
    sink: Arc<Sink>,
    chance: SeededChance,
    machine: Machine,
    session: ClientSession,
    inbox: mpsc::Sender<Inbound>,
    leases: BTreeMap<ResourceName, TendedLease>,
    hosts: BTreeMap<WorkerId, Hosted>,
    /// The deadlines that the machine knows.
    trusted: (BootTime, BTreeMap<ResourceName, BootTime>),
    is_asking: Arc<Mutex<bool>>,
}

impl Driver {
    async fn drive(mut self, mut inbound: mpsc::Receiver<Inbound>) {
        let process = self.process.clone();
        let mut look_at = process.now();
        let mut ask_at = process.now();
        loop {
            let due = self.machine.due().unwrap_or(BootTime::from_ms(u64::MAX / 2_000_000));
            let next = due.min(look_at).min(ask_at);
            let received = tokio::select! {
                biased;
                received = inbound.recv() => received,
                () = process.wait_until(next) => None,
            };
            process.running().await;
            if let Some(received) = received {
                self.take(received);
            }
            let now = process.now();
            if now >= due {
                self.tell(Input::Tick);
            }
            if now >= look_at {
                look_at = now.plus(LOOK_EVERY);
                self.look();
            }
            if now >= ask_at {
                ask_at = now.plus(ASK_EVERY);
                self.ask();
            }
        }
    }

    fn ask(&self) {
        if std::mem::replace(&mut *self.is_asking.lock(), true) {
            return;
        }
        let wire = self.wire.clone();
        let inbox = self.inbox.clone();
        let is_asking = self.is_asking.clone();
        tokio::spawn(async move {
            let name = wire.process.name.clone();
            let ask = move |to: Arc<Server>| {
                let name = name.clone();
                async move { planner::assigned(&to, &name).await }
            };
            let told = wire.through(Kind::Plan, String::new(), REQUEST_TIMEOUT, ask).await;
            *is_asking.lock() = false;
            if let Ok((_, Ok(assigned))) = told {
                let _ = inbox.send(Inbound::Assigned(assigned)).await;
            }
        });
    }

    fn take(&mut self, received: Inbound) {
        match received {
            Inbound::Won(resource, guard) => self.take_up(resource, *guard),
            Inbound::NotWon(resource, retry_after) => self.tell(Input::NotGranted { resource, retry_after }),
            Inbound::Lost => self.find_losses(),
            Inbound::HandOver(resource, Some(until)) => {
                let why = "it is handed over".to_owned();
                self.tell(Input::Asked { resource, id: None, why, until });
            }
            Inbound::HandOver(resource, None) => self.tell(Input::CalledOff(resource)),
            Inbound::Released(resource) => self.tell(Input::Released(resource)),
            Inbound::Assigned(Assigned { acquire, keep }) => {
                self.tell(Input::Assigned { acquire, keep, release: Default::default() });
            }
            Inbound::Worker(id, run, news) => {
                let is_over = matches!(news, News::Ended(_));
                if is_over && self.hosts.get(&id).is_some_and(|host| host.run == run) {
                    self.hosts.remove(&id);
                }
                self.tell(Input::Worker { id, run, news });
            }
            Inbound::Crash => {
                if let Some(host) = self.hosts.values().next() {
                    host.crash();
                }
            }
        }
    }

    /// Tells the machine something and does what it says.
    fn tell(&mut self, event: Input) {
        let actions = self.machine.handle(self.process.now(), self.chance.unit(), event);
        for action in actions {
            self.act(action);
        }
        self.sync();
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Acquire(resource) => self.acquire(resource),
            Action::TakeOver(resource) => self.take_over(resource),
            Action::Adopt(resource) => self.adopt(resource),
            Action::Release { resource, .. } => match self.leases.remove(&resource) {
                Some(TendedLease { orders, guard, .. }) => {
                    // The task that releases it needs it for itself.
                    drop(guard);
                    let _ = orders.try_send(());
                }
                None => self.tell(Input::Released(resource)),
            },
            Action::Start { worker, run, assignments } => {
                let around = Surrounding {
                    process: self.process.clone(),
                    chronicle: self.chronicle.clone(),
                    sink: self.sink.clone(),
                    inbox: self.inbox.clone(),
                    chance: self.chance.branch(),
                };
                let standing = self.standing(worker, None);
                self.note_term(worker, &standing);
                let hosted = Hosted::start(worker, run, standing, assignments, around);
                self.hosts.insert(worker, hosted);
            }
            Action::Tell { worker, message } => {
                if let Some(host) = self.hosts.get(&worker) {
                    host.tell(message);
                }
            }
            Action::Stop { worker, grace, .. } => {
                if let Some(host) = self.hosts.get(&worker) {
                    host.standing.send_modify(|standing| standing.stop = Some(grace));
                }
            }
            Action::WriteState { .. } | Action::Report { .. } | Action::Note(_) | Action::Finish => {}
        }
    }

    fn standing(&self, id: WorkerId, stop: Option<Duration>) -> Standing {
        let early = kill_before(TTL).as_nanos() as u64;
        let before = |time: BootTime| BootTime::from_nanos(time.as_nanos().saturating_sub(early));
        let bound = self.machine.bound(id).map(before);
        Standing { stop_at: before(self.machine.term(id)), bound, stop }
    }

    fn note_term(&self, id: WorkerId, standing: &Standing) {
        let until = standing.bound.map_or(standing.stop_at, |bound| bound.min(standing.stop_at));
        let until = self.process.since_began(until);
        self.chronicle.note(&self.process.name, Happening::Term(id, until));
    }

    /// Brings what keepers know up to date with the machine.
    fn sync(&mut self) {
        for (id, host) in &self.hosts {
            let next = self.standing(*id, host.standing.borrow().stop);
            let is_new = *host.standing.borrow() != next;
            if is_new {
                self.note_term(*id, &next);
                host.standing.send_replace(next);
            }
        }
    }

    fn acquire(&self, resource: ResourceName) {
        let session = self.session.clone();
        let inbox = self.inbox.clone();
        tokio::spawn(async move {
            let got = session.try_acquire(resource.kind.as_str(), resource.key.as_str()).await;
            tell_outcome(&inbox, resource, got).await;
        });
    }

    fn take_over(&self, resource: ResourceName) {
        let session = self.session.clone();
        let inbox = self.inbox.clone();
        tokio::spawn(async move {
            let kind = resource.kind.as_str();
            let key = resource.key.as_str();
            let got = match session.take_over(kind, key, TAKE_OVER_WITHIN).await {
                Ok(Some(guard)) => Ok(guard),
                Ok(None) => {
                    let _ = inbox.send(Inbound::NotWon(resource, None)).await;
                    return;
                }
                Err(AcquireError::Refused { refusal, .. }) if !refusal.is_worth_another_try() => {
                    session.try_acquire(kind, key).await
                }
                Err(error) => Err(error),
            };
            tell_outcome(&inbox, resource, got).await;
        });
    }

    fn adopt(&mut self, resource: ResourceName) {
        let found = self.session.unclaimed().into_iter().find(|lease| lease.resource == resource);
        let Some(lease) = found else { return self.tell(Input::NotGranted { resource, retry_after: None }) };
        let session = self.session.clone();
        let inbox = self.inbox.clone();
        tokio::spawn(async move {
            match session.adopt(&lease).await.transpose() {
                Some(adopted) => tell_outcome(&inbox, resource, adopted).await,
                None => drop(inbox.send(Inbound::NotWon(resource, None)).await),
            }
        });
    }

    /// Takes up a lease that was granted, unless it was lost meanwhile.
    fn take_up(&mut self, resource: ResourceName, guard: Guard) {
        let granted = Granted {
            token: guard.token().0,
            lease_id: guard.lease_id().0,
            state: guard.state(),
            sequence: guard.state_sequence(),
            config: None,
            trusted_until: guard.deadline(),
        };
        let lost = guard.check().err().map(|lost| lost.to_string());
        let guard = Arc::new(guard);
        let (orders, ordered) = mpsc::channel(1);
        tokio::spawn(tend(guard.clone(), ordered, self.inbox.clone()));
        let is_told = lost.is_some();
        self.leases.insert(resource.clone(), TendedLease { orders, guard, is_told });
        match lost {
            Some(why) => self.tell(Input::LostAtGrant { resource, why }),
            None => self.tell(Input::Granted { resource, granted }),
        }
    }

    fn find_losses(&mut self) {
        let untold = self.leases.iter_mut().filter(|(_, lease)| !lease.is_told);
        let lost = |(resource, lease): (&ResourceName, &mut TendedLease)| {
            let why = lease.guard.check().err()?.to_string();
            lease.is_told = true;
            Some(Input::Lost { resource: resource.clone(), why, until: lease.guard.deadline() })
        };
        let losses: Vec<Input> = untold.filter_map(lost).collect();
        for loss in losses {
            self.tell(loss);
        }
    }

    /// Follows the deadlines: of the session, and of each lease.
    fn look(&mut self) {
        self.find_losses();
        let session = self.session.deadline();
        let deadlines =
            self.leases.iter().map(|(resource, lease)| (resource.clone(), lease.guard.deadline()));
        let leases: BTreeMap<ResourceName, BootTime> = deadlines.collect();
        if (session, &leases) != (self.trusted.0, &self.trusted.1) {
            self.trusted = (session, leases.clone());
            self.tell(Input::Renewed { session, leases });
            self.find_strays();
        }
    }

    /// Finds what the session holds without having asked for it.
    fn find_strays(&mut self) {
        for HeldLease { resource, .. } in self.session.unclaimed() {
            if !self.leases.contains_key(&resource) && !self.machine.is_busy_with(&resource) {
                self.tell(Input::Found(resource));
            }
        }
    }
}

async fn tell_outcome(
    inbox: &mpsc::Sender<Inbound>,
    resource: ResourceName,
    got: Result<Guard, AcquireError>,
) {
    let told = match got {
        Ok(guard) => Inbound::Won(resource, Box::new(guard)),
        Err(AcquireError::Refused { refusal, .. }) => {
            Inbound::NotWon(resource, refusal.retry_after.map(|time| time + AFTER_EXPIRY))
        }
        Err(_) => Inbound::NotWon(resource, None),
    };
    let _ = inbox.send(told).await;
}

/// Reports what happens to a lease, and releases it when it is told to.
async fn tend(guard: Arc<Guard>, mut orders: mpsc::Receiver<()>, inbox: mpsc::Sender<Inbound>) {
    let mut is_told = false;
    let mut next_holder = None::<String>;
    loop {
        tokio::select! {
            order = orders.recv() => match order {
                Some(()) => break,
                None => {
                    // Dropping a guard releases its lease, and there is no proof that the work has ended.
                    std::mem::forget(guard);
                    return;
                }
            },
            offer = guard.offer_changed(next_holder.as_deref()), if !is_told => {
                next_holder = offer.as_ref().map(|(to, _)| to.clone());
                let until = offer.map(|(_, until)| until);
                let _ = inbox.send(Inbound::HandOver(guard.resource().clone(), until)).await;
            }
            _ = guard.lost(), if !is_told => {
                is_told = true;
                let _ = inbox.send(Inbound::Lost).await;
            }
        }
    }
    let resource = guard.resource().clone();
    let guard = Arc::into_inner(guard).expect("the driver gave its share up before it asked for the release");
    let _ = tokio::time::timeout(RELEASE_MAX, guard.release()).await;
    let _ = inbox.send(Inbound::Released(resource)).await;
}
