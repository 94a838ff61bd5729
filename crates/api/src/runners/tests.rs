use serde_json::json;
use solehold_core::key::HolderKey;

use super::*;
use crate::{
    body,
    testing::{document, name, round_trip, session, session_id},
};

const REGISTRATION: &[u8] = br#"{
    "runner_id": "runner-abc123", "tenant_id": "tenant-1", "site_id": "site-1", "deployment_group": "production",
    "deployment_version": "v1.2.3", "host": "worker-01.example.com", "port": 8080, "capacity": 16,
    "metrics_port": 9108, "capabilities": ["rtsp", "motion_detection", "zone_filtering"], "gpu": true
}"#;

fn fields<T: std::fmt::Debug>(checked: Checked<T>) -> Vec<String> {
    checked.expect_err("odd").into_iter().map(|fault| fault.field).collect()
}

fn holder() -> Holder {
    let registration: RegisterRunner = body::parse(REGISTRATION).expect("a runner's body");
    let asked = registration.terms().expect("good");
    Holder {
        key: HolderKey { tenant: name("tenant-1"), name: asked.runner },
        registered: true,
        session: Some(session_id()),
        status: HolderStatus::Active,
        registered_at: StoreTime(1_000),
        heard_at: StoreTime(1_000),
        site: asked.registration.site,
        attributes: asked.registration.attributes,
        metrics: document(r#"{"current_load": 3}"#),
    }
}

#[test]
fn a_registration_is_taken() {
    let registration: RegisterRunner = body::parse(REGISTRATION).expect("a runner's body");
    round_trip(&registration);
    let asked = registration.terms().expect("good");
    assert_eq!((asked.session_ttl_ms, asked.registration.capacity), (60_000, Some(16)));
    let least: RegisterRunner = body::parse(br#"{"runner_id": "r"}"#).expect("good");
    assert_eq!(least.terms().expect("good").registration.capacity, Some(16));
}

#[test]
fn all_faults_are_reported() {
    let odd = RegisterRunner {
        port: Some(0),
        metrics_port: Some(70_000),
        capacity: Some(-1),
        capabilities: vec!["rtsp".into(), String::new()],
        session_ttl_seconds: Some(Number::from_f64(0.5).expect("finite")),
        host: Some("x".repeat(10_000)),
        ..Default::default()
    };
    assert_eq!(
        fields(odd.terms()),
        ["runner_id", "host", "port", "metrics_port", "capacity", "capabilities[1]", "session_ttl_seconds"]
    );
    for capacity in [0, 10_001, i64::MAX] {
        let odd = RegisterRunner { runner_id: "r".into(), capacity: Some(capacity), ..Default::default() };
        assert_eq!(fields(odd.terms()), ["capacity"]);
    }
    let many = RegisterRunner {
        runner_id: "r".into(),
        capabilities: vec!["x".into(); LABELS_MAX + 1],
        metrics: Some([("x".into(), json!("x".repeat(70_000)))].into()),
        ..Default::default()
    };
    assert_eq!(fields(many.terms()), ["capabilities", "metrics"]);
}

#[test]
fn a_status_can_be_set() {
    let ask = |status: &str| {
        let body = json!({ "status": status }).to_string();
        body::parse::<PutRunnerStatus>(body.as_bytes()).map(PutRunnerStatus::wanted).map_err(Box::new)
    };
    assert_eq!(ask("active"), Ok(Ok(HolderStatus::Active)));
    assert_eq!(ask("drain"), Ok(Ok(HolderStatus::Draining)));
    assert_eq!(ask("draining"), Ok(Ok(HolderStatus::Draining)));
    assert_eq!(ask("maintenance"), Ok(Ok(HolderStatus::Maintenance)));
    assert_eq!(fields(ask("inactive").expect("a status")), ["status"]);
    assert_eq!(ask("asleep").expect_err("odd").errors[0].field, "status");
}

#[test]
fn a_runner_is_inactive_when_silent_and_without_a_session() {
    let holder = holder();
    let mut session = session();
    session.deadline = StoreTime(200_000);
    let at = |session, now| RunnerStatus::of(&holder, session, StoreTime(now));
    assert_eq!(at(None, 90_999), RunnerStatus::Active);
    assert_eq!(at(None, 91_000), RunnerStatus::Inactive);
    assert_eq!(at(Some(&session), 199_999), RunnerStatus::Active);
    assert_eq!(at(Some(&session), 200_000), RunnerStatus::Inactive);
    let drained = Holder { status: HolderStatus::Maintenance, ..holder.clone() };
    assert_eq!(RunnerStatus::of(&drained, None, StoreTime(1_000)), RunnerStatus::Maintenance);
}

#[test]
fn a_runner_is_shown_with_every_column() {
    let holder = holder();
    let session = session();
    let shown = Runner::of(&holder, Some(&session), 5, StoreTime(2_000));
    round_trip(&shown);
    let json = serde_json::to_value(&shown).expect("a runner");
    for (field, value) in [
        ("deployment_group", json!("production")),
        ("port", json!(8080)),
        ("capacity", json!(16)),
        ("current_load", json!(5)),
        ("status", json!("active")),
        ("metrics", json!({"cpu": 0.5})),
        ("ttl_ms", json!(29_000)),
    ] {
        assert_eq!(json[field], value, "{field}");
    }
    let by_name = Runner::of(&holder, None, 1, StoreTime(2_000));
    assert_eq!((by_name.current_load, by_name.held, by_name.session_id), (3, 1, None), "as it says itself");
    let registered = RegisteredRunner::of(shown.clone(), &session, StoreTime(1_000));
    round_trip(&registered);
    assert_eq!((registered.ttl_ms, registered.session_id), (30_000, session_id().0));
    let told = serde_json::to_value(&registered).expect("a runner");
    for (field, value) in json.as_object().expect("fields").iter().filter(|(field, _)| *field != "ttl_ms") {
        assert_eq!(told[field], *value, "{field}, as the registry shows it");
    }
    round_trip(&RunnerList { runners: vec![shown], next: None });
}

#[test]
fn a_heartbeat_reports_load_with_its_metrics() {
    let told = |body: &str| {
        let heartbeat: HeartbeatRunner = body::parse(body.as_bytes()).expect(body);
        heartbeat.metrics().expect("good").map(|metrics| metrics.as_str().to_owned())
    };
    assert_eq!(told(""), None);
    assert_eq!(told(r#"{"current_load": 5, "status": "healthy"}"#).as_deref(), Some(r#"{"current_load":5}"#));
    assert_eq!(
        told(r#"{"metrics": {"cpu": 1}, "current_load": 5}"#).as_deref(),
        Some(r#"{"cpu":1,"current_load":5}"#)
    );
    let answer = RunnerHeartbeat {
        success: true,
        runner_id: "r".into(),
        status: RunnerStatus::Active,
        session_id: Some(session_id().0),
        ttl_ms: Some(1),
        epoch: Some(2),
        revision: 7,
        sealed_cursor: Some("sealed".into()),
        leases: vec![],
    };
    round_trip(&answer);
}
