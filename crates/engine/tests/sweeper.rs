//! The sweeper: at a bounded rate, whatever happens to the store.
#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

#[path = "common/wrapped.rs"]
#[allow(dead_code)]
mod wrapped;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use solehold_conformance::kit::*;
use solehold_core::command::Command;
use solehold_engine::{
    DriverLimits, Engine, EngineOptions,
    observe::Lane,
    store::{EventQuery, Retention, StoreError},
};
use solehold_testkit::wait_for;
use wrapped::{DUE, Notes, Wrapped};

const PATIENCE: Duration = Duration::from_secs(60);

/// Leases that are about to run out, before anyone sweeps.
async fn leases(store: &Wrapped, count: usize) -> Bench<'_> {
    let bench = Bench::new(store).await;
    let asks = (0..count).map(|n| ask_for(&key(&format!("job-{n}")), "ann", SHORT_MS).command());
    let asks: Vec<Command> = asks.collect();
    assert!(bench.all(asks).await.iter().all(Result::is_ok));
    bench
}

async fn all_swept(bench: &Bench<'_>) {
    let swept = wait_for("everything to be swept", PATIENCE, || async {
        bench.store.usage(None).await.unwrap().resources == 0
    });
    swept.await.unwrap();
}

#[tokio::test]
async fn a_mass_expiry_is_spread() {
    let store = Wrapped::new();
    let bench = leases(&store, 40).await;
    let notes = Arc::new(Notes::default());
    let options = EngineOptions { sweep_per_second: 100, ..Default::default() };
    let engine = Engine::start(store.clone(), options, notes.clone());
    bench.pass(SHORT_MS).await;
    all_swept(&bench).await;
    let steps = notes.swept();
    assert!(steps.iter().all(|step| *step <= 5), "{steps:?}");
    assert_eq!(steps.iter().sum::<usize>(), 40, "each was nominated once");
    engine.stop().await;
}

/// Users' commands go through the same lane: a mass expiry does not make them wait for one batch of a thousand.
#[tokio::test]
async fn a_mass_expiry_does_not_fill_batches() {
    let store = Wrapped::new();
    let bench = leases(&store, 400).await;
    let notes = Arc::new(Notes::default());
    let engine = Engine::start(store.clone(), EngineOptions::default(), notes.clone());
    bench.pass(SHORT_MS).await;
    all_swept(&bench).await;
    engine.stop().await;
    assert!(notes.swept().into_iter().any(|step| step > 128), "{:?}", notes.swept());
    let sizes = notes.sizes(Lane::News);
    assert!(sizes.iter().all(|size| *size <= 128), "{sizes:?}");
}

#[tokio::test]
async fn a_short_queue_is_no_obstacle() {
    let store = Wrapped::new();
    let bench = leases(&store, 40).await;
    let driver = DriverLimits { queue_max: 4, ..Default::default() };
    let options = EngineOptions { driver, ..Default::default() };
    let engine = Engine::start(store.clone(), options, Arc::new(()));
    bench.pass(SHORT_MS).await;
    all_swept(&bench).await;
    engine.stop().await;
}

#[tokio::test]
async fn it_goes_on_when_the_store_is_back() {
    let store = Wrapped::new();
    let bench = leases(&store, 10).await;
    let engine = Engine::start(store.clone(), EngineOptions::default(), Arc::new(()));
    store.fail_with(Some(StoreError::Unavailable("away".to_owned())));
    bench.pass(SHORT_MS).await;
    let noticed = wait_for("the engine to notice", PATIENCE, || async { engine.check().is_err() });
    noticed.await.unwrap();
    assert_eq!(bench.store.usage(None).await.unwrap().resources, 10);
    store.fail_with(None);
    all_swept(&bench).await;
    engine.stop().await;
}

/// Nominated just as the store failed: the nominations come again.
#[tokio::test]
async fn nominations_that_failed_come_again() {
    let store = Wrapped::new();
    let bench = leases(&store, 10).await;
    store.news_door.shut();
    let notes = Arc::new(Notes::default());
    let engine = Engine::start(store.clone(), EngineOptions::default(), notes.clone());
    bench.pass(SHORT_MS).await;
    wait_for("nominations", PATIENCE, || async { !notes.swept().is_empty() }).await.unwrap();
    store.fail_with(Some(StoreError::Unknown("no answer to COMMIT".to_owned())));
    store.news_door.open();
    wait_for("the engine to notice", PATIENCE, || async { engine.check().is_err() }).await.unwrap();
    store.fail_with(None);
    bench.pass(SHORT_MS).await;
    all_swept(&bench).await;
    engine.stop().await;
}

#[tokio::test]
async fn it_keeps_to_the_retention() {
    let store = Wrapped::new();
    let bench = leases(&store, 40).await;
    let retention = Retention { events_ms: 1_000_000_000, events_max: 7, unsent_after: None };
    let options = EngineOptions { retention, ..Default::default() };
    let engine = Engine::start(store.clone(), options, Arc::new(()));
    bench.pass(SHORT_MS).await;
    all_swept(&bench).await;
    let dropped = wait_for("old events to go", PATIENCE, || async {
        bench.pass(1_000).await;
        let page = bench.store.events(&EventQuery { limit: 100, ..Default::default() }).await.unwrap();
        page.events.len() == 7 && page.floor.0 == 73
    });
    dropped.await.unwrap();
    engine.stop().await;
}

/// A sweeper that panicked begins again: otherwise nothing would ever run out.
#[tokio::test]
async fn a_panic_does_not_end_the_sweeper() {
    let store = Wrapped::new();
    let bench = leases(&store, 3).await;
    store.panic.store(DUE, Ordering::SeqCst);
    let engine = Engine::start(store.clone(), EngineOptions::default(), Arc::new(()));
    let panicked = || async { store.panic.load(Ordering::SeqCst) == 0 };
    wait_for("the sweeper to panic", PATIENCE, panicked).await.unwrap();
    bench.pass(SHORT_MS).await;
    all_swept(&bench).await;
    engine.stop().await;
}
