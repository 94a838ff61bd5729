//! A key for one tenant sees and touches nothing of another: 404, on every route that there is.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use solehold_server::Role;

use crate::common::{Api, acquire, camera, runner};

/// What tenant-1 has, for tenant-2 to reach for.
struct Loot {
    lease: String,
    session: String,
}

async fn tenant_one(api: &Api) -> Loot {
    let session = api.post("/runners/register", runner("r")).await.is(200)["session_id"].clone();
    api.declare_camera("cam-1").await;
    api.post("/tenants/tenant-1/sites/site-1/zones", zone()).await.is(201);
    api.put("/scenes/s", json!({})).await.is(201);
    api.post("/scenes/s/lease", json!({"holder_id": "r", "ttl_seconds": 300})).await.is(201);
    let mut body = acquire("cam-1", "r");
    body["session_id"] = session.clone();
    let lease = api.post("/leases/acquire", body).await.is(200);
    let grant = api.post("/resources/job/j/lease", json!({"holder": "r", "ttl_seconds": 300})).await.is(201);
    api.post("/locks/l", json!({"holder": "r", "ttl_seconds": 300})).await.is(201);
    let state = json!({"token": grant["token"], "sequence": 1, "document": {"secret": "of tenant-1"}});
    api.put("/resources/job/j/state", state).await.is(200);
    let text = |value: &Value| value.as_str().expect("an id").to_owned();
    Loot { lease: text(&lease["lease_id"]), session: text(&session) }
}

fn zone() -> Value {
    json!({"zone_id": 1, "polygon": [[0, 0], [1, 0], [1, 1]]})
}

/// What becomes of a call by tenant-2 in its own name, with the ids of tenant-1.
enum Own {
    /// There is no such thing.
    Missing,
    /// It is about tenant-2's own things, and shows none of tenant-1's.
    Other(u16),
}
use Own::{Missing, Other};

fn calls(loot: &Loot) -> Vec<(&'static str, Value, Own)> {
    let session = &loot.session;
    let mut hanging = acquire("cam-1", "r");
    hanging["tenant_id"] = json!("tenant-2");
    vec![
        ("list_scenes", json!(null), Other(200)),
        ("put_scene", json!({}), Other(201)),
        ("delete_scene", json!(null), Other(204)),
        ("get_scene", json!(null), Missing),
        ("get_scene_lease", json!(null), Missing),
        ("acquire_scene", json!({"holder_id": "r"}), Missing),
        ("renew_scene", json!({"holder_id": "r"}), Missing),
        ("release_scene", json!({"holder_id": "r"}), Other(204)),
        ("acquire_lease", hanging, Missing),
        ("renew_lease", json!({}), Missing),
        ("heartbeat_lease", json!({}), Missing),
        ("release_lease", json!({}), Missing),
        ("revoke_lease", json!({}), Missing),
        ("get_lease", json!(null), Missing),
        ("lease_history", json!(null), Missing),
        ("leases_of_runner", json!(null), Other(200)),
        ("lease_of_camera", json!(null), Missing),
        ("list_leases", json!(null), Other(200)),
        ("batch_acquire", json!({"items": []}), Other(200)),
        ("batch_renew", json!({"items": [{"lease_id": loot.lease}]}), Other(200)),
        ("batch_release", json!({"items": [{"lease_id": loot.lease}]}), Other(200)),
        ("list_runners", json!(null), Other(200)),
        ("get_runner", json!(null), Missing),
        ("heartbeat_runner", json!({"session_id": session}), Missing),
        ("put_runner_status", json!({"status": "drain"}), Missing),
        ("runner_assignments", json!(null), Missing),
        ("delete_runner", json!(null), Missing),
        ("get_session", json!(null), Missing),
        ("heartbeat_session", json!({}), Missing),
        ("close_session", json!(null), Missing),
        ("route_key", json!(null), Missing),
        ("open_session", json!({"holder": "r", "replace": session}), Other(201)),
        ("list_nodes", json!(null), Other(200)),
        ("list_site_cameras", json!(null), Missing),
        ("create_camera", camera("cam-1"), Missing),
        ("get_site_camera", json!(null), Missing),
        ("put_site_camera", json!({}), Missing),
        ("delete_camera", json!(null), Missing),
        ("list_zones", json!(null), Missing),
        ("create_zone", zone(), Missing),
        ("get_zone", json!(null), Missing),
        ("put_zone", zone(), Missing),
        ("delete_zone", json!(null), Missing),
        ("config_version", json!(null), Missing),
        ("list_cameras", json!(null), Other(200)),
        ("list_available_cameras", json!(null), Other(200)),
        ("get_camera", json!(null), Missing),
        ("put_camera", camera("cam-1"), Missing),
        ("list_resources", json!(null), Other(200)),
        ("list_resources_of_kind", json!(null), Other(200)),
        ("get_resource", json!(null), Missing),
        ("get_resource_lease", json!(null), Missing),
        ("renew_resource", json!({"holder": "r"}), Missing),
        ("revoke_resource", json!({}), Missing),
        ("release_resource", json!({"lease_id": loot.lease}), Missing),
        ("get_state", json!(null), Missing),
        ("put_state", json!({"token": 1, "sequence": 9, "document": 1}), Missing),
        ("resource_history", json!(null), Missing),
        ("cancel_request", json!({"holder": "r", "request_id": "x"}), Other(204)),
        ("delete_resource", json!(null), Missing),
        ("put_resource", json!({}), Other(201)),
        ("acquire_resource", json!({"holder": "r"}), Other(201)),
        ("list_locks", json!(null), Other(200)),
        ("get_lock", json!(null), Missing),
        ("renew_lock", json!({"holder": "r"}), Missing),
        ("release_lock", json!({"lease_id": loot.lease}), Missing),
        ("acquire_lock", json!({"holder": "r"}), Other(201)),
        ("register_runner", json!({"runner_id": "r", "replace": session}), Other(200)),
    ]
}

/// The paths of all operations, filled in with what tenant-1 has.
async fn operations(api: &Api, loot: &Loot) -> Vec<(String, String, String)> {
    let document = api.get("/openapi.json").await.is(200);
    let mut all = Vec::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            let tag = operation["tags"][0].as_str().unwrap_or_default();
            let Some(path) = path.strip_prefix("/api/v1").filter(|_| SURFACES.contains(&tag)) else {
                continue;
            };
            let id = operation["operationId"].as_str().expect("an id").to_owned();
            all.push((id, method.to_uppercase(), fill(tag, path, loot)));
        }
    }
    all
}

const SURFACES: [&str; 8] =
    ["scenes", "leases", "batch", "runners", "sessions", "config", "resources", "locks"];

fn fill(tag: &str, path: &str, loot: &Loot) -> String {
    let id = match tag {
        "scenes" => "s",
        "sessions" => &loot.session,
        _ => "r",
    };
    let filled = [
        ("{id}", id),
        ("{lease_id}", &loot.lease),
        ("{runner_id}", "r"),
        ("{camera_uuid}", "cam-1"),
        ("{zone_id}", "1"),
        ("{tenant}", "tenant-1"),
        ("{site}", "site-1"),
        ("{kind}", "job"),
        ("{key}", "j"),
        ("{name}", "l"),
    ];
    filled.iter().fold(path.to_owned(), |path, (name, value)| path.replace(name, value))
}

#[tokio::test]
async fn another_tenant_s_things_are_not_there_on_any_route() {
    let api = Api::start().await;
    let one = api.keyed(Role::Admin, Some("tenant-1")).await;
    let two = api.keyed(Role::Admin, Some("tenant-2")).await;
    let loot = tenant_one(&one).await;
    let operations = operations(&two, &loot).await;
    let calls = calls(&loot);
    let known: BTreeSet<&str> = operations.iter().map(|(id, ..)| id.as_str()).collect();
    let tried: BTreeSet<&str> = calls.iter().map(|(id, ..)| *id).collect();
    assert_eq!(known, tried, "every route, and no other");

    for (id, body, own) in &calls {
        let (_, method, path) = operations.iter().find(|(known, ..)| known == id).expect(id);
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = two.send(method, path, body.clone()).await;
        let expected = match own {
            Missing => 404,
            Other(status) => *status,
        };
        assert_eq!(answer.status, expected, "{id}: {method} {path}: {:#}", answer.body);
        let told = answer.body.to_string();
        assert!(!told.contains("secret") && !told.contains("rtsp"), "{id} tells of tenant-1: {told}");
        if !path.starts_with("/tenants/") && !["acquire_lease", "register_runner"].contains(id) {
            let named = two.send(method, &format!("{path}?tenant=tenant-1"), body).await;
            assert_eq!(named.status, 404, "{id} named: {method} {path}: {:#}", named.body);
        }
    }
    two.post("/leases/acquire", acquire("cam-1", "r")).await.problem(404, "not_found");
    two.post("/runners/register", runner("r")).await.problem(404, "not_found");
    untouched(&one, &loot).await;
}

/// Everything of tenant-1 is as it was.
async fn untouched(one: &Api, loot: &Loot) {
    assert_eq!(one.get(&format!("/leases/{}", loot.lease)).await.is(200)["success"], true);
    assert_eq!(one.get("/scenes/s/lease").await.is(200)["holder_id"], "r");
    assert_eq!(one.get("/resources/job/j/state").await.is(200)["sequence"], 1);
    assert_eq!(one.get("/runners/r").await.is(200)["status"], "active");
    assert_eq!(one.get("/cameras/cam-1").await.is(200)["rtsp_url"], camera("cam-1")["rtsp_url"]);
    let kept = one.put("/runners/r/heartbeat", json!({"session_id": loot.session})).await.is(200);
    assert_eq!(kept["leases"].as_array().map(Vec::len), Some(1), "its session was not replaced");
}

#[tokio::test]
async fn lists_show_a_tenant_its_own_things_only() {
    let api = Api::start().await;
    let one = api.keyed(Role::Admin, Some("tenant-1")).await;
    let two = api.keyed(Role::Admin, Some("tenant-2")).await;
    tenant_one(&one).await;
    for (path, field) in [
        ("/leases", "leases"),
        ("/leases/runner/r", "leases"),
        ("/runners", "runners"),
        ("/nodes", "nodes"),
        ("/cameras", "cameras"),
        ("/resources", "resources"),
    ] {
        assert_eq!(two.get(path).await.is(200)[field], json!([]), "{path}");
        assert_ne!(one.get(path).await.is(200)[field], json!([]), "{path}");
    }
    assert_eq!(two.get("/scenes").await.is(200), json!([]));
    assert_eq!(two.get("/scenes?format=page").await.is(200)["count"], 0);
}

#[tokio::test]
async fn a_key_of_all_tenants_may_name_one() {
    let api = Api::start().await;
    let all = api.keyed(Role::Admin, None).await;
    all.put("/scenes/s?tenant=tenant-9", json!({})).await.is(201);
    assert_eq!(all.get("/scenes").await.is(200), json!([]), "default is another tenant");
    assert_eq!(all.get("/scenes?tenant=tenant-9").await.is(200)[0]["scene_id"], "s");
    all.put("/scenes/s", json!({})).await.is(201);
    api.get("/scenes").await.problem(401, "unauthorized");
}

#[tokio::test]
async fn a_role_allows_what_it_says() {
    let api = Api::start().await;
    let admin = api.keyed(Role::Admin, Some("tenant-1")).await;
    let runner_key = api.keyed(Role::Runner, Some("tenant-1")).await;
    let reader = api.keyed(Role::Reader, Some("tenant-1")).await;
    let loot = tenant_one(&admin).await;
    let operations = operations(&admin, &loot).await;
    let for_admins = [
        "put_scene",
        "delete_scene",
        "revoke_lease",
        "put_runner_status",
        "create_camera",
        "put_site_camera",
        "delete_camera",
        "create_zone",
        "put_zone",
        "delete_zone",
        "put_camera",
        "put_resource",
        "delete_resource",
        "revoke_resource",
    ];
    for (id, body, _) in calls(&loot) {
        let (_, method, path) = operations.iter().find(|(known, ..)| *known == id).expect(id);
        let body = if body.is_null() { String::new() } else { body.to_string() };
        if method != "GET" {
            assert_eq!(reader.send(method, path, body.clone()).await.status, 403, "{id} by a reader");
        }
        if for_admins.contains(&id) {
            assert_eq!(runner_key.send(method, path, body).await.status, 403, "{id} by a runner");
        }
    }
    untouched(&admin, &loot).await;
    runner_key.post("/sessions", json!({"holder": "n"})).await.is(201);
    reader.get("/leases").await.is(200);
}
