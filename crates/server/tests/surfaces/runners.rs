//! Runners, as the camera pipeline calls them: registering, heartbeats, draining, leaving.

use serde_json::{Value, json};
use solehold_server::ServerLimits;

use crate::common::{Api, acquire, runner};

const R: &str = "/runners/runner-abc123";

async fn registered() -> (Api, Value) {
    let api = Api::start().await;
    let session = api.post("/runners/register/", runner("runner-abc123")).await.is(200)["session_id"].clone();
    (api, session)
}

async fn hold(api: &Api, camera: &str, session: Option<&Value>) -> Value {
    api.declare_camera(camera).await;
    let mut body = acquire(camera, "runner-abc123");
    if let Some(session) = session {
        body["session_id"] = session.clone();
    }
    api.post("/leases/acquire/", body).await.is(200)
}

async fn beat(api: &Api, session: &Value) -> Value {
    api.put(&format!("{R}/heartbeat/?tenant=tenant-1"), json!({"session_id": session})).await.is(200)
}

#[tokio::test]
async fn a_runner_registers_as_the_pipeline_does() {
    let api = Api::start().await;
    let answer = api.post("/runners/register/", runner("runner-abc123")).await.is(200);
    assert_eq!((&answer["runner_id"], &answer["status"]), (&json!("runner-abc123"), &json!("active")));
    assert_eq!((&answer["assigned_cameras"], &answer["success"]), (&json!([]), &json!(true)));
    assert!(answer["registered_at"].is_string() && answer["session_id"].is_string());
    let shown = api.get(&format!("{R}/?tenant=tenant-1")).await.is(200);
    for (field, value) in shown.as_object().expect("fields") {
        assert_eq!(&answer[field], value, "{field}: the registration is answered with the runner");
    }
    for (field, value) in runner("runner-abc123").as_object().expect("fields") {
        assert_eq!(&shown[field], value, "{field}");
    }
    assert_eq!((&shown["status"], &shown["current_load"]), (&json!("active"), &json!(0)));
    for (field, value) in [
        ("capacity", json!(0)),
        ("capacity", json!(10_001)),
        ("capacity", json!(-1)),
        ("port", json!(70_000)),
        ("runner_id", json!("")),
        ("session_ttl_seconds", json!(0)),
    ] {
        let mut body = runner("x");
        body[field] = value;
        let problem = api.post("/runners/register", body).await.problem(400, "invalid_field");
        assert_eq!(problem["errors"][0]["field"], field);
    }
}

#[tokio::test]
async fn one_heartbeat_renews_and_returns_all_leases() {
    let (api, session) = registered().await;
    assert_eq!(beat(&api, &session).await["leases"], json!([]));
    let first = hold(&api, "cam-1", Some(&session)).await;
    let second = hold(&api, "cam-2", Some(&session)).await;
    assert_eq!(first["session_id"], session);
    api.pass_seconds(50);
    let told = beat(&api, &session).await;
    assert_eq!(
        (&told["success"], &told["status"], &told["ttl_ms"]),
        (&json!(true), &json!("active"), &json!(60_000))
    );
    let ids: Vec<_> = told["leases"].as_array().expect("leases").iter().map(|l| &l["lease_id"]).collect();
    assert_eq!(ids, [&first["lease_id"], &second["lease_id"]]);
    assert!(told["revision"].as_u64() >= second["token"].as_u64(), "not older than its newest grant");
    api.pass_seconds(50);
    let again = beat(&api, &session).await;
    assert_eq!(again["revision"], told["revision"], "the same set");
    assert_eq!(
        again["leases"][0]["ttl_ms"], 60_000,
        "with the session's time, not the time of the last answer"
    );
    assert!(again["leases"][0]["expires_at"].as_str() > told["leases"][0]["expires_at"].as_str());

    api.delete(&format!("/leases/{}/release?tenant=tenant-1", first["lease_id"].as_str().expect("an id")))
        .await
        .is(200);
    let fewer = beat(&api, &session).await;
    assert_eq!(fewer["leases"].as_array().map(Vec::len), Some(1));
    assert!(fewer["revision"].as_u64() > told["revision"].as_u64());
    let shown = api.get(&format!("{R}?tenant=tenant-1")).await.is(200);
    assert_eq!(shown["current_load"], 1);
    api.pass_seconds(60);
    let over = json!({"session_id": session});
    api.put(&format!("{R}/heartbeat?tenant=tenant-1"), over).await.problem(404, "no_session");
}

#[tokio::test]
async fn a_heartbeat_by_name_renews_nothing() {
    let (api, session) = registered().await;
    hold(&api, "cam-1", Some(&session)).await;
    api.pass_seconds(50);
    let body = json!({"metrics": {"cpu": 0.5}, "current_load": 3});
    let told = api.put(&format!("{R}/heartbeat?tenant=tenant-1"), body).await.is(200);
    assert_eq!((&told["session_id"], &told["leases"][0]["ttl_ms"]), (&json!(null), &json!(10_000)));
    assert_eq!(api.get(&format!("{R}?tenant=tenant-1")).await.is(200)["metrics"]["cpu"], 0.5);
    api.pass_seconds(10);
    let told = api.put(&format!("{R}/heartbeat?tenant=tenant-1"), json!({})).await.is(200);
    assert_eq!(told["leases"], json!([]));
    api.put("/runners/nobody/heartbeat?tenant=tenant-1", json!({})).await.problem(404, "not_found");
    api.put("/runners/other/heartbeat?tenant=tenant-1", json!({"session_id": session}))
        .await
        .problem(404, "no_session");
}

#[tokio::test]
async fn a_session_is_its_runner_s_alone() {
    let (api, session) = registered().await;
    let path = "/runners/other/heartbeat?tenant=tenant-1";
    api.put(path, json!({"session_id": session})).await.problem(409, "not_yours");
    let mut body = acquire("cam-1", "other");
    body["session_id"] = session;
    api.declare_camera("cam-1").await;
    api.post("/leases/acquire", body).await.problem(409, "not_yours");
}

#[tokio::test]
async fn a_returning_runner_cannot_renew_its_old_leases() {
    let (api, former) = registered().await;
    let lease = hold(&api, "cam-1", Some(&former)).await;
    let back = api.post("/runners/register", runner("runner-abc123")).await.is(200);
    assert_ne!(back["session_id"], former);
    assert_eq!(
        back["assigned_cameras"],
        json!([]),
        "what hangs on the former session is not its own any more"
    );

    api.put(&format!("{R}/heartbeat?tenant=tenant-1"), json!({"session_id": former}))
        .await
        .problem(404, "session_superseded");
    let id = lease["lease_id"].as_str().expect("an id");
    api.put(&format!("/leases/{id}/renew?tenant=tenant-1"), json!({}))
        .await
        .problem(404, "session_superseded");
    let by_token = json!({"token": lease["token"]});
    let renew = "/resources/camera/cam-1/lease/renew?tenant=tenant-1";
    api.post(renew, by_token).await.problem(404, "session_superseded");
    api.post(renew, json!({"session_id": former})).await.problem(404, "session_superseded");
    api.post(renew, json!({"session_id": back["session_id"]})).await.problem(409, "not_yours");
    api.post(renew, json!({"holder": "runner-abc123"})).await.problem(404, "session_superseded");
    assert_eq!(beat(&api, &back["session_id"]).await["leases"], json!([]));
    api.acquire_camera("cam-1", "runner-abc123").await.problem(409, "held");
    api.pass_seconds(60);
    api.acquire_camera("cam-1", "runner-abc123").await.is(200);
}

#[tokio::test]
async fn a_runner_may_replace_its_former_session() {
    let (api, former) = registered().await;
    hold(&api, "cam-1", Some(&former)).await;
    let mut body = runner("runner-abc123");
    body["replace"] = former;
    body["fenced"] = json!(true);
    api.post("/runners/register", body).await.is(200);
    api.acquire_camera("cam-1", "runner-2").await.is(200);
}

#[tokio::test]
async fn what_is_held_by_name_is_the_runner_s_when_it_first_registers() {
    let api = Api::start().await;
    hold(&api, "cam-1", None).await;
    let first = api.post("/runners/register", runner("runner-abc123")).await.is(200);
    assert_eq!((&first["assigned_cameras"], &first["current_load"]), (&json!(["cam-1"]), &json!(1)));
    let told = api.get(&format!("{R}/assignments/?tenant=tenant-1")).await.is(200);
    assert_eq!((&told["assigned_cameras"], &told["leases"][0]["key"]), (&json!(["cam-1"]), &json!("cam-1")));
    api.get("/runners/nobody/assignments?tenant=tenant-1").await.problem(404, "not_found");
}

#[tokio::test]
async fn a_runner_that_registers_again_takes_the_place_of_its_former_incarnation() {
    let (api, _) = registered().await;
    let former = hold(&api, "cam-1", None).await;
    hold(&api, "cam-2", None).await;
    api.pass_seconds(10);
    let back = api.post("/runners/register", runner("runner-abc123")).await.is(200);
    assert_eq!((&back["assigned_cameras"], &back["current_load"]), (&json!([]), &json!(0)));
    let id = former["lease_id"].as_str().expect("an id");
    let over = api.put(&format!("/leases/{id}/renew"), json!({})).await.problem(404, "lost");
    assert_eq!(
        (&over["ended"]["status"], &over["ended"]["reason"]),
        (&json!("revoked"), &json!("its runner has registered again"))
    );
    let others = api.acquire_camera("cam-1", "runner-2").await.problem(409, "held_back");
    assert_eq!(others["retry_after_seconds"], 50, "the former incarnation may work until its deadline");
    let again = api.acquire_camera("cam-1", "runner-abc123").await.is(200);
    assert!(again["token"].as_u64() > former["token"].as_u64());
    api.put(&format!("/leases/{id}/renew"), json!({})).await.problem(404, "lost");
    let history = api.get("/resources/camera/cam-1/history?tenant=tenant-1").await.is(200);
    let events: Vec<_> =
        history["events"].as_array().expect("events").iter().map(|e| e["event_type"].clone()).collect();
    let expected =
        ["resource_declared", "lease_acquired", "lease_revoked", "hold_back_lifted", "lease_acquired"];
    assert_eq!(events, expected);
    assert_eq!(history["events"][2]["details"]["reason"], "its runner has registered again");
    api.acquire_camera("cam-1", "runner-abc123").await.problem(409, "held");
    api.acquire_camera("cam-2", "runner-2").await.problem(409, "held_back");
    api.pass_seconds(50);
    api.acquire_camera("cam-2", "runner-2").await.is(200);
}

#[tokio::test]
async fn a_registration_that_arrives_again_finds_the_session_of_the_first() {
    let api = Api::start().await;
    let register = async |key| api.post_as(key, "/runners/register", runner("runner-abc123")).await;
    let key = "0198c1a2-7a1e-7c3b-9d70-2f6f0a4b5c6d";
    assert_eq!(register(key).await.is(200)["session_id"], key);
    hold(&api, "cam-1", Some(&json!(key))).await;
    assert_eq!(register(key).await.is(200)["session_id"], key);
    assert_eq!(beat(&api, &json!(key)).await["leases"][0]["key"], "cam-1");
    let newer = register("0198c1a2-7a1e-7c3b-9d70-2f6f0a4b5c6e").await.is(200);
    assert_eq!(register(key).await.is(200)["session_id"], key);
    beat(&api, &newer["session_id"]).await;
    for odd in ["one", ""] {
        let refused = register(odd).await.problem(400, "invalid_field");
        let wanted = "the header Idempotency-Key must be a UUID that was used for nothing else";
        assert_eq!(refused["detail"], wanted);
    }
}

#[tokio::test]
async fn only_a_registration_frees_what_is_held_back_for_its_runner() {
    let (api, _) = registered().await;
    let lease = hold(&api, "cam-1", None).await;
    let id = lease["lease_id"].as_str().expect("an id");
    api.post(&format!("/leases/{id}/revoke"), json!({"reason": "its runner has left"})).await.is(200);
    api.acquire_camera("cam-1", "runner-abc123").await.problem(409, "held_back");
    hold(&api, "cam-2", None).await;
    let mut fenced = runner("runner-abc123");
    fenced["fenced"] = json!(true);
    api.post("/runners/register", fenced).await.is(200);
    api.acquire_camera("cam-2", "runner-2").await.is(200);
}

#[tokio::test]
async fn another_key_s_leases_are_not_ended_by_a_registration() {
    let api = Api::start().await;
    let one = api.keyed(solehold_server::Role::Runner, Some("tenant-1")).await;
    let two = api.keyed(solehold_server::Role::Runner, Some("tenant-1")).await;
    let admin = api.keyed(solehold_server::Role::Admin, Some("tenant-1")).await;
    admin.declare_camera("cam-1").await;
    one.post("/runners/register", runner("r")).await.is(200);
    let lease = one.post("/leases/acquire", acquire("cam-1", "r")).await.is(200);
    two.post("/runners/register", runner("r")).await.problem(403, "forbidden");
    let id = lease["lease_id"].as_str().expect("an id");
    api.pass_seconds(40);
    one.put(&format!("/leases/{id}/renew"), json!({})).await.is(200);
    api.pass_seconds(40);
    // The session is over and the name free, but not what was taken under it.
    two.post("/runners/register", runner("r")).await.is(200);
    one.put(&format!("/leases/{id}/renew"), json!({})).await.is(200);
    two.post("/leases/acquire", acquire("cam-1", "r")).await.problem(409, "held");
}

#[tokio::test]
async fn a_runner_s_capacity_bounds_what_it_takes_by_name() {
    let api = Api::start().await;
    let mut small = runner("runner-abc123");
    small["capacity"] = json!(2);
    let session = api.post("/runners/register", small).await.is(200)["session_id"].clone();
    hold(&api, "cam-1", Some(&session)).await;
    let second = hold(&api, "cam-2", None).await;
    api.declare_camera("cam-3").await;
    let refused = api.acquire_camera("cam-3", "runner-abc123").await.problem(409, "at_capacity");
    assert_eq!((&refused["limit"]["value"], &refused["success"]), (&json!(2), &json!(false)));
    assert_eq!(api.get(R).await.is(200)["current_load"], 2);
    assert_eq!(api.get("/runners").await.is(200)["runners"][0]["current_load"], 2);
    api.delete(&format!("/leases/{}/release", second["lease_id"].as_str().expect("an id"))).await.is(200);
    api.acquire_camera("cam-3", "runner-abc123").await.is(200);
    // Who never registered has said no capacity.
    api.acquire_camera("cam-2", "passer-by").await.is(200);
}

#[tokio::test]
async fn deleting_a_runner_by_name_alone_frees_nothing_before_the_deadline() {
    let (api, session) = registered().await;
    hold(&api, "cam-1", Some(&session)).await;
    hold(&api, "cam-2", None).await;
    let left_ms = beat(&api, &session).await["ttl_ms"].as_u64().expect("time left");
    let gone = api.delete(&format!("{R}/?tenant=tenant-1")).await.is(200);
    // What it took by name alone is held back as what it took in its session: the runner may still be working.
    for camera in ["cam-1", "cam-2"] {
        let held_back = api.acquire_camera(camera, "runner-2").await;
        let told = (held_back.status, &held_back.body["code"]);
        assert_eq!(told, (409, &json!("held_back")), "{camera}: {:#}", held_back.body);
    }
    assert_eq!((&gone["released"], &gone["revoked"]), (&json!(0), &json!(2)), "{gone}");
    assert_eq!(gone["leases_released"], 2);
    let beat = json!({"session_id": session});
    let over = api.put(&format!("{R}/heartbeat/?tenant=tenant-1"), beat).await;
    assert_eq!(over.status, 404, "the runner is told: {:#}", over.body);
    api.pass_seconds(left_ms.div_ceil(1_000));
    api.acquire_camera("cam-1", "runner-2").await.is(200);
}

#[tokio::test]
async fn a_runner_that_was_deleted_by_name_and_registers_takes_what_it_held_by_name() {
    let (api, _) = registered().await;
    let before = hold(&api, "cam-2", None).await;
    api.delete(&format!("{R}/?tenant=tenant-1")).await.is(200);
    // The name alone is not enough: a former incarnation knows it, too.
    api.acquire_camera("cam-2", "runner-abc123").await.problem(409, "held_back");
    api.post("/runners/register/", runner("runner-abc123")).await.is(200);
    api.acquire_camera("cam-2", "runner-2").await.problem(409, "held_back");
    let after = api.acquire_camera("cam-2", "runner-abc123").await.is(200);
    assert!(after["token"].as_u64() > before["token"].as_u64(), "{after}");
}

#[tokio::test]
async fn deleting_a_runner_with_its_session_releases_what_it_holds() {
    let (api, session) = registered().await;
    hold(&api, "cam-1", Some(&session)).await;
    hold(&api, "cam-2", None).await;
    let other = api.post("/runners/register/", runner("runner-other")).await.is(200)["session_id"].clone();
    let path = format!("{R}/?tenant=tenant-1");
    api.call("DELETE", &path, json!({"session_id": other})).await.problem(409, "not_yours");
    let gone = api.call("DELETE", &path, json!({"session_id": session})).await.is(200);
    assert_eq!((&gone["success"], &gone["released"], &gone["revoked"]), (&json!(true), &json!(2), &json!(0)));
    for camera in ["cam-1", "cam-2"] {
        api.acquire_camera(camera, "runner-2").await.is(200);
    }
    api.get(&format!("{R}?tenant=tenant-1")).await.problem(404, "not_found");
    api.delete(&format!("{R}?tenant=tenant-1")).await.problem(404, "not_found");
}

#[tokio::test]
async fn a_silent_runner_is_inactive_and_lists_are_filtered() {
    let (api, _) = registered().await;
    let mut other = runner("runner-2");
    other["site_id"] = json!("site-2");
    other["deployment_group"] = json!("canary");
    other["session_ttl_seconds"] = json!(3_600);
    api.post("/runners/register", other).await.is(200);
    let names = async |query: &str| {
        let list = api.get(&format!("/runners/?tenant=tenant-1{query}")).await.is(200);
        let runners = list["runners"].as_array().expect("runners").clone();
        let names: Vec<String> =
            runners.iter().map(|r| r["runner_id"].as_str().expect("a name").to_owned()).collect();
        (names.join(" "), list)
    };
    assert_eq!(names("").await.0, "runner-2 runner-abc123");
    assert_eq!(names("&site_id=site-2").await.0, "runner-2");
    assert_eq!(names("&deployment_group=production").await.0, "runner-abc123");
    let (first, page) = names("&limit=1").await;
    let (second, last) =
        names(&format!("&limit=1&cursor={}", page["next"].as_str().expect("a next page"))).await;
    assert_eq!((first.as_str(), second.as_str(), &last["next"]), ("runner-2", "runner-abc123", &json!(null)));
    api.pass_seconds(90);
    assert_eq!(names("&status=inactive").await.0, "runner-abc123");
    assert_eq!(names("&status=active").await.0, "runner-2");
    assert_eq!(api.get(&format!("{R}?tenant=tenant-1")).await.is(200)["status"], "inactive");
    api.put(&format!("{R}/heartbeat?tenant=tenant-1"), json!({})).await.is(200);
    assert_eq!(api.get(&format!("{R}?tenant=tenant-1")).await.is(200)["status"], "active");
}

#[tokio::test]
async fn maintenance_is_set_and_ended_by_an_operator() {
    let (api, session) = registered().await;
    let status = format!("{R}/status?tenant=tenant-1");
    assert_eq!(api.put(&status, json!({"status": "maintenance"})).await.is(200)["status"], "maintenance");
    assert_eq!(beat(&api, &session).await["status"], "maintenance");
    assert_eq!(api.post("/runners/register", runner("runner-abc123")).await.is(200)["status"], "maintenance");
    api.put(&status, json!({"status": "inactive"})).await.problem(400, "invalid_field");
    api.put(&status, json!({"status": "asleep"})).await.problem(400, "invalid_field");
    api.put(&status, json!({})).await.problem(400, "invalid_field");
    api.put("/runners/nobody/status", json!({"status": "active"})).await.problem(404, "not_found");
    assert_eq!(api.put(&status, json!({"status": "active"})).await.is(200)["status"], "active");
}

/// A runner of the pipeline counts its cameras itself, and got back the number of its leases.
#[tokio::test]
async fn the_load_that_a_runner_reports_is_its_load() {
    let (api, session) = registered().await;
    hold(&api, "cam-1", Some(&session)).await;
    let get = async || api.get(&format!("{R}?tenant=tenant-1")).await.is(200);
    let shown = get().await;
    assert_eq!(
        (&shown["current_load"], &shown["held"]),
        (&json!(1), &json!(1)),
        "what it holds, until it says"
    );
    for body in [json!({"current_load": 7}), json!({"current_load": 5, "session_id": session})] {
        let load = body["current_load"].clone();
        api.pass_seconds(1);
        api.put(&format!("{R}/heartbeat?tenant=tenant-1"), body).await.is(200);
        let shown = get().await;
        assert_eq!((&shown["current_load"], &shown["held"]), (&load, &json!(1)));
    }
}

#[tokio::test]
async fn a_runner_may_hold_ten_thousand() {
    let api = Api::start().await;
    let with = |capacity: u32| json!({"runner_id": "big", "capacity": capacity});
    let big = api.post("/runners/register", with(10_000)).await.is(200);
    assert_eq!(big["capacity"], 10_000);
    let problem = api.post("/runners/register", with(10_001)).await.problem(400, "invalid_field");
    assert_eq!(problem["errors"][0]["field"], "capacity");
    let limits = ServerLimits { capacity_max: 50, ..ServerLimits::default() };
    let bounded = Api::start_with(limits).await;
    bounded.post("/runners/register", with(50)).await.is(200);
    let problem = bounded.post("/runners/register", with(51)).await.problem(400, "invalid_field");
    let told = "is 51; this server allows 1 to 50 (limits.capacity_max)";
    assert_eq!(
        (&problem["errors"][0]["field"], &problem["errors"][0]["message"]),
        (&json!("capacity"), &json!(told))
    );
}
