//! The batching driver: what joins a batch, what is refused, what happens when the store does not answer.
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
    command::{Acquire, AskedTenure, Command, OpenSession},
    outcome::Outcome,
};
use solehold_engine::{
    DriverLimits, Engine, EngineError, EngineOptions,
    observe::Lane,
    store::{Store, StoreError},
};
use solehold_testkit::wait_for;
use tokio::task::JoinHandle;
use wrapped::{AFTER, BEFORE, Notes, Wrapped};

struct Stage {
    store: Arc<Wrapped>,
    notes: Arc<Notes>,
    engine: Engine,
}

impl Stage {
    fn new(driver: DriverLimits) -> Self {
        let store = Wrapped::new();
        let notes = Arc::new(Notes::default());
        let options = EngineOptions { driver, ..Default::default() };
        let engine = Engine::start(store.clone(), options, notes.clone());
        Self { store, notes, engine }
    }

    /// Submits commands, each as a caller of its own. Tests run on one thread: all are taken in before it goes on.
    async fn submit(&self, commands: Vec<Command>) -> Vec<JoinHandle<Result<Outcome, EngineError>>> {
        let submit = |command| {
            let engine = self.engine.clone();
            tokio::spawn(async move { engine.submit(command).await })
        };
        let callers = commands.into_iter().map(submit).collect();
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        callers
    }

    /// A lane that works on one command, and does not come to an end.
    async fn occupy(&self) -> JoinHandle<Result<Outcome, EngineError>> {
        self.store.news_door.shut();
        let before = self.store.batches.load(Ordering::SeqCst);
        let first = self.submit(asks("first", 1)).await.remove(0);
        let at_work = || async { self.store.batches.load(Ordering::SeqCst) > before };
        wait_for("the lane to be at work", Duration::from_secs(10), at_work).await.unwrap();
        first
    }

    async fn held(&self) -> usize {
        self.store.inner.usage(None).await.unwrap().live_leases as usize
    }
}

fn asks(prefix: &str, count: usize) -> Vec<Command> {
    (0..count).map(|n| ask(&key(&format!("{prefix}-{n}")), "ann").command()).collect()
}

async fn all_granted(callers: Vec<JoinHandle<Result<Outcome, EngineError>>>) {
    for caller in callers {
        granted(caller.await.unwrap().unwrap());
    }
}

fn unavailable() -> Option<StoreError> {
    Some(StoreError::Unavailable("away".to_owned()))
}

#[tokio::test]
async fn what_arrives_during_a_batch_is_the_next_one() {
    let stage = Stage::new(DriverLimits::default());
    let first = stage.occupy().await;
    let others = stage.submit(asks("job", 100)).await;
    stage.store.news_door.open();
    granted(first.await.unwrap().unwrap());
    all_granted(others).await;
    assert_eq!(stage.notes.sizes(Lane::News), [1, 100]);
    assert_eq!(stage.notes.events.load(Ordering::SeqCst), 101);
}

#[tokio::test]
async fn batches_are_bounded() {
    let stage = Stage::new(DriverLimits { batch_max: 40, ..Default::default() });
    let first = stage.occupy().await;
    let others = stage.submit(asks("job", 100)).await;
    stage.store.news_door.open();
    granted(first.await.unwrap().unwrap());
    all_granted(others).await;
    assert_eq!(stage.notes.sizes(Lane::News), [1, 40, 40, 20]);
}

#[tokio::test]
async fn an_idle_lane_waits_for_nobody() {
    // Were it to wait for company, this would take a minute a command.
    let stage = Stage::new(DriverLimits { wait_max: Duration::from_secs(60), ..Default::default() });
    for command in asks("job", 20) {
        granted(stage.engine.submit(command).await.unwrap());
    }
    assert_eq!(stage.notes.sizes(Lane::News), [1; 20]);
}

#[tokio::test]
async fn renewals_do_not_wait_behind_news() {
    let stage = Stage::new(DriverLimits::default());
    let grant = granted(stage.engine.submit(ask(&key("own"), "bea").command()).await.unwrap());
    let first = stage.occupy().await;
    renewed(stage.engine.submit(renew(its(&grant))).await.unwrap());
    assert_eq!(stage.notes.sizes(Lane::Quiet), [1]);
    assert!(!first.is_finished());
    stage.store.news_door.open();
    granted(first.await.unwrap().unwrap());
}

/// What a watchdog asks: a lane that stands still does not answer, and an unavailable store keeps no lane from it.
#[tokio::test]
async fn a_lane_that_stands_still_is_not_alive() {
    let stage = Stage::new(DriverLimits::default());
    stage.engine.alive().await.unwrap();
    let first = stage.occupy().await;
    let alive = tokio::spawn({
        let engine = stage.engine.clone();
        async move { engine.alive().await }
    });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!alive.is_finished(), "alive while a lane stands still");
    stage.store.news_door.open();
    granted(first.await.unwrap().unwrap());
    alive.await.unwrap().unwrap();
    *stage.store.fault.lock().unwrap() = unavailable();
    assert!(stage.engine.submit(asks("job", 1).remove(0)).await.is_err());
    stage.engine.alive().await.unwrap();
    assert_eq!(stage.notes.sizes(Lane::Quiet), [0; 0], "no batch was made of it");
}

#[tokio::test]
async fn a_full_lane_says_so() {
    let stage = Stage::new(DriverLimits { queue_max: 4, ..Default::default() });
    let first = stage.occupy().await;
    let taken = stage.submit(asks("taken", 2)).await;
    // All or nothing: with half of them done, nobody could tell what was.
    for outcome in stage.engine.submit_all(asks("together", 3)).await {
        is!(outcome, Err(EngineError::Overloaded { places: 4 }));
    }
    let more = stage.submit(asks("more", 2)).await;
    is!(stage.engine.submit(asks("late", 1).remove(0)).await, Err(EngineError::Overloaded { places: 4 }));
    stage.store.news_door.open();
    granted(first.await.unwrap().unwrap());
    all_granted(taken).await;
    all_granted(more).await;
    assert_eq!(stage.held().await, 5, "and nothing was done for those who were refused");
}

#[tokio::test]
async fn nothing_is_done_for_those_who_went_away() {
    let stage = Stage::new(DriverLimits::default());
    let first = stage.occupy().await;
    let stay = stage.submit(asks("stay", 5)).await;
    let go = stage.submit(asks("go", 5)).await;
    for caller in go {
        caller.abort();
        assert!(caller.await.unwrap_err().is_cancelled());
    }
    stage.store.news_door.open();
    granted(first.await.unwrap().unwrap());
    all_granted(stay).await;
    assert_eq!(stage.notes.sizes(Lane::News), [1, 5]);
    assert_eq!(stage.held().await, 6);
}

#[tokio::test]
async fn a_stop_answers_what_was_taken_in() {
    let stage = Stage::new(DriverLimits { batch_max: 3, ..Default::default() });
    let first = stage.occupy().await;
    let others = stage.submit(asks("job", 10)).await;
    let engine = stage.engine.clone();
    let stop = tokio::spawn(async move { engine.stop().await });
    tokio::task::yield_now().await;
    stage.store.news_door.open();
    granted(first.await.unwrap().unwrap());
    all_granted(others).await;
    stop.await.unwrap();
    is!(stage.engine.submit(asks("late", 1).remove(0)).await, Err(EngineError::Stopping));
    is!(
        stage.engine.submit_all(asks("late", 2)).await[..],
        [Err(EngineError::Stopping), Err(EngineError::Stopping)]
    );
    stage.engine.stop().await;
    assert_eq!(stage.held().await, 11);
}

#[tokio::test]
async fn what_is_submitted_together_is_decided_in_order() {
    let stage = Stage::new(DriverLimits { batch_max: 2, ..Default::default() });
    let opening = open("ann", LONG_MS);
    let Command::OpenSession(OpenSession { id, .. }) = opening else { unreachable!("as just made") };
    let on = Acquire { tenure: AskedTenure::Session(id), ..ask(&key("job"), "ann") };
    // Renewals among them go through the same lane.
    let commands = vec![opening, heartbeat(id), on.command(), renew(by_session(&key("job"), id)), close(id)];
    for outcome in stage.engine.submit_all(commands).await {
        outcome.unwrap().unwrap();
    }
    assert_eq!((stage.notes.sizes(Lane::News), stage.notes.sizes(Lane::Quiet)), (vec![2, 2, 1], vec![]));
    assert!(stage.engine.submit_all(Vec::<solehold_core::command::Command>::new()).await.is_empty());
}

#[tokio::test]
async fn only_the_last_judgement_of_a_batch_counts() {
    let stage = Stage::new(DriverLimits::default());
    stage.store.twice.store(true, Ordering::SeqCst);
    let outcomes = stage.engine.submit_all(asks("job", 3)).await;
    let tokens: Vec<_> = outcomes.into_iter().map(|o| token(&granted(o.unwrap())).0).collect();
    assert_eq!(tokens, [1, 2, 3]);
    assert_eq!(stage.notes.events.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_not_waited_for() {
    let stage = Stage::new(DriverLimits::default());
    stage.store.fail_with(unavailable());
    is!(
        stage.engine.submit(asks("a", 1).remove(0)).await,
        Err(EngineError::Store(StoreError::Unavailable(_)))
    );
    let asked = stage.store.batches.load(Ordering::SeqCst);
    for command in asks("b", 20) {
        is!(stage.engine.submit(command).await, Err(EngineError::Store(StoreError::Unavailable(_))));
    }
    is!(stage.engine.resource(&key("x")).await, Err(EngineError::Store(StoreError::Unavailable(_))));
    is!(stage.engine.ready().await, Err(EngineError::Store(StoreError::Unavailable(_))));
    assert_eq!(stage.store.batches.load(Ordering::SeqCst), asked, "nobody asked it again");
    stage.store.fail_with(None);
    let healed = wait_for("the engine to find out", Duration::from_secs(30), || async {
        stage.engine.check().is_ok()
    });
    healed.await.unwrap();
    granted(stage.engine.submit(asks("c", 1).remove(0)).await.unwrap());
    stage.engine.ready().await.unwrap();
}

#[tokio::test]
async fn what_waits_behind_a_failed_batch_is_answered_at_once() {
    let stage = Stage::new(DriverLimits { batch_max: 5, ..Default::default() });
    let first = stage.occupy().await;
    let others = stage.submit(asks("job", 50)).await;
    let asked = stage.store.batches.load(Ordering::SeqCst);
    stage.store.fail_with(Some(StoreError::Unknown("no answer to COMMIT".to_owned())));
    stage.store.news_door.open();
    is!(first.await.unwrap(), Err(EngineError::Store(StoreError::Unknown(_))));
    for caller in others {
        // Of these it is known that nothing was done.
        is!(caller.await.unwrap(), Err(EngineError::Store(StoreError::Unavailable(_))));
    }
    assert_eq!(stage.store.batches.load(Ordering::SeqCst), asked);
}

#[tokio::test]
async fn contention_is_no_ill_health() {
    let stage = Stage::new(DriverLimits::default());
    stage.store.fail_with(Some(StoreError::Contended { attempts: 9, last: "40001".to_owned() }));
    let refused = stage.engine.submit(asks("a", 1).remove(0)).await;
    is!(refused, Err(EngineError::Store(StoreError::Contended { attempts: 9, .. })));
    assert!(stage.engine.check().is_ok());
    stage.store.fail_with(None);
    granted(stage.engine.submit(asks("a", 1).remove(0)).await.unwrap());
}

/// After a failover nothing is granted for a while, but holders keep what they have.
#[tokio::test]
async fn barred_grants_are_no_ill_health() {
    let stage = Stage::new(DriverLimits::default());
    stage.store.fail_with(Some(StoreError::Barred { retry_after_ms: 7 }));
    let refused = stage.engine.submit(asks("a", 1).remove(0)).await;
    is!(refused, Err(EngineError::Store(StoreError::Barred { retry_after_ms: 7 })));
    assert!(stage.engine.check().is_ok());
}

/// Whether a batch that panicked was committed is not known, and nobody is told that nothing was done. The lane goes
/// on.
#[tokio::test]
async fn a_panic_is_not_told_as_nothing_done_and_leaves_the_lane_alive() {
    for (place, was_done) in [(BEFORE, false), (AFTER, true)] {
        let stage = Stage::new(DriverLimits::default());
        let asked = || ask_as(&key("job"), "ann", "r1").command();
        stage.store.panic.store(place, Ordering::SeqCst);
        let lost = stage.engine.submit(asked()).await;
        is!(lost, Err(EngineError::Store(StoreError::Unknown(_))));
        healthy(&stage).await;
        let again = granted(stage.engine.submit(asked()).await.unwrap());
        assert_eq!(again.repeated, was_done);
        // The lane of renewals, too.
        stage.store.panic.store(place, Ordering::SeqCst);
        let lost = stage.engine.submit(renew(its(&again))).await;
        is!(lost, Err(EngineError::Store(StoreError::Unknown(_))));
        healthy(&stage).await;
        renewed(stage.engine.submit(renew(its(&again))).await.unwrap());
        stage.engine.stop().await;
    }
}

async fn healthy(stage: &Stage) {
    let answers = || async { stage.engine.ready().await.is_ok() };
    wait_for("the store to answer again", Duration::from_secs(30), answers).await.unwrap();
}
