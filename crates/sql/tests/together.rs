//! Many workers, transactions, isolation levels, a pooler, and hand-written SQL beside ours.
#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

mod kit;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use kit::{Kit, LONG, PATIENCE, connect, ids, int, owner};
use solehold_sql::{ClaimOutcome, Claims, Error, LossReason, Transition, limits, retry};
use solehold_testkit::{PgBouncer, Postgres, wait_for};
use tokio_postgres::{Client, IsolationLevel};

/// Records each take-over of a lease that had not run out: there must be none.
const AUDIT: &str = "CREATE TABLE app.stolen (id bigint, old text, new text); \
    CREATE FUNCTION app.audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
      IF OLD.lease_until > clock_timestamp() AND NEW.lease_owner IS NOT NULL AND NEW.lease_epoch <> OLD.lease_epoch \
      THEN INSERT INTO app.stolen VALUES (OLD.id, OLD.lease_owner, NEW.lease_owner); END IF; RETURN NEW; END $$; \
    CREATE TRIGGER audit BEFORE UPDATE ON app.payments FOR EACH ROW EXECUTE FUNCTION app.audit()";

/// Claims and confirms until nothing is open; now and then the lease runs out before the work is done.
async fn work(claims: Arc<Claims>, url: String, worker: String) -> (usize, usize) {
    let client = connect(&url).await;
    let me = owner(&worker);
    let mut done = 0;
    let mut lost = 0;
    let mut turn = 0;
    loop {
        turn += 1;
        // The first turn, too: all of a worker's first claims run out in its hands.
        let slow = turn % 5 == 1;
        let lease = if slow { limits::LEASE_MIN } else { LONG };
        let rows = claims.claim(&client, 7, &me, lease).await.unwrap();
        if slow && let Some(row) = rows.first() {
            let sql =
                "SELECT lease_owner = $2 AND lease_until > clock_timestamp() FROM app.payments WHERE id = $1";
            let id = int(row.id());
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
        let changes: Vec<_> =
            rows.iter().map(|row| Transition::new(&row.proof, "pending", "confirmed")).collect();
        let done_now = in_transaction(&claims, &client, &changes).await;
        done += done_now;
        lost += changes.len() - done_now;
        let open = "SELECT EXISTS (SELECT FROM app.payments WHERE status = 'pending')";
        if !client.query_one(open, &[]).await.unwrap().get::<_, bool>(0) {
            return (done, lost);
        }
    }
}

/// The change and its outbox rows commit together.
async fn in_transaction(claims: &Claims, client: &Client, changes: &[Transition]) -> usize {
    client.batch_execute("BEGIN").await.unwrap();
    let outcomes = claims.transition_all(client, changes).await.unwrap();
    let mut done = 0;
    for (change, outcome) in changes.iter().zip(outcomes) {
        if outcome.is_done() {
            done += 1;
            let sql = "INSERT INTO app.outbox (payment, epoch) VALUES ($1, $2)";
            client.execute(sql, &[&int(&change.proof().id), &change.proof().epoch]).await.unwrap();
        }
    }
    client.batch_execute("COMMIT").await.unwrap();
    done
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_workers_never_hold_a_row_together_and_do_each_once() {
    const ROWS: i64 = 600;
    let kit = Kit::new(ROWS).await;
    kit.client.batch_execute(AUDIT).await.unwrap();
    // Two processes' worth of floors.
    let groups = [0, 1].map(|_| Arc::new(Claims::new(kit::table().build().unwrap())));
    let workers: Vec<_> = (0..12)
        .map(|i| tokio::spawn(work(groups[i % 2].clone(), kit.url.clone(), format!("worker-{i}"))))
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
        kit.one::<i64>("SELECT count(*) FROM app.outbox WHERE epoch > 1", &[]).await > 0,
        "what one worker lost another has done"
    );
    assert_eq!(kit.one::<i64>("SELECT count(*) FROM app.stolen", &[]).await, 0);
    assert_eq!(kit.one::<i64>("SELECT count(DISTINCT payment) FROM app.outbox", &[]).await, ROWS);
    assert_eq!(kit.one::<i64>("SELECT count(*) FROM app.outbox", &[]).await, ROWS);
}

#[tokio::test]
async fn in_a_transaction_all_of_it_commits_or_none() {
    let mut kit = Kit::new(4).await;
    let tx = kit.client.transaction().await.unwrap();
    let rows = kit.claims.claim(&tx, 2, &owner("a"), LONG).await.unwrap();
    let changes: Vec<_> =
        rows.iter().map(|row| Transition::new(&row.proof, "pending", "confirmed")).collect();
    assert_eq!(
        kit.claims.transition_all(&tx, &changes).await.unwrap(),
        [ClaimOutcome::Done, ClaimOutcome::Done]
    );
    tx.execute("INSERT INTO app.outbox (payment, epoch) VALUES (1, 1)", &[]).await.unwrap();
    // Others do not wait for what is locked, and get what comes next.
    let other = connect(&kit.url).await;
    assert_eq!(ids(&kit.claims.claim(&other, 2, &owner("b"), LONG).await.unwrap()), [3, 4]);
    tx.rollback().await.unwrap();
    assert_eq!(kit.one::<i64>("SELECT count(*) FROM app.outbox", &[]).await, 0);
    assert_eq!(kit.state(1).await, "pending");
    let mut back = ids(&kit.claim_when_there(2, "c").await);
    back.sort_unstable();
    assert_eq!(back, [1, 2]);
    let epochs = "SELECT count(*) FROM app.payments WHERE lease_epoch = 1";
    assert_eq!(kit.one::<i64>(epochs, &[]).await, 4, "what was rolled back has left no trace");
}

/// A whole transaction that fails to serialize is run again, by the crate's own retry.
#[tokio::test]
async fn serialization_failures_are_retried() {
    let kit = Kit::new(2).await;
    let row = kit.claim(1, "a").await.remove(0);
    let meddler = connect(&kit.url).await;
    let tries = AtomicUsize::new(0);
    let attempt = || async {
        let mut client = connect(&kit.url).await;
        let tx =
            client.build_transaction().isolation_level(IsolationLevel::Serializable).start().await.unwrap();
        let _: i64 = tx.query_one("SELECT count(*) FROM app.payments", &[]).await.unwrap().get(0);
        if tries.fetch_add(1, Ordering::SeqCst) == 0 {
            meddler.batch_execute("UPDATE app.payments SET note = 'meddled'").await.unwrap();
        }
        let outcome = kit.claims.transition(&tx, Transition::new(&row.proof, "pending", "confirmed")).await?;
        tx.commit().await.unwrap();
        Ok(outcome)
    };
    assert_eq!(retry::on_contention(attempt).await.unwrap(), ClaimOutcome::Done);
    assert_eq!(tries.into_inner(), 2, "the first was in someone's way");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn claims_work_where_everything_is_serializable() {
    const ROWS: i64 = 200;
    let kit = Kit::new(ROWS).await;
    let tasks: Vec<_> = (0..4)
        .map(|i| {
            let url = kit.url.clone();
            let claims = Claims::new(kit::table().build().unwrap());
            tokio::spawn(async move {
                let client = connect(&url).await;
                client.batch_execute("SET default_transaction_isolation = 'serializable'").await.unwrap();
                let me = owner(&format!("w{i}"));
                let mut mine = Vec::new();
                let mut empty = 0;
                while empty < 20 {
                    let rows = retry::on_contention(|| claims.claim(&client, 5, &me, LONG)).await.unwrap();
                    empty = if rows.is_empty() { empty + 1 } else { 0 };
                    mine.extend(ids(&rows));
                    tokio::task::yield_now().await;
                }
                mine
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.unwrap());
    }
    all.sort_unstable();
    assert_eq!(all, (1..=ROWS).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn it_works_through_pgbouncer_in_transaction_mode() {
    const ROWS: i64 = 200;
    let kit = Kit::new(ROWS).await;
    let pooler = PgBouncer::start(Postgres::shared().await.unwrap(), 3).await.unwrap();
    let url = pooler.url_for(&kit.url);
    let claims = Arc::new(Claims::new(kit::table().build().unwrap()));
    let tasks: Vec<_> = (0..8).map(|i| tokio::spawn(drain(claims.clone(), url.clone(), i))).collect();
    let mut done = 0;
    for task in tasks {
        done += task.await.unwrap();
    }
    assert_eq!(done as i64, ROWS);
    assert_eq!(
        kit.one::<i64>("SELECT count(*) FROM app.payments WHERE status = 'confirmed'", &[]).await,
        ROWS
    );
}

/// Through the pooler nothing may be prepared by name: PgBouncer 1.18 would not find it again.
async fn drain(claims: Arc<Claims>, url: String, worker: usize) -> usize {
    let mut client = connect(&url).await;
    let me = owner(&format!("w{worker}"));
    let mut done = 0;
    let mut empty = 0;
    while empty < 20 {
        let rows = claims.claim(&client, 9, &me, LONG).await.unwrap();
        empty = if rows.is_empty() { empty + 1 } else { 0 };
        let proofs: Vec<_> = rows.iter().map(|row| row.proof.clone()).collect();
        assert!(claims.extend(&client, &proofs, LONG).await.unwrap().iter().all(ClaimOutcome::is_done));
        let tx = client.transaction().await.unwrap();
        let changes: Vec<_> = rows
            .iter()
            .map(|row| Transition::new(&row.proof, "pending", "confirmed").set("note", "x"))
            .collect();
        done += claims.transition_all(&tx, &changes).await.unwrap().iter().filter(|o| o.is_done()).count();
        tx.commit().await.unwrap();
    }
    done
}

/// A claim and a transition as they are often written: the guard is the owner's name, and the time comes from
/// the application.
mod hand_written {
    use super::*;

    pub async fn claim(client: &Client, now: SystemTime, worker: &str, lease: Duration) -> Vec<i64> {
        let sql = "WITH open AS (SELECT id FROM app.payments WHERE status IN ('pending', 'detected') \
              AND (lease_until IS NULL OR lease_until <= $1) ORDER BY created_at, id LIMIT 10 FOR UPDATE SKIP LOCKED) \
            UPDATE app.payments p SET lease_owner = $2, lease_until = $3 FROM open WHERE p.id = open.id RETURNING p.id";
        let rows = client.query(sql, &[&now, &worker, &(now + lease)]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    pub async fn transition(client: &Client, id: i64, worker: &str, from: &str, to: &str) -> u64 {
        let sql = "UPDATE app.payments SET status = $4, lease_owner = NULL, lease_until = NULL \
            WHERE id = $1 AND lease_owner = $2 AND status = $3";
        client.execute(sql, &[&id, &worker, &from, &to]).await.unwrap()
    }
}

/// A worker claims a row, sleeps past its lease; the row is claimed again, by a restarted worker of the same name (a
/// host name and a pid, in a container, are often the same), which sees the payment; then the sleeper wakes up and
/// writes what it saw long ago.
#[tokio::test]
async fn a_slow_worker_overwrites_by_hand_written_sql_and_not_by_ours() {
    let kit = Kit::new(2).await;
    let now = SystemTime::now();
    let lease = Duration::from_secs(30);
    assert_eq!(hand_written::claim(&kit.client, now, "host-1", lease).await, [1, 2]);
    let later = now + lease * 2;
    assert_eq!(hand_written::claim(&kit.client, later, "host-1", lease).await, [1, 2]);
    // The sleeper's stale verdict goes through, under its successor's lease.
    assert_eq!(hand_written::transition(&kit.client, 1, "host-1", "pending", "expired").await, 1);
    assert_eq!(hand_written::transition(&kit.client, 1, "host-1", "pending", "confirmed").await, 0);
    assert_eq!(kit.state(1).await, "expired", "the money came, and the payment is expired");
    // Nor does hand-written SQL notice that a lease has run out.
    kit.run_out().await;
    assert_eq!(hand_written::transition(&kit.client, 2, "host-1", "pending", "expired").await, 1);

    let ours = Kit::new(2).await;
    let sleeper = ours.claim(2, "host-1").await;
    ours.run_out().await;
    let successor = ours.claim_when_there(1, "host-1").await.remove(0);
    let stale = |row: usize| Transition::new(&sleeper[row].proof, "pending", "expired");
    let refused = ours.claims.transition(&ours.client, stale(0)).await.unwrap();
    assert_eq!(
        refused,
        ClaimOutcome::Lost { why: LossReason::Taken { owner: Some("host-1".into()), epoch: 2 } }
    );
    let expired = ours.claims.transition(&ours.client, stale(1)).await.unwrap();
    assert_eq!(expired, ClaimOutcome::Lost { why: LossReason::Expired });
    let right = Transition::new(&successor.proof, "pending", "confirmed");
    assert_eq!(ours.claims.transition(&ours.client, right).await.unwrap(), ClaimOutcome::Done);
    assert_eq!((ours.state(1).await.as_str(), ours.state(2).await.as_str()), ("confirmed", "pending"));
}

/// An application whose clock is an hour ahead takes everybody's claims by hand-written SQL. Ours asks only the
/// database.
#[tokio::test]
async fn the_applications_clock_decides_nothing() {
    let kit = Kit::new(1).await;
    let now = SystemTime::now();
    assert_eq!(hand_written::claim(&kit.client, now, "a", Duration::from_secs(30)).await, [1]);
    let ahead = now + Duration::from_secs(3600);
    assert_eq!(
        hand_written::claim(&kit.client, ahead, "b", Duration::from_secs(30)).await,
        [1],
        "stolen from a"
    );
    let ours = Kit::new(1).await;
    assert_eq!(ids(&ours.claim(1, "a").await), [1]);
    assert_eq!(ids(&ours.claim(1, "b").await), [0; 0]);
}

/// The plan, by what PostgreSQL says about the statement as it is sent.
async fn plans(kit: &Kit) -> Vec<String> {
    let (client, mut connection) = tokio_postgres::connect(&kit.url, tokio_postgres::NoTls).await.unwrap();
    let (sender, mut receiver) = tokio::sync::mpsc::channel(64);
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let tokio_postgres::AsyncMessage::Notice(notice) = message {
                let _ = sender.try_send(notice.message().to_owned());
            }
        }
    });
    client
        .batch_execute("LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_level = 'notice'")
        .await
        .unwrap();
    for _ in 0..4 {
        kit.claims.claim(&client, 10, &owner("a"), LONG).await.unwrap();
    }
    drop(client);
    let mut plans = Vec::new();
    while let Some(text) = receiver.recv().await {
        if text.contains("SKIP LOCKED") {
            plans.push(text);
        }
    }
    plans
}

#[tokio::test]
async fn the_plan_is_a_short_index_scan_whatever_the_statistics_say() {
    for statistics in ["none", "of the empty table", "all done", "all open"] {
        let kit = Kit::new(0).await;
        kit.client.batch_execute("ALTER TABLE app.payments SET (autovacuum_enabled = off)").await.unwrap();
        if statistics == "of the empty table" {
            kit.client.batch_execute("ANALYZE app.payments").await.unwrap();
        }
        kit.insert(1, 20_000).await;
        if statistics == "all done" {
            kit.client
                .batch_execute("UPDATE app.payments SET status = 'confirmed'; ANALYZE app.payments; UPDATE app.payments SET status = 'pending'")
                .await
                .unwrap();
        } else if statistics == "all open" {
            kit.client.batch_execute("ANALYZE app.payments").await.unwrap();
        }
        let plans = plans(&kit).await;
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
#[tokio::test]
async fn dead_rows_under_a_pinned_snapshot_do_not_strangle_claims() {
    const ROWS: i64 = 20_000;
    const BATCH: usize = 200;
    let kit = Kit::new(ROWS).await;
    let reader = connect(&kit.url).await;
    reader
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM app.payments")
        .await
        .unwrap();
    let mut read_from_the_floor = Vec::new();
    for _ in 0..ROWS / BATCH as i64 {
        let before = index_reads(&kit).await;
        let full_passes = kit.claims.full_passes();
        let rows = kit.claim(BATCH, "a").await;
        assert_eq!(rows.len(), BATCH);
        let read = index_reads(&kit).await - before;
        if kit.claims.full_passes() == full_passes {
            read_from_the_floor.push(read);
        }
        let changes: Vec<_> =
            rows.iter().map(|row| Transition::new(&row.proof, "pending", "confirmed")).collect();
        assert!(
            kit.claims.transition_all(&kit.client, &changes).await.unwrap().iter().all(ClaimOutcome::is_done)
        );
    }
    // Full passes read everything that is dead; the claims between them, up to the last, read their batch.
    assert!(!read_from_the_floor.is_empty());
    assert!(read_from_the_floor.iter().all(|read| *read <= 2 * BATCH as i64), "{read_from_the_floor:?}");
    reader.batch_execute("COMMIT").await.unwrap();
}

/// How many entries of the claim index have been read, as PostgreSQL counts them.
async fn index_reads(kit: &Kit) -> i64 {
    let sql = "SELECT pg_stat_force_next_flush(); ";
    let _ = kit.client.batch_execute(sql).await;
    kit.one("SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'payments_claim_fresh'", &[])
        .await
}

#[tokio::test]
async fn a_claim_is_not_lost_to_a_worker_that_fails_half_way() {
    let kit = Kit::new(1).await;
    let result: Result<(), Error> = async {
        let mut client = connect(&kit.url).await;
        let tx = client.transaction().await?;
        kit.claims.claim(tx.client(), 1, &owner("a"), LONG).await?;
        Err(Error::Effect("it fails".into()))
    }
    .await;
    assert!(result.is_err());
    assert_eq!(ids(&kit.claim_when_there(1, "b").await), [1]);
}
