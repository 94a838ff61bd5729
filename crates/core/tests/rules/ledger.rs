//! The ledger: what it finds, what it says has changed, and how stores load and take over its rows.

use solehold_core::{
    command::{Acquire, Command, Over},
    key::{HolderKey, RequestKey, ResourceKey},
    ledger::{Dirty, Ledger},
    record::Record,
    request::Requester,
    time::{Revision, StoreTime},
};

use crate::common::{TENANT, TTL_MS, World, document, holder, key, key_of, name, on};

fn record() -> Record {
    Record { collection: name("keys"), id: name("k"), document: document("[1]") }
}

fn request(who: &str, what: &str, request: &str) -> RequestKey {
    RequestKey { resource: key(what), holder: name(who), request: name(request) }
}

/// A story in which every sort of row is written.
fn eventful() -> World {
    let mut w = World::new();
    let room = w.room();
    let ann = w.opens("ann");
    w.acquire_in(ann, "ann", "lobby");
    w.waits(room, "bob", "lobby");
    w.cancel("ann", "hall", "r1");
    w.told(Command::PutRecord { record: record(), over: Over::Nothing });
    w
}

#[test]
fn a_holders_resources_are_its_own_in_its_tenant() {
    let mut w = World::new();
    for (who, what) in [("ann", "a"), ("bob", "b"), ("ann", "c"), ("ann2", "d")] {
        w.acquire(who, what);
    }
    let mut elsewhere = w.asks("ann", "e");
    elsewhere.key = key_of("zeta", "e");
    w.told(Command::Acquire(elsewhere));
    let held = |who: HolderKey| w.state.held_by(&who).cloned().collect::<Vec<ResourceKey>>();
    assert_eq!(held(holder("ann")), [key("a"), key("c")]);
    assert_eq!(held(holder("bob")), [key("b")]);
    assert_eq!(held(HolderKey { tenant: name("zeta"), name: name("ann") }), [key_of("zeta", "e")]);
    assert_eq!(held(holder("nobody")), []);
}

#[test]
fn a_holders_spent_requests_for_a_resource_are_no_others() {
    let mut w = World::new();
    for (who, what, request) in
        [("ann", "a", "r2"), ("ann", "a", "r1"), ("ann", "b", "r3"), ("bob", "a", "r4"), ("zoe", "a", "r5")]
    {
        w.cancel(who, what, request);
    }
    let of = |who: &str, what: &str| {
        let requester = Requester { resource: key(what), holder: name(who) };
        w.state
            .each_spent_by(&requester)
            .map(|(request, _)| request.to_string())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!((of("ann", "a"), of("ann", "b"), of("bob", "a")), ("r1 r2".into(), "r3".into(), "r4".into()));
    assert_eq!(of("bob", "b"), "");
}

#[test]
fn pages_begin_where_they_are_told_to() {
    let mut w = World::new();
    for what in ["a", "b", "c"] {
        w.declare(what, 0);
        w.opens(what);
    }
    assert!(w.state.resources_from(&key("b")).map(|r| &r.key).eq([&key("b"), &key("c")]));
    assert!(w.state.holders_from(&holder("b")).map(|h| &h.key).eq([&holder("b"), &holder("c")]));
}

#[test]
fn a_key_is_shared_with_those_who_keep_it() {
    let w = eventful();
    assert_eq!(w.state.shared_resource(&key("lobby")).map(|(k, _)| (**k).clone()), Some(key("lobby")));
    assert_eq!(w.state.shared_resource(&key("attic")), None);
    assert_eq!(w.state.count(), w.state.resources().count() + w.state.sessions().count());
    let requester = Requester::of(&request("ann", "hall", "r1"));
    assert_eq!(w.state.shared_requester(&requester).map(|r| (**r).clone()), Some(requester));
    assert_eq!(w.state.shared_requester(&Requester::of(&request("bob", "hall", "r1"))), None);
}

#[test]
fn every_sort_of_row_that_changed_is_dirty_until_it_is_taken() {
    let mut w = eventful();
    let dirty = w.state.take_dirty();
    assert_eq!((dirty.sessions.len(), dirty.holders.len()), (2, 1));
    assert!(dirty.resources.contains(&key("lobby")));
    assert!(dirty.requests.contains(&request("ann", "hall", "r1")));
    assert!(dirty.records.contains(&record().key()));
    assert_eq!(dirty.waiters.len(), 1);
    assert!(w.state.take_dirty().is_empty());
}

#[test]
fn one_changed_row_of_any_sort_is_a_change() {
    let all = eventful().state.take_dirty();
    let none = Dirty::default;
    let each = [
        Dirty { sessions: all.sessions.clone(), ..none() },
        Dirty { resources: all.resources.clone(), ..none() },
        Dirty { holders: all.holders.clone(), ..none() },
        Dirty { requests: all.requests.clone(), ..none() },
        Dirty { records: all.records.clone(), ..none() },
        Dirty { waiters: all.waiters.clone(), ..none() },
    ];
    assert!(none().is_empty());
    let mut sum = none();
    for one in each {
        assert!(!one.is_empty(), "{one:?}");
        sum.extend(one);
    }
    assert_eq!(sum, all);
}

#[test]
fn another_ledger_takes_over_what_changed_and_what_is_gone() {
    let mut w = eventful();
    let mut copy = Ledger::default();
    let dirty = w.state.take_dirty();
    copy.absorb(&w.state, &dirty);
    assert_eq!(copy, w.state);
    assert!(
        copy.waiters_for(&key("lobby")).next().is_some() && copy.record(&name("keys"), &name("k")).is_some()
    );
    // All of it ends again: the line, the lease, the session with its holder, the record, and in time the request.
    let bob = w.waiter("bob", "lobby");
    w.leave("lobby", bob);
    w.told(Command::RemoveRecord { collection: name("keys"), id: name("k") }).says("removed", "");
    let ann = w.state.sessions().find(|s| !s.is_room()).expect("ann's session").id;
    w.close(ann);
    w.removes("ann");
    w.wait(2 * 60 * 60 * 1_000);
    let now = w.moment.now;
    solehold_core::forget(&mut w.state, now);
    let dirty = w.state.take_dirty();
    copy.absorb(&w.state, &dirty);
    assert_eq!(copy, w.state);
    assert!(copy.record(&name("keys"), &name("k")).is_none() && copy.requests().next().is_none());
    assert!(copy.resources().next().is_none() && copy.holders().next().is_none());
}

/// The same command, decided again after its lease has ended, may find another slot.
#[test]
fn a_lease_that_comes_back_in_another_slot_is_found_there() {
    let mut w = World::new();
    let mut ask = |who: &str| Command::Acquire(Acquire { slots: Some(2), ..w.asks(who, "pool") });
    let asks = [ask("ann"), ask("bob")];
    asks.iter().for_each(|ask| drop(w.told(ask.clone())));
    let mut copy = w.state.clone();
    w.state.take_dirty();
    w.wait(TTL_MS);
    w.told(asks[1].clone()).says("granted #5 for 10000 ms", "lease_expired lease_expired lease_acquired");
    let dirty = w.state.take_dirty();
    copy.absorb(&w.state, &dirty);
    let bobs = w.state.resources().find_map(|r| Some(r.lease.as_ref()?.id)).expect("a lease");
    assert_eq!(copy.resource_of(bobs).map(|at| at.slot), Some(1));
}

#[test]
fn a_row_that_was_loaded_is_found_and_not_dirty() {
    let mut w = eventful();
    w.state.take_dirty();
    let mut loaded = Ledger::default();
    w.state.sessions().cloned().for_each(|row| loaded.load_session(row));
    w.state.resources().cloned().for_each(|row| loaded.load_resource(row));
    w.state.holders().cloned().for_each(|row| loaded.load_holder(row));
    w.state.requests().for_each(|(row, spent)| loaded.load_request(row, spent.clone()));
    w.state.records().cloned().for_each(|row| loaded.load_record(row));
    w.state.waiters().cloned().for_each(|row| loaded.load_waiter(row));
    assert_eq!(loaded, w.state);
    assert!(loaded.take_dirty().is_empty());
    let bob = loaded.waiters().next().expect("bob waits").clone();
    assert_eq!(loaded.waiter(&bob.place()), Some(&bob));
    assert_eq!(loaded.waiter(&(key("hall"), bob.arrival)), None);
}

/// A store loads the head of a line. Whoever is first among what is loaded is first in line only up to that head.
#[test]
fn nobody_beyond_the_loaded_head_of_a_line_is_taken_for_the_first() {
    let mut w = World::new();
    let room = w.room();
    w.acquire("ann", "lobby");
    for who in ["bob", "cid", "dan"] {
        w.waits(room, who, "lobby");
    }
    let line: Vec<_> = w.state.waiters_for(&key("lobby")).cloned().collect();
    let released = |loaded: &[usize], head: Option<Revision>| {
        let mut part = w.state.rows();
        part.load_resource(w.state.resource(&key("lobby")).expect("it is held").clone());
        loaded.iter().for_each(|at| part.load_waiter(line[*at].clone()));
        head.into_iter().for_each(|head| part.load_head(key("lobby"), head));
        let release =
            Command::Release { claim: crate::common::Proof::holder(on("lobby"), "ann"), state: None };
        let decided = solehold_core::decide_all(&mut part, [&release.clone().into()], w.moment);
        decided.ok().and_then(|_| part.resource(&key("lobby"))?.lease.as_ref().map(|l| l.holder.to_string()))
    };
    assert_eq!(released(&[0, 1, 2], None).as_deref(), Some("bob"), "the whole line is loaded");
    assert_eq!(released(&[0], Some(line[0].arrival)).as_deref(), Some("bob"), "its head is loaded");
    assert_eq!(released(&[1, 2], None), None, "the first may be missing");
    assert_eq!(released(&[1, 2], Some(line[0].arrival)), None, "the head is someone who is not loaded");
}

#[test]
fn a_record_of_another_name_stays() {
    let mut w = eventful();
    let other = Record { id: name("other"), ..record() };
    w.told(Command::PutRecord { record: other.clone(), over: Over::Nothing });
    w.told(Command::RemoveRecord { collection: name("keys"), id: name("k") });
    assert!(w.state.records().eq([&other]));
    assert_eq!(
        w.state.session(w.state.sessions().next().expect("one").id).map(|s| s.opened_at),
        Some(StoreTime(1_000_000))
    );
    assert_eq!(w.state.resource(&key("lobby")).map(|r| r.key.tenant.to_string()).as_deref(), Some(TENANT));
}
