//! The watch over HTTP: what is told, to whom, and how it ends.

mod support;

use futures_util::future::join_all;
use reqwest::{Method, RequestBuilder, Response};
use serde_json::Value;
use solehold_api::sse::{Decoder, Frame};
use solehold_core::{
    command::{Acquire, AskedTenure, Claim, Command, Target, Undeclared},
    key::{Document, LeaseId, ResourceKey},
};
use solehold_engine::store::Retention;
use solehold_server::Role;
use solehold_testkit::wait_for;
use support::{Answer, Asking, PATIENCE, config, memory, name, serve, serve_with};
use tokio::time::timeout;
use uuid::Uuid;

fn key(tenant: &str, kind: &str, key: &str) -> ResourceKey {
    ResourceKey::new(name(tenant), name(kind), name(key))
}

/// Someone takes a resource, straight at the engine.
async fn acquire(asking: &Asking, key: ResourceKey, holder: &str) -> LeaseId {
    let lease = LeaseId::new(&key, Uuid::new_v4());
    let acquire = Acquire {
        key,
        lease,
        holder: name(holder),
        tenure: AskedTenure::Own { ttl_ms: 60_000 },
        request: None,
        attributes: Document::default(),
        undeclared: Undeclared::Allow,
        wait: None,
        slots: None,
        holds_at_most: None,
    };
    asking.running.engine().submit(Command::Acquire(acquire)).await.expect("answered").expect("granted");
    lease
}

fn claim(tenant: &str, id: LeaseId) -> Claim {
    Claim { target: Target::Lease { tenant: name(tenant), id }, token: None, session: None, holder: None }
}

async fn release(asking: &Asking, tenant: &str, id: LeaseId) {
    let release = Command::Release { claim: claim(tenant, id), state: None };
    asking.running.engine().submit(release).await.expect("answered").expect("released");
}

/// A stream that is being read.
struct Reading {
    response: Response,
    decoder: Decoder,
    frames: Vec<Frame>,
    raw: String,
}

impl Reading {
    async fn of(request: RequestBuilder) -> Self {
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status(), 200, "{:?}", response.text().await);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { response, decoder: Decoder::default(), frames: Vec::new(), raw: String::new() }
    }

    async fn open(asking: &Asking, query: &str) -> Self {
        Self::of(asking.request(Method::GET, &format!("/api/v1/watch{query}"))).await
    }

    /// The next frame of that sort, and those before it are left out; none at the end of the stream.
    async fn next(&mut self, sort: &str) -> Option<(String, Value)> {
        loop {
            while !self.frames.is_empty() {
                let frame = self.frames.remove(0);
                if frame.event.as_deref() == Some(sort) {
                    return Some((
                        frame.id.unwrap_or_default(),
                        serde_json::from_str(&frame.data).expect("JSON"),
                    ));
                }
            }
            let piece =
                timeout(PATIENCE, self.response.chunk()).await.expect("in time").expect("a stream")?;
            self.raw.push_str(&String::from_utf8_lossy(&piece));
            self.frames.extend(self.decoder.push(&piece).expect("small frames"));
        }
    }

    async fn event(&mut self) -> (String, Value) {
        self.next("event").await.expect("an event")
    }

    /// The names of what happens next, and to which keys.
    async fn told(&mut self, count: usize) -> Vec<String> {
        let mut told = Vec::new();
        while told.len() < count {
            let (_, event) = self.event().await;
            told.push(format!(
                "{} {}",
                event["event_type"].as_str().expect("a name"),
                event["key"].as_str().expect("a key")
            ));
        }
        told
    }
}

#[tokio::test]
async fn a_snapshot_then_every_change_then_on_from_a_cursor() {
    let asking = serve().await;
    let lease = acquire(&asking, key("default", "job", "a"), "w1").await;
    let mut reading = Reading::open(&asking, "").await;
    let (id, snapshot) = reading.next("snapshot").await.expect("a snapshot");
    assert_eq!(snapshot["more"], false);
    assert_eq!(
        (&snapshot["resources"][0]["key"], &snapshot["resources"][0]["holder"]),
        (&"a".into(), &"w1".into())
    );
    assert_eq!(snapshot["cursor"], id);

    release(&asking, "default", lease).await;
    acquire(&asking, key("default", "job", "b"), "w2").await;
    let (first, event) = reading.event().await;
    assert_eq!((&event["event_type"], &event["cursor"]), (&"lease_released".into(), &first.clone().into()));
    assert_eq!(reading.told(1).await, ["lease_acquired b"]);

    acquire(&asking, key("default", "job", "c"), "w3").await;
    let mut resumed = Reading::open(&asking, &format!("?from={first}")).await;
    assert_eq!(resumed.told(2).await, ["lease_acquired b", "lease_acquired c"]);
    let request = asking.request(Method::GET, "/api/v1/watch?from=0.0").header("last-event-id", &first);
    assert_eq!(Reading::of(request).await.told(1).await, ["lease_acquired b"], "the header goes first");
}

#[tokio::test]
async fn a_released_resource_keeps_its_last_token_in_the_snapshot() {
    let asking = serve().await;
    asking.send(Method::PUT, "/api/v1/resources/job/a", "{}").await;
    let lease = acquire(&asking, key("default", "job", "a"), "w1").await;
    release(&asking, "default", lease).await;
    let (_, snapshot) = Reading::open(&asking, "").await.next("snapshot").await.expect("a snapshot");
    let owned = &snapshot["resources"][0];
    assert!(owned["holder"].is_null() && owned["token"].as_u64() > Some(0), "{owned}");
}

#[tokio::test]
async fn filters_and_tenants() {
    let asking = serve().await;
    let (_, text) = asking.make_key(Role::Reader, Some("blue")).await;
    let (_, admin) = asking.make_key(Role::Admin, None).await;
    let blue = asking.with_key(text);
    let admin = asking.with_key(admin);
    let mut all = Reading::open(&admin, "").await;
    let mut own = Reading::open(&blue, "").await;
    let mut cams = Reading::open(&admin, "?kind=cam&tenant=blue").await;
    let mut theirs = Reading::open(&admin, "?holder=w2").await;
    for (tenant, kind, of, holder) in [
        ("red", "cam", "1", "w1"),
        ("blue", "job", "2", "w2"),
        ("blue", "cam", "3", "w1"),
        ("red", "job", "4", "w2"),
    ] {
        acquire(&asking, key(tenant, kind, of), holder).await;
    }
    let told = |keys: &[&str]| keys.iter().map(|key| format!("lease_acquired {key}")).collect::<Vec<_>>();
    assert_eq!(all.told(4).await, told(&["1", "2", "3", "4"]));
    assert_eq!(own.told(2).await, told(&["2", "3"]));
    assert_eq!(cams.told(1).await, told(&["3"]));
    assert_eq!(theirs.told(2).await, told(&["2", "4"]));
    blue.get("/api/v1/watch?tenant=red").await.problem("not_found");
    blue.get("/api/v1/watch?knid=cam").await.problem("invalid_field");
}

#[tokio::test]
async fn renewals_are_sent_to_watchers_that_request_them() {
    let asking = serve().await;
    let lease = acquire(&asking, key("default", "job", "a"), "w1").await;
    let mut reading = Reading::open(&asking, "?renewals=true").await;
    reading.next("snapshot").await.expect("a snapshot");
    let renew = Command::Renew { claim: claim("default", lease), ttl_ms: None, stats: None };
    asking.running.engine().submit(renew).await.expect("answered").expect("renewed");
    assert_eq!(reading.told(1).await, ["lease_renewed a"]);
}

#[tokio::test]
async fn an_invalid_watch_is_a_problem() {
    let mut config = config();
    config.engine.retention = Retention { events_ms: 0, events_max: 1, unsent_after: None };
    let asking = serve_with(config, memory()).await;
    asking.get("/api/v1/watch?from=nowhere").await.problem("invalid_field");
    asking.get("/api/v1/watch?from=1.999999").await.problem("bad_request");
    asking.get("/api/v1/watch?from=99.1").await.problem("bad_request");
    let odd = asking.request(Method::GET, "/api/v1/watch").header("last-event-id", "x");
    Answer::of(odd).await.problem("invalid_field");
    let epoch = asking.running.engine().export().expect("a store").collect().await.expect("rows");
    let epoch = serde_json::to_value(&epoch[0]).expect("JSON")["header"]["epoch"].as_u64().expect("an epoch");
    for n in 0..5 {
        acquire(&asking, key("default", "job", &n.to_string()), "w").await;
    }
    let path = format!("/api/v1/watch?from={epoch}.1");
    let is_gone =
        async || asking.request(Method::GET, &path).send().await.is_ok_and(|answer| answer.status() == 410);
    wait_for("the first events to be gone", PATIENCE, is_gone).await.expect("410");
    asking.get(&path).await.problem("compacted");
}

#[tokio::test]
async fn a_large_snapshot_comes_in_parts() {
    let asking = serve().await;
    let resources = (0..1_200).map(|n| acquire(&asking, key("default", "job", &format!("{n:04}")), "w"));
    join_all(resources).await;
    let mut reading = Reading::open(&asking, "").await;
    let mut keys = Vec::new();
    loop {
        let (id, part) = reading.next("snapshot").await.expect("a part");
        keys.extend(part["resources"].as_array().expect("resources").iter().map(|r| r["key"].to_string()));
        assert_eq!(id.is_empty(), part["more"] == true, "only the last part can be resumed from");
        if part["more"] == false {
            break;
        }
    }
    assert_eq!(keys.len(), 1_200);
}

#[tokio::test]
async fn open_watches_are_bounded() {
    let mut config = config();
    config.limits.watches_max = 2;
    config.limits.quotas.watches = Some(1);
    let asking = serve_with(config, memory()).await;
    let blue = Reading::open(&asking, "?tenant=blue").await;
    let refused = asking.get("/api/v1/watch?tenant=blue").await;
    assert_eq!(refused.problem("quota_exceeded")["limit"]["name"], "tenant_watches");
    let _red = Reading::open(&asking, "?tenant=red").await;
    let full = asking.get("/api/v1/watch?tenant=green").await;
    assert_eq!(full.problem("overloaded")["limit"]["name"], "watches");
    assert!(asking.get("/metrics").await.text.contains("solehold_watchers 2"));
    drop(blue);
    let again = async || {
        let answer = asking.request(Method::GET, "/api/v1/watch?tenant=blue").send().await;
        answer.is_ok_and(|answer| answer.status() == 200)
    };
    wait_for("a seat to be free again", PATIENCE, again).await.expect("200");
}

#[tokio::test]
async fn a_slow_reader_holds_up_only_itself() {
    let asking = serve().await;
    let mut slow = Reading::open(&asking, "").await;
    let mut quick = Reading::open(&asking, "").await;
    let long = format!(r#"{{"x": "{}"}}"#, "x".repeat(20_000));
    for n in 0..300 {
        let body = format!(r#"{{"attributes": {long}}}"#);
        let put = asking.send(Method::PUT, &format!("/api/v1/resources/job/{n}"), &body).await;
        assert!(put.status.is_success(), "{put:?}");
    }
    let expected: Vec<_> = (0..300).map(|n| format!("resource_declared {n}")).collect();
    assert_eq!(quick.told(300).await, expected);
    assert_eq!(slow.told(300).await, expected, "and it misses nothing");
}

#[tokio::test]
async fn a_watch_ends_with_its_key() {
    let asking = serve().await;
    let (made, text) = asking.make_key(Role::Reader, None).await;
    let reader = asking.with_key(text);
    let mut reading = Reading::open(&reader, "").await;
    reading.next("snapshot").await.expect("a snapshot");
    solehold_server::keys::revoke(asking.running.engine(), &made.id).await.expect("revoked");
    let refused = async || reader.get("/api/v1/resources").await.status == 401;
    wait_for("the key to be refused", PATIENCE, refused).await.expect("401");
    acquire(&asking, key("default", "job", "a"), "w").await;
    assert_eq!(reading.next("event").await, None);
}

#[tokio::test]
async fn a_stopping_server_reports_it() {
    let asking = serve().await;
    let mut reading = Reading::open(&asking, "").await;
    reading.next("snapshot").await.expect("a snapshot");
    let (end, ()) = tokio::join!(reading.next("event"), asking.shutdown());
    assert_eq!(end, None);
    assert!(reading.raw.ends_with(": the server is stopping\n\n"), "{}", reading.raw);
}
