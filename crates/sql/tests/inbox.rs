//! Commands that arrive twice, against a real PostgreSQL.
#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

mod kit;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::{Extension, Router, routing::post};
use deadpool_postgres::Pool;
use kit::{Kit, PATIENCE, connect, pool};
use serde_json::{Value, json};
use solehold_sql::inbox::http::{IDEMPOTENCY_REPLAYED, IdempotencyLayer, Idempotent, StoredResponse};
use solehold_sql::inbox::{CommandStatus, Inbox, Key, Mark, Marked, PayloadHash, Ticket};
use solehold_sql::{ClaimOutcome, Error, LossReason, limits};
use solehold_testkit::wait_for;
use tower::ServiceExt;

const LEASE: Duration = Duration::from_secs(600);

async fn inbox() -> (Kit, Inbox) {
    let kit = Kit::new(0).await;
    let inbox = Inbox::new("app.inbox").unwrap();
    kit.client.batch_execute(&inbox.migration()).await.unwrap();
    kit.client.batch_execute(&inbox.migration()).await.unwrap();
    (kit, inbox)
}

fn key(id: &str) -> Key {
    Key::new("tenant", "payments.create", id).unwrap()
}

fn started(begun: CommandStatus) -> Ticket {
    let CommandStatus::Started(ticket) = begun else { panic!("{begun:?}") };
    ticket
}

#[tokio::test]
async fn a_command_takes_effect_once_and_keeps_its_result() {
    let (mut kit, inbox) = inbox().await;
    let payload = PayloadHash::of(b"10 euros");
    let ticket = started(inbox.begin(&kit.client, &key("1"), payload, LEASE).await.unwrap());
    let second = inbox.begin(&kit.client, &key("1"), payload, LEASE).await.unwrap();
    assert!(
        matches!(second, CommandStatus::InProgress { retry_after } if retry_after > LEASE / 2),
        "{second:?}"
    );
    let tx = kit.client.transaction().await.unwrap();
    tx.execute("INSERT INTO app.outbox (payment, epoch) VALUES (1, 1)", &[]).await.unwrap();
    assert_eq!(inbox.complete(&tx, &ticket, &json!({"id": 7})).await.unwrap(), ClaimOutcome::Done);
    tx.commit().await.unwrap();
    let again = inbox.begin(&kit.client, &key("1"), payload, LEASE).await.unwrap();
    assert_eq!(again, CommandStatus::Done(json!({"id": 7})));
    let other = inbox.begin(&kit.client, &key("1"), PayloadHash::of(b"20 euros"), LEASE).await.unwrap();
    assert_eq!(other, CommandStatus::Conflict);
    // Another scope, another type, another id: other commands.
    for key in [Key::new("other", "payments.create", "1"), Key::new("tenant", "payments.cancel", "1")] {
        started(inbox.begin(&kit.client, &key.unwrap(), payload, LEASE).await.unwrap());
    }
    let twice = inbox.complete(&kit.client, &ticket, &json!({"id": 8})).await.unwrap();
    assert_eq!(twice, ClaimOutcome::Lost { why: LossReason::Ended });
}

#[tokio::test]
async fn an_effect_that_rolls_back_leaves_no_mark() {
    let (mut kit, inbox) = inbox().await;
    let payload = PayloadHash::of(b"x");
    let ticket = started(inbox.begin(&kit.client, &key("1"), payload, LEASE).await.unwrap());
    let tx = kit.client.transaction().await.unwrap();
    assert_eq!(inbox.complete(&tx, &ticket, &Value::Null).await.unwrap(), ClaimOutcome::Done);
    tx.rollback().await.unwrap();
    assert_eq!(inbox.abandon(&kit.client, &ticket).await.unwrap(), ClaimOutcome::Done);
    let next = started(inbox.begin(&kit.client, &key("1"), payload, LEASE).await.unwrap());
    assert!(next.epoch() > ticket.epoch());
    let late = inbox.complete(&kit.client, &ticket, &Value::Null).await.unwrap();
    assert_eq!(late, ClaimOutcome::Lost { why: LossReason::Taken { owner: None, epoch: next.epoch() } });
}

#[tokio::test]
async fn who_was_too_slow_completes_nothing() {
    let (kit, inbox) = inbox().await;
    let payload = PayloadHash::of(b"x");
    let slow = started(inbox.begin(&kit.client, &key("1"), payload, limits::LEASE_MIN).await.unwrap());
    let next = wait_for("the time to run out", PATIENCE, async || {
        match inbox.begin(&kit.client, &key("1"), payload, LEASE).await.unwrap() {
            CommandStatus::Started(ticket) => Some(ticket),
            _ => None,
        }
    });
    let next = next.await.unwrap();
    assert!(!inbox.complete(&kit.client, &slow, &Value::Null).await.unwrap().is_done());
    assert!(inbox.complete(&kit.client, &next, &Value::Null).await.unwrap().is_done());
    // Forgotten and begun again: the old epoch does not come back.
    assert_eq!(inbox.prune(&kit.client, Duration::ZERO, 10).await.unwrap(), 1);
    let gone = inbox.complete(&kit.client, &slow, &Value::Null).await.unwrap();
    assert_eq!(gone, ClaimOutcome::Lost { why: LossReason::Gone });
    let anew = started(inbox.begin(&kit.client, &key("1"), payload, LEASE).await.unwrap());
    assert!(anew.epoch() > next.epoch());
}

/// In one transaction from begin to complete, a second sender waits, and finds the result.
#[tokio::test]
async fn in_one_transaction_the_second_waits_for_the_first() {
    let (mut kit, inbox) = inbox().await;
    let payload = PayloadHash::of(b"x");
    let tx = kit.client.transaction().await.unwrap();
    let ticket = started(inbox.begin(&tx, &key("1"), payload, LEASE).await.unwrap());
    let url = kit.url.clone();
    let second = inbox.clone();
    let waiting = tokio::spawn(async move {
        let client = connect(&url).await;
        second.begin(&client, &key("1"), payload, LEASE).await
    });
    let other = connect(&kit.url).await;
    let waits = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database())";
    wait_for("the second to wait", PATIENCE, async || {
        other.query_one(waits, &[]).await.unwrap().get::<_, bool>(0)
    })
    .await
    .unwrap();
    assert!(inbox.complete(&tx, &ticket, &json!(1)).await.unwrap().is_done());
    tx.commit().await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap(), CommandStatus::Done(json!(1)));
}

#[tokio::test]
async fn bad_input_is_refused() {
    let (kit, inbox) = inbox().await;
    let error = inbox.begin(&kit.client, &key("1"), PayloadHash::of(b""), Duration::ZERO).await.unwrap_err();
    assert!(error.to_string().contains("lease"));
    let ticket = started(inbox.begin(&kit.client, &key("1"), PayloadHash::of(b""), LEASE).await.unwrap());
    let huge = Value::String("x".repeat(limits::INBOX_RESULT_BYTES_MAX));
    assert!(matches!(inbox.complete(&kit.client, &ticket, &huge).await, Err(Error::Invalid { .. })));
}

#[derive(Clone)]
struct App {
    pool: Pool,
    calls: Arc<AtomicUsize>,
}

async fn create(
    State(app): State<App>,
    idempotent: Option<Extension<Idempotent>>,
    body: String,
) -> StoredResponse {
    let call = app.calls.fetch_add(1, Ordering::SeqCst) + 1;
    let mut client = app.pool.get().await.unwrap();
    let tx = client.transaction().await.unwrap();
    tx.execute("INSERT INTO app.outbox (payment, epoch) VALUES (1, 1)", &[]).await.unwrap();
    if body == "fail" && call == 1 {
        return StoredResponse::json(500, &json!({"call": call}));
    }
    let answer = StoredResponse::json(201, &json!({"call": call}));
    if let Some(Extension(idempotent)) = idempotent {
        assert!(idempotent.complete(&*tx, &answer).await.unwrap().is_done());
    }
    tx.commit().await.unwrap();
    answer
}

async fn app(required: bool) -> (Kit, Router, Arc<AtomicUsize>) {
    let (kit, inbox) = inbox().await;
    let pool = pool(&kit.url);
    let mut layer = IdempotencyLayer::new(inbox, pool.clone(), |parts| {
        parts.headers.get("tenant").map(|t| t.to_str().unwrap().to_owned()).unwrap_or_default()
    });
    if required {
        layer = layer.required();
    }
    let calls = Arc::new(AtomicUsize::new(0));
    let app = App { pool, calls: calls.clone() };
    (
        kit,
        Router::new().route("/payments", post(create).get(|| async { "list" })).layer(layer).with_state(app),
        calls,
    )
}

async fn send(app: &Router, headers: &[(&str, &str)], body: &str) -> (StatusCode, bool, String) {
    let mut request = Request::post("/payments");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = app.clone().oneshot(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap();
    let replayed = response.headers().contains_key(IDEMPOTENCY_REPLAYED);
    let status = response.status();
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, replayed, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn over_http_a_repeat_gets_the_same_answer() {
    let (kit, app, calls) = app(false).await;
    let key = ("Idempotency-Key", "\"k1\"");
    let first = send(&app, &[key], "a").await;
    assert_eq!(first, (StatusCode::CREATED, false, "{\"call\":1}".into()));
    // With or without the quotes of a structured header.
    assert_eq!(send(&app, &[("idempotency-key", "k1")], "a").await, (StatusCode::CREATED, true, first.2));
    let (status, _, body) = send(&app, &[key], "b").await;
    assert!(status == StatusCode::CONFLICT && body.contains("idempotency_key_reused"), "{status} {body}");
    assert_eq!(send(&app, &[key, ("tenant", "t2")], "b").await.0, StatusCode::CREATED);
    assert_eq!(send(&app, &[], "a").await.2, "{\"call\":3}");
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    assert_eq!(kit.one::<i64>("SELECT count(*) FROM app.outbox", &[]).await, 3);
    for bad in ["", &"x".repeat(256)] {
        let (status, _, body) = send(&app, &[("idempotency-key", bad)], "a").await;
        assert!(status == StatusCode::BAD_REQUEST && body.contains("1 to 255"), "{body}");
    }
    let several = send(&app, &[("idempotency-key", "a"), ("idempotency-key", "b")], "a").await;
    assert_eq!(several.0, StatusCode::BAD_REQUEST);
    let huge = "x".repeat(limits::IDEMPOTENT_BODY_BYTES_MAX + 1);
    assert_eq!(send(&app, &[("idempotency-key", "big")], &huge).await.0, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn over_http_what_failed_may_be_tried_again() {
    let (kit, app, _) = app(true).await;
    let key = ("idempotency-key", "k1");
    assert_eq!(send(&app, &[key], "fail").await.0, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(send(&app, &[key], "fail").await, (StatusCode::CREATED, false, "{\"call\":2}".into()));
    assert_eq!(kit.one::<i64>("SELECT count(*) FROM app.outbox", &[]).await, 1);
    let (status, _, body) = send(&app, &[], "a").await;
    assert!(status == StatusCode::BAD_REQUEST && body.contains("idempotency_key_missing"), "{body}");
    let list = app.clone().oneshot(Request::get("/payments").body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(list.status(), StatusCode::OK, "reading needs no key");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn over_http_many_at_once_take_effect_once() {
    let (kit, app, _) = app(true).await;
    let sent: Vec<_> = (0..20)
        .map(|_| {
            let app = app.clone();
            tokio::spawn(async move { send(&app, &[("idempotency-key", "k1")], "a").await.0 })
        })
        .collect();
    let mut created = 0;
    for one in sent {
        match one.await.unwrap() {
            StatusCode::CREATED => created += 1,
            other => assert_eq!(other, StatusCode::CONFLICT),
        }
    }
    assert!(created >= 1);
    assert_eq!(kit.one::<i64>("SELECT count(*) FROM app.outbox", &[]).await, 1);
}

fn mark(command: &str, id: &str, payload: &[u8], position: i64) -> Mark {
    Mark { key: Key::new("0", command, id).unwrap(), payload: PayloadHash::of(payload), position }
}

#[tokio::test]
async fn many_commands_are_marked_at_once() {
    let (mut kit, inbox) = inbox().await;
    let first = [
        mark("CREATE", "a", b"1", 10),
        mark("CREATE", "b", b"1", 11),
        mark("CREATE", "a", b"1", 12),
        mark("CANCEL", "a", b"1", 13),
        mark("CREATE", "b", b"2", 14),
    ];
    let tx = kit.client.transaction().await.unwrap();
    let met = inbox.mark_all(&tx, &first).await.unwrap();
    assert_eq!(met, [Marked::New, Marked::New, Marked::Seen, Marked::New, Marked::Conflict]);
    tx.rollback().await.unwrap();
    assert_eq!(inbox.look_for(&kit.client, &first[..1]).await.unwrap(), [Marked::New], "rolled back");
    inbox.mark_all(&kit.client, &first).await.unwrap();
    let met = inbox.look_for(&kit.client, &first).await.unwrap();
    assert_eq!(met, [Marked::Seen, Marked::Seen, Marked::Seen, Marked::Seen, Marked::Conflict]);
    inbox.unmark(&kit.client, &first[..1]).await.unwrap();
    assert_eq!(inbox.mark_all(&kit.client, &first[..1]).await.unwrap(), [Marked::New]);
    assert_eq!(inbox.mark_all(&kit.client, &[]).await.unwrap(), []);
}

#[tokio::test]
async fn marks_are_deleted_behind_the_position_only_and_listed_and_cleared() {
    let (kit, inbox) = inbox().await;
    let marks: Vec<Mark> = (0..10).map(|n| mark("CREATE", &format!("job-{n}"), b"1", n)).collect();
    inbox.mark_all(&kit.client, &marks).await.unwrap();
    let prune = async |position, age, limit| inbox.prune_below(&kit.client, "0", position, age, limit).await;
    assert_eq!(prune(10, LEASE, 100).await.unwrap(), 0, "they are young");
    assert_eq!(prune(4, Duration::ZERO, 3).await.unwrap(), 3, "a bite at a time");
    assert_eq!(prune(4, Duration::ZERO, 100).await.unwrap(), 1, "those above may be needed");
    let listed = inbox.list_marks(&kit.client, None, ("", "", ""), 2).await.unwrap();
    assert_eq!(listed.iter().map(|mark| mark.id.as_str()).collect::<Vec<_>>(), ["job-4", "job-5"]);
    let last = &listed[1];
    let after = (last.scope.as_str(), last.command.as_str(), last.id.as_str());
    let next = inbox.list_marks(&kit.client, None, after, 100).await.unwrap();
    assert_eq!((next.len(), next[0].position), (4, Some(6)));
    assert_eq!(inbox.clear_marks(&kit.client, "job-7", Some("CANCEL")).await.unwrap(), 0);
    assert_eq!(inbox.clear_marks(&kit.client, "job-7", None).await.unwrap(), 1);
    assert!(inbox.list_marks(&kit.client, Some("job-7"), ("", "", ""), 100).await.unwrap().is_empty());
}
