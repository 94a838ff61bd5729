use serde_json::json;

use super::*;
use crate::{
    body,
    testing::{key, lease_view, name, resource, round_trip},
};

const CAMERA: &str = r#"{
    "camera_uuid": "cam-001", "rtsp_url": "rtsp://camera.local/stream", "tenant_id": "tenant-1", "site_id": "site-1",
    "zones": [{
        "zone_id": 1, "name": "driveway", "kind": "include", "priority": 100,
        "polygon": [[100, 100], [700, 100], [700, 500], [200, 500]], "allow_labels": ["person", "car"], "min_score": 0.25
    }],
    "motion_gating": {"enabled": true, "downscale": 0.5, "min_area_px": 1500, "cooldown_frames": 2},
    "allow_labels": ["person", "car", "truck"], "min_score": 0.30, "zone_test": "center", "iou_threshold": 0.10
}"#;

fn full_camera() -> Camera {
    body::parse(CAMERA.as_bytes()).expect("a camera with every field")
}

fn zone(id: u64, camera: Option<&str>) -> Zone {
    let zone = json!({"zone_id": id, "polygon": [[0, 0], [1, 0], [1, 1]]});
    let zone: Zone = serde_json::from_value(zone).expect("a zone");
    Zone { camera_uuid: camera.map(str::to_owned), ..zone }
}

fn told<T: std::fmt::Debug>(checked: Checked<T>) -> Vec<String> {
    checked.expect_err("odd").iter().map(ToString::to_string).collect()
}

#[test]
fn a_document_comes_back_as_it_was() {
    let camera = full_camera();
    assert!(camera.declaration().is_ok());
    let given: Value = serde_json::from_str(CAMERA).expect("JSON");
    assert_eq!(serde_json::to_value(&camera).expect("a camera"), given);

    let odd = json!({
        "camera_uuid": "cam-1", "zones": [{"zone_id": "a", "polygon": [], "colour": "red"}],
        "motion_gating": {"x": 1}, "fps": 12.5, "note": {"söhne": [null]},
    });
    let camera: Camera = serde_json::from_value(odd.clone()).expect("a camera");
    assert_eq!(serde_json::to_value(&camera).expect("a camera"), odd, "unknown fields are kept");
    round_trip(&CameraList { cameras: vec![camera], next: None });
    round_trip(&ZoneList { zones: vec![zone(1, None)], next: None });
}

#[test]
fn all_that_is_wrong_is_named_by_its_path() {
    let camera: Camera = serde_json::from_value(json!({
        "camera_uuid": "x\n", "min_score": 1.5, "iou_threshold": -0.1, "allow_labels": ["", "car"],
        "motion_gating": {"downscale": 1e300}, "zone_test": "", "site_id": "x\n",
        "zones": [
            {"zone_id": 1, "polygon": [[0, 0], [1, 0], [1, 1]]},
            {"zone_id": 1, "polygon": [[0, 0], [1, 0], [1, 1]], "min_score": 2},
            {"zone_id": "", "polygon": [[0], [1, 2, 3]], "kind": "maybe", "camera_uuid": ""},
        ],
    }))
    .expect("a camera");
    assert_eq!(
        told(camera.declaration()),
        [
            "camera_uuid has a control character at byte 1; a name is printable text",
            "site_id has a control character at byte 1; a name is printable text",
            "zone_test is empty; a name has 1 to 255 bytes",
            "allow_labels[0] is empty; a name has 1 to 255 bytes",
            "min_score is 1.5; it must be 0 to 1",
            "iou_threshold is -0.1; it must be 0 to 1",
            "motion_gating.downscale is 1e+300; it must be 0 to 1",
            "zones[1].min_score is 2; it must be 0 to 1",
            "zones[1].zone_id is that of another zone of this camera",
            "zones[2].zone_id is empty; a name has 1 to 255 bytes",
            "zones[2].kind is \"maybe\"; it must be include or exclude",
            "zones[2].polygon has 2 points; a polygon has 3 or more",
            "zones[2].polygon[0] has 1 numbers; a point has 2",
            "zones[2].polygon[1] has 3 numbers; a point has 2",
            "zones[2].camera_uuid is empty; a name has 1 to 255 bytes",
        ]
    );
    let site = Name::new("north").expect("a name");
    assert_eq!(told(Zone { polygon: vec![], ..zone(1, None) }.declaration(&site)).len(), 1);
    let long = Camera { rtsp_url: Some("x".repeat(70_000)), ..full_camera() };
    assert_eq!(long.declaration().expect_err("too long")[0].field, "rtsp_url");
    let large = Camera { allow_labels: Some(vec!["x".repeat(250); 300]), ..full_camera() };
    assert_eq!(large.declaration().expect_err("too large")[0].field, "camera");
}

#[test]
fn the_path_fills_in_what_the_document_leaves_out() {
    let mut bare = Camera::default();
    assert_eq!(bare.place(Some("cam-1"), "t", Some("s")), Ok(()));
    assert_eq!(
        (bare.camera_uuid.as_str(), bare.site_id.as_deref(), bare.tenant_id.as_deref()),
        ("cam-1", Some("s"), Some("t"))
    );
    let other = full_camera().place(Some("cam-002"), "tenant-1", Some("site-2"));
    assert_eq!(told(other), ["camera_uuid is not the one in the path", "site_id is not the one in the path"]);
    assert_eq!(full_camera().place(None, "tenant-1", None), Ok(()));
}

#[test]
fn a_camera_is_a_resource() {
    let declared = full_camera().declaration().expect("good");
    assert_eq!(declared.site, Some(name("site-1")));
    let row = resource(&lease_view(key("cam-001"), "{}"), declared.attributes.as_str());
    let mut expected = full_camera();
    expected.tenant_id = Some("t".into());
    assert_eq!(Camera::of(&row), expected);
    let foreign = resource(&lease_view(key("cam-7"), "{}"), "[]");
    let foreign = Camera::of(&foreign);
    assert_eq!((foreign.camera_uuid.as_str(), foreign.site_id.as_deref()), ("cam-7", Some("site-1")));
}

#[test]
fn a_zone_is_a_resource_with_a_key_of_its_own() {
    let text = |site: &str, id: ZoneId| Zone::key(site, &id).map(String::from);
    assert_eq!(text("site-1", ZoneId::Number(7)), Ok("site-1/7".into()));
    assert_ne!(text("a/b", ZoneId::Name("c".into())), text("a", ZoneId::Name("b/c".into())));
    assert_eq!(text("Halle süd", ZoneId::Name("a/b%".into())), Ok("Halle süd/a%2Fb%25".into()));
    assert!(text(&"x".repeat(255), ZoneId::Number(7)).is_err());
    let zone = zone(1, Some("cam-1"));
    let declared = zone.declaration(&name("s")).expect("good");
    let row = resource(&lease_view(key("s/1"), "{}"), declared.attributes.as_str());
    assert_eq!(Zone::of(&row), Some(zone));
    assert_eq!(Zone::of(&resource(&lease_view(key("k"), "{}"), "{}")), None);
    assert_eq!(ZoneId::from_path("7"), ZoneId::Number(7));
    for text in ["07", "+7", "-7", "a", "99999999999999999999999", ""] {
        assert_eq!(ZoneId::from_path(text), ZoneId::Name(text.into()), "{text}");
    }
}

#[test]
fn zones_of_the_site_count_unless_the_camera_has_its_own() {
    let of_site = [zone(1, None), zone(2, None), zone(3, Some("cam-001")), zone(4, Some("cam-2"))];
    let ids: Vec<String> =
        full_camera().effective_zones(&of_site).iter().map(|zone| zone.zone_id.to_string()).collect();
    assert_eq!(ids, ["1", "2", "3"]);
    assert_eq!(full_camera().effective_zones(&of_site)[0].name.as_deref(), Some("driveway"));
}

#[test]
fn versions_follow_the_content() {
    let version = |camera: &Camera, zones: &[Zone]| ConfigVersion::of(std::slice::from_ref(camera), zones);
    let one = version(&full_camera(), &[zone(1, None), zone(2, None)]);
    assert_eq!(one, version(&full_camera(), &[zone(2, None), zone(1, None)]));
    let mut renamed = full_camera();
    renamed.rtsp_url = None;
    assert_ne!(version(&renamed, &[]).config_version, version(&full_camera(), &[]).config_version);
    assert_eq!(version(&renamed, &[]).zone_version, version(&full_camera(), &[]).zone_version);
    let mut moved = full_camera();
    moved.zones.clear();
    assert_eq!(version(&moved, &[]).config_version, version(&full_camera(), &[]).config_version);
    assert_ne!(version(&moved, &[]).zone_version, version(&full_camera(), &[]).zone_version);
}
