//! Resources of any kind, their leases, and what one holder leaves for the next.

use serde_json::{Value, json};
use solehold_server::{Quotas, Role, ServerLimits};

use crate::common::{Api, segment};

const JOB: &str = "/resources/job/nightly";

#[tokio::test]
async fn a_resource_is_declared_held_and_removed() {
    let api = Api::start().await;
    api.get(JOB).await.problem(404, "not_found");
    let declared =
        json!({"site": "north", "labels": {"size": "l"}, "attributes": {"n": 1}, "lock_delay_ms": 2_000});
    let made = api.put(JOB, declared.clone()).await.is(201);
    assert_eq!(
        (&made["labels"]["size"], &made["attributes"]["n"], &made["declared"]),
        (&json!("l"), &json!(1), &json!(true))
    );
    api.put(JOB, declared).await.is(200);
    api.get(&format!("{JOB}/lease")).await.problem(404, "not_found");
    let grant =
        api.post(&format!("{JOB}/lease"), json!({"holder": "w", "attributes": {"pid": 7}})).await.is(201);
    assert_eq!(
        (&grant["holder"], &grant["attributes"]["pid"], &grant["state"]),
        (&json!("w"), &json!(7), &json!(null))
    );
    let held = api.get(JOB).await.is(200);
    assert_eq!((&held["lease"]["token"], &held["last_token"]), (&grant["token"], &grant["token"]));
    assert_eq!(api.get(&format!("{JOB}/lease")).await.is(200)["lease_id"], grant["lease_id"]);
    api.delete(JOB).await.problem(409, "in_use");
    api.delete(&format!("{JOB}?force=true")).await.is(204);
    let mut left = api.get(JOB).await.is(200);
    assert_eq!(
        (&left["declared"], &left["held_back_ms"]),
        (&json!(false), &json!(32_000)),
        "all that is left"
    );
    assert_eq!(left.as_object_mut().and_then(|fields| fields.remove("epoch")), Some(json!(1)));
    let listed = api.get("/resources/job").await.is(200);
    assert_eq!(listed["resources"], json!([left]), "lists show the same, but for the epoch");
    let refused = api.post(&format!("{JOB}/lease"), json!({"holder": "x"})).await.problem(409, "held_back");
    assert_eq!(refused["retry_after_ms"], 32_000, "the old deadline and the lock-delay");
    api.delete(&format!("{JOB}?force=true")).await.problem(404, "not_found");
    api.delete(&format!("{JOB}?force=true&fenced=true")).await.is(204);
    api.get(JOB).await.problem(404, "not_found");
    api.post(&format!("{JOB}/lease"), json!({"holder": "x"})).await.is(201);
}

#[tokio::test]
async fn a_hold_back_is_lifted_once_the_old_holder_is_fenced_off() {
    let api = Api::start().await;
    let lease = format!("{JOB}/lease");
    let revoke = format!("{JOB}/lease/revoke");
    let grant = api.post(&lease, json!({"holder": "w"})).await.is(201);
    assert_eq!(api.post(&revoke, json!({})).await.is(200)["held_back_ms"], 30_000);
    api.post(&lease, json!({"holder": "x"})).await.problem(409, "held_back");
    api.post(&revoke, json!({})).await.problem(409, "lost");
    api.post(&revoke, json!({"fenced": true, "token": 999})).await.problem(409, "lost");
    let lifted = api.post(&revoke, json!({"fenced": true, "token": grant["token"]})).await.is(200);
    assert_eq!((&lifted["lease_id"], &lifted["held_back_ms"]), (&json!(null), &json!(0)));
    api.post(&lease, json!({"holder": "x"})).await.is(201);
    let history = api.get(&format!("{JOB}/history")).await.is(200);
    assert_eq!(history["events"][2]["event_type"], "hold_back_lifted");
    assert_eq!(history["events"][2]["token"], grant["token"]);
}

#[tokio::test]
async fn an_undeclared_resource_exists_while_it_is_held() {
    let api = Api::start().await;
    let grant = api.post(&format!("{JOB}/lease"), json!({"holder": "w"})).await.is(201);
    assert_eq!(api.get(JOB).await.is(200)["declared"], false);
    api.call("DELETE", &format!("{JOB}/lease"), json!({"token": grant["token"]})).await.is(204);
    api.get(JOB).await.problem(404, "not_found");
    let again = api.post(&format!("{JOB}/lease"), json!({"holder": "w"})).await.is(201);
    assert!(again["token"].as_u64() > grant["token"].as_u64());
}

#[tokio::test]
async fn a_lease_is_named_by_its_proof() {
    let api = Api::start().await;
    let lease = format!("{JOB}/lease");
    let renew = format!("{JOB}/lease/renew");
    let grant = api.post(&lease, json!({"holder": "w", "ttl_seconds": 60})).await.is(201);
    let other = api.post("/resources/job/other/lease", json!({"holder": "w"})).await.is(201);
    for proof in
        [json!({"token": grant["token"]}), json!({"lease_id": grant["lease_id"]}), json!({"holder": "w"})]
    {
        let renewed = api.post(&renew, proof).await.is(200);
        assert_eq!((&renewed["token"], &renewed["ttl_ms"]), (&grant["token"], &json!(60_000)));
    }
    assert_eq!(
        api.post(&renew, json!({"token": grant["token"], "ttl_ms": 90_000})).await.is(200)["ttl_ms"],
        90_000
    );
    api.post(&renew, json!({})).await.problem(400, "no_proof");
    api.post(&renew, json!({"holder": "v"})).await.problem(409, "not_yours");
    api.post(&renew, json!({"token": 999})).await.problem(409, "lost");
    api.post(&renew, json!({"lease_id": other["lease_id"]})).await.problem(404, "not_found");
    api.post(&renew, json!({"version": 1})).await.problem(400, "invalid_field");
    api.call("DELETE", &lease, json!({"lease_id": other["lease_id"]})).await.problem(404, "not_found");
    assert_eq!(
        api.get("/resources/job/other/lease").await.is(200)["token"],
        other["token"],
        "it is untouched"
    );
    api.call("DELETE", &lease, json!({"token": 999})).await.problem(409, "lost");
    api.call("DELETE", &lease, json!({})).await.problem(400, "no_proof");
    api.call("DELETE", &lease, json!({"token": grant["token"]})).await.is(204);
    api.call("DELETE", &lease, json!({"token": grant["token"]})).await.problem(409, "lost");
}

/// The holder that asks too late learns what happened, whatever it names its lease by.
#[tokio::test]
async fn an_ended_lease_shows_when_and_how_it_ended() {
    let api = Api::start().await;
    let lease = format!("{JOB}/lease");
    let renew = format!("{JOB}/lease/renew");
    let grant = api.post(&lease, json!({"holder": "w", "ttl_seconds": 2})).await.is(201);
    api.pass_seconds(2);
    let proofs =
        [json!({"token": grant["token"]}), json!({"lease_id": grant["lease_id"]}), json!({"holder": "w"})];
    for swept in [false, true] {
        for proof in &proofs {
            let lost = api.post(&renew, proof.clone()).await.problem(409, "lost");
            let ended = &lost["ended"];
            assert_eq!((&ended["status"], &ended["token"]), (&json!("expired"), &grant["token"]), "{proof}");
            assert_eq!((&ended["holder"], &ended["lease_id"]), (&json!("w"), &grant["lease_id"]), "{proof}");
            assert!(ended["ended_at"].is_string(), "{lost}");
            assert!(lost["detail"].as_str().is_some_and(|detail| detail.contains("on job/")), "{lost}");
            let mut write = proof.clone();
            (write["sequence"], write["document"]) = (json!(1), json!({}));
            let refused = if proof.get("holder").is_some() { (400, "no_proof") } else { (409, "lost") };
            api.put(&format!("{JOB}/state"), write).await.problem(refused.0, refused.1);
            api.call("DELETE", &lease, proof.clone()).await.problem(409, "lost");
        }
        if !swept {
            // Whoever takes it ends what had expired.
            let next = api.post(&lease, json!({"holder": "x"})).await.is(201);
            let lost = api.post(&renew, proofs[2].clone()).await.problem(409, "lost");
            assert_eq!((&lost["holder"], &lost["token"]), (&json!("x"), &next["token"]), "who holds it now");
            api.call("DELETE", &lease, json!({"token": next["token"]})).await.is(204);
        }
    }
    api.post(&renew, json!({"holder": "stranger"})).await.problem(404, "not_found");
    api.post(&renew, json!({"token": 999})).await.problem(404, "not_found");
    let mixed = json!({"lease_id": grant["lease_id"], "holder": "x"});
    api.post(&renew, mixed).await.problem(404, "not_found");
    api.post("/resources/job/other/lease/renew", proofs[2].clone()).await.problem(404, "not_found");
    let batch =
        json!({"items": [{"lease_id": grant["lease_id"]}, {"kind": "job", "key": "none", "token": 1}]});
    let results = api.post("/leases/batch/renew", batch).await.is(200)["results"].clone();
    assert_eq!(results[0]["problem"]["ended"]["status"], "expired");
    assert_eq!(results[1]["problem"]["code"], "not_found");
}

/// A holder that was stopped by a revoke says so itself, and nobody waits for its old deadline.
#[tokio::test]
async fn the_late_release_of_a_revoked_lease_ends_its_hold_back() {
    let api = Api::start().await;
    let lease = format!("{JOB}/lease");
    let revoke = format!("{JOB}/lease/revoke");
    let taken = async |proof: fn(&Value) -> Value| {
        let grant = api.post(&lease, json!({"holder": "w"})).await.is(201);
        api.post(&revoke, json!({})).await.is(200);
        api.post(&lease, json!({"holder": "x"})).await.problem(409, "held_back");
        proof(&grant)
    };
    let by_name = taken(|_| json!({"holder": "w"})).await;
    let lost = api.call("DELETE", &lease, by_name).await.problem(409, "lost");
    assert_eq!(lost["ended"]["held_back_ms"], 30_000, "a name is no proof");
    api.post(&revoke, json!({"fenced": true})).await.is(200);
    let with_state = taken(|g| json!({"token": g["token"], "state": {"sequence": 1, "document": 1}})).await;
    api.call("DELETE", &lease, with_state).await.problem(409, "lost");
    api.post(&revoke, json!({"fenced": true, "holder": "w"})).await.is(200);
    for proof in [
        (|g| json!({"token": g["token"]})) as fn(&Value) -> Value,
        |g| json!({"lease_id": g["lease_id"]}),
        |g| json!({"token": g["token"], "holder": "w"}),
    ] {
        let proof = taken(proof).await;
        api.call("DELETE", &lease, proof.clone()).await.is(204);
        let next = api.post(&lease, json!({"holder": "x"})).await.is(201);
        api.call("DELETE", &lease, proof).await.problem(409, "lost");
        api.call("DELETE", &lease, json!({"token": next["token"]})).await.is(204);
    }
    let proof = taken(|g| json!({"kind": "job", "key": "nightly", "token": g["token"]})).await;
    let results =
        api.post("/leases/batch/release", json!({"items": [proof]})).await.is(200)["results"].clone();
    assert_eq!(results[0]["status"], "released", "{results}");
    let id = taken(|g| g["lease_id"].clone()).await;
    let path = format!("/leases/{}/revoke", id.as_str().expect("an id"));
    api.post(&path, json!({})).await.problem(404, "lost");
    assert_eq!(api.post(&path, json!({"fenced": true})).await.is(200)["held_back_ms"], 0);
    api.post(&lease, json!({"holder": "x"})).await.is(201);
}

/// Only the key that a lease belonged to says that its holder has stopped.
#[tokio::test]
async fn a_foreign_key_ends_no_hold_back() {
    let api = Api::start().await;
    let admin = api.keyed(Role::Admin, Some("t")).await;
    let one = api.keyed(Role::Runner, Some("t")).await;
    let two = api.keyed(Role::Runner, Some("t")).await;
    let lease = format!("{JOB}/lease");
    let revoke = format!("{JOB}/lease/revoke");
    let grant = one.post(&lease, json!({"holder": "w"})).await.is(201);
    admin.post(&revoke, json!({})).await.is(200);
    let proof = json!({"token": grant["token"], "lease_id": grant["lease_id"]});
    let lost = two.call("DELETE", &lease, proof.clone()).await.problem(409, "lost");
    assert_eq!(lost["ended"]["held_back_ms"], 30_000);
    two.post(&lease, json!({"holder": "x"})).await.problem(409, "held_back");
    one.call("DELETE", &lease, proof).await.is(204);
    two.post(&lease, json!({"holder": "x"})).await.is(201);
}

#[tokio::test]
async fn a_lease_is_lost_in_the_very_millisecond_of_its_deadline() {
    let api = Api::start().await;
    api.put(JOB, json!({})).await.is(201);
    let grant = api.post(&format!("{JOB}/lease"), json!({"holder": "w", "ttl_seconds": 2})).await.is(201);
    api.pass_seconds(1);
    api.post(&format!("{JOB}/lease/renew"), json!({"token": grant["token"]})).await.is(200);
    api.pass_seconds(2);
    let lost =
        api.post(&format!("{JOB}/lease/renew"), json!({"token": grant["token"]})).await.problem(409, "lost");
    assert_eq!(lost["token"], grant["token"]);
    let nobody = api.get(&format!("{JOB}/lease")).await.problem(404, "not_found");
    assert_eq!(nobody["ended"]["token"], grant["token"], "the last lease");
}

#[tokio::test]
async fn state_goes_to_the_next_holder() {
    let api = Api::start().await;
    api.put(JOB, json!({})).await.is(201);
    let lease = format!("{JOB}/lease");
    let state = format!("{JOB}/state");
    api.get(&state).await.problem(404, "not_found");
    let grant = api.post(&lease, json!({"holder": "w"})).await.is(201);
    let write = |sequence: u64| json!({"token": grant["token"], "sequence": sequence, "document": {"offset": sequence}});
    assert_eq!(api.put(&state, write(5)).await.is(200)["sequence"], 5);
    api.put(&state, write(5)).await.problem(409, "stale_sequence");
    api.put(&state, write(4)).await.problem(409, "stale_sequence");
    let by_name = json!({"holder": "w", "sequence": 9, "document": 1});
    api.put(&state, by_name).await.problem(400, "no_proof");
    assert_eq!(api.get(&state).await.is(200)["document"]["offset"], 5);
    let last = json!({"token": grant["token"], "state": {"sequence": 6, "document": [1, 2]}});
    api.call("DELETE", &lease, last).await.is(204);
    let next = api.post(&lease, json!({"holder": "v"})).await.is(201);
    assert_eq!((&next["state"]["document"], &next["state"]["token"]), (&json!([1, 2]), &grant["token"]));
    api.put(&state, write(7)).await.problem(409, "lost");
    let first = json!({"token": next["token"], "sequence": 1, "document": null});
    assert_eq!(api.put(&state, first).await.is(200)["document"], json!(null));
    let large = json!({"token": next["token"], "sequence": 2, "document": "x".repeat(70_000)});
    api.put(&state, large).await.problem(400, "invalid_field");
}

#[tokio::test]
async fn a_request_is_repeated_or_cancelled() {
    let api = Api::start().await;
    let lease = format!("{JOB}/lease");
    let ask = |request: &str| json!({"holder": "w", "request_id": request});
    let first = api.post(&lease, ask("r1")).await.is(201);
    let again = api.post(&lease, ask("r1")).await.is(200);
    assert_eq!((&again["lease_id"], &again["repeated"]), (&first["lease_id"], &json!(true)));
    api.post(&lease, ask("r2")).await.problem(409, "held");
    let cancel = format!("{JOB}/lease/cancel");
    api.post(&cancel, ask("r1")).await.is(204);
    api.get(&lease).await.problem(404, "not_found");
    api.post(&lease, ask("r1")).await.problem(409, "request_spent");
    api.post(&cancel, ask("r3")).await.is(204);
    api.post(&lease, ask("r3")).await.problem(409, "request_spent");
    api.post(&cancel, json!({"holder": "w"})).await.problem(400, "invalid_field");
    api.post(&cancel, json!({"holder": "", "request_id": ""})).await.problem(400, "invalid_field");
    api.post(&lease, ask("r4")).await.is(201);
}

#[tokio::test]
async fn a_lease_is_revoked() {
    let api = Api::start().await;
    api.put(JOB, json!({})).await.is(201);
    let lease = format!("{JOB}/lease");
    let revoke = format!("{JOB}/lease/revoke");
    let grant = api.post(&lease, json!({"holder": "w"})).await.is(201);
    api.post(&revoke, json!({"token": 999})).await.problem(409, "lost");
    let ended = api.post(&revoke, json!({"reason": "stuck"})).await.is(200);
    assert_eq!((&ended["lease_id"], &ended["held_back_ms"]), (&grant["lease_id"], &json!(30_000)));
    api.post(&revoke, json!({})).await.problem(409, "lost");
    api.post(&lease, json!({"holder": "v"})).await.problem(409, "held_back");
    api.pass_seconds(30);
    api.post(&lease, json!({"holder": "v"})).await.is(201);
    api.post(&revoke, json!({"fenced": true})).await.is(200);
    api.post(&lease, json!({"holder": "u"})).await.is(201);
    api.post(&revoke, json!({"reason": "x".repeat(2_000)})).await.problem(400, "invalid_field");
    let history = api.get(&format!("{JOB}/history")).await.is(200);
    let events: Vec<_> =
        history["events"].as_array().expect("events").iter().map(|e| e["event_type"].clone()).collect();
    assert_eq!(
        events,
        [
            "resource_declared",
            "lease_acquired",
            "lease_revoked",
            "lease_acquired",
            "lease_revoked",
            "lease_acquired"
        ]
    );
    api.get("/resources/job/never/history").await.problem(404, "not_found");
}

#[tokio::test]
async fn lists_are_filtered_and_paged() {
    let api = Api::start().await;
    api.put("/resources/job/a", json!({"site": "north", "labels": {"size": "l", "os": "x"}})).await.is(201);
    api.put("/resources/job/b", json!({"site": "south", "labels": {"size": "l"}})).await.is(201);
    api.put("/resources/scene/s", json!({})).await.is(201);
    api.post("/resources/job/b/lease", json!({"holder": "w"})).await.is(201);
    api.post("/resources/job/c/lease", json!({"holder": "w"})).await.is(201);
    let keys = async |query: &str| {
        let list = api.get(&format!("/resources?{query}")).await.is(200);
        let items = list["resources"].as_array().expect("resources").clone();
        let keys: Vec<String> = items.iter().map(|r| r["key"].as_str().expect("a key").to_owned()).collect();
        (keys.join(" "), list["next"].clone())
    };
    assert_eq!(keys("").await.0, "a b c s");
    assert_eq!(keys("kind=job").await.0, "a b c");
    assert_eq!(api.get("/resources/job").await.is(200)["resources"].as_array().map(Vec::len), Some(3));
    assert_eq!(keys("site=north").await.0, "a");
    assert_eq!(keys("label=size=l").await.0, "a b");
    assert_eq!(keys("label=size=l,os=x").await.0, "a");
    assert_eq!(keys("leased=true").await.0, "b c");
    assert_eq!(keys("leased=false&kind=job").await.0, "a");
    let (first, next) = keys("limit=3").await;
    let (second, end) =
        keys(&format!("limit=3&cursor={}", segment(next.as_str().expect("a next page")))).await;
    assert_eq!((first.as_str(), second.as_str(), end), ("a b c", "s", json!(null)));
    for odd in ["leased=x", "limit=1001", "limit=x", "cursor=a", "colour=red", "label=x", "kind="] {
        api.get(&format!("/resources?{odd}")).await.problem(400, "invalid_field");
    }
    assert_eq!(api.get("/scenes").await.is(200)[0]["scene_id"], "s", "a scene is a resource of its kind");
}

#[tokio::test]
async fn bodies_are_checked() {
    let api = Api::start().await;
    for (method, path, body, field) in [
        ("PUT", JOB, json!({"lock_delay": 1}), "lock_delay"),
        ("PUT", JOB, json!({"site": ""}), "site"),
        ("PUT", JOB, json!({"labels": {"": "x"}}), "labels."),
        ("PUT", JOB, json!({"labels": {"a": 1}}), "labels.a"),
        ("PUT", JOB, json!({"lock_delay_ms": -1}), "lock_delay_ms"),
        ("POST", "/resources/job/x/lease", json!({"holder": ""}), "holder"),
        ("POST", "/resources/job/x/lease", json!({"holder": "w", "ttl_seconds": 0.5}), "ttl_seconds"),
        ("POST", "/resources/job/x/lease", json!({"holder": "w", "ttl_ms": 1.5}), "ttl_ms"),
        (
            "POST",
            "/resources/job/x/lease",
            json!({"holder": "w", "request_id": "x".repeat(300)}),
            "request_id",
        ),
        ("PUT", "/resources/job/x/state", json!({"token": -1, "sequence": 1, "document": 1}), "token"),
    ] {
        let problem = api.call(method, path, body).await.problem(400, "invalid_field");
        assert_eq!(problem["errors"][0]["field"], field, "{problem:#}");
    }
    api.put(JOB, json!({"lock_delay_ms": 300_001})).await.problem(400, "out_of_bounds");
}

#[tokio::test]
async fn a_tenant_has_no_more_than_its_quota() {
    let quotas = Quotas { resources: Some(2), sessions: Some(1), ..ServerLimits::default().quotas };
    let api = Api::start_with(ServerLimits { quotas, ..ServerLimits::default() }).await;
    api.put("/resources/job/a", json!({})).await.is(201);
    let held = api.post("/resources/job/b/lease", json!({"holder": "w"})).await.is(201);
    let refused = api.put("/resources/job/c", json!({})).await.problem(403, "quota_exceeded");
    assert_eq!(
        (&refused["limit"]["name"], &refused["limit"]["value"]),
        (&json!("tenant_resources"), &json!(2))
    );
    api.put("/scenes/c", json!({})).await.problem(403, "quota_exceeded");
    api.post("/tenants/default/sites/s/cameras", json!({"camera_uuid": "cam-1"}))
        .await
        .problem(403, "quota_exceeded");
    api.post("/resources/job/c/lease", json!({"holder": "w"})).await.problem(403, "quota_exceeded");
    let items = json!({"items": [{"kind": "job", "key": "a", "holder": "w"}, {"kind": "job", "key": "c", "holder": "w"}]});
    api.post("/leases/batch/acquire", items).await.problem(403, "quota_exceeded");
    api.get("/resources/job/a/lease").await.problem(404, "not_found");
    // What is there already is no more than there was.
    api.put("/resources/job/a", json!({"site": "north"})).await.is(200);
    api.post("/resources/job/a/lease", json!({"holder": "w"})).await.is(201);
    api.call("DELETE", "/resources/job/b/lease", json!({"token": held["token"]})).await.is(204);
    api.put("/resources/job/c?tenant=another", json!({})).await.is(201);
    api.post("/sessions", json!({"holder": "n"})).await.is(201);
    api.post("/sessions", json!({"holder": "m"})).await.problem(403, "quota_exceeded");
    api.post("/runners/register", json!({"runner_id": "m"})).await.problem(403, "quota_exceeded");
}

#[tokio::test]
async fn a_path_lists_its_methods() {
    let api = Api::start().await;
    api.post("/scenes", json!({})).await.problem(405, "method_not_allowed");
    api.get("/leases/acquire").await.problem(405, "method_not_allowed");
}
