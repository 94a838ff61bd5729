//! The workers: which one works on what, and what becomes of one that ends.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::{Map, Value};
use solehold_client::ResourceName;
use solehold_clock::BootTime;

use super::{Action, LeaseState, Machine, News, Slot, WorkerId};
use crate::{
    keep::JobEnd,
    worker::{Bounds, Fault, FromWorker, MessageError, Next, Notice, Supervision, ToWorker},
};

#[derive(Debug)]
pub(super) struct Worker {
    pub run: u32,
    pub phase: Phase,
    pub care: Supervision,
    pub resources: BTreeSet<ResourceName>,
    /// What this run of it was told to work on, and under which token.
    pub given: BTreeMap<ResourceName, u64>,
    /// What it last said about itself.
    pub stats: Map<String, Value>,
    /// What it last said about its work on some of its resources.
    pub resource_stats: BTreeMap<String, Map<String, Value>>,
    pub restarts: u64,
    /// It speaks by the socket, and so can be asked.
    is_connected: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Phase {
    Running,
    /// On its way out: what was wrong with it, and when it is killed.
    Stopping(Option<String>, BootTime),
    /// It ended, and is started again then.
    Pausing(BootTime),
    /// Its leases are about to run out: it is started when they are renewed.
    Starved,
}

impl Worker {
    pub fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    pub fn is_stopping(&self) -> bool {
        matches!(self.phase, Phase::Stopping(..))
    }

    pub fn hears(&self) -> bool {
        self.is_running() && self.is_connected
    }

    pub fn due(&self, bounds: &Bounds) -> Option<BootTime> {
        match self.phase {
            Phase::Running => self.care.due(bounds),
            Phase::Stopping(..) | Phase::Starved => None,
            Phase::Pausing(until) => Some(until),
        }
    }
}

impl Machine {
    pub(super) fn is_stopping(&self, worker: Option<WorkerId>) -> bool {
        worker.and_then(|id| self.workers.get(&id)).is_some_and(Worker::is_stopping)
    }

    /// Finds a worker for a resource that was granted.
    pub(super) fn place(&mut self, now: BootTime, resource: ResourceName) {
        if self.choose_worker(now, &resource).is_none() {
            // As when a worker is on its way out and the next cannot be started before it is gone.
            self.release(&resource, None, "no worker of this runner has room");
        }
    }

    /// A worker for a resource: a new one while there may be more, then the one with the fewest resources.
    pub(super) fn choose_worker(&mut self, now: BootTime, resource: &ResourceName) -> Option<WorkerId> {
        let per_worker = self.rules.per_worker;
        let id = if self.workers.len() < self.rules.max_workers {
            let worker = Worker {
                run: 0,
                phase: Phase::Pausing(now),
                care: Supervision::new(now, &self.rules.bounds),
                resources: BTreeSet::new(),
                given: BTreeMap::new(),
                stats: Map::new(),
                resource_stats: BTreeMap::new(),
                restarts: 0,
                is_connected: false,
            };
            let id = self.free_number();
            self.workers.insert(id, worker);
            id
        } else {
            let has_room = |worker: &Worker| !worker.is_stopping() && worker.resources.len() < per_worker;
            let candidates = self.workers.iter().filter(|(_, worker)| has_room(worker));
            candidates.min_by_key(|(id, worker)| (worker.resources.len(), **id)).map(|(id, _)| *id)?
        };
        self.workers.get_mut(&id)?.resources.insert(resource.clone());
        self.slots.get_mut(resource)?.worker = Some(id);
        Some(id)
    }

    /// Every worker is told what it holds, whatever has led to it: one that hears by a message, a plain process by
    /// being started again with all that it has. One that may still connect is waited for.
    pub(super) fn give_work(&mut self, now: BootTime) {
        let all: Vec<WorkerId> = self.workers.keys().copied().collect();
        for id in all {
            let Some(worker) = self.workers.get(&id).filter(|worker| worker.is_running()) else { continue };
            let is_news = |resource: &&ResourceName| match self.slots.get(*resource).map(|slot| &slot.lease) {
                Some(LeaseState::Held(holding)) => {
                    worker.given.get(*resource) != Some(&holding.granted.token)
                }
                _ => false,
            };
            let news: Vec<ResourceName> = worker.resources.iter().filter(is_news).cloned().collect();
            if worker.hears() {
                news.iter().for_each(|resource| self.assign(id, resource));
            } else if worker.care.is_ready() && !worker.care.may_speak_yet() && !news.is_empty() {
                self.stop_worker(now, id, self.rules.bounds.stop, "the worker's assignments have changed");
            }
        }
    }

    /// The lowest number that no worker has: what is called by it, such as a shard, stays within bounds.
    fn free_number(&self) -> WorkerId {
        (1..).find(|id| !self.workers.contains_key(id)).unwrap_or(WorkerId::MAX)
    }

    fn assign(&mut self, worker: WorkerId, resource: &ResourceName) {
        let Some(LeaseState::Held(holding)) = self.slots.get(resource).map(|slot| &slot.lease) else {
            return;
        };
        let token = holding.granted.token;
        let message = ToWorker::Assign(self.assignment(resource, holding));
        self.actions.push(Action::Tell { worker, message });
        self.workers.get_mut(&worker).map(|worker| worker.given.insert(resource.clone(), token));
    }

    fn start_worker(&mut self, now: BootTime, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        worker.run += 1;
        worker.restarts += u64::from(worker.run > 1);
        worker.phase = Phase::Running;
        worker.is_connected = false;
        (worker.stats, worker.resource_stats) = (Map::new(), BTreeMap::new());
        worker.care.start(now, &self.rules.bounds);
        let run = worker.run;
        let assignments = self.assignments(id);
        let given = |resource: &ResourceName| Some((resource.clone(), self.slots.get(resource)?.holding()?));
        let given = self.workers[&id].resources.iter().filter_map(given);
        let given = given.map(|(resource, holding)| (resource, holding.granted.token)).collect();
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.given = given;
        }
        self.actions.push(Action::Start { worker: id, run, assignments });
    }

    pub(super) fn stop_worker(&mut self, now: BootTime, id: WorkerId, grace: Duration, why: &str) {
        self.stop(now, id, grace, why, None);
    }

    fn stop_for(&mut self, now: BootTime, id: WorkerId, fault: &Fault) {
        let why = fault.to_string();
        self.stop(now, id, self.rules.bounds.stop, &why, Some(why.clone()));
    }

    fn stop(&mut self, now: BootTime, id: WorkerId, grace: Duration, why: &str, fault: Option<String>) {
        let grace = self.drain.map_or(grace, |drain| grace.min(self.workers_until(drain).since(now)));
        let Some(worker) = self.workers.get_mut(&id).filter(|worker| worker.is_running()) else { return };
        worker.phase = Phase::Stopping(fault, now.plus(grace));
        self.actions.push(Action::Stop { worker: id, grace, why: why.to_owned() });
    }

    /// Workers that are being stopped have less time than they were given.
    pub(super) fn hasten_stops(&mut self, now: BootTime, latest: BootTime) {
        for (id, worker) in &mut self.workers {
            if let Phase::Stopping(_, kill_at) = &mut worker.phase
                && *kill_at > latest
            {
                *kill_at = latest;
                let why = "this runner is being drained".to_owned();
                self.actions.push(Action::Stop { worker: *id, grace: latest.since(now), why });
            }
        }
    }

    /// Starts those whose pause is over, and stops those with a fault or with nothing to do.
    pub(super) fn look_after_workers(&mut self, now: BootTime) {
        let all: Vec<WorkerId> = self.workers.keys().copied().collect();
        for id in all {
            let bounds = &self.rules.bounds;
            let is_draining = self.drain.is_some();
            let is_startable = self.is_startable(now, id);
            let Some(worker) = self.workers.get_mut(&id) else { continue };
            let is_idle = worker.resources.is_empty();
            match worker.phase {
                Phase::Pausing(_) | Phase::Starved if is_idle => drop(self.workers.remove(&id)),
                Phase::Pausing(_) | Phase::Starved if is_draining => {}
                Phase::Pausing(until) if now < until => {}
                Phase::Pausing(_) | Phase::Starved if is_startable => self.start_worker(now, id),
                Phase::Pausing(_) => worker.phase = Phase::Starved,
                Phase::Running if is_idle => {
                    self.stop_worker(now, id, self.rules.bounds.stop, "the worker has nothing to work on");
                }
                Phase::Running => {
                    if let Some(fault) = worker.care.poll(now, bounds) {
                        self.stop_for(now, id, &fault);
                    }
                }
                Phase::Starved | Phase::Stopping(..) => {}
            }
        }
    }

    pub(super) fn worker_news(&mut self, now: BootTime, unit: f64, id: WorkerId, run: u32, news: News) {
        // What an earlier run said late is about that run.
        if self.workers.get(&id).is_none_or(|worker| worker.run != run) {
            return;
        }
        match news {
            News::Connected => self.connected(now, id),
            News::Said(said) => {
                if let Err(error) = self.said(now, id, said) {
                    let message = ToWorker::Error { message: error.to_string() };
                    self.actions.push(Action::Tell { worker: id, message });
                }
            }
            News::Notified(notice) => self.notified(now, id, notice),
            News::Ended(end) => self.ended(now, unit, id, &end),
        }
    }

    /// It is told all that it works on: what it was told before may have been an earlier connection's.
    fn connected(&mut self, now: BootTime, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        worker.is_connected = true;
        worker.given.clear();
        worker.care.spoke(now, &self.rules.bounds);
        self.workers_speak = true;
        for resource in worker.resources.clone() {
            self.assign(id, &resource);
            self.tell_prepare(id, &resource);
        }
    }

    fn said(&mut self, now: BootTime, id: WorkerId, said: FromWorker) -> Result<(), MessageError> {
        let Some(worker) = self.workers.get_mut(&id) else { return Ok(()) };
        worker.is_connected = true;
        worker.care.spoke(now, &self.rules.bounds);
        match said {
            FromWorker::Ready {} => worker.care.ready(now, true),
            FromWorker::Heartbeat { stats, resources } => {
                worker.care.beat(now);
                (worker.stats, worker.resource_stats) = (stats, resources);
            }
            FromWorker::State { resource, document } => self.checkpoint(id, resource.as_deref(), document)?,
            FromWorker::Drained { id: asked, state } => self.drained(now, id, &asked, state)?,
            FromWorker::Prepared { id: asked } => self.prepared(id, &asked)?,
        }
        Ok(())
    }

    /// A state document. It also goes to the next run of this worker.
    fn checkpoint(&mut self, id: WorkerId, named: Option<&str>, document: Value) -> Result<(), MessageError> {
        let Some(worker) = self.workers.get(&id) else { return Ok(()) };
        let resource = match named {
            Some(name) => worker.resources.iter().find(|resource| resource.to_string() == name),
            None if worker.resources.len() == 1 => worker.resources.first(),
            None => return Err(MessageError::ResourceMissing),
        };
        let Some(resource) = resource.cloned() else {
            return Err(MessageError::NotAssigned(named.unwrap_or_default().to_owned()));
        };
        let Some(holding) = self.slots.get_mut(&resource).and_then(Slot::holding_mut) else {
            return Err(MessageError::NotHeld(resource));
        };
        holding.granted.state = Some(document.clone());
        self.actions.push(Action::WriteState { resource, document });
        Ok(())
    }

    fn notified(&mut self, now: BootTime, id: WorkerId, notice: Notice) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        worker.care.spoke(now, &self.rules.bounds);
        match notice {
            Notice::Ready => worker.care.ready(now, false),
            Notice::Watchdog => worker.care.beat(now),
            Notice::Stopping => worker.care.stopping(),
            Notice::Extend(by) => worker.care.extend(now, by),
            Notice::Trigger => self.stop_for(now, id, &Fault::Asked),
        }
    }

    /// Nothing of it is left. That is proof that the work has ended on all that it had.
    fn ended(&mut self, now: BootTime, unit: f64, id: WorkerId, end: &JobEnd) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        worker.is_connected = false;
        worker.given.clear();
        let phase = std::mem::replace(&mut worker.phase, Phase::Pausing(now));
        for resource in worker.resources.clone() {
            match self.slots.get(&resource).map(|slot| &slot.lease) {
                Some(LeaseState::Ending(_)) => self.has_ended(now, &resource, None),
                // What it prepared with is gone with it.
                Some(LeaseState::Preparing(_)) => self.leave_worker(&resource),
                _ => {}
            }
        }
        let fault = match (phase, end) {
            (Phase::Stopping(fault, _), _) => fault,
            // Its time ran out, or it was too late to start it: nobody's fault.
            (_, JobEnd::Lost(_) | JobEnd::TooLate) => None,
            (_, JobEnd::Exited(code)) => Some(format!("the worker exited with code {code}")),
            (_, JobEnd::NotStarted(why)) => Some(format!("the worker could not be started: {why}")),
            (_, JobEnd::KeeperDied) => Some("the worker's keeper was killed".to_owned()),
        };
        if let Some(fault) = fault {
            self.failed(now, unit, id, &fault);
        }
    }

    fn failed(&mut self, now: BootTime, unit: f64, id: WorkerId, fault: &str) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        match worker.care.failed(now, &self.rules.bounds, unit) {
            Next::Restart(at) => {
                worker.phase = Phase::Pausing(at);
                let after =
                    humantime::format_duration(Duration::from_millis(at.since(now).as_millis() as u64));
                self.actions
                    .push(Action::Note(format!("worker {id} failed: {fault}; restarting in {after}")));
            }
            Next::GiveUp(failures) => self.give_up(now, id, failures, fault),
        }
    }

    /// Another runner should try.
    fn give_up(&mut self, now: BootTime, id: WorkerId, failures: u32, fault: &str) {
        let Some(worker) = self.workers.get(&id) else { return };
        let why = format!("the worker failed {failures} times in a row: {fault}");
        self.actions.push(Action::Note(format!("giving up worker {id} and releasing its leases: {why}")));
        for resource in worker.resources.clone() {
            // What is still being asked for goes to another worker, if it is granted.
            if self.slots.get(&resource).is_none_or(|slot| slot.holding().is_none()) {
                self.leave_worker(&resource);
                continue;
            }
            let until = now.plus(self.rules.penalty);
            if let Some(slot) = self.slots.get_mut(&resource) {
                slot.not_before = Some(until);
            }
            self.failed.insert(resource.clone(), (why.clone(), until));
            self.actions.push(Action::Report { resource: resource.clone(), why: why.clone() });
            self.release(&resource, None, &why);
        }
        self.workers.remove(&id);
    }
}
