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
    let made = api.post(CAMERAS, camera("cam-001")).await.is(201);
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
        api.put(&format!("{CAMERAS}cam-002"), json!({"rtsp_url": "rtsp://x"})).await.is(201)["camera_uuid"],
        "cam-002"
    );
    api.delete(&path).await.is(204);
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
    assert_eq!(
        api.get("/cameras/available/?tenant=tenant-1").await.is(200)["cameras"][0]["camera_uuid"],
        "cam-001"
    );
    let lease = api.acquire_camera("cam-001", "r").await.is(200);
    assert_eq!(api.get("/cameras/available/?tenant=tenant-1").await.is(200)["cameras"], json!([]));
    let path = format!("{CAMERAS}cam-001");
    assert_eq!(api.delete(&path).await.problem(409, "in_use")["holder"], "r");
    api.delete(&format!("{path}?force=perhaps")).await.problem(400, "invalid_field");
    api.delete(&format!("{path}?force=true")).await.is(204);
    let id = lease["lease_id"].as_str().expect("an id");
    assert_eq!(api.get(&format!("/leases/{id}?tenant=tenant-1")).await.is(200)["status"], "revoked");
}

#[tokio::test]
async fn every_fault_is_named_by_its_path() {
    let api = Api::start().await;
    let mut odd = camera("door-1");
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
    assert_eq!(api.post(ZONES, zone(json!(7))).await.is(201), zone(json!(7)));
    api.post(ZONES, zone(json!(7))).await.problem(409, "exists");
    api.post(ZONES, zone(json!("north/gate"))).await.is(201);
    assert_eq!(api.get(&format!("{ZONES}7/")).await.is(200), zone(json!(7)));
    let named = format!("{ZONES}{}", segment("north/gate"));
    let mut changed = zone(json!("north/gate"));
    changed["kind"] = json!("include");
    assert_eq!(api.put(&named, changed.clone()).await.is(200), changed);
    api.put(&named, zone(json!(7))).await.problem(400, "invalid_field");
    api.put(&format!("{ZONES}8"), zone(json!(8))).await.is(201);
    let list = api.get(ZONES).await.is(200);
    assert_eq!(list["zones"].as_array().map(Vec::len), Some(3));
    api.delete(&named).await.is(204);
    api.get(&named).await.problem(404, "not_found");
    api.delete(&named).await.problem(404, "not_found");
    let other_site = "/tenants/tenant-1/sites/site-2/zones";
    api.post(other_site, zone(json!(7))).await.is(201);
    assert_eq!(api.get(other_site).await.is(200)["zones"].as_array().map(Vec::len), Some(1));
    for (field, odd) in [
        ("polygon", json!({"zone_id": 9, "polygon": [[0, 0], [1, 1]]})),
        ("kind", json!({"zone_id": 9, "kind": "x", "polygon": [[0, 0], [1, 1], [2, 2]]})),
        ("min_score", json!({"zone_id": 9, "min_score": 2, "polygon": [[0, 0], [1, 1], [2, 2]]})),
        ("camera_uuid", json!({"zone_id": 9, "camera_uuid": "x", "polygon": [[0, 0], [1, 1], [2, 2]]})),
    ] {
        assert_eq!(api.post(ZONES, odd).await.problem(400, "invalid_field")["errors"][0]["field"], field);
    }
}

#[tokio::test]
async fn zones_of_a_site_are_its_cameras() {
    let api = Api::start().await;
    api.declare_camera("cam-001").await;
    api.declare_camera("cam-002").await;
    api.post(ZONES, zone(json!(5))).await.is(201);
    let mut only_one = zone(json!(6));
    only_one["camera_uuid"] = json!("cam-002");
    api.post(ZONES, only_one).await.is(201);
    api.post(ZONES, zone(json!(1))).await.is(201);
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
    api.post(ZONES, zone(json!(7))).await.is(201);
    let full = version("tenant-1").await;
    assert!(full.0 != empty.0 && full.1 != empty.1);

    // The same again in another order, with the keys in another order, and numbers written otherwise.
    api.delete(&format!("{CAMERAS}cam-1")).await.is(204);
    api.delete(&format!("{ZONES}7")).await.is(204);
    api.post(ZONES, zone(json!(7))).await.is(201);
    let text = camera("cam-1").to_string();
    let fields: serde_json::Map<String, Value> = serde_json::from_str(&text).expect("an object");
    let turned: Vec<String> = fields.iter().rev().map(|(k, v)| format!("{}: {v}", json!(k))).collect();
    let turned = format!("{{{}}}", turned.join(", ")).replace("[100,100]", "[100.0, 1e2]");
    assert!(turned.contains("1e2"), "{turned}");
    api.send("POST", CAMERAS, turned).await.is(201);
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
