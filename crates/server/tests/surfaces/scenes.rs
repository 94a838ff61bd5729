//! Scene leases: every call as trackers write it, and what happens around it.

use std::process::Stdio;

use serde_json::json;
use tokio::{process::Command, task::JoinSet};

use crate::common::Api;

async fn with_scenes(scenes: &[&str]) -> Api {
    let api = Api::start().await;
    for scene in scenes {
        api.put(&format!("/scenes/{scene}"), json!({})).await.is(201);
    }
    api
}

#[tokio::test]
async fn a_tracker_s_life() {
    let api = with_scenes(&["scene-01", "scene-02"]).await;
    let free = api.get("/scenes?leased=false").await.is(200);
    assert_eq!(free.as_array().map(Vec::len), Some(2));
    assert_eq!((&free[0]["scene_id"], &free[0]["version"]), (&json!("scene-01"), &json!(0)));

    let holder = json!({"holder_id": "tracker-0"});
    let got = api.post("/scenes/scene-01/lease", holder.clone()).await.is(201);
    let version = got["version"].as_u64().expect("a version");
    assert!(version > 0 && got["expires_at"].is_string());
    let free = api.get("/scenes?leased=false").await.is(200);
    assert_eq!(free.as_array().map(Vec::len), Some(1), "{free}");
    let held = api.get("/scenes?leased=true").await.is(200);
    assert_eq!(held[0]["holder_id"], "tracker-0");

    let other = json!({"holder_id": "tracker-1"});
    let refused = api.post("/scenes/scene-01/lease", other.clone()).await;
    assert!(refused.retry_after.is_some());
    let refused = refused.problem(409, "held");
    assert_eq!((&refused["holder"], &refused["token"]), (&json!("tracker-0"), &json!(version)));
    api.post("/scenes/scene-01/lease", holder.clone()).await.problem(409, "held");

    api.pass_seconds(20);
    let renewed = api.post("/scenes/scene-01/lease/renew", holder.clone()).await.is(200);
    assert_eq!((&renewed["version"], &renewed["ttl_ms"]), (&json!(version), &json!(30_000)));
    api.post("/scenes/scene-01/lease/renew", other.clone()).await.problem(404, "not_yours");
    let seen = api.get("/scenes/scene-01/lease").await.is(200);
    assert_eq!((&seen["holder_id"], &seen["version"]), (&json!("tracker-0"), &json!(version)));

    api.pass_seconds(30);
    let lost = api.post("/scenes/scene-01/lease/renew", holder.clone()).await.problem(404, "lost");
    assert_eq!((&lost["ended"]["status"], &lost["ended"]["token"]), (&json!("expired"), &json!(version)));
    let taken = api.post("/scenes/scene-01/lease", other.clone()).await.is(201);
    assert!(taken["version"].as_u64() > Some(version));

    api.call("DELETE", "/scenes/scene-01/lease", holder).await.is(204);
    assert_eq!(api.get("/scenes/scene-01/lease").await.is(200)["holder_id"], "tracker-1", "not tracker-0's");
    api.call("DELETE", "/scenes/scene-01/lease", other.clone()).await.is(204);
    api.call("DELETE", "/scenes/scene-01/lease", other).await.is(204);
    let free = api.get("/scenes/scene-01/lease").await.is(200);
    assert_eq!((&free["holder_id"], &free["expires_at"]), (&json!(null), &json!(null)));
    assert_eq!(free["version"], taken["version"], "its last version stays");
}

#[tokio::test]
async fn of_many_at_once_one_wins() {
    let api = with_scenes(&["s"]).await;
    let mut racers = JoinSet::new();
    for n in 0..200 {
        let api = api.clone();
        racers.spawn(async move { api.post("/scenes/s/lease", json!({"holder_id": format!("t{n}")})).await });
    }
    let answers = racers.join_all().await;
    let won: Vec<_> = answers.iter().filter(|answer| answer.status == 201).collect();
    assert_eq!((won.len(), answers.iter().filter(|answer| answer.status == 409).count()), (1, 199));
    assert_eq!(api.get("/scenes/s/lease").await.is(200)["version"], won[0].body["version"]);
}

#[tokio::test]
async fn an_undeclared_scene_is_not_there() {
    let api = Api::start().await;
    let holder = json!({"holder_id": "tracker-0"});
    let told = "there is no scene no of tenant default: declare it with PUT /api/v1/scenes/no";
    assert_eq!(api.post("/scenes/no/lease", holder.clone()).await.problem(404, "not_found")["detail"], told);
    assert_eq!(api.get("/scenes/no").await.problem(404, "not_found")["detail"], told);
    assert_eq!(api.get("/scenes/no/lease").await.problem(404, "not_found")["detail"], told);
    api.post("/scenes/no/lease/renew", holder.clone()).await.problem(404, "not_found");
    api.call("DELETE", "/scenes/no/lease", holder).await.is(204);
    api.delete("/scenes/no").await.problem(404, "not_found");
    assert_eq!(api.get("/scenes").await.is(200), json!([]));
    api.put("/scenes/no", json!({"name": "Hall"})).await.is(201);
    let one = api.get("/scenes/no").await.is(200);
    assert_eq!(one["name"], "Hall");
    assert_eq!(api.get("/scenes").await.is(200), json!([one]), "as in the list");
}

#[tokio::test]
async fn a_version_is_proof_where_it_is_given() {
    let api = with_scenes(&["s"]).await;
    let first = api.post("/scenes/s/lease", json!({"holder_id": "t"})).await.is(201);
    api.call("DELETE", "/scenes/s/lease", json!({"holder_id": "t", "version": first["version"]}))
        .await
        .is(204);
    let second = api.post("/scenes/s/lease", json!({"holder_id": "t"})).await.is(201);
    let old = json!({"holder_id": "t", "version": first["version"]});
    let lost = api.post("/scenes/s/lease/renew", old.clone()).await.problem(404, "lost");
    assert_eq!((&lost["token"], &lost["ended"]["token"]), (&second["version"], &first["version"]));
    api.call("DELETE", "/scenes/s/lease", old).await.is(204);
    assert_eq!(
        api.get("/scenes/s/lease").await.is(200)["version"],
        second["version"],
        "the new lease stands"
    );
    let new = json!({"holder_id": "t", "version": second["version"], "ttl_ms": 60_000});
    assert_eq!(api.post("/scenes/s/lease/renew", new).await.is(200)["ttl_ms"], 60_000);
}

/// The lines that trackers use, but for the host.
const CURL: &str = r#"
set -e
curl -sS -w ' %{http_code}\n' https://manager/api/v1/scenes?leased=false
curl -sS -w ' %{http_code}\n' -X POST https://manager/api/v1/scenes/scene-01/lease \
  -d '{"holder_id": "tracker-0"}'
curl -sS -w ' %{http_code}\n' -X POST https://manager/api/v1/scenes/scene-01/lease/renew \
  -d '{"holder_id": "tracker-0"}'
curl -sS -w ' %{http_code}\n' -X DELETE https://manager/api/v1/scenes/scene-01/lease \
  -d '{"holder_id": "tracker-0"}'
"#;

#[tokio::test]
async fn the_curl_lines_of_trackers_work_as_written() {
    let api = with_scenes(&["scene-01"]).await;
    let script = CURL.replace("https://manager", &api.url());
    let run = Command::new("sh").args(["-c", &script]).stderr(Stdio::inherit()).output().await;
    let output = run.expect("a shell");
    if output.status.code() == Some(127) {
        return eprintln!("curl is not here; the other tests send the same bodies");
    }
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    // An answer ends with a newline of its own, unless it is empty.
    let statuses: Vec<_> = text.lines().filter_map(|line| line.strip_prefix(' ')).collect();
    assert_eq!(statuses, ["200", "201", "200", "204"], "{text}");
}

#[tokio::test]
async fn pages_have_the_manager_s_shape() {
    let api = with_scenes(&["a", "b", "c"]).await;
    api.post("/scenes/b/lease", json!({"holder_id": "t"})).await.is(201);
    let page = api.get("/scenes?format=page").await.is(200);
    assert_eq!((&page["count"], &page["next"], &page["previous"]), (&json!(3), &json!(null), &json!(null)));
    assert_eq!(page["results"][1]["holder_id"], "t");

    let page = api.get("/scenes?format=page&limit=1&leased=false").await.is(200);
    assert_eq!((&page["count"], &page["results"][0]["scene_id"]), (&json!(2), &json!("a")));
    let next = page["next"].as_str().expect("a next page").strip_prefix("/api/v1").expect("a path of ours");
    let page = api.get(next).await.is(200);
    assert_eq!((&page["count"], &page["results"][0]["scene_id"]), (&json!(2), &json!("c")));
    assert_eq!(page["next"], json!(null));

    let list = api.get("/scenes?limit=2").await;
    let link = list.link.clone().expect("a next page");
    assert_eq!(list.is(200).as_array().map(Vec::len), Some(2));
    let next = link.trim_start_matches("</api/v1").split('>').next().expect("a path").to_owned();
    let last = api.get(&next).await;
    assert_eq!((last.link.as_ref(), &last.body[0]["scene_id"]), (None, &json!("c")));
    api.get("/scenes?cursor=x").await.problem(400, "invalid_field");
    api.get("/scenes?limit=0").await.problem(400, "invalid_field");
    api.get("/scenes?leased=perhaps").await.problem(400, "invalid_field");
}

#[tokio::test]
async fn an_acquire_is_repeated_with_its_request_id() {
    let api = with_scenes(&["s"]).await;
    let ask = json!({"holder_id": "t", "request_id": "r-1"});
    let first = api.post("/scenes/s/lease", ask.clone()).await.is(201);
    api.pass_seconds(10);
    let again = api.post("/scenes/s/lease", ask.clone()).await.is(201);
    assert_eq!((&again["version"], &again["lease_id"]), (&first["version"], &first["lease_id"]));
    assert_eq!((&again["repeated"], &again["ttl_ms"]), (&json!(true), &json!(20_000)));
    api.call("DELETE", "/scenes/s/lease", json!({"holder_id": "t"})).await.is(204);
    api.post("/scenes/s/lease", ask).await.problem(409, "request_spent");
    let other = json!({"holder_id": "t", "request_id": "r-2"});
    assert!(api.post("/scenes/s/lease", other).await.is(201)["version"].as_u64() > first["version"].as_u64());
}

#[tokio::test]
async fn scenes_are_declared_and_removed() {
    let api = Api::start().await;
    let hall = json!({"name": "Hall", "site": "north", "labels": {"floor": "2"}});
    assert_eq!(api.put("/scenes/s/", hall.clone()).await.is(201)["name"], "Hall");
    api.put("/scenes/s", hall).await.is(200);
    let lease = api.post("/scenes/s/lease/", json!({"holder_id": "t"})).await.is(201);
    api.delete("/scenes/s").await.problem(409, "in_use");
    api.delete("/scenes/s?force=true").await.is(204);
    api.get("/scenes/s/lease").await.problem(404, "not_found");
    api.put("/scenes/s", json!({})).await.is(201);
    api.post("/scenes/s/lease", json!({"holder_id": "u"})).await.problem(409, "held_back");
    api.pass_seconds(30);
    let next = api.post("/scenes/s/lease", json!({"holder_id": "u"})).await.is(201);
    assert!(next["version"].as_u64() > lease["version"].as_u64(), "tokens grow through deletion");
    api.delete("/scenes/s?force=true&fenced=true").await.is(204);
    api.put("/scenes/s", json!({})).await.is(201);
    api.post("/scenes/s/lease", json!({"holder_id": "v"})).await.is(201);
}

#[tokio::test]
async fn all_faults_of_a_body_are_reported() {
    let api = with_scenes(&["s"]).await;
    for (body, code, field) in [
        ("", "invalid_field", "body"),
        ("{", "invalid_json", ""),
        ("holder_id=tracker-0", "invalid_json", ""),
        ("[]", "invalid_field", "body"),
        (r#"{"holder_id": 7}"#, "invalid_field", "holder_id"),
        (r#"{"holder_id": ""}"#, "invalid_field", "holder_id"),
        (r#"{"holder_id": "a\u0000b"}"#, "invalid_field", "holder_id"),
        (r#"{"holder_id": "t", "ttl_ms": 999}"#, "invalid_field", "ttl_ms"),
        (r#"{"holder_id": "t", "ttl_ms": 86400001}"#, "invalid_field", "ttl_ms"),
        (r#"{"holder_id": "t", "ttl_ms": -1}"#, "invalid_field", "ttl_ms"),
        (r#"{"holder_id": "t", "ttl_ms": 1e30}"#, "invalid_field", "ttl_ms"),
        (r#"{"holder_id": "t", "ttl_ms": "30"}"#, "invalid_field", "ttl_ms"),
        (r#"{"holder_id": "t", "session_id": "no uuid"}"#, "invalid_field", "session_id"),
    ] {
        for (method, path) in [("POST", "/scenes/s/lease"), ("POST", "/scenes/s/lease/renew")] {
            let problem = api.send(method, path, body).await.problem(400, code);
            let told = problem["errors"][0]["field"].as_str().unwrap_or_default();
            assert_eq!(told, field, "{body}: {problem:#}");
        }
    }
    let long = json!({"holder_id": "x".repeat(10_000)});
    api.post("/scenes/s/lease", long).await.problem(400, "invalid_field");
    let huge = format!(r#"{{"holder_id": "{}"}}"#, "x".repeat(1_100_000));
    api.send("POST", "/scenes/s/lease", huge).await.problem(413, "payload_too_large");
    assert_eq!(api.get("/scenes/s/lease").await.is(200)["version"], 0, "nothing was granted");
}
