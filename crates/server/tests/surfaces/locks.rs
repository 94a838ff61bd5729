//! Locks: waiting in line for them, over HTTP.

use std::time::Duration;

use serde_json::{Value, json};
use solehold_engine::{clock::BootClock, resident};
use solehold_server::{Server, ServerConfig};
use solehold_testkit::wait_for;
use tokio::task::JoinHandle;

use crate::common::{Answer, Api};

const SOON: Duration = Duration::from_secs(30);

/// Someone who asks for the lock in the background, waiting for as long as may be.
fn ask(api: &Api, name: &str, body: Value) -> JoinHandle<Answer> {
    let api = api.clone();
    let path = format!("/locks/{name}");
    tokio::spawn(async move { api.post(&path, body).await })
}

/// Stands in line, as the `place`th in it.
async fn stand(api: &Api, name: &str, holder: &str, place: u64) -> JoinHandle<Answer> {
    let standing = ask(api, name, json!({"holder": holder, "wait_ms": 30_000}));
    in_line(api, name, place).await;
    standing
}

async fn in_line(api: &Api, name: &str, count: u64) {
    wait_for(&format!("{count} in line"), SOON, async || {
        api.get(&format!("/locks/{name}")).await.body["waiting"] == json!(count)
    })
    .await
    .expect("they stand in line");
}

/// The line of any resource can be seen, not only of a lock.
#[tokio::test]
async fn a_resource_is_shown_with_the_first_in_line() {
    let api = Api::start().await;
    api.put("/resources/job/a", json!({})).await.is(201);
    api.post("/resources/job/a/lease", json!({"holder": "x"})).await.is(201);
    assert_eq!(api.get("/resources/job/a").await.is(200).get("waiters"), None, "nobody waits");
    let session = api.post("/sessions", json!({"holder": "w0"})).await.is(201)["session_id"].clone();
    let mut line = Vec::new();
    for place in 0..10 {
        let session = Some(&session).filter(|_| place == 0);
        let body = json!({"holder": format!("w{place}"), "wait_ms": 30_000, "session_id": session});
        let asking = api.clone();
        line.push(tokio::spawn(async move { asking.post("/resources/job/a/lease", body).await }));
        wait_for("one more in line", SOON, async || {
            api.get("/resources/job/a").await.body["waiting"] == json!(place + 1)
        })
        .await
        .expect("they stand in line");
    }
    let shown = api.get("/resources/job/a").await.is(200);
    let waiters = shown["waiters"].as_array().expect("waiters");
    let holders: Vec<_> = waiters.iter().map(|waiter| waiter["holder"].as_str().expect("a name")).collect();
    assert_eq!(holders, ["w0", "w1", "w2", "w3", "w4", "w5", "w6", "w7"], "the first eight");
    assert_eq!((&waiters[0]["session_id"], &waiters[1]["session_id"]), (&session, &Value::Null));
    let [since, until] = ["since", "until"].map(|field| waiters[0][field].as_str().expect("a time"));
    assert!(since < until, "{shown}");
    let listed = api.get("/resources").await.is(200);
    assert_eq!(listed["resources"][0].get("waiters"), None, "lists come without lines: {listed}");
    line.iter().for_each(JoinHandle::abort);
}

/// How many batches without news there were: a room's heartbeats are among them.
async fn quiet_batches(api: &Api) -> u64 {
    let metrics = reqwest::get(format!("{}/metrics", api.url())).await.expect("an answer").text().await;
    let metrics = metrics.expect("a text");
    let line = metrics.lines().find(|l| l.starts_with("solehold_batch_commands_count{lane=\"quiet\""));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
}

async fn release(api: &Api, name: &str, grant: &Value) {
    api.call("DELETE", &format!("/locks/{name}"), json!({"token": grant["token"]})).await.is(204);
}

/// Who is there, and in which order: for a person who wonders why a command waits.
#[tokio::test]
async fn locks_are_listed_with_their_waiters() {
    let api = Api::start().await;
    assert_eq!(api.get("/locks").await.is(200), json!({"locks": [], "next": null}));
    let grant = api.post("/locks/b", json!({"holder": "x"})).await.is(201);
    api.post("/locks/a", json!({"holder": "y"})).await.is(201);
    api.post("/resources/job/b/lease", json!({"holder": "z"})).await.is(201);
    let _second = stand(&api, "b", "second", 1).await;
    let _third = stand(&api, "b", "third", 2).await;
    let page = api.get("/locks?limit=1").await.is(200);
    assert_eq!((&page["locks"][0]["name"], &page["locks"][0]["waiting"]), (&json!("a"), &json!(0)));
    let next = crate::common::segment(page["next"].as_str().expect("a next page"));
    let page = api.get(&format!("/locks?limit=1&cursor={next}")).await.is(200);
    let lock = &page["locks"][0];
    assert_eq!((&lock["name"], &lock["lease"]["token"]), (&json!("b"), &grant["token"]));
    assert_eq!((&lock["waiting"], &page["next"]), (&json!(2), &json!(null)));
    let waiters: Vec<_> = lock["waiters"].as_array().expect("waiters").iter().map(|w| &w["holder"]).collect();
    assert_eq!(waiters, ["second", "third"]);
    let [since, until] = ["since", "until"].map(|field| lock["waiters"][0][field].as_str().expect("a time"));
    assert!(since.starts_with("20") && since < until, "{lock}");
    let metrics = reqwest::get(format!("{}/metrics", api.url())).await.expect("an answer");
    let metrics = metrics.text().await.expect("a text");
    assert!(metrics.contains("\nsolehold_waiters 2\n"), "{metrics}");
}

#[tokio::test]
async fn a_free_lock_is_granted_at_once() {
    let api = Api::start().await;
    let grant = api.post("/locks/a", json!({"holder": "x", "wait_ms": 30_000})).await.is(201);
    assert_eq!((&grant["kind"], &grant["key"], &grant["holder"]), (&json!("lock"), &json!("a"), &json!("x")));
    assert_eq!(grant.get("confirm_within_ms"), None, "it was not waited for");
    let shown = api.get("/locks/a").await.is(200);
    assert_eq!((&shown["lease"]["token"], &shown["waiting"]), (&grant["token"], &json!(0)));
    let renewed =
        api.post("/locks/a/renew", json!({"token": grant["token"], "ttl_ms": 60_000})).await.is(200);
    assert_eq!(renewed["ttl_ms"], 60_000);
    let refused = api.post("/locks/a", json!({"holder": "y"})).await.problem(409, "held");
    assert_eq!((&refused["holder"], &refused["token"]), (&json!("x"), &grant["token"]));
    release(&api, "a", &grant).await;
    api.get("/locks/a").await.problem(404, "not_found");
    let lost = api.post("/locks/a/renew", json!({"token": grant["token"]})).await.problem(409, "lost");
    assert_eq!((&lost["ended"]["status"], &lost["ended"]["token"]), (&json!("released"), &grant["token"]));
}

#[tokio::test]
async fn the_line_is_served_in_order() {
    let api = Api::start().await;
    let mut held = api.post("/locks/a", json!({"holder": "first"})).await.is(201);
    let mut line = Vec::new();
    for place in 1..=5 {
        line.push(stand(&api, "a", &format!("w{place}"), place).await);
    }
    for (place, standing) in line.into_iter().enumerate() {
        release(&api, "a", &held).await;
        let grant = standing.await.expect("an answer").is(201);
        assert_eq!(grant["holder"], json!(format!("w{}", place + 1)));
        assert!(grant["token"].as_u64() > held["token"].as_u64());
        assert_eq!((&grant["confirm_within_ms"], &grant["ttl_ms"]), (&json!(2_000), &json!(2_000)));
        let renewed = api.post("/locks/a/renew", json!({"token": grant["token"]})).await.is(200);
        assert_eq!((renewed.get("confirm_within_ms"), &renewed["ttl_ms"]), (None, &json!(30_000)));
        held = grant;
    }
}

/// A client author who relies on "one heartbeat renews everything" must be able to see what it does not.
#[tokio::test]
async fn a_session_heartbeat_does_not_confirm_a_grant_after_waiting() {
    let api = Api::start().await;
    let held = api.post("/locks/a", json!({"holder": "x"})).await.is(201);
    let session = api.post("/sessions", json!({"holder": "y", "ttl_ms": 30_000})).await.is(201);
    let heartbeat = format!("/sessions/{}/heartbeat", session["session_id"].as_str().expect("an id"));
    let waiting =
        ask(&api, "a", json!({"holder": "y", "session_id": session["session_id"], "wait_ms": 30_000}));
    in_line(&api, "a", 1).await;
    release(&api, "a", &held).await;
    let grant = waiting.await.expect("an answer").is(201);
    api.pass_seconds(1);
    let kept = api.put(&heartbeat, json!({})).await.is(200);
    let lease = &kept["leases"][0];
    assert_eq!((&lease["token"], &lease["confirm_within_ms"]), (&grant["token"], &json!(1_000)), "{kept}");
    assert_eq!(kept.get("set_cursor"), None, "it may lapse as time passes: the set cannot be named yet");
    api.post("/locks/a/renew", json!({"session_id": session["session_id"]})).await.is(200);
    let kept = api.put(&heartbeat, json!({})).await.is(200);
    assert_eq!(kept["leases"][0].get("confirm_within_ms"), None, "{kept}");
    let known = json!({"known_set": kept["set_cursor"]});
    assert_eq!(api.put(&heartbeat, known).await.is(200).get("leases"), None, "now it can");
    api.pass_seconds(5);
    let kept = api.put(&heartbeat, json!({})).await.is(200);
    assert_eq!(kept["leases"][0]["token"], grant["token"], "{kept}");
}

#[tokio::test]
async fn an_unconfirmed_grant_goes_to_the_next_waiter() {
    let api = Api::start().await;
    let held = api.post("/locks/a", json!({"holder": "x"})).await.is(201);
    let one = stand(&api, "a", "one", 1).await;
    let two = stand(&api, "a", "two", 2).await;
    release(&api, "a", &held).await;
    let lapsed = one.await.expect("an answer").is(201);
    // Time passes for the rooms' heartbeats, too, so it passes in steps that they outlive.
    api.pass_seconds(1);
    api.pass_seconds(1);
    let next = two.await.expect("an answer").is(201);
    assert!(next["token"].as_u64() > lapsed["token"].as_u64());
    api.post("/locks/a/renew", json!({"token": lapsed["token"]})).await.problem(409, "lost");
}

#[tokio::test]
async fn whoever_hangs_up_leaves_the_line() {
    let api = Api::start().await;
    let held = api.post("/locks/a", json!({"holder": "x"})).await.is(201);
    let one = stand(&api, "a", "one", 1).await;
    let two = stand(&api, "a", "two", 2).await;
    one.abort();
    in_line(&api, "a", 1).await;
    release(&api, "a", &held).await;
    assert_eq!(two.await.expect("an answer").is(201)["holder"], "two");
}

#[tokio::test]
async fn a_wait_ends_with_who_holds_it() {
    let api = Api::start().await;
    let held = api.post("/locks/a", json!({"holder": "x", "ttl_ms": 60_000})).await.is(201);
    let refused = api.post("/locks/a", json!({"holder": "y", "wait_ms": 50})).await.problem(409, "held");
    assert_eq!((&refused["holder"], &refused["token"]), (&json!("x"), &held["token"]));
    assert!(refused["retry_after_ms"].as_u64().is_some_and(|ms| ms > 50_000), "{refused}");
    in_line(&api, "a", 0).await;
}

#[tokio::test]
async fn the_same_request_keeps_its_place() {
    let api = Api::start().await;
    let held = api.post("/locks/a", json!({"holder": "x"})).await.is(201);
    let body = json!({"holder": "one", "request_id": "r", "wait_ms": 30_000});
    let first = ask(&api, "a", body.clone());
    in_line(&api, "a", 1).await;
    let two = stand(&api, "a", "two", 2).await;
    // The client has lost its connection, as far as it knows, and asks again; the server has not heard of that.
    let again = ask(&api, "a", body);
    // The former call must not take the place back when the room finds one fewer in line than there are.
    let beats = quiet_batches(&api).await;
    wait_for("a few heartbeats of the room", SOON, async || quiet_batches(&api).await >= beats + 6)
        .await
        .expect("the room is kept");
    in_line(&api, "a", 2).await;
    release(&api, "a", &held).await;
    let grant = again.await.expect("an answer").is(201);
    assert_eq!(grant["holder"], "one");
    assert!(!two.is_finished() && !first.is_finished());
    api.post("/locks/a/renew", json!({"token": grant["token"]})).await.is(200);
    release(&api, "a", &grant).await;
    assert_eq!(two.await.expect("an answer").is(201)["holder"], "two");
}

#[tokio::test]
async fn any_resource_can_be_waited_for() {
    let api = Api::start().await;
    let session = api.post("/sessions", json!({"holder": "w", "ttl_ms": 20_000})).await.is(201);
    api.put("/resources/job/nightly", json!({})).await.is(201);
    let held = api.post("/resources/job/nightly/lease", json!({"holder": "x"})).await.is(201);
    let waits = json!({"holder": "w", "session_id": session["session_id"], "wait_ms": 30_000});
    let standing = {
        let api = api.clone();
        tokio::spawn(async move { api.post("/resources/job/nightly/lease", waits).await })
    };
    wait_for("one in line", SOON, async || {
        api.get("/resources/job/nightly").await.body["waiting"] == json!(1)
    })
    .await
    .expect("it stands in line");
    api.call("DELETE", "/resources/job/nightly/lease", json!({"lease_id": held["lease_id"]})).await.is(204);
    let grant = standing.await.expect("an answer").is(201);
    assert_eq!(grant["session_id"], session["session_id"]);
    // A heartbeat of the session does not confirm it; a renewal that proves the lease does.
    let beat = format!("/sessions/{}/heartbeat", session["session_id"].as_str().expect("an id"));
    api.put(&beat, json!({})).await.is(200);
    let shown = api.get("/resources/job/nightly/lease").await.is(200);
    assert_eq!(shown["ttl_ms"], 2_000);
    let proof = json!({"session_id": session["session_id"]});
    assert_eq!(api.post("/resources/job/nightly/lease/renew", proof).await.is(200)["ttl_ms"], 20_000);
}

#[tokio::test]
async fn a_wait_has_bounds() {
    let api = Api::start().await;
    for wrong in [json!(30_001), json!(-1), json!(1.5)] {
        let problem = api
            .post("/locks/a", json!({"holder": "x", "wait_ms": wrong}))
            .await
            .problem(400, "invalid_field");
        assert_eq!(problem["errors"][0]["field"], "wait_ms", "{problem}");
    }
    api.post("/locks/a", json!({"holder_id": "x"})).await.problem(400, "invalid_field");
    api.get("/locks/a").await.problem(404, "not_found");
}

#[tokio::test]
async fn a_server_that_stops_lets_everyone_go() {
    let store = resident::memory(BootClock).expect("a store in memory");
    let listen = "127.0.0.1:0".parse().expect("an address");
    let server = Server::start(ServerConfig { listen, ..Default::default() }, store).await.expect("a server");
    let http = reqwest::Client::new();
    let lock = format!("{}/api/v1/locks/a", server.url());
    let ask = |holder: &str| http.post(&lock).json(&json!({"holder": holder, "wait_ms": 30_000})).send();
    assert_eq!(ask("x").await.expect("an answer").status(), 201);
    let standing = tokio::spawn(ask("one"));
    wait_for("one in line", SOON, async || {
        let shown: Value = http.get(&lock).send().await.ok()?.json().await.ok()?;
        (shown["waiting"] == json!(1)).then_some(())
    })
    .await
    .expect("it stands in line");
    server.shutdown().await;
    let answer = standing.await.expect("a task").expect("an answer");
    assert_eq!(answer.status(), 503);
    assert!(answer.headers().contains_key("retry-after"), "{answer:?}");
}
