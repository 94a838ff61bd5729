//! How work on a resource comes to its end: asked for, proved, and otherwise enforced.

use std::time::Duration;

use serde_json::Value;
use solehold_client::ResourceName;
use solehold_clock::BootTime;

use super::{Action, Drain, Ending, LeaseState, Machine, Need, Slot, Worker, WorkerId};
use crate::worker::{MessageError, ToWorker};

/// Of the time that there is to end, this part is for the worker to finish by itself; in the rest it is stopped.
const ASKING_PART: f64 = 2.0 / 3.0;
/// Of the drain budget, this part is for others to take over what is held; then it is released instead.
const HAND_OVER_PART: f64 = 2.0 / 3.0;
/// Of the drain budget, this part is for the workers; in the rest the last leases are released.
pub const WORKERS_PART: f64 = 0.9;

impl Machine {
    /// The work on a resource is to end. A worker that is not running, or cannot be asked, is not waited for in vain.
    pub(super) fn end(&mut self, now: BootTime, resource: &ResourceName, id: Option<String>, why: &str) {
        self.end_for(now, resource, id, why, None);
    }

    /// The next holder asks for a resource, and waits until then. If it asks again, its new time counts.
    pub(super) fn hand_over(
        &mut self,
        now: BootTime,
        resource: &ResourceName,
        id: Option<String>,
        why: &str,
        until: BootTime,
    ) {
        match self.slots.get_mut(resource).map(|slot| &mut slot.lease) {
            Some(LeaseState::Ending(ending)) if ending.offer.is_some() => ending.offer = Some(until),
            _ => self.end_for(now, resource, id, why, Some(until)),
        }
    }

    /// The next holder no longer waits: what it would have got goes on here once its work has ended.
    pub(super) fn called_off(&mut self, resource: &ResourceName) {
        if let Some(LeaseState::Ending(ending)) = self.slots.get_mut(resource).map(|slot| &mut slot.lease)
            && let Some(until) = &mut ending.offer
        {
            *until = BootTime::from_ms(0);
        }
    }

    fn end_for(
        &mut self,
        now: BootTime,
        resource: &ResourceName,
        id: Option<String>,
        why: &str,
        offer: Option<BootTime>,
    ) {
        let total = self.time_to_end(now);
        let Some(slot) = self.slots.get_mut(resource) else { return };
        let LeaseState::Held(holding) = &slot.lease else { return };
        self.asked += 1;
        let id = id.unwrap_or_else(|| format!("r{}", self.asked));
        let latest = holding.lost.unwrap_or(BootTime::from_ms(u64::MAX));
        let until = now.plus(total.mul_f64(ASKING_PART)).min(latest);
        let kill_at = now.plus(total).min(latest);
        let holding = holding.clone();
        let why_so = why.to_owned();
        let ending = Ending { holding, id: id.clone(), why: why_so, offer, until, kill_at };
        slot.lease = LeaseState::Ending(Box::new(ending));
        let Some(worker) = slot.worker else { return self.release(resource, None, why) };
        match self.workers.get(&worker) {
            Some(it) if it.hears() => {
                let message = ToWorker::Revoke {
                    id,
                    resource: resource.to_string(),
                    reason: why.to_owned(),
                    deadline_boottime_ms: until.as_ms(),
                };
                self.actions.push(Action::Tell { worker, message });
            }
            Some(it) if it.is_running() => self.stop_worker(now, worker, kill_at.since(now), why),
            Some(it) if it.is_stopping() => {}
            // Between two runs, or none at all.
            Some(_) | None => self.release(resource, None, why),
        }
    }

    /// How long the end of some work may take, from the question to the kill.
    fn time_to_end(&self, now: BootTime) -> Duration {
        let stop = self.rules.bounds.stop;
        self.drain.map_or(stop, |drain| stop.min(self.workers_until(drain).since(now)))
    }

    /// By then every worker has been killed; the rest of the budget is for the proof and the releases.
    pub(super) fn workers_until(&self, drain: Drain) -> BootTime {
        let rest = self.rules.drain.mul_f64(1.0 - WORKERS_PART);
        BootTime::from_nanos(drain.until.as_nanos().saturating_sub(rest.as_nanos() as u64))
    }

    /// A worker says that it has finished with a resource; only the answer to the present question counts.
    pub(super) fn drained(
        &mut self,
        now: BootTime,
        worker: WorkerId,
        id: &str,
        last_word: Option<Value>,
    ) -> Result<(), MessageError> {
        let is_it = |slot: &Slot| {
            slot.worker == Some(worker)
                && matches!(&slot.lease, LeaseState::Ending(ending) if ending.id == id)
        };
        let Some(resource) = self.slots.iter().find(|(_, slot)| is_it(slot)).map(|(r, _)| r.clone()) else {
            return Err(MessageError::NoRevoke(id.to_owned()));
        };
        self.has_ended(now, &resource, last_word);
        Ok(())
    }

    /// It is proven that the work on a resource has ended. It is released, unless that was for a next holder that no
    /// longer waits: releasing it then would leave it to nobody.
    pub(super) fn has_ended(&mut self, now: BootTime, resource: &ResourceName, last_word: Option<Value>) {
        let Some(slot) = self.slots.get_mut(resource) else { return };
        let LeaseState::Ending(ending) = &mut slot.lease else { return };
        let has_lapsed = ending.offer.is_some_and(|until| now >= until);
        if !has_lapsed || !slot.need.is_some() || ending.holding.lost.is_some() {
            let why = std::mem::take(&mut ending.why);
            return self.release(resource, last_word, &why);
        }
        let mut holding = ending.holding.clone();
        if let Some(document) = last_word {
            holding.granted.state = Some(document.clone());
            self.actions.push(Action::WriteState { resource: resource.clone(), document });
        }
        slot.lease = LeaseState::Held(holding);
        let worker = slot.worker.and_then(|id| self.workers.get_mut(&id));
        // It has finished with it, and so is given it again.
        worker.map(|worker| worker.given.remove(resource));
        self.actions.push(Action::Note(format!(
            "{resource}: the next holder no longer waits for it; the work continues here"
        )));
    }

    /// A lease is lost. Whatever its worker says or does, the work on it ends by the old deadline.
    pub(super) fn lost(&mut self, now: BootTime, resource: &ResourceName, why: &str, until: BootTime) {
        let Some(slot) = self.slots.get_mut(resource) else { return };
        if self.rules.hands_over {
            // It may have been deleted: it is not asked for again before the server says so.
            slot.need = Need::None;
        }
        match &mut slot.lease {
            LeaseState::Held(holding) => {
                holding.lost = Some(until);
                self.actions.push(Action::Note(format!("{resource}: {why}")));
                self.end(now, resource, None, why);
            }
            LeaseState::Ending(ending) => {
                ending.holding.lost = Some(until);
                ending.until = ending.until.min(until);
                ending.kill_at = ending.kill_at.min(until);
            }
            LeaseState::None | LeaseState::Preparing(_) | LeaseState::Asked | LeaseState::Releasing => {}
        }
    }

    /// Stops the workers that did not finish in time.
    pub(super) fn end_overdue(&mut self, now: BootTime) {
        let overdue = |slot: &Slot| match &slot.lease {
            LeaseState::Ending(ending) if now >= ending.until => Some((slot.worker?, ending.kill_at)),
            _ => None,
        };
        let late: Vec<(WorkerId, BootTime)> = self.slots.values().filter_map(overdue).collect();
        for (worker, kill_at) in late {
            if self.workers.get(&worker).is_some_and(Worker::is_running) {
                self.stop_worker(
                    now,
                    worker,
                    kill_at.since(now),
                    "the worker did not finish with a resource in time",
                );
            }
        }
    }

    /// Stops acquiring, and ends everything within one budget, all at the same time.
    pub(super) fn begin_drain(&mut self, now: BootTime) {
        if self.drain.is_some() {
            return;
        }
        let wait =
            if self.rules.hands_over { self.rules.drain.mul_f64(HAND_OVER_PART) } else { Duration::ZERO };
        let drain = Drain { release_at: now.plus(wait), until: now.plus(self.rules.drain) };
        self.drain = Some(drain);
        self.hasten_stops(now, self.workers_until(drain));
    }

    /// Releases what nobody has taken over in time, and at once what no worker works on.
    pub(super) fn go_on_draining(&mut self, now: BootTime) {
        let Some(drain) = self.drain else { return };
        let is_waiting = self.rules.hands_over && now < drain.release_at;
        let is_worked_on = |slot: &Slot| {
            let worker = slot.worker.and_then(|id| self.workers.get(&id));
            worker.is_some_and(|worker| worker.is_running() || worker.is_stopping())
        };
        let is_over =
            |slot: &Slot| matches!(slot.lease, LeaseState::Held(_)) && !(is_waiting && is_worked_on(slot));
        for resource in self.those(is_over) {
            self.end(now, &resource, None, "this runner is being drained");
        }
    }

    pub fn is_draining(&self) -> bool {
        self.drain.is_some()
    }
}
