//! What one key may do about another's runners and resources: report failures, and be given work.

use std::time::Duration;

use serde_json::{Value, json};
use solehold_core::call::ResourceScope;
use solehold_server::Role;
use solehold_testkit::wait_for;

use crate::common::Api;

/// Plans are made again within a second.
const SOON: Duration = Duration::from_secs(20);
const FAILURES: &str = "/resources/job/0/failures";

async fn key(api: &Api, role: Role) -> Api {
    api.keyed(role, Some("tenant-1")).await
}

/// Registers a runner; returns its session.
async fn register(api: &Api, name: &str) -> Value {
    let body = json!({"runner_id": name, "capacity": 100});
    api.post("/runners/register", body).await.is(200)["session_id"].clone()
}

/// Registers a runner, which takes the job; returns its session and the lease.
async fn hold(api: &Api, runner: &str) -> (Value, Value) {
    let session = register(api, runner).await;
    let body = json!({"holder": runner, "session_id": session});
    let lease = api.post("/resources/job/0/lease", body).await.is(201);
    (session, lease)
}

async fn failures(admin: &Api) -> (u64, bool) {
    let explained = admin.get("/resources/job/0/explain").await.is(200);
    (explained["failures"].as_u64().expect("a number"), explained["quarantined"].as_bool().expect("a bool"))
}

/// A resource's placement, as soon as it is as it should be.
async fn explained(api: &Api, key: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let look = || async {
        let explained = api.get(&format!("/resources/job/{key}/explain")).await.is(200);
        is_so(&explained).then_some(explained)
    };
    wait_for(what, SOON, look).await.expect(what)
}

/// Any key of a tenant could quarantine any resource, by reporting failures in its holder's name.
#[tokio::test]
async fn a_key_reports_no_failure_of_a_resource_that_it_does_not_hold() {
    let api = Api::start().await;
    let admin = key(&api, Role::Admin).await;
    let one = key(&api, Role::Runner).await;
    let two = key(&api, Role::Runner).await;
    admin.put("/resources/job/0", json!({})).await.is(201);
    let (session, lease) = hold(&one, "r1").await;
    for _ in 0..6 {
        two.post(FAILURES, json!({"runner_id": "r1"})).await.problem(403, "forbidden");
    }
    assert_eq!(failures(&admin).await, (0, false));
    // Nor with what the holder could show.
    for proof in [json!({"session_id": session}), json!({"token": lease["token"]})] {
        let mut body = json!({"runner_id": "r1"});
        body.as_object_mut().expect("fields").extend(proof.as_object().expect("fields").clone());
        two.post(FAILURES, body).await.problem(403, "forbidden");
    }
    // Nor in the name of a runner of its own, which holds nothing.
    let other = register(&two, "r2").await;
    two.post(FAILURES, json!({"runner_id": "r2"})).await.problem(409, "lost");
    two.post(FAILURES, json!({"runner_id": "r2", "session_id": other})).await.problem(409, "lost");
    one.post(FAILURES, json!({"runner_id": "r1", "session_id": other})).await.problem(409, "not_yours");
    one.post(FAILURES, json!({"runner_id": "r1", "token": 1})).await.problem(409, "lost");
    assert_eq!(failures(&admin).await, (0, false));
    // The holder may, and an admin for it.
    one.post(FAILURES, json!({"runner_id": "r1", "session_id": session})).await.is(200);
    one.post(FAILURES, json!({"runner_id": "r1", "lease_id": lease["lease_id"]})).await.is(200);
    admin.post(FAILURES, json!({"runner_id": "r1"})).await.is(200);
    assert_eq!(failures(&admin).await, (3, false));
}

/// An agent reports and releases at the same time, so that the release may come first.
#[tokio::test]
async fn a_failure_may_be_reported_for_a_minute_after_the_lease_has_ended() {
    let api = Api::start().await;
    let admin = key(&api, Role::Admin).await;
    let one = key(&api, Role::Runner).await;
    let two = key(&api, Role::Runner).await;
    admin.put("/resources/job/0", json!({})).await.is(201);
    let (session, lease) = hold(&one, "r1").await;
    let released = json!({"session_id": session, "token": lease["token"]});
    one.call("DELETE", "/resources/job/0/lease", released).await.is(204);
    api.pass_seconds(50);
    let mut report = json!({"runner_id": "r1", "token": lease["token"]});
    one.post(FAILURES, report.clone()).await.is(200);
    two.post(FAILURES, report.clone()).await.problem(403, "forbidden");
    report["session_id"] = session;
    one.post(FAILURES, report.clone()).await.is(200);
    assert_eq!(failures(&admin).await, (2, false));
    api.pass_seconds(11);
    let late = one.post(FAILURES, report).await.problem(409, "lost");
    assert!(late["detail"].as_str().expect("text").contains("released"), "{late}");
    assert_eq!(failures(&admin).await, (2, false));
}

/// Five failures in a year put a resource into quarantine as five in a minute did.
#[tokio::test]
async fn failures_count_for_an_hour() {
    let api = Api::start().await;
    let admin = key(&api, Role::Admin).await;
    let one = key(&api, Role::Runner).await;
    admin.put("/resources/job/0", json!({})).await.is(201);
    hold(&one, "r1").await;
    for _ in 0..4 {
        one.post(FAILURES, json!({"runner_id": "r1"})).await.is(200);
    }
    assert_eq!(failures(&admin).await, (4, false));
    api.pass_seconds(3_600);
    assert_eq!(failures(&admin).await, (0, false));
    hold(&one, "r1").await;
    let told = one.post(FAILURES, json!({"runner_id": "r1"})).await.is(200);
    assert_eq!((&told["failures"], &told["quarantined"]), (&json!(1), &json!(false)));
    for _ in 0..4 {
        one.post(FAILURES, json!({"runner_id": "r1"})).await.is(200);
    }
    assert_eq!(failures(&admin).await, (5, true));
    // A quarantine does not end by itself.
    api.pass_seconds(3_600);
    assert_eq!(failures(&admin).await, (0, true));
}

/// Resources were planned for a runner whose key may not touch them, and stayed unowned.
#[tokio::test]
async fn a_runner_is_assigned_only_resources_that_its_key_may_hold() {
    let api = Api::start().await;
    let admin = key(&api, Role::Admin).await;
    for name in ["a-1", "b-1"] {
        admin.put(&format!("/resources/job/{name}"), json!({})).await.is(201);
    }
    let scope =
        ResourceScope { kind: "job".to_owned().try_into().expect("a kind"), key_prefix: "a-".to_owned() };
    let (limited, id) = api.limited(Role::Runner, "tenant-1", vec![scope]).await;
    register(&limited, "r1").await;
    explained(&admin, "a-1", "its own", |told| told["target"] == "r1").await;
    let why = explained(&admin, "b-1", "a reason", |told| told["reason"] == "no_runner_with_key").await;
    assert_eq!((&why["target"], &why["step"]), (&json!(null), &json!("nothing")), "{why}");
    assert!(why["detail"].as_str().expect("text").contains("key"), "{why}");
    let given = limited.get("/runners/r1/assignments").await.is(200);
    assert_eq!((&given["acquire"][0]["key"], &given["acquire"][1]), (&json!("a-1"), &Value::Null), "{given}");

    // Another runner may hold everything, and what the first one holds stays there.
    register(&key(&api, Role::Runner).await, "r2").await;
    explained(&admin, "b-1", "another runner", |told| told["target"] == "r2").await;
    let body = json!({"holder": "r1", "session_id": register(&limited, "r1").await});
    limited.post("/resources/job/a-1/lease", body).await.is(201);
    explained(&admin, "a-1", "it is held", |told| told["reason"] == "held").await;

    // A key that is revoked may hold nothing from the next plan on.
    api.revoke_key(&id).await;
    explained(&admin, "a-1", "it is to move", |told| told["target"] == "r2").await;
}
