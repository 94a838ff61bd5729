//! Shared holds: as many holders at once as there are slots, every rule as for one (rule 29).

use solehold_core::{command::*, event::EventName, key::*, lease::Declaration, outcome::*, time::Token};

use crate::{Fixture, kit::*, waiting::waits};
use solehold_engine::store::ResourceQuery;

/// A shared hold of one of `slots`.
fn share(key: &ResourceKey, holder: &str, slots: u32) -> Acquire {
    Acquire { slots: Some(slots), ..ask(key, holder) }
}

impl Bench<'_> {
    /// The holders of the slots of a resource, by their numbers.
    async fn sharers(&self, key: &ResourceKey) -> Vec<(u32, String)> {
        let footprint = Footprint { resources: vec![key.clone()], ..Default::default() };
        let state = self.load(footprint).await.state;
        let slots = state.slots_of(key).expect("all slots are loaded with their resource");
        let held = slots.into_iter().filter_map(|s| Some((s.key.slot, s.lease.as_ref()?.holder.to_string())));
        held.collect()
    }
}

fn named(sharers: &[(u32, &str)]) -> Vec<(u32, String)> {
    sharers.iter().map(|(slot, holder)| (*slot, (*holder).to_owned())).collect()
}

/// Each has a token of its own; one more is refused until one of them ends, and gets the slot that is free.
pub async fn as_many_as_there_are_slots(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("pool");
    let mut tokens = vec![Token(0)];
    let mut grants = Vec::new();
    for (n, holder) in ["ann", "bea", "carl"].into_iter().enumerate() {
        let grant = bench.grant(share(&job, holder, 3)).await;
        assert_eq!((grant.lease.key.clone(), grant.lease.lease.slots), (job.of_slot(n as u32 + 1), Some(3)));
        assert!(token(&grant) > *tokens.last().expect("one"), "tokens grow over all slots");
        tokens.push(token(&grant));
        grants.push(grant);
    }
    is!(bench.refused(share(&job, "dan", 3)).await, Refusal::Held { retry_after_ms, .. } if *retry_after_ms > 0);
    is!(bench.refused(share(&job, "dan", 0)).await, Refusal::OutOfBounds { what: "slots", .. });
    // Who shares with two others shares with no more, however many the next one would agree to.
    is!(bench.refused(share(&job, "dan", 5)).await, Refusal::Held { .. });
    bench.done(release(its(&grants[1]))).await;
    let dan = bench.grant(share(&job, "dan", 3)).await;
    assert_eq!(dan.lease.key, job.of_slot(2));
    assert!(token(&dan) > token(&grants[2]), "tokens grow");
    assert_eq!(bench.sharers(&job).await, named(&[(1, "ann"), (2, "dan"), (3, "carl")]));
    is!(bench.refused(renew(its(&grants[1]))).await, Refusal::Lost { .. });
    for grant in [&grants[0], &grants[2], &dan] {
        renewed(bench.run(renew(its(grant))).await);
        bench.done(release(its(grant))).await;
    }
    assert_eq!(bench.resource(&job).await, None, "nothing is left of it");
    let names = bench.names(&job).await;
    assert_eq!(names.iter().filter(|name| **name == EventName::LeaseAcquired).count(), 4, "{names:?}");
}

/// One who wants a resource alone and those who share it exclude each other, also by what is held back.
pub async fn alone_or_shared(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("book");
    let writer = bench.grant(ask(&job, "writer")).await;
    is!(bench.refused(share(&job, "ann", 9)).await, Refusal::Held { holder, .. } if *holder == name("writer"));
    bench.done(release(its(&writer))).await;
    let ann = bench.grant(share(&job, "ann", 9)).await;
    let bea =
        bench.grant(Acquire { tenure: AskedTenure::Own { ttl_ms: 1_000 }, ..share(&job, "bea", 9) }).await;
    is!(bench.refused(ask(&job, "writer")).await, Refusal::Held { .. });
    bench.done(release(its(&ann))).await;
    is!(bench.refused(ask(&job, "writer")).await, Refusal::Held { holder, .. } if *holder == name("bea"));
    // By time alone, whether or not anyone has swept.
    bench.pass_until(bea.lease.deadline).await;
    let writer = bench.grant(ask(&job, "writer")).await;
    assert_eq!(writer.lease.key, job);
    assert!(token(&writer) > token(&bea));
    bench.done(revoke(its(&writer), false)).await;
    is!(bench.refused(share(&job, "ann", 9)).await, Refusal::HeldBack { .. });
    bench.done(revoke(by_token(&job, token(&writer)), true)).await;
    bench.grant(share(&job, "ann", 9)).await;
}

/// Nobody overtakes: those who share wait behind one who wants it alone, and all of them get in after it.
pub async fn in_one_line(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("line");
    let room = bench.room(LONG_MS).await;
    let first = bench.grant(share(&job, "first", 2)).await;
    let wait = async |ask: Acquire| match bench.done(waits(&room, ask)).await {
        Answer::Waiting(place) => place,
        other => panic!("not waiting: {other:?}"),
    };
    let writer = wait(ask(&job, "writer")).await;
    wait(share(&job, "ann", 2)).await;
    wait(share(&job, "bea", 2)).await;
    let carl = wait(share(&job, "carl", 2)).await;
    is!(bench.refused(share(&job, "late", 2)).await, Refusal::Held { .. });
    assert_eq!(bench.sharers(&job).await, named(&[(1, "first")]), "a slot is free, and nobody overtakes");
    bench.done(release(its(&first))).await;
    assert_eq!(bench.sharers(&job).await, []);
    let lease = bench.lease(&job).await.expect("it goes to who came first");
    assert_eq!(lease.lease.id, writer.lease);
    bench.done(release(by_token(&job, lease.lease.token))).await;
    assert_eq!(bench.sharers(&job).await, named(&[(1, "ann"), (2, "bea")]), "in the same commit");
    // One who gives up its place lets those behind it pass.
    let second = wait(ask(&job, "writer")).await;
    wait(share(&job, "dan", 2)).await;
    bench.done(release(by_holder(&job, "ann"))).await;
    assert_eq!(bench.sharers(&job).await, named(&[(1, "carl"), (2, "bea")]));
    let grant = bench.done(Command::LeaveQueue { key: job.clone(), lease: carl.lease }).await;
    is!(grant, Answer::Granted(grant) if grant.lease.key == job.of_slot(1));
    bench.done(release(by_holder(&job, "carl"))).await;
    assert_eq!(bench.sharers(&job).await, named(&[(2, "bea")]), "the second writer is ahead of dan");
    bench.done(Command::LeaveQueue { key: job.clone(), lease: second.lease }).await;
    assert_eq!(bench.sharers(&job).await, named(&[(1, "dan"), (2, "bea")]));
}

/// A slot whose holder was revoked is taken until that holder's time is over, and then goes to the first in line.
pub async fn a_slot_is_held_back(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("held-back");
    let room = bench.room(LONG_MS).await;
    let short = AskedTenure::Own { ttl_ms: 1_500 };
    let ann = bench.grant(Acquire { tenure: short, ..share(&job, "ann", 2) }).await;
    bench.grant(share(&job, "bea", 2)).await;
    is!(bench.done(waits(&room, share(&job, "carl", 2))).await, Answer::Waiting(_));
    is!(bench.done(revoke(its(&ann), false)).await, Answer::Revoked { held_back_ms, .. } if *held_back_ms > 0);
    assert_eq!(bench.sharers(&job).await, named(&[(2, "bea")]), "ann may work until its deadline");
    bench.pass_until(ann.lease.deadline).await;
    // Nobody does anything: it is found by the sweeper.
    let due = bench.store.due(1_000).await.expect("the store reads");
    is!(due.commands.as_slice(), [Command::Expire { key }] if *key == job.of_slot(1));
    bench.all(due.commands).await;
    assert_eq!(bench.sharers(&job).await, named(&[(1, "carl"), (2, "bea")]));
    let due = bench.store.due(1_000).await.expect("the store reads");
    assert!(due.commands.is_empty(), "{due:?}");
}

/// The last token of a resource is as high as that of any slot: it fences the exclusive holders before.
pub async fn a_slot_raises_the_last_token(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("marked");
    bench.done(declare(&job, Declaration::default())).await;
    let writer = bench.grant(ask(&job, "writer")).await;
    bench.done(release(its(&writer))).await;
    let ann = bench.grant(share(&job, "ann", 2)).await;
    let bea = bench.grant(share(&job, "bea", 2)).await;
    let last_token = async || bench.resource(&job).await.expect("it is declared").last_token;
    assert_eq!(last_token().await, token(&bea));
    bench.done(release(its(&bea))).await;
    bench.done(release(its(&ann))).await;
    assert_eq!(last_token().await, token(&bea), "what was given stays known after its end");
    let writer = bench.grant(ask(&job, "writer")).await;
    assert_eq!(last_token().await, token(&writer));
}

/// A claim by the key of the resource means the slot whose lease it proves.
pub async fn by_key_and_token(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("claims");
    let ann = bench.grant(share(&job, "ann", 3)).await;
    let bea = bench.grant(share(&job, "bea", 3)).await;
    bench.grant(share(&job, "bea", 3)).await;
    let again = renewed(bench.run(renew(by_token(&job, token(&bea)))).await);
    assert_eq!(again.lease.key, bea.lease.key);
    assert_eq!(renewed(bench.run(renew(by_holder(&job, "ann"))).await).lease.key, ann.lease.key);
    is!(bench.refused(renew(by_holder(&job, "bea"))).await, Refusal::NoProof);
    is!(bench.refused(renew(by_holder(&job, "carl"))).await, Refusal::Lost { .. });
    is!(bench.refused(release(by_token(&job, Token(1 << 50)))).await, Refusal::Lost { .. });
    let write = StateWrite { sequence: 1, document: text("mine") };
    is!(bench.refused(Command::WriteState { claim: its(&ann), write }).await, Refusal::SharedState);
    is!(bench.done(release(by_id("acme", ann.lease.lease.id))).await, Answer::Released(_));
    let query = ResourceQuery { leased: Some(true), undeclared: true, limit: 10, ..Default::default() };
    let found = bench.found(ResourceQuery { kind: Some(name("job")), ..query.clone() }).await;
    assert_eq!(found, [job.of_slot(2), job.of_slot(3)], "each lease is found");
    let page = bench.found(ResourceQuery { after: Some(job.of_slot(2)), ..query }).await;
    assert_eq!(page, [job.of_slot(3)], "pages go on within a resource");
    let all = ResourceQuery { undeclared: true, limit: 10, ..Default::default() };
    assert_eq!(bench.found(all).await, [job], "and the resource once");
}

/// Slots hang on sessions, and a request gets one slot however often it is asked.
pub async fn sessions_and_requests(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("sessions");
    let Answer::Session(SessionView { session: ann, .. }) =
        bench.done(register("ann", LONG_MS, Some(2))).await
    else {
        panic!("no session")
    };
    for n in 1..=2 {
        let grant = bench.grant(Acquire { slots: Some(9), ..ask_on(&job, &ann) }).await;
        assert_eq!(grant.lease.key, job.of_slot(n));
    }
    is!(bench.refused(Acquire { slots: Some(9), ..ask_on(&job, &ann) }).await, Refusal::AtCapacity { .. });
    let asked = || Acquire { request: Some(name("r1")), ..share(&job, "bea", 9) };
    let bea = bench.grant(asked()).await;
    let again = bench.grant(asked()).await;
    assert!(again.repeated && again.lease.key == bea.lease.key && token(&again) == token(&bea));
    bench.done(close(ann.id)).await;
    assert_eq!(bench.sharers(&job).await, named(&[(3, "bea")]));
    bench.done(release(its(&bea))).await;
    is!(bench.refused(asked()).await, Refusal::RequestSpent(_));
    assert_eq!(bench.resource(&job).await, None);
}

/// Several at once: all of them or none, shared ones among them.
pub async fn all_or_none(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let a = key("a");
    let b = key("b");
    let c = key("c");
    let held = bench.grant(ask(&c, "carl")).await;
    let all =
        |holder: &str| Command::AcquireAll(vec![ask(&a, holder), share(&b, holder, 2), ask(&c, holder)]);
    let before = bench.head().await;
    is!(bench.refused(all("ann")).await, Refusal::NotAll { key, why } if *key == c && matches!(**why, Refusal::Held { .. }));
    assert_eq!((bench.head().await, bench.resource(&a).await), (before, None), "nothing was done");
    bench.done(release(its(&held))).await;
    let Answer::GrantedAll(grants) = bench.done(all("ann")).await else { panic!("not granted") };
    let keys: Vec<_> = grants.iter().map(|grant| grant.lease.key.clone()).collect();
    assert_eq!(keys, [a.clone(), b.of_slot(1), c.clone()]);
    is!(bench.refused(all("bea")).await, Refusal::NotAll { key, .. } if *key == a);
    let twice = Command::AcquireAll(vec![share(&b, "bea", 2), share(&b, "bea", 2)]);
    is!(bench.refused(twice).await, Refusal::NotAll { .. });
    is!(bench.refused(Command::AcquireAll(Vec::new())).await, Refusal::OutOfBounds { .. });
}

/// A declaration is of the resource and counts for its slots; deleting it needs force while they are held.
pub async fn slots_of_a_deleted_resource(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("declared");
    bench.done(declare(&job, Declaration { lock_delay_ms: 60_000, ..Default::default() })).await;
    let short = AskedTenure::Own { ttl_ms: 1_000 };
    let ann = bench.grant(Acquire { tenure: short, ..share(&job, "ann", 2) }).await;
    bench.pass_until(ann.lease.deadline).await;
    is!(bench.refused(ask(&job, "alone")).await, Refusal::HeldBack { retry_after_ms, .. } if *retry_after_ms > 30_000);
    bench.grant(share(&job, "bea", 2)).await;
    let delete = |force, fenced| Command::Delete { key: job.clone(), force, fenced };
    is!(bench.refused(delete(false, false)).await, Refusal::InUse { .. });
    bench.done(delete(true, true)).await;
    assert_eq!(bench.resource(&job).await, None, "all who shared it are fenced off");
    bench.grant(ask(&job, "alone")).await;
}
