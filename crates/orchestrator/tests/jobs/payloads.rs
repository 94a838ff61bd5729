//! What commands look like is configured: where their parts are, which key they have, and what tasks get of them.

use std::sync::Arc;

use serde_json::{Value, json};
use solehold_orchestrator::{
    dispatch::Reports,
    model::{
        command::{Mapping, Place},
        job::JobState,
        pipeline::{Pipeline, StagePlan},
        task::{Report, ReportKind, TaskId},
        template::Template,
    },
    store::{DeadLetterState, MailBody, Prepared},
};
use solehold_testkit::wait_for;

use crate::{
    broker::Broker,
    kit::{GROUP, Kit, PATIENCE, TOPIC, stage},
    letters::{ask, letters},
};

/// Commands as they are unless the file says something else.
async fn neutral() -> Kit {
    Kit::new().await.restarted(|mut parts| {
        parts.commands = Arc::default();
        parts
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_with_only_a_job_id_and_a_payload_takes_effect() {
    let kit = neutral().await;
    let broker = Broker::new(2).await;
    let said = json!({"job_id": "a", "payload": {"video": "a.mp4"}});
    broker.send(1, Some(b"a"), Some(said.to_string().as_bytes())).await;
    broker.send(1, Some(b"a"), Some(br#"{"job_id": "a", "type": "CANCEL"}"#)).await;
    // It has no key, so nothing keeps it behind its CREATE.
    broker.send(0, None, Some(br#"{"job_id": "b"}"#)).await;
    let consuming = broker.consume(&kit, "one");
    for partition in [0, 1] {
        broker.taken_when(&kit, partition).await;
    }
    let job = kit.job("a").await;
    assert_eq!((job.state, job.key.as_str(), &*job.input), (JobState::Cancelled, "a", &said));
    let found = letters(&kit).await;
    assert_eq!((found.len(), found[0].id.partition), (1, 0), "{found:?}");
    assert!(found[0].reason.starts_with("the message has no key: give all messages of a job the same key"));
    let is_told = async || kit.topics.revisions("a") == [1, 2];
    wait_for("the events", PATIENCE, is_told).await.unwrap();
    let published = kit.topics.published.lock().unwrap().clone();
    let (_, event) = published.iter().find(|(topic, _)| topic == "events").unwrap();
    let told: Value = serde_json::from_slice(&event.payload).unwrap();
    assert_eq!((event.key.as_str(), &told["key"], &told["labels"]), ("a", &json!("a"), &json!({})));
    consuming.end().await;
}

#[tokio::test]
async fn without_a_template_all_commands_of_a_job_have_the_key_of_its_create() {
    let kit = neutral().await;
    let home = kit.tenure(0).await;
    let other = kit.tenure(1).await;
    kit.take(&home, &[kit.message(&home, "acme:m", json!({"job_id": "a"}))]).await;
    let cancel = json!({"job_id": "a", "type": "CANCEL"});
    kit.take(&home, &[kit.message(&home, "mallory:m", &cancel)]).await;
    // By another partition, it is compared before it is forwarded.
    kit.take(&other, &[kit.message(&other, "mallory:n", &cancel)]).await;
    kit.take(&home, &[kit.message(&home, "mallory:o", json!({"job_id": "a", "input": 2}))]).await;
    assert_eq!((kit.job("a").await.state, kit.count("mailbox").await), (JobState::Running, 0));
    let reasons: Vec<String> = letters(&kit).await.into_iter().map(|letter| letter.reason).collect();
    assert_eq!(reasons[0], r#"job a has the key "acme:m", and this command "mallory:m""#);
    assert_eq!(reasons.len(), 3, "{reasons:?}");
    kit.take(&home, &[kit.message(&home, "acme:m", &cancel)]).await;
    assert_eq!(kit.job("a").await.state, JobState::Cancelled);
}

/// A mapping that was wrong is corrected in the file: what it has turned into letters takes effect after all.
#[tokio::test]
async fn a_letter_is_read_again_by_the_mapping_of_today() {
    let kit = neutral().await;
    let tenure = kit.tenure(0).await;
    let said = json!({"id": 7, "body": {"video": "a.mp4"}});
    kit.take(&tenure, &[kit.message(&tenure, "k", said)]).await;
    assert_eq!(letters(&kit).await[0].reason, "the message has no job_id (commands.job_id)");
    let kit = kit.restarted(|mut parts| {
        let input = Some(Place { path: "body".parse().unwrap(), default: None });
        parts.commands = Arc::new(Mapping { job_id: "id".parse().unwrap(), input, ..Mapping::default() });
        parts
    });
    let attending = kit.attend(&tenure);
    ask(&kit, MailBody::Redrive { position: 0, generation: 0 }).await;
    let job = kit.job_when("7", |_| true).await;
    assert_eq!((&*job.input, letters(&kit).await.len()), (&json!({"video": "a.mp4"}), 0));
    attending.leave().await;
}

fn template(value: Value) -> Option<Template> {
    Some(Template::try_from(value).unwrap())
}

#[tokio::test]
async fn tasks_get_what_the_templates_of_their_stage_say() {
    let decode = StagePlan {
        args: template(json!(["{job_id}", "{attempt}"])),
        kwargs: template(
            json!({"path": "s3://{labels.organization_id}/{input.video}", "frames": "{input.frames}"}),
        ),
        ..stage("decode", &[])
    };
    let detect = StagePlan {
        kwargs: template(json!({"size": "{results.decode.size}"})),
        ..stage("detect", &["decode"])
    };
    let kit = Kit::with(vec![decode, StagePlan { retries: 1, ..detect }]).await;
    let tenure = kit.tenure(0).await;
    let said = |job: &str, input: Value| {
        let said = json!({"job_id": job, "organization_id": "org", "match_id": job, "input": input});
        kit.message(&tenure, &format!("org:{job}"), said)
    };
    let input = json!({"video": "a.mp4", "frames": [1, 2]});
    kit.take(&tenure, &[said("a", input.clone()), said("b", json!({"video": 1}))]).await;
    let found = letters(&kit).await;
    assert_eq!(
        (found.len(), found[0].state, found[0].reason.as_str()),
        (
            1,
            DeadLetterState::Dead,
            "CREATE of job b: the message has no input.frames, which kwargs.frames of stage decode needs"
        )
    );
    let attending = kit.attend(&tenure);
    kit.taken_when("a", "decode", 1).await;
    let arguments = kit.workers.taken.lock().unwrap()[0].arguments.clone().unwrap();
    assert_eq!(arguments.args, [json!("a"), json!(1)]);
    assert_eq!(Value::Object(arguments.kwargs), json!({"path": "s3://org/a.mp4", "frames": [1, 2]}));
    // A result may lack what the next stage needs: each of its attempts fails, and the reason names it.
    kit.report("a", "decode", 1, ReportKind::Succeeded { result: json!({"length": 2}) }).await;
    let job = kit.state_when("a", JobState::Failed).await;
    let reason =
        "stage detect: the task was rejected: kwargs of stage detect: there is no results.decode.size";
    assert_eq!(job.reason.as_deref(), Some(reason));
    assert_eq!(kit.workers.took("a"), [("decode".to_owned(), 1)]);
    // The file is corrected, and the letter takes effect with its stages.
    let kit = kit.restarted(|mut parts| {
        parts.pipeline = Arc::new(Pipeline::new(vec![stage("decode", &[])]).unwrap());
        parts
    });
    attending.leave().await;
    let attending = kit.attend(&tenure);
    ask(&kit, MailBody::Redrive { position: 1, generation: 0 }).await;
    kit.taken_when("b", "decode", 1).await;
    assert_eq!(letters(&kit).await.len(), 0);
    attending.leave().await;
}

/// Jobs had an organization and a match, of which their key was made.
#[tokio::test]
async fn a_database_of_jobs_with_organizations_is_taken_over() {
    let kit = Kit::new().await;
    let home = kit.tenure(0).await;
    let other = kit.tenure(1).await;
    let creates = ["a", "b", "c"].map(|job| kit.command(&home, "CREATE", job));
    kit.take(&home, &creates).await;
    kit.execute(
        "ALTER TABLE orchestrator.jobs ADD organization_id text, ADD match_id text; \
         UPDATE orchestrator.jobs SET organization_id = labels->>'organization_id', match_id = labels->>'match_id'; \
         ALTER TABLE orchestrator.jobs ALTER organization_id SET NOT NULL, ALTER match_id SET NOT NULL, \
         DROP COLUMN key, DROP COLUMN labels; \
         UPDATE orchestrator.outbox SET document = (document::jsonb - 'key' - 'labels' \
         || '{\"organization_id\": \"org\"}' || jsonb_build_object('match_id', 'm-' || job_id))::json \
         WHERE kind = 'event'",
    )
    .await;
    let forwarded = |job: &str, of: &str| {
        let command = json!({"job_id": job, "organization_id": "org", "match_id": of, "type": "CANCEL"});
        format!(
            "INSERT INTO orchestrator.mailbox (partition, subject, name, body) \
             VALUES (0, '{job}', 'command/CANCEL/{job}', '{}')",
            json!({"mail": "command", "command": command})
        )
    };
    kit.execute(&forwarded("a", "m-a")).await;
    kit.execute(&forwarded("b", "m-other")).await;
    assert_eq!(kit.store().prepare(GROUP, TOPIC).await.unwrap(), Prepared::Ready);
    assert_eq!(kit.store().prepare(GROUP, TOPIC).await.unwrap(), Prepared::Ready);
    // Mail is read, events are sent with their key, and commands find their jobs.
    let attending = kit.attend(&home);
    kit.state_when("a", JobState::Cancelled).await;
    kit.count_when("mailbox", 0).await;
    kit.count_when("outbox", 0).await;
    let job = kit.job("b").await;
    assert_eq!((job.state, job.key.as_str()), (JobState::Running, "org:m-b"));
    assert_eq!(json!(job.labels), json!({"organization_id": "org", "match_id": "m-b"}));
    kit.take(&other, &[kit.command(&other, "CANCEL", "c")]).await;
    kit.state_when("c", JobState::Cancelled).await;
    let report = |stage: &str| Report {
        id: TaskId { job: "b".to_owned(), stage: stage.to_owned(), attempt: 1 },
        kind: ReportKind::Succeeded { result: json!(1) },
    };
    kit.jobs.mailbox().deliver(vec![report("decode")]).await.unwrap();
    kit.taken_when("b", "detect", 1).await;
    kit.jobs.mailbox().deliver(vec![report("detect")]).await.unwrap();
    kit.state_when("b", JobState::Succeeded).await;
    kit.count_when("outbox", 0).await;
    let published = kit.topics.published.lock().unwrap().clone();
    for (_, event) in published.iter().filter(|(topic, _)| topic == "events") {
        let told: Value = serde_json::from_slice(&event.payload).unwrap();
        let of = format!("m-{}", told["job_id"].as_str().unwrap());
        assert_eq!((&event.key, told["key"].as_str()), (&format!("org:{of}"), Some(event.key.as_str())));
        assert_eq!(told["labels"], json!({"organization_id": "org", "match_id": of}));
        assert!(told.get("match_id").is_none(), "{told}");
    }
    attending.leave().await;
}
