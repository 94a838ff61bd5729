//! Decides what the agent does. The machine reads no clock, sends nothing and starts nothing: inputs in, actions out.
//!
//! ```text
//!   a resource   wanted ──Acquire──> asked ──Granted──> held ──────────────────> ending ──Release──> releasing ──> free
//!                   |                  ^                 |  no longer wanted, lost,  |  drained, or its worker is gone
//!                   └─> preparing ─────┘ TakeOver        |  handed over, draining    |
//!   a worker                             starting ──> running ──> stopping ──> gone, or after a pause started again
//! ```
//! Each held resource belongs to one worker. A lease is released only with proof that the work on it has ended: the
//! worker's report with the id of the request, or the end of all its processes.
//!
//! ```text
//!   wanting     which resources to acquire, keep and release      terms      until when a worker may run or start
//!   preparing   getting ready for a hand-over to this runner      ending     how work on a resource comes to its end
//!   workers     which worker works on which resource              view       the state, for status pages
//! ```

mod ending;
mod preparing;
mod terms;
mod view;
mod wanting;
mod workers;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::{Map, Value};
use solehold_client::{ResourceName, assignments::Want};
use solehold_clock::BootTime;
use uuid::Uuid;

pub use self::ending::WORKERS_PART;
pub use self::view::{ResourceView, WorkerPhase, WorkerView};
use self::{wanting::Need, workers::Worker};
use crate::{
    keep::JobEnd,
    worker::{Assignment, Bounds, FromWorker, Notice, ToWorker},
};

/// The number of a worker: it keeps it through restarts.
pub type WorkerId = u32;

#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// How many workers run at once.
    pub max_workers: usize,
    /// How many resources one worker works on.
    pub per_worker: usize,
    /// How many resources are held at once.
    pub capacity: usize,
    pub bounds: Bounds,
    /// How long to wait before acquiring a resource again that was refused.
    pub retry: Duration,
    /// How long not to acquire a resource that workers failed at.
    pub penalty: Duration,
    /// How long draining may take in all.
    pub drain: Duration,
    /// A worker is not started later than this before its lease deadline: its keeper would stop it at once.
    pub start_before: Duration,
    /// How long workers continue past the deadline while no server answers.
    pub grace: Duration,
    /// Whether the server assigns resources: then it also hands them over to others while this agent drains, and to
    /// this agent at any time. Otherwise everything is released at once.
    pub hands_over: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Granted {
    pub token: u64,
    pub lease_id: Uuid,
    /// The state document of the former holder.
    pub state: Option<Value>,
    /// The sequence number under which that was written.
    pub sequence: Option<u64>,
    pub config: Option<Value>,
    /// Until when no other holder can have it, unless it is renewed before.
    pub trusted_until: BootTime,
}

/// What happened outside the machine.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// These are the resources to work on, and no others.
    Wanted(BTreeMap<ResourceName, Want>),
    /// The server's assignments. A held resource that they do not name is kept: the server may not know of it yet.
    Assigned {
        acquire: BTreeMap<ResourceName, Want>,
        /// Held, as far as the server knows: to be kept until it is lost.
        keep: BTreeSet<ResourceName>,
        release: BTreeSet<ResourceName>,
    },
    /// A lease was granted.
    Granted { resource: ResourceName, granted: Granted },
    /// A lease was not granted; it may be free after this time.
    NotGranted { resource: ResourceName, retry_after: Option<Duration> },
    /// A lease was granted, and lost before its work began.
    LostAtGrant { resource: ResourceName, why: String },
    /// New deadlines of the session, for leases granted from now on, and of each held lease.
    Renewed { session: BootTime, leases: BTreeMap<ResourceName, BootTime> },
    /// A lease is lost: the work on it must have ended by `until`, its old deadline.
    Lost { resource: ResourceName, why: String, until: BootTime },
    /// The next holder of a resource requests it, and waits until `until`. The worker echoes the id of the hand-over.
    Asked { resource: ResourceName, id: Option<String>, why: String, until: BootTime },
    /// The next holder no longer waits for a resource.
    CalledOff(ResourceName),
    /// The session holds a lease that it did not acquire, as when an operator handed it over.
    Found(ResourceName),
    /// A lease expired and was reclaimed under another token; its work continued.
    WonBack { resource: ResourceName, token: u64, lease_id: Uuid },
    /// A release has succeeded, or was given up.
    Released(ResourceName),
    /// The configuration of a resource has changed.
    Configured { resource: ResourceName, config: Value },
    /// An event of one run of a worker.
    Worker { id: WorkerId, run: u32, news: News },
    /// Stop acquiring, stop all workers, and finish.
    Drain,
    /// The configuration has changed.
    Rules(Box<Rules>),
    /// Time has passed.
    Tick,
}

/// An event of a worker.
#[derive(Debug, Clone, PartialEq)]
pub enum News {
    /// It has connected to the socket: it speaks the protocol.
    Connected,
    Said(FromWorker),
    Notified(Notice),
    /// None of its processes is left.
    Ended(JobEnd),
}

/// What the driver has to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Request a lease.
    Acquire(ResourceName),
    /// Request a hand-over from the present holder: a worker is prepared, as far as it can be.
    TakeOver(ResourceName),
    /// Take over a lease that the session holds already.
    Adopt(ResourceName),
    /// Release a lease, with the state for the next holder: no work is left under it.
    Release { resource: ResourceName, state: Option<Value>, why: String },
    /// Write the state document of a resource, for the next holder.
    WriteState { resource: ResourceName, document: Value },
    /// Start a run of a worker.
    Start { worker: WorkerId, run: u32, assignments: Vec<Assignment> },
    /// Send a message to a worker.
    Tell { worker: WorkerId, message: ToWorker },
    /// SIGTERM to a worker, and SIGKILL after the grace.
    Stop { worker: WorkerId, grace: Duration, why: String },
    /// Report to the server that workers failed at a resource, so that it prefers other runners for it.
    Report { resource: ResourceName, why: String },
    /// Log a warning.
    Note(String),
    /// The agent can exit.
    Finish,
}

#[derive(Debug, Clone, Default)]
struct Slot {
    need: Need,
    lease: LeaseState,
    worker: Option<WorkerId>,
    /// What the worker prepared for it under.
    prepared: Option<String>,
    /// It is not acquired before this time.
    not_before: Option<BootTime>,
}

#[derive(Debug, Clone, Default)]
enum LeaseState {
    #[default]
    None,
    Preparing(Preparing),
    Asked,
    Held(Holding),
    Ending(Box<Ending>),
    Releasing,
}

/// A worker prepares for a resource that another runner still holds.
#[derive(Debug, Clone)]
struct Preparing {
    /// To be echoed by the worker.
    id: String,
    /// The preparation is given up then.
    until: BootTime,
}

#[derive(Debug, Clone)]
struct Holding {
    granted: Granted,
    /// What the worker prepared for it under.
    prepared: Option<String>,
    /// Its old deadline, when it was lost.
    lost: Option<BootTime>,
}

/// Work on a resource that must end.
#[derive(Debug, Clone)]
struct Ending {
    holding: Holding,
    /// To be echoed by the worker.
    id: String,
    why: String,
    /// It ends for a next holder that waits until then; if that holder gives up, the work continues.
    offer: Option<BootTime>,
    /// The worker itself is stopped then.
    until: BootTime,
    /// The worker is killed then.
    kill_at: BootTime,
}

#[derive(Debug, Clone, Copy)]
struct Drain {
    /// Resources that no other runner has taken over are released then.
    release_at: BootTime,
    until: BootTime,
}

#[derive(Debug)]
pub struct Machine {
    rules: Rules,
    slots: BTreeMap<ResourceName, Slot>,
    workers: BTreeMap<WorkerId, Worker>,
    /// Resources that workers failed at lately: why, and until when that is remembered.
    failed: BTreeMap<ResourceName, (String, BootTime)>,
    trusted_until: BootTime,
    drain: Option<Drain>,
    is_finished: bool,
    /// Numbers for questions to workers.
    asked: u64,
    /// A worker has spoken by the socket: so will the next ones, and they can be asked to prepare.
    workers_speak: bool,
    actions: Vec<Action>,
}

impl Machine {
    pub fn new(rules: Rules, trusted_until: BootTime) -> Self {
        Self {
            rules,
            slots: BTreeMap::new(),
            workers: BTreeMap::new(),
            failed: BTreeMap::new(),
            trusted_until,
            drain: None,
            is_finished: false,
            asked: 0,
            workers_speak: false,
            actions: Vec::new(),
        }
    }

    /// Something happened at `now`; gives what to do. `unit` is a random number from 0 to 1.
    pub fn handle(&mut self, now: BootTime, unit: f64, event: Input) -> Vec<Action> {
        match event {
            Input::Wanted(wanted) => self.want(now, wanted),
            Input::Assigned { acquire, keep, release } => self.assigned(now, acquire, &keep, &release),
            Input::Granted { resource, granted } => self.granted(now, resource, granted),
            Input::NotGranted { resource, retry_after } => self.not_granted(now, &resource, retry_after),
            Input::LostAtGrant { resource, why } => self.granted_in_vain(&resource, &why),
            Input::Renewed { session, leases } => self.renewed(session, &leases),
            Input::Lost { resource, why, until } => self.lost(now, &resource, &why, until),
            Input::Asked { resource, id, why, until } => self.hand_over(now, &resource, id, &why, until),
            Input::CalledOff(resource) => self.called_off(&resource),
            Input::Found(resource) => self.found(resource),
            Input::WonBack { resource, token, lease_id } => self.won_back(&resource, token, lease_id),
            Input::Released(resource) => self.released(now, &resource),
            Input::Configured { resource, config } => self.configured(&resource, config),
            Input::Worker { id, run, news } => self.worker_news(now, unit, id, run, news),
            Input::Drain => self.begin_drain(now),
            Input::Rules(rules) => self.rules = *rules,
            Input::Tick => {}
        }
        self.settle(now);
        std::mem::take(&mut self.actions)
    }

    /// When [`Self::handle`] must be called at the latest, with [`Input::Tick`] if nothing else happens.
    pub fn due(&self) -> Option<BootTime> {
        let slots = self.slots.values().filter_map(|slot| match &slot.lease {
            LeaseState::Ending(ending) if !self.is_stopping(slot.worker) => Some(ending.until),
            LeaseState::Preparing(preparing) => Some(preparing.until),
            LeaseState::None if slot.need.is_to_get() && self.has_room() => slot.not_before,
            _ => None,
        });
        let workers = self.workers.values().filter_map(|worker| worker.due(&self.rules.bounds));
        let is_held = self.slots.values().any(|slot| matches!(slot.lease, LeaseState::Held(_)));
        let drain = self.drain.map(|drain| if is_held { drain.release_at } else { drain.until });
        slots.chain(workers).chain(drain).min()
    }

    /// What follows from how things are now, in whatever way they came to be so.
    fn settle(&mut self, now: BootTime) {
        self.acquire(now);
        self.give_up_preparing(now);
        self.go_on_draining(now);
        self.end_overdue(now);
        self.look_after_workers(now);
        self.give_work(now);
        self.failed.retain(|_, (_, until)| now < *until);
        self.slots.retain(|_, slot| slot.need.is_to_get() || !matches!(slot.lease, LeaseState::None));
        let is_idle =
            self.workers.is_empty() && self.slots.values().all(|slot| matches!(slot.lease, LeaseState::None));
        let is_over = self.drain.is_some_and(|drain| is_idle || now >= drain.until);
        if is_over && !self.is_finished {
            self.is_finished = true;
            self.actions.push(Action::Finish);
        }
    }

    fn granted(&mut self, now: BootTime, resource: ResourceName, granted: Granted) {
        let slot = self.slots.entry(resource.clone()).or_default();
        let prepared = slot.prepared.take();
        slot.lease = LeaseState::Held(Holding { granted, prepared, lost: None });
        if self.drain.is_some() || !slot.need.is_some() {
            return self.release(&resource, None, "the resource is no longer wanted");
        }
        let is_prepared = slot.worker.and_then(|id| self.workers.get(&id)).is_some_and(|w| !w.is_stopping());
        if !is_prepared {
            self.leave_worker(&resource);
            self.place(now, resource);
        }
    }

    /// Nothing was begun under it: it is released, so that nobody waits for its old deadline.
    fn granted_in_vain(&mut self, resource: &ResourceName, why: &str) {
        self.leave_worker(resource);
        self.slots.entry(resource.clone()).or_default().lease = LeaseState::Releasing;
        let resource = resource.clone();
        let why = format!("the lease was lost before any work began: {why}");
        self.actions.push(Action::Release { resource, state: None, why });
    }

    fn not_granted(&mut self, now: BootTime, resource: &ResourceName, retry_after: Option<Duration>) {
        self.leave_worker(resource);
        let Some(slot) = self.slots.get_mut(resource) else { return };
        let pause = self.rules.pause();
        let pause = retry_after.map_or(pause, |told| told.min(pause));
        (slot.lease, slot.not_before) = (LeaseState::None, Some(now.plus(pause)));
    }

    /// A lease that was not asked for is worked on if the server assigns what there is to do; otherwise it is released.
    fn found(&mut self, resource: ResourceName) {
        let slot = self.slots.entry(resource.clone()).or_default();
        // A worker that prepares for it need not answer first.
        if !matches!(slot.lease, LeaseState::None | LeaseState::Preparing(_)) {
            return;
        }
        if self.rules.hands_over && !slot.need.is_some() {
            slot.need = Need::WhileHeld;
        }
        slot.lease = LeaseState::Asked;
        self.actions.push(Action::Adopt(resource));
    }

    /// The worker that works on a resource, or will.
    pub fn worker_of(&self, resource: &ResourceName) -> Option<WorkerId> {
        self.slots.get(resource)?.worker
    }

    /// What the workers say about their work under each lease that is held.
    pub fn lease_stats(&self) -> Vec<(Uuid, Map<String, Value>)> {
        let of = |(resource, slot): (&ResourceName, &Slot)| {
            let worker = self.workers.get(&slot.worker?)?;
            let LeaseState::Held(holding) = &slot.lease else { return None };
            let stats = worker.resource_stats.get(&resource.to_string()).unwrap_or(&worker.stats);
            (!stats.is_empty()).then(|| (holding.granted.lease_id, stats.clone()))
        };
        self.slots.iter().filter_map(of).collect()
    }

    pub fn knows(&self, resource: &ResourceName) -> bool {
        self.slots.contains_key(resource)
    }

    /// Whether a lease is being asked for, held or released.
    pub fn is_busy_with(&self, resource: &ResourceName) -> bool {
        let is_free = |slot: &Slot| matches!(slot.lease, LeaseState::None | LeaseState::Preparing(_));
        self.slots.get(resource).is_some_and(|slot| !is_free(slot))
    }

    /// The worker shows the new token from now on: a gate that knows of the grant refuses the old one.
    fn won_back(&mut self, resource: &ResourceName, token: u64, lease_id: Uuid) {
        if let Some(holding) = self.slots.get_mut(resource).and_then(Slot::holding_mut) {
            (holding.granted.token, holding.granted.lease_id) = (token, lease_id);
        }
    }

    fn released(&mut self, now: BootTime, resource: &ResourceName) {
        let Some(slot) = self.slots.get_mut(resource) else { return };
        if matches!(slot.lease, LeaseState::Releasing) {
            slot.lease = LeaseState::None;
            let soonest = now.plus(self.rules.pause());
            slot.not_before = Some(slot.not_before.map_or(soonest, |time| time.max(soonest)));
        }
    }

    fn configured(&mut self, resource: &ResourceName, config: Value) {
        let Some(slot) = self.slots.get_mut(resource) else { return };
        let LeaseState::Held(holding) = &mut slot.lease else { return };
        if holding.granted.config.as_ref() == Some(&config) {
            return;
        }
        holding.granted.config = Some(config.clone());
        let message = ToWorker::Config { resource: resource.to_string(), config };
        if let Some(worker) = slot.worker.filter(|id| self.workers.get(id).is_some_and(Worker::hears)) {
            self.actions.push(Action::Tell { worker, message });
        }
    }

    /// Nothing works on it any more: it is released.
    fn release(&mut self, resource: &ResourceName, last_word: Option<Value>, why: &str) {
        let slot = self.slots.get_mut(resource).filter(|slot| slot.holding().is_some());
        let Some(slot) = slot else { return };
        slot.lease = LeaseState::Releasing;
        self.leave_worker(resource);
        let resource = resource.clone();
        let why = why.to_owned();
        self.actions.push(Action::Release { resource, state: last_word, why });
    }

    /// No worker works on it, or prepares to.
    fn leave_worker(&mut self, resource: &ResourceName) {
        let Some(slot) = self.slots.get_mut(resource) else { return };
        slot.prepared = None;
        if let Some(worker) = slot.worker.take().and_then(|id| self.workers.get_mut(&id)) {
            worker.resources.remove(resource);
            worker.given.remove(resource);
        }
    }

    fn assignment(&self, resource: &ResourceName, holding: &Holding) -> Assignment {
        let granted = &holding.granted;
        Assignment {
            resource: resource.to_string(),
            token: granted.token,
            lease_id: granted.lease_id,
            handover_id: holding.prepared.clone(),
            state: granted.state.clone(),
            sequence: granted.sequence,
            config: granted.config.clone(),
            deadline_boottime_ms: granted.trusted_until.as_ms(),
        }
    }

    pub fn assignments(&self, worker: WorkerId) -> Vec<Assignment> {
        let held = self.slots.iter().filter(|(_, slot)| slot.worker == Some(worker));
        let of = |(resource, slot): (&ResourceName, &Slot)| match &slot.lease {
            LeaseState::Held(holding) => Some(self.assignment(resource, holding)),
            _ => None,
        };
        held.filter_map(of).collect()
    }
}

#[cfg(test)]
mod tests;
