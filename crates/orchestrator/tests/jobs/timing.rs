//! What takes too long, what cannot be sent, and what an operator asks for.

use std::time::Duration;

use solehold_orchestrator::{
    model::{
        job::{JobState, StageState},
        task::ReportKind,
    },
    store::{Mail, MailBody},
};

use crate::kit::{Kit, stage};

#[tokio::test]
async fn an_attempt_that_takes_too_long_is_followed_by_the_next() {
    let mut plan = stage("decode", &[]);
    (plan.queue_timeout, plan.run_timeout, plan.retries) =
        (Duration::from_millis(200), Duration::from_millis(300), 1);
    let kit = Kit::with(vec![plan]).await;
    let tenure = kit.tenure(0).await;
    kit.take(&tenure, &[kit.command(&tenure, "CREATE", "a")]).await;
    let attending = kit.attend(&tenure);
    kit.taken_when("a", "decode", 2).await;
    let job = kit.job("a").await;
    assert_eq!(job.stages[0].reason.as_deref(), Some("no worker started the task within 200ms"));
    kit.report("a", "decode", 2, ReportKind::Started).await;
    let job = kit.state_when("a", JobState::Failed).await;
    let reason = job.reason.unwrap();
    // On a busy machine the report may come after the timeout of the queue.
    assert!(
        reason.starts_with("stage decode: the worker took longer") || reason.contains("no worker started"),
        "{reason}"
    );
    kit.count_when("outbox", 0).await;
    assert_eq!(kit.workers.revoked.lock().unwrap().len(), 2);
    attending.leave().await;
}

#[tokio::test]
async fn what_a_dispatcher_refuses_has_failed_and_what_is_not_there_is_waited_for() {
    let kit = Kit::new().await;
    let tenure = kit.tenure(0).await;
    kit.workers.refuses.lock().unwrap().insert("detect".to_owned());
    kit.workers.is_down.send_replace(true);
    kit.take(&tenure, &[kit.command(&tenure, "CREATE", "a")]).await;
    let attending = kit.attend(&tenure);
    // Events go on while the workers' broker is away.
    kit.count_when("outbox WHERE channel = 'events'", 0).await;
    assert_eq!(kit.count("outbox WHERE channel = 'celery'").await, 1);
    kit.workers.is_down.send_replace(false);
    kit.taken_when("a", "decode", 1).await;
    kit.succeed("a", "decode", 1).await;
    let job = kit.state_when("a", JobState::Failed).await;
    assert_eq!(job.reason.as_deref(), Some("stage detect: the task was rejected: no such queue"));
    assert_eq!(job.stages[1].failures, 3, "two retries");
    // Once the queue is there, an operator tries it again.
    kit.workers.refuses.lock().unwrap().clear();
    kit.jobs.mailbox().deliver_mail(vec![Mail::to_job("a", MailBody::Retry)]).await.unwrap();
    kit.job_when("a", |job| job.stages[1].state == StageState::Queued).await;
    let attempt = kit.job("a").await.stages[1].attempt;
    kit.taken_when("a", "detect", attempt).await;
    kit.succeed("a", "detect", attempt).await;
    kit.state_when("a", JobState::Succeeded).await;
    attending.leave().await;
}

#[tokio::test]
async fn an_operator_cancels_and_a_late_result_does_not_count() {
    let kit = Kit::new().await;
    let tenure = kit.tenure(0).await;
    kit.take(&tenure, &[kit.command(&tenure, "CREATE", "a")]).await;
    let attending = kit.attend(&tenure);
    kit.taken_when("a", "decode", 1).await;
    kit.jobs.mailbox().deliver_mail(vec![Mail::to_job("a", MailBody::Cancel)]).await.unwrap();
    kit.state_when("a", JobState::Cancelled).await;
    kit.succeed("a", "decode", 1).await;
    kit.count_when("mailbox", 0).await;
    kit.count_when("outbox", 0).await;
    let job = kit.job("a").await;
    assert_eq!((job.state, job.stages[0].result.is_none()), (JobState::Cancelled, true));
    assert_eq!(kit.workers.revoked.lock().unwrap().len(), 1);
    attending.leave().await;
}
