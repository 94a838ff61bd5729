//! The watch hub where it is easy to get wrong: slow tails, holes, epochs, silent stores.
#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

#[path = "common/wrapped.rs"]
#[allow(dead_code)]
mod wrapped;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use solehold_conformance::kit::*;
use solehold_core::time::Revision;
use solehold_engine::{
    Engine, EngineError, EngineOptions,
    store::{Cursor, Retention, StoreError},
    watch::{Filter, Frame, Watch, WatchError},
};
use solehold_testkit::wait_for;
use tokio::time::timeout;
use wrapped::Wrapped;

const PATIENCE: Duration = Duration::from_secs(60);
const KEEP: Retention = Retention { events_ms: 1_000_000_000, events_max: 1_000_000, unsent_after: None };

fn start(store: &Arc<Wrapped>) -> Engine {
    Engine::start(store.clone(), EngineOptions { retention: KEEP, ..Default::default() }, Arc::new(()))
}

async fn next(watch: &mut Watch) -> Option<Frame> {
    timeout(PATIENCE, watch.next()).await.expect("a frame in time")
}

/// The revision of the next event.
async fn next_event(watch: &mut Watch) -> u64 {
    loop {
        match next(watch).await {
            Some(Frame::Event { cursor, .. }) => return cursor.revision.0,
            Some(Frame::Progress(_) | Frame::Snapshot { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

async fn acquire(bench: &Bench<'_>, from: u64, to: u64) {
    for n in from..=to {
        assert_eq!(bench.grant(ask(&key(&format!("job-{n}")), "ann")).await.revision, Revision(n));
    }
}

/// A watcher whose snapshot is newer than what the tail has read waits for it: it neither spins nor goes back.
#[tokio::test]
async fn a_watcher_ahead_of_the_tail() {
    let store = Wrapped::new();
    let bench = Bench::new(&*store).await;
    let engine = start(&store);
    acquire(&bench, 1, 5).await;
    let mut first = engine.watch(None, Filter::default()).await.unwrap();
    acquire(&bench, 6, 6).await;
    assert_eq!(next_event(&mut first).await, 6, "the tail has begun");
    store.history_door.shut();
    acquire(&bench, 7, 10).await;
    let mut ahead = engine.watch(None, Filter::default()).await.unwrap();
    match next(&mut ahead).await {
        Some(Frame::Snapshot(found)) => {
            assert_eq!((found.leases().len(), found.loaded.cursor.revision), (10, Revision(10)))
        }
        other => panic!("{other:?}"),
    }
    // On one thread, a watcher that spins would keep everyone from ever being served.
    assert!(timeout(Duration::from_millis(300), ahead.next()).await.is_err());
    store.history_door.open();
    acquire(&bench, 11, 11).await;
    assert_eq!(next_event(&mut ahead).await, 11, "what the snapshot had is not told again");
    for revision in 7..=11 {
        assert_eq!(next_event(&mut first).await, revision);
    }
    engine.stop().await;
}

/// While the tail could not read, events were dropped: nobody reads over the hole.
#[tokio::test]
async fn a_hole_behind_a_slow_tail() {
    let store = Wrapped::new();
    let bench = Bench::new(&*store).await;
    let engine = start(&store);
    let mut slow = engine.watch(None, Filter::default()).await.unwrap();
    acquire(&bench, 1, 3).await;
    for revision in 1..=3 {
        assert_eq!(next_event(&mut slow).await, revision);
    }
    store.history_door.shut();
    acquire(&bench, 4, 20).await;
    bench.pass(1_100).await;
    use solehold_engine::store::Store;
    store.inner.maintain(&Retention { events_max: 5, ..KEEP }).await.unwrap();
    let fresh = bench.head().await;
    store.history_door.open();
    match next(&mut slow).await {
        Some(Frame::Compacted { floor }) => assert_eq!(floor.revision, Revision(15)),
        other => panic!("{other:?}"),
    }
    assert!(next(&mut slow).await.is_none());
    let mut later = engine.watch(Some(fresh), Filter::default()).await.unwrap();
    acquire(&bench, 21, 22).await;
    assert_eq!((next_event(&mut later).await, next_event(&mut later).await), (21, 22));
    engine.stop().await;
}

/// A new epoch: watchers must start over, even if revisions look as if they went on.
#[tokio::test]
async fn a_new_epoch() {
    let store = Wrapped::new();
    let bench = Bench::new(&*store).await;
    let engine = start(&store);
    let mut watch = engine.watch(None, Filter::default()).await.unwrap();
    acquire(&bench, 1, 3).await;
    for revision in 1..=3 {
        assert_eq!(next_event(&mut watch).await, revision);
    }
    let old = bench.head().await;
    store.epoch.store(1, Ordering::SeqCst);
    acquire(&bench, 4, 4).await;
    match next(&mut watch).await {
        Some(Frame::Compacted { floor }) => assert_eq!(floor.epoch, old.epoch + 1),
        other => panic!("{other:?}"),
    }
    let mut with_old = engine.watch(Some(old), Filter::default()).await.unwrap();
    is!(next(&mut with_old).await, Some(Frame::Compacted { .. }));
    let now = Cursor { epoch: old.epoch + 1, revision: Revision(4) };
    let mut with_new = engine.watch(Some(now), Filter::default()).await.unwrap();
    acquire(&bench, 5, 5).await;
    assert_eq!(next_event(&mut with_new).await, 5);
    let future = Cursor { epoch: old.epoch + 2, revision: Revision(1) };
    is!(engine.watch(Some(future), Filter::default()).await.err(), Some(WatchError::Ahead { .. }));
    engine.stop().await;
}

/// A progress mark is given only after the store was read when it was due: not while the store is silent.
#[tokio::test]
async fn progress_needs_a_read_of_the_store() {
    let store = Wrapped::new();
    let bench = Bench::new(&*store).await;
    let engine = start(&store);
    acquire(&bench, 1, 1).await;
    let mut watch = engine.watch(None, Filter::default()).await.unwrap();
    is!(next(&mut watch).await, Some(Frame::Snapshot { .. }));
    acquire(&bench, 2, 2).await;
    assert_eq!(next_event(&mut watch).await, 2);
    store.fail_with(Some(StoreError::Unavailable("away".to_owned())));
    assert!(
        timeout(Duration::from_secs(8), watch.next()).await.is_err(),
        "nothing is known, so nothing is told"
    );
    store.fail_with(None);
    match next(&mut watch).await {
        Some(Frame::Progress(cursor)) => assert_eq!(cursor.revision, Revision(2)),
        other => panic!("{other:?}"),
    }
    engine.stop().await;
}

/// Nobody watches for a while: the next one misses nothing.
#[tokio::test]
async fn watchers_come_and_go() {
    let store = Wrapped::new();
    let bench = Bench::new(&*store).await;
    let engine = start(&store);
    let mut cursor = bench.head().await;
    let mut expected = 1;
    for round in 0..20 {
        assert_eq!(engine.watchers(), 0);
        acquire(&bench, 3 * round + 1, 3 * round + 2).await;
        let mut watch = engine.watch(Some(cursor), Filter::default()).await.unwrap();
        assert_eq!(engine.watchers(), 1);
        acquire(&bench, 3 * round + 3, 3 * round + 3).await;
        while expected <= 3 * round + 2 {
            assert_eq!(next_event(&mut watch).await, expected);
            cursor.revision = Revision(expected);
            expected += 1;
        }
    }
    assert_eq!(engine.watchers(), 0);
    engine.stop().await;
    is!(engine.watch(None, Filter::default()).await.err(), Some(WatchError::Engine(EngineError::Stopping)));
}

/// A watch that cannot begin is not counted as one.
#[tokio::test]
async fn a_watch_that_fails_is_gone() {
    let store = Wrapped::new();
    let engine = start(&store);
    store.fail_with(Some(StoreError::Unavailable("away".to_owned())));
    is!(engine.watch(None, Filter::default()).await.err(), Some(WatchError::Engine(EngineError::Store(_))));
    assert_eq!(engine.watchers(), 0);
    store.fail_with(None);
    wait_for("the store", PATIENCE, || async { engine.watch(None, Filter::default()).await.is_ok() })
        .await
        .unwrap();
    engine.stop().await;
}
