//! No content of a message stops its partition: it ends in an effect or a letter, whatever it says.

use std::{collections::HashSet, sync::Arc};

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::json;
use solehold_orchestrator::{
    publish::KafkaPublisher,
    store::{DeadLetterState, MailBody},
};
use solehold_testkit::wait_for;

use crate::{
    broker::Broker,
    kit::{Kit, PATIENCE},
    letters::{ask_of, letters},
};

const MESSAGES: usize = 300;
const PARTITIONS: i32 = 2;

/// Letters and digits that do not compress.
fn noise(random: &mut StdRng, length: usize) -> String {
    (0..length).map(|_| char::from(random.sample(rand::distr::Alphanumeric))).collect()
}

fn bytes(random: &mut StdRng, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    random.fill_bytes(&mut bytes);
    bytes
}

/// An id as JSON: mostly one of a few, so that commands meet each other.
fn id(random: &mut StdRng) -> String {
    match random.random_range(0..24) {
        0 => json!(noise(random, 255)).to_string(),
        1 => json!(noise(random, 256)).to_string(),
        2 => json!(noise(random, 5_000)).to_string(),
        3 => "\"\"".to_owned(),
        4 => r#""a\u0000b""#.to_owned(),
        5 => r#""\ud800""#.to_owned(),
        6 => "\"\u{1f3a5}\u{202e}'; DROP TABLE jobs; --\"".to_owned(),
        7 => "17".to_owned(),
        8 => "null".to_owned(),
        9 => "\"a:b\"".to_owned(),
        10 => format!("\"{}\"", "\u{10ffff}".repeat(63)),
        _ => json!(format!("id-{}", random.random_range(0..6))).to_string(),
    }
}

fn input(random: &mut StdRng) -> String {
    let depth = random.random_range(1..400);
    match random.random_range(0..12) {
        0 => format!("{}{}", "[".repeat(depth), "]".repeat(depth)),
        1 => format!("{}1{}", r#"{"a":"#.repeat(depth), "}".repeat(depth)),
        2 => "1e999".to_owned(),
        3 => "9".repeat(400),
        4 => "[-0.0, 1e308, 5e-324, 18446744073709551616, -9223372036854775809]".to_owned(),
        5 => r#""\u0000\u001f\uffff""#.to_owned(),
        6 => r#"{"\u0000": {"": null, "": 2}}"#.to_owned(),
        7 => format!("\"{}\"", noise(random, 200_000)),
        8 => format!("[{}0]", "0,".repeat(50_000)),
        9 => "NaN".to_owned(),
        _ => r#"{"video": "s3://x"}"#.to_owned(),
    }
}

fn payload(random: &mut StdRng) -> Option<Vec<u8>> {
    let size = random.random_range(0..3_000);
    match random.random_range(0..20) {
        0 => return None,
        1 => return Some(Vec::new()),
        2 => return Some(bytes(random, size)),
        3 => return Some(b"\xef\xbb\xbf{}".to_vec()),
        4 => return Some("[".repeat(100_000).into_bytes()),
        5 => return Some(vec![0; size]),
        _ => {}
    }
    let kind = ["CREATE", "CREATE", "CANCEL", "RETRY", "create", "\\u0043REATE"];
    let kind = kind.choose(random).unwrap_or(&"CREATE");
    let mut text = format!(
        r#"{{"job_id": {}, "organization_id": {}, "match_id": {}, "type": "{kind}", "input": {}"#,
        id(random),
        id(random),
        id(random),
        input(random)
    )
    .into_bytes();
    match random.random_range(0..6) {
        0 => text.extend_from_slice(format!(r#", "command_id": {}}}"#, id(random)).as_bytes()),
        1 => text.extend_from_slice(b", \"other\": \"\xff\xfe\"}"),
        2 => text.extend_from_slice(b", \"job_id\": \"twice\"}"),
        3 => text.extend_from_slice(b"} trailing"),
        _ => text.push(b'}'),
    }
    Some(text)
}

/// The key that a command should have, if it can be read; otherwise, or now and then, another.
fn key(random: &mut StdRng, payload: Option<&[u8]>) -> Option<Vec<u8>> {
    let size = random.random_range(0..20_000);
    match random.random_range(0..16) {
        0 => return None,
        1 => return Some(Vec::new()),
        2 => return Some(bytes(random, size)),
        3 => return Some(noise(random, size).into_bytes()),
        4 => return Some(format!("a\0b{}", "\0".repeat(size)).into_bytes()),
        5 => return Some("\u{1f3a5}".repeat(size / 4).into_bytes()),
        _ => {}
    }
    let command: Option<serde_json::Value> = payload.and_then(|text| serde_json::from_slice(text).ok());
    let part = |name: &str| Some(command.as_ref()?[name].as_str()?.to_owned());
    let of = part("organization_id").zip(part("match_id"));
    Some(of.map_or_else(|| "acme:m".to_owned(), |(org, of)| format!("{org}:{of}")).into_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_with_a_long_key_does_not_stop_its_partition() {
    let kit = Kit::new().await;
    let broker = Broker::new(1).await;
    let mut random = StdRng::seed_from_u64(1);
    let command =
        json!({"job_id": "a", "organization_id": "acme", "match_id": "m", "type": "CREATE"}).to_string();
    let key = noise(&mut random, 8_000);
    broker.send(0, Some(key.as_bytes()), Some(command.as_bytes())).await;
    broker.send(0, Some(b"acme:m"), Some(command.as_bytes())).await;
    let consuming = broker.consume(&kit, "one");
    broker.taken_when(&kit, 0).await;
    assert_eq!(kit.count("jobs").await, 1, "what comes after it goes on");
    let letter = letters(&kit).await.remove(0);
    assert!(letter.key.starts_with(&key[..500]) && letter.key.ends_with("(8000 bytes)"), "{}", letter.key);
    assert!(
        letter.reason.contains("its key must be {labels.organization_id}:{labels.match_id}, \"acme:m\""),
        "{}",
        letter.reason
    );
    kit.count_when("outbox", 0).await;
    consuming.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_message_says_it_has_an_effect_or_is_a_letter() {
    let seed = std::env::var("SOLEHOLD_FUZZ_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(rand::random);
    println!("SOLEHOLD_FUZZ_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let broker = Broker::new(PARTITIONS).await;
    let has_headers = broker.kafka.broker_version().is_none();
    let dead = broker.kafka.create_topic("dead", 1).await.unwrap();
    let events = broker.kafka.create_topic("events", 1).await.unwrap();
    let kit = Kit::new().await.restarted(|mut parts| {
        parts.publisher = Arc::new(KafkaPublisher::new(&broker.brokers(), has_headers).unwrap());
        (parts.dead_letter_topic, parts.events_topic) = (Some(dead.clone()), Some(events));
        parts
    });
    let consuming = broker.consume(&kit, "one");
    let mut sent = Vec::new();
    for _ in 0..MESSAGES {
        let payload = payload(&mut random);
        let partition = random.random_range(0..PARTITIONS);
        let key = key(&mut random, payload.as_deref());
        let offset = broker.send(partition, key.as_deref(), payload.as_deref()).await;
        sent.push((partition, offset, payload));
    }
    for partition in 0..PARTITIONS {
        broker.taken_when(&kit, partition).await;
    }
    let text = kit.jobs.metrics.text().unwrap();
    assert!(text.contains(&format!("job_commands_total {MESSAGES}\n")), "{text}");
    let mut seen = HashSet::new();
    for (partition, offset, payload) in sent {
        let is_letter = format!("letters WHERE partition = {partition} AND position = {offset}");
        let is_mark = format!("inbox WHERE scope = '{partition}' AND position = {offset}");
        let count = kit.count(&is_letter).await + kit.count(&is_mark).await;
        let is_again = !seen.insert((partition, payload.clone()));
        let shown =
            payload.map(|payload| String::from_utf8_lossy(&payload).chars().take(300).collect::<String>());
        assert!(count == 1 || is_again, "{partition}-{offset} is {count} times there: {shown:?}");
    }
    // What is parked is applied, down to the last.
    wait_for("all letters to be decided on", PATIENCE * 3, async || {
        for letter in letters(&kit).await.iter().filter(|letter| letter.state == DeadLetterState::Dead) {
            ask_of(
                &kit,
                letter.id.partition,
                MailBody::Discard { position: letter.id.position, generation: 0 },
            )
            .await;
        }
        letters(&kit).await.is_empty()
    })
    .await
    .unwrap();
    kit.count_when("outbox", 0).await;
    kit.count_when("mailbox", 0).await;
    assert_eq!(kit.count("unreadable_mail").await, 0);
    consuming.end().await;
}

/// What a broker of today carries and that of the tests does not: headers, and more than a megabyte.
#[tokio::test]
async fn headers_and_sizes_beyond_the_bounds_are_letters_or_have_an_effect() {
    let kit = Kit::new().await;
    let tenure = kit.tenure(0).await;
    let mut large = kit.message(&tenure, "acme:large", "");
    let text = format!(r#"{{"job_id": "a", "input": "{}"}}"#, "x".repeat(3_000_000));
    large.payload = Some(text.into());
    let mut with_headers = kit.command(&tenure, "CREATE", "b");
    with_headers.headers =
        vec![("\0".repeat(9_000), vec![0xff; 90_000].into()), (String::new(), Vec::new().into())];
    let mut keyed = kit.command(&tenure, "CREATE", "c");
    keyed.key = Some(vec![b'k'; 2_000_000].into());
    kit.take(&tenure, &[large, with_headers, keyed]).await;
    let found = letters(&kit).await;
    assert_eq!((kit.count("jobs").await, found.len()), (1, 2));
    assert!(found[0].reason.contains("more than 1048576"), "{}", found[0].reason);
    let attending = kit.attend(&tenure);
    kit.count_when("outbox", 0).await;
    attending.leave().await;
}
