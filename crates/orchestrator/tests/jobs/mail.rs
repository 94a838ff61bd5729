//! Mail to jobs: many write it at once, one owner takes it, and one entry that is too large stops nobody.

use serde_json::json;
use solehold_kafka::Message;
use solehold_orchestrator::{
    dispatch::Reports as _,
    model::{
        job::{JobState, StageState},
        limits::{REASON_BYTES_MAX, RESULT_BYTES_MAX},
        task::{Report, ReportKind, TaskId},
    },
};
use solehold_testkit::wait_for;

use crate::kit::{Kit, PATIENCE, stage};

fn progress(job: &str, fraction: f64) -> Report {
    let id = TaskId { job: job.to_owned(), stage: "decode".to_owned(), attempt: 1 };
    Report { id, kind: ReportKind::Progress { fraction } }
}

async fn deadlocks(kit: &Kit) -> i64 {
    let client = kit.store().pool.get().await.unwrap();
    let sql = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    client.query_one(sql, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_delivery_of_progress_and_the_owner_lock_rows_in_one_order() {
    let kit = Kit::new().await;
    let tenure = kit.tenure(0).await;
    kit.take(&tenure, &["a", "z"].map(|job| kit.command(&tenure, "CREATE", job))).await;
    // In the mailbox, z comes before a.
    for job in ["z", "a"] {
        kit.jobs.mailbox().deliver(vec![progress(job, 0.1)]).await.unwrap();
    }
    let mut client = kit.store().pool.get().await.unwrap();
    let tx = client.transaction().await.unwrap();
    tx.execute("SELECT FROM orchestrator.mailbox WHERE subject = 'a' FOR UPDATE", &[]).await.unwrap();
    // First in line for a: a delivery. Behind it: the owner, who has read both.
    let mailbox = kit.jobs.mailbox().clone();
    let delivery =
        tokio::spawn(async move { mailbox.deliver(vec![progress("a", 0.5), progress("z", 0.5)]).await });
    let waits = "pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
    wait_for("the delivery to wait", PATIENCE, async || kit.count_of(waits).await == 1).await.unwrap();
    let attending = kit.attend(&tenure);
    let behind = "pg_locks WHERE NOT granted AND relation = 'orchestrator.mailbox'::regclass";
    wait_for("the owner to wait", PATIENCE, async || kit.count_of(behind).await == 1).await.unwrap();
    tx.commit().await.unwrap();
    delivery.await.unwrap().unwrap();
    for job in ["a", "z"] {
        kit.job_when(job, |job| job.stages[0].progress == 0.5).await;
    }
    kit.count_when("mailbox", 0).await;
    attending.leave().await;
    assert_eq!(deadlocks(&kit).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_workers_that_report_progress_of_the_same_jobs_meet_no_deadlock() {
    const ROUNDS: u32 = 150;
    let kit = Kit::new().await;
    let tenure = kit.tenure(0).await;
    let jobs: Vec<String> = (0..50).map(|n| format!("j{}", n * 7 % 50)).collect();
    let creates: Vec<Message> = jobs.iter().map(|job| kit.command(&tenure, "CREATE", job)).collect();
    kit.take(&tenure, &creates).await;
    let attending = kit.attend(&tenure);
    let worker = |shift: usize| {
        let mailbox = kit.jobs.mailbox().clone();
        let mut jobs = jobs.clone();
        tokio::spawn(async move {
            for round in 1..=ROUNDS {
                jobs.rotate_left(shift);
                let fraction = f64::from(round) / f64::from(ROUNDS);
                mailbox.deliver(jobs.iter().map(|job| progress(job, fraction)).collect()).await.unwrap();
            }
        })
    };
    for worker in [worker(3), worker(11)] {
        worker.await.unwrap();
    }
    for job in &jobs {
        kit.job_when(job, |job| job.stages[0].progress == 1.0).await;
    }
    attending.leave().await;
    assert_eq!(deadlocks(&kit).await, 0);
}

#[tokio::test]
async fn a_report_that_is_too_large_fails_its_attempt_and_stops_no_other() {
    let mut plan = stage("decode", &[]);
    plan.retries = 0;
    let kit = Kit::with(vec![plan]).await;
    let tenure = kit.tenure(0).await;
    kit.take(&tenure, &["large", "long", "good"].map(|job| kit.command(&tenure, "CREATE", job))).await;
    let report = |job: &str, kind: ReportKind| Report {
        id: TaskId { job: job.to_owned(), stage: "decode".to_owned(), attempt: 1 },
        kind,
    };
    let reports = vec![
        report("large", ReportKind::Succeeded { result: json!("x".repeat(3 * 1024 * 1024)) }),
        report("long", ReportKind::Failed { reason: "no GPU ".repeat(500_000) }),
        report("good", ReportKind::Succeeded { result: json!("x".repeat(RESULT_BYTES_MAX - 2)) }),
    ];
    kit.jobs.mailbox().deliver(reports).await.unwrap();
    // Before the owner has seen any of it.
    let large = RESULT_BYTES_MAX + 1_000;
    assert_eq!(kit.count(&format!("mailbox WHERE octet_length(body::text) > {large}")).await, 0);
    let short =
        format!("mailbox WHERE subject = 'long' AND octet_length(body::text) < {}", 2 * REASON_BYTES_MAX);
    assert_eq!((kit.count("mailbox").await, kit.count(&short).await), (3, 1));
    let attending = kit.attend(&tenure);
    let large = kit.state_when("large", JobState::Failed).await.reason.unwrap();
    assert!(large.contains("the result has 3145730 bytes, more than 262144"), "{large}");
    let long = kit.state_when("long", JobState::Failed).await.reason.unwrap();
    assert!(long.starts_with("stage decode: no GPU ") && long.ends_with("..."), "{long}");
    assert_eq!(kit.state_when("good", JobState::Succeeded).await.stages[0].state, StageState::Succeeded);
    attending.leave().await;
}
