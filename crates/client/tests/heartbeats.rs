//! Heartbeats that name the set of leases that they know, by what goes over the wire.

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Bytes, to_bytes},
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use common::{PATIENCE, memory, serve};
use parking_lot::Mutex;
use serde_json::{Value, json};
use solehold_client::{ClientSession, Guard, Http, Lost, Policy, SessionConfig};
use solehold_core::{
    command::{Claim, Command, Target},
    key::{Name, ResourceKey},
};
use solehold_server::Running;
use solehold_testkit::wait_for;
use tokio::net::TcpListener;

/// Most bytes of a body.
const BODY_BYTES_MAX: usize = 1 << 20;

/// How a heartbeat was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answered {
    WithSet,
    WithoutSet,
    /// By a server that does not know the field.
    Refused,
}

/// Stands before a server, and sees its heartbeats. It can be a server of an older version.
struct Front {
    running: Running,
    http: reqwest::Client,
    is_old: AtomicBool,
    heartbeats: Mutex<Vec<Answered>>,
}

impl Front {
    /// It, and a client's session through it, which renews often.
    async fn start(is_old: bool) -> (Arc<Self>, ClientSession) {
        let front = Arc::new(Self {
            running: serve(memory()).await,
            http: reqwest::Client::new(),
            is_old: AtomicBool::new(is_old),
            heartbeats: Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let router = Router::new().fallback(forward).with_state(front.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let config = SessionConfig {
            ttl: Duration::from_secs(10),
            every: Some(Duration::from_millis(50)),
            // One heartbeat that fails would be the end.
            policy: Policy::Immediate,
            ..SessionConfig::new("one")
        };
        let authority = Arc::new(Http::to(format!("http://{address}")).expect("a URL"));
        (front.clone(), ClientSession::open(authority, config).await.expect("a session"))
    }

    fn set_old(&self, is_old: bool) {
        self.is_old.store(is_old, Ordering::SeqCst);
    }

    /// Waits for so many heartbeats from now on that are answered like this.
    async fn sees(&self, count: usize, answered: Answered) {
        let from = self.heartbeats.lock().len();
        let has_seen =
            async || self.heartbeats.lock()[from..].iter().filter(|seen| **seen == answered).count() >= count;
        wait_for(&format!("{count} heartbeats {answered:?}"), PATIENCE, has_seen).await.expect("seen");
    }

    fn count(&self, answered: Answered) -> usize {
        self.heartbeats.lock().iter().filter(|seen| **seen == answered).count()
    }

    async fn revoke(&self, job: &str) {
        let of = |text: &str| Name::new(text).expect("a name");
        let key = ResourceKey::new(of("default"), of("job"), of(job));
        let claim = Claim { target: Target::Resource(key), token: None, session: None, holder: None };
        let command = Command::Revoke { claim, fenced: true, reason: None };
        self.running.engine().submit(command).await.expect("an outcome").expect("revoked");
    }
}

async fn forward(State(front): State<Arc<Front>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, BODY_BYTES_MAX).await.expect("a body");
    let is_old = front.is_old.load(Ordering::SeqCst);
    let is_heartbeat = head.uri.path().ends_with("/heartbeat");
    let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
    if is_heartbeat && is_old && asked.get("known_set").is_some() {
        front.heartbeats.lock().push(Answered::Refused);
        return refusal();
    }
    let mut headers = head.headers;
    headers.remove(header::HOST);
    headers.remove(header::CONTENT_LENGTH);
    let url = format!("{}{}", front.running.url(), head.uri);
    let sent = front.http.request(head.method, url).headers(headers).body(body).send().await;
    let answer = sent.expect("the server answers");
    let status = answer.status();
    let content_type = answer.headers().get(header::CONTENT_TYPE).cloned();
    let mut bytes = answer.bytes().await.expect("an answer");
    if let Ok(Value::Object(mut fields)) = serde_json::from_slice(&bytes) {
        if is_heartbeat && status.is_success() {
            let has_set = fields.contains_key("leases");
            let answered = if has_set { Answered::WithSet } else { Answered::WithoutSet };
            front.heartbeats.lock().push(answered);
        }
        if is_old {
            fields.remove("set_cursor");
            bytes = Bytes::from(Value::Object(fields).to_string());
        }
    }
    let mut headers = HeaderMap::new();
    headers.extend(content_type.map(|content_type| (header::CONTENT_TYPE, content_type)));
    (status, headers, bytes).into_response()
}

/// What a server says that knows no such field.
fn refusal() -> Response {
    let problem = json!({
        "type": "urn:solehold:problem:invalid_field",
        "title": "Invalid field",
        "status": 400,
        "code": "invalid_field",
        "detail": "known_set: is not a field",
        "errors": [{"field": "known_set", "message": "is not a field"}],
    });
    let content_type = [(header::CONTENT_TYPE, "application/problem+json")];
    (StatusCode::BAD_REQUEST, content_type, problem.to_string()).into_response()
}

/// Guards of a session that hears of nothing but renewals for a while: each of them is trusted longer all the time.
async fn are_kept(guards: &[&Guard], work: impl Future<Output = ()>) {
    let before: Vec<_> = guards.iter().map(|guard| guard.deadline()).collect();
    work.await;
    for (guard, before) in guards.iter().zip(before) {
        assert!(guard.is_live() && guard.deadline() > before, "{}", guard.resource());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_that_is_known_is_not_sent_again_and_a_revoked_lease_is_lost() {
    let (front, session) = Front::start(false).await;
    let a = session.acquire("job", "a").await.expect("granted");
    let b = session.acquire("job", "b").await.expect("granted");
    let c = session.acquire("job", "c").await.expect("granted");
    are_kept(&[&a, &b, &c], front.sees(20, Answered::WithoutSet)).await;
    let with_set = front.count(Answered::WithSet);
    assert!(with_set <= 4, "one for each change, and not {with_set}");
    let seen = session.leases();
    assert_eq!(seen.len(), 3, "the set is there, however long ago it was sent: {seen:?}");

    front.revoke("b").await;
    let lost = tokio::time::timeout(PATIENCE, b.lost()).await.expect("told");
    assert_eq!(lost, Lost::Ended);
    are_kept(&[&a, &c], front.sees(20, Answered::WithoutSet)).await;
    assert!(!b.is_live());
    // What was revoked is granted again under another token, and that is known as well.
    let again = session.acquire("job", "b").await.expect("granted");
    assert!(again.token() > b.token());
    are_kept(&[&a, &c, &again], front.sees(20, Answered::WithoutSet)).await;
    assert_eq!(front.count(Answered::Refused), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_server_is_not_shown_what_it_does_not_know() {
    let (front, session) = Front::start(true).await;
    let a = session.acquire("job", "a").await.expect("granted");
    let b = session.acquire("job", "b").await.expect("granted");
    are_kept(&[&a, &b], front.sees(20, Answered::WithSet)).await;
    front.revoke("a").await;
    assert_eq!(tokio::time::timeout(PATIENCE, a.lost()).await.expect("told"), Lost::Ended);
    are_kept(&[&b], front.sees(5, Answered::WithSet)).await;
    assert_eq!((front.count(Answered::Refused), front.count(Answered::WithoutSet)), (0, 0));
}

/// Servers are replaced one by one, and a session meets both versions.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_server_that_refuses_the_field_renews_all_the_same() {
    let (front, session) = Front::start(false).await;
    let guard = session.acquire("job", "a").await.expect("granted");
    for round in 1..=3 {
        are_kept(&[&guard], front.sees(5, Answered::WithoutSet)).await;
        front.set_old(true);
        are_kept(&[&guard], front.sees(5, Answered::WithSet)).await;
        assert_eq!(front.count(Answered::Refused), round, "asked once, and not again");
        front.set_old(false);
    }
    front.set_old(true);
    front.sees(1, Answered::WithSet).await;
    front.revoke("a").await;
    assert_eq!(tokio::time::timeout(PATIENCE, guard.lost()).await.expect("told"), Lost::Ended);
}
