//! Waiting in line while the store fails, holds its breath or changes its epoch.
#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

#[path = "common/wrapped.rs"]
#[allow(dead_code)]
mod wrapped;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use solehold_conformance::kit::*;
use solehold_core::{
    call::Actor,
    command::{Acquire, Command, Footprint},
    key::ResourceKey,
    limits::{ROOM_TTL_MS, SESSION_WAITERS_MAX},
    outcome::{Outcome, Refusal},
    waiter::Waiter,
};
use solehold_engine::{
    Engine, EngineError, EngineOptions,
    observe::Lane,
    store::{Store, StoreError},
};
use solehold_testkit::wait_for;
use tokio::task::JoinHandle;
use wrapped::Wrapped;

const PATIENCE: Duration = Duration::from_secs(60);

fn start(store: &Arc<Wrapped>) -> Engine {
    Engine::start(store.clone(), EngineOptions::default(), Arc::new(()))
}

fn waiting(engine: &Engine, ask: Acquire) -> JoinHandle<Result<Outcome, EngineError>> {
    let engine = engine.clone();
    tokio::spawn(async move { engine.acquire_waiting(ask, Actor::Unnamed, 10 * PATIENCE).await })
}

/// The first in line, past whatever is wrong with the store.
async fn first(store: &Wrapped, key: &ResourceKey) -> Option<Waiter> {
    let footprint = Footprint { resources: vec![key.clone()], ..Default::default() };
    let loaded = solehold_engine::store::Store::load(&*store.inner, &footprint).await.unwrap();
    loaded.state.waiters_for(key).next().cloned()
}

async fn queued(store: &Wrapped, key: &ResourceKey) -> u32 {
    let footprint = Footprint { resources: vec![key.clone()], ..Default::default() };
    let loaded = solehold_engine::store::Store::load(&*store.inner, &footprint).await.unwrap();
    loaded.state.resource(key).map_or(0, |r| r.queued)
}

async fn is_in_line(store: &Wrapped, key: &ResourceKey) -> Waiter {
    wait_for("someone in line", PATIENCE, || async { queued(store, key).await == 1 }).await.unwrap();
    first(store, key).await.unwrap()
}

async fn held(engine: &Engine, key: &ResourceKey) -> solehold_core::outcome::Grant {
    granted(
        engine.acquire_waiting(ask_for(key, "ann", 60 * LONG_MS), Actor::Unnamed, PATIENCE).await.unwrap(),
    )
}

async fn answer(task: JoinHandle<Result<Outcome, EngineError>>) -> Outcome {
    tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap().unwrap()
}

#[tokio::test]
async fn a_store_that_was_away_for_long_loses_nobody() {
    let store = Wrapped::new();
    let engine = start(&store);
    let job = key("away");
    let first_holder = held(&engine, &job).await;
    let bea = waiting(&engine, ask_as(&job, "bea", "r"));
    let before = is_in_line(&store, &job).await;
    store.fail_with(Some(StoreError::Unavailable("gone".to_owned())));
    store.ticks.advance_ms(2 * ROOM_TTL_MS);
    // Heartbeats fail meanwhile, and a caller that asks now is told so.
    let refused = wait_for("the engine to notice", PATIENCE, || async {
        let asked = engine.acquire_waiting(ask(&key("other"), "carl"), Actor::Unnamed, PATIENCE).await;
        matches!(asked, Err(EngineError::Store(StoreError::Unavailable(_))))
    });
    refused.await.unwrap();
    store.fail_with(None);
    let moved = wait_for("another room", PATIENCE, || async {
        first(&store, &job).await.is_some_and(|waiter| waiter.room != before.room)
    });
    moved.await.unwrap();
    assert_eq!(is_in_line(&store, &job).await.request, before.request);
    engine.submit(release(its(&first_holder))).await.unwrap().unwrap();
    let bea = granted(answer(bea).await);
    assert!(bea.lease.lease.holder == name("bea") && bea.lease.lease.request == Some(name("r")));
    engine.stop().await;
}

/// Who stands in line, in order.
async fn line(store: &Wrapped, job: &ResourceKey) -> Vec<String> {
    let all = Footprint { whole_sessions: rooms(store, job).await, ..Default::default() };
    let loaded = Store::load(&*store.inner, &all).await.unwrap();
    loaded.state.waiters_for(job).map(|waiter| waiter.holder.to_string()).collect()
}

async fn rooms(store: &Wrapped, job: &ResourceKey) -> Vec<solehold_core::key::SessionId> {
    first(store, job).await.map(|waiter| waiter.room).into_iter().collect()
}

/// A store that was away for a few seconds lets nobody pass those who stand in line: whatever is first done afterwards
/// finds them there.
#[tokio::test]
async fn a_stall_of_the_store_lets_nobody_pass() {
    let store = Wrapped::new();
    let engine = start(&store);
    let job = key("stall");
    let first_holder = held(&engine, &job).await;
    let bea = waiting(&engine, ask(&job, "bea"));
    is_in_line(&store, &job).await;
    store.fail_with(Some(StoreError::Unavailable("gone".to_owned())));
    store.ticks.advance_ms(5_000);
    // Another replica is there first, when it is over: the one that bea waits at has not been heard of yet.
    let other = Bench::new(&*store).await;
    other.done(release(its(&first_holder))).await;
    is!(other.refused(ask(&job, "late")).await, Refusal::Held { .. });
    store.fail_with(None);
    assert_eq!(granted(answer(bea).await).lease.lease.holder, name("bea"));
    engine.stop().await;
}

/// Even a store that was away for longer than a room lives: those who waited stand in line again as they came.
#[tokio::test]
async fn a_room_that_was_lost_keeps_the_order_of_its_line() {
    let store = Wrapped::new();
    let engine = start(&store);
    let job = key("order");
    held(&engine, &job).await;
    let names: Vec<String> = (0..20).map(|n| format!("w{n:02}")).collect();
    let mut all = Vec::new();
    for (n, name) in names.iter().enumerate() {
        all.push(waiting(&engine, ask_as(&job, name, "r")));
        let stands = || async { queued(&store, &job).await as usize == n + 1 };
        wait_for("a place in line", PATIENCE, stands).await.unwrap();
    }
    let before = first(&store, &job).await.unwrap();
    assert_eq!(line(&store, &job).await, names);
    store.fail_with(Some(StoreError::Unavailable("gone".to_owned())));
    store.ticks.advance_ms(2 * ROOM_TTL_MS);
    store.fail_with(None);
    let again = wait_for("another room", PATIENCE, || async {
        let moved = first(&store, &job).await.is_some_and(|waiter| waiter.room != before.room);
        moved && line(&store, &job).await.len() == names.len()
    });
    again.await.unwrap();
    assert_eq!(line(&store, &job).await, names);
    all.iter().for_each(JoinHandle::abort);
    engine.stop().await;
}

#[tokio::test]
async fn a_new_epoch_keeps_everyones_place() {
    let store = Wrapped::new();
    let engine = start(&store);
    let job = key("epoch");
    let first_holder = held(&engine, &job).await;
    let bea = waiting(&engine, ask(&job, "bea"));
    let before = is_in_line(&store, &job).await;
    store.epoch.fetch_add(1, Ordering::SeqCst);
    // What happened across the change is not known: everyone asks again, by another grant id, and keeps its place.
    let asked = wait_for("asking again", PATIENCE, || async {
        first(&store, &job).await.is_some_and(|waiter| waiter.lease != before.lease)
    });
    asked.await.unwrap();
    assert_eq!(is_in_line(&store, &job).await.arrival, before.arrival);
    engine.submit(release(its(&first_holder))).await.unwrap().unwrap();
    assert_eq!(granted(answer(bea).await).lease.lease.holder, name("bea"));
    engine.stop().await;
}

#[tokio::test]
async fn who_goes_away_while_the_store_holds_its_breath_leaves_nothing() {
    let store = Wrapped::new();
    let engine = start(&store);
    let job = key("breath");
    let first_holder = held(&engine, &job).await;
    let opener = waiting(&engine, ask(&job, "opener"));
    is_in_line(&store, &job).await;
    store.news_door.shut();
    let batches = store.batches.load(Ordering::SeqCst);
    let bea = waiting(&engine, ask(&job, "bea"));
    let asked = wait_for("the batch", PATIENCE, || async { store.batches.load(Ordering::SeqCst) > batches });
    asked.await.unwrap();
    bea.abort();
    assert!(bea.await.unwrap_err().is_cancelled());
    store.news_door.open();
    engine.submit(release(its(&first_holder))).await.unwrap().unwrap();
    let opener = granted(answer(opener).await);
    engine.submit(release(its(&opener))).await.unwrap().unwrap();
    let is_free = wait_for("nobody", PATIENCE, || async {
        let footprint = Footprint { resources: vec![job.clone()], ..Default::default() };
        engine.load(&footprint).await.unwrap().state.resource(&job).is_none()
    });
    is_free.await.unwrap();
    engine.stop().await;
}

/// A client that does not hear from one replica repeats its request at another one, and hangs up on the first: what it
/// has been granted stays its own.
#[tokio::test]
async fn a_replica_that_a_client_has_left_does_not_release_what_another_one_gave_it() {
    let store = Wrapped::new();
    let left = start(&store);
    let other = start(&store);
    let job = key("repeated");
    store.news_door.shut();
    let batches = store.batches.load(Ordering::SeqCst);
    let at_left = waiting(&left, ask_as(&job, "bea", "r"));
    let asked = wait_for("the batch", PATIENCE, || async { store.batches.load(Ordering::SeqCst) > batches });
    asked.await.unwrap();
    let at_other = waiting(&other, ask_as(&job, "bea", "r"));
    at_left.abort();
    assert!(at_left.await.unwrap_err().is_cancelled());
    store.news_door.open();
    let bea = granted(answer(at_other).await);
    // Each comes after whatever the first replica has still done about the caller that has left it.
    for _ in 0..20 {
        left.submit(renew(its(&bea))).await.unwrap().expect("bea still has it");
        left.submit(Command::NoteConfig { key: job.clone(), details: Default::default() })
            .await
            .unwrap()
            .ok();
    }
    left.submit(renew(its(&bea))).await.unwrap().expect("bea still has it");
    left.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn a_replica_has_so_many_places_and_no_more() {
    let store = Wrapped::new();
    let engine = start(&store);
    let job = key("crowded");
    held(&engine, &job).await;
    let all: Vec<_> =
        (0..SESSION_WAITERS_MAX).map(|n| waiting(&engine, ask(&job, &format!("w{n}")))).collect();
    let full =
        wait_for("a full line", 2 * PATIENCE, || async { queued(&store, &job).await == SESSION_WAITERS_MAX });
    full.await.unwrap();
    let refused = engine.acquire_waiting(ask(&job, "late"), Actor::Unnamed, PATIENCE).await.unwrap();
    assert!(matches!(refused, Err(Refusal::QueueFull { waiting: SESSION_WAITERS_MAX, .. })), "{refused:?}");
    all.iter().for_each(JoinHandle::abort);
    wait_for("an empty line", 2 * PATIENCE, || async { queued(&store, &job).await == 0 }).await.unwrap();
    engine.stop().await;
}

#[tokio::test]
async fn a_stopping_engine_lets_everyone_go() {
    let store = Wrapped::new();
    let engine = start(&store);
    let job = key("stops");
    held(&engine, &job).await;
    let bea = waiting(&engine, ask(&job, "bea"));
    is_in_line(&store, &job).await;
    engine.stop().await;
    assert!(matches!(bea.await.unwrap(), Err(EngineError::Stopping)));
    assert_eq!(queued(&store, &job).await, 0, "its room was closed");
}

/// A data folder of the first version gets its view, and people can read who waits.
#[tokio::test]
async fn a_folder_without_lines_gets_them() {
    use solehold_core::{command::*, key::SessionId, outcome::Answer};
    use solehold_engine::{
        embedded::Folder,
        resident::ResidentStore,
        store::{BatchDecision, Store},
    };
    let folder = solehold_testkit::TempDir::new().unwrap();
    let open = || ResidentStore::embedded(Folder::open(folder.path()).unwrap()).unwrap();
    let file = || rusqlite::Connection::open(folder.path().join("solehold.db")).unwrap();
    file().execute_batch(include_str!("common/folder_1.sql")).unwrap();
    let store = open();
    let id = SessionId(uuid::Uuid::new_v4());
    let job = key("kept");
    let commands = vec![
        Command::OpenRoom { id, ttl_ms: LONG_MS },
        ask(&job, "ann").command(),
        Acquire { wait: Some(Wait { room: id, wait_ms: LONG_MS }), ..ask(&job, "bea") }.command(),
    ];
    let mut footprint = Footprint::default();
    commands.iter().for_each(|command| command.footprint(&mut footprint));
    let mut judge = Judge::of(commands);
    let BatchDecision { revision, .. } = store.transact(&footprint, Lane::News, &mut judge).await.unwrap();
    assert!(matches!(judge.outcomes[2], Ok(Answer::Waiting(_))), "{:?}", judge.outcomes);
    store.close().await;
    let sql = "SELECT tenant || ' ' || kind || ' ' || key || ' ' || holder || ' ' || arrival FROM waiters";
    let row: String = file().query_row(sql, [], |row| row.get(0)).unwrap();
    assert_eq!(row, format!("acme job kept bea {}", revision.0));
    let footprint = Footprint { resources: vec![job.clone()], ..Default::default() };
    assert_eq!(open().load(&footprint).await.unwrap().state.waiters_for(&job).count(), 1);
}
