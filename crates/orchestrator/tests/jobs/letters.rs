//! Commands that cannot take effect, and what is parked behind them.

use std::time::Duration;

use serde_json::json;
use solehold_orchestrator::{
    model::{
        job::{JobState, StageState},
        task::ReportKind,
    },
    store::{DeadLetter, DeadLetterState, Mail, MailBody},
};
use solehold_testkit::wait_for;

use crate::kit::{Kit, PATIENCE, stage};

/// Letters that nobody has decided on.
pub async fn letters(kit: &Kit) -> Vec<DeadLetter> {
    let client = kit.store().pool.get().await.unwrap();
    kit.store().list_dead_letters(&client, None, 100, true).await.unwrap()
}

pub async fn states(kit: &Kit) -> Vec<(i64, DeadLetterState)> {
    letters(kit).await.iter().map(|letter| (letter.id.position, letter.state)).collect()
}

pub async fn ask(kit: &Kit, body: MailBody) {
    ask_of(kit, 0, body).await;
}

pub async fn ask_of(kit: &Kit, partition: i32, body: MailBody) {
    let client = kit.store().pool.get().await.unwrap();
    kit.store().deliver_to(&client, partition, &Mail::to_job("", body)).await.unwrap();
    drop(client);
    kit.jobs.mailbox().notifier.mail(&[partition]);
    kit.count_when("mailbox", 0).await;
}

#[tokio::test]
async fn a_cancel_after_its_create_is_not_taken_for_a_duplicate() {
    let kit = Kit::new().await;
    let tenure = kit.tenure(0).await;
    // In one batch, in two, and each twice.
    let create = kit.command(&tenure, "CREATE", "a");
    let cancel = kit.command(&tenure, "CANCEL", "a");
    kit.take(&tenure, &[create.clone(), cancel.clone()]).await;
    assert_eq!(kit.job("a").await.state, JobState::Cancelled);
    kit.take(&tenure, &[kit.command(&tenure, "CREATE", "b")]).await;
    kit.take(&tenure, &[kit.command(&tenure, "CANCEL", "b")]).await;
    assert_eq!(kit.job("b").await.state, JobState::Cancelled);
    kit.take(&tenure, &[kit.command(&tenure, "RETRY", "b")]).await;
    assert_eq!(kit.job("b").await.state, JobState::Running);
    kit.take(&tenure, &[create, cancel]).await;
    assert_eq!(kit.count("letters").await, 0);
    // Cancelled before anything was sent: nothing is sent.
    let attending = kit.attend(&tenure);
    kit.count_when("outbox", 0).await;
    assert_eq!(kit.workers.took("a"), []);
    assert_eq!(kit.workers.took("b"), [("decode".to_owned(), 3)]);
    attending.leave().await;
}

#[tokio::test]
async fn a_dead_letter_parks_its_key_and_a_redrive_applies_all_in_order() {
    let kit = Kit::new().await;
    let tenure = kit.tenure(0).await;
    // A CANCEL whose CREATE is not there yet: its producer mixed them up.
    let early = kit.command_of(&tenure, "CANCEL", "a", "m");
    let create = kit.command_of(&tenure, "CREATE", "b", "m");
    let cancel = kit.command_of(&tenure, "CANCEL", "b", "m");
    let elsewhere = kit.command_of(&tenure, "CREATE", "c", "other");
    kit.take(&tenure, &[early.clone(), create.clone(), cancel.clone(), elsewhere]).await;
    let expected = [(0, DeadLetterState::Dead), (1, DeadLetterState::Parked), (2, DeadLetterState::Parked)];
    assert_eq!(states(&kit).await, expected);
    assert_eq!(kit.count("jobs").await, 1, "other keys go on");
    // They come again: still one letter each.
    kit.take(&tenure, &[early.clone(), create.clone()]).await;
    assert_eq!(states(&kit).await, expected);
    let attending = kit.attend(&tenure);
    let copy = async || {
        let published = kit.topics.published.lock().unwrap();
        published.iter().find(|(topic, _)| topic == "letters").map(|(_, letter)| letter.clone())
    };
    let copy = wait_for("the copy of the letter", PATIENCE, copy).await.unwrap();
    assert_eq!((copy.key.as_str(), copy.headers[0].0), ("org:m", "reason"));
    assert_eq!(copy.headers[0].1, "CANCEL of job a: there is no such job");
    // Nothing has changed: it is dead again, and the others wait.
    ask(&kit, MailBody::Redrive { position: 0, generation: 0 }).await;
    assert_eq!(states(&kit).await, expected);
    // Dropped: what is parked behind it is applied, in order.
    ask(&kit, MailBody::Discard { position: 0, generation: 0 }).await;
    assert_eq!(states(&kit).await, []);
    kit.state_when("b", JobState::Cancelled).await;
    // And the key is free.
    kit.take(&tenure, &[kit.command_of(&tenure, "CREATE", "d", "m")]).await;
    kit.state_when("d", JobState::Running).await;
    // What was decided on stays decided, if its message comes again: even if it could take effect by now.
    kit.take(&tenure, &[kit.command_of(&tenure, "CREATE", "a", "m")]).await;
    kit.take(&tenure, &[early, create]).await;
    assert_eq!(states(&kit).await, []);
    assert_eq!(kit.job("a").await.state, JobState::Running);
    attending.leave().await;
}

#[tokio::test]
async fn a_redrive_works_once_its_reason_is_gone() {
    let kit = Kit::new().await;
    let tenure = kit.tenure(0).await;
    kit.take(
        &tenure,
        &[kit.command_of(&tenure, "CANCEL", "a", "m"), kit.command_of(&tenure, "RETRY", "a", "m")],
    )
    .await;
    assert_eq!(states(&kit).await.len(), 2);
    // The job comes into being by another way.
    let client = kit.store().pool.get().await.unwrap();
    let sql = "UPDATE orchestrator.letters SET payload = convert_to(replace(convert_from(payload, 'UTF8'), 'CANCEL', 'CREATE'), 'UTF8') \
               WHERE position = 0";
    client.batch_execute(sql).await.unwrap();
    drop(client);
    let attending = kit.attend(&tenure);
    ask(&kit, MailBody::Redrive { position: 0, generation: 0 }).await;
    assert_eq!(states(&kit).await, []);
    kit.state_when("a", JobState::Running).await;
    attending.leave().await;
}

#[tokio::test]
async fn what_is_no_command_or_says_something_else_is_a_letter() {
    let kit = Kit::new().await;
    let tenure = kit.tenure(0).await;
    kit.take(
        &tenure,
        &[kit.message(&tenure, "org:x", "{"), kit.message(&tenure, "org:y", json!({"type": "CREATE"}))],
    )
    .await;
    kit.take(&tenure, &[kit.command(&tenure, "CREATE", "a")]).await;
    let other = json!({
        "job_id": "a", "organization_id": "org", "match_id": "m-a", "type": "CREATE", "input": "another",
    });
    kit.take(&tenure, &[kit.message(&tenure, "org:m-a", other)]).await;
    let client = kit.store().pool.get().await.unwrap();
    let letters = kit.store().list_dead_letters(&client, None, 100, true).await.unwrap();
    let reasons: Vec<&str> = letters.iter().map(|letter| letter.reason.as_str()).collect();
    assert!(reasons[0].starts_with("this is not a job command: EOF"), "{reasons:?}");
    assert!(reasons[1].contains("the message has no job_id"), "{reasons:?}");
    assert_eq!(reasons[2], "an earlier CREATE of job a with the id a had another content");
    assert_eq!(kit.job("a").await.input.as_ref(), &json!({"video": "a"}));
}

#[tokio::test]
async fn the_same_command_id_for_two_jobs_names_two_commands() {
    let kit = Kit::new().await;
    let tenure = kit.tenure(0).await;
    // Ids that would be the same if they were only put together, too.
    let jobs = [("a", "1"), ("b", "1"), ("b/c", "d"), ("b", "c/d"), ("c", "b")];
    let command = |kind: &str, job: &str, id: Option<&str>| {
        let of = format!("m-{job}");
        let command = json!({
            "job_id": job, "organization_id": "org", "match_id": of, "type": kind, "command_id": id,
        });
        kit.message(&tenure, &format!("org:{of}"), command)
    };
    for job in ["a", "b", "b/c", "c"] {
        kit.take(&tenure, &[command("CREATE", job, None)]).await;
    }
    for (job, id) in jobs {
        let cancel = command("CANCEL", job, Some(id));
        kit.take(&tenure, &[cancel]).await;
        assert_eq!(states(&kit).await, [], "CANCEL {id} of {job}");
        assert_eq!(kit.job(job).await.state, JobState::Cancelled);
    }
    // The same name with other words is still refused.
    let mut other = command("CANCEL", "a", Some("1"));
    other.payload = Some(String::from_utf8_lossy(&other.payload.unwrap()).replace("}", ", \"x\": 1}").into());
    kit.take(&tenure, &[other]).await;
    assert_eq!(letters(&kit).await[0].reason, "an earlier CANCEL of job a with the id 1 had another content");
}

/// Marks did not have the job in their names before.
#[tokio::test]
async fn a_command_that_took_effect_before_an_upgrade_has_no_effect_again() {
    let kit = Kit::new().await;
    let tenure = kit.tenure(0).await;
    let said = |kind: &str, id: Option<&str>| json!({"job_id": "a", "organization_id": "org", "match_id": "m", "type": kind, "command_id": id});
    let messages = [said("CREATE", None), said("CANCEL", Some("1")), said("RETRY", Some("2"))];
    let messages = messages.map(|said| kit.message(&tenure, "org:m", said));
    for message in &messages {
        kit.take(&tenure, std::slice::from_ref(message)).await;
    }
    kit.execute("UPDATE orchestrator.inbox SET id = right(id, 1)").await;
    kit.take(&tenure, &messages).await;
    let job = kit.job("a").await;
    assert_eq!((job.state, job.stages[0].attempt, states(&kit).await.len()), (JobState::Running, 3, 0));
    // Behind a dead letter, too.
    kit.take(&tenure, &[kit.command_of(&tenure, "CANCEL", "nobody", "m")]).await;
    kit.take(&tenure, &messages).await;
    assert_eq!(states(&kit).await.len(), 1, "nothing is parked that took effect before");
}

#[tokio::test]
async fn marks_and_letters_are_cleaned_behind_the_position_and_never_above_it() {
    let kit =
        Kit::with_retention(vec![stage("decode", &[])], Duration::ZERO, Duration::from_secs(3_600)).await;
    let tenure = kit.tenure(0).await;
    kit.take(&tenure, &[kit.command(&tenure, "CREATE", "a"), kit.command(&tenure, "CREATE", "b")]).await;
    let client = kit.store().pool.get().await.unwrap();
    // As if the message at offset 1 had taken effect before the one at offset 0, which is still under way.
    client.batch_execute("UPDATE orchestrator.partitions SET next_offset = 1").await.unwrap();
    drop(client);
    let attending = kit.attend(&tenure);
    kit.count_when("inbox WHERE id = 'a'", 0).await;
    assert_eq!(kit.count("inbox WHERE id = 'b'").await, 1);
    attending.leave().await;
}

#[tokio::test]
async fn one_unreadable_mail_does_not_stop_the_mailbox() {
    let kit = Kit::new().await;
    let tenure = kit.tenure(0).await;
    kit.take(&tenure, &[kit.command(&tenure, "CREATE", "a"), kit.command(&tenure, "CREATE", "b")]).await;
    // Three that nobody can read: of a newer version, too deep, with a number that has no end.
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    for (name, body) in
        [("new", r#"{"mail": "unheard_of"}"#), ("deep", deep.as_str()), ("big", r#"{"mail": 1e999}"#)]
    {
        let sql = format!(
            "INSERT INTO orchestrator.mailbox (partition, subject, name, body) VALUES (0, 'a', '{name}', '{body}')"
        );
        kit.execute(&sql).await;
    }
    // One that can be read, and whose effect the database refuses.
    kit.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF NEW.result::text LIKE '%refused%' THEN RAISE EXCEPTION 'refused'; END IF; RETURN NEW; END $$; \
         CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON orchestrator.stages FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    .await;
    kit.report("b", "decode", 1, ReportKind::Succeeded { result: json!("refused") }).await;
    kit.succeed("a", "decode", 1).await;
    let attending = kit.attend(&tenure);
    kit.job_when("a", |job| job.stages[0].state == StageState::Succeeded).await;
    kit.count_when("mailbox", 0).await;
    assert_eq!(kit.count("unreadable_mail WHERE reason LIKE 'invalid content%'").await, 3);
    assert_eq!(kit.count("unreadable_mail WHERE subject = 'b' AND reason LIKE '%refused%'").await, 1);
    let text = kit.jobs.metrics.text().unwrap();
    assert!(text.contains("unreadable_mail_total 4\n"), "{text}");
    attending.leave().await;
}
