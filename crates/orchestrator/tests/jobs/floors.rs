//! Rows that are dead and cannot be removed yet, because someone keeps an old snapshot, do not slow down what follows.

use solehold_orchestrator::model::{job::JobState, task::ReportKind};

use crate::kit::{Kit, PATIENCE};

/// Rows that were taken before it is measured.
const DEAD: i64 = 20_000;

/// How many scans of an index there were so far, and how many entries they went over, dead ones too.
async fn scanned(kit: &Kit, index: &str) -> (i64, i64) {
    let client = kit.store().pool.get().await.unwrap();
    let sql = "SELECT idx_scan, idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = $1";
    let row = client.query_one(sql, &[&index]).await.unwrap();
    (row.get(0), row.get(1))
}

/// Waits until at least 40 scans went over few entries each, while `again` makes the owner read.
async fn few_entries(kit: &Kit, index: &str, mut again: impl AsyncFnMut(i64)) {
    let mut since = scanned(kit, index).await;
    let mut round = 0;
    let mut worst = 0;
    let until = tokio::time::Instant::now() + PATIENCE;
    while tokio::time::Instant::now() < until {
        round += 1;
        again(round).await;
        let now = scanned(kit, index).await;
        let scans = now.0 - since.0;
        let entries = now.1 - since.1;
        if scans >= 40 {
            if entries / scans < DEAD / 10 {
                println!("{scans} scans of {index} went over {} entries each", entries / scans);
                return;
            }
            (since, worst) = (now, worst.max(entries / scans));
        }
    }
    panic!("a scan of {index} went over {worst} entries, of which {DEAD} are dead");
}

/// Someone who keeps a snapshot: nothing that dies from now on can be removed.
async fn pin(kit: &Kit) -> deadpool_postgres::Object {
    let pinned = kit.store().pool.get().await.unwrap();
    pinned
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM orchestrator.jobs")
        .await
        .unwrap();
    pinned
}

#[tokio::test]
async fn mail_is_read_above_dead_rows_and_mail_that_commits_late_is_found() {
    let kit = Kit::new().await;
    let tenure = kit.tenure(0).await;
    kit.take(&tenure, &["a", "late"].map(|job| kit.command(&tenure, "CREATE", job))).await;
    let _pinned = pin(&kit).await;
    let mut late = kit.store().pool.get().await.unwrap();
    let late = late.transaction().await.unwrap();
    let insert = "INSERT INTO orchestrator.mailbox (partition, subject, name, body) VALUES (0, 'late', 'cancel', \
                  '{\"mail\": \"cancel\"}')";
    late.execute(insert, &[]).await.unwrap();
    kit.execute(&format!(
        "INSERT INTO orchestrator.mailbox (partition, subject, name, body) \
         SELECT 0, 'nobody-' || n, 'cancel', '{{\"mail\": \"cancel\"}}' FROM generate_series(1, {DEAD}) AS n"
    ))
    .await;
    let attending = kit.attend(&tenure);
    kit.count_when("mailbox", 0).await;
    few_entries(&kit, "mailbox_arrival", async |round| {
        let fraction = round as f64 / 1e6;
        kit.report("a", "decode", 1, ReportKind::Progress { fraction }).await;
        kit.count_when("mailbox", 0).await;
    })
    .await;
    late.commit().await.unwrap();
    kit.state_when("late", JobState::Cancelled).await;
    attending.leave().await;
}

#[tokio::test]
async fn the_outbox_is_read_above_dead_rows() {
    let kit = Kit::new().await;
    let tenure = kit.tenure(0).await;
    let _pinned = pin(&kit).await;
    kit.execute(&format!(
        "INSERT INTO orchestrator.outbox (partition, channel, sequence, job_id, kind, stage, attempt) \
         SELECT 0, 'celery', n, 'nobody-' || n, 'send', 'decode', 1 FROM generate_series(1, {DEAD}) AS n; \
         UPDATE orchestrator.partitions SET next_sequence = {DEAD} + 1"
    ))
    .await;
    let attending = kit.attend(&tenure);
    kit.count_when("outbox", 0).await;
    few_entries(&kit, "outbox_pkey", async |round| {
        let job = format!("j{round}");
        kit.take(&tenure, &[kit.command(&tenure, "CREATE", &job)]).await;
        kit.taken_when(&job, "decode", 1).await;
    })
    .await;
    // A database that was set back to an earlier state draws numbers again; what has them is found below the floor.
    kit.execute("UPDATE orchestrator.partitions SET next_sequence = 1").await;
    kit.take(&tenure, &[kit.command(&tenure, "CREATE", "again")]).await;
    kit.taken_when("again", "decode", 1).await;
    kit.count_when("outbox", 0).await;
    attending.leave().await;
}
