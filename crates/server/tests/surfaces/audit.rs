//! The audit trail: what operators did, and who may read it.

use serde_json::{Value, json};
use solehold_server::Role;

use crate::common::{Api, runner, segment};

async fn entries(api: &Api, query: &str) -> Vec<Value> {
    let page = api.get(&format!("/admin/audit{query}")).await.is(200);
    page["entries"].as_array().expect("entries").clone()
}

/// Action and target of each entry, the oldest first, without the keys that a test makes.
async fn deeds(api: &Api) -> Vec<String> {
    let mut all = entries(api, "").await;
    all.retain(|entry| entry["details"]["name"] != "test");
    all.reverse();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    all.iter().map(|entry| format!("{} {}", text(&entry["action"]), text(&entry["target"]))).collect()
}

#[tokio::test]
async fn each_action_of_an_operator_has_an_entry() {
    let api = Api::start().await;
    let ops = api.keyed(Role::Admin, Some("tenant-1")).await;
    let session = ops.post("/runners/register", runner("r1")).await.is(200)["session_id"].clone();
    ops.put("/resources/job/a", json!({})).await.is(201);
    let held = json!({"holder": "r1", "session_id": session});
    let grant = ops.post("/resources/job/a/lease", held).await.is(201);
    ops.post("/sessions", json!({"holder": "r2"})).await.is(201);

    ops.put("/runners/r1/status", json!({"status": "draining"})).await.is(200);
    ops.post("/resources/job/a/handover", json!({"to": "r2", "ttl_seconds": 20})).await.is(201);
    ops.delete("/resources/job/a/handover").await.is(204);
    let revoke = json!({"token": grant["token"], "fenced": true, "reason": "it hangs"});
    ops.post("/resources/job/a/lease/revoke", revoke).await.is(200);
    ops.put("/resources/job/a/quarantine", json!({"reason": "broken input"})).await.is(200);
    ops.delete("/resources/job/a/quarantine").await.is(204);
    ops.post("/deployments/shift", json!({"to": "green", "percent": 50})).await.is(200);
    ops.put("/placement", json!({"settle_ms": 5, "band_percent": null})).await.is(200);
    ops.delete("/resources/job/a?force=true").await.is(204);
    ops.delete("/runners/r1").await.is(200);
    let key = ops.post("/admin/keys", json!({"name": "ci", "role": "runner"})).await.is(201);
    let key = key["id"].as_str().expect("an id").to_owned();
    ops.put(&format!("/admin/keys/{key}"), json!({"expires_in_seconds": 60})).await.is(200);
    ops.post(&format!("/admin/keys/{key}/rotate"), json!({})).await.is(200);
    ops.delete(&format!("/admin/keys/{key}")).await.is(204);

    let expected = [
        "runner_status runner/r1".to_owned(),
        "hand_over job/a".to_owned(),
        "call_off_hand_over job/a".to_owned(),
        "revoke_lease job/a".to_owned(),
        "quarantine job/a".to_owned(),
        "clear_quarantine job/a".to_owned(),
        "shift deployment/green".to_owned(),
        "placement placement".to_owned(),
        "delete_resource job/a".to_owned(),
        "remove_runner runner/r1".to_owned(),
        format!("create_key key/{key}"),
        format!("expire_key key/{key}"),
        format!("rotate_key key/{key}"),
        format!("revoke_key key/{key}"),
    ];
    let mut found = deeds(&ops).await;
    found.sort();
    let mut sorted = expected.to_vec();
    sorted.sort();
    // The clock stands still, so that all of it happened in the same millisecond.
    assert_eq!(found, sorted);

    let all = entries(&ops, "").await;
    let of = |action: &str| all.iter().find(|entry| entry["action"] == action).expect(action);
    assert_eq!(of("runner_status")["details"], json!({"status": "draining"}));
    assert_eq!(of("hand_over")["details"], json!({"to": "r2", "within_ms": 20_000}));
    let revoked = of("revoke_lease");
    assert_eq!(revoked["details"], json!({"token": grant["token"], "fenced": true, "reason": "it hangs"}));
    assert_eq!((&revoked["actor"], &revoked["tenant"]), (&json!("test"), &json!("tenant-1")));
    assert!(revoked["key_id"].is_string() && revoked["at"].is_string(), "{revoked}");
    assert_eq!(of("placement")["details"], json!({"settle_ms": 5, "band_percent": null}));
    let is_made = |entry: &&Value| entry["action"] == "create_key" && entry["target"] == format!("key/{key}");
    let made = all.iter().find(is_made).expect("the new key, not that of the operator");
    assert_eq!(made["details"], json!({"name": "ci", "role": "runner"}));
    assert_eq!(of("expire_key")["details"], json!({"name": "ci", "expires_in_seconds": 60}));
    let told = json!(all).to_string();
    assert!(!told.contains("shk_"), "no secret of a key: {told}");
}

#[tokio::test]
async fn what_concerns_the_store_is_for_its_administrators() {
    let api = Api::start().await;
    api.post("/admin/raise-token", json!({"above": 100})).await.is(200);
    let root = api.keyed(Role::Admin, None).await;
    root.put("/admin/tenants/tenant-1", json!({"quotas": {"resources": 7}})).await.is(200);
    root.post("/admin/restored", json!({"holders_stopped": true})).await.is(200);
    let tenant = api.keyed(Role::Admin, Some("tenant-1")).await;
    root.post("/deployments/shift", json!({"to": "green", "percent": 1})).await.is(200);

    let mut all = deeds(&root).await;
    all.sort();
    let expected =
        ["raise_token store", "restored store", "shift deployment/green", "tenant_quotas tenant/tenant-1"];
    assert_eq!(all, expected);
    let raised = entries(&root, "").await.into_iter().find(|entry| entry["action"] == "raise_token");
    let raised = raised.expect("an entry");
    assert_eq!(
        (&raised["actor"], &raised["key_id"], &raised["tenant"]),
        (&json!("local"), &Value::Null, &Value::Null)
    );
    assert_eq!(deeds(&tenant).await, ["tenant_quotas tenant/tenant-1"]);
    let of_tenant = entries(&root, "?tenant=tenant-1").await;
    assert_eq!(entries(&tenant, "").await, of_tenant);
    tenant.get("/admin/audit?tenant=default").await.problem(404, "not_found");

    for role in [Role::Reader, Role::Runner] {
        let other = api.keyed(role, None).await;
        other.get("/admin/audit").await.problem(403, "forbidden");
    }
    api.get("/admin/audit").await.problem(401, "unauthorized");
}

#[tokio::test]
async fn what_is_refused_and_what_runners_do_themselves_has_no_entry() {
    let api = Api::start().await;
    let ops = api.keyed(Role::Admin, Some("tenant-1")).await;
    let worker = api.keyed(Role::Runner, Some("tenant-1")).await;
    let session = worker.post("/runners/register", runner("r1")).await.is(200)["session_id"].clone();
    ops.put("/runners/nobody/status", json!({"status": "draining"})).await.problem(404, "not_found");
    ops.post("/resources/job/a/lease/revoke", json!({})).await.problem(404, "not_found");
    worker.post("/resources/job/a/lease/revoke", json!({})).await.problem(403, "forbidden");
    ops.put("/resources/job/a", json!({})).await.is(201);
    ops.delete("/resources/job/a/quarantine").await.is(204);
    let held = json!({"holder": "r1", "session_id": session});
    worker.post("/resources/job/a/lease", held).await.is(201);
    let next = worker.post("/sessions", json!({"holder": "r2"})).await.is(201)["session_id"].clone();
    worker.post("/resources/job/a/handover", json!({"session_id": next})).await.is(201);
    let drain = json!({"status": "draining", "session_id": session});
    worker.put("/runners/r1/status", drain).await.is(200);
    worker.call("DELETE", "/runners/r1", json!({"session_id": session})).await.is(200);
    assert_eq!(deeds(&ops).await, [""; 0]);
}

#[tokio::test]
async fn the_audit_trail_comes_in_pages_newest_first() {
    let api = Api::start().await;
    for percent in 0..5 {
        api.post("/deployments/shift", json!({"to": "green", "percent": percent})).await.is(200);
        api.pass_seconds(1);
    }
    let mut seen = Vec::new();
    let mut query = "?limit=2".to_owned();
    loop {
        let page = api.get(&format!("/admin/audit{query}")).await.is(200);
        let entries = page["entries"].as_array().expect("entries");
        seen.extend(entries.iter().map(|entry| entry["details"]["percent"].as_u64().expect("a number")));
        let Some(next) = page["next"].as_str() else { break };
        assert_eq!(entries.len(), 2);
        query = format!("?limit=2&cursor={}", segment(next));
    }
    assert_eq!(seen, [4, 3, 2, 1, 0]);
    api.get("/admin/audit?cursor=a/b").await.problem(400, "invalid_field");
}
