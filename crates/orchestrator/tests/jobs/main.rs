//! Jobs on a real PostgreSQL: what is committed takes effect once, whoever crashes where.
#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

mod anew;
mod broker;
mod floors;
mod forwarded;
mod fuzz;
mod kit;
mod letters;
mod mail;
mod old;
mod payloads;
mod sending;
mod timing;

use std::collections::HashSet;

use kit::{GROUP, HOUR, Kit, PATIENCE, TOPIC, stage};
use serde_json::json;
use solehold_kafka::Message;
use solehold_orchestrator::{
    dispatch::Reports,
    model::{
        job::{JobState, StageState},
        task::{Report, ReportKind, TaskId},
    },
    store::{Prepared, Store},
};
use solehold_sql::partitions::Standing;
use solehold_testkit::wait_for;

#[tokio::test]
async fn a_thousand_commands_are_one_batch() {
    let kit = Kit::new().await;
    let tenure = kit.tenure(0).await;
    let messages: Vec<Message> =
        (0..1_000).map(|n| kit.command(&tenure, "CREATE", &format!("j{n}"))).collect();
    kit.take(&tenure, &messages).await;
    assert_eq!(
        (kit.count("jobs").await, kit.count("stages").await, kit.count("inbox").await),
        (1_000, 2_000, 1_000)
    );
    // All of them again, as after a rebalance: nothing happens.
    kit.take(&tenure, &messages).await;
    assert_eq!((kit.count("jobs").await, kit.count("inbox").await), (1_000, 1_000));
    assert!(kit.jobs.metrics.text().unwrap().contains("idempotency_hits_total 1000"));
    let attending = kit.attend(&tenure);
    kit.count_when("outbox", 0).await;
    let taken = kit.workers.taken();
    assert_eq!((taken.len(), taken.iter().collect::<HashSet<_>>().len()), (1_000, 1_000));
    // Every report arrives twice, and all of them at once.
    for stage in ["decode", "detect"] {
        let report = |n: u32| Report {
            id: TaskId { job: format!("j{}", n % 1_000), stage: stage.to_owned(), attempt: 1 },
            kind: ReportKind::Succeeded { result: json!(n) },
        };
        kit.jobs.mailbox().deliver((0..2_000).map(report).collect()).await.unwrap();
        kit.count_when("mailbox", 0).await;
    }
    kit.count_when("jobs WHERE state = 'succeeded'", 1_000).await;
    kit.count_when("outbox", 0).await;
    assert_eq!(kit.workers.taken().len(), 2_000);
    assert_eq!(kit.topics.revisions("j77"), [1, 2, 3, 4]);
    attending.leave().await;
}

#[tokio::test]
async fn a_crash_between_any_two_steps_loses_and_doubles_nothing() {
    let kit = Kit::new().await;
    let first = kit.tenure(0).await;
    let messages = [kit.command(&first, "CREATE", "a"), kit.command(&first, "CREATE", "b")];
    // Before the commit: nothing has happened, and the messages come again.
    assert_eq!(kit.handle(&first, &messages, true).await, Standing::Ours);
    for table in ["jobs", "stages", "inbox", "outbox", "pipelines"] {
        assert_eq!(kit.count(table).await, 0, "{table}");
    }
    let counted = || kit.jobs.metrics.text().unwrap();
    assert!(
        counted().contains("job_commands_total 0\n"),
        "what was rolled back does not count: {}",
        counted()
    );
    kit.take(&first, &messages).await;
    assert!(counted().contains("job_commands_total 2\n"), "{}", counted());
    // After the commit, before anything is sent: the next owner sends.
    let second = kit.restarted(|parts| parts);
    let tenure = second.tenure(0).await;
    assert_eq!(tenure.next_offset, 2);
    let attending = second.attend(&tenure);
    second.taken_when("a", "decode", 1).await;
    second.taken_when("b", "decode", 1).await;
    // After a report was kept, before it is taken: the next owner takes it.
    attending.kill();
    kit.succeed("a", "decode", 1).await;
    kit.succeed("a", "decode", 1).await;
    let third = second.restarted(|parts| parts);
    let tenure = third.tenure(0).await;
    let attending = third.attend(&tenure);
    third.taken_when("a", "detect", 1).await;
    // What was sent and not confirmed to the database is sent again, as the same attempt; there is no other.
    let took: HashSet<(String, u32)> = third.workers.took("a").into_iter().collect();
    assert_eq!(took, HashSet::from([("decode".to_owned(), 1), ("detect".to_owned(), 1)]));
    third.succeed("a", "detect", 1).await;
    third.state_when("a", JobState::Succeeded).await;
    attending.leave().await;
}

#[tokio::test]
async fn a_new_owner_goes_on_from_the_last_committed_stage_with_the_pipeline_of_the_job() {
    let kit = Kit::new().await;
    let tenure = kit.tenure(3).await;
    kit.take(&tenure, &[kit.command(&tenure, "CREATE", "a")]).await;
    let attending = kit.attend(&tenure);
    kit.taken_when("a", "decode", 1).await;
    kit.succeed("a", "decode", 1).await;
    kit.taken_when("a", "detect", 1).await;
    attending.kill();
    // Its successor has another configuration: that is for new jobs.
    let other = kit.restarted(|mut parts| {
        let stages = vec![stage("everything", &[])];
        parts.pipeline =
            std::sync::Arc::new(solehold_orchestrator::model::pipeline::Pipeline::new(stages).unwrap());
        parts
    });
    let tenure = other.tenure(3).await;
    let attending = other.attend(&tenure);
    other.succeed("a", "detect", 1).await;
    let job = other.state_when("a", JobState::Succeeded).await;
    assert_eq!(job.stages.len(), 2);
    let took: HashSet<(String, u32)> = other.workers.took("a").into_iter().collect();
    let once = HashSet::from([("decode".to_owned(), 1), ("detect".to_owned(), 1)]);
    assert_eq!(took, once, "resumed, not restarted");
    other.take(&tenure, &[other.command(&tenure, "CREATE", "b")]).await;
    other.taken_when("b", "everything", 1).await;
    attending.leave().await;
}

#[tokio::test]
async fn an_owner_that_was_succeeded_changes_nothing() {
    let kit = Kit::new().await;
    let old = kit.tenure(0).await;
    kit.take(&old, &[kit.command(&old, "CREATE", "a")]).await;
    let new = kit.tenure(0).await;
    assert!(new.epoch > old.epoch);
    for n in 0..20 {
        let late = kit.command(&old, "CREATE", &format!("late-{n}"));
        assert_eq!(kit.handle(&old, &[late], false).await, Standing::Fenced);
    }
    kit.succeed("a", "decode", 1).await;
    // It notices by itself, sends nothing, takes no mail and sweeps nothing.
    kit.attend(&old).ended().await;
    assert_eq!(kit.workers.taken(), []);
    assert_eq!((kit.count("jobs").await, kit.count("mailbox").await), (1, 1));
    assert_eq!(kit.job("a").await.stages[0].state, StageState::Queued);
    let attending = kit.attend(&new);
    kit.taken_when("a", "detect", 1).await;
    attending.leave().await;
}

#[tokio::test]
async fn what_waits_while_the_owner_changes_does_nothing() {
    let kit = Kit::with_retention(vec![stage("decode", &[])], HOUR, HOUR).await;
    let tenure = kit.tenure(0).await;
    let jobs = ["reported", "late", "old"].map(|job| kit.command(&tenure, "CREATE", job));
    kit.take(&tenure, &jobs).await;
    kit.succeed("reported", "decode", 1).await;
    kit.execute(
        "UPDATE orchestrator.stages SET deadline_ms = 1 WHERE job_id = 'late'; \
         UPDATE orchestrator.stages SET state = 'succeeded', deadline_ms = NULL WHERE job_id = 'old'; \
         UPDATE orchestrator.jobs SET state = 'succeeded', finished_ms = 1 WHERE job_id = 'old'",
    )
    .await;
    let outbox = kit.count("outbox").await;
    // Everything that there is to do comes as far as the lock of the partition's row.
    let mut client = kit.store().pool.get().await.unwrap();
    let tx = client.transaction().await.unwrap();
    tx.execute("SELECT FROM orchestrator.partitions FOR UPDATE", &[]).await.unwrap();
    let attending = kit.attend(&tenure);
    let waiting = "pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
    let look = async || kit.count_of(waiting).await == 5;
    wait_for("mail, sweep, old jobs, tasks and events to wait", PATIENCE, look).await.unwrap();
    tx.execute("UPDATE orchestrator.partitions SET epoch = epoch + 1", &[]).await.unwrap();
    tx.commit().await.unwrap();
    attending.ended().await;
    assert_eq!((kit.count("jobs").await, kit.count("mailbox").await), (3, 1));
    assert_eq!(kit.count("stages WHERE state = 'queued' AND attempt = 1").await, 2);
    assert_eq!(kit.count("outbox").await, outbox);
}

#[tokio::test]
async fn only_the_first_result_of_the_present_attempt_counts() {
    let kit = Kit::new().await;
    let tenure = kit.tenure(0).await;
    kit.take(&tenure, &[kit.command(&tenure, "CREATE", "a")]).await;
    let attending = kit.attend(&tenure);
    kit.taken_when("a", "decode", 1).await;
    // What PostgreSQL cannot keep is dropped, and keeps nothing back that comes with it.
    let long = "s".repeat(3_000);
    let tasks = [("a\0", "decode"), ("a", &long), ("a", "decode")];
    let tasks = tasks.map(|(job, stage)| TaskId { job: job.to_owned(), stage: stage.to_owned(), attempt: 1 });
    let reports = tasks.map(|id| Report { id, kind: ReportKind::Started });
    kit.jobs.mailbox().deliver(reports.into()).await.unwrap();
    kit.job_when("a", |job| job.stages[0].state == StageState::Running).await;
    kit.report("a", "decode", 1, ReportKind::Failed { reason: "no GPU".to_owned() }).await;
    kit.taken_when("a", "decode", 2).await;
    // The old attempt's worker was only slow.
    kit.report("a", "decode", 1, ReportKind::Succeeded { result: json!("old") }).await;
    kit.count_when("mailbox", 0).await;
    assert_eq!(kit.job("a").await.stages[0].attempt, 2);
    kit.report("a", "decode", 2, ReportKind::Progress { fraction: 0.4 }).await;
    kit.job_when("a", |job| job.stages[0].progress == 0.4).await;
    kit.report("a", "decode", 2, ReportKind::Succeeded { result: json!("first") }).await;
    kit.taken_when("a", "detect", 1).await;
    kit.report("a", "decode", 2, ReportKind::Succeeded { result: json!("second") }).await;
    kit.report("a", "decode", 2, ReportKind::Failed { reason: "late".to_owned() }).await;
    kit.count_when("mailbox", 0).await;
    let job = kit.job("a").await;
    assert_eq!((job.stages[0].result.as_deref(), job.state), (Some(&json!("first")), JobState::Running));
    // A task gets the results of the stages before its own.
    let input = kit.workers.taken.lock().unwrap().last().unwrap().input.clone();
    assert_eq!(input, json!({"input": {"video": "a"}, "results": {"decode": "first"}}));
    // Nobody knows this job: dropped, and no harm done.
    kit.succeed("nobody", "decode", 1).await;
    attending.leave().await;
}

#[tokio::test]
async fn events_and_tasks_of_a_job_are_in_order_under_concurrent_reports() {
    let stages = vec![stage("a", &[]), stage("b", &[]), stage("c", &[]), stage("d", &["a", "b", "c"])];
    let kit = Kit::with(stages).await;
    let tenure = kit.tenure(0).await;
    let jobs: Vec<String> = (0..30).map(|n| format!("j{n}")).collect();
    let creates: Vec<Message> = jobs.iter().map(|job| kit.command(&tenure, "CREATE", job)).collect();
    kit.take(&tenure, &creates).await;
    let attending = kit.attend(&tenure);
    let report = async |job: &str, stage: &str| {
        for fraction in [0.2, 0.5, 0.7] {
            kit.report(job, stage, 1, ReportKind::Progress { fraction }).await;
        }
        kit.succeed(job, stage, 1).await;
    };
    let report = &report;
    let all = futures_util::future::join_all;
    let reports = jobs.iter().flat_map(|job| ["a", "b", "c"].map(|stage| report(job, stage)));
    all(reports).await;
    for job in &jobs {
        kit.taken_when(job, "d", 1).await;
        kit.succeed(job, "d", 1).await;
        kit.state_when(job, JobState::Succeeded).await;
    }
    kit.count_when("outbox", 0).await;
    for job in &jobs {
        let revisions = kit.topics.revisions(job);
        let expected: Vec<i64> = (1..=i64::try_from(revisions.len()).unwrap()).collect();
        assert_eq!(revisions, expected, "the events of {job}");
        assert_eq!(kit.workers.took(job).len(), 4);
    }
    attending.leave().await;
}

#[tokio::test]
async fn a_schema_belongs_to_one_group_and_topic() {
    let kit = Kit::new().await;
    let again = Store::new(kit.store().pool.clone(), "orchestrator").unwrap();
    // What came later is made in a schema that was there before.
    kit.execute("DROP INDEX orchestrator.jobs_finished").await;
    assert_eq!(again.prepare(GROUP, TOPIC).await.unwrap(), Prepared::Ready);
    assert_eq!(kit.count_of("pg_indexes WHERE indexname = 'jobs_finished'").await, 1);
    let in_use = Prepared::InUse { group: GROUP.to_owned(), topic: TOPIC.to_owned() };
    assert_eq!(again.prepare(GROUP, "other").await.unwrap(), in_use);
}

#[tokio::test]
async fn a_command_that_comes_by_another_partition_reaches_the_owner_of_its_job() {
    let kit = Kit::new().await;
    let old = kit.tenure(0).await;
    let new = kit.tenure(7).await;
    kit.take(&old, &[kit.command(&old, "CREATE", "a")]).await;
    // The topic has more partitions now, and the key belongs to another.
    kit.take(&new, &[kit.command(&new, "CANCEL", "a")]).await;
    assert_eq!(kit.job("a").await.state, JobState::Running);
    let attending = kit.attend(&old);
    kit.state_when("a", JobState::Cancelled).await;
    attending.leave().await;
}
