//! A topic that was deleted and made again under its name: offsets begin again, and mean other messages.

use serde_json::{Value, json};
use solehold_orchestrator::{
    model::job::JobState,
    store::{DeadLetterState, MailBody, Prepared},
};

use crate::{
    broker::Broker,
    kit::{GROUP, Kit, TOPIC},
    letters::{ask, letters},
};

async fn send(broker: &Broker, kind: &str, job: &str, of: &str) -> i64 {
    let command = json!({"job_id": job, "organization_id": "acme", "match_id": of, "type": kind});
    let key = format!("acme:{of}");
    broker.send(0, Some(key.as_bytes()), Some(command.to_string().as_bytes())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_at_the_offset_of_an_old_letter_is_judged() {
    let kit = Kit::new().await;
    let mut broker = Broker::new(1).await;
    // The first is decided on, the second is not.
    for (job, of) in [("nobody", "m-0"), ("no-one", "m-1")] {
        send(&broker, "CANCEL", job, of).await;
    }
    let one = broker.consume(&kit, "one");
    broker.taken_when(&kit, 0).await;
    kit.execute(
        "UPDATE orchestrator.letters SET state = 'discarded', resolved_ms = at_ms WHERE position = 0",
    )
    .await;
    one.end().await;
    broker.make_anew().await;
    for (job, of) in [("a", "m-2"), ("b", "m-3"), ("c", "m-1")] {
        send(&broker, "CREATE", job, of).await;
    }
    let error = broker.consume(&kit, "two").ended().await.expect_err("another topic").to_string();
    assert!(error.contains("made anew") && error.contains("solehold orchestrator begin-anew"), "{error}");
    let client = kit.store().pool.get().await.unwrap();
    kit.store().partitions.begin_anew(&**client, GROUP, &broker.topic).await.unwrap();
    drop(client);
    let three = broker.consume(&kit, "three");
    broker.taken_when(&kit, 0).await;
    assert_eq!(kit.count("jobs").await, 2, "the commands at the offsets of old letters");
    let found = letters(&kit).await;
    let states: Vec<(i64, DeadLetterState)> =
        found.iter().map(|found| (found.id.position, found.state)).collect();
    assert_eq!(
        states,
        [(1, DeadLetterState::Dead), (2, DeadLetterState::Parked)],
        "in order, the old one first"
    );
    assert_eq!(kit.count("letters").await, 3, "none is lost");
    three.end().await;
}

/// Someone reset the position by hand, or the topic was made anew unnoticed.
#[tokio::test]
async fn an_old_letter_is_not_taken_for_another_message_at_its_offset() {
    let kit = Kit::new().await;
    let tenure = kit.tenure(0).await;
    kit.take(&tenure, &[kit.command(&tenure, "CANCEL", "nobody")]).await;
    let said = |kind: &str, job: &str| -> Value {
        json!({"job_id": job, "organization_id": "org", "match_id": job, "type": kind})
    };
    let mut message = kit.message(&tenure, "org:a", said("CREATE", "a"));
    message.offset = 0;
    kit.take(&tenure, &[message.clone()]).await;
    assert_eq!(kit.count("jobs").await, 1, "it took effect");
    // One that is a letter itself: both are kept.
    let mut other = kit.message(&tenure, "org:b", said("CANCEL", "b"));
    other.offset = 0;
    kit.take(&tenure, &[other.clone()]).await;
    kit.take(&tenure, &[other]).await;
    let found = letters(&kit).await;
    let keys: Vec<&str> = found.iter().map(|letter| letter.key.as_str()).collect();
    assert_eq!(keys, ["org:m-nobody", "org:b"]);
}

/// Letters had neither a digest nor a generation, and keys were kept in full as long as an index had room for them.
#[tokio::test]
async fn letters_of_an_earlier_version_are_known_again() {
    let kit = Kit::new().await;
    let tenure = kit.tenure(0).await;
    let [cancel, create] = ["CANCEL", "CREATE"].map(|kind| kit.command_of(&tenure, kind, "a", "m"));
    let mut long = kit.message(&tenure, "", "{");
    long.key = Some("\u{1f3a5}".repeat(600).into());
    let messages = [cancel, create, long];
    kit.take(&tenure, &messages).await;
    kit.execute(
        "DROP INDEX orchestrator.letters_waiting; ALTER TABLE orchestrator.partitions DROP COLUMN generation; \
         ALTER TABLE orchestrator.letters DROP COLUMN generation CASCADE, DROP COLUMN digest, \
         ADD PRIMARY KEY (partition, position); UPDATE orchestrator.letters SET key = repeat('\u{1f3a5}', 600) \
         WHERE position = 2; CREATE INDEX letters_open ON orchestrator.letters (partition, key, position) \
         WHERE resolved_ms IS NULL",
    )
    .await;
    for _ in 0..2 {
        assert_eq!(kit.store().prepare(GROUP, TOPIC).await.unwrap(), Prepared::Ready);
    }
    assert_eq!(kit.count_of("pg_indexes WHERE indexname = 'letters_open'").await, 0);
    kit.take(&tenure, &messages).await;
    let found = letters(&kit).await;
    let states: Vec<(i64, DeadLetterState)> =
        found.iter().map(|found| (found.id.position, found.state)).collect();
    assert_eq!(
        states,
        [(0, DeadLetterState::Dead), (1, DeadLetterState::Parked), (2, DeadLetterState::Dead)]
    );
    assert_eq!(found[2].key, format!("{}... (2400 bytes)", "\u{1f3a5}".repeat(512)));
    assert_eq!(kit.count("partitions WHERE generation = 0").await, 1, "they are of the same topic");
    let attending = kit.attend(&tenure);
    ask(&kit, MailBody::Discard { position: 0, generation: 0 }).await;
    kit.state_when("a", JobState::Running).await;
    attending.leave().await;
}
