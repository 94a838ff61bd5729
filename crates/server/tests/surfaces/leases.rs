//! Camera leases: every call as runners write it, in the envelope that its client reads.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::common::{Api, acquire, camera, runner};

/// Every camera here is tenant-1's; a key would say so.
fn of(id: &Value, call: &str) -> String {
    format!("/leases/{}/{call}?tenant=tenant-1", id.as_str().expect("an id"))
}

async fn with_camera() -> Api {
    let api = Api::start().await;
    api.declare_camera("cam-001").await;
    api
}

#[tokio::test]
async fn a_camera_lease_s_life() {
    let api = with_camera().await;
    let got = api.acquire_camera("cam-001", "runner-abc123").await;
    assert_eq!(got.content_type, "application/json");
    let got = got.is(200);
    for (field, value) in [
        ("camera_uuid", json!("cam-001")),
        ("runner_id", json!("runner-abc123")),
        ("shard_id", json!("shard-1")),
        ("tenant_id", json!("tenant-1")),
        ("site_id", json!("site-1")),
        ("status", json!("active")),
        ("config_version", json!("abc123")),
        ("zone_version", json!("def456")),
        ("ttl_ms", json!(60_000)),
    ] {
        assert_eq!(
            (&got[field], &got["lease"][field]),
            (&value, &value),
            "{field}: flat and in the envelope"
        );
    }
    assert!(got["success"] == true && got["error"].is_null() && got["retry_after_seconds"].is_null());
    assert!(got["acquired_at"].is_string() && got["expires_at"].is_string() && got["lease_id"].is_string());

    let refused = api.acquire_camera("cam-001", "runner-2").await.problem(409, "held");
    assert_eq!((&refused["success"], &refused["lease"]), (&json!(false), &json!(null)));
    assert_eq!((&refused["retry_after_seconds"], &refused["holder"]), (&json!(60), &json!("runner-abc123")));
    assert!(refused["error"].as_str().is_some_and(|error| error.contains("runner-abc123")));

    let id = &got["lease_id"];
    api.pass_seconds(40);
    let told = json!({"processing_stats": {"processed_frames": 100}});
    let renewed = api.put(&of(id, "renew/"), told.clone()).await.is(200);
    assert_eq!((&renewed["ttl_ms"], &renewed["token"]), (&json!(60_000), &got["token"]));
    assert_eq!(renewed["processing_stats"], told["processing_stats"], "what a renewal tells is kept");
    let bare = api.put(&of(id, "renew/"), json!({})).await.is(200);
    assert_eq!(bare["processing_stats"], told["processing_stats"], "and stays");
    let due = renewed["next_heartbeat_due"].as_str().expect("a time");
    assert!(
        renewed["renewed_at"].as_str() < Some(due) && Some(due) < renewed["expires_at"].as_str(),
        "{renewed}"
    );
    let stats = json!({"fps": 24.5, "frames": 1200});
    let beat = api.post(&of(id, "heartbeat/"), json!({"stats": stats})).await.is(200);
    assert_eq!((&beat["success"], &beat["processing_stats"]), (&json!(true), &stats));
    assert!(beat["next_heartbeat_due"].is_string());
    let with_status = json!({"processing_stats": {"fps": 3}, "camera_status": "online"});
    let beat = api.post(&of(id, "heartbeat/"), with_status).await.is(200);
    assert_eq!(beat["processing_stats"], json!({"fps": 3, "camera_status": "online"}));
    let odd = json!({"processing_stats": {}, "camera_status": "asleep"});
    api.post(&of(id, "heartbeat/"), odd).await.problem(400, "invalid_field");
    let bare = api.post(&of(id, "heartbeat/"), json!({"fps": 3})).await.is(200);
    assert_eq!(bare["processing_stats"], json!({"fps": 3}), "a body of nothing but stats");

    let valid = api.get(&of(id, "")).await.is(200);
    assert_eq!((&valid["success"], &valid["status"]), (&json!(true), &json!("active")));
    assert_eq!(valid["processing_stats"], json!({"fps": 3}), "what it told is shown");
    let of_runner = api.get("/leases/runner/runner-abc123/?tenant=tenant-1").await.is(200);
    assert_eq!(of_runner["leases"][0]["lease_id"], *id);
    assert_eq!(api.get("/leases/runner/nobody/?tenant=tenant-1").await.is(200)["leases"], json!([]));
    let of_camera = api.get("/leases/camera/cam-001/?tenant=tenant-1").await.is(200);
    assert_eq!((&of_camera["lease_id"], &of_camera["lease"]["runner_id"]), (id, &json!("runner-abc123")));

    let released = api.delete(&of(id, "release/")).await.is(200);
    assert_eq!((&released["success"], &released["status"]), (&json!(true), &json!("released")));
    for (method, call) in [("PUT", "renew"), ("POST", "heartbeat"), ("DELETE", "release"), ("POST", "revoke")]
    {
        let gone = api.call(method, &of(id, call), json!({})).await.problem(404, "lost");
        assert_eq!((&gone["success"], gone["error"].is_string()), (&json!(false), true), "{call}");
        assert_eq!((&gone["ended"]["status"], &gone["token"]), (&json!("released"), &got["token"]), "{call}");
    }
    let ended = api.get(&of(id, "")).await.is(200);
    assert_eq!(
        (&ended["success"], &ended["status"], &ended["lease"]),
        (&json!(false), &json!("released"), &json!(null))
    );
    let gone = api.get("/leases/camera/cam-001/?tenant=tenant-1").await.problem(404, "not_found");
    assert_eq!(gone["success"], false);
    assert_eq!(api.get("/leases/runner/runner-abc123/?tenant=tenant-1").await.is(200)["leases"], json!([]));
}

#[tokio::test]
async fn how_a_lease_ended_is_remembered() {
    let api = with_camera().await;
    let expired = api.acquire_camera("cam-001", "r").await.is(200)["lease_id"].clone();
    api.pass_seconds(60);
    for (method, call) in [("PUT", "renew"), ("POST", "heartbeat"), ("DELETE", "release"), ("POST", "revoke")]
    {
        let gone = api.call(method, &of(&expired, call), json!({})).await.problem(410, "lost");
        assert_eq!(
            (&gone["success"], &gone["ended"]["status"]),
            (&json!(false), &json!("expired")),
            "{call}"
        );
    }
    let shown = api.get(&of(&expired, "")).await.is(200);
    assert_eq!((&shown["success"], &shown["status"]), (&json!(false), &json!("expired")), "swept or not");
    assert_eq!(
        (&shown["code"], &shown["holder"], &shown["key"]),
        (&json!("lost"), &json!("r"), &json!("cam-001"))
    );
    assert!(shown["ended_at"].is_string() && shown["token"].is_number(), "{shown}");

    let revoked = api.acquire_camera("cam-001", "s").await.is(200)["lease_id"].clone();
    assert_eq!(api.get(&of(&expired, "")).await.is(200)["status"], "expired");
    let end = api.post(&of(&revoked, "revoke/"), json!({"reason": "maintenance"})).await.is(200);
    assert_eq!((&end["status"], &end["held_back_ms"]), (&json!("revoked"), &json!(60_000)));
    let shown = api.get(&of(&revoked, "")).await.is(200);
    assert_eq!((&shown["status"], &shown["held_back_ms"]), (&json!("revoked"), &json!(60_000)));
    let refused = api.acquire_camera("cam-001", "t").await.problem(409, "held_back");
    assert_eq!(refused["retry_after_seconds"], 60);

    let history = api.get(&of(&revoked, "history")).await.is(200);
    let events: Vec<_> =
        history["events"].as_array().expect("events").iter().map(|e| &e["event_type"]).collect();
    assert_eq!(events, ["lease_acquired", "lease_revoked"]);
    assert_eq!(
        (&history["events"][1]["details"]["reason"], &history["events"][1]["runner_id"]),
        (&json!("maintenance"), &json!("s"))
    );
    assert_eq!(history["events"][1]["shard_id"], "shard-1");
    let page = api.get(&format!("{}&limit=1", of(&revoked, "history"))).await.is(200);
    assert_eq!(page["events"].as_array().map(Vec::len), Some(1));
    let next = page["next"].as_str().expect("a next page");
    let page = api.get(&format!("{}&limit=1&cursor={next}", of(&revoked, "history"))).await.is(200);
    assert_eq!(page["events"][0]["event_type"], "lease_revoked");
    let newest = format!("{}&limit=1&newest_first=true", of(&revoked, "history"));
    let page = api.get(&newest).await.is(200);
    assert_eq!(page["events"][0]["event_type"], "lease_revoked");
    let next = page["next"].as_str().expect("an older page");
    let page = api.get(&format!("{newest}&cursor={next}")).await.is(200);
    assert_eq!(page["events"][0]["event_type"], "lease_acquired");
}

#[tokio::test]
async fn an_unknown_lease_is_not_there() {
    let api = Api::start().await;
    for id in [Uuid::from_u128(7).to_string(), "lease-uuid-123".to_owned(), "x".repeat(300)] {
        for (method, call) in [
            ("GET", ""),
            ("PUT", "/renew"),
            ("POST", "/heartbeat"),
            ("DELETE", "/release"),
            ("POST", "/revoke"),
            ("GET", "/history"),
        ] {
            let path = format!("/leases/{id}{call}");
            let body = api.send(method, &path, "").await.problem(404, "not_found");
            assert_eq!(body["success"], false, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn an_acquire_is_checked() {
    let api = with_camera().await;
    api.acquire_camera("cam-404", "r").await.problem(404, "not_found");
    for (field, value) in [
        ("ttl_seconds", json!(0.9)),
        ("ttl_seconds", json!(86_401)),
        ("ttl_seconds", json!(-60)),
        ("ttl_seconds", json!("60")),
        ("camera_uuid", json!("door\n1")),
        ("camera_uuid", json!("")),
        ("runner_id", json!("")),
        ("runner_id", json!(7)),
        ("shard_id", json!("x".repeat(256))),
        ("request_id", json!("")),
    ] {
        let mut body = acquire("cam-001", "r");
        body[field] = value.clone();
        let refused = api.post("/leases/acquire", body).await.problem(400, "invalid_field");
        assert_eq!(refused["errors"][0]["field"], field, "{value}");
        assert_eq!((&refused["success"], refused["error"].is_string()), (&json!(false), true));
    }
    let bad = api.send("POST", "/leases/acquire", "{").await.problem(400, "invalid_json");
    assert_eq!(bad["success"], false);
    let mut elsewhere = acquire("cam-001", "r");
    elsewhere["site_id"] = json!("site-2");
    api.post("/leases/acquire", elsewhere).await.problem(404, "not_found");
}

#[tokio::test]
async fn an_acquire_is_repeated_with_its_request_id() {
    let api = with_camera().await;
    let mut body = acquire("cam-001", "r");
    body["request_id"] = json!("request-1");
    let first = api.post("/leases/acquire", body.clone()).await.is(200);
    let again = api.post("/leases/acquire", body.clone()).await.is(200);
    assert_eq!((&again["lease_id"], &again["token"]), (&first["lease_id"], &first["token"]));
    api.delete(&of(&first["lease_id"], "release")).await.is(200);
    api.post("/leases/acquire", body).await.problem(409, "request_spent");
}

#[tokio::test]
async fn the_proof_beside_the_id_must_match() {
    let api = with_camera().await;
    let lease = api.acquire_camera("cam-001", "r").await.is(200);
    let id = &lease["lease_id"];
    let token = lease["token"].as_u64().expect("a token");
    api.put(&of(id, "renew"), json!({"token": token + 1})).await.problem(409, "lost");
    api.put(&of(id, "renew"), json!({"runner_id": "s"})).await.problem(409, "not_yours");
    api.call("DELETE", &of(id, "release"), json!({"token": 999})).await.problem(409, "lost");
    api.put(&of(id, "renew"), json!({"token": token, "runner_id": "r", "ttl_seconds": 120})).await.is(200);
    assert_eq!(api.get(&of(id, "")).await.is(200)["ttl_ms"], 120_000);
}

#[tokio::test]
async fn versions_are_the_camera_s_unless_the_runner_knows_others() {
    let api = with_camera().await;
    let bare = json!({"camera_uuid": "cam-001", "runner_id": "r", "tenant_id": "tenant-1"});
    let versions = async |release: bool| {
        let lease = api.post("/leases/acquire", bare.clone()).await.is(200);
        if release {
            api.delete(&of(&lease["lease_id"], "release")).await.is(200);
        }
        (lease["config_version"].clone(), lease["zone_version"].clone())
    };
    let first = versions(true).await;
    assert!(
        first.0.as_str().is_some_and(|v| v.len() == 32) && first.1.as_str().is_some_and(|v| v.len() == 32)
    );
    assert_eq!(versions(true).await, first, "the same content, the same version");
    let zone = json!({"zone_id": 9, "polygon": [[0, 0], [1, 0], [1, 1]]});
    api.post("/tenants/tenant-1/sites/site-1/zones", zone).await.is(200);
    let zoned = versions(true).await;
    assert!(zoned.0 == first.0 && zoned.1 != first.1, "a zone of the site is one of the camera's");
    let mut changed = camera("cam-001");
    changed["min_score"] = json!(0.5);
    api.put("/cameras/cam-001?tenant=tenant-1", changed).await.is(200);
    assert_ne!(versions(false).await.0, first.0);
    let shown = api.get("/resources/camera/cam-001/lease?tenant=tenant-1").await.is(200);
    let mut kept: Vec<_> = shown["attributes"].as_object().expect("attributes").keys().collect();
    kept.sort();
    assert_eq!(kept, ["config_version", "shard_id", "site_id", "zone_version"]);
}

#[tokio::test]
async fn a_draining_runner_gets_nothing_more() {
    let api = with_camera().await;
    api.declare_camera("cam-002").await;
    let session = api.post("/runners/register", runner("r")).await.is(200)["session_id"].clone();
    let lease = api.acquire_camera("cam-001", "r").await.is(200);
    api.put("/runners/r/status?tenant=tenant-1", json!({"status": "drain"})).await.is(200);
    api.acquire_camera("cam-002", "r").await.problem(409, "draining");
    let mut body = acquire("cam-002", "r");
    body["session_id"] = session;
    api.post("/leases/acquire", body).await.problem(409, "draining");
    api.put(&of(&lease["lease_id"], "renew"), json!({})).await.is(200);
    api.put("/runners/r/status?tenant=tenant-1", json!({"status": "active"})).await.is(200);
    api.acquire_camera("cam-002", "r").await.is(200);
}

#[tokio::test]
async fn lists_are_filtered_and_paged() {
    let api = with_camera().await;
    api.declare_camera("cam-002").await;
    api.acquire_camera("cam-001", "r").await.is(200);
    api.acquire_camera("cam-002", "s").await.is(200);
    api.post("/resources/job/j/lease?tenant=tenant-1", json!({"holder": "r"})).await.is(201);
    let keys = async |query: &str| {
        let list = api.get(&format!("/leases/?tenant=tenant-1{query}")).await.is(200);
        let leases = list["leases"].as_array().expect("leases").clone();
        let keys: Vec<String> = leases.iter().map(|l| l["key"].as_str().expect("a key").to_owned()).collect();
        (keys.join(" "), list)
    };
    assert_eq!(keys("").await.0, "cam-001 cam-002 j");
    assert_eq!(keys("&kind=camera").await.0, "cam-001 cam-002");
    assert_eq!(keys("&runner_id=r").await.0, "cam-001 j");
    assert_eq!(keys("&holder=s&site=site-1").await.0, "cam-002");
    assert_eq!(keys("&site_id=site-2").await.0, "");
    assert_eq!(keys("&status=active&kind=job").await.0, "j");
    assert_eq!(keys("&status=pending").await.0, "");
    assert_eq!(keys("&status=revoked").await.0, "");
    let (first, page) = keys("&limit=2").await;
    let next = crate::common::segment(page["next"].as_str().expect("a next page"));
    let (second, last) = keys(&format!("&limit=2&cursor={next}")).await;
    assert_eq!((first.as_str(), second.as_str(), &last["next"]), ("cam-001 cam-002", "j", &json!(null)));
    assert!(page["cursor"].as_str().is_some_and(|cursor| cursor.contains('.')), "where a watch may begin");
    api.get("/leases?status=odd").await.problem(400, "invalid_field");
    api.pass_seconds(60);
    assert_eq!(keys("").await.0, "", "judged by time");
}

/// A real UUID was refused because it does not begin with `cam-`, and so was a time to live below 30 s or above 300 s.
#[tokio::test]
async fn a_camera_may_have_any_id_and_any_time_to_live() {
    let api = Api::start().await;
    for (camera, ttl_seconds) in [("5f0c8f9e-4b1d-4a57-9f39-0d9a3c8f2b11", 1), ("lobby", 86_400)] {
        api.declare_camera(camera).await;
        let mut body = acquire(camera, "runner-abc123");
        body["ttl_seconds"] = json!(ttl_seconds);
        let got = api.post("/leases/acquire/", body).await.is(200);
        assert_eq!((&got["camera_uuid"], &got["ttl_ms"]), (&json!(camera), &json!(ttl_seconds * 1_000)));
        let shown = api.get(&format!("/leases/camera/{camera}/?tenant=tenant-1")).await.is(200);
        assert_eq!(shown["lease_id"], got["lease_id"]);
    }
    for ttl_seconds in [json!(0.5), json!(86_401)] {
        let mut body = acquire("lobby", "runner-abc123");
        body["ttl_seconds"] = ttl_seconds;
        let problem = api.post("/leases/acquire/", body).await.problem(400, "invalid_field");
        assert_eq!(
            problem["errors"][0]["message"].as_str().map(|told| told.contains("1 to 86400")),
            Some(true)
        );
    }
}
