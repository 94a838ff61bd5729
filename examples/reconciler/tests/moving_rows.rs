//! The guide "moving row claims" as it stands, under load: old workers with SQL of their own and new ones beside them
//! on one table, forwards and back, while workers are killed and put to sleep past their leases.
#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

mod world;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use payments::store;
use serde_json::Value;
use solehold_sql::functions::Functions;
use solehold_testkit::{Postgres, wait_for};
use world::{
    AUDIT, PATIENCE, Worker, api, connect, count, create_all, pause_with_claims, replica, taken_over, verify,
};

/// The most that are made, however long it takes.
const REQUESTS_MAX: usize = 5_000;
const REQUESTS_AT_ONCE: usize = 8;
/// Few enough for one old worker to bring to their end when all others are gone.
const OPEN_MAX: i64 = 60;
const OPEN: &str = "SELECT count(*) FROM app.payment_requests WHERE status NOT IN ('confirmed', 'expired')";

/// Makes requests until it is told to stop, so that there is always something to claim.
async fn load(url: String, database: String, stopped: Arc<AtomicBool>) -> HashMap<usize, Value> {
    let client = connect(&database).await;
    let mut created = HashMap::new();
    while !stopped.load(Ordering::SeqCst) && created.len() < REQUESTS_MAX {
        let is_room = async || stopped.load(Ordering::SeqCst) || count(&client, OPEN).await < OPEN_MAX;
        wait_for("fewer open payments", PATIENCE, is_room).await.unwrap();
        let first = created.len();
        created.extend(create_all(url.clone(), first..first + REQUESTS_AT_ONCE).await);
    }
    created
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn old_and_new_workers_share_a_table_forwards_and_back() {
    let url = Postgres::shared().await.unwrap().create_database("moving").await.unwrap();
    let api = api(&url).await;
    let client = connect(&url).await;
    client.batch_execute(AUDIT).await.unwrap();
    let stopped = Arc::new(AtomicBool::new(false));
    let load = tokio::spawn(load(api.said().to_owned(), url.clone(), stopped.clone()));
    let start = async |kind, name: &str| replica(kind, &url, &api, name).await;
    let old = [start(Worker::Old, "old-1").await, start(Worker::Old, "old-2").await];

    // The guard and the functions, while the old workers run; then new ones beside them.
    let functions = Functions::describe(&client, &store::table().unwrap(), None).await.unwrap();
    functions.apply_guard(&client, &functions.guard()).await.unwrap();
    functions.apply(&client).await.unwrap();
    let new = [start(Worker::Python, "new-1").await, start(Worker::Rust, "new-2").await];
    // An old one sleeps past its lease and another is killed; new ones take over.
    let left = pause_with_claims(&client, &old[0], "old-1").await;
    taken_over(&client, "old-1", &left).await;
    let killed = pause_with_claims(&client, &old[1], "old-2").await;
    old[1].kill9().await.unwrap();
    taken_over(&client, "old-2", &killed).await;
    // It wakes up while a new one is asleep; then the old ones are gone.
    let asleep = pause_with_claims(&client, &new[0], "new-1").await;
    old[0].resume().unwrap();
    taken_over(&client, "new-1", &asleep).await;
    new[0].resume().unwrap();
    assert!(old[0].terminate().await.unwrap().success());
    functions.apply_guard(&client, &functions.drop_guard()).await.unwrap();

    // Back: the guard first, then an old worker, then no new ones.
    functions.apply_guard(&client, &functions.guard()).await.unwrap();
    let back = start(Worker::Old, "old-3").await;
    let asleep = pause_with_claims(&client, &new[0], "new-1").await;
    assert!(new[1].terminate().await.unwrap().success());
    taken_over(&client, "new-1", &asleep).await;
    new[0].resume().unwrap();
    assert!(new[0].terminate().await.unwrap().success());
    functions.remove(&client).await.unwrap();

    stopped.store(true, Ordering::SeqCst);
    let created = load.await.unwrap();
    ended(&client).await;
    verify(&client, &created).await;
    for workers in ["old-1", "old-3", "new-1", "new-2"] {
        let sql = format!("SELECT count(*) FROM app.payment_outbox WHERE worker_id = '{workers}'");
        assert!(count(&client, &sql).await > 0, "{workers} changed nothing");
    }
    assert!(back.terminate().await.unwrap().success());
}

async fn ended(client: &tokio_postgres::Client) {
    wait_for("every payment to end", PATIENCE, async || count(client, OPEN).await == 0).await.unwrap();
}

/// What the guard is for: a clock that is ahead, a lease that has run out, a buried row, and one name for two workers.
#[tokio::test]
async fn the_guard_stops_what_an_old_worker_cannot_know() {
    let url = Postgres::shared().await.unwrap().create_database("guard").await.unwrap();
    store::migrate(&url).await.unwrap();
    let client = connect(&url).await;
    let functions = Functions::describe(&client, &store::table().unwrap(), None).await.unwrap();
    functions.apply(&client).await.unwrap();
    client
        .batch_execute(
            "INSERT INTO app.payment_requests (id, chain, address, amount, expires_at) \
             SELECT gen_random_uuid(), 'simulated', 'a' || i, 1, now() FROM generate_series(1, 3) i",
        )
        .await
        .unwrap();
    // The claim of an old worker whose clock is an hour ahead, and its change of status.
    let claim = "UPDATE app.payment_requests SET reconcile_lease_owner = 'old', reconcile_lease_until = now() + interval '90 minutes' \
        WHERE status = 'pending' AND (reconcile_lease_until IS NULL OR reconcile_lease_until <= now() + interval '1 hour')";
    let change = "UPDATE app.payment_requests SET status = 'confirmed', reconcile_lease_owner = NULL, reconcile_lease_until = NULL \
        WHERE status = 'pending' AND reconcile_lease_owner = 'old'";
    let new = "SELECT count(*) FROM app.payment_requests_claim('new', 10, 60)";
    let run_out = "UPDATE app.payment_requests SET reconcile_lease_until = now() - interval '1 second'";
    let rows = async |sql: &str| client.execute(sql, &[]).await.unwrap();
    // Without the floor of the connection, each claim looks at everything.
    let reset = async || {
        client.batch_execute("DISCARD ALL").await.unwrap();
        client
            .batch_execute("UPDATE app.payment_requests SET reconcile_lease_owner = NULL, reconcile_lease_until = NULL, reconcile_dead_at = NULL")
            .await
            .unwrap();
    };
    for is_guarded in [false, true] {
        if is_guarded {
            functions.apply_guard(&client, &functions.guard()).await.unwrap();
        }
        let allowed = if is_guarded { 0 } else { 3 };
        reset().await;
        assert_eq!(count(&client, new).await, 3);
        assert_eq!(rows(claim).await, allowed, "a live lease, by a clock that is ahead");
        reset().await;
        rows("UPDATE app.payment_requests SET reconcile_dead_at = now()").await;
        assert_eq!(rows(claim).await, allowed, "buried rows");
        reset().await;
        assert_eq!(rows(claim).await, 3, "free rows may be claimed");
        rows(run_out).await;
        client.batch_execute("BEGIN").await.unwrap();
        assert_eq!(rows(change).await, allowed, "a change under a lease that has run out");
        client.batch_execute("ROLLBACK").await.unwrap();
    }
    // An old worker and a new one by the same name: the epoch tells them apart.
    reset().await;
    let epoch = "SELECT max(claim_epoch) FROM app.payment_requests_claim('old', 10, 60)";
    let epoch: i64 = client.query_one(epoch, &[]).await.unwrap().get(0);
    rows(run_out).await;
    assert_eq!(rows(claim).await, 3);
    let stale = format!(
        "SELECT count(*) FROM app.payment_requests p, app.payment_requests_complete_all('old', ARRAY[p.id], \
         ARRAY[{epoch}::bigint], ARRAY['pending'], ARRAY['expired']) AS done WHERE done.outcome = 'taken'"
    );
    assert_eq!(count(&client, &stale).await, 3);
    assert_eq!(rows(change).await, 3, "a live claim of its own may be settled");
}
