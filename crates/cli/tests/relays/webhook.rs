use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use solehold_testkit::{Postgres, Solehold, wait_for};

use super::{
    receiver::{Receiver, Reply},
    world::{Api, PATIENCE, Place, is_generic},
};

const KEYS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn place(receiver: &Receiver, more: &str, of_relay: &str) -> Result<Place> {
    let url = receiver.url();
    let webhook = format!("webhook: {{ url: {url:?}, secret_file: SECRET_FILE, timeout: 1s }}\n");
    Place::new(more, &format!("{webhook}{of_relay}"))
}

#[tokio::test]
async fn a_receiver_that_fails_hangs_or_dies_gets_the_event_again() -> Result<()> {
    let receiver = Receiver::up().await?;
    receiver.answers(|number, _| match number % 10 {
        2 => Reply::Status(500),
        4 => Reply::Hang,
        6 => Reply::HangUp,
        8 => Reply::Status(429),
        _ => Reply::Status(204),
    });
    let place = place(&receiver, "", "")?;
    let (server, api) = place.start().await?;
    api.churn(&KEYS, 3).await?;
    wait_for("some of each", PATIENCE, async || receiver.requests().len() > 10).await?;
    receiver.stop();
    api.churn(&KEYS, 2).await?;
    api.measures("relay_lag_events", |lag| lag > 0.0).await?;
    receiver.start().await?;
    receiver.answers(|_, _| Reply::Status(200));
    let checked = receiver.inbox().is_exactly(&api).await?;
    assert_eq!(checked.events, KEYS.len() * 5 * 2);
    ensure!(checked.duplicates > 0, "what was not answered came again: {checked:?}");
    receiver.check_signatures()?;
    api.measures("relay_lag_events", |lag| lag == 0.0).await?;
    ensure!(api.measured("relay_retried_total").await? > 0.0, "retries are counted");
    // After a clean stop nothing comes twice.
    let before = receiver.requests().len();
    server.terminate().await?;
    ensure!(!server.logs().contains("hunter2"), "a secret of the URL was logged");
    assert_eq!(receiver.requests().len(), before);
    Ok(())
}

#[tokio::test]
async fn a_webhook_gets_no_word_of_cameras_of_another_kind() -> Result<()> {
    let receiver = Receiver::up().await?;
    let place = place(&receiver, "", "")?;
    let (_server, api) = place.start().await?;
    api.cycle("nightly").await?;
    wait_for("both events", PATIENCE, async || receiver.inbox().all().len() == 2).await?;
    receiver.inbox().all().iter().try_for_each(is_generic)
}

/// Committed while nobody could be told, and the server killed: the events are in the store, and that is the outbox.
#[tokio::test]
async fn what_was_committed_before_a_kill_is_sent_after_it() -> Result<()> {
    let receiver = Receiver::down()?;
    let place = place(&receiver, "", "")?;
    let (server, api) = place.start().await?;
    api.churn(&KEYS, 3).await?;
    server.kill9().await?;
    receiver.start().await?;
    let (server, api) = place.start().await?;
    let checked = receiver.inbox().is_exactly(&api).await?;
    assert_eq!((checked.events, checked.duplicates), (KEYS.len() * 3 * 2, 0));
    // And what was sent and not noted is sent again by the next one, under the same id.
    receiver.answers(|_, _| Reply::Hang);
    api.cycle("a").await?;
    let seen = receiver.requests().len();
    wait_for("it to be sent", PATIENCE, async || receiver.requests().len() > seen).await?;
    server.kill9().await?;
    receiver.answers(|_, _| Reply::Status(200));
    let (_server, api) = place.start().await?;
    let checked = receiver.inbox().is_exactly(&api).await?;
    ensure!(checked.duplicates >= 1, "{checked:?}");
    Ok(())
}

#[tokio::test]
async fn a_relay_that_is_killed_between_sending_and_its_cursor_is_taken_over() -> Result<()> {
    let receiver = Receiver::up().await?;
    let place = place(&receiver, "", "")?;
    let database = Postgres::shared().await?.create_database("relays").await?;
    let builder = Solehold::builder().engine(&database).arg("--config").arg(place.config());
    let one = builder.start().await?;
    let other = builder.start().await?;
    let first = Api::new(&one)?;
    let second = Api::new(&other)?;
    let sends = async |api: &Api| api.measured("relay_takeovers_total").await.is_ok_and(|count| count > 0.0);
    let is_first = wait_for("one of them to send", PATIENCE, async || {
        let first = sends(&first).await;
        let second = sends(&second).await;
        (first || second).then_some(first)
    });
    let is_first = is_first.await?;
    let (sender, sending, other, standing) =
        if is_first { (one, first, other, second) } else { (other, second, one, first) };
    sending.churn(&KEYS, 2).await?;
    receiver.inbox().is_exactly(&sending).await?;
    // What it sends now is received, and never confirmed.
    receiver.answers(|_, _| Reply::Hang);
    let seen = receiver.requests().len();
    standing.churn(&KEYS, 2).await?;
    wait_for("it to be sent", PATIENCE, async || receiver.requests().len() > seen).await?;
    sender.kill9().await?;
    receiver.answers(|_, _| Reply::Status(200));
    let checked = receiver.inbox().is_exactly(&standing).await?;
    assert_eq!(checked.events, KEYS.len() * 4 * 2);
    ensure!(checked.duplicates >= 1, "it was sent by both: {checked:?}");
    ensure!(sends(&standing).await, "the takeover is counted");
    other.terminate().await?;
    Ok(())
}

/// `bad` is refused, and everything else goes on.
fn refuse_bad(_: usize, body: &Value) -> Reply {
    Reply::Status(if body["key"] == json!("bad") { 422 } else { 200 })
}

#[tokio::test]
async fn what_a_receiver_refuses_for_good_is_a_dead_letter() -> Result<()> {
    let receiver = Receiver::up().await?;
    receiver.answers(refuse_bad);
    let place = place(&receiver, "", "attempts: 2\n")?;
    let (server, api) = place.start().await?;
    api.churn(&["a", "bad", "b"], 2).await?;
    api.measures("relay_dead_lettered_total", |count| count == 4.0).await?;
    api.measures("relay_sent_total", |count| count == 8.0).await?;
    let of_bad = receiver.requests().iter().filter(|(body, _)| body["key"] == json!("bad")).count();
    assert_eq!(of_bad, 4 * 2, "each was tried twice");
    assert_eq!(api.measured("relay_refused_total").await?, 8.0);
    api.measures("relay_lag_events", |lag| lag == 0.0).await?;
    let logs = server.logs();
    ensure!(logs.contains("dead letter") && logs.contains("422"), "{logs}");
    Ok(())
}

#[tokio::test]
async fn with_block_a_refused_event_holds_up_its_resource_and_no_other() -> Result<()> {
    let receiver = Receiver::up().await?;
    receiver.answers(refuse_bad);
    let place = place(&receiver, "", "when_refused: block\n")?;
    let (_server, api) = place.start().await?;
    api.churn(&["a", "bad", "b"], 3).await?;
    api.measures("relay_sent_total", |count| count == 12.0).await?;
    api.measures("relay_refused_total", |count| count >= 3.0).await?;
    let of_bad = receiver.requests().into_iter().filter(|(body, _)| body["key"] == json!("bad"));
    let revisions: std::collections::BTreeSet<_> =
        of_bad.map(|(body, _)| body["details"]["revision"].as_u64()).collect();
    assert_eq!(revisions.len(), 1, "only its first event is tried");
    receiver.answers(|_, _| Reply::Status(200));
    let checked = receiver.inbox().is_exactly(&api).await?;
    assert_eq!((checked.events, checked.duplicates), (18, 0));
    Ok(())
}

/// Events that are not sent stay beyond their age. Beyond their number they go, and the consumer is told.
#[tokio::test]
async fn what_is_not_sent_is_kept_up_to_a_bound_and_a_gap_is_told() -> Result<()> {
    let receiver = Receiver::down()?;
    let kept = "events: { keep: 1ms, keep_max: 30 }\n";
    let place = place(&receiver, kept, "")?;
    let (server, api) = place.start().await?;
    api.churn(&["a"], 5).await?;
    api.measures("relay_lag_seconds", |seconds| seconds > 3.0).await?;
    assert_eq!(api.history().await?.len(), 10, "the oldest are older than what is kept");
    api.churn(&["a"], 20).await?;
    let floor = async || Some(api.export().await.ok()?.first()?["header"]["floor"].as_u64()? > 0);
    wait_for("the bound to be passed", PATIENCE, async || floor().await.unwrap_or_default()).await?;
    // What the relay had read it could still send.
    server.kill9().await?;
    let (server, api) = place.start().await?;
    receiver.start().await?;
    api.measures("relay_gaps_total", |count| count >= 1.0).await?;
    api.measures("relay_lag_events", |lag| lag == 0.0).await?;
    // In order per resource only: while the receiver comes up, an event may arrive before the gap is tried again.
    let (gaps, events): (Vec<_>, Vec<_>) =
        receiver.inbox().all().into_iter().partition(|body| body["event_type"] == "relay_gap");
    let gap = gaps.first().context("no gap was told")?;
    let after = gap["details"]["after"].as_u64();
    let to = gap["details"]["revision"].as_u64();
    ensure!(after < to, "{gap}");
    let rest: Vec<_> = events.iter().filter_map(|body| body["details"]["revision"].as_u64()).collect();
    ensure!(rest.is_sorted() && rest.first() > to.as_ref(), "{gap} and beside it {rest:?}");
    ensure!(server.logs().contains("events were dropped before they were sent"), "{}", server.logs());
    Ok(())
}

#[tokio::test]
async fn renewals_are_sent_where_they_are_asked_for() -> Result<()> {
    let receiver = Receiver::up().await?;
    let place = place(&receiver, "", "renewals: true\nkind: job\n")?;
    let (server, _api) = place.start().await?;
    let client = reqwest::Client::new();
    let lease = format!("{}/api/v1/resources/job/long/lease", server.url());
    let ask = json!({ "holder": "ann", "ttl_ms": 300_000 });
    let granted: Value = client.post(&lease).json(&ask).send().await?.json().await?;
    let names = || receiver.inbox().all().iter().map(|body| body["event_type"].clone()).collect::<Vec<_>>();
    wait_for("a renewal to be told", Duration::from_secs(60), async || {
        let proof = json!({ "token": granted["token"] });
        let renewed = client.post(format!("{lease}/renew")).json(&proof).send().await;
        renewed.is_ok_and(|answer| answer.status().is_success()) && names().contains(&json!("lease_renewed"))
    })
    .await?;
    ensure!(names().contains(&json!("lease_acquired")), "{:?}", names());
    receiver.check_signatures()?;
    Ok(())
}
