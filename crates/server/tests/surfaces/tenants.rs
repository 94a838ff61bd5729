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
    api.post("/tenants/tenant-1/sites/site-1/zones", zone()).await.is(200);
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
        ("session_news", json!({"sessions": [{"session_id": session, "revision": 0}]}), Other(200)),
        ("get_hand_over", json!(null), Missing),
        ("hand_over_resource", json!({"session_id": session}), Missing),
        ("call_off_hand_over", json!(null), Missing),
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
        ("config_version_of_all", json!(null), Other(200)),
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
        // These name their tenant in the body; a question for news names none, since it may be about several.
        let takes_tenant = !["acquire_lease", "register_runner", "session_news"].contains(id);
        if takes_tenant && !path.starts_with("/tenants/") {
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

/// What a pipeline's client does whose paths name no tenant, by a caller that has none.
async fn a_life_without_a_tenant(api: &Api) {
    let lease = api.post("/leases/acquire/", acquire("cam-1", "r-1")).await.is(200);
    let id = lease["lease_id"].as_str().expect("an id").to_owned();
    assert_eq!(lease["tenant_id"], "tenant-1");
    api.put(&format!("/leases/{id}/renew/"), json!({"processing_stats": {"n": 1}})).await.is(200);
    api.post(&format!("/leases/{id}/heartbeat/"), json!({"processing_stats": {"n": 2}})).await.is(200);
    let batch = api.post("/leases/batch/renew", json!({"items": [{"lease_id": id}]})).await.is(200);
    assert_eq!(batch["results"][0]["status"], "renewed", "{batch}");
    assert_eq!(api.get(&format!("/leases/{id}")).await.is(200)["tenant_id"], "tenant-1");
    assert_eq!(api.get(&format!("/leases/{id}/history")).await.is(200)["events"][0]["tenant"], "tenant-1");
    assert_eq!(api.get("/leases/camera/cam-1/").await.is(200)["lease_id"], json!(id));
    assert_eq!(api.get("/leases/runner/r-1/").await.is(200)["leases"][0]["lease_id"], json!(id));
    assert_eq!(api.get("/cameras/cam-1/").await.is(200)["tenant_id"], "tenant-1");
    assert_eq!(api.get("/runners/r-1/").await.is(200)["current_load"], 1);
    assert_eq!(api.put("/runners/r-1/heartbeat/", json!({"current_load": 1})).await.is(200)["success"], true);
    assert_eq!(api.get("/runners/r-1/assignments").await.is(200)["assigned_cameras"], json!(["cam-1"]));
    assert_eq!(api.delete(&format!("/leases/{id}/release/")).await.is(200)["success"], true);
    let over = api.put(&format!("/leases/{id}/renew"), json!({})).await.problem(404, "lost");
    assert_eq!(over["ended"]["status"], "released", "also of a lease that has ended");
}

#[tokio::test]
async fn a_caller_without_a_tenant_means_the_tenant_that_has_what_it_names() {
    let keyless = Api::start().await;
    let keyed = Api::start().await;
    let all = keyed.keyed(Role::Admin, None).await;
    for api in [keyless, all] {
        api.declare_camera("cam-1").await;
        let session = api.post("/runners/register", runner("r-1")).await.is(200)["session_id"].clone();
        a_life_without_a_tenant(&api).await;
        let session = session.as_str().expect("an id");
        let beat = json!({"session_id": session});
        api.put("/runners/r-1/heartbeat", beat.clone()).await.is(200);
        api.get(&format!("/sessions/{session}")).await.is(200);
        api.put(&format!("/sessions/{session}/heartbeat"), json!({})).await.is(200);

        // Once another tenant has a runner and a camera of these names, the names alone are not enough.
        let mut other = camera("cam-1");
        other["tenant_id"] = json!("tenant-2");
        api.post("/tenants/tenant-2/sites/site-1/cameras", other).await.is(200);
        let mut twin = runner("r-1");
        twin["tenant_id"] = json!("tenant-2");
        api.post("/runners/register", twin).await.is(200);
        let bare = json!({"camera_uuid": "cam-1", "runner_id": "r-1"});
        for (method, path, body) in [
            ("GET", "/cameras/cam-1", json!({})),
            ("GET", "/leases/camera/cam-1", json!({})),
            ("PUT", "/cameras/cam-1", json!({})),
            ("POST", "/leases/acquire", bare),
            ("GET", "/runners/r-1", json!({})),
            ("GET", "/runners/r-1/assignments", json!({})),
            ("PUT", "/runners/r-1/heartbeat", json!({})),
            ("PUT", "/runners/r-1/status", json!({"status": "drain"})),
            ("DELETE", "/runners/r-1", json!({})),
        ] {
            let refused = api.call(method, path, body).await.problem(409, "conflict");
            let detail = refused["detail"].as_str().expect("text");
            assert!(detail.contains("tenant-1 and tenant-2") && detail.contains("?tenant="), "{detail}");
        }
        api.get("/cameras/cam-1?tenant=tenant-2").await.is(200);
        api.put("/runners/r-1/heartbeat", beat).await.is(200);
        assert_eq!(api.delete("/runners/r-1?tenant=tenant-1").await.is(200)["success"], true);
        api.put("/runners/r-1/heartbeat", json!({})).await.is(200);

        // What nobody has is looked for, and created, in `default`.
        api.get("/cameras/cam-9").await.problem(404, "not_found");
        api.get("/runners/nobody").await.problem(404, "not_found");
        assert_eq!(api.put("/cameras/cam-9", json!({})).await.is(200)["tenant_id"], "default");
        api.get(&format!("/sessions/{}", uuid::Uuid::nil())).await.problem(404, "no_session");
    }
}

#[tokio::test]
async fn lists_show_a_caller_without_a_tenant_everything() {
    let api = Api::start().await;
    for tenant in ["tenant-1", "tenant-2"] {
        let mut made = camera("cam-1");
        made["tenant_id"] = json!(tenant);
        api.post(&format!("/tenants/{tenant}/sites/site-1/cameras"), made).await.is(200);
        let mut body = runner("r-1");
        body["tenant_id"] = json!(tenant);
        api.post("/runners/register", body).await.is(200);
    }
    let free = api.get("/cameras/available/").await.is(200);
    assert_eq!(free["cameras"], json!(["cam-1", "cam-1"]));
    assert_eq!(
        (&free["items"][0]["tenant_id"], &free["items"][1]["tenant_id"]),
        (&json!("tenant-1"), &json!("tenant-2"))
    );
    for tenant in ["tenant-1", "tenant-2"] {
        let mut body = acquire("cam-1", "r-1");
        body["tenant_id"] = json!(tenant);
        api.post("/leases/acquire", body).await.is(200);
    }
    for (path, field) in [
        ("/leases", "leases"),
        ("/leases/runner/r-1", "leases"),
        ("/runners", "runners"),
        ("/cameras", "cameras"),
    ] {
        let tenants = |list: &Value| {
            let items = list[field].as_array().expect("items").iter();
            items.map(|item| item["tenant_id"].as_str().expect("one").to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(tenants(&api.get(path).await.is(200)), ["tenant-1", "tenant-2"], "{path}");
        assert_eq!(
            tenants(&api.get(&format!("{path}?tenant=tenant-2")).await.is(200)),
            ["tenant-2"],
            "{path}"
        );
        let first = api.get(&format!("{path}?limit=1")).await.is(200);
        assert_eq!(tenants(&first), ["tenant-1"], "{path}");
        let next = crate::common::segment(first["next"].as_str().expect("a next page"));
        let second = api.get(&format!("{path}?limit=1&cursor={next}")).await.is(200);
        assert_eq!(
            (tenants(&second), &second["next"]),
            (vec!["tenant-2".to_owned()], &json!(null)),
            "{path}"
        );
        let odd = format!("{path}?tenant=tenant-1&cursor={next}");
        api.get(&odd).await.problem(400, "invalid_field");
    }
    let one = api.keyed(Role::Reader, Some("tenant-1")).await;
    assert_eq!(one.get("/leases").await.is(200)["leases"].as_array().map(Vec::len), Some(1));
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
