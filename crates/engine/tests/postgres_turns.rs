//! Replicas over one PostgreSQL share their housekeeping: one at a time sweeps, and another goes on where it stops.

#[path = "postgres/common.rs"]
mod common;
#[path = "common/wrapped.rs"]
#[allow(dead_code)]
mod wrapped;

use std::sync::Arc;

use common::*;
use solehold_core::{
    command::{Acquire, Command},
    outcome::Refusal,
};
use solehold_engine::{
    Engine, EngineOptions,
    postgres::PostgresStore,
    store::{Retention, Store},
};
use solehold_testkit::wait_for;
use wrapped::Notes;

const LEASES: usize = 200;
/// The leases run out one after the other, so that every sweep finds some.
const FIRST_MS: u64 = 1_000;
const STEP_MS: u64 = 15;
const KEEP: Retention = Retention { events_ms: 3_600_000, events_max: 1_000_000, unsent_after: None };

struct Replica {
    store: Arc<PostgresStore>,
    engine: Engine,
    notes: Arc<Notes>,
}

impl Replica {
    async fn start(url: &str) -> Self {
        let store = open(url).await;
        let notes = Arc::new(Notes::default());
        let engine = Engine::start(store.clone(), EngineOptions::default(), notes.clone());
        Self { store, engine, notes }
    }

    fn nominated(&self) -> usize {
        self.notes.swept().iter().sum()
    }
}

async fn brief_leases(store: &dyn Store, name: &str) {
    let asks =
        (0..LEASES).map(|n| acquire(&key(&format!("{name}-{n}")), "ann", FIRST_MS + n as u64 * STEP_MS));
    let (result, batch) = run_batch(store, asks.collect(), |_| ()).await;
    result.expect("the store answers");
    assert!(batch.outcomes.iter().all(Result::is_ok));
}

async fn all_swept(store: &dyn Store) {
    let swept = wait_for("everything to be swept", SOON, || async {
        store.usage(None).await.is_ok_and(|usage| usage.resources == 0)
    });
    swept.await.expect("it is swept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_do_not_all_sweep_everything() {
    let url = database().await;
    let mut replicas = Vec::new();
    for _ in 0..3 {
        replicas.push(Replica::start(&url).await);
    }
    brief_leases(replicas[0].store.as_ref(), "job").await;
    all_swept(replicas[0].store.as_ref()).await;
    let nominated: Vec<usize> = replicas.iter().map(Replica::nominated).collect();
    let all = nominated.iter().sum::<usize>();
    let most = nominated.iter().max().copied().unwrap_or(0);
    assert!(all >= LEASES, "{nominated:?}");
    // A turn may go to another replica where a busy machine holds its keeper up.
    assert!(most * 10 >= all * 7, "one replica does most of the work: {nominated:?}");
    for replica in replicas {
        replica.engine.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_that_dies_is_replaced() {
    let url = database().await;
    let keeper = open(&url).await;
    brief_leases(keeper.as_ref(), "job").await;
    let client = connect(&url).await;
    // It has the turn, and is never heard of again.
    keeper.due(1).await.expect("the store reads");
    assert_eq!(number(&client, "SELECT count(*) FROM solehold.turns").await, 1);
    let heir = Replica::start(&url).await;
    all_swept(heir.store.as_ref()).await;
    assert!(heir.nominated() >= LEASES, "{}", heir.nominated());
    heir.engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_that_stops_leaves_no_gap() {
    let url = database().await;
    let keeper = open(&url).await;
    let heir = open(&url).await;
    let job = key("job");
    grant(keeper.as_ref(), &job, "ann", FIRST_MS).await;
    let over =
        wait_for("the lease to run out", SOON, || async { !is_live(&lease(heir.as_ref(), &job).await) });
    over.await.expect("it runs out");
    assert_eq!(keeper.due(10).await.expect("the store reads").commands.len(), 1);
    keeper.close().await;
    assert_eq!(heir.due(10).await.expect("the store reads").commands.len(), 1, "at once");
}

/// Turns that are over are removed; the table does not grow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_turns_are_forgotten() {
    let url = database().await;
    let replica = Replica::start(&url).await;
    let client = connect(&url).await;
    let many = wait_for("many turns", SOON, || async {
        number(&client, "SELECT coalesce(max(number), 0) FROM solehold.turns").await > 15
    });
    many.await.expect("turns go on");
    let few = wait_for("old turns to go", SOON, || async {
        number(&client, "SELECT count(*) FROM solehold.turns").await <= 10
    });
    few.await.expect("they go");
    replica.engine.stop().await;
}

fn ask(n: usize) -> Command {
    let Command::Acquire(acquire) = acquire(&key("job"), "ann", 60_000) else { panic!("not an acquire") };
    Command::Acquire(Acquire { request: Some(name(&format!("request-{n:04}"))), ..acquire })
}

/// A holder that works in short turns does not leave a row behind for each of them for an hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spent_requests_of_one_holder_do_not_pile_up() {
    const TIMES: usize = 200;
    const KEPT: usize = solehold_core::limits::SPENT_REQUESTS_MAX;
    let url = database().await;
    let store = open(&url).await;
    for n in 0..TIMES {
        let answer = done(store.as_ref(), ask(n)).await;
        let solehold_core::outcome::Answer::Granted(grant) = answer else { panic!("{answer:?}") };
        done(store.as_ref(), release(&grant)).await;
    }
    store.maintain(&KEEP).await.expect("the store maintains");
    let client = connect(&url).await;
    let left = number(&client, "SELECT count(*) FROM solehold.requests").await as usize;
    assert!((KEPT..2 * KEPT).contains(&left), "{left} are left");
    for n in TIMES - KEPT..TIMES {
        let again = run(store.as_ref(), ask(n)).await.expect("the store answers");
        assert!(matches!(again, Err(Refusal::RequestSpent(_))), "request {n}: {again:?}");
    }
}
