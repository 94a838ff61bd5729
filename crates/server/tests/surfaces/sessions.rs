//! Sessions, and the nodes that have one.

use std::time::Duration;

use serde_json::{Value, json};
use solehold_testkit::wait_for;
use uuid::Uuid;

use crate::common::Api;

async fn open(api: &Api, holder: &str) -> String {
    let session = api.post("/sessions", json!({"holder": holder, "ttl_seconds": 10})).await.is(201);
    session["session_id"].as_str().expect("an id").to_owned()
}

async fn hold(api: &Api, key: &str, holder: &str, session: &str) -> Value {
    api.post(&format!("/resources/chat/{key}/lease"), json!({"holder": holder, "session_id": session}))
        .await
        .is(201)
}

#[tokio::test]
async fn a_session_keeps_its_leases_alive() {
    let api = Api::start().await;
    let id = open(&api, "node-1").await;
    let grant = hold(&api, "c1", "node-1", &id).await;
    assert_eq!((&grant["session_id"], &grant["ttl_ms"]), (&json!(id), &json!(10_000)));
    api.pass_seconds(8);
    let shown = api.get(&format!("/sessions/{id}")).await.is(200);
    assert_eq!((&shown["ttl_ms"], &shown["leases"][0]["ttl_ms"]), (&json!(2_000), &json!(2_000)));
    let kept = api.put(&format!("/sessions/{id}/heartbeat"), json!({"metrics": {"chats": 7}})).await.is(200);
    assert_eq!((&kept["ttl_ms"], &kept["leases"][0]["ttl_ms"]), (&json!(10_000), &json!(10_000)));
    assert_eq!((&kept["leases"][0]["key"], &kept["revision"]), (&json!("c1"), &grant["token"]));

    let nodes = api.get("/nodes").await.is(200);
    let node = &nodes["nodes"][0];
    assert_eq!(
        (&node["node_id"], &node["metrics"], &node["lease_count"]),
        (&json!("node-1"), &json!({"chats": 7}), &json!(1))
    );
    let closed = api.delete(&format!("/sessions/{id}")).await.is(200);
    assert_eq!(closed["released"], 1);
    api.get("/resources/chat/c1").await.problem(404, "not_found");
    for (method, path) in [("GET", ""), ("DELETE", ""), ("PUT", "/heartbeat")] {
        api.send(method, &format!("/sessions/{id}{path}"), "").await.problem(404, "no_session");
    }
    assert_eq!(api.get("/nodes").await.is(200)["nodes"], json!([]));
}

/// A heartbeat of a holder that knows this set.
async fn beat(api: &Api, id: &str, known: &Value) -> Value {
    let body = if known.is_null() { json!({}) } else { json!({"known_set": known}) };
    api.put(&format!("/sessions/{id}/heartbeat"), body).await.is(200)
}

/// The keys of a set that was sent, sorted; none if the answer has no set.
fn keys(answer: &Value) -> Option<Vec<&str>> {
    let leases = answer.get("leases")?.as_array().expect("a list");
    let mut keys: Vec<_> = leases.iter().map(|lease| lease["key"].as_str().expect("a key")).collect();
    keys.sort_unstable();
    Some(keys)
}

#[tokio::test]
async fn a_set_that_its_holder_knows_is_sent_again_only_when_it_has_changed() {
    let api = Api::start().await;
    let id = open(&api, "node-1").await;
    let first = hold(&api, "c1", "node-1", &id).await;
    let second = hold(&api, "c2", "node-1", &id).await;
    let told = beat(&api, &id, &Value::Null).await;
    let known = told["set_cursor"].clone();
    assert_eq!(known, json!(format!("{}.{}", told["epoch"], second["token"])));
    assert_eq!(beat(&api, &id, &Value::Null).await, told, "without the field it is as it was");
    for _ in 0..3 {
        api.pass_seconds(8);
        let same = beat(&api, &id, &known).await;
        assert_eq!((same.get("leases"), same.get("pending")), (None, None), "absent, and not empty");
        for field in ["session_id", "holder", "standing", "slack_ms", "epoch", "revision", "set_cursor"] {
            assert_eq!(same[field], told[field], "{field}");
        }
        assert_eq!((&same["ttl_ms"], &same["full_ttl_ms"]), (&json!(10_000), &json!(10_000)), "renewed");
        assert_ne!(same["renewed_at"], told["renewed_at"]);
        let lease = api.get("/resources/chat/c1").await.is(200)["lease"].clone();
        assert_eq!(lease["expires_at"], same["expires_at"], "and so is everything that is attached to it");
    }
    // Another set, another history, or nothing that is one.
    let revision = told["revision"].as_u64().expect("a number");
    for other in [format!("1.{}", revision - 1), format!("1.{}", revision + 1), format!("2.{revision}")] {
        assert_eq!(keys(&beat(&api, &id, &json!(other)).await), Some(vec!["c1", "c2"]), "{other}");
    }
    for odd in [json!(revision), json!("1"), json!("-1.2"), json!({})] {
        let path = format!("/sessions/{id}/heartbeat");
        let problem = api.put(&path, json!({"known_set": odd})).await.problem(400, "invalid_field");
        assert_eq!(problem["errors"][0]["field"], "known_set");
    }

    hold(&api, "c3", "node-1", &id).await;
    let more = beat(&api, &id, &known).await;
    assert_eq!(keys(&more), Some(vec!["c1", "c2", "c3"]), "granted");
    assert_eq!(keys(&beat(&api, &id, &known).await).map(|keys| keys.len()), Some(3), "it knows the old one");
    let lease = json!({"token": first["token"]});
    api.call("DELETE", "/resources/chat/c1/lease", lease).await.is(204);
    let fewer = beat(&api, &id, &more["set_cursor"]).await;
    assert_eq!(keys(&fewer), Some(vec!["c2", "c3"]), "released");
    api.post("/resources/chat/c2/lease/revoke", json!({})).await.is(200);
    let revoked = beat(&api, &id, &fewer["set_cursor"]).await;
    assert_eq!(keys(&revoked), Some(vec!["c3"]), "revoked");
    assert_eq!(keys(&beat(&api, &id, &revoked["set_cursor"]).await), None);
    // A session without leases has a set as well, and its end is told to whoever knows it.
    api.delete(&format!("/sessions/{id}")).await.is(200);
    let path = format!("/sessions/{id}/heartbeat");
    api.put(&path, json!({"known_set": revoked["set_cursor"]})).await.problem(404, "no_session");
    let empty = open(&api, "node-1").await;
    let told = beat(&api, &empty, &Value::Null).await;
    assert_eq!(keys(&told), Some(vec![]));
    assert_eq!(keys(&beat(&api, &empty, &told["set_cursor"]).await), None);
}

/// A drain is an answer to a heartbeat that knows its set: it changes the session, and no lease.
#[tokio::test]
async fn a_holder_that_knows_its_set_is_told_that_it_drains() {
    let api = Api::start().await;
    let registered = api.post("/runners/register", json!({"runner_id": "r1"})).await.is(200);
    let id = registered["session_id"].as_str().expect("an id");
    let known = beat(&api, id, &Value::Null).await["set_cursor"].clone();
    assert_eq!(beat(&api, id, &known).await["standing"], "current");
    api.put("/runners/r1/status", json!({"status": "draining"})).await.is(200);
    let told = beat(&api, id, &known).await;
    assert_eq!((&told["standing"], told.get("leases")), (&json!("draining"), None));
}

/// An offer lapses as time passes, before any event says so: whoever knew it is told.
#[tokio::test]
async fn a_set_with_a_hand_over_is_always_sent() {
    let api = Api::start().await;
    let long = async |holder: &str| {
        let opened = api.post("/sessions", json!({"holder": holder, "ttl_seconds": 300})).await.is(201);
        opened["session_id"].as_str().expect("an id").to_owned()
    };
    let one = long("node-1").await;
    let two = long("node-2").await;
    hold(&api, "c1", "node-1", &one).await;
    let known_by_one = beat(&api, &one, &Value::Null).await["set_cursor"].clone();
    let known_by_two = beat(&api, &two, &Value::Null).await["set_cursor"].clone();
    assert!(known_by_one.is_string() && known_by_two.is_string());
    api.post("/resources/chat/c1/handover", json!({"to": "node-2", "ttl_seconds": 20})).await.is(201);
    for _ in 0..2 {
        let asked = beat(&api, &one, &known_by_one).await;
        assert_eq!(asked["leases"][0]["hand_over"]["to"], "node-2");
        assert_eq!(asked.get("set_cursor"), None, "there is nothing to be named");
        let waits = beat(&api, &two, &known_by_two).await;
        assert_eq!((&waits["leases"], &waits["pending"][0]["key"]), (&json!([]), &json!("c1")));
        assert_eq!(waits.get("set_cursor"), None);
        api.pass_seconds(1);
    }
    api.pass_seconds(20);
    let kept = beat(&api, &one, &known_by_one).await;
    assert_eq!((keys(&kept), kept["leases"][0].get("hand_over")), (Some(vec!["c1"]), None));
    let gone = beat(&api, &two, &known_by_two).await;
    assert_eq!((keys(&gone), gone.get("pending")), (Some(vec![]), None));
    for (id, holds) in [(&one, vec!["c1"]), (&two, vec![])] {
        let is_named = async || beat(&api, id, &Value::Null).await["set_cursor"].is_string();
        wait_for("the end of the offer", Duration::from_secs(30), is_named).await.expect("swept");
        let told = beat(&api, id, &Value::Null).await;
        assert_eq!((keys(&told), keys(&beat(&api, id, &told["set_cursor"]).await)), (Some(holds), None));
    }
}

#[tokio::test]
async fn a_session_dies_of_silence() {
    let api = Api::start().await;
    let id = open(&api, "node-1").await;
    hold(&api, "c1", "node-1", &id).await;
    api.pass_seconds(10);
    api.put(&format!("/sessions/{id}/heartbeat"), json!({})).await.problem(404, "no_session");
    api.get(&format!("/sessions/{id}")).await.problem(404, "no_session");
    assert_eq!(api.get("/nodes").await.is(200)["nodes"], json!([]));
    let lease = api.post("/resources/chat/c2/lease", json!({"holder": "node-1", "session_id": id})).await;
    lease.problem(404, "no_session");
    api.post("/resources/chat/c1/lease", json!({"holder": "node-2"})).await.is(201);
}

#[tokio::test]
async fn a_node_that_comes_back_is_another_session() {
    let api = Api::start().await;
    let former = open(&api, "node-1").await;
    let lease = hold(&api, "c1", "node-1", &former).await;
    let present = open(&api, "node-1").await;
    api.put(&format!("/sessions/{former}/heartbeat"), json!({})).await.problem(404, "session_superseded");
    let renew = "/resources/chat/c1/lease/renew";
    api.post(renew, json!({"lease_id": lease["lease_id"]})).await.problem(404, "session_superseded");
    api.post(renew, json!({"token": lease["token"]})).await.problem(404, "session_superseded");
    api.post(renew, json!({"session_id": former})).await.problem(404, "session_superseded");
    api.post(renew, json!({"session_id": present})).await.problem(409, "not_yours");
    let replaced = json!({"holder": "node-2", "replace": present});
    api.post("/sessions", replaced).await.problem(409, "not_yours");
    let replaced = json!({"holder": "node-1", "replace": former, "fenced": true});
    api.post("/sessions", replaced).await.is(201);
    api.post("/resources/chat/c1/lease", json!({"holder": "node-2"})).await.is(201);
}

#[tokio::test]
async fn sessions_are_checked() {
    let api = Api::start().await;
    for (body, field) in [
        (json!({"holder": ""}), "holder"),
        (json!({"holder": "n", "ttl_ms": 999}), "ttl_ms"),
        (json!({"holder": "n", "ttl_seconds": 86_401}), "ttl_seconds"),
        (json!({"holder": "n", "ttl": 30}), "ttl"),
        (json!({"holder": "n", "replace": "x"}), "replace"),
        (json!({"holder": "n", "metrics": [1]}), "metrics"),
    ] {
        let problem = api.post("/sessions", body).await.problem(400, "invalid_field");
        assert_eq!(problem["errors"][0]["field"], field);
    }
    for id in [Uuid::from_u128(1).to_string(), "no-uuid".to_owned(), "x".repeat(10_000)] {
        api.get(&format!("/sessions/{id}")).await.problem(404, "no_session");
    }
    for name in ["a", "b", "c"] {
        open(&api, name).await;
    }
    let page = api.get("/nodes?limit=2").await.is(200);
    assert_eq!((page["nodes"].as_array().map(Vec::len), &page["next"]), (Some(2), &json!("b")));
    let last = api.get("/nodes?limit=2&cursor=b").await.is(200);
    assert_eq!((&last["nodes"][0]["node_id"], &last["next"]), (&json!("c"), &json!(null)));
}

#[tokio::test]
async fn a_key_is_routed_among_the_nodes_of_a_group() {
    let api = Api::start().await;
    api.get("/route/chat/c1").await.problem(404, "not_found");
    for node in ["gw-1", "gw-2", "gw-3"] {
        let body = json!({"holder": node, "metrics": {"group": "gateway", "weight": 2}});
        api.post("/sessions", body).await.is(201);
    }
    api.post("/sessions", json!({"holder": "other"})).await.is(201);
    let mut homes = std::collections::BTreeMap::new();
    for n in 0..60 {
        let routed = api.get(&format!("/route/chat/c%2F{n}?group=gateway")).await.is(200);
        assert_eq!((&routed["key"], &routed["node"]["weight"]), (&json!(format!("c/{n}")), &json!(2.0)));
        homes.insert(n, routed["node"]["node_id"].as_str().expect("a name").to_owned());
    }
    let used: std::collections::BTreeSet<_> = homes.values().collect();
    assert_eq!(used.len(), 3, "all of the group, and nobody else: {used:?}");
    // One leaves: only its own keys move.
    let nodes = api.get("/nodes").await.is(200);
    let gone =
        nodes["nodes"].as_array().expect("nodes").iter().find(|n| n["node_id"] == "gw-2").expect("gw-2");
    api.delete(&format!("/sessions/{}", gone["session_id"].as_str().expect("an id"))).await.is(200);
    for (n, before) in homes {
        let routed = api.get(&format!("/route/chat/c%2F{n}?group=gateway")).await.is(200);
        let now = routed["node"]["node_id"].as_str().expect("a name");
        assert_eq!(now == before, before != "gw-2", "c/{n} went from {before} to {now}");
    }
    api.get("/route/chat/c1?group=nobody").await.problem(404, "not_found");
}
