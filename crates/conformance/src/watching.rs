//! Watching: no gaps, no duplicates, and missing events are reported (rule 18).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use solehold_core::{
    event::*,
    key::*,
    lease::{Declaration, LeaseStatus},
    time::*,
};
use tokio::time::timeout;

use crate::{Fixture, kit::*};
use solehold_engine::{
    Engine, EngineOptions,
    store::{Cursor, Retention},
    watch::*,
};

/// The next frame; a test that hangs says so.
async fn next(watch: &mut Watch) -> Option<Frame> {
    timeout(Duration::from_secs(60), watch.next()).await.expect("a frame within a minute")
}

/// The next event, over progress marks.
async fn next_event(watch: &mut Watch) -> (Event, Cursor) {
    loop {
        match next(watch).await {
            Some(Frame::Event { event, cursor }) => {
                assert_eq!(event.revision, cursor.revision);
                return (*event, cursor);
            }
            Some(Frame::Progress(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

async fn snapshot(watch: &mut Watch) -> (Vec<(ResourceKey, Token)>, Cursor) {
    match next(watch).await {
        Some(Frame::Snapshot(found)) => {
            assert!(!found.more, "it fits into one page");
            let live = found.leases().into_iter().filter(|l| l.status == LeaseStatus::Active);
            (live.map(|l| (l.key, l.lease.token)).collect(), found.loaded.cursor)
        }
        other => panic!("{other:?}"),
    }
}

/// First all live leases, then what happens to them.
pub async fn snapshot_then_events(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let engine = bench.engine();
    let held = bench.grant(ask(&key("held"), "ann")).await;
    bench.done(declare(&key("free"), Declaration::default())).await;
    let mut watch = engine.watch(None, Filter::default()).await.expect("a watch");
    let (leases, cursor) = snapshot(&mut watch).await;
    assert_eq!(leases, [(key("held"), token(&held))]);
    assert_eq!(cursor, bench.head().await);
    bench.done(release(its(&held))).await;
    let again = bench.grant(ask(&key("free"), "bea")).await;
    let (released, _) = next_event(&mut watch).await;
    assert_eq!((released.name(), released.token()), (EventName::LeaseReleased, Some(token(&held))));
    let (acquired, cursor) = next_event(&mut watch).await;
    assert_eq!((acquired.name(), acquired.key.clone()), (EventName::LeaseAcquired, key("free")));
    assert_eq!(cursor.revision, again.revision);
    engine.stop().await;
    assert!(next(&mut watch).await.is_none(), "over when the engine stops");
}

/// Watchers that begin while others write see every event once, in order; snapshot and events add up to what is held.
pub async fn no_gap_no_double(fixture: &dyn Fixture) {
    const WRITERS: usize = 4;
    const ROUNDS: usize = 60;
    let bench = Bench::new(fixture).await;
    let engine = bench.engine();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let engine = engine.clone();
            tokio::spawn(async move {
                for round in 0..ROUNDS {
                    let ask = ask(&key(&format!("job-{writer}-{}", round % 7)), "ann");
                    let lease = ask.lease;
                    let _ = engine.submit(ask.command()).await.expect("the store answers");
                    if round % 3 != 0 {
                        let _ =
                            engine.submit(release(by_id("acme", lease))).await.expect("the store answers");
                    }
                }
            })
        })
        .collect();
    let mut watchers = Vec::new();
    for _ in 0..8 {
        let mut watch = engine.watch(None, Filter::default()).await.expect("a watch");
        let (leases, cursor) = snapshot(&mut watch).await;
        watchers.push((watch, BTreeMap::from_iter(leases), cursor));
        let step = Cursor { revision: cursor.revision, ..cursor };
        bench.store.news(step).await.expect("the store reads");
    }
    for writer in writers {
        writer.await.expect("no panic");
    }
    let head = bench.head().await;
    let query = solehold_engine::store::ResourceQuery {
        leased: Some(true),
        undeclared: true,
        limit: 1_000,
        ..Default::default()
    };
    let found = bench.store.find_resources(&query).await.expect("the store reads");
    let held: BTreeMap<_, _> = found.leases().into_iter().map(|l| (l.key, l.lease.token)).collect();
    for (mut watch, mut leases, mut at) in watchers {
        while at.revision < head.revision {
            let (event, cursor) = next_event(&mut watch).await;
            assert_eq!(cursor.revision, at.revision.next(), "neither gap nor double");
            at = cursor;
            match &event.what {
                What::Acquired(lease) => drop(leases.insert(event.key, lease.token)),
                What::Released(_) | What::Expired(_) => drop(leases.remove(&event.key)),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(leases, held);
    }
    engine.stop().await;
}

/// A watcher that does not read while ten thousand events pass has missed nothing.
pub async fn slow_watcher(fixture: &dyn Fixture) {
    const EVENTS: u64 = 10_000;
    let bench = Bench::new(fixture).await;
    let engine = bench.engine();
    let mut slow = engine.watch(None, Filter::default()).await.expect("a watch");
    snapshot(&mut slow).await;
    for round in 0..10 {
        let mut commands = Vec::new();
        for n in 0..EVENTS / 20 {
            let ask = ask(&key(&format!("job-{round}-{n}")), "ann");
            let lease = ask.lease;
            commands.extend([ask.command(), release(by_id("acme", lease))]);
        }
        for outcome in engine.submit_all(commands).await {
            assert!(outcome.expect("the store answers").is_ok());
        }
    }
    for revision in 1..=EVENTS {
        assert_eq!(next_event(&mut slow).await.1.revision, Revision(revision));
    }
    engine.stop().await;
}

/// A watch can go on from any cursor that it was given.
pub async fn resume_from_a_cursor(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let engine = bench.engine();
    let begin = bench.head().await;
    let mut grants = Vec::new();
    for n in 0..10 {
        grants.push(bench.grant(ask(&key(&format!("job-{n}")), "ann")).await);
    }
    let mut first = engine.watch(Some(begin), Filter::default()).await.expect("a watch");
    let mut cursor = begin;
    for grant in &grants[..4] {
        cursor = next_event(&mut first).await.1;
        assert_eq!(cursor.revision, grant.revision);
    }
    drop(first);
    let mut second = engine.watch(Some(cursor), Filter::default()).await.expect("a watch");
    for grant in &grants[4..] {
        assert_eq!(next_event(&mut second).await.1.revision, grant.revision);
    }
    let last = bench.grant(ask(&key("last"), "ann")).await;
    assert_eq!(next_event(&mut second).await.1.revision, last.revision);
    engine.stop().await;
}

/// A cursor from before the floor is told so, with the floor, and the watch is over.
pub async fn compacted(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let begin = bench.head().await;
    for n in 0..10 {
        bench.grant(ask(&key(&format!("job-{n}")), "ann")).await;
    }
    let retention = Retention { events_ms: 1_000_000_000, events_max: 3, unsent_after: None };
    let options = EngineOptions { retention, ..Default::default() };
    bench.pass(1_100).await;
    bench.store.maintain(&retention).await.expect("the store maintains");
    let engine = Engine::start(bench.store.clone(), options, Arc::new(()));
    let mut watch = engine.watch(Some(begin), Filter::default()).await.expect("a watch");
    match next(&mut watch).await {
        Some(Frame::Compacted { floor }) => assert_eq!(floor, Cursor { revision: Revision(7), ..begin }),
        other => panic!("{other:?}"),
    }
    assert!(next(&mut watch).await.is_none());
    let at_the_floor = Cursor { revision: Revision(7), ..begin };
    let mut watch = engine.watch(Some(at_the_floor), Filter::default()).await.expect("a watch");
    assert_eq!(next_event(&mut watch).await.1.revision, Revision(8));
    engine.stop().await;
}

/// A watcher is told only of what it asked for.
pub async fn filter(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let engine = bench.engine();
    let begin = Some(bench.head().await);
    let camera = ResourceKey { kind: name("camera"), ..key("c") };
    let other = ResourceKey { tenant: name("other"), ..key("o") };
    let outcomes = bench
        .all(vec![
            declare(&key("a"), Declaration::default()),
            ask(&key("a"), "ann").command(),
            ask(&key("b"), "bea").command(),
            ask(&camera, "ann").command(),
            ask(&other, "ann").command(),
        ])
        .await;
    assert!(outcomes.iter().all(Result::is_ok));
    for (filter, revisions) in [
        (Filter::default(), vec![1, 2, 3, 4, 5]),
        (Filter { tenant: Some(name("acme")), ..Default::default() }, vec![1, 2, 3, 4]),
        (Filter { kind: Some(name("camera")), ..Default::default() }, vec![4]),
        (Filter { holder: Some(name("ann")), ..Default::default() }, vec![2, 4, 5]),
        (
            Filter {
                tenant: Some(name("acme")),
                holder: Some(name("ann")),
                kind: Some(name("job")),
                renewals: false,
            },
            vec![2],
        ),
    ] {
        let mut from_snapshot = engine.watch(None, filter.clone()).await.expect("a watch");
        let (leases, _) = snapshot(&mut from_snapshot).await;
        let mut acquired = Vec::new();
        let mut watch = engine.watch(begin, filter).await.expect("a watch");
        for revision in &revisions {
            let (event, _) = next_event(&mut watch).await;
            assert_eq!(event.revision, Revision(*revision));
            acquired.extend(event.token().map(|token| (event.key, token)));
        }
        acquired.sort();
        assert_eq!(leases, acquired, "the snapshot is of the same leases");
    }
    engine.stop().await;
}

/// Renewals are told to those who ask, once each, and only the leases that were renewed.
pub async fn renewals(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let engine = bench.engine();
    let session = bench.session("ann", LONG_MS).await;
    bench.grant(ask_on(&key("a"), &session)).await;
    bench.grant(ask_on(&key("b"), &session)).await;
    let own = bench.grant(ask(&key("own"), "bea")).await;
    // Waits for another's lease: a heartbeat of the one who waits renews nothing of the other's.
    bench.grant(ask(&key("waited-for"), "carl")).await;
    bench.done(hand_over(&key("waited-for"), session.id, LONG_MS)).await;
    let filter = Filter { renewals: true, ..Default::default() };
    let mut asked = engine.watch(None, filter).await.expect("a watch");
    let mut not_asked = engine.watch(None, Filter::default()).await.expect("a watch");
    snapshot(&mut asked).await;
    snapshot(&mut not_asked).await;
    let mut renewed = async || match next(&mut asked).await {
        Some(Frame::Renewed(view)) => view,
        other => panic!("{other:?}"),
    };
    engine.submit(heartbeat(session.id)).await.expect("the store answers").expect("not refused");
    let mut told = vec![renewed().await.key, renewed().await.key];
    told.sort();
    assert_eq!(told, [key("a"), key("b")]);
    engine.submit(renew(its(&own))).await.expect("the store answers").expect("not refused");
    let view = renewed().await;
    assert_eq!((view.key, view.lease.token, view.ttl_ms), (key("own"), token(&own), LONG_MS));
    bench.done(release(its(&own))).await;
    assert_eq!(next_event(&mut not_asked).await.0.name(), EventName::LeaseReleased);
    engine.stop().await;
}

/// A watcher without events of its own is told how far the history has been read, even while others' events pass by.
pub async fn progress(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let engine = bench.engine();
    let filter = Filter { kind: Some(name("nothing")), renewals: true, ..Default::default() };
    let mut watch = engine.watch(None, filter).await.expect("a watch");
    let (_, begin) = snapshot(&mut watch).await;
    let noise = tokio::spawn({
        let engine = engine.clone();
        async move {
            let mut turns = tokio::time::interval(Duration::from_millis(50));
            for n in 0.. {
                turns.tick().await;
                let submitted = engine.submit(ask(&key(&format!("job-{n}")), "ann").command()).await;
                assert!(submitted.is_ok_and(|outcome| outcome.is_ok()));
            }
        }
    });
    match next(&mut watch).await {
        Some(Frame::Progress(cursor)) => assert!(cursor > begin, "{cursor:?}"),
        other => panic!("{other:?}"),
    }
    noise.abort();
    engine.stop().await;
}

/// A cursor that this store never gave is refused.
pub async fn ahead_of_history(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let engine = bench.engine();
    bench.grant(ask(&key("one"), "ann")).await;
    let head = bench.head().await;
    let ahead = Cursor { revision: Revision(head.revision.0 + 1), ..head };
    let refused = engine.watch(Some(ahead), Filter::default()).await.err();
    is!(refused, Some(WatchError::Ahead { given, head: h }) if *given == ahead && *h == head);
    assert!(engine.watch(Some(head), Filter::default()).await.is_ok());
    engine.stop().await;
}

/// Stopped and started in the middle: the cursor goes on where it was.
pub async fn across_a_restart(fixture: &dyn Fixture) {
    let mut bench = Bench::new(fixture).await;
    let mut cursor = bench.head().await;
    for round in 0..3 {
        let engine = bench.engine();
        let mut watch = engine.watch(Some(cursor), Filter::default()).await.expect("a watch");
        for n in 0..10 {
            let ask = ask(&key(&format!("job-{round}-{n}")), "ann");
            engine.submit(ask.command()).await.expect("the store answers").expect("granted");
        }
        // Some of the last round are still to come: it was stopped before they were read.
        for _ in 0..if round == 2 { 18 } else { 6 } {
            let (_, told) = next_event(&mut watch).await;
            assert_eq!(told.revision, cursor.revision.next(), "neither gap nor double");
            cursor = told;
        }
        engine.stop().await;
        drop((engine, watch));
        bench = bench.reopen().await;
    }
    assert_eq!(cursor.revision, Revision(30));
}

/// While someone reads a snapshot of many pages, leases are granted and renewed; the snapshot is of the moment it
/// began, and what happened since follows it.
pub async fn a_snapshot_under_way_is_in_nobodys_way(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let engine = bench.engine();
    let pages = 8;
    crate::moving::fill(&bench, pages * SNAPSHOT_RESOURCES_AT_ONCE).await;
    let own = bench.grant(ask(&key("own"), "bea")).await;
    let mut watch = engine.watch(None, Filter::default()).await.expect("a watch");
    // The reader takes no more for now. Were it in the way, this would never end.
    renewed(engine.submit(renew(its(&own))).await.expect("answered"));
    let new = bench.grant(ask(&key("job-00000-new"), "carl")).await;
    let mut keys = Vec::new();
    loop {
        let Some(Frame::Snapshot(page)) = next(&mut watch).await else { panic!("not a page") };
        assert_eq!(page.loaded.cursor.revision, own.revision, "all pages are of one moment");
        assert!(page.keys.len() <= SNAPSHOT_RESOURCES_AT_ONCE);
        keys.extend(page.keys);
        if !page.more {
            break;
        }
    }
    assert_eq!(keys.len(), pages * SNAPSHOT_RESOURCES_AT_ONCE + 1);
    assert!(keys.is_sorted() && !keys.contains(&new.lease.key));
    assert_eq!(next_event(&mut watch).await.0.key, new.lease.key);
    engine.stop().await;
}
