//! Commands that come by another partition than that of their job, and mail that has no effect.

use serde_json::{Value, json};
use solehold_kafka::Message;
use solehold_orchestrator::{
    model::{job::JobState, task::ReportKind},
    store::{DeadLetterState, MailBody},
};
use solehold_sql::partitions::Tenure;
use solehold_testkit::wait_for;

use crate::{
    kit::{Kit, PATIENCE},
    letters::{ask_of, letters},
};

fn command(kit: &Kit, tenure: &Tenure, kind: &str, job: &str, of: &str) -> Message {
    let payload =
        json!({"job_id": job, "organization_id": of, "match_id": "m", "type": kind, "command_id": "1"});
    kit.message(tenure, &format!("{of}:m"), payload)
}

/// What an owner reads while nobody else may change it.
async fn deliver(kit: &Kit, partition: i32, job: &str, name: &str, body: Value) {
    kit.execute(&format!(
        "INSERT INTO orchestrator.mailbox (partition, subject, name, body) VALUES ({partition}, '{job}', '{name}', '{body}')"
    ))
    .await;
}

#[tokio::test]
async fn a_command_of_another_organization_is_not_forwarded() {
    let kit = Kit::new().await;
    let home = kit.tenure(0).await;
    let other = kit.tenure(1).await;
    kit.take(&home, &[command(&kit, &home, "CREATE", "a", "acme")]).await;
    kit.take(&other, &[command(&kit, &other, "CANCEL", "a", "mallory")]).await;
    assert_eq!(kit.count("mailbox").await, 0, "it was forwarded");
    let found = letters(&kit).await;
    assert_eq!((found[0].id.partition, found[0].state), (1, DeadLetterState::Dead));
    assert_eq!(
        found[0].reason,
        "job a has match_id m and organization_id acme, and this command match_id m and organization_id mallory"
    );
    assert_eq!(kit.job("a").await.state, JobState::Running);
    // One that another process had forwarded without comparing is compared when it is read.
    let forwarded = json!({"mail": "command", "command": {
        "job_id": "a", "organization_id": "mallory", "match_id": "m", "type": "CANCEL", "command_id": "2"}});
    deliver(&kit, 0, "a", "command/CANCEL/2", forwarded).await;
    let attending = kit.attend(&home);
    kit.count_when("mailbox", 0).await;
    assert_eq!(kit.job("a").await.state, JobState::Running);
    attending.leave().await;
}

#[tokio::test]
async fn a_forwarded_command_whose_job_was_deleted_is_a_letter_where_it_came_in() {
    let kit = Kit::new().await;
    let home = kit.tenure(0).await;
    let other = kit.tenure(1).await;
    kit.take(&home, &[command(&kit, &home, "CREATE", "a", "acme")]).await;
    kit.take(&other, &[command(&kit, &other, "CANCEL", "a", "acme")]).await;
    assert_eq!(kit.count("mailbox").await, 1);
    kit.execute(
        "DELETE FROM orchestrator.jobs; DELETE FROM orchestrator.stages; DELETE FROM orchestrator.outbox",
    )
    .await;
    let first = kit.attend(&home);
    let second = kit.attend(&other);
    kit.count_when("letters WHERE partition = 1 AND state = 'dead'", 1).await;
    kit.count_when("mailbox", 0).await;
    let letter = letters(&kit).await.remove(0);
    assert_eq!(letter.reason, "CANCEL of job a: there is no such job");
    let sent = letter.payload.map(|payload| String::from_utf8(payload).unwrap()).unwrap();
    assert!(sent.contains(r#""command_id":"1""#), "as it was sent: {sent}");
    let is_copied = async || kit.topics.published.lock().unwrap().iter().any(|(topic, _)| topic == "letters");
    wait_for("a copy of the letter", PATIENCE, is_copied).await.unwrap();
    let text = kit.jobs.metrics.text().unwrap();
    assert!(text.contains("dead_letters_total 1\n"), "{text}");
    // Later commands of its key wait behind it, and it can be applied again.
    kit.take(&other, &[command(&kit, &other, "RETRY", "a", "acme")]).await;
    assert_eq!(letters(&kit).await[1].state, DeadLetterState::Parked);
    let again =
        json!({"job_id": "a", "organization_id": "acme", "match_id": "m", "type": "CREATE", "input": 2});
    kit.execute("DELETE FROM orchestrator.inbox WHERE command = 'CREATE'").await;
    kit.take(&home, &[kit.message(&home, "acme:m", again)]).await;
    ask_of(&kit, 1, MailBody::Redrive { position: 0, generation: 0 }).await;
    let job = kit.job_when("a", |job| job.stages[0].attempt == 3).await;
    assert_eq!((job.state, letters(&kit).await.len()), (JobState::Running, 0), "cancelled, then tried again");
    first.leave().await;
    second.leave().await;
}

#[tokio::test]
async fn mail_whose_job_is_gone_is_counted() {
    let kit = Kit::new().await;
    let home = kit.tenure(0).await;
    let report = json!({"mail": "report", "stage": "decode", "attempt": 1, "report": {"kind": "started"}});
    deliver(&kit, 0, "gone", "started/decode/1", report).await;
    deliver(&kit, 0, "gone", "cancel", json!({"mail": "cancel"})).await;
    let attending = kit.attend(&home);
    kit.count_when("mailbox", 0).await;
    // Two were gone when they were read, and one when it came in.
    kit.succeed("gone", "decode", 1).await;
    let is_counted = async || kit.jobs.metrics.text().unwrap().contains("mail_without_job_total 3\n");
    wait_for("all to be counted", PATIENCE, is_counted).await.unwrap();
    // That of an old attempt is not.
    kit.take(&home, &[command(&kit, &home, "CREATE", "a", "acme")]).await;
    kit.report("a", "decode", 7, ReportKind::Started).await;
    kit.count_when("mailbox", 0).await;
    assert!(is_counted().await);
    attending.leave().await;
}

#[tokio::test]
async fn mail_that_waits_in_another_partition_than_its_jobs_is_passed_on() {
    let kit = Kit::new().await;
    let home = kit.tenure(0).await;
    let other = kit.tenure(1).await;
    kit.take(&home, &[command(&kit, &home, "CREATE", "a", "acme")]).await;
    // The job was deleted, and made again by a command of another partition, while its mail waited.
    deliver(&kit, 1, "a", "cancel", json!({"mail": "cancel"})).await;
    let attending = kit.attend(&other);
    kit.count_when("mailbox WHERE partition = 1", 0).await;
    assert_eq!(kit.job("a").await.state, JobState::Running, "only the owner of its partition changes a job");
    attending.leave().await;
    let attending = kit.attend(&home);
    kit.state_when("a", JobState::Cancelled).await;
    attending.leave().await;
}

#[tokio::test]
async fn forwarded_commands_stay_in_order() {
    let kit = Kit::new().await;
    let home = kit.tenure(0).await;
    let other = kit.tenure(1).await;
    kit.take(&home, &[command(&kit, &home, "CREATE", "a", "acme")]).await;
    let commands = [("CANCEL", "1"), ("RETRY", "1"), ("CANCEL", "2")].map(|(kind, id)| {
        let command = json!({
            "job_id": "a", "organization_id": "acme", "match_id": "m", "type": kind, "command_id": id,
        });
        kit.message(&other, "acme:m", command)
    });
    kit.take(&other, &commands).await;
    let attending = kit.attend(&home);
    kit.count_when("mailbox", 0).await;
    let job = kit.job("a").await;
    assert_eq!(
        (job.state, job.stages[0].attempt),
        (JobState::Cancelled, 4),
        "cancelled, tried again, cancelled"
    );
    attending.leave().await;
}

/// Only their keys were compared: those of `b:c` of `a`, and of `c` of `a:b`, are the same.
#[tokio::test]
async fn organizations_with_the_same_key_are_told_apart() {
    let kit = Kit::new().await;
    let tenure = kit.tenure(0).await;
    let said = |kind: &str, organization: &str, of: &str| {
        let command = json!({"job_id": "j", "organization_id": organization, "match_id": of, "type": kind});
        kit.message(&tenure, "a:b:c", command)
    };
    kit.take(&tenure, &[said("CREATE", "a", "b:c")]).await;
    kit.take(&tenure, &[said("CANCEL", "a:b", "c")]).await;
    assert_eq!(kit.job("j").await.state, JobState::Running);
    let reason =
        "job j has match_id b:c and organization_id a, and this command match_id c and organization_id a:b";
    assert_eq!(letters(&kit).await[0].reason, reason);
}
