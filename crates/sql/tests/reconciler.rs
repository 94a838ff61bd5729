//! The worker's loop, against a real PostgreSQL.
#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

mod kit;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use kit::{Kit, PATIENCE, connect, int, owner, pool};
use prometheus_client::{encoding::text, registry::Registry};
use solehold_sql::reconciler::{
    AppliedTransition, Notifier, Observation, Observer, ObserverError, ReconcilerMetrics, Wake,
};
use solehold_sql::{ClaimedRow, Claims, Reconciler, ReconcilerConfig};
use solehold_testkit::{PgBouncer, Postgres, wait_for};
use tokio::sync::{Notify, Semaphore};
use tokio_postgres::{NoTls, Transaction};

/// What the chain says about a payment, as a test has it.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Confirmed,
    Nothing,
    Fails,
    Panics,
    Hopeless,
    /// Its outbox row cannot be written.
    BadEffect,
    /// Sets a time that is none.
    BadValue,
    /// Answers when the gate opens.
    Waits,
    /// Its worker stands still in the middle of the transaction, timers and all, until it is thawed.
    Freezes,
}

struct Chain {
    fates: HashMap<i64, Fate>,
    seen: Arc<Mutex<Vec<i64>>>,
    at_once: AtomicUsize,
    most: Arc<AtomicUsize>,
    gate: Arc<Semaphore>,
    entered: Arc<Notify>,
    thawed: Arc<Barrier>,
}

impl Chain {
    fn new(fates: impl IntoIterator<Item = (i64, Fate)>) -> Self {
        Self {
            fates: fates.into_iter().collect(),
            seen: Arc::default(),
            at_once: AtomicUsize::new(0),
            most: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
            entered: Arc::default(),
            thawed: Arc::new(Barrier::new(2)),
        }
    }
}

#[async_trait]
impl Observer for Chain {
    async fn observe(&self, row: &ClaimedRow) -> Result<Observation, ObserverError> {
        let id = int(row.id());
        self.seen.lock().unwrap().push(id);
        let at_once = self.at_once.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(at_once, Ordering::SeqCst);
        tokio::task::yield_now().await;
        let fate = self.fates.get(&id).copied().unwrap_or(Fate::Confirmed);
        if fate == Fate::Waits {
            self.entered.notify_one();
            self.gate.acquire().await.map_err(ObserverError::row)?.forget();
        }
        self.at_once.fetch_sub(1, Ordering::SeqCst);
        match fate {
            Fate::Confirmed | Fate::BadEffect | Fate::Waits | Fate::Freezes => {
                Ok(Observation::moved("confirmed").with("note", "seen"))
            }
            Fate::BadValue => Ok(Observation::moved("confirmed").with("paid_at", "rubbish")),
            Fate::Nothing => Ok(Observation::Unchanged),
            Fate::Fails => Err(ObserverError::row("the payment has no address")),
            Fate::Panics => panic!("as the test wants it"),
            Fate::Hopeless => Ok(Observation::Hopeless { reason: "no such chain".into() }),
        }
    }

    async fn effects(
        &self,
        tx: &Transaction<'_>,
        applied: &[AppliedTransition<'_>],
    ) -> Result<(), ObserverError> {
        for AppliedTransition { row, .. } in applied {
            let id = int(row.id());
            let sql = match self.fates.get(&id) {
                Some(Fate::BadEffect) => "INSERT INTO app.outbox (payment, epoch) VALUES ($1, $2 / 0)",
                _ => "INSERT INTO app.outbox (payment, epoch) VALUES ($1, $2)",
            };
            tx.execute(sql, &[&id, &row.proof.epoch]).await?;
            if self.fates.get(&id) == Some(&Fate::Freezes) {
                self.entered.notify_one();
                self.thawed.wait();
            }
        }
        Ok(())
    }
}

fn config() -> ReconcilerConfig {
    ReconcilerConfig {
        poll_interval: Duration::from_millis(20),
        lease: Duration::from_secs(60),
        recheck: Duration::from_secs(600),
        backoff_min: Duration::from_millis(1),
        backoff_max: Duration::from_millis(20),
        attempts_max: 3,
        states: ["confirmed", "detected", "expired"].map(str::to_owned).into(),
        ..ReconcilerConfig::new(owner("worker-1"))
    }
}

fn reconciler(kit: &Kit, chain: Chain, config: ReconcilerConfig) -> Reconciler<Chain> {
    let claims = Arc::new(Claims::new(kit::table().build().unwrap()));
    Reconciler::new(pool(&kit.url), claims, chain, config).unwrap()
}

async fn count(kit: &Kit, condition: &str) -> i64 {
    kit.one(&format!("SELECT count(*) FROM app.payments WHERE {condition}"), &[]).await
}

#[tokio::test]
async fn a_cycle_claims_observes_settles_and_sums_up() {
    let kit = Kit::new(5).await;
    let chain = Chain::new([(2, Fate::Nothing), (3, Fate::Fails), (4, Fate::Panics), (5, Fate::Hopeless)]);
    let metrics = ReconcilerMetrics::default();
    let reconciler = reconciler(&kit, chain, config()).metrics(&metrics);
    let summary = reconciler.run_once().await.unwrap();
    assert_eq!(
        summary.to_string(),
        "claimed=5 scanned=3 confirmed=1 detected=0 expired=0 skipped=1 errors=2 buried=1"
    );
    assert_eq!(count(&kit, "lease_owner IS NULL").await, 5);
    assert_eq!(count(&kit, "status = 'confirmed' AND note = 'seen'").await, 1);
    assert_eq!(count(&kit, "dead_reason = 'no such chain' AND status = 'pending'").await, 1);
    assert_eq!(
        kit.one::<i64>("SELECT count(*) FROM app.outbox WHERE payment = 1 AND epoch = 1", &[]).await,
        1
    );
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let mut page = String::new();
    text::encode(&mut page, &registry).unwrap();
    for line in [
        "solehold_reconciler_rows_total{result=\"claimed\"} 5",
        "solehold_reconciler_rows_total{result=\"errors\"} 2",
        "solehold_reconciler_moved_total{state=\"confirmed\"} 1",
        "solehold_reconciler_cycle_seconds_count 1",
    ] {
        assert!(page.contains(line), "{line} is not in\n{page}");
    }
}

#[tokio::test]
async fn observations_are_bounded() {
    let kit = Kit::new(40).await;
    let chain = Chain::new([]);
    let most = chain.most.clone();
    let summary =
        reconciler(&kit, chain, ReconcilerConfig { concurrency: 3, ..config() }).run_once().await.unwrap();
    assert_eq!((summary.claimed, summary.moved["confirmed"]), (40, 40));
    assert!((1..=3).contains(&most.load(Ordering::SeqCst)));
}

#[tokio::test]
async fn a_worker_that_freezes_in_its_transaction_locks_its_rows_no_longer_than_its_lease() {
    let kit = Kit::new(1).await;
    let chain = Chain::new([(1, Fate::Freezes)]);
    let thawed = chain.thawed.clone();
    let entered = chain.entered.clone();
    let lease = Duration::from_secs(1);
    let slow = reconciler(&kit, chain, ReconcilerConfig { lease, ..config() });
    // A thread of its own: nothing of this worker moves while it is frozen, its connection included.
    let stalled = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(slow.run_once())
    });
    entered.notified().await;
    let other = ReconcilerConfig { worker: owner("worker-2"), ..config() };
    let other = reconciler(&kit, Chain::new([]), other);
    wait_for("another worker to confirm it", PATIENCE, async || {
        other.run_once().await.unwrap().moved["confirmed"] == 1
    })
    .await
    .unwrap();
    thawed.wait();
    let summary = tokio::task::spawn_blocking(|| stalled.join()).await.unwrap().unwrap();
    assert!(summary.is_err() || summary.is_ok_and(|s| s.moved["confirmed"] == 0));
    assert_eq!(kit.one::<i64>("SELECT count(*) FROM app.outbox", &[]).await, 1);
}

#[tokio::test]
async fn poison_backs_off_and_is_buried_with_the_reason() {
    let kit = Kit::new(1).await;
    let reconciler = reconciler(&kit, Chain::new([(1, Fate::Fails)]), config());
    let errors = AtomicUsize::new(0);
    wait_for("the row to be buried", PATIENCE, async || {
        let summary = reconciler.run_once().await.unwrap();
        errors.fetch_add(summary.errors as usize, Ordering::SeqCst);
        summary.buried == 1
    })
    .await
    .unwrap();
    assert_eq!(errors.into_inner(), 3);
    let reason: String = kit.one("SELECT dead_reason FROM app.payments", &[]).await;
    assert_eq!(reason, "failed 3 times, at last: the payment has no address");
    assert_eq!(reconciler.run_once().await.unwrap().claimed, 0);
}

#[tokio::test]
async fn a_row_that_kills_its_workers_is_buried_too() {
    let kit = Kit::new(1).await;
    for worker in ["a", "b", "c"] {
        assert_eq!(kit.claim_when_there(1, worker).await.len(), 1);
        kit.run_out().await;
    }
    let chain = Chain::new([]);
    let seen = chain.seen.clone();
    let reconciler = reconciler(&kit, chain, config());
    let summary = reconciler.run_once().await.unwrap();
    assert_eq!((summary.claimed, summary.buried), (1, 1));
    assert!(seen.lock().unwrap().is_empty(), "it is not tried a fourth time");
    let reason: String = kit.one("SELECT dead_reason FROM app.payments", &[]).await;
    assert!(reason.contains("claimed 3 times without a result"), "{reason}");
}

#[tokio::test]
async fn a_row_whose_state_is_null_moves_like_any_other() {
    let kit = Kit::with(2, |table| table.claimable("status IS DISTINCT FROM 'confirmed'")).await;
    let nullable = "ALTER TABLE app.payments ALTER status DROP NOT NULL; UPDATE app.payments SET status = NULL WHERE id = 1";
    kit.client.batch_execute(nullable).await.unwrap();
    let table = kit::table().claimable("status IS DISTINCT FROM 'confirmed'").build().unwrap();
    let claims = Arc::new(Claims::new(table));
    let worker = Reconciler::new(pool(&kit.url), claims, Chain::new([]), config()).unwrap();
    let summary = worker.run_once().await.unwrap();
    assert_eq!((summary.moved["confirmed"], summary.lost), (2, 0), "{summary}");
    assert_eq!(count(&kit, "status = 'confirmed'").await, 2);
}

#[tokio::test]
async fn what_cannot_be_written_fails_its_row_alone() {
    let kit = Kit::new(5).await;
    let summary = reconciler(&kit, Chain::new([(2, Fate::BadEffect), (5, Fate::BadValue)]), config())
        .run_once()
        .await
        .unwrap();
    assert_eq!((summary.moved["confirmed"], summary.errors), (3, 2));
    assert_eq!(count(&kit, "status = 'pending' AND id IN (2, 5) AND lease_owner IS NULL").await, 2);
    assert_eq!(kit.one::<i64>("SELECT count(*) FROM app.outbox", &[]).await, 3);
}

#[tokio::test]
async fn a_stop_finishes_what_was_started_and_returns_the_rest() {
    let kit = Kit::new(10).await;
    let chain = Chain::new((1..=10).map(|id| (id, Fate::Waits)));
    let gate = chain.gate.clone();
    let entered = chain.entered.clone();
    let seen = chain.seen.clone();
    let reconciler = reconciler(&kit, chain, ReconcilerConfig { concurrency: 2, ..config() });
    let stop = Arc::new(Notify::new());
    let stopping = stop.clone();
    let running = tokio::spawn(reconciler.run(async move { stopping.notified().await }));
    entered.notified().await;
    wait_for("two to be observed", PATIENCE, async || seen.lock().unwrap().len() == 2).await.unwrap();
    stop.notify_one();
    wait_for("the rest to be returned", PATIENCE, async || count(&kit, "lease_owner IS NOT NULL").await == 2)
        .await
        .unwrap();
    assert!(!running.is_finished());
    gate.add_permits(2);
    running.await.unwrap();
    assert_eq!(count(&kit, "status = 'confirmed'").await, 2);
    assert_eq!(count(&kit, "status = 'pending' AND lease_owner IS NULL AND attempts = 0").await, 8);
}

#[tokio::test]
async fn what_takes_long_is_extended_and_the_rest_is_written_meanwhile() {
    let kit = Kit::new(3).await;
    let chain = Chain::new([(1, Fate::Waits)]);
    let gate = chain.gate.clone();
    let reconciler = reconciler(&kit, chain, ReconcilerConfig { lease: Duration::from_secs(2), ..config() });
    let until = "SELECT lease_until::text FROM app.payments WHERE id = 1";
    let cycle = tokio::spawn(async move { reconciler.run_once().await });
    wait_for("the claim", PATIENCE, async || count(&kit, "lease_owner IS NOT NULL").await == 3)
        .await
        .unwrap();
    let first: String = kit.one(until, &[]).await;
    wait_for("the others", PATIENCE, async || count(&kit, "status = 'confirmed'").await == 2).await.unwrap();
    wait_for("an extension", PATIENCE, async || kit.one::<String>(until, &[]).await > first).await.unwrap();
    assert_eq!(kit.claim(3, "thief").await.len(), 0);
    gate.add_permits(1);
    assert_eq!(cycle.await.unwrap().unwrap().moved["confirmed"], 3);
    assert_eq!(kit.one::<i64>("SELECT lease_epoch FROM app.payments WHERE id = 1", &[]).await, 1);
}

#[tokio::test]
async fn a_claim_that_was_lost_stops_its_observation() {
    let kit = Kit::new(1).await;
    let chain = Chain::new([(1, Fate::Waits)]);
    let entered = chain.entered.clone();
    let reconciler = reconciler(&kit, chain, ReconcilerConfig { lease: Duration::from_secs(2), ..config() });
    let cycle = tokio::spawn(async move { reconciler.run_once().await });
    entered.notified().await;
    kit.run_out().await;
    assert_eq!(kit.claim_when_there(1, "thief").await.len(), 1);
    // It would wait for ever otherwise: nobody opens the gate.
    let summary = cycle.await.unwrap().unwrap();
    assert_eq!((summary.lost, summary.moved["confirmed"]), (1, 0));
}

#[tokio::test]
async fn wake_ups_are_coalesced_and_polling_does_without() {
    let kit = Kit::new(0).await;
    let wake = Wake::default();
    let listening = wake.listen(kit.url.parse().unwrap(), NoTls, "payments").unwrap();
    let chain = Chain::new([]);
    let seen = chain.seen.clone();
    let slow = ReconcilerConfig { poll_interval: Duration::from_secs(3600), ..config() };
    let running = tokio::spawn(reconciler(&kit, chain, slow).wake(&wake).run(std::future::pending()));
    let listens =
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE 'LISTEN %' AND state = 'idle')";
    wait_for("somebody to listen", PATIENCE, async || kit.one::<bool>(listens, &[]).await).await.unwrap();
    let notifier = Notifier::start(pool(&kit.url), "payments", Duration::from_millis(50)).unwrap();
    for round in 1..=3 {
        kit.insert(round, round).await;
        for _ in 0..100 {
            notifier.ring();
        }
        wait_for("the new row to be seen", PATIENCE, async || seen.lock().unwrap().contains(&round))
            .await
            .unwrap();
    }
    // The listener's connection breaks: it comes back, and wakes.
    let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'LISTEN %'";
    kit.insert(4, 4).await;
    assert_eq!(kit.one::<i64>(kill, &[]).await, 1);
    wait_for("the row that nobody rang for", PATIENCE, async || seen.lock().unwrap().contains(&4))
        .await
        .unwrap();
    running.abort();
    listening.abort();
    assert!(wake.listen(kit.url.parse().unwrap(), NoTls, "no; such").is_err());
    assert!(Notifier::start(pool(&kit.url), "no; such", Duration::ZERO).is_err());
}

#[tokio::test]
async fn the_loop_outlives_a_database_that_goes_and_comes() {
    let kit = Kit::new(30).await;
    let small = ReconcilerConfig { batch_size: 3, ..config() };
    let stop = Arc::new(Notify::new());
    let stopping = stop.clone();
    let reconciler = reconciler(&kit, Chain::new([]), small);
    let running = tokio::spawn(reconciler.run(async move { stopping.notified().await }));
    let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    for _ in 0..5 {
        let _: i64 = kit.one(kill, &[]).await;
        tokio::task::yield_now().await;
    }
    kit.client
        .batch_execute(
            "UPDATE app.payments SET lease_until = clock_timestamp() WHERE lease_owner IS NOT NULL",
        )
        .await
        .unwrap();
    wait_for("all to be done", PATIENCE, async || count(&kit, "status = 'confirmed'").await == 30)
        .await
        .unwrap();
    stop.notify_one();
    running.await.unwrap();
    let twice = "SELECT count(*) - count(DISTINCT payment) FROM app.outbox";
    assert_eq!(kit.one::<i64>(twice, &[]).await, 0);
}

#[tokio::test]
async fn idle_costs_one_cheap_query_an_interval() {
    let kit = Kit::new(0).await;
    let claims = Arc::new(Claims::new(kit::table().build().unwrap()));
    let reconciler = Reconciler::new(pool(&kit.url), claims, Chain::new([]), config()).unwrap();
    reconciler.run_once().await.unwrap();
    let calls = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()";
    let flushed = connect(&kit.url).await;
    let transactions = async || {
        flushed.batch_execute("SELECT pg_stat_force_next_flush()").await.unwrap();
        flushed.query_one(calls, &[]).await.unwrap().get::<_, i64>(0)
    };
    let before = transactions().await;
    for _ in 0..50 {
        assert_eq!(reconciler.run_once().await.unwrap().claimed, 0);
    }
    // PostgreSQL counts a little later; and our own looks count too.
    let after = transactions().await;
    assert!(after - before <= 60, "{} transactions for 50 idle cycles", after - before);
}

/// Confirms everything; prepares nothing by name.
struct Plain;

#[async_trait]
impl Observer for Plain {
    async fn observe(&self, _: &ClaimedRow) -> Result<Observation, ObserverError> {
        Ok(Observation::moved("confirmed"))
    }

    async fn effects(
        &self,
        tx: &Transaction<'_>,
        applied: &[AppliedTransition<'_>],
    ) -> Result<(), ObserverError> {
        let ids: Vec<i64> = applied.iter().map(|one| int(one.row.id())).collect();
        let sql = "INSERT INTO app.outbox (payment, epoch) SELECT unnest($1), 1";
        tx.execute_typed(sql, &[(&ids, tokio_postgres::types::Type::INT8_ARRAY)]).await?;
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn three_loops_share_the_work_through_pgbouncer() {
    const ROWS: i64 = 300;
    let kit = Kit::new(ROWS).await;
    let pooler = PgBouncer::start(Postgres::shared().await.unwrap(), 3).await.unwrap();
    let pool = pool(&pooler.url_for(&kit.url));
    let stop = Arc::new(tokio::sync::watch::channel(false).0);
    let running: Vec<_> = (0..3)
        .map(|i| {
            let claims = Arc::new(Claims::new(kit::table().build().unwrap()));
            let config = ReconcilerConfig { worker: owner(&format!("w{i}")), batch_size: 20, ..config() };
            let reconciler = Reconciler::new(pool.clone(), claims, Plain, config).unwrap();
            let mut stopped = stop.subscribe();
            tokio::spawn(reconciler.run(async move {
                let _ = stopped.wait_for(|stopped| *stopped).await;
            }))
        })
        .collect();
    wait_for("all to be done", PATIENCE, async || count(&kit, "status = 'confirmed'").await == ROWS)
        .await
        .unwrap();
    stop.send_replace(true);
    for one in running {
        one.await.unwrap();
    }
    let once = "SELECT count(*) = count(DISTINCT payment) AND count(*) = 300 FROM app.outbox";
    assert!(kit.one::<bool>(once, &[]).await);
}
