//! The history: events in one total order, paged, kept for a while (rule 18).

use std::time::Duration;

use solehold_core::{event::*, lease::Declaration, time::*};

use crate::{Fixture, kit::*};
use solehold_engine::store::{Cursor, EventQuery, Retention};

impl Bench<'_> {
    async fn hundred_cycles(&self, prefix: &str) {
        for n in 0..4 {
            let mut commands = Vec::new();
            for m in 0..25 {
                let ask = ask(&key(&format!("{prefix}-{n}-{m}")), "ann");
                let id = ask.lease;
                commands.extend([ask.command(), release(by_id("acme", id))]);
            }
            assert!(self.all(commands).await.iter().all(Result::is_ok));
        }
    }
}

/// Pages follow one another without gap or double; a page is full before the head is told.
pub async fn pages(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    bench.hundred_cycles("paged").await;
    let mut seen = Vec::<Event>::new();
    let mut after = Revision(0);
    loop {
        let page = bench.store.events(&EventQuery { after, limit: 37, ..Default::default() }).await;
        let page = page.expect("the store reads");
        assert_eq!((page.head.revision, page.floor), (Revision(200), Revision(0)));
        let Some(last) = page.events.last() else { break };
        after = last.revision;
        seen.extend(page.events);
    }
    assert_eq!(seen.iter().map(|e| e.revision.0).collect::<Vec<_>>(), Vec::from_iter(1..=200));
    assert!(seen.windows(2).all(|pair| pair[0].at <= pair[1].at));
    assert_eq!(bench.events(Revision(0)).await, seen);
    let newest = EventQuery { limit: 3, ..Default::default() }.newest();
    let page = bench.store.events(&newest).await.expect("the store reads").events;
    assert_eq!(page, seen.iter().rev().take(3).cloned().collect::<Vec<_>>());
}

/// The history of one lease, and of one resource.
pub async fn of_a_lease_and_of_a_resource(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    bench.hundred_cycles("noise").await;
    let job = key("a/ü");
    bench.done(declare(&job, Declaration::default())).await;
    let first = bench.grant(ask(&job, "ann")).await;
    bench.done(release(its(&first))).await;
    let second = bench.grant(ask(&job, "bea")).await;
    bench.hundred_cycles("more").await;
    let names = async |query: EventQuery| {
        let page = bench.store.events(&EventQuery { limit: 10, ..query }).await.expect("the store reads");
        page.events.iter().map(Event::name).collect::<Vec<_>>()
    };
    use EventName::{LeaseAcquired, LeaseReleased, ResourceDeclared};
    let of_lease = |g: &solehold_core::outcome::Grant| EventQuery {
        lease: Some(g.lease.lease.id),
        ..Default::default()
    };
    assert_eq!(names(of_lease(&first)).await, [LeaseAcquired, LeaseReleased]);
    assert_eq!(names(of_lease(&second)).await, [LeaseAcquired]);
    let of_resource = EventQuery { resource: Some(job.clone()), ..Default::default() };
    let all = [ResourceDeclared, LeaseAcquired, LeaseReleased, LeaseAcquired];
    assert_eq!(names(of_resource.clone()).await, all);
    let newest = EventQuery { limit: 2, ..of_resource.clone() }.newest();
    let page = bench.store.events(&newest).await.expect("the store reads").events;
    assert_eq!(page.iter().map(Event::name).collect::<Vec<_>>(), [LeaseAcquired, LeaseReleased]);
    let older = EventQuery { newest_before: page.last().map(|event| event.revision), ..of_resource.clone() };
    assert_eq!(names(older).await, [LeaseAcquired, ResourceDeclared], "the newest first, page by page");
    let between = EventQuery { after: first.revision, ..of_resource.clone() }.newest();
    assert_eq!(names(between).await, [LeaseAcquired, LeaseReleased]);
    assert_eq!(names(of_lease(&first).newest()).await, [LeaseReleased, LeaseAcquired]);
    let later = EventQuery { after: first.revision, ..of_resource };
    assert_eq!(names(later).await, [LeaseReleased, LeaseAcquired]);
    let none = EventQuery { resource: Some(key("nothing")), ..Default::default() };
    assert_eq!(names(none).await, []);
}

/// After the head there is nothing, and the head is told.
pub async fn after_the_head(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let empty = bench.store.events(&EventQuery { limit: 10, ..Default::default() }).await.expect("reads");
    assert_eq!((empty.events.len(), empty.head.revision), (0, Revision(0)));
    bench.grant(ask(&key("one"), "ann")).await;
    for after in [1, 2, u64::MAX >> 1] {
        let query = EventQuery { after: Revision(after), limit: 10, ..Default::default() };
        let page = bench.store.events(&query).await.expect("the store reads");
        assert_eq!((page.events.len(), page.head), (0, bench.head().await));
        assert_eq!(page.head.revision, Revision(1));
    }
}

/// A caller that waits for news is woken by them; without news the wait ends by itself.
pub async fn news_wakes(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let before = bench.head().await;
    let store = bench.store.clone();
    let waits = tokio::spawn(async move {
        let mut head = store.news(before).await.expect("the store reads");
        while head <= before {
            head = store.news(before).await.expect("the store reads");
        }
        head
    });
    let grant = bench.grant(ask(&key("news"), "ann")).await;
    let head = tokio::time::timeout(Duration::from_secs(30), waits).await.expect("woken").expect("no panic");
    assert_eq!(head, Cursor { revision: grant.revision, ..before });
    assert_eq!(bench.store.news(before).await.expect("reads"), head, "what is past needs no waiting");
    assert_eq!(bench.store.news(head).await.expect("the store reads"), head, "no news, in a while");
}

/// Events past their retention go, the oldest first, and the floor says so.
pub async fn retention(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    bench.hundred_cycles("old").await;
    let keep = |events_ms, events_max| Retention { events_ms, events_max, unsent_after: None };
    let long = 7 * 24 * 60 * 60 * 1_000;
    let maintained = async |retention: Retention| {
        // The work of maintenance is due now and then, by the store's time.
        bench.pass(1_100).await;
        bench.store.maintain(&retention).await.expect("the store maintains");
    };
    maintained(keep(long, 1_000_000)).await;
    assert_eq!(bench.events(Revision(0)).await.len(), 200);
    maintained(keep(long, 50)).await;
    let page = bench.store.events(&EventQuery { limit: 1_000, ..Default::default() }).await.expect("reads");
    assert_eq!((page.floor, page.head.revision), (Revision(150), Revision(200)));
    assert!(page.events.iter().all(|e| e.revision > page.floor), "nothing below the floor");
    assert_eq!(page.events.len(), 50);
    bench.grant(ask(&key("new"), "ann")).await;
    maintained(keep(1_000, 1_000_000)).await;
    maintained(keep(1_000, 1_000_000)).await;
    let page = bench.store.events(&EventQuery { limit: 1_000, ..Default::default() }).await.expect("reads");
    assert_eq!((page.floor, page.head.revision, page.events.len()), (Revision(201), Revision(201), 0));
    assert!(bench.lease(&key("new")).await.is_some(), "only the history goes");
    let next = bench.grant(ask(&key("newer"), "ann")).await;
    assert_eq!(next.revision, Revision(202));
    assert_eq!(bench.events(Revision(201)).await.len(), 1);
}

/// Old events that a relay has not sent yet stay, as long as there are not too many.
pub async fn unsent_events_stay(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    bench.hundred_cycles("old").await;
    let keep =
        |events_max, sent| Retention { events_ms: 1_000, events_max, unsent_after: Some(Revision(sent)) };
    let floor_after = async |retention: Retention| {
        for _ in 0..2 {
            bench.pass(1_100).await;
            bench.store.maintain(&retention).await.expect("the store maintains");
        }
        let page = bench.store.events(&EventQuery { limit: 1_000, ..Default::default() }).await;
        let page = page.expect("the store reads");
        assert_eq!(page.events.len() as u64, 200 - page.floor.0, "all above the floor are there");
        page.floor
    };
    assert_eq!(floor_after(keep(1_000_000, 0)).await, Revision(0));
    assert_eq!(floor_after(keep(1_000_000, 60)).await, Revision(60));
    assert_eq!(floor_after(keep(1_000_000, 60)).await, Revision(60), "nothing more in another round");
    assert_eq!(floor_after(keep(90, 60)).await, Revision(110), "the bound on their number stands");
    assert_eq!(floor_after(keep(1_000_000, 200)).await, Revision(200));
}

/// What happens without news leaves no trace in the history.
pub async fn renewals_leave_no_trace(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let grant = bench.grant(ask(&key("quiet"), "ann")).await;
    let session = bench.session("bea", LONG_MS).await;
    for _ in 0..20 {
        bench.all(vec![renew(its(&grant)), heartbeat(session.id)]).await;
    }
    let events = bench.events(Revision(0)).await;
    assert_eq!(events.iter().map(Event::name).collect::<Vec<_>>(), [EventName::LeaseAcquired]);
}
