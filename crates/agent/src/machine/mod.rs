//! What the agent does, as a machine that reads no clock, sends nothing and starts nothing: events in, actions out.
//!
//! ```text
//!   a resource   wanted ──Acquire──> asked ──Granted──> held ──────────────────> ending ──Release──> releasing ──> free
//!                   |                  ^                 |  no longer wanted, lost,  |  drained, or its worker is gone
//!                   └─> preparing ─────┘ TakeOver        |  handed over, draining    |
//!   a worker                             starting ──> running ──> stopping ──> gone, or after a pause started again
//! ```
//! Each resource that is held belongs to one worker. Whether work has ended on it needs proof: the worker's word with
//! the id of the question, or that nothing of the worker is left. Only then is the lease released.

mod ending;
mod preparing;
mod view;
mod workers;

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;
use solehold_client::{Resource, assignments::Want};
use solehold_clock::BootTime;
use uuid::Uuid;

pub use self::view::{ResourceView, WorkerPhase, WorkerView};
use self::workers::Worker;
use crate::{
    keep::JobEnd,
    worker::{Assignment, Bounds, FromWorker, Notice, ToWorker},
};

/// The longest pause before asking again for what the server assigns.
const ASSIGNED_RETRY_MAX: Duration = Duration::from_secs(1);

/// The number of a worker: it keeps it through restarts.
pub type WorkerId = u32;

/// What the machine keeps to.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// How many workers run at once.
    pub max_workers: usize,
    /// How many resources one of them works on.
    pub per_worker: usize,
    /// How many resources are held at once.
    pub capacity: usize,
    /// The bounds of a worker's life.
    pub bounds: Bounds,
    /// How long to wait before asking again for what was refused.
    pub retry: Duration,
    /// How long not to ask for what workers failed at.
    pub penalty: Duration,
    /// How long everything may take from the order to drain to the end.
    pub drain: Duration,
    /// Whether the server assigns resources: then it also hands them over to others while this agent drains, and to
    /// this agent at any time. Otherwise everything is released at once.
    pub hands_over: bool,
}

impl Rules {
    /// How long to wait before asking again. What a server assigns is worth asking for when it says so again.
    fn pause(&self) -> Duration {
        if self.hands_over { self.retry.min(ASSIGNED_RETRY_MAX) } else { self.retry }
    }
}

/// A lease that was granted.
#[derive(Debug, Clone, PartialEq)]
pub struct Granted {
    /// Its fencing token.
    pub token: u64,
    /// Its identity.
    pub lease_id: Uuid,
    /// What the former holder left.
    pub state: Option<Value>,
    /// The sequence number under which that was written.
    pub sequence: Option<u64>,
    /// The configuration of the resource, if there is one.
    pub config: Option<Value>,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// These are the resources to work on, and no others.
    Wanted(BTreeMap<Resource, Want>),
    /// One was granted.
    Granted {
        /// Which.
        resource: Resource,
        /// How.
        granted: Granted,
    },
    /// One was not.
    NotGranted {
        /// Which.
        resource: Resource,
        /// It may be free after this time.
        retry_after: Option<Duration>,
    },
    /// Everything that is held is trusted until then.
    Renewed(BootTime),
    /// A lease is lost: the work on it must have ended by then.
    Lost {
        /// Which.
        resource: Resource,
        /// Why, for people.
        why: String,
        /// Its old deadline.
        until: BootTime,
    },
    /// The agent must release a resource, for example because it goes to another runner.
    Asked {
        /// Which.
        resource: Resource,
        /// The id of the hand-over, which the worker echoes.
        id: Option<String>,
        /// Why, for people.
        why: String,
    },
    /// The session holds this without having asked for it, as when someone handed it over.
    Found(Resource),
    /// A lease ran out, and was won back under another token; its work went on.
    WonBack {
        /// Which.
        resource: Resource,
        /// The new token.
        token: u64,
        /// The new identity.
        lease_id: Uuid,
    },
    /// A release has come to its end, one way or the other.
    Released(Resource),
    /// The configuration of a resource has changed.
    Configured {
        /// Which.
        resource: Resource,
        /// All of it.
        config: Value,
    },
    /// Something about a worker.
    Worker {
        /// Which.
        id: WorkerId,
        /// Of which run.
        run: u32,
        /// What.
        news: News,
    },
    /// Stop acquiring, end everything, and finish.
    Drain,
    /// Other rules from now on.
    Rules(Box<Rules>),
    /// Time has passed.
    Tick,
}

/// Something about a worker.
#[derive(Debug, Clone, PartialEq)]
pub enum News {
    /// It has connected to the socket: it speaks.
    Connected,
    /// It said this.
    Said(FromWorker),
    /// It notified this.
    Notified(Notice),
    /// Nothing of it is left.
    Ended(JobEnd),
}

/// What to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Ask for a lease.
    Acquire(Resource),
    /// Ask the present holder for it: a worker is prepared, as far as it can be.
    TakeOver(Resource),
    /// Take up a lease that the session holds already.
    Adopt(Resource),
    /// Release one: nothing works under it any more.
    Release {
        /// Which.
        resource: Resource,
        /// What the next holder gets.
        state: Option<Value>,
        /// Why, for people.
        why: String,
    },
    /// Write the state document of a resource.
    WriteState {
        /// Which.
        resource: Resource,
        /// What the next holder gets.
        document: Value,
    },
    /// Start a worker.
    Start {
        /// Which.
        worker: WorkerId,
        /// The number of this run.
        run: u32,
        /// What it works on.
        assignments: Vec<Assignment>,
    },
    /// Tell a worker something.
    Tell {
        /// Which.
        worker: WorkerId,
        /// What.
        message: ToWorker,
    },
    /// SIGTERM to a worker, and SIGKILL after the grace.
    Stop {
        /// Which.
        worker: WorkerId,
        /// How long it has.
        grace: Duration,
        /// Why, for people.
        why: String,
    },
    /// Tell the server that its workers failed at this, so that other runners are preferred for it.
    Report {
        /// What.
        resource: Resource,
        /// Why, for people.
        why: String,
    },
    /// People should know this.
    Note(String),
    /// Nothing is left to do.
    Finish,
}

/// A resource, as far as this agent is concerned.
#[derive(Debug, Clone, Default)]
struct Slot {
    is_wanted: bool,
    /// Another runner hands it over.
    moves: bool,
    lease: Lease,
    worker: Option<WorkerId>,
    /// What the worker prepared for it under.
    prepared: Option<String>,
    /// It is not asked for before this.
    not_before: Option<BootTime>,
}

/// How far a lease is.
#[derive(Debug, Clone, Default)]
enum Lease {
    #[default]
    None,
    Preparing(Preparing),
    Asked,
    Held(Holding),
    Ending(Box<Ending>),
    Releasing,
}

/// A worker gets ready for what another runner still holds.
#[derive(Debug, Clone)]
struct Preparing {
    /// To be echoed by the worker.
    id: String,
    /// Then it is given up.
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

/// Work that is to end on a resource.
#[derive(Debug, Clone)]
struct Ending {
    holding: Holding,
    /// To be echoed by the worker.
    id: String,
    why: String,
    /// Then the worker itself is stopped.
    until: BootTime,
    /// Then it is killed.
    kill_at: BootTime,
}

#[derive(Debug, Clone, Copy)]
struct Drain {
    /// Then what nobody has taken over is released.
    release_at: BootTime,
    until: BootTime,
}

/// The machine.
#[derive(Debug)]
pub struct Machine {
    rules: Rules,
    slots: BTreeMap<Resource, Slot>,
    workers: BTreeMap<WorkerId, Worker>,
    /// What its workers failed at lately: why, and how long that is remembered.
    failed: BTreeMap<Resource, (String, BootTime)>,
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
    /// An agent that works on nothing yet.
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
    pub fn handle(&mut self, now: BootTime, unit: f64, event: Event) -> Vec<Action> {
        match event {
            Event::Wanted(wanted) => self.want(now, wanted),
            Event::Granted { resource, granted } => self.granted(now, resource, granted),
            Event::NotGranted { resource, retry_after } => self.not_granted(now, &resource, retry_after),
            Event::Renewed(until) => self.trusted_until = until,
            Event::Lost { resource, why, until } => self.lost(now, &resource, &why, until),
            Event::Asked { resource, id, why } => self.end(now, &resource, id, &why),
            Event::Found(resource) => self.found(resource),
            Event::WonBack { resource, token, lease_id } => self.won_back(now, &resource, token, lease_id),
            Event::Released(resource) => self.released(now, &resource),
            Event::Configured { resource, config } => self.configured(&resource, config),
            Event::Worker { id, run, news } => self.worker_news(now, unit, id, run, news),
            Event::Drain => self.begin_drain(now),
            Event::Rules(rules) => self.rules = *rules,
            Event::Tick => {}
        }
        self.settle(now);
        std::mem::take(&mut self.actions)
    }

    /// When [`Self::handle`] must be called at the latest, with [`Event::Tick`] if nothing else happens.
    pub fn due(&self) -> Option<BootTime> {
        let slots = self.slots.values().filter_map(|slot| match &slot.lease {
            Lease::Ending(ending) if !self.is_stopping(slot.worker) => Some(ending.until),
            Lease::Preparing(preparing) => Some(preparing.until),
            Lease::None if slot.is_wanted && self.has_room() => slot.not_before,
            _ => None,
        });
        let workers = self.workers.values().filter_map(|worker| worker.due(&self.rules.bounds));
        let is_held = self.slots.values().any(|slot| matches!(slot.lease, Lease::Held(_)));
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
        self.failed.retain(|_, (_, until)| now < *until);
        self.slots.retain(|_, slot| slot.is_wanted || !matches!(slot.lease, Lease::None));
        let is_idle =
            self.workers.is_empty() && self.slots.values().all(|slot| matches!(slot.lease, Lease::None));
        let is_over = self.drain.is_some_and(|drain| is_idle || now >= drain.until);
        if is_over && !self.is_finished {
            self.is_finished = true;
            self.actions.push(Action::Finish);
        }
    }

    fn want(&mut self, now: BootTime, wanted: BTreeMap<Resource, Want>) {
        for (resource, slot) in &mut self.slots {
            slot.is_wanted = wanted.contains_key(resource);
        }
        for (resource, want) in wanted {
            let slot = self.slots.entry(resource).or_default();
            (slot.is_wanted, slot.moves) = (true, want == Want::Moves);
        }
        self.drop_unwanted_preparations();
        let unwanted = |slot: &Slot| !slot.is_wanted && matches!(slot.lease, Lease::Held(_));
        let ended: Vec<Resource> = self
            .slots
            .iter()
            .filter(|(_, slot)| unwanted(slot))
            .map(|(resource, _)| resource.clone())
            .collect();
        let why = match self.drain {
            Some(_) => "this runner is being drained, and no other takes it over",
            None => "it is no longer assigned to this runner",
        };
        for resource in ended {
            self.end(now, &resource, None, why);
        }
    }

    /// Asks for what is wanted, as far as there is room.
    fn acquire(&mut self, now: BootTime) {
        if self.drain.is_some() {
            return;
        }
        let is_due = |slot: &Slot| {
            slot.is_wanted
                && matches!(slot.lease, Lease::None)
                && slot.not_before.is_none_or(|time| now >= time)
        };
        let due: Vec<Resource> = self
            .slots
            .iter()
            .filter(|(_, slot)| is_due(slot))
            .map(|(resource, _)| resource.clone())
            .collect();
        for resource in due.into_iter().take(self.room()) {
            let Some(slot) = self.slots.get_mut(&resource) else { continue };
            slot.not_before = None;
            if slot.moves {
                self.prepare(now, resource);
            } else {
                slot.lease = Lease::Asked;
                self.actions.push(Action::Acquire(resource));
            }
        }
    }

    /// For how many more there is room: by the capacity, and with the workers. One on its way out takes nothing, and
    /// nothing can be started in its place before it is gone.
    fn room(&self) -> usize {
        let count = |of: fn(&Slot) -> bool| self.slots.values().filter(|slot| of(slot)).count();
        let taken = count(|slot| !matches!(slot.lease, Lease::None));
        let unplaced = count(|slot| matches!(slot.lease, Lease::Asked) && slot.worker.is_none());
        let (per_worker, workers) = (self.rules.per_worker, self.workers.values());
        let free = workers
            .filter(|worker| !worker.is_stopping())
            .map(|w| per_worker.saturating_sub(w.resources.len()));
        let new = self.rules.max_workers.saturating_sub(self.workers.len()) * per_worker;
        let with_workers = (free.sum::<usize>() + new).saturating_sub(unplaced);
        self.rules.capacity.saturating_sub(taken).min(with_workers)
    }

    fn has_room(&self) -> bool {
        self.drain.is_none() && self.room() > 0
    }

    fn granted(&mut self, now: BootTime, resource: Resource, granted: Granted) {
        let slot = self.slots.entry(resource.clone()).or_default();
        let prepared = slot.prepared.take();
        slot.lease = Lease::Held(Holding { granted, prepared, lost: None });
        if self.drain.is_some() || !slot.is_wanted {
            return self.release(&resource, None, "it is no longer wanted");
        }
        match slot.worker.filter(|id| self.workers.get(id).is_some_and(|worker| !worker.is_stopping())) {
            Some(worker) => self.take_up(now, worker, &resource),
            None => self.place(now, resource),
        }
    }

    fn not_granted(&mut self, now: BootTime, resource: &Resource, retry_after: Option<Duration>) {
        self.leave_worker(resource);
        let Some(slot) = self.slots.get_mut(resource) else { return };
        let pause = self.rules.pause();
        let pause = retry_after.map_or(pause, |told| told.min(pause));
        (slot.lease, slot.not_before) = (Lease::None, Some(now.plus(pause)));
    }

    /// A lease that was not asked for is worked on if the server assigns what there is to do; otherwise it is released.
    fn found(&mut self, resource: Resource) {
        let slot = self.slots.entry(resource.clone()).or_default();
        // A worker that prepares for it need not answer first.
        if !matches!(slot.lease, Lease::None | Lease::Preparing(_)) {
            return;
        }
        slot.is_wanted |= self.rules.hands_over;
        slot.lease = Lease::Asked;
        self.actions.push(Action::Adopt(resource));
    }

    /// Whether a resource concerns this agent.
    pub fn knows(&self, resource: &Resource) -> bool {
        self.slots.contains_key(resource)
    }

    /// Whether a lease is being asked for, held or released.
    pub fn is_busy_with(&self, resource: &Resource) -> bool {
        let is_free = |slot: &Slot| matches!(slot.lease, Lease::None | Lease::Preparing(_));
        self.slots.get(resource).is_some_and(|slot| !is_free(slot))
    }

    /// The worker shows the new token from now on: a gate that knows of the grant refuses the old one.
    fn won_back(&mut self, now: BootTime, resource: &Resource, token: u64, lease_id: Uuid) {
        let Some(slot) = self.slots.get_mut(resource) else { return };
        let holding = match &mut slot.lease {
            Lease::Held(holding) => holding,
            Lease::Ending(ending) => &mut ending.holding,
            Lease::None | Lease::Preparing(_) | Lease::Asked | Lease::Releasing => return,
        };
        (holding.granted.token, holding.granted.lease_id) = (token, lease_id);
        if let (Lease::Held(_), Some(worker)) = (&slot.lease, slot.worker) {
            self.take_up(now, worker, resource);
        }
    }

    fn released(&mut self, now: BootTime, resource: &Resource) {
        let Some(slot) = self.slots.get_mut(resource) else { return };
        if matches!(slot.lease, Lease::Releasing) {
            slot.lease = Lease::None;
            let soonest = now.plus(self.rules.pause());
            slot.not_before = Some(slot.not_before.map_or(soonest, |time| time.max(soonest)));
        }
    }

    fn configured(&mut self, resource: &Resource, config: Value) {
        let Some(slot) = self.slots.get_mut(resource) else { return };
        let Lease::Held(holding) = &mut slot.lease else { return };
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
    fn release(&mut self, resource: &Resource, last_word: Option<Value>, why: &str) {
        let Some(slot) = self.slots.get_mut(resource) else { return };
        if matches!(slot.lease, Lease::None | Lease::Preparing(_) | Lease::Asked | Lease::Releasing) {
            return;
        }
        slot.lease = Lease::Releasing;
        self.leave_worker(resource);
        let (resource, why) = (resource.clone(), why.to_owned());
        self.actions.push(Action::Release { resource, state: last_word, why });
    }

    /// No worker works on it, or prepares to.
    fn leave_worker(&mut self, resource: &Resource) {
        let Some(slot) = self.slots.get_mut(resource) else { return };
        slot.prepared = None;
        if let Some(worker) = slot.worker.take().and_then(|id| self.workers.get_mut(&id)) {
            worker.resources.remove(resource);
        }
    }

    fn assignment(&self, resource: &Resource, holding: &Holding) -> Assignment {
        let granted = &holding.granted;
        Assignment {
            resource: resource.to_string(),
            token: granted.token,
            lease_id: granted.lease_id,
            handover_id: holding.prepared.clone(),
            state: granted.state.clone(),
            sequence: granted.sequence,
            config: granted.config.clone(),
            deadline_boottime_ms: self.trusted_until.as_ms(),
        }
    }

    /// What a worker works on now.
    pub fn assignments(&self, worker: WorkerId) -> Vec<Assignment> {
        let held = self.slots.iter().filter(|(_, slot)| slot.worker == Some(worker));
        let of = |(resource, slot): (&Resource, &Slot)| match &slot.lease {
            Lease::Held(holding) => Some(self.assignment(resource, holding)),
            _ => None,
        };
        held.filter_map(of).collect()
    }
}

#[cfg(test)]
mod tests;
