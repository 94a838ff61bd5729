//! Waiting in line at several replicas over one PostgreSQL.

#[path = "postgres/common.rs"]
mod common;

use std::{sync::Arc, time::Duration};

use common::*;
use solehold_core::{
    call::Actor,
    command::{Acquire, AskedTenure, Command, Undeclared},
    key::{Document, LeaseId, ResourceKey},
    outcome::{Answer, Grant, Outcome, Refusal},
};
use solehold_engine::{Engine, EngineError, EngineOptions};
use solehold_testkit::{Postgres, Proxy, wait_for};
use tokio::task::JoinHandle;
use tokio_postgres::Client;
use uuid::Uuid;

async fn replica(url: &str) -> Engine {
    Engine::start(open(url).await, EngineOptions::default(), Arc::new(()))
}

fn ask(key: &ResourceKey, holder: &str, request: Option<&str>) -> Acquire {
    Acquire {
        key: key.clone(),
        lease: LeaseId::new(key, Uuid::new_v4()),
        holder: name(holder),
        tenure: AskedTenure::Own { ttl_ms: 60_000 },
        request: request.map(name),
        attributes: Document::default(),
        undeclared: Undeclared::Allow,
        wait: None,
        slots: None,
        holds_at_most: None,
    }
}

type Answered = JoinHandle<Result<Outcome, EngineError>>;

fn waiting(engine: &Engine, ask: Acquire) -> Answered {
    let engine = engine.clone();
    tokio::spawn(async move { engine.acquire_waiting(ask, Actor::Unnamed, 10 * SOON).await })
}

fn granted(outcome: Outcome) -> Grant {
    match outcome {
        Ok(Answer::Granted(grant)) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

async fn answer(task: Answered) -> Outcome {
    let answered = tokio::time::timeout(SOON, task).await.expect("an answer in time");
    answered.expect("no panic").expect("answers")
}

/// Who waits, in order.
async fn waiters(client: &Client) -> Vec<String> {
    let sql = "SELECT holder FROM solehold.waiters ORDER BY arrival";
    client.query(sql, &[]).await.expect("rows").iter().map(|row| row.get(0)).collect()
}

async fn line(client: &Client, holders: &[&str]) {
    let reached = wait_for("the line", SOON, async || waiters(client).await == holders).await;
    assert!(reached.is_ok(), "{holders:?} should wait, and not {:?}", waiters(client).await);
}

async fn done(engine: &Engine, command: Command) {
    engine.submit(command).await.expect("answers").expect("not refused");
}

/// Waiters at three replicas stand in one line, and each is woken by a release at another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_line_over_all_replicas() {
    let url = database().await;
    let client = connect(&url).await;
    let job = key("shared");
    let replicas = [replica(&url).await, replica(&url).await, replica(&url).await];
    let first =
        replicas[0].acquire_waiting(ask(&job, "ann", None), Actor::Unnamed, SOON).await.expect("answers");
    let mut held = granted(first);
    let mut tasks = Vec::new();
    let mut names = Vec::new();
    for n in 0..9 {
        let name: &'static str = ["w0", "w1", "w2", "w3", "w4", "w5", "w6", "w7", "w8"][n];
        tasks.push(waiting(&replicas[n % 3], ask(&job, name, None)));
        names.push(name);
        line(&client, &names).await;
    }
    for (n, task) in tasks.into_iter().enumerate() {
        // Released at another replica than the one where the next waits.
        done(&replicas[(n + 1) % 3], release(&held)).await;
        let next = granted(answer(task).await);
        assert_eq!(next.lease.lease.holder.as_str(), names[n]);
        assert!(next.lease.lease.token > held.lease.lease.token && next.lease.confirm_within_ms().is_some());
        done(&replicas[n % 3], renew(&next)).await;
        held = next;
    }
    for engine in replicas {
        engine.stop().await;
    }
    assert_eq!(number(&client, "SELECT count(*) FROM solehold.sessions").await, 0, "the rooms are closed");
}

/// A client that comes back at another replica keeps its place, and one request gets one grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_moves_keeps_its_place() {
    let url = database().await;
    let client = connect(&url).await;
    let job = key("moves");
    let a = replica(&url).await;
    let b = replica(&url).await;
    let held =
        granted(a.acquire_waiting(ask(&job, "ann", None), Actor::Unnamed, SOON).await.expect("answers"));
    let at_a = waiting(&a, ask(&job, "bea", Some("r")));
    line(&client, &["bea"]).await;
    let carl = waiting(&a, ask(&job, "carl", None));
    line(&client, &["bea", "carl"]).await;
    let room = "SELECT count(DISTINCT room_id) FROM solehold.waiters";
    assert_eq!(number(&client, room).await, 1);
    let at_b = waiting(&b, ask(&job, "bea", Some("r")));
    let moved = wait_for("bea to move", SOON, || async { number(&client, room).await == 2 });
    moved.await.expect("two rooms");
    line(&client, &["bea", "carl"]).await;
    // Its former connection goes away, which is nothing to the one that it has now.
    at_a.abort();
    assert!(at_a.await.is_err_and(|error| error.is_cancelled()));
    done(&a, release(&held)).await;
    let bea = granted(answer(at_b).await);
    assert_eq!(bea.lease.lease.holder, name("bea"));
    done(&b, renew(&bea)).await;
    done(&b, release(&bea)).await;
    assert_eq!(granted(answer(carl).await).lease.lease.holder, name("carl"));
    let again = b
        .acquire_waiting(ask(&job, "bea", Some("r")), Actor::Unnamed, Duration::from_millis(1))
        .await
        .expect("answers");
    assert!(matches!(again, Err(Refusal::RequestSpent(_))), "{again:?}");
    a.stop().await;
    b.stop().await;
}

/// A replica that dies takes its waiters with it within its room's ttl, and the line goes on without them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_replica_is_passed_over() {
    let url = database().await;
    let client = connect(&url).await;
    let job = key("orphaned");
    let live = replica(&url).await;
    let held =
        granted(live.acquire_waiting(ask(&job, "ann", None), Actor::Unnamed, SOON).await.expect("answers"));
    // It has a runtime of its own, which is pulled from under it.
    let there = url.clone();
    let at = job.clone();
    let (stop, stopped) = std::sync::mpsc::sync_channel::<()>(1);
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let dying = runtime.block_on(replica(&there));
        runtime.spawn(async move {
            dying.acquire_waiting(ask(&at, "dead", None), Actor::Unnamed, 10 * SOON).await
        });
        stopped.recv().expect("a word");
        runtime.shutdown_background();
    });
    line(&client, &["dead"]).await;
    let bea = waiting(&live, ask(&job, "bea", None));
    line(&client, &["dead", "bea"]).await;
    stop.send(()).expect("it listens");
    thread.join().expect("no panic");
    // The sweeper clears the waiters of the dead room, whoever holds the resource.
    line(&client, &["bea"]).await;
    done(&live, release(&held)).await;
    assert_eq!(granted(answer(bea).await).lease.lease.holder, name("bea"));
    live.stop().await;
}

/// PostgreSQL hangs for four seconds, for all replicas: nobody loses their place in line, though no replica could renew
/// its waiting room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stall_of_four_seconds_keeps_the_order_of_the_line() {
    const STALL_MS: i64 = 4_000;
    let postgres = Postgres::start().await.expect("PostgreSQL");
    let proxy = Proxy::start(postgres.addr()).await.expect("a proxy");
    let through = format!("postgres://postgres@{}/postgres", proxy.addr());
    let client = connect(&postgres.url()).await;
    let job = key("stalled");
    let replicas = [replica(&through).await, replica(&through).await];
    let first =
        replicas[0].acquire_waiting(ask(&job, "ann", None), Actor::Unnamed, SOON).await.expect("answers");
    let mut held = granted(first);
    // Neighbours in line wait at different replicas, so that no replica alone could restore the order.
    let names = ["w0", "w1", "w2", "w3", "w4", "w5"];
    let mut tasks = Vec::new();
    for (n, name) in names.iter().enumerate() {
        tasks.push(waiting(&replicas[n % 2], ask(&job, name, None)));
        line(&client, &names[..=n]).await;
    }
    proxy.stall();
    let now = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint + offset_ms FROM solehold.clock";
    let rooms = |since_ms: i64| {
        format!(
            "SELECT count(*) FROM solehold.sessions WHERE tenant = E'\\x01rooms' AND renewed_at_ms >= {since_ms}"
        )
    };
    let is_long = wait_for("rooms that were not renewed for that long", SOON, async || {
        let now = number(&client, now).await;
        number(&client, &rooms(now - STALL_MS)).await == 0
    });
    is_long.await.expect("the stall lasts");
    let ended = number(&client, now).await;
    proxy.unstall();
    let is_over = wait_for("rooms that are renewed again", SOON, async || {
        number(&client, &rooms(ended)).await == replicas.len() as i64
            && waiters(&client).await.len() == names.len()
    });
    is_over.await.expect("the replicas go on");
    assert_eq!(waiters(&client).await, names);
    for (n, task) in tasks.into_iter().enumerate() {
        done(&replicas[n % 2], release(&held)).await;
        held = granted(answer(task).await);
        assert_eq!(held.lease.lease.holder.as_str(), names[n]);
        done(&replicas[n % 2], renew(&held)).await;
    }
    for engine in replicas {
        engine.stop().await;
    }
}

/// What a database of the first version has is kept, found by its id, and can be waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_without_lines_gets_them() {
    let url = database().await;
    let client = connect(&url).await;
    let prepare = "CREATE SCHEMA solehold; \
        CREATE TABLE solehold.migrations (version int PRIMARY KEY, applied_at timestamptz NOT NULL); \
        INSERT INTO solehold.migrations VALUES (0, now()), (1, now())";
    client.batch_execute(prepare).await.expect("a schema");
    client.batch_execute(include_str!("../src/postgres/schema/version_1.sql")).await.expect("version 1");
    let held = "INSERT INTO solehold.resources VALUES (1, 'acme', 'job', 'old', 1, false, NULL, '{}', NULL, 0, 0); \
        INSERT INTO solehold.leases (resource_id, version, last_token, due_ms, lease_id, holder, ttl_ms, deadline_ms, \
            acquired_at_ms, has_state) \
        SELECT 1, 1, 1, last_ms + 60000, gen_random_uuid(), 'ann', 60000, last_ms + 60000, last_ms, false \
        FROM solehold.clock; UPDATE solehold.clock SET revision = 1";
    client.batch_execute(held).await.expect("a lease");
    let engine = replica(&url).await;
    let job = key("old");
    // Its id was not made for the resource, and leads there all the same.
    let row = client.query_one("SELECT lease_id FROM solehold.leases", &[]).await.expect("a row");
    let target = solehold_core::command::Target::Lease { tenant: name("acme"), id: LeaseId(row.get(0)) };
    let claim = solehold_core::command::Claim { target, token: None, session: None, holder: None };
    done(&engine, Command::Renew { claim, ttl_ms: None, stats: None }).await;
    let bea = waiting(&engine, ask(&job, "bea", None));
    line(&client, &["bea"]).await;
    let target = solehold_core::command::Target::Resource(job.clone());
    let claim =
        solehold_core::command::Claim { target, token: None, session: None, holder: Some(name("ann")) };
    done(&engine, Command::Release { claim, state: None }).await;
    assert_eq!(granted(answer(bea).await).lease.lease.holder, name("bea"));
    engine.stop().await;
}
