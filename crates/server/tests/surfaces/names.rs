//! Names in paths: unicode, slashes, spaces, empty ones, and such as are far too long.

use serde_json::json;

use crate::common::{Api, segment};

const NAMES: [&str; 7] = ["hall/7 süd", "数🚦", "a%2Fb", "with space", "q?x=1&y#z", "{id}", "+plus+"];

#[tokio::test]
async fn any_printable_name_works_as_a_path() {
    let api = Api::start().await;
    for name in NAMES.into_iter().map(str::to_owned).chain(["x".repeat(255)]) {
        let path = segment(&name);
        api.put(&format!("/scenes/{path}"), json!({})).await.is(201);
        let lease = api.post(&format!("/scenes/{path}/lease"), json!({"holder_id": name})).await.is(201);
        assert_eq!((&lease["scene_id"], &lease["holder_id"]), (&json!(name), &json!(name)));
        api.post(&format!("/scenes/{path}/lease/renew"), json!({"holder_id": name})).await.is(200);
        let resource = format!("/resources/{path}/{path}");
        api.post(&format!("{resource}/lease"), json!({"holder": name})).await.is(201);
        assert_eq!(api.get(&resource).await.is(200)["key"], json!(name));
        api.post("/runners/register", json!({"runner_id": name})).await.is(200);
        api.put(&format!("/runners/{path}/heartbeat"), json!({})).await.is(200);
        assert_eq!(api.get(&format!("/runners/{path}/")).await.is(200)["runner_id"], json!(name));
        let leases = api.get(&format!("/leases/runner/{path}")).await.is(200);
        assert_eq!(leases["leases"].as_array().map(Vec::len), Some(2));
        let id = format!("cam-{}", &name.chars().take(200).collect::<String>());
        let cameras = format!("/tenants/{path}/sites/{path}/cameras");
        api.post(&cameras, json!({"camera_uuid": id})).await.is(200);
        let camera = api.get(&format!("{cameras}/{}", segment(&id))).await.is(200);
        assert_eq!((&camera["camera_uuid"], &camera["site_id"]), (&json!(id), &json!(name)));
        api.get(&format!("/tenants/{path}/sites/{path}/config/version")).await.is(200);
    }
    let listed = api.get("/scenes").await.is(200);
    assert_eq!(listed.as_array().map(Vec::len), Some(NAMES.len() + 1));
}

/// Every path that names something, with a body that is good.
const PATHS: [(&str, &str, &str); 27] = [
    ("PUT", "/scenes/{}", "{}"),
    ("DELETE", "/scenes/{}", ""),
    ("GET", "/scenes/{}/lease", ""),
    ("POST", "/scenes/{}/lease", r#"{"holder_id": "t"}"#),
    ("DELETE", "/scenes/{}/lease", r#"{"holder_id": "t"}"#),
    ("POST", "/scenes/{}/lease/renew", r#"{"holder_id": "t"}"#),
    ("GET", "/leases/runner/{}", ""),
    ("GET", "/leases/camera/{}", ""),
    ("GET", "/runners/{}", ""),
    ("DELETE", "/runners/{}", ""),
    ("PUT", "/runners/{}/heartbeat", "{}"),
    ("PUT", "/runners/{}/status", r#"{"status": "active"}"#),
    ("GET", "/runners/{}/assignments", ""),
    ("GET", "/tenants/{}/sites/s/cameras", ""),
    ("GET", "/tenants/t/sites/{}/cameras", ""),
    ("GET", "/tenants/t/sites/s/cameras/{}", ""),
    ("GET", "/tenants/t/sites/s/zones/{}", ""),
    ("GET", "/tenants/t/sites/{}/config/version", ""),
    ("GET", "/cameras/{}", ""),
    ("PUT", "/cameras/{}", "{}"),
    ("GET", "/resources/{}/k", ""),
    ("GET", "/resources/job/{}", ""),
    ("PUT", "/resources/{}/k", "{}"),
    ("POST", "/resources/job/{}/lease", r#"{"holder": "t"}"#),
    ("POST", "/resources/job/{}/lease/cancel", r#"{"holder": "t", "request_id": "r"}"#),
    ("GET", "/resources/job/{}/state", ""),
    ("GET", "/resources/job/{}/history", ""),
];

#[tokio::test]
async fn names_that_cannot_be_are_refused_by_name() {
    let api = Api::start().await;
    for (method, template, body) in PATHS {
        for odd in ["x".repeat(256), "x".repeat(10_000), "a%00b".to_owned(), "a%0Ab".to_owned()] {
            let answer = api.send(method, &template.replace("{}", &odd), body).await;
            let problem = answer.problem(400, "invalid_field");
            assert!(problem["errors"][0]["field"].is_string(), "{method} {template}: {problem:#}");
        }
        let answer = api.send(method, &template.replace("{}", "%FF%FE"), body).await;
        assert_eq!(answer.status, 400, "{method} {template} with bytes that are no text: {:#}", answer.body);
    }
}

#[tokio::test]
async fn an_empty_name_is_refused_within_a_path_and_a_slash_at_its_end() {
    let api = Api::start().await;
    for (method, template, body) in PATHS {
        let answer = api.send(method, &template.replace("{}", ""), body).await;
        if template.ends_with("{}") {
            // The path without its last slash: the list, which takes other methods or is not there.
            assert!([200, 404, 405].contains(&answer.status), "{method} {template}: {}", answer.status);
        } else {
            answer.problem(400, "invalid_field");
        }
    }
    api.put("/leases//renew", json!({})).await.problem(404, "not_found");
    api.put("/sessions//heartbeat", json!({})).await.problem(404, "no_session");
}
