//! Work ends at its local deadline, whatever the database does meanwhile.
#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

mod kit;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use deadpool_postgres::Pool;
use kit::{Kit, PATIENCE, int, owner, pool};
use solehold_clock::BootTime;
use solehold_sql::reconciler::{Observation, Observer, ObserverError};
use solehold_sql::{ClaimedRow, Claims, Reconciler, ReconcilerConfig};
use solehold_testkit::{Proxy, wait_for};
use tokio::sync::Notify;

/// Confirms row 2 at once, and observes all others without an end.
#[derive(Clone, Default)]
struct Endless {
    began: Arc<Mutex<Vec<i64>>>,
    ended: Arc<Mutex<Vec<BootTime>>>,
}

impl Endless {
    fn began(&self, rows: usize) -> bool {
        self.began.lock().unwrap().len() == rows
    }
}

/// Notes when an observation is dropped.
struct Ending(Arc<Mutex<Vec<BootTime>>>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.lock().unwrap().push(BootTime::now());
    }
}

#[async_trait]
impl Observer for Endless {
    async fn observe(&self, row: &ClaimedRow) -> Result<Observation, ObserverError> {
        let id = int(row.id());
        self.began.lock().unwrap().push(id);
        if id == 2 {
            return Ok(Observation::moved("confirmed"));
        }
        let _ending = Ending(self.ended.clone());
        std::future::pending().await
    }
}

/// A worker whose way to PostgreSQL leads through a proxy, and rows that it may claim.
struct World {
    kit: Kit,
    proxy: Proxy,
    pool: Pool,
    observer: Endless,
}

impl World {
    async fn new(rows: i64) -> Self {
        let kit = Kit::new(rows).await;
        let config: tokio_postgres::Config = kit.url.parse().unwrap();
        let port = config.get_ports()[0];
        let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], port))).await.unwrap();
        let url = kit.url.replace(&format!(":{port}/"), &format!(":{}/", proxy.addr().port()));
        assert_ne!(url, kit.url);
        Self { kit, proxy, pool: pool(&url), observer: Endless::default() }
    }

    fn worker(&self, lease: Duration, concurrency: usize) -> Reconciler<Endless> {
        let poll_interval = Duration::from_millis(20);
        let config = ReconcilerConfig {
            poll_interval,
            lease,
            concurrency,
            ..ReconcilerConfig::new(owner("worker-1"))
        };
        let claims = Arc::new(Claims::new(kit::table().build().unwrap()));
        Reconciler::new(self.pool.clone(), claims, self.observer.clone(), config).unwrap()
    }

    /// When the last claim ends, at the latest.
    async fn claims_end(&self) -> BootTime {
        let sql = "SELECT extract(epoch FROM max(lease_until) - clock_timestamp())::float8 FROM app.payments";
        let left: f64 = self.kit.one(sql, &[]).await;
        BootTime::now().plus(Duration::from_secs_f64(left))
    }
}

/// How late a timer may be on a machine that is busy.
const LATE: Duration = Duration::from_millis(800);
const LEASE: Duration = Duration::from_secs(12);

#[tokio::test]
async fn an_observation_ends_with_its_lease_when_the_database_cannot_be_reached() {
    let world = World::new(2).await;
    let worker = world.worker(LEASE, 2);
    let cycle = tokio::spawn(async move { worker.run_once().await });
    wait_for("both to be observed", PATIENCE, async || world.observer.began(2)).await.unwrap();
    world.proxy.cut().await;
    let end = world.claims_end().await;
    let summary = cycle.await.unwrap().unwrap();
    let ended = world.observer.ended.lock().unwrap()[0];
    assert!(ended <= end.plus(LATE), "worked on for {:?} after the end of its lease", ended.since(end));
    assert_eq!(summary.lost, 2, "{summary}");
}

#[tokio::test]
async fn an_observation_ends_with_its_lease_when_a_stop_finds_no_database() {
    let world = World::new(3).await;
    let lease = Duration::from_secs(4);
    let worker = world.worker(lease, 1);
    let stop = Arc::new(Notify::new());
    let stopping = stop.clone();
    let mut running = tokio::spawn(worker.run(async move { stopping.notified().await }));
    wait_for("one to be observed", PATIENCE, async || world.observer.began(1)).await.unwrap();
    world.proxy.stall();
    let end = world.claims_end().await;
    stop.notify_one();
    // What was not started cannot be returned now.
    let ended = tokio::time::timeout(PATIENCE, &mut running).await;
    ended.expect("the worker to stop").unwrap();
    let ended = world.observer.ended.lock().unwrap()[0];
    assert!(ended <= end.plus(LATE), "worked on for {:?} after the end of its lease", ended.since(end));
    assert!(world.observer.began(1), "nothing is begun after a stop");
}

#[tokio::test]
async fn a_stop_does_not_wait_for_a_connection() {
    let world = World::new(1).await;
    world.proxy.stall();
    let worker = world.worker(Duration::from_secs(3_600), 1);
    let stop = Arc::new(Notify::new());
    let stopping = stop.clone();
    let running = tokio::spawn(worker.run(async move { stopping.notified().await }));
    wait_for("the worker to ask for a connection", PATIENCE, async || world.pool.status().waiting == 1)
        .await
        .unwrap();
    stop.notify_one();
    tokio::time::timeout(PATIENCE, running).await.expect("the worker to stop").unwrap();
}

#[tokio::test]
async fn rows_whose_claim_is_answered_after_its_lease_are_not_observed() {
    let world = World::new(0).await;
    let worker = world.worker(Duration::from_secs(1), 2);
    assert_eq!(worker.run_once().await.unwrap().claimed, 0, "the connection is there");
    world.kit.insert(1, 3).await;
    world.proxy.latency(Duration::from_millis(1_500));
    let result = tokio::time::timeout(PATIENCE, worker.run_once()).await.expect("an end");
    assert!(result.is_err(), "{result:?}");
    assert!(world.observer.began(0), "{:?} were observed", world.observer.began.lock().unwrap());
    assert_eq!(world.pool.status().size, 0, "a connection that owes an answer is not used again");
}

#[tokio::test]
async fn results_that_cannot_be_written_in_time_are_given_up() {
    let world = World::new(0).await;
    let worker = world.worker(Duration::from_secs(2), 2);
    assert_eq!(worker.run_once().await.unwrap().claimed, 0, "the connection is there");
    world.kit.insert(2, 2).await;
    world.proxy.hold_requests("idle_in_transaction_session_timeout");
    let result = tokio::time::timeout(PATIENCE, worker.run_once()).await.expect("an end");
    assert!(result.is_err(), "{result:?}");
    assert_eq!(world.kit.state(2).await, "pending");
    world.proxy.restore().await.unwrap();
    wait_for("the row to be confirmed", PATIENCE, async || {
        worker.run_once().await.is_ok_and(|summary| summary.moved.get("confirmed") == Some(&1))
    })
    .await
    .unwrap();
}
