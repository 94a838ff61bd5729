use serde_json::json;
use solehold_core::{
    command::AskedTenure,
    key::{LeaseId, ResourceKey, SessionId},
    outcome::Refusal,
    time::Token,
};

use super::*;
use crate::{
    body,
    problem::ErrorCode,
    testing::{document, key, lease_view, name, resource, round_trip, session_id},
};

const ACQUIRE: &[u8] = br#"{
    "camera_uuid": "cam-001", "runner_id": "runner-abc123", "shard_id": "shard-1", "tenant_id": "tenant-1",
    "site_id": "site-1", "ttl_seconds": 60, "config_version": "abc123", "zone_version": "def456", "extra": 1
}"#;

fn fields<T: std::fmt::Debug>(checked: Checked<T>) -> Vec<String> {
    checked.expect_err("odd").into_iter().map(|fault| fault.field).collect()
}

fn by_id() -> Target {
    Target::Lease { tenant: name("t"), id: LeaseId(Uuid::from_u128(9)) }
}

#[test]
fn a_runners_acquire_is_taken() {
    let acquire: AcquireLease = body::parse(ACQUIRE).expect("a runner's body");
    round_trip(&acquire);
    let asked = acquire.terms().expect("good");
    assert_eq!((asked.holder, asked.tenure), (name("runner-abc123"), AskedTenure::Own { ttl_ms: 60_000 }));
    let about = LeaseAttributes::of(&asked.attributes);
    assert_eq!((about.shard_id.as_str(), about.zone_version.as_str()), ("shard-1", "def456"));
    let least: AcquireLease = body::parse(br#"{"camera_uuid": "cam-1", "runner_id": "r"}"#).expect("good");
    assert_eq!(least.terms().expect("good").tenure, AskedTenure::Own { ttl_ms: 60_000 });
}

#[test]
fn all_faults_are_reported() {
    let odd = AcquireLease {
        camera_uuid: "a\nb".into(),
        shard_id: Some("x".repeat(100_000)),
        site_id: Some("a\tb".into()),
        ttl_seconds: Some(86_401.into()),
        ..Default::default()
    };
    assert_eq!(fields(odd.terms()), ["camera_uuid", "shard_id", "site_id", "runner_id", "ttl_seconds"]);
    let long = format!("cam-{}", "x".repeat(10_000));
    for (id, is_good) in
        [("5f0c8f9e-4b1d-4a57-9f39-0d9a3c8f2b11", true), ("数", true), ("", false), (&long, false)]
    {
        let ask = AcquireLease { camera_uuid: id.to_owned(), runner_id: "r".into(), ..Default::default() };
        assert_eq!(ask.terms().is_ok(), is_good, "{id}");
    }
}

#[test]
fn a_lease_id_is_proof_and_the_rest_must_match() {
    let renew: RenewLease =
        body::parse(br#"{"token": 7, "runner_id": "r", "ttl_seconds": 45, "x": 1}"#).expect("good");
    let claim = renew.claim(by_id()).expect("good");
    assert_eq!((claim.target, claim.token, claim.holder), (by_id(), Some(Token(7)), Some(name("r"))));
    assert_eq!(renew.ttl_ms(), Ok(Some(45_000)));
    let empty: RenewLease = body::parse(b"").expect("nothing is asked");
    assert_eq!(empty.claim(by_id()).expect("good").token, None);
    let odd = RenewLease { runner_id: Some(String::new()), ttl_seconds: Some(86_401.into()), ..empty };
    assert_eq!(
        (fields(odd.claim(by_id())), fields(odd.ttl_ms())),
        (vec!["runner_id".into()], vec!["ttl_seconds".into()])
    );
    assert_eq!(ReleaseLease::default().state(), Ok(None));
    let long = RevokeLease { reason: Some("x".repeat(2_000)), ..Default::default() };
    assert_eq!(fields(long.reason()), ["reason"]);
}

#[test]
fn a_heartbeat_reports_stats_in_any_form() {
    let stats = |body: &str| {
        let heartbeat: HeartbeatLease = body::parse(body.as_bytes()).expect(body);
        round_trip(&heartbeat);
        heartbeat.stats().expect("good").map(|stats| stats.as_str().to_owned())
    };
    let fps = Some(r#"{"fps":25}"#.to_owned());
    assert_eq!(stats(r#"{"stats": {"fps": 25}, "token": 7}"#), fps);
    assert_eq!(stats(r#"{"processing_stats": {"fps": 25}}"#), fps);
    assert_eq!(stats(r#"{"fps": 25, "runner_id": "r"}"#), fps);
    assert_eq!(stats(r#"{"token": 7}"#), None);
    let large = HeartbeatLease {
        stats: Some([("x".into(), json!("x".repeat(70_000)))].into()),
        ..Default::default()
    };
    assert_eq!(fields(large.stats()), ["stats"]);
}

fn lease_on(kind: &str) -> LeaseBody {
    let attributes = r#"{"shard_id":"shard-1","config_version":"abc","zone_version":"def"}"#;
    let key = ResourceKey { kind: name(kind), ..key("cam-001") };
    LeaseBody::of(&lease_view(key, attributes), Revision(50))
}

fn lease() -> LeaseBody {
    lease_on(kind::CAMERA)
}

fn generic(kind: &str) -> Value {
    json!({
        "lease_id": "00000000-0000-0000-0000-000000000009", "tenant": "t", "site": "site-1", "kind": kind,
        "key": "cam-001", "holder": "worker", "token": 42, "session_id": session_id().to_string(),
        "acquired_at": "1970-01-01T00:00:01.000Z", "expires_at": "1970-01-01T00:00:31.000Z", "renewed_at": null,
        "status": "active", "ttl_ms": 29000, "stats": {"fps": 25}, "revision": 50,
        "attributes": {"shard_id": "shard-1", "config_version": "abc", "zone_version": "def"},
    })
}

#[test]
fn a_lease_on_a_camera_has_the_pipelines_fields_and_the_generic_ones() {
    let mut expected = generic(kind::CAMERA);
    let of_cameras = json!({
        "camera_uuid": "cam-001", "runner_id": "worker", "shard_id": "shard-1", "tenant_id": "t",
        "site_id": "site-1", "last_heartbeat": "1970-01-01T00:00:01.000Z", "processing_stats": {"fps": 25},
        "config_version": "abc", "zone_version": "def",
    });
    let of_cameras = of_cameras.as_object().expect("fields").clone();
    expected.as_object_mut().expect("fields").extend(of_cameras);
    assert_eq!(serde_json::to_value(lease()).expect("a lease"), expected);
    round_trip(&lease());
    let grant =
        Grant { lease: lease_view(key("k"), "{}"), state: None, revision: Revision(8), repeated: false };
    assert_eq!(LeaseBody::of(&grant.lease, grant.revision).revision, 8);
}

#[test]
fn a_lease_on_anything_else_has_the_generic_fields_only() {
    assert_eq!(serde_json::to_value(lease_on("job")).expect("a lease"), generic("job"));
    round_trip(&lease_on("job"));
    let odd = LeaseBody::of(&lease_view(key("k"), r#"[1]"#), Revision(50));
    assert!(odd.camera.is_none() && odd.attributes.is_empty(), "attributes that are no fields: {odd:?}");
}

#[test]
fn a_pending_lease_has_no_token() {
    let pending = Pending {
        id: LeaseId(Uuid::from_u128(10)),
        holder: name("next"),
        session: SessionId(Uuid::from_u128(6)),
        asked_at: StoreTime(1_500),
        deadline: StoreTime(2_500),
        attributes: document(r#"{"shard_id": "s"}"#),
    };
    let camera = ResourceKey { kind: name(kind::CAMERA), ..key("cam-1") };
    let on = resource(&lease_view(camera, "{}"), "{}");
    let shown = LeaseBody::pending(&on, &pending, StoreTime(2_000), Revision(60));
    round_trip(&shown);
    assert_eq!((shown.token, shown.ttl_ms, shown.status), (None, 500, LeaseStatus::Pending));
    let camera = shown.camera.expect("the pipeline's fields");
    assert_eq!((camera.shard_id.as_str(), camera.site_id.as_str()), ("s", "site-1"));
}

#[test]
fn an_envelope_is_flat_too() {
    let held = Envelope::held(lease());
    round_trip(&held);
    let json = serde_json::to_value(&held).expect("an envelope");
    assert_eq!((&json["success"], &json["error"]), (&json!(true), &json!(null)));
    for field in ["lease_id", "camera_uuid", "acquired_at", "expires_at", "status", "token"] {
        assert_eq!(json[field], json["lease"][field], "{field}");
    }

    let refusal = Refusal::Held { holder: name("other"), token: Token(7), retry_after_ms: 1_001 };
    let refused = Envelope::refused(Problem::from_refusal(&refusal));
    round_trip(&refused);
    let json = serde_json::to_value(&refused).expect("an envelope");
    assert_eq!((&json["success"], &json["lease"]), (&json!(false), &json!(null)));
    assert_eq!(
        (&json["status"], &json["retry_after_seconds"], &json["holder"]),
        (&json!(409), &json!(2), &json!("other"))
    );

    let lease_id = Uuid::from_u128(9);
    let status = LeaseStatus::Released;
    round_trip(&Envelope::ended(EndedLease::new(lease_id, status, 0)));
}

#[test]
fn the_end_of_a_lease_is_described_in_a_sentence() {
    let ended = EndedLease {
        ended_at: Some(StoreTime(1_000).into()),
        kind: Some("job".to_owned()),
        key: Some("nightly".to_owned()),
        holder: Some("ann".to_owned()),
        token: Some(7),
        reason: Some("maintenance".to_owned()),
        code: Some(ErrorCode::Lost),
        ..EndedLease::new(Uuid::from_u128(9), LeaseStatus::Revoked, 2_000)
    };
    let told = "lease 00000000-0000-0000-0000-000000000009 on job/nightly was revoked at \
                1970-01-01T00:00:01.000Z (maintenance); ann had held it with token 7";
    assert_eq!(ended.to_string(), told);
    let over = Envelope::over(ended.clone());
    round_trip(&over);
    assert_eq!((over.success, over.error.as_deref()), (false, Some(told)));
    let lost = Problem::lost(ended.clone(), None);
    assert_eq!((lost.code, lost.token, lost.holder.as_deref()), (ErrorCode::Lost, Some(7), None));
    assert_eq!(lost.detail, format!("{told}; the resource is held back for another 2000 ms"));
    let lost = Problem::lost(ended, Some(("bob".to_owned(), 8)));
    assert_eq!((lost.token, lost.holder.as_deref()), (Some(8), Some("bob")));
    assert_eq!(lost.detail, format!("{told}; bob holds it now with token 8"));
    let bare = EndedLease::new(Uuid::from_u128(9), LeaseStatus::Expired, 0);
    assert_eq!(bare.to_string(), "lease 00000000-0000-0000-0000-000000000009 expired");
}

#[test]
fn lists_are_wrapped_by_name() {
    let list = LeaseList {
        leases: vec![lease()],
        next: Some(PageCursor(vec!["job".into(), "cam-001".into()])),
        cursor: Cursor { epoch: 1, revision: 50 },
    };
    round_trip(&list);
    let json = serde_json::to_value(&list).expect("a list");
    assert_eq!((&json["next"], &json["cursor"]), (&json!("job/cam-001"), &json!("1.50")));
    round_trip(&LeaseHistory { lease_id: Uuid::from_u128(9), events: vec![], next: None });
}
