//! What buries a row, what does not, and what brings it back; against a real PostgreSQL.
#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

mod kit;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use kit::{Kit, PATIENCE, int, owner, pool};
use prometheus_client::{encoding::text, registry::Registry};
use solehold_sql::reconciler::{AppliedTransition, ReconcilerMetrics, Wake};
use solehold_sql::{
    ClaimedRow, Claims, Observation, Observer, ObserverError, Reconciler, ReconcilerConfig, RowId,
};
use solehold_testkit::wait_for;
use tokio::sync::Notify;
use tokio_postgres::Transaction;

const ATTEMPTS_MAX: u32 = 3;

/// A chain whose node goes away and comes back.
#[derive(Clone, Default)]
struct Node {
    is_away: Arc<AtomicBool>,
    /// The node answers, but effects cannot reach what they need.
    effects_are_away: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
    /// Rows from this id on are wrong in themselves; zero: none is.
    wrong_from: i64,
}

#[async_trait]
impl Observer for Node {
    async fn observe(&self, row: &ClaimedRow) -> Result<Observation, ObserverError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if self.wrong_from > 0 && int(row.id()) >= self.wrong_from {
            return Err(ObserverError::row("the payment has no address"));
        }
        if self.is_away.load(Ordering::SeqCst) {
            return Err(ObserverError::unreachable("connection refused"));
        }
        Ok(Observation::moved("confirmed"))
    }

    async fn effects(&self, _: &Transaction<'_>, _: &[AppliedTransition<'_>]) -> Result<(), ObserverError> {
        if self.effects_are_away.load(Ordering::SeqCst) {
            return Err(ObserverError::unreachable("the ledger does not answer"));
        }
        Ok(())
    }
}

fn config() -> ReconcilerConfig {
    ReconcilerConfig {
        poll_interval: Duration::from_millis(20),
        lease: Duration::from_secs(60),
        backoff_min: Duration::from_millis(1),
        backoff_max: Duration::from_millis(20),
        unreachable_backoff_max: Duration::from_millis(10),
        attempts_max: ATTEMPTS_MAX,
        states: vec!["confirmed".to_owned()],
        ..ReconcilerConfig::new(owner("worker-1"))
    }
}

fn reconciler(kit: &Kit, node: &Node, config: ReconcilerConfig) -> Reconciler<Node> {
    let claims = Arc::new(Claims::new(kit::table().build().unwrap()));
    Reconciler::new(pool(&kit.url), claims, node.clone(), config).unwrap()
}

async fn count(kit: &Kit, condition: &str) -> i64 {
    kit.one(&format!("SELECT count(*) FROM app.payments WHERE {condition}"), &[]).await
}

fn page(metrics: &ReconcilerMetrics) -> String {
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let mut page = String::new();
    text::encode(&mut page, &registry).unwrap();
    page
}

#[tokio::test]
async fn an_observer_that_is_away_for_more_than_the_attempts_buries_nothing() {
    const ROWS: i64 = 4;
    let kit = Kit::new(ROWS).await;
    let node = Node { is_away: Arc::new(AtomicBool::new(true)), ..Node::default() };
    let metrics = ReconcilerMetrics::default();
    let reconciler = reconciler(&kit, &node, config()).metrics(&metrics);
    let unreachable = AtomicU64::new(0);
    let buried = AtomicU64::new(0);
    let enough = u64::from(ATTEMPTS_MAX) * ROWS as u64 * 3;
    wait_for("many failed attempts at every row", PATIENCE, async || {
        let summary = reconciler.run_once().await.unwrap();
        assert_eq!(summary.errors, 0, "{summary}");
        buried.fetch_add(summary.buried, Ordering::SeqCst);
        unreachable.fetch_add(summary.unreachable, Ordering::SeqCst) + summary.unreachable >= enough
    })
    .await
    .unwrap();
    assert_eq!(buried.into_inner(), 0);
    assert_eq!(count(&kit, "dead_at IS NULL AND status = 'pending' AND attempts = 0").await, ROWS);
    assert!(page(&metrics).contains("solehold_reconciler_observer_unreachable 1"), "{}", page(&metrics));
    node.is_away.store(false, Ordering::SeqCst);
    wait_for("every row to be confirmed", PATIENCE, async || {
        reconciler.run_once().await.unwrap();
        let is_reported = page(&metrics).contains("solehold_reconciler_observer_unreachable 0");
        is_reported && count(&kit, "status = 'confirmed'").await == ROWS
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn effects_that_reach_nothing_cost_no_attempt_either() {
    let kit = Kit::new(2).await;
    let node = Node { effects_are_away: Arc::new(AtomicBool::new(true)), ..Node::default() };
    let reconciler = reconciler(&kit, &node, config());
    let times = AtomicU64::new(0);
    wait_for("more cycles than attempts", PATIENCE, async || {
        let summary = reconciler.run_once().await.unwrap();
        assert_eq!((summary.buried, summary.errors, summary.moved["confirmed"]), (0, 0, 0), "{summary}");
        times.fetch_add(summary.unreachable, Ordering::SeqCst) >= u64::from(ATTEMPTS_MAX) * 4
    })
    .await
    .unwrap();
    assert_eq!(count(&kit, "status = 'pending' AND attempts = 0").await, 2);
    node.effects_are_away.store(false, Ordering::SeqCst);
    wait_for("both to be confirmed", PATIENCE, async || {
        reconciler.run_once().await.unwrap();
        count(&kit, "status = 'confirmed'").await == 2
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_row_that_is_wrong_is_buried_while_the_observer_is_away_for_the_others() {
    let kit = Kit::new(3).await;
    let is_away = Arc::new(AtomicBool::new(true));
    let reconciler = reconciler(&kit, &Node { is_away, wrong_from: 3, ..Node::default() }, config());
    wait_for("the wrong one to be buried", PATIENCE, async || {
        reconciler.run_once().await.unwrap().buried == 1
    })
    .await
    .unwrap();
    assert_eq!(count(&kit, "dead_at IS NOT NULL").await, 1);
    assert_eq!(count(&kit, "id < 3 AND dead_at IS NULL AND attempts = 0").await, 2);
}

#[tokio::test]
async fn an_observer_that_is_away_is_not_hammered() {
    let kit = Kit::new(50).await;
    let node = Node { is_away: Arc::new(AtomicBool::new(true)), ..Node::default() };
    let wake = Wake::default();
    let hour = Duration::from_secs(3600);
    let config = ReconcilerConfig {
        batch_size: 5,
        backoff_min: hour,
        backoff_max: hour,
        unreachable_backoff_max: hour,
        ..config()
    };
    let stop = Arc::new(Notify::new());
    let stopping = stop.clone();
    let running = reconciler(&kit, &node, config).wake(&wake).run(async move { stopping.notified().await });
    let running = tokio::spawn(running);
    let open = "lease_owner IS NULL AND lease_until IS NOT NULL";
    wait_for("the first batch to be postponed", PATIENCE, async || count(&kit, open).await == 5)
        .await
        .unwrap();
    // Neither a full batch nor new rows are a reason to request again before the pause is over. Another worker's cycles
    // give it the time to do so.
    let other = ReconcilerConfig { worker: owner("worker-2"), batch_size: 1, ..self::config() };
    let other = reconciler(&kit, &Node::default(), other);
    for _ in 0..20 {
        wake.wake();
        assert_eq!(other.run_once().await.unwrap().moved["confirmed"], 1);
    }
    stop.notify_one();
    running.await.unwrap();
    assert_eq!(node.asked.load(Ordering::SeqCst), 5);
}

#[tokio::test]
async fn burials_stop_at_their_limit() {
    let kit = Kit::new(5).await;
    let node = Node { wrong_from: 1, ..Node::default() };
    let reconciler = reconciler(&kit, &node, ReconcilerConfig { burials_per_hour: 2, ..config() });
    let unburied = AtomicU64::new(0);
    wait_for("rows that are not buried", PATIENCE, async || {
        unburied.fetch_add(reconciler.run_once().await.unwrap().unburied, Ordering::SeqCst) >= 20
    })
    .await
    .unwrap();
    assert_eq!(count(&kit, "dead_at IS NOT NULL").await, 2);
    // They are tried again, each at its last attempt.
    assert_eq!(count(&kit, &format!("dead_at IS NULL AND attempts = {}", ATTEMPTS_MAX - 1)).await, 3);
}

#[tokio::test]
async fn revive_undoes_a_burial() {
    let kit = Kit::new(4).await;
    let wrong = Node { wrong_from: 3, ..Node::default() };
    let burying = reconciler(&kit, &wrong, config());
    wait_for("two to be buried", PATIENCE, async || {
        burying.run_once().await.unwrap();
        count(&kit, "dead_at IS NOT NULL").await == 2
    })
    .await
    .unwrap();
    let buried = kit.claims.buried(&kit.client, 10, None).await.unwrap();
    assert_eq!(buried.iter().map(|row| int(&row.id)).collect::<Vec<_>>(), [3, 4]);
    assert_eq!((buried[0].attempts, buried[0].state.as_deref()), (3, Some("pending")));
    assert_eq!(buried[0].reason, "failed 3 times, at last: the payment has no address");
    assert_eq!(kit.claims.buried(&kit.client, 10, Some("no address")).await.unwrap(), buried);
    assert_eq!(kit.claims.buried(&kit.client, 1, None).await.unwrap(), buried[..1]);
    assert_eq!(kit.claims.buried(&kit.client, 10, Some("no such reason")).await.unwrap(), []);
    let ids = [1, 3, 4, 99].map(RowId::Int);
    assert_eq!(kit.claims.buried_among(&kit.client, &ids).await.unwrap(), buried);
    let mut revived = kit.claims.revive(&kit.client, &ids).await.unwrap();
    revived.sort();
    assert_eq!(revived, [3, 4].map(RowId::Int), "only what was buried");
    assert_eq!(kit.claims.revive(&kit.client, &ids).await.unwrap(), [], "once");
    let mended = reconciler(&kit, &Node::default(), config());
    wait_for("all to be confirmed", PATIENCE, async || {
        mended.run_once().await.unwrap();
        count(&kit, "status = 'confirmed' AND dead_at IS NULL AND dead_reason IS NULL").await == 4
    })
    .await
    .unwrap();
}
