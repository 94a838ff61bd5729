//! Many workers, transactions, isolation levels, a pooler, plans and long-running readers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use solehold_sql::{ClaimOutcome, LossReason, Transition, limits, retry};
use solehold_testkit::{PgBouncer, Postgres, wait_for};
use tokio_postgres::Client;

use crate::kit::driver::{Case, Claimed, Driver, changes, ids, proofs};
use crate::kit::{self, LONG, PATIENCE, connect, int};

/// Records each take-over of a lease that had not run out: there must be none.
const AUDIT: &str = "CREATE TABLE app.stolen (id bigint, old text, new text); \
    CREATE FUNCTION app.audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
      IF OLD.lease_until > clock_timestamp() AND NEW.lease_owner IS NOT NULL AND NEW.lease_epoch <> OLD.lease_epoch \
      THEN INSERT INTO app.stolen VALUES (OLD.id, OLD.lease_owner, NEW.lease_owner); END IF; RETURN NEW; END $$; \
    CREATE TRIGGER audit BEFORE UPDATE ON app.payments FOR EACH ROW EXECUTE FUNCTION app.audit()";

/// Claims and confirms until nothing is open; now and then the lease runs out before the work is done.
async fn work<D: Driver>(driver: Arc<D>, url: String, worker: String) -> (usize, usize) {
    let client = connect(&url).await;
    let mut done = 0;
    let mut lost = 0;
    let mut turn = 0;
    loop {
        turn += 1;
        // The first turn, too: all of a worker's first claims run out in its hands.
        let slow = turn % 5 == 1;
        let lease = if slow { limits::LEASE_MIN } else { LONG };
        let rows = driver.claim(&client, 7, &worker, lease).await.unwrap();
        if slow && let Some(row) = rows.first() {
            let sql =
                "SELECT lease_owner = $2 AND lease_until > clock_timestamp() FROM app.payments WHERE id = $1";
            let id = int(&row.proof.id);
            wait_for("the lease to run out", PATIENCE, async || {
                !client
                    .query_one(sql, &[&id, &worker])
                    .await
                    .unwrap()
                    .get::<_, Option<bool>>(0)
                    .unwrap_or(false)
            })
            .await
            .unwrap();
        }
        let done_now = in_transaction(&*driver, &client, &rows).await;
        done += done_now;
        lost += rows.len() - done_now;
        let open = "SELECT EXISTS (SELECT FROM app.payments WHERE status = 'pending')";
        if !client.query_one(open, &[]).await.unwrap().get::<_, bool>(0) {
            return (done, lost);
        }
    }
}

/// The change and its outbox rows commit together.
async fn in_transaction<D: Driver>(driver: &D, client: &Client, rows: &[Claimed]) -> usize {
    client.batch_execute("BEGIN").await.unwrap();
    let outcomes = driver.complete(client, &changes(rows, "pending", "confirmed")).await.unwrap();
    let mut done = 0;
    for (row, outcome) in rows.iter().zip(outcomes) {
        if outcome.is_done() {
            done += 1;
            let sql = "INSERT INTO app.outbox (payment, epoch) VALUES ($1, $2)";
            client.execute(sql, &[&int(&row.proof.id), &row.proof.epoch]).await.unwrap();
        }
    }
    client.batch_execute("COMMIT").await.unwrap();
    done
}

pub async fn many_workers_never_hold_a_row_together_and_do_each_once<D: Driver>() {
    const ROWS: i64 = 600;
    let case = Case::<D>::new(ROWS).await;
    case.client.batch_execute(AUDIT).await.unwrap();
    // Two processes' worth of floors.
    let table = || kit::table().build().unwrap();
    let groups = [D::open(&case.client, table()).await, D::open(&case.client, table()).await].map(Arc::new);
    let workers: Vec<_> = (0..12)
        .map(|i| tokio::spawn(work(groups[i % 2].clone(), case.url.clone(), format!("worker-{i}"))))
        .collect();
    let mut done = 0;
    let mut lost = 0;
    for worker in workers {
        let (done_by_it, lost_by_it) = worker.await.unwrap();
        done += done_by_it;
        lost += lost_by_it;
    }
    assert_eq!(done as i64, ROWS);
    assert!(lost > 0, "no lease ran out before its work was done: nothing was taken over");
    assert!(
        case.one::<i64>("SELECT count(*) FROM app.outbox WHERE epoch > 1", &[]).await > 0,
        "what one worker lost another has done"
    );
    assert_eq!(case.one::<i64>("SELECT count(*) FROM app.stolen", &[]).await, 0);
    assert_eq!(case.one::<i64>("SELECT count(DISTINCT payment) FROM app.outbox", &[]).await, ROWS);
    assert_eq!(case.one::<i64>("SELECT count(*) FROM app.outbox", &[]).await, ROWS);
}

pub async fn in_a_transaction_all_of_it_commits_or_none<D: Driver>() {
    let case = Case::<D>::new(4).await;
    case.client.batch_execute("BEGIN").await.unwrap();
    let rows = case.claim(2, "a").await;
    let done = case.driver.complete(&case.client, &changes(&rows, "pending", "confirmed")).await.unwrap();
    assert_eq!(done, [ClaimOutcome::Done, ClaimOutcome::Done]);
    case.client.execute("INSERT INTO app.outbox (payment, epoch) VALUES (1, 1)", &[]).await.unwrap();
    // Others do not wait for what is locked, and get what comes next.
    let other = connect(&case.url).await;
    assert_eq!(ids(&case.driver.claim(&other, 2, "b", LONG).await.unwrap()), [3, 4]);
    case.client.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(case.one::<i64>("SELECT count(*) FROM app.outbox", &[]).await, 0);
    assert_eq!(case.state(1).await, "pending");
    let mut back = ids(&case.claim_when_there(2, "c").await);
    back.sort_unstable();
    assert_eq!(back, [1, 2]);
    let epochs = "SELECT count(*) FROM app.payments WHERE lease_epoch = 1";
    assert_eq!(case.one::<i64>(epochs, &[]).await, 4, "what was rolled back has left no trace");
}

/// A whole transaction that fails to serialize is run again, by the crate's own retry.
pub async fn serialization_failures_are_retried<D: Driver>() {
    let case = Case::<D>::new(2).await;
    let row = case.claim(1, "a").await.remove(0);
    let meddler = connect(&case.url).await;
    let tries = AtomicUsize::new(0);
    let attempt = || async {
        let client = connect(&case.url).await;
        client
            .batch_execute("BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM app.payments")
            .await
            .unwrap();
        if tries.fetch_add(1, Ordering::SeqCst) == 0 {
            meddler.batch_execute("UPDATE app.payments SET note = 'meddled'").await.unwrap();
        }
        let change = [Transition::new(&row.proof, "pending", "confirmed")];
        let outcome = case.driver.complete(&client, &change).await?.remove(0);
        client.batch_execute("COMMIT").await.unwrap();
        Ok(outcome)
    };
    assert_eq!(retry::on_contention(attempt).await.unwrap(), ClaimOutcome::Done);
    assert_eq!(tries.into_inner(), 2, "the first was in someone's way");
}

pub async fn claims_work_where_everything_is_serializable<D: Driver>() {
    const ROWS: i64 = 200;
    let case = Case::<D>::new(ROWS).await;
    let mut tasks = Vec::new();
    for i in 0..4 {
        let url = case.url.clone();
        let driver = D::open(&case.client, kit::table().build().unwrap()).await;
        tasks.push(tokio::spawn(async move {
            let client = connect(&url).await;
            client.batch_execute("SET default_transaction_isolation = 'serializable'").await.unwrap();
            let me = format!("w{i}");
            let mut mine = Vec::new();
            let mut empty = 0;
            while empty < 20 {
                let rows = retry::on_contention(|| driver.claim(&client, 5, &me, LONG)).await.unwrap();
                empty = if rows.is_empty() { empty + 1 } else { 0 };
                mine.extend(ids(&rows));
                tokio::task::yield_now().await;
            }
            mine
        }));
    }
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.unwrap());
    }
    all.sort_unstable();
    assert_eq!(all, (1..=ROWS).collect::<Vec<_>>());
}

pub async fn it_works_through_pgbouncer_in_transaction_mode<D: Driver>() {
    const ROWS: i64 = 200;
    let case = Case::<D>::new(ROWS).await;
    let pooler = PgBouncer::start(Postgres::shared().await.unwrap(), 3).await.unwrap();
    let url = pooler.url_for(&case.url);
    let driver = Arc::new(D::open(&case.client, kit::table().build().unwrap()).await);
    let tasks: Vec<_> = (0..8).map(|i| tokio::spawn(drain(driver.clone(), url.clone(), i))).collect();
    let mut done = 0;
    for task in tasks {
        done += task.await.unwrap();
    }
    assert_eq!(done as i64, ROWS);
    let confirmed = "SELECT count(*) FROM app.payments WHERE status = 'confirmed'";
    assert_eq!(case.one::<i64>(confirmed, &[]).await, ROWS);
}

/// Through the pooler nothing may be prepared by name: PgBouncer 1.18 would not find it again.
async fn drain<D: Driver>(driver: Arc<D>, url: String, worker: usize) -> usize {
    let client = connect(&url).await;
    let me = format!("w{worker}");
    let mut done = 0;
    let mut empty = 0;
    while empty < 20 {
        let rows = driver.claim(&client, 9, &me, LONG).await.unwrap();
        empty = if rows.is_empty() { empty + 1 } else { 0 };
        let extended = driver.extend(&client, &proofs(&rows), LONG).await.unwrap();
        assert!(extended.iter().all(ClaimOutcome::is_done));
        let set = |row: &Claimed| Transition::new(&row.proof, "pending", "confirmed").set("note", "x");
        let all: Vec<_> = rows.iter().map(set).collect();
        client.batch_execute("BEGIN").await.unwrap();
        done += driver.complete(&client, &all).await.unwrap().iter().filter(|o| o.is_done()).count();
        client.batch_execute("COMMIT").await.unwrap();
    }
    done
}

/// A worker sleeps past its lease; the row is claimed again by a restarted worker of the same name (a host name and a
/// pid, in a container, are often the same); then the sleeper wakes up and writes what it saw long ago.
pub async fn a_slow_worker_overwrites_nothing<D: Driver>() {
    let case = Case::<D>::new(2).await;
    let sleeper = case.claim(2, "host-1").await;
    case.run_out().await;
    let successor = case.claim_when_there(1, "host-1").await.remove(0);
    let stale = |row: usize| Transition::new(&sleeper[row].proof, "pending", "expired");
    let taken = LossReason::Taken { owner: Some("host-1".into()), epoch: 2 };
    assert_eq!(case.complete(stale(0)).await, ClaimOutcome::Lost { why: taken });
    assert_eq!(case.complete(stale(1)).await, ClaimOutcome::Lost { why: LossReason::Expired });
    let right = Transition::new(&successor.proof, "pending", "confirmed");
    assert_eq!(case.complete(right).await, ClaimOutcome::Done);
    assert_eq!((case.state(1).await.as_str(), case.state(2).await.as_str()), ("confirmed", "pending"));
}

/// The plan, by what PostgreSQL says about the statement as it is run.
async fn plans<D: Driver>(case: &Case<D>) -> Vec<String> {
    let (client, mut connection) = tokio_postgres::connect(&case.url, tokio_postgres::NoTls).await.unwrap();
    let (sender, mut receiver) = tokio::sync::mpsc::channel(256);
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let tokio_postgres::AsyncMessage::Notice(notice) = message {
                let _ = sender.try_send(notice.message().to_owned());
            }
        }
    });
    client
        .batch_execute(
            "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_level = 'notice'; \
             SET auto_explain.log_nested_statements = on",
        )
        .await
        .unwrap();
    for _ in 0..4 {
        case.driver.claim(&client, 10, "a", LONG).await.unwrap();
    }
    drop(client);
    let mut plans = Vec::new();
    while let Some(text) = receiver.recv().await {
        if text.contains("SKIP LOCKED") && text.contains("LockRows") {
            plans.push(text);
        }
    }
    plans
}

pub async fn the_plan_is_a_short_index_scan_whatever_the_statistics_say<D: Driver>() {
    for statistics in ["none", "of the empty table", "all done", "all open"] {
        let case = Case::<D>::new(0).await;
        case.client.batch_execute("ALTER TABLE app.payments SET (autovacuum_enabled = off)").await.unwrap();
        if statistics == "of the empty table" {
            case.client.batch_execute("ANALYZE app.payments").await.unwrap();
        }
        case.insert(1, 20_000).await;
        if statistics == "all done" {
            case.client
                .batch_execute("UPDATE app.payments SET status = 'confirmed'; ANALYZE app.payments; UPDATE app.payments SET status = 'pending'")
                .await
                .unwrap();
        } else if statistics == "all open" {
            case.client.batch_execute("ANALYZE app.payments").await.unwrap();
        }
        let plans = plans(&case).await;
        assert_eq!(plans.len(), 4, "{statistics}: {plans:?}");
        for plan in plans {
            let by_index = plan.contains("Index Scan using payments_claim_fresh")
                && plan.contains("Index Scan using payments_claim_due")
                && plan.contains("payments_pkey");
            assert!(by_index && !plan.contains("Seq Scan on payments"), "{statistics}:\n{plan}");
        }
    }
}

/// What a claim costs must not grow with what has been claimed before, while a reader pins a snapshot.
pub async fn dead_rows_under_a_pinned_snapshot_do_not_strangle_claims<D: Driver>() {
    const ROWS: i64 = 20_000;
    const BATCH: usize = 200;
    let case = Case::<D>::new(ROWS).await;
    let reader = connect(&case.url).await;
    reader
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM app.payments")
        .await
        .unwrap();
    let mut read_from_the_floor = Vec::new();
    for _ in 0..ROWS / BATCH as i64 {
        let before = index_reads(&case).await;
        let full_passes = case.driver.full_passes(&case.client).await;
        let rows = case.claim(BATCH, "a").await;
        assert_eq!(rows.len(), BATCH);
        let read = index_reads(&case).await - before;
        if case.driver.full_passes(&case.client).await == full_passes {
            read_from_the_floor.push(read);
        }
        let done = case.driver.complete(&case.client, &changes(&rows, "pending", "confirmed")).await.unwrap();
        assert!(done.iter().all(ClaimOutcome::is_done));
    }
    // Full passes read everything that is dead; the claims between them, up to the last, read their batch.
    assert!(!read_from_the_floor.is_empty());
    assert!(read_from_the_floor.iter().all(|read| *read <= 2 * BATCH as i64), "{read_from_the_floor:?}");
    reader.batch_execute("COMMIT").await.unwrap();
}

/// How many entries of the claim index have been read, as PostgreSQL counts them.
async fn index_reads<D>(case: &Case<D>) -> i64 {
    let _ = case.client.batch_execute("SELECT pg_stat_force_next_flush()").await;
    case.one("SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'payments_claim_fresh'", &[])
        .await
}
