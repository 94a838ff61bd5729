//! Jobs that ended long ago are deleted, and what protects those that are not.

use std::time::Duration;

use solehold_kafka::Message;
use solehold_orchestrator::store::{MailBody, Prepared};

use crate::{
    kit::{GROUP, Kit, TOPIC, stage},
    letters::{ask, states},
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

async fn kit() -> Kit {
    Kit::with_retention(vec![stage("decode", &[])], DAY, DAY * 30).await
}

/// Moves the end of these jobs back by this many days.
async fn end(kit: &Kit, ids: &str, days: u32) {
    let ago = format!("(extract(epoch FROM clock_timestamp() - interval '{days} days') * 1000)::bigint");
    kit.execute(&format!(
        "UPDATE orchestrator.jobs SET state = 'succeeded', finished_ms = {ago} WHERE job_id LIKE '{ids}'; \
         UPDATE orchestrator.stages SET state = 'succeeded', deadline_ms = NULL WHERE job_id LIKE '{ids}'"
    ))
    .await;
}

#[tokio::test]
async fn jobs_that_ended_long_ago_are_deleted_again_and_again() {
    let kit = kit().await;
    let tenure = kit.tenure(0).await;
    // More than one bite.
    let many: Vec<Message> =
        (0..1_100).map(|n| kit.command(&tenure, "CREATE", &format!("old-{n}"))).collect();
    kit.take(&tenure, &many).await;
    let others = ["recent", "running", "letter"].map(|id| kit.command(&tenure, "CREATE", id));
    kit.take(&tenure, &others).await;
    // Somebody must decide on a command of the same match, and it is not known yet what follows from that.
    kit.take(&tenure, &[kit.command_of(&tenure, "CANCEL", "nobody", "m-letter")]).await;
    let elsewhere = kit.tenure(1).await;
    kit.take(&elsewhere, &[kit.command(&elsewhere, "CREATE", "elsewhere")]).await;
    for (ids, days) in [("old-%", 31), ("recent", 29), ("letter", 31), ("elsewhere", 31)] {
        end(&kit, ids, days).await;
    }
    let attending = kit.attend(&tenure);
    kit.count_when("jobs WHERE job_id LIKE 'old-%'", 0).await;
    kit.count_when("stages WHERE job_id LIKE 'old-%'", 0).await;
    assert_eq!((kit.count("jobs").await, kit.count("stages").await), (4, 4), "nothing else");
    // A command that comes again meets its mark.
    kit.take(&tenure, &many[..3]).await;
    assert_eq!(kit.count("jobs").await, 4, "it does not begin again");
    assert_eq!(states(&kit).await.len(), 1);
    // It goes on, without a new owner.
    end(&kit, "recent", 31).await;
    ask(&kit, MailBody::Discard { position: 1_103, generation: 0 }).await;
    kit.count_when("jobs WHERE job_id IN ('recent', 'letter')", 0).await;
    assert_eq!(kit.count("jobs").await, 2, "one runs, and one is of a partition that nobody attends to");
    attending.leave().await;
}

#[tokio::test]
async fn what_was_fenced_deletes_no_jobs_and_mail_is_read_before() {
    let kit = kit().await;
    let old = kit.tenure(0).await;
    kit.take(&old, &[kit.command(&old, "CREATE", "a")]).await;
    end(&kit, "a", 31).await;
    let new = kit.tenure(0).await;
    kit.attend(&old).ended().await;
    assert_eq!(kit.count("jobs").await, 1);
    let client = kit.store().pool.get().await.unwrap();
    let month = DAY * 30;
    assert_eq!(kit.store().old_jobs(&client, 0, month, 10).await.unwrap(), ["a"]);
    kit.execute("INSERT INTO orchestrator.mailbox (partition, subject, name, body) VALUES (0, 'a', 'retry', '{\"mail\": \"retry\"}')")
        .await;
    assert_eq!(kit.store().old_jobs(&client, 0, month, 10).await.unwrap(), [""; 0]);
    assert_eq!(kit.store().delete_jobs(&client, 0, month, &["a".to_owned()]).await.unwrap(), 0);
    drop(client);
    // It has succeeded: there is nothing to retry.
    let attending = kit.attend(&new);
    kit.count_when("jobs", 0).await;
    assert_eq!(kit.count("mailbox").await, 0);
    attending.leave().await;
}

/// Tables of an earlier version lack them.
#[tokio::test]
async fn indexes_that_cleaning_needs_are_added_to_tables_that_are_there() {
    let kit = kit().await;
    let indexes = "pg_indexes WHERE schemaname = 'orchestrator'";
    let all = kit.count_of(indexes).await;
    kit.execute(
        "DROP INDEX orchestrator.inbox_id_first, orchestrator.inbox_id_second, orchestrator.unreadable_mail_at, \
         orchestrator.letters_unresolved, orchestrator.letters_key, orchestrator.letters_resolved",
    )
    .await;
    assert_eq!(kit.count_of(indexes).await, all - 6);
    assert_eq!(kit.store().prepare(GROUP, TOPIC).await.unwrap(), Prepared::Ready);
    assert_eq!(kit.count_of(indexes).await, all);
}

/// A row was left behind for every version of the file that jobs had begun with.
#[tokio::test]
async fn pipelines_that_no_job_has_are_deleted_and_those_in_use_stay() {
    let kit = kit().await;
    let tenure = kit.tenure(0).await;
    kit.take(&tenure, &[kit.command(&tenure, "CREATE", "a")]).await;
    let long_ago = "(extract(epoch FROM clock_timestamp() - interval '2 days') * 1000)::bigint";
    kit.execute(&format!(
        "UPDATE orchestrator.pipelines SET used_ms = {long_ago}; \
         INSERT INTO orchestrator.pipelines (digest, stages, used_ms) \
         SELECT 'former-' || n, '[]', {long_ago} FROM generate_series(1, 50) AS n; \
         INSERT INTO orchestrator.pipelines (digest, stages) VALUES ('new', '[]')"
    ))
    .await;
    let attending = kit.attend(&tenure);
    kit.count_when("pipelines WHERE digest LIKE 'former-%'", 0).await;
    assert_eq!(kit.count("pipelines").await, 2, "one has a job, and one was used within a day");
    attending.leave().await;
    // A job that begins marks its pipeline, and goes on with it.
    kit.take(&tenure, &[kit.command(&tenure, "CREATE", "b")]).await;
    assert_eq!(kit.count(&format!("pipelines WHERE used_ms > {long_ago}")).await, 2);
    assert_eq!(kit.count("jobs").await, 2);
}
