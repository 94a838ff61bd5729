//! A lease on anything but a camera is shown without a word of camera pipelines, wherever it is shown.

use serde_json::{Value, json};

use crate::common::Api;

/// What camera pipelines call a lease, and what the rest of the API calls by another name.
const OF_CAMERAS: [&str; 9] = [
    "camera",
    "shard",
    "zone",
    "config_version",
    "runner_id",
    "tenant_id",
    "site_id",
    "processing_stats",
    "last_heartbeat",
];

/// The lease that an answer has, which must be all in words for any kind.
#[track_caller]
fn is_generic(lease: &Value) {
    let text = lease.to_string();
    let found: Vec<_> = OF_CAMERAS.iter().filter(|word| text.contains(**word)).collect();
    assert!(found.is_empty(), "{found:?} in {lease:#}");
}

#[tokio::test]
async fn a_lock_is_shown_without_a_word_of_cameras() {
    let api = Api::start().await;
    let lock = api.post("/locks/deploy", json!({"holder": "ci-7", "ttl_seconds": 60})).await.is(201);
    let id = lock["lease_id"].as_str().expect("an id");

    let listed = api.get("/leases?kind=lock").await.is(200);
    is_generic(&listed);
    let lease = &listed["leases"][0];
    for (field, value) in [
        ("lease_id", json!(id)),
        ("tenant", json!("default")),
        ("site", json!(null)),
        ("kind", json!("lock")),
        ("key", json!("deploy")),
        ("holder", json!("ci-7")),
        ("token", lock["token"].clone()),
        ("status", json!("active")),
        ("ttl_ms", json!(60_000)),
        ("attributes", json!({})),
        ("stats", json!({})),
    ] {
        assert_eq!(lease.get(field), Some(&value), "{field}: {lease:#}");
    }
    assert_eq!(api.get("/leases?holder=ci-7").await.is(200)["leases"], listed["leases"]);
    assert_eq!(api.get("/leases?holder=another").await.is(200)["leases"], json!([]));

    is_generic(&api.get(&format!("/leases/{id}")).await.is(200));
    is_generic(&api.get(&format!("/leases/{id}/history")).await.is(200));
    is_generic(&api.get("/leases/runner/ci-7").await.is(200));
    let told = json!({"stats": {"done": 3}});
    let renewed = api.post(&format!("/leases/{id}/heartbeat"), told).await.is(200);
    is_generic(&renewed);
    assert_eq!((&renewed["holder"], &renewed["stats"]), (&json!("ci-7"), &json!({"done": 3})));
}

#[tokio::test]
async fn a_runner_that_takes_no_cameras_gets_none() {
    let api = Api::start().await;
    let runner = json!({"runner_id": "worker-1", "capacity": 4, "kinds": ["job"]});
    let registered = api.post("/runners/register", runner).await.is(200);
    assert_eq!(registered.get("assigned_cameras"), None, "{registered:#}");
    let session = &registered["session_id"];
    api.put("/resources/job/nightly", json!({})).await.is(201);
    let ask = json!({"holder": "worker-1", "session_id": session});
    api.post("/resources/job/nightly/lease", ask).await.is(201);

    let heartbeat = api.put("/runners/worker-1/heartbeat", json!({"session_id": session})).await.is(200);
    assert_eq!(heartbeat["leases"][0]["key"], "nightly");
    is_generic(&heartbeat["leases"]);
    let assigned = api.get("/runners/worker-1/assignments").await.is(200);
    assert_eq!(assigned["leases"][0]["holder"], "worker-1");
    is_generic(&assigned["leases"]);
    assert_eq!(assigned.get("assigned_cameras"), None, "{assigned:#}");
}

/// The published fields of a camera's lease, which its client reads, and beside them those of every lease.
#[tokio::test]
async fn a_camera_s_lease_has_its_own_words_and_the_generic_ones() {
    let api = Api::start().await;
    api.declare_camera("cam-001").await;
    let got = api.acquire_camera("cam-001", "runner-1").await.is(200);
    let listed = api.get("/leases?kind=camera").await.is(200);
    for lease in [&got["lease"], &listed["leases"][0]] {
        for (of_cameras, generic) in [
            ("camera_uuid", "key"),
            ("runner_id", "holder"),
            ("tenant_id", "tenant"),
            ("site_id", "site"),
            ("processing_stats", "stats"),
        ] {
            assert!(lease[generic] == lease[of_cameras] && !lease[generic].is_null(), "{generic}: {lease:#}");
        }
        assert_eq!((&lease["shard_id"], &lease["kind"]), (&json!("shard-1"), &json!("camera")));
        assert!(lease["last_heartbeat"].is_string() && lease["config_version"] == "abc123");
    }
}
