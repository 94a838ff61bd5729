//! Sessions, and the nodes that have one.

use serde_json::{Value, json};
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
