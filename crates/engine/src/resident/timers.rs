//! When something of a resident store runs out, as far as is known: a lower bound that renewals need not touch.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use solehold_core::{
    command::Command,
    key::{RequestKey, ResourceKey, SessionId},
    lease::{Lease, Resource, Tenure},
    state::{Dirty, State},
    time::StoreTime,
};

use crate::store::Due;

/// A nomination that came to nothing is tried again after this long.
const AGAIN_MS: u64 = 1_000;
/// Timers that turn out not to be due yet, renewed ones, are looked at in one call up to this many times its limit.
const LOOKED_AT_MAX: usize = 8;

/// Items, each at most once, by time.
#[derive(Debug)]
struct Queue<T> {
    queue: BTreeSet<(StoreTime, T)>,
    at: BTreeMap<T, StoreTime>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { queue: BTreeSet::new(), at: BTreeMap::new() }
    }
}

impl<T: Ord + Clone> Queue<T> {
    fn set(&mut self, item: T, time: Option<StoreTime>) {
        let stands = self.at.get(&item).copied();
        if stands == time {
            return;
        }
        if let Some(before) = stands {
            self.queue.remove(&(before, item.clone()));
            self.at.remove(&item);
        }
        if let Some(time) = time {
            self.queue.insert((time, item.clone()));
            self.at.insert(item, time);
        }
    }

    /// A time that moved later is found out when the old one comes.
    fn set_earlier(&mut self, item: T, time: Option<StoreTime>) {
        let stands = self.at.get(&item);
        if time.is_none() || stands.is_none_or(|stands| time < Some(*stands)) {
            self.set(item, time);
        }
    }

    fn until(&self, now: StoreTime) -> impl Iterator<Item = &T> {
        self.queue.iter().take_while(move |(at, _)| *at <= now).map(|(_, item)| item)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Item {
    Resource(Arc<ResourceKey>),
    Session(SessionId),
}

/// A row that says nothing any more once its time has come.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Over {
    Request(Arc<RequestKey>),
    Resource(Arc<ResourceKey>),
}

/// The timers: each item stands once, at or before the time when it is due.
#[derive(Debug, Default)]
pub(super) struct Timers {
    due: Queue<Item>,
    over: Queue<Over>,
    /// Items that have run out and are still there: their timers stand later than that.
    ran_out: BTreeSet<Item>,
}

impl Timers {
    /// The timers of all rows.
    pub(super) fn of(state: &State) -> Self {
        let mut timers = Self::default();
        for resource in state.resources() {
            timers.touch_resource(state, &resource.key);
        }
        for session in state.sessions() {
            timers.due.set(Item::Session(session.id), Some(session.deadline));
        }
        for (request, until) in state.requests() {
            timers.over.set(over_request(state, request), Some(until));
        }
        timers
    }

    /// Takes note of rows that have changed.
    pub(super) fn touch(&mut self, state: &State, dirty: &Dirty) {
        for key in &dirty.resources {
            self.touch_resource(state, key);
        }
        for id in &dirty.sessions {
            let item = Item::Session(*id);
            self.ran_out.remove(&item);
            self.due.set_earlier(item, state.session(*id).map(|s| s.deadline));
        }
        for request in &dirty.requests {
            self.over.set(over_request(state, request), state.spent_until(request));
        }
    }

    fn touch_resource(&mut self, state: &State, key: &ResourceKey) {
        let resource = state.resource(key);
        let key = state.shared_key(key).cloned().unwrap_or_else(|| Arc::new(key.clone()));
        let item = Item::Resource(key.clone());
        self.ran_out.remove(&item);
        self.due.set_earlier(item, resource.and_then(runs_out_at));
        // Whatever is forgettable at the end of time waits only for its hold-back to pass.
        let over = resource.filter(|r| r.is_forgettable(StoreTime(u64::MAX)));
        self.over.set(Over::Resource(key), over.map(|r| r.held_back_until.unwrap_or_default()));
    }

    /// What is due at `now`, at most `limit` of it, the most overdue first.
    pub(super) fn due(&mut self, state: &State, now: StoreTime, limit: usize) -> Due {
        let mut found = Due::default();
        for _ in 0..limit.saturating_mul(LOOKED_AT_MAX) {
            let Some((at, item)) = self.due.queue.first().cloned() else { break };
            if at > now || found.commands.len() >= limit {
                break;
            }
            let due = match &item {
                Item::Resource(key) => state.resource(key).and_then(due_at),
                Item::Session(id) => state.session(*id).map(|s| s.deadline),
            };
            match due.filter(|due| *due <= now) {
                None => {
                    if let Item::Resource(key) = &item
                        && state.resource(key).and_then(runs_out_at).is_some_and(|at| at <= now)
                    {
                        self.ran_out.insert(item.clone());
                    }
                    self.due.set(item, due);
                }
                Some(due) => {
                    found.lag_ms = found.lag_ms.max(now.ms_after(due));
                    let again = nominate(state, &item, now, limit, &mut found.commands);
                    self.ran_out.insert(item.clone());
                    self.due.set(item, Some(again));
                    if again <= now {
                        break;
                    }
                }
            }
        }
        found.next_in_ms = self.due.queue.first().map(|(at, _)| at.ms_after(now));
        found
    }

    /// Whatever may have run out by `now`, nominated or not; each must be judged by its own row.
    pub(super) fn overdue(&self, now: StoreTime) -> impl Iterator<Item = &Item> {
        self.ran_out.iter().chain(self.due.until(now).filter(|item| !self.ran_out.contains(item)))
    }

    /// The rows that may be forgotten at `now`, at most `limit` of them.
    pub(super) fn forgettable(&self, state: &State, now: StoreTime, limit: usize) -> State {
        let mut part = State::default();
        for over in self.over.until(now).take(limit) {
            match over {
                Over::Request(request) => {
                    if let Some(until) = state.spent_until(request) {
                        part.load_request((**request).clone(), until);
                    }
                }
                Over::Resource(key) => {
                    if let Some(resource) = state.resource(key) {
                        part.load_resource(resource.clone());
                    }
                }
            }
        }
        part
    }
}

/// As the rows have it, so that its names are in memory once.
fn over_request(state: &State, request: &RequestKey) -> Over {
    Over::Request(state.shared_request(request).cloned().unwrap_or_else(|| Arc::new(request.clone())))
}

/// Adds the nominations of an item that is due; tells when to look at it again, which is at once if they were too many.
fn nominate(
    state: &State,
    item: &Item,
    now: StoreTime,
    limit: usize,
    commands: &mut Vec<Command>,
) -> StoreTime {
    let again = now.plus_ms(AGAIN_MS);
    let id = match item {
        Item::Resource(key) => {
            commands.push(Command::Expire { key: (**key).clone() });
            return again;
        }
        Item::Session(id) => *id,
    };
    let mut later: Option<StoreTime> = None;
    for key in state.hanging_on(id) {
        let Some(at) = state.resource(key).and_then(|r| hanging_due_at(state, r)) else { continue };
        if at > now {
            later = Some(later.map_or(at, |later| later.min(at)));
        } else if commands.len() == limit {
            return now;
        } else {
            commands.push(Command::Expire { key: key.clone() });
        }
    }
    match later {
        // Something hangs there whose time has not come: the session waits for it.
        Some(later) => later,
        None if commands.len() == limit => now,
        None => {
            commands.push(Command::ExpireSession(id));
            again
        }
    }
}

/// When something of a resource runs out, apart from the session that it hangs on.
fn runs_out_at(resource: &Resource) -> Option<StoreTime> {
    let own = resource.lease.as_ref().and_then(own_deadline);
    own.into_iter().chain(due_at(resource)).min()
}

/// From when on a lease is dead, apart from the session that it hangs on.
fn own_deadline(lease: &Lease) -> Option<StoreTime> {
    let own = match lease.tenure {
        Tenure::Own { deadline, .. } => Some(deadline),
        Tenure::Session(_) => None,
    };
    own.into_iter().chain(lease.confirm_by).min()
}

/// When a resource has something to judge, apart from the session that it hangs on.
fn due_at(resource: &Resource) -> Option<StoreTime> {
    let own = resource.lease.as_ref().and_then(own_deadline).map(|deadline| free_at(resource, deadline));
    // Whoever is first in line gets it when it is no longer held back.
    let is_waited_for = resource.queued > 0 && resource.lease.is_none();
    let first = is_waited_for.then(|| resource.held_back_until.unwrap_or_default());
    let pending = resource.pending.as_ref().map(|p| match (&resource.lease, resource.held_back_until) {
        (None, Some(until)) => p.deadline.min(until),
        _ => p.deadline,
    });
    own.into_iter().chain(pending).chain(first).min()
}

/// The same, with the session that its lease hangs on.
fn hanging_due_at(state: &State, resource: &Resource) -> Option<StoreTime> {
    let lease = resource.lease.as_ref().filter(|l| l.tenure.session().is_some());
    let session = lease.and_then(|l| state.deadline_of(l).ok()).map(|deadline| free_at(resource, deadline));
    session.into_iter().chain(due_at(resource)).min()
}

/// When a lease that is dead from `deadline` on is ended: at once, but for the lock-delay if someone waits for it, who
/// gets the resource in the same step.
fn free_at(resource: &Resource, deadline: StoreTime) -> StoreTime {
    match resource.pending {
        Some(_) => deadline.plus_ms(resource.lock_delay_ms()),
        None => deadline,
    }
}

#[cfg(test)]
mod tests {
    use solehold_core::key::Name;

    use super::*;

    #[test]
    fn a_queue_keeps_each_item_once() {
        let mut queue = Queue::default();
        let item = Name::new("a").expect("a name");
        queue.set_earlier(item.clone(), Some(StoreTime(5)));
        queue.set_earlier(item.clone(), Some(StoreTime(9)));
        assert_eq!(queue.until(StoreTime(5)).count(), 1, "later times are found out later");
        queue.set_earlier(item.clone(), Some(StoreTime(3)));
        assert_eq!((queue.until(StoreTime(2)).count(), queue.until(StoreTime(3)).count()), (0, 1));
        queue.set_earlier(item, None);
        assert!(queue.queue.is_empty() && queue.at.is_empty());
    }
}
