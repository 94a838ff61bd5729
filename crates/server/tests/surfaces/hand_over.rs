//! Hand-overs, and the news by which both sides learn of them.

use serde_json::{Value, json};

use crate::common::Api;

const JOB: &str = "/resources/job/nightly";
const HANDOVER: &str = "/resources/job/nightly/handover";

async fn open(api: &Api, holder: &str) -> Value {
    api.post("/sessions", json!({"holder": holder, "ttl_seconds": 300})).await.is(201)
}

async fn beat(api: &Api, session: &Value) -> Value {
    let id = session["session_id"].as_str().expect("an id");
    api.put(&format!("/sessions/{id}/heartbeat"), json!({})).await.is(200)
}

/// The job is held in session one; session two is there.
async fn held(api: &Api) -> (Value, Value) {
    let one = open(api, "one").await;
    let two = open(api, "two").await;
    let ask = json!({"holder": "one", "session_id": one["session_id"], "request_id": "r"});
    api.post(&format!("{JOB}/lease"), ask).await.is(201);
    (one, two)
}

#[tokio::test]
async fn a_resource_is_handed_over_by_name_and_both_sides_see_it() {
    let api = Api::start().await;
    let (one, two) = held(&api).await;
    let offered = api.post(HANDOVER, json!({"to": "two", "ttl_seconds": 20})).await.is(201);
    assert_eq!((&offered["holder"], &offered["present"]), (&json!("two"), &json!("one")));
    assert_eq!((&offered["ttl_ms"], offered.get("token")), (&json!(20_000), None));
    assert_eq!(api.get(HANDOVER).await.is(200)["lease_id"], offered["lease_id"]);
    let asked = beat(&api, &one).await["leases"][0]["hand_over"].clone();
    assert_eq!((&asked["to"], &asked["lease_id"]), (&json!("two"), &offered["lease_id"]));
    let waits = beat(&api, &two).await;
    assert_eq!((&waits["leases"], &waits["pending"][0]["key"]), (&json!([]), &json!("nightly")));
    api.post(HANDOVER, json!({"to": "two"})).await.problem(409, "already_pending");
    let state = json!({"sequence": 1, "document": {"seen": 7}});
    let release = json!({"session_id": one["session_id"], "state": state});
    api.call("DELETE", &format!("{JOB}/lease"), release).await.is(204);
    let has = beat(&api, &two).await;
    assert_eq!((&has["leases"][0]["lease_id"], has.get("pending")), (&offered["lease_id"], None));
    assert_eq!(api.get(&format!("{JOB}/state")).await.is(200)["document"]["seen"], 7);
    api.get(HANDOVER).await.problem(404, "not_found");
}

#[tokio::test]
async fn it_can_be_called_off_repeated_and_forced() {
    let api = Api::start().await;
    let (one, two) = held(&api).await;
    let request = "0190aaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee";
    let ask = json!({"session_id": two["session_id"], "request_id": request, "budget": 1});
    let offered = api.post(HANDOVER, ask.clone()).await.is(201);
    assert_eq!(api.post(HANDOVER, ask.clone()).await.is(201)["lease_id"], offered["lease_id"]);
    api.delete(HANDOVER).await.is(204);
    api.delete(HANDOVER).await.problem(404, "not_found");
    assert_eq!(beat(&api, &one).await["leases"][0].get("hand_over"), None);
    // By force, without the old holder's word: only once its time has passed, or if it is known to be fenced off.
    let forced = json!({"to": "two", "force": true, "fenced": true, "reason": "its host burns"});
    api.post(HANDOVER, forced).await.is(201);
    assert_eq!(beat(&api, &one).await["leases"], json!([]));
    assert_eq!(beat(&api, &two).await["leases"][0]["holder"], "two");
    let history = api.get(&format!("{JOB}/history")).await.is(200);
    let names: Vec<_> =
        history["events"].as_array().expect("events").iter().map(|e| &e["event_type"]).collect();
    let expected = [
        "lease_acquired",
        "lease_pending",
        "lease_released",
        "lease_pending",
        "lease_revoked",
        "lease_acquired",
    ];
    assert_eq!(names, expected);
}

#[tokio::test]
async fn all_faults_of_an_offer_are_reported() {
    let api = Api::start().await;
    api.post(HANDOVER, json!({"to": "two"})).await.problem(404, "no_session");
    let (_, two) = held(&api).await;
    for (body, field) in [
        (json!({}), "to"),
        (json!({"to": "two", "session_id": two["session_id"]}), "to"),
        (json!({"to": "two", "ttl_ms": 0}), "ttl_ms"),
        (json!({"to": "two", "fenced": true}), "fenced"),
        (json!({"to": "two", "reason": "why not"}), "reason"),
    ] {
        let problem = api.post(HANDOVER, body.clone()).await.problem(400, "invalid_field");
        assert_eq!(problem["errors"][0]["field"], field, "{body}: {problem}");
    }
    api.post(HANDOVER, json!({"to": "nobody"})).await.problem(404, "no_session");
    api.post(HANDOVER, json!({"to": "one"})).await.problem(409, "already_pending");
    api.post(HANDOVER, json!({"to": "two", "budget": 0})).await.problem(409, "over_budget");
    api.get(HANDOVER).await.problem(404, "not_found");
}

#[tokio::test]
async fn news_come_when_there_are_some_and_go_on_from_a_cursor() {
    let api = Api::start().await;
    let (one, two) = held(&api).await;
    let revision = |session: &Value| session["revision"].clone();
    let one = beat(&api, &one).await;
    let two = beat(&api, &two).await;
    let sessions = json!([
        {"session_id": one["session_id"], "revision": revision(&one)},
        {"session_id": two["session_id"], "revision": revision(&two)},
    ]);
    let quiet = api.post("/sessions/news", json!({"sessions": sessions})).await.is(200);
    assert_eq!(quiet["sessions"], json!([]));
    let ask = json!({"sessions": sessions, "from": quiet["cursor"], "wait_ms": 30_000});
    let (news, _) = tokio::join!(async { api.post("/sessions/news", ask.clone()).await.is(200) }, async {
        api.post(HANDOVER, json!({"to": "two"})).await.is(201)
    });
    let mut told = [one["session_id"].clone(), two["session_id"].clone()];
    told.sort_by_key(ToString::to_string);
    assert_eq!(news["sessions"], json!(told));
    // From where it ended, nothing is told twice.
    let on = json!({"sessions": sessions, "from": news["cursor"]});
    assert_eq!(api.post("/sessions/news", on).await.is(200)["sessions"], json!([]));
    let many: Vec<_> = (0..1_001).map(|_| sessions[0].clone()).collect();
    api.post("/sessions/news", json!({"sessions": many})).await.problem(400, "invalid_field");
    api.post("/sessions/news", json!({"sessions": [], "wait_ms": 30_001}))
        .await
        .problem(400, "invalid_field");
}
