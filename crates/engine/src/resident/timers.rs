//! When rows of a resident store expire: a lower bound that renewals need not update.

use std::{collections::BTreeMap, hash::Hash, sync::Arc};

use solehold_core::{
    command::Command,
    hashing::{KeyMap, KeySet},
    key::{ResourceKey, SessionId},
    lease::{Lease, Resource, Tenure},
    ledger::{Dirty, Ledger},
    request::{Requester, SpentRequests},
    time::StoreTime,
};

use crate::store::Nominations;

/// A nomination without effect is repeated after this long.
const AGAIN_MS: u64 = 1_000;
/// Timers that turn out not to be due yet, renewed ones, are looked at in one call up to this many times its limit.
const LOOKED_AT_MAX: usize = 8;

/// Timers that are kept for resources which have nothing to run out now, beside twice as many as there are items.
const IDLE_TIMERS_MAX: usize = 1_024;

/// Items, each at most once, by time; those of one time in the order in which they were set.
#[derive(Debug)]
struct Queue<T> {
    queue: BTreeMap<Place, T>,
    at: KeyMap<T, Place>,
    set: u64,
}

/// A time, and a number of its own.
type Place = (StoreTime, u64);

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { queue: BTreeMap::new(), at: KeyMap::default(), set: 0 }
    }
}

impl<T: Eq + Hash + Clone> Queue<T> {
    /// Sets the time of an item, or removes it.
    fn set(&mut self, item: T, time: Option<StoreTime>) {
        let stands = self.at.get(&item).copied();
        if stands.map(|(at, _)| at) == time {
            return;
        }
        if let Some(place) = stands {
            self.queue.remove(&place);
        }
        match time {
            Some(time) => {
                self.set += 1;
                let place = (time, self.set);
                self.queue.insert(place, item.clone());
                self.at.insert(item, place);
            }
            None => drop(self.at.remove(&item)),
        }
    }

    /// A time that moved later is found out when the old one comes.
    fn set_earlier(&mut self, item: T, time: Option<StoreTime>) {
        let stands = self.at.get(&item).map(|(at, _)| *at);
        if time.is_none() || stands.is_none_or(|stands| time < Some(stands)) {
            self.set(item, time);
        }
    }

    fn until(&self, now: StoreTime) -> impl Iterator<Item = &T> {
        self.queue.iter().take_while(move |((at, _), _)| *at <= now).map(|(_, item)| item)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Item {
    Resource(Arc<ResourceKey>),
    Session(SessionId),
}

/// A row that can be forgotten, all of it or a part, once its time has come.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum ForgettableRow {
    Requests(Arc<Requester>),
    Resource(Arc<ResourceKey>),
}

/// The timers: each item stands at most once, at or before the time when it is due. One that has nothing to run out may
/// stand here, too.
#[derive(Debug, Default)]
pub(super) struct Timers {
    due: Queue<Item>,
    over: Queue<ForgettableRow>,
    /// Items that have run out and are still there: their timers stand later than that.
    ran_out: KeySet<Item>,
}

impl Timers {
    pub(super) fn of(state: &Ledger) -> Self {
        let mut timers = Self::default();
        for resource in state.resources() {
            timers.touch_resource(state, &resource.key);
        }
        for session in state.sessions() {
            timers.due.set(Item::Session(session.id), Some(session.deadline));
        }
        for (requester, spent) in state.requesters() {
            timers.over.set(ForgettableRow::Requests(requester.clone()), spent.first_until());
        }
        timers
    }

    /// Takes note of rows that have changed.
    pub(super) fn touch(&mut self, state: &Ledger, dirty: &Dirty) {
        for key in &dirty.resources {
            self.touch_resource(state, key);
        }
        for id in &dirty.sessions {
            let item = Item::Session(*id);
            self.ran_out.remove(&item);
            self.due.set_earlier(item, state.session(*id).map(|s| s.deadline));
        }
        if self.due.at.len() > 2 * state.count() + IDLE_TIMERS_MAX {
            self.drop_idle(state);
        }
        // By resource and holder, so that those of one row stand together.
        let mut last = None;
        for request in &dirty.requests {
            let requester = Requester::of(request);
            if last.as_ref() != Some(&requester) {
                self.touch_requests(state, &requester);
                last = Some(requester);
            }
        }
    }

    /// Drops the timers of items that have nothing to run out. It does so when they are most of all timers.
    fn drop_idle(&mut self, state: &Ledger) {
        let is_idle = |item: &Item| match item {
            Item::Resource(key) => state.resource(key).and_then(runs_out_at).is_none(),
            Item::Session(id) => state.session(*id).is_none(),
        };
        let idle: Vec<Item> = self.due.at.keys().filter(|item| is_idle(item)).cloned().collect();
        for item in idle {
            self.due.set(item, None);
        }
    }

    fn touch_requests(&mut self, state: &Ledger, requester: &Requester) {
        // As the rows have it, so that its names are in memory once.
        let shared = state.shared_requester(requester).cloned();
        let shared = shared.unwrap_or_else(|| Arc::new(requester.clone()));
        let until = state.spent_by(requester).and_then(SpentRequests::first_until);
        self.over.set_earlier(ForgettableRow::Requests(shared), until);
    }

    fn touch_resource(&mut self, state: &Ledger, key: &ResourceKey) {
        let (key, resource) = match state.shared_resource(key) {
            Some((key, resource)) => (key.clone(), Some(resource)),
            None => (Arc::new(key.clone()), None),
        };
        let item = Item::Resource(key.clone());
        self.ran_out.remove(&item);
        // A lease that was released mostly leaves a timer for the next one.
        if let Some(at) = resource.and_then(runs_out_at) {
            self.due.set_earlier(item, Some(at));
        }
        // A row that is forgettable at the end of time waits only for its hold-back to pass.
        let over = resource.filter(|r| r.is_forgettable(StoreTime(u64::MAX)));
        self.over.set(ForgettableRow::Resource(key), over.map(|r| r.held_back_until.unwrap_or_default()));
    }

    /// What is due at `now`, at most `limit` of it, the most overdue first.
    pub(super) fn due(&mut self, state: &Ledger, now: StoreTime, limit: usize) -> Nominations {
        let mut found = Nominations::default();
        for _ in 0..limit.saturating_mul(LOOKED_AT_MAX) {
            let Some(((at, _), item)) = self.due.queue.first_key_value() else { break };
            let at = *at;
            let item = item.clone();
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
        found
    }

    /// Items that may have run out by `now`, nominated or not; each must be judged by its own row.
    pub(super) fn overdue(&self, now: StoreTime) -> impl Iterator<Item = &Item> {
        self.ran_out.iter().chain(self.due.until(now).filter(|item| !self.ran_out.contains(item)))
    }

    /// The rows that may be forgotten at `now`, at most `limit` of them.
    pub(super) fn forgettable(&mut self, state: &Ledger, now: StoreTime, limit: usize) -> Ledger {
        let mut part = Ledger::default();
        let mut room = limit;
        let mut later = Vec::new();
        for row in self.over.until(now) {
            if room == 0 {
                break;
            }
            match row {
                ForgettableRow::Requests(requester) => {
                    let spent = || state.spent_by(requester).into_iter().flat_map(SpentRequests::iter);
                    let passed = spent().take_while(|(_, spent)| spent.until <= now).take(room);
                    let mut count = 0;
                    for (request, spent) in passed {
                        part.load_request(requester.request(request), spent.clone());
                        count += 1;
                    }
                    room -= count.max(1);
                    if count == 0 {
                        later.push((row.clone(), spent().map(|(_, spent)| spent.until).next()));
                    }
                }
                ForgettableRow::Resource(key) => {
                    if let Some(resource) = state.resource(key) {
                        part.load_resource(resource.clone());
                    }
                    room -= 1;
                }
            }
        }
        for (row, until) in later {
            self.over.set(row, until);
        }
        part
    }
}

/// Adds the nominations of an item that is due; tells when to look at it again, which is at once if they were too many.
fn nominate(
    state: &Ledger,
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
    for key in state.attached_to(id) {
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

/// When something of a resource runs out, apart from the session that it is attached to.
fn runs_out_at(resource: &Resource) -> Option<StoreTime> {
    let own = resource.lease.as_ref().and_then(own_deadline);
    own.into_iter().chain(due_at(resource)).min()
}

/// From when on a lease is dead, apart from the session that it is attached to.
fn own_deadline(lease: &Lease) -> Option<StoreTime> {
    let own = match lease.tenure {
        Tenure::Own { deadline, .. } => Some(deadline),
        Tenure::Session(_) => None,
    };
    own.into_iter().chain(lease.confirm_by).min()
}

/// When a resource has something to judge, apart from the session that it is attached to.
fn due_at(resource: &Resource) -> Option<StoreTime> {
    let own = resource.lease.as_ref().and_then(own_deadline).map(|deadline| free_at(resource, deadline));
    // The first in line gets it when it is no longer held back; of a shared one, when a slot becomes free.
    let is_waited_for = resource.queued > 0 && resource.lease.is_none() && resource.taken == 0;
    let first = is_waited_for.then(|| resource.held_back_until.unwrap_or_default());
    let slot = resource.held_back_until.filter(|_| resource.key.is_slot());
    let pending = resource.pending.as_ref().map(|p| match (&resource.lease, resource.held_back_until) {
        (None, Some(until)) => p.deadline.min(until),
        _ => p.deadline,
    });
    own.into_iter().chain(pending).chain(first).chain(slot).min()
}

/// The same, with the session that its lease is attached to.
fn hanging_due_at(state: &Ledger, resource: &Resource) -> Option<StoreTime> {
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
    use solehold_core::{key::Name, request::SpentRequest};

    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    /// Of resources that are held once and never again.
    #[test]
    fn timers_of_released_leases_are_bounded() {
        let mut state = Ledger::default();
        let mut timers = Timers::default();
        let mut most = 0;
        for n in 0..5_000 {
            let key = ResourceKey::new(name("acme"), name("job"), name(&format!("job-{n}")));
            let lease = solehold_core::command::Acquire {
                key: key.clone(),
                lease: solehold_core::key::LeaseId::new(&key, uuid::Uuid::from_u128(n)),
                holder: name("ann"),
                tenure: solehold_core::command::AskedTenure::Own { ttl_ms: 30_000 },
                request: None,
                attributes: Default::default(),
                undeclared: solehold_core::command::Undeclared::Allow,
                wait: None,
                slots: None,
                holds_at_most: None,
            };
            let released = Command::Release {
                claim: solehold_core::command::Claim {
                    target: solehold_core::command::Target::Resource(key.clone()),
                    token: None,
                    session: None,
                    holder: Some(name("ann")),
                },
                state: None,
            };
            for command in [Command::Acquire(lease), released] {
                let moment = solehold_core::time::Moment { now: StoreTime(1), revision: Default::default() };
                let decided =
                    solehold_core::decide_all(&mut state, [&command.into()], moment).expect("all there");
                assert!(decided.outcomes[0].is_ok());
                let dirty = state.take_dirty();
                timers.touch(&state, &dirty);
                most = most.max(timers.due.at.len());
            }
        }
        assert!(state.count() == 0 && most <= IDLE_TIMERS_MAX + 3, "{most}");
        // Those that are left nominate nothing, and go.
        assert!(timers.due(&state, StoreTime(60_000), 10_000).commands.is_empty());
        assert!(timers.due.at.is_empty() && timers.due.queue.is_empty());
    }

    #[test]
    fn a_queue_keeps_each_item_once() {
        let mut queue = Queue::default();
        let item = name("a");
        queue.set_earlier(item.clone(), Some(StoreTime(5)));
        queue.set_earlier(item.clone(), Some(StoreTime(9)));
        assert_eq!(queue.until(StoreTime(5)).count(), 1, "later times are found out later");
        queue.set_earlier(item.clone(), Some(StoreTime(3)));
        assert_eq!((queue.until(StoreTime(2)).count(), queue.until(StoreTime(3)).count()), (0, 1));
        queue.set_earlier(item, None);
        assert!(queue.queue.is_empty() && queue.at.is_empty());
    }

    /// Many that are over at once are forgotten over several rounds, and the timer of the rest stays.
    #[test]
    fn requests_whose_time_has_passed_are_forgotten_in_rounds() {
        let resource = ResourceKey::new(name("acme"), name("job"), name("often"));
        let requester = Requester { resource, holder: name("ann") };
        let mut state = Ledger::default();
        for n in 0..25 {
            let spent = SpentRequest { until: StoreTime(1_000 + n), by: None, cancelled: false };
            state.load_request(requester.request(&name(&format!("r{n:03}"))), spent);
        }
        let mut timers = Timers::of(&state);
        let mut forget = |now: u64| {
            let mut part = timers.forgettable(&state, StoreTime(now), 10);
            solehold_core::forget(&mut part, StoreTime(now));
            let dirty = part.take_dirty();
            state.absorb(&part, &dirty);
            timers.touch(&state, &dirty);
            state.requests().count()
        };
        assert_eq!(forget(999), 25, "none is over yet");
        assert_eq!([forget(1_019), forget(1_019), forget(1_019)], [15, 5, 5]);
        assert_eq!(forget(1_023), 1, "and the rest when their time comes");
        assert_eq!(forget(1_024), 0);
        assert!(timers.over.queue.is_empty() && timers.over.at.is_empty());
    }
}
