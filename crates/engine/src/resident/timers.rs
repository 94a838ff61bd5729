//! When rows of a resident store expire: a lower bound that renewals need not update.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use solehold_core::{
    command::Command,
    key::{Name, RequestKey, ResourceKey, SessionId},
    lease::{Lease, Resource, Tenure},
    ledger::{Dirty, Ledger},
    limits::SPENT_REQUESTS_MAX,
    request::SpentRequest,
    time::StoreTime,
};

use crate::store::Nominations;

/// A nomination without effect is repeated after this long.
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
    /// Sets the time of an item, or removes it; returns the time that it had.
    fn set(&mut self, item: T, time: Option<StoreTime>) -> Option<StoreTime> {
        let stands = self.at.get(&item).copied();
        if stands == time {
            return stands;
        }
        if let Some(before) = stands {
            self.queue.remove(&(before, item.clone()));
            self.at.remove(&item);
        }
        if let Some(time) = time {
            self.queue.insert((time, item.clone()));
            self.at.insert(item, time);
        }
        stands
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

/// A row that can be forgotten once its time has come.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum ForgettableRow {
    Request(Arc<RequestKey>),
    Resource(Arc<ResourceKey>),
    /// More requests of one holder for one resource that leases of one key spent than are remembered: its time has come
    /// already.
    Surplus(Arc<ResourceKey>, Name),
}

/// Requests of one holder for one resource that a batch has changed.
struct SpentGroup<'a> {
    resource: &'a ResourceKey,
    holder: &'a Name,
    /// How many more were spent by leases.
    more: usize,
    /// Whether none was removed or changed.
    only_more: bool,
}

impl SpentGroup<'_> {
    fn is_of(&self, request: &RequestKey) -> bool {
        *self.resource == request.resource && *self.holder == request.holder
    }
}

/// How many requests each holder has spent for each resource by leases.
#[derive(Debug, Default)]
struct SpentCounts(HashMap<Arc<ResourceKey>, BTreeMap<Name, usize>>);

impl SpentCounts {
    fn get(&self, resource: &ResourceKey, holder: &Name) -> usize {
        self.0.get(resource).and_then(|of| of.get(holder)).copied().unwrap_or(0)
    }

    fn set(&mut self, resource: &ResourceKey, holder: &Name, count: usize) {
        if let Some(of) = self.0.get_mut(resource) {
            if let Some(known) = of.get_mut(holder).filter(|_| count > 0) {
                *known = count;
                return;
            }
            of.remove(holder);
            if of.is_empty() && count == 0 {
                self.0.remove(resource);
            }
        }
        if count > 0 {
            let of = self.0.entry(Arc::new(resource.clone())).or_default();
            of.insert(holder.clone(), count);
        }
    }
}

/// The timers: each item stands once, at or before the time when it is due.
#[derive(Debug, Default)]
pub(super) struct Timers {
    due: Queue<Item>,
    over: Queue<ForgettableRow>,
    spent: SpentCounts,
    /// Items that have run out and are still there: their timers stand later than that.
    ran_out: BTreeSet<Item>,
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
        timers.touch_requests(state, state.requests().map(|(request, _)| request));
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
        self.touch_requests(state, &dirty.requests);
    }

    /// Of requests in the order of their keys, so that those of one holder for one resource stand together.
    fn touch_requests<'a>(&mut self, state: &Ledger, requests: impl IntoIterator<Item = &'a RequestKey>) {
        let mut group: Option<SpentGroup<'a>> = None;
        for request in requests {
            // As the rows have it, so that its names are in memory once.
            let shared = state.shared_request(request).cloned().unwrap_or_else(|| Arc::new(request.clone()));
            let spent = state.spent(request);
            let before = self.over.set(ForgettableRow::Request(shared), spent.map(|spent| spent.until));
            let mut current = match group.take() {
                Some(group) if group.is_of(request) => group,
                other => {
                    other.into_iter().for_each(|done| self.touch_surplus(state, &done));
                    SpentGroup {
                        resource: &request.resource,
                        holder: &request.holder,
                        more: 0,
                        only_more: true,
                    }
                }
            };
            match spent {
                Some(spent) if before.is_none() => current.more += usize::from(!spent.cancelled),
                _ => current.only_more = false,
            }
            group = Some(current);
        }
        group.into_iter().for_each(|done| self.touch_surplus(state, &done));
    }

    /// Notes whether a holder has spent more requests for a resource than are remembered. While it only spends more, a
    /// count suffices: reading all of them for each one more would take longer the more there are.
    fn touch_surplus(&mut self, state: &Ledger, group: &SpentGroup<'_>) {
        let &SpentGroup { resource, holder, more, only_more } = group;
        let count = self.spent.get(resource, holder) + more;
        if only_more && count <= SPENT_REQUESTS_MAX {
            return self.spent.set(resource, holder, count);
        }
        let surplus = ForgettableRow::Surplus(Arc::new(resource.clone()), holder.clone());
        if only_more && self.over.at.contains_key(&surplus) {
            return self.spent.set(resource, holder, count);
        }
        let by_key = of_each_key(state, resource, holder);
        self.spent.set(resource, holder, by_key.values().map(Vec::len).sum());
        let has_surplus = by_key.values().any(|requests| requests.len() > SPENT_REQUESTS_MAX);
        self.over.set(surplus, has_surplus.then(StoreTime::default));
    }

    fn touch_resource(&mut self, state: &Ledger, key: &ResourceKey) {
        let resource = state.resource(key);
        let key = state.shared_key(key).cloned().unwrap_or_else(|| Arc::new(key.clone()));
        let item = Item::Resource(key.clone());
        self.ran_out.remove(&item);
        self.due.set_earlier(item, resource.and_then(runs_out_at));
        // A row that is forgettable at the end of time waits only for its hold-back to pass.
        let over = resource.filter(|r| r.is_forgettable(StoreTime(u64::MAX)));
        self.over.set(ForgettableRow::Resource(key), over.map(|r| r.held_back_until.unwrap_or_default()));
    }

    /// What is due at `now`, at most `limit` of it, the most overdue first.
    pub(super) fn due(&mut self, state: &Ledger, now: StoreTime, limit: usize) -> Nominations {
        let mut found = Nominations::default();
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
        found
    }

    /// Items that may have run out by `now`, nominated or not; each must be judged by its own row.
    pub(super) fn overdue(&self, now: StoreTime) -> impl Iterator<Item = &Item> {
        self.ran_out.iter().chain(self.due.until(now).filter(|item| !self.ran_out.contains(item)))
    }

    /// The rows that may be forgotten at `now`, at most `limit` of them, and the rows needed to decide that.
    pub(super) fn forgettable(&self, state: &Ledger, now: StoreTime, limit: usize) -> Ledger {
        let mut part = Ledger::default();
        let mut room = limit;
        for over in self.over.until(now) {
            if room == 0 {
                break;
            }
            room -= match over {
                ForgettableRow::Request(request) => {
                    if let Some(spent) = state.spent(request) {
                        part.load_request((**request).clone(), spent.clone());
                    }
                    1
                }
                ForgettableRow::Resource(key) => {
                    if let Some(resource) = state.resource(key) {
                        part.load_resource(resource.clone());
                    }
                    1
                }
                ForgettableRow::Surplus(resource, holder) => {
                    load_surplus(state, &mut part, (resource, holder), room)
                }
            };
        }
        part
    }
}

/// Requests of one holder for one resource that leases spent, by the key that they count for.
fn of_each_key<'a>(
    state: &'a Ledger,
    resource: &'a ResourceKey,
    holder: &'a Name,
) -> BTreeMap<&'a Option<Name>, Vec<(&'a RequestKey, &'a SpentRequest)>> {
    let mut by_key: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (request, spent) in state.requests_of(resource, holder).filter(|(_, spent)| !spent.cancelled) {
        by_key.entry(&spent.by).or_default().push((request, spent));
    }
    by_key
}

/// Loads the oldest of one holder's spent requests for one resource: at most `room`, and behind them as many as are
/// remembered of each key. Tells how many are too many.
fn load_surplus(state: &Ledger, part: &mut Ledger, of: (&ResourceKey, &Name), room: usize) -> usize {
    let mut surplus = 0;
    for mut by_age in of_each_key(state, of.0, of.1).into_values() {
        by_age.sort_by_key(|(_, spent)| spent.until);
        by_age.truncate(SPENT_REQUESTS_MAX + room - surplus);
        for (request, spent) in &by_age {
            part.load_request((*request).clone(), (*spent).clone());
        }
        surplus += by_age.len().saturating_sub(SPENT_REQUESTS_MAX);
    }
    surplus
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
    // The first in line gets it when it is no longer held back.
    let is_waited_for = resource.queued > 0 && resource.lease.is_none();
    let first = is_waited_for.then(|| resource.held_back_until.unwrap_or_default());
    let pending = resource.pending.as_ref().map(|p| match (&resource.lease, resource.held_back_until) {
        (None, Some(until)) => p.deadline.min(until),
        _ => p.deadline,
    });
    own.into_iter().chain(pending).chain(first).min()
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

    /// A burst is forgotten over several rounds, always from its oldest on; a start knows of it, too.
    #[test]
    fn a_surplus_is_forgotten_in_rounds_and_never_the_newest_of_it() {
        let name = |text: &str| Name::new(text).expect("a name");
        let resource = ResourceKey { tenant: name("acme"), kind: name("job"), key: name("often") };
        let mut state = Ledger::default();
        let count = SPENT_REQUESTS_MAX + 25;
        for n in 0..count {
            let request = name(&format!("r{:03}", count - n));
            let key = RequestKey { resource: resource.clone(), holder: name("ann"), request };
            let until = StoreTime(1_000 + n as u64);
            state.load_request(key, SpentRequest { until, by: None, cancelled: false });
        }
        let mut timers = Timers::of(&state);
        for gone in [10, 20, 25, 25] {
            let mut part = timers.forgettable(&state, StoreTime(1), 10);
            solehold_core::forget(&mut part, StoreTime(1));
            let dirty = part.take_dirty();
            state.absorb(&part, &dirty);
            timers.touch(&state, &dirty);
            assert_eq!(state.requests().count(), count - gone);
            let oldest = state.requests().map(|(_, spent)| spent.until).min();
            assert_eq!(oldest, Some(StoreTime(1_000 + gone as u64)));
        }
        assert_eq!(timers.over.until(StoreTime(1)).count(), 0);
        assert_eq!(timers.spent.get(&resource, &name("ann")), SPENT_REQUESTS_MAX);
    }

    /// Counted as they come, across batches; of two keys, each may have as many.
    #[test]
    fn a_surplus_is_noticed_when_it_begins() {
        let name = |text: &str| Name::new(text).expect("a name");
        let resource = ResourceKey { tenant: name("acme"), kind: name("job"), key: name("often") };
        let request = |n: usize| RequestKey {
            resource: resource.clone(),
            holder: name("ann"),
            request: name(&format!("r{n:03}")),
        };
        let mut state = Ledger::default();
        let mut timers = Timers::of(&state);
        let mut spend = |n: usize, by: Option<Name>, cancelled| {
            state.load_request(request(n), SpentRequest { until: StoreTime(1_000), by, cancelled });
            timers.touch(&state, &Dirty { requests: [request(n)].into(), ..Default::default() });
            timers.over.until(StoreTime(1)).count()
        };
        assert_eq!(spend(999, None, true), 0, "one that was cancelled does not count");
        for n in 0..SPENT_REQUESTS_MAX {
            assert_eq!(spend(2 * n, None, false), 0);
            assert_eq!(spend(2 * n + 1, Some(name("key")), false), 0);
        }
        assert_eq!(spend(900, None, false), 1, "one too many");
        assert_eq!(spend(901, None, false), 1, "noted once");
        let gone = Dirty { requests: [request(900), request(901)].into(), ..Default::default() };
        state.absorb(&Ledger::default(), &gone);
        timers.touch(&state, &gone);
        assert_eq!(timers.over.until(StoreTime(1)).count(), 0, "no longer too many");
        assert_eq!(timers.spent.get(&resource, &name("ann")), 2 * SPENT_REQUESTS_MAX);
    }
}
