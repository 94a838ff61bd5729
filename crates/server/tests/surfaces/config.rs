//! The camera pipeline's configuration: tenants, sites, cameras, zones, and versions of what they say.

use serde_json::{Value, json};

use crate::common::{Api, CAMERAS, camera, segment};

const SITE: &str = "/tenants/tenant-1/sites/site-1";
const ZONES: &str = "/tenants/tenant-1/sites/site-1/zones/";

fn zone(id: Value) -> Value {
    json!({"zone_id": id, "name": "gate", "kind": "exclude", "polygon": [[0, 0], [10, 0], [10.5, 10]], "min_score": 0.5})
}

#[tokio::test]
async fn cameras_are_configured() {
    let api = Api::start().await;
    assert_eq!(api.get(CAMERAS).await.is(200)["cameras"], json!([]));
    let made = api.post(CAMERAS, camera("cam-001")).await.is(200);
    assert_eq!(made, camera("cam-001"), "it comes back as it was given");
    api.post(CAMERAS, camera("cam-001")).await.problem(409, "exists");
    let list = api.get(CAMERAS).await.is(200);
    assert_eq!((&list["cameras"][0], &list["next"]), (&camera("cam-001"), &json!(null)));
    assert_eq!(api.get("/cameras/cam-001/?tenant=tenant-1").await.is(200), camera("cam-001"));

    let mut changed = camera("cam-001");
    changed["rtsp_url"] = json!("rtsp://elsewhere/stream");
    changed["vendor"] = json!({"serial": "x-7"});
    let path = format!("{CAMERAS}cam-001/");
    assert_eq!(api.put(&path, changed.clone()).await.is(200), changed, "what we do not know is kept");
    assert_eq!(api.get(&path).await.is(200), changed);
    assert_eq!(
        api.put(&format!("{CAMERAS}cam-002"), json!({"rtsp_url": "rtsp://x"})).await.is(200)["camera_uuid"],
        "cam-002"
    );
    assert_eq!(api.delete(&path).await.is(200), json!({"success": true}));
    api.delete(&path).await.problem(404, "not_found");
    api.get("/cameras/cam-001?tenant=tenant-1").await.problem(404, "not_found");
    assert_eq!(
        api.get("/cameras?tenant=tenant-1").await.is(200)["cameras"].as_array().map(Vec::len),
        Some(1)
    );
}

#[tokio::test]
async fn a_camera_is_at_one_site() {
    let api = Api::start().await;
    api.declare_camera("cam-001").await;
    let elsewhere = "/tenants/tenant-1/sites/site-2/cameras";
    assert_eq!(api.get(elsewhere).await.is(200)["cameras"], json!([]));
    api.get(&format!("{elsewhere}/cam-001")).await.problem(404, "not_found");
    api.delete(&format!("{elsewhere}/cam-001")).await.problem(404, "not_found");
    api.put(&format!("{elsewhere}/cam-001"), json!({})).await.problem(404, "not_found");
    api.post(elsewhere, json!({"camera_uuid": "cam-001"})).await.problem(409, "exists");
    let wrong =
        api.put(&format!("{elsewhere}/cam-009"), camera("cam-009")).await.problem(400, "invalid_field");
    assert_eq!(wrong["errors"][0]["field"], "site_id");
    api.post("/tenants/tenant-2/sites/site-1/cameras", camera("cam-003")).await.problem(404, "not_found");
    let mut moved = camera("cam-001");
    moved["site_id"] = json!("site-2");
    api.put("/cameras/cam-001?tenant=tenant-1", moved).await.is(200);
    assert_eq!(api.get(CAMERAS).await.is(200)["cameras"], json!([]));
    api.put("/cameras/cam-001?tenant=tenant-1", json!({"min_score": 0.1})).await.is(200);
    assert_eq!(api.get(elsewhere).await.is(200)["cameras"][0]["min_score"], 0.1, "it stays where it is");
}

#[tokio::test]
async fn a_held_camera_is_deleted_by_force() {
    let api = Api::start().await;
    api.declare_camera("cam-001").await;
    let free = api.get("/cameras/available/?tenant=tenant-1").await.is(200);
    assert_eq!((&free["cameras"], &free["items"]), (&json!(["cam-001"]), &json!([camera("cam-001")])));
    let lease = api.acquire_camera("cam-001", "r").await.is(200);
    assert_eq!(api.get("/cameras/available/?tenant=tenant-1").await.is(200)["cameras"], json!([]));
    let path = format!("{CAMERAS}cam-001");
    assert_eq!(api.delete(&path).await.problem(409, "in_use")["holder"], "r");
    api.delete(&format!("{path}?force=perhaps")).await.problem(400, "invalid_field");
    api.delete(&format!("{path}?force=true")).await.is(200);
    let id = lease["lease_id"].as_str().expect("an id");
    assert_eq!(api.get(&format!("/leases/{id}?tenant=tenant-1")).await.is(200)["status"], "revoked");
}

#[tokio::test]
async fn every_fault_is_named_by_its_path() {
    let api = Api::start().await;
    let mut odd = camera("door\n1");
    odd["min_score"] = json!(1.5);
    odd["zones"] = json!([
        {"zone_id": 1, "polygon": [[0, 0], [1, 1]]},
        {"zone_id": 1, "kind": "maybe", "polygon": [[0, 0], [1, 1], [2]], "min_score": -0.1},
    ]);
    odd["motion_gating"]["downscale"] = json!(2);
    let problem = api.post(CAMERAS, odd).await.problem(400, "invalid_field");
    let fields: Vec<_> =
        problem["errors"].as_array().expect("faults").iter().map(|f| f["field"].as_str()).collect();
    for field in [
        "camera_uuid",
        "min_score",
        "motion_gating.downscale",
        "zones[0].polygon",
        "zones[1].kind",
        "zones[1].polygon[2]",
        "zones[1].min_score",
        "zones[1].zone_id",
    ] {
        assert!(fields.contains(&Some(field)), "{field} of {fields:?}");
    }
    let typed = api.send("POST", CAMERAS, r#"{"zones": [{"zone_id": 1, "polygon": [[0, "x"]]}]}"#).await;
    assert_eq!(typed.problem(400, "invalid_field")["errors"][0]["field"], "zones[0].polygon[0][1]");
    let mut large = camera("cam-1");
    large["notes"] = json!("x".repeat(70_000));
    api.post(CAMERAS, large).await.problem(400, "invalid_field");
    api.send("POST", CAMERAS, "not json").await.problem(400, "invalid_json");
    assert_eq!(api.get(CAMERAS).await.is(200)["cameras"], json!([]));
}

#[tokio::test]
async fn zones_are_configured() {
    let api = Api::start().await;
    let filled_in = |id: Value, kind: &str| {
        let mut filled = zone(id);
        (filled["kind"], filled["priority"]) = (json!(kind), json!(0));
        filled
    };
    assert_eq!(api.post(ZONES, zone(json!(7))).await.is(200), filled_in(json!(7), "exclude"));
    api.post(ZONES, zone(json!(7))).await.problem(409, "exists");
    api.post(ZONES, zone(json!("north/gate"))).await.is(200);
    assert_eq!(api.get(&format!("{ZONES}7/")).await.is(200), filled_in(json!(7), "exclude"));
    let named = format!("{ZONES}{}", segment("north/gate"));
    let mut changed = zone(json!("north/gate"));
    changed["kind"] = json!("include");
    assert_eq!(api.put(&named, changed).await.is(200), filled_in(json!("north/gate"), "include"));
    api.put(&named, zone(json!(7))).await.problem(400, "invalid_field");
    api.put(&format!("{ZONES}8"), zone(json!(8))).await.is(200);
    let list = api.get(ZONES).await.is(200);
    assert_eq!(list["zones"].as_array().map(Vec::len), Some(3));
    assert_eq!(api.delete(&named).await.is(200), json!({"success": true}));
    api.get(&named).await.problem(404, "not_found");
    api.delete(&named).await.problem(404, "not_found");
    let other_site = "/tenants/tenant-1/sites/site-2/zones";
    api.post(other_site, zone(json!(7))).await.is(200);
    assert_eq!(api.get(other_site).await.is(200)["zones"].as_array().map(Vec::len), Some(1));
    for (field, odd) in [
        ("zone_id", json!({"zone_id": 0, "polygon": [[0, 0], [1, 1], [2, 2]]})),
        ("zone_id", json!({"zone_id": "0", "polygon": [[0, 0], [1, 1], [2, 2]]})),
        ("polygon", json!({"zone_id": 9, "polygon": [[0, 0], [1, 1]]})),
        ("polygon[1][0]", json!({"zone_id": 9, "polygon": [[0, 0], [-2e9, 1], [2, 2]]})),
        ("kind", json!({"zone_id": 9, "kind": "x", "polygon": [[0, 0], [1, 1], [2, 2]]})),
        ("min_score", json!({"zone_id": 9, "min_score": 2, "polygon": [[0, 0], [1, 1], [2, 2]]})),
        ("camera_uuid", json!({"zone_id": 9, "camera_uuid": "", "polygon": [[0, 0], [1, 1], [2, 2]]})),
    ] {
        assert_eq!(api.post(ZONES, odd).await.problem(400, "invalid_field")["errors"][0]["field"], field);
    }
}

#[tokio::test]
async fn zones_of_a_site_are_its_cameras() {
    let api = Api::start().await;
    api.declare_camera("cam-001").await;
    api.declare_camera("cam-002").await;
    api.post(ZONES, zone(json!(5))).await.is(200);
    let mut only_one = zone(json!(6));
    only_one["camera_uuid"] = json!("cam-002");
    api.post(ZONES, only_one).await.is(200);
    api.post(ZONES, zone(json!(1))).await.is(200);
    let list = api.get(CAMERAS).await.is(200);
    let ids = |camera: &Value| -> Vec<Value> {
        camera["zones"].as_array().expect("zones").iter().map(|zone| zone["zone_id"].clone()).collect()
    };
    assert_eq!(ids(&list["cameras"][0]), [json!(1), json!(5)], "its own zone 1 wins over the site's");
    assert_eq!(ids(&list["cameras"][1]), [json!(1), json!(5), json!(6)]);
    assert_eq!(list["cameras"][0]["zones"][0]["name"], "driveway");
    assert_eq!(api.get("/cameras/cam-002?tenant=tenant-1").await.is(200)["zones"][2]["zone_id"], 6);
}

#[tokio::test]
async fn the_same_content_has_the_same_version() {
    let api = Api::start().await;
    let version = async |tenant: &str| {
        let v = api.get(&format!("/tenants/{tenant}/sites/site-1/config/version")).await.is(200);
        (
            v["config_version"].as_str().expect("a version").to_owned(),
            v["zone_version"].as_str().expect("one").to_owned(),
        )
    };
    let empty = version("tenant-1").await;
    api.declare_camera("cam-1").await;
    api.declare_camera("cam-2").await;
    api.post(ZONES, zone(json!(7))).await.is(200);
    let full = version("tenant-1").await;
    assert!(full.0 != empty.0 && full.1 != empty.1);

    // The same again in another order, with the keys in another order, and numbers written otherwise.
    api.delete(&format!("{CAMERAS}cam-1")).await.is(200);
    api.delete(&format!("{ZONES}7")).await.is(200);
    api.post(ZONES, zone(json!(7))).await.is(200);
    let text = camera("cam-1").to_string();
    let fields: serde_json::Map<String, Value> = serde_json::from_str(&text).expect("an object");
    let turned: Vec<String> = fields.iter().rev().map(|(k, v)| format!("{}: {v}", json!(k))).collect();
    let turned = format!("{{{}}}", turned.join(", ")).replace("[100,100]", "[100.0, 1e2]");
    assert!(turned.contains("1e2"), "{turned}");
    api.send("POST", CAMERAS, turned).await.is(200);
    assert_eq!(version("tenant-1").await, full);

    let mut changed = zone(json!(7));
    changed["min_score"] = json!(0.6);
    api.put(&format!("{ZONES}7"), changed).await.is(200);
    let after = version("tenant-1").await;
    assert!(after.0 == full.0 && after.1 != full.1, "only zones changed");
    let mut changed = camera("cam-1");
    changed["zone_test"] = json!("any");
    api.put(&format!("{CAMERAS}cam-1"), changed).await.is(200);
    assert!(version("tenant-1").await.0 != full.0);
    assert_eq!(api.get(&format!("{SITE}/config/version/")).await.is(200)["zone_version"], json!(after.1));
}

#[tokio::test]
async fn a_change_of_configuration_keeps_labels_and_lock_delay() {
    let api = Api::start().await;
    let declared = json!({"labels": {"floor": "2"}, "lock_delay_ms": 5_000, "site": "site-1"});
    api.put("/resources/camera/cam-9?tenant=tenant-1", declared).await.is(201);
    assert_eq!(api.get("/cameras/cam-9?tenant=tenant-1").await.is(200)["site_id"], "site-1");
    api.put("/cameras/cam-9?tenant=tenant-1", json!({"rtsp_url": "rtsp://x"})).await.is(200);
    let shown = api.get("/resources/camera/cam-9?tenant=tenant-1").await.is(200);
    assert_eq!((&shown["labels"]["floor"], &shown["lock_delay_ms"]), (&json!("2"), &json!(5_000)));
    assert_eq!((&shown["site"], &shown["attributes"]["rtsp_url"]), (&json!("site-1"), &json!("rtsp://x")));
}

/// What its client's schema requires of every document: one that lacks it makes it drop the whole site.
fn must_be_readable(camera: &Value) {
    for field in ["camera_uuid", "rtsp_url", "tenant_id", "site_id"] {
        assert!(camera[field].is_string(), "{field} of {camera}");
    }
    let statuses = ["online", "offline", "error", "maintenance"];
    assert!(camera.get("status").is_none_or(|s| statuses.contains(&s.as_str().unwrap_or("?"))), "{camera}");
    for zone in camera["zones"].as_array().expect("zones") {
        assert!(zone["name"].is_string() && zone["priority"].is_i64(), "{zone}");
        assert!(["include", "exclude"].contains(&zone["kind"].as_str().unwrap_or_default()), "{zone}");
        assert!(zone["zone_id"].as_u64() != Some(0), "{zone}");
    }
}

#[tokio::test]
async fn answers_have_what_the_pipeline_s_schema_requires() {
    let api = Api::start().await;
    let bare_zone = json!({"zone_id": 3, "polygon": [[0, 0], [1, 0], [1, 1]]});
    let bare = json!({"camera_uuid": "cam-1", "zones": [bare_zone]});
    must_be_readable(&api.post(CAMERAS, bare).await.is(200));
    let filled = api.post(ZONES, json!({"zone_id": 4, "polygon": [[0, 0], [1, 0], [1, 1]]})).await.is(200);
    assert_eq!(
        (&filled["name"], &filled["kind"], &filled["priority"]),
        (&json!("4"), &json!("include"), &json!(0))
    );
    // What other surfaces and older versions may have stored.
    let odd = json!({"attributes": {"status": "asleep", "zones": [{"zone_id": 0, "polygon": []}]}});
    api.put("/resources/camera/cam-2?tenant=tenant-1", odd).await.is(201);
    for path in ["/cameras/cam-1", "/cameras/cam-2", &format!("{CAMERAS}cam-1")] {
        must_be_readable(&api.get(path).await.is(200));
    }
    let shown = api.get("/cameras/cam-2").await.is(200);
    api.put("/cameras/cam-2", shown).await.is(200);
    for camera in api.get("/cameras").await.is(200)["cameras"].as_array().expect("cameras") {
        must_be_readable(camera);
    }
    let mut unknown = camera("cam-3");
    for status in [json!("asleep"), json!(7), json!("")] {
        unknown["status"] = status;
        let problem = api.post(CAMERAS, unknown.clone()).await.problem(400, "invalid_field");
        assert_eq!(problem["errors"][0]["field"], "status");
    }
}

#[tokio::test]
async fn cameras_are_listed_by_their_status() {
    let api = Api::start().await;
    for (id, status) in [("cam-1", json!("online")), ("cam-2", json!("error")), ("cam-3", json!(null))] {
        let mut body = camera(id);
        body["status"] = status;
        api.post(CAMERAS, body).await.is(200);
    }
    let ids = async |path: &str, field: &str| {
        let list = api.get(path).await.is(200);
        let cameras = list[field].as_array().expect("cameras").iter();
        cameras.map(|c| c["camera_uuid"].as_str().expect("an id").to_owned()).collect::<Vec<_>>().join(" ")
    };
    for (status, expected) in
        [("online", "cam-1"), ("error", "cam-2"), ("offline", "cam-3"), ("maintenance", "")]
    {
        assert_eq!(ids(&format!("{CAMERAS}?status={status}"), "cameras").await, expected);
        assert_eq!(ids(&format!("/cameras?status={status}"), "cameras").await, expected);
        assert_eq!(ids(&format!("/cameras/available?status={status}"), "items").await, expected);
    }
    for path in [CAMERAS, "/cameras", "/cameras/available"] {
        api.get(&format!("{path}?status=asleep")).await.problem(400, "invalid_field");
    }
    assert_eq!(ids(&format!("{CAMERAS}?site_id=site-1"), "cameras").await, "cam-1 cam-2 cam-3");
    assert_eq!(ids(&format!("{CAMERAS}?site_id=site-2"), "cameras").await, "");
}

#[tokio::test]
async fn versions_say_when_something_last_changed() {
    let api = Api::start().await;
    let one = api.keyed(solehold_server::Role::Admin, Some("tenant-1")).await;
    let root = api.keyed(solehold_server::Role::Admin, None).await;
    let version = async |api: &Api, path: &str| {
        let told = api.get(path).await.is(200);
        (told["config_version"].clone(), told["zone_version"].clone(), told["last_updated"].clone())
    };
    let paths = [format!("{SITE}/config/version"), "/config/version".to_owned()];
    assert_eq!(version(&one, &paths[0]).await.2, "1970-01-01T00:00:00.000Z", "nothing has changed yet");
    one.declare_camera("cam-1").await;
    let zone_path = format!("{ZONES}7");
    let camera_path = format!("{CAMERAS}cam-1");
    let steps: [(&str, &str, Value, bool); 6] = [
        ("POST", ZONES, zone(json!(7)), true),
        ("PUT", &zone_path, zone(json!(7)), false),
        ("PUT", &camera_path, json!({"min_score": 0.5}), true),
        ("PUT", &camera_path, json!({"min_score": 0.5}), false),
        ("DELETE", &zone_path, json!({}), true),
        ("DELETE", &camera_path, json!({}), true),
    ];
    for (method, path, body, is_change) in steps {
        api.pass_seconds(1);
        for (who, version_path) in [(&one, &paths[0]), (&one, &paths[1]), (&root, &paths[1])] {
            let before = version(who, version_path).await;
            assert_eq!(version(who, version_path).await, before);
        }
        let before = (version(&one, &paths[0]).await, version(&root, &paths[1]).await);
        assert!(one.call(method, path, body).await.status < 300);
        let after = (version(&one, &paths[0]).await, version(&root, &paths[1]).await);
        assert_eq!(before.0 != after.0, is_change, "{method} {path}: {before:?} {after:?}");
        assert_eq!(before.1 != after.1, is_change, "{method} {path}: {before:?} {after:?}");
        assert_eq!(before.0.2.as_str() < after.0.2.as_str(), is_change, "{method} {path}");
    }
    let mine = version(&one, "/config/version").await;
    let theirs = "/tenants/tenant-2/sites/site-1/zones";
    root.post(theirs, zone(json!(7))).await.is(200);
    assert_eq!(version(&one, "/config/version").await, mine, "another tenant's changes are not told");
    assert_ne!(version(&root, "/config/version").await.1, mine.1);
    assert_eq!(version(&root, "/config/version?tenant=tenant-1").await, mine);
    one.get("/config/version?tenant=tenant-2").await.problem(404, "not_found");
}

#[tokio::test]
async fn a_change_of_a_zone_is_an_event_of_each_camera_that_it_applies_to() {
    let api = Api::start().await;
    for id in ["cam-1", "cam-2"] {
        api.declare_camera(id).await;
    }
    let mut elsewhere = camera("cam-3");
    elsewhere["site_id"] = json!("site-2");
    api.post("/tenants/tenant-1/sites/site-2/cameras", elsewhere).await.is(200);
    let events = async |id: &str| {
        let path = format!("/resources/camera/{id}/history?tenant=tenant-1");
        let history = api.get(&path).await.is(200);
        history["events"].as_array().expect("events").clone()
    };
    let counts = async || {
        let mut counts = Vec::new();
        for id in ["cam-1", "cam-2", "cam-3"] {
            let told = events(id).await;
            counts.push(told.iter().filter(|e| e["event_type"] == "config_changed").count());
        }
        counts
    };
    let lease = api.acquire_camera("cam-1", "r").await.is(200);
    api.post(ZONES, zone(json!(7))).await.is(200);
    assert_eq!(counts().await, [1, 1, 0]);
    api.put(&format!("{ZONES}7"), zone(json!(7))).await.is(200);
    assert_eq!(counts().await, [1, 1, 0], "nothing has changed");
    let mut only_one = zone(json!(7));
    only_one["camera_uuid"] = json!("cam-2");
    api.put(&format!("{ZONES}7"), only_one.clone()).await.is(200);
    assert_eq!(counts().await, [2, 2, 0], "it applied to the first before");
    only_one["min_score"] = json!(0.9);
    api.put(&format!("{ZONES}7"), only_one).await.is(200);
    assert_eq!(counts().await, [2, 3, 0]);
    api.delete(&format!("{ZONES}7")).await.is(200);
    assert_eq!(counts().await, [2, 4, 0]);
    api.delete(&format!("{ZONES}7")).await.problem(404, "not_found");
    assert_eq!(counts().await, [2, 4, 0]);
    let last = events("cam-2").await.pop().expect("an event");
    assert_eq!((&last["camera_uuid"], &last["details"]["zone"]), (&json!("cam-2"), &json!("site-1/7")));
    api.put("/cameras/cam-1?tenant=tenant-1", json!({"min_score": 0.1})).await.is(200);
    let last = events("cam-1").await.pop().expect("an event");
    assert_eq!((&last["event_type"], &last["key"]), (&json!("resource_declared"), &json!("cam-1")));
    let held = api.get("/leases/camera/cam-1").await.is(200);
    assert_eq!(held["token"], lease["token"], "whoever holds it goes on");
}
