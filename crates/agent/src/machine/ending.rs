//! How work on a resource comes to its end: asked for, proved, and otherwise enforced.

use std::time::Duration;

use serde_json::Value;
use solehold_client::Resource;
use solehold_clock::BootTime;

use super::{Action, Drain, Ending, Lease, Machine, Slot, Worker, WorkerId};
use crate::worker::ToWorker;

/// Of the time that there is to end, this part is for the worker to finish by itself; in the rest it is stopped.
const ASKING_PART: f64 = 2.0 / 3.0;
/// Of the drain budget, this part is for others to take over what is held; then it is released instead.
const HAND_OVER_PART: f64 = 2.0 / 3.0;
/// Of the drain budget, this part is for the workers; in the rest the last leases are released.
const WORKERS_PART: f64 = 0.9;

impl Machine {
    /// The work on a resource is to end. A worker that is not running, or cannot be asked, is not waited for in vain.
    pub(super) fn end(&mut self, now: BootTime, resource: &Resource, id: Option<String>, why: &str) {
        let total = self.time_to_end(now);
        let Some(slot) = self.slots.get_mut(resource) else { return };
        let Lease::Held(holding) = &slot.lease else { return };
        self.asked += 1;
        let id = id.unwrap_or_else(|| format!("r{}", self.asked));
        let latest = holding.lost.unwrap_or(BootTime::from_ms(u64::MAX));
        let (until, kill_at) =
            (now.plus(total.mul_f64(ASKING_PART)).min(latest), now.plus(total).min(latest));
        let ending = Ending { holding: holding.clone(), id: id.clone(), why: why.to_owned(), until, kill_at };
        slot.lease = Lease::Ending(Box::new(ending));
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

    fn workers_until(&self, drain: Drain) -> BootTime {
        let rest = self.rules.drain.mul_f64(1.0 - WORKERS_PART);
        BootTime::from_nanos(drain.until.as_nanos().saturating_sub(rest.as_nanos() as u64))
    }

    /// A worker says that it has finished with a resource; only the answer to the present question counts.
    pub(super) fn drained(
        &mut self,
        worker: WorkerId,
        id: &str,
        last_word: Option<Value>,
    ) -> Result<(), String> {
        let is_it = |slot: &Slot| {
            slot.worker == Some(worker) && matches!(&slot.lease, Lease::Ending(ending) if ending.id == id)
        };
        let Some(resource) = self.slots.iter().find(|(_, slot)| is_it(slot)).map(|(r, _)| r.clone()) else {
            return Err(format!("drained: no revoke with the id {id:?} is open"));
        };
        let why = match &self.slots[&resource].lease {
            Lease::Ending(ending) => ending.why.clone(),
            _ => String::new(),
        };
        self.release(&resource, last_word, &why);
        Ok(())
    }

    /// A lease is lost. Whatever its worker says or does, the work on it ends by the old deadline.
    pub(super) fn lost(&mut self, now: BootTime, resource: &Resource, why: &str, until: BootTime) {
        let Some(slot) = self.slots.get_mut(resource) else { return };
        match &mut slot.lease {
            Lease::Held(holding) => {
                holding.lost = Some(until);
                self.actions.push(Action::Note(format!("{resource}: {why}")));
                self.end(now, resource, None, why);
            }
            Lease::Ending(ending) => {
                ending.holding.lost = Some(until);
                ending.until = ending.until.min(until);
                ending.kill_at = ending.kill_at.min(until);
            }
            Lease::None | Lease::Preparing(_) | Lease::Asked | Lease::Releasing => {}
        }
    }

    /// Stops the workers that did not finish in time.
    pub(super) fn end_overdue(&mut self, now: BootTime) {
        let overdue = |slot: &Slot| match &slot.lease {
            Lease::Ending(ending) if now >= ending.until => Some((slot.worker?, ending.kill_at)),
            _ => None,
        };
        let late: Vec<(WorkerId, BootTime)> = self.slots.values().filter_map(overdue).collect();
        for (worker, kill_at) in late {
            if self.workers.get(&worker).is_some_and(Worker::is_running) {
                self.stop_worker(
                    now,
                    worker,
                    kill_at.since(now),
                    "it did not finish with a resource in time",
                );
            }
        }
    }

    /// By when a worker must have ended unless it says before that it has finished with what was lost.
    pub fn bound(&self, worker: WorkerId) -> Option<BootTime> {
        let of = |slot: &Slot| match &slot.lease {
            Lease::Ending(ending) if slot.worker == Some(worker) => ending.holding.lost,
            Lease::Held(holding) if slot.worker == Some(worker) => holding.lost,
            _ => None,
        };
        self.slots.values().filter_map(of).min()
    }

    /// Stops acquiring, and ends everything within one budget, all at the same time.
    pub(super) fn begin_drain(&mut self, now: BootTime) {
        if self.drain.is_some() {
            return;
        }
        let wait =
            if self.rules.hands_over { self.rules.drain.mul_f64(HAND_OVER_PART) } else { Duration::ZERO };
        self.drain = Some(Drain { release_at: now.plus(wait), until: now.plus(self.rules.drain) });
    }

    /// Releases what nobody has taken over in time.
    pub(super) fn go_on_draining(&mut self, now: BootTime) {
        if self.drain.is_none_or(|drain| self.rules.hands_over && now < drain.release_at) {
            return;
        }
        let is_held = |slot: &Slot| matches!(slot.lease, Lease::Held(_));
        let held: Vec<Resource> = self
            .slots
            .iter()
            .filter(|(_, slot)| is_held(slot))
            .map(|(resource, _)| resource.clone())
            .collect();
        for resource in held {
            self.end(now, &resource, None, "this runner is being drained");
        }
    }

    /// Whether the order to drain was given.
    pub fn is_draining(&self) -> bool {
        self.drain.is_some()
    }
}
