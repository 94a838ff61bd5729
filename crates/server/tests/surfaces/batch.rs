//! Many leases in one request.

use serde_json::{Value, json};

use crate::common::Api;

fn item(key: &str) -> Value {
    json!({"kind": "job", "key": key, "holder": "w", "request_id": "r"})
}

fn statuses(results: &Value) -> Vec<&str> {
    let results = results["results"].as_array().expect("results");
    results.iter().map(|r| r["status"].as_str().expect("a status")).collect()
}

async fn batch(api: &Api, what: &str, items: Vec<Value>) -> Value {
    api.post(&format!("/leases/batch/{what}"), json!({ "items": items })).await.is(200)
}

#[tokio::test]
async fn each_item_is_decided_separately() {
    let api = Api::start().await;
    api.post("/resources/job/b/lease", json!({"holder": "other"})).await.is(201);
    let got = batch(&api, "acquire", vec![item("a"), item("b"), item("c")]).await;
    assert_eq!(statuses(&got), ["granted", "refused", "granted"]);
    assert_eq!(got["results"][1]["problem"]["code"], "held");
    assert!(got["results"][0]["lease"]["token"].as_u64() < got["results"][2]["lease"]["token"].as_u64());
    let lease = |at: usize| &got["results"][at]["lease"];

    let renewals = vec![
        json!({"lease_id": lease(0)["lease_id"]}),
        json!({"kind": "job", "key": "b", "token": 999}),
        json!({"kind": "job", "key": "c", "token": lease(2)["token"], "ttl_seconds": 120}),
        json!({"kind": "job", "key": "nothing", "holder": "w"}),
    ];
    let renewed = batch(&api, "renew", renewals).await;
    assert_eq!(statuses(&renewed), ["renewed", "refused", "renewed", "refused"]);
    assert_eq!(renewed["results"][2]["lease"]["ttl_ms"], 120_000);
    assert_eq!(renewed["results"][3]["problem"]["code"], "not_found");

    let releases = vec![json!({"lease_id": lease(0)["lease_id"]}), json!({"lease_id": lease(0)["lease_id"]})];
    let released = batch(&api, "release", releases).await;
    assert_eq!(statuses(&released), ["released", "refused"], "twice in one batch");
    assert_eq!(batch(&api, "acquire", vec![]).await["results"], json!([]));
}

#[tokio::test]
async fn the_same_resource_twice_goes_to_the_first() {
    let api = Api::start().await;
    let mut second = item("a");
    second["holder"] = json!("v");
    let got = batch(&api, "acquire", vec![item("a"), second.clone(), item("a")]).await;
    assert_eq!(
        statuses(&got),
        ["granted", "refused", "granted"],
        "the last is the first's own request again"
    );
    assert_eq!(got["results"][1]["problem"]["holder"], "w");
    assert_eq!(got["results"][2]["lease"]["repeated"], true);
    assert_eq!(got["results"][2]["lease"]["token"], got["results"][0]["lease"]["token"]);
}

#[tokio::test]
async fn a_batch_sent_twice_gets_the_same_grants() {
    let api = Api::start().await;
    let items: Vec<_> = (0..1_000).map(|n| item(&n.to_string())).collect();
    let first = batch(&api, "acquire", items.clone()).await;
    let again = batch(&api, "acquire", items).await;
    for (one, other) in
        first["results"].as_array().expect("results").iter().zip(again["results"].as_array().expect("them"))
    {
        assert_eq!((&one["status"], &one["lease"]["token"]), (&other["status"], &other["lease"]["token"]));
        assert_eq!(other["lease"]["repeated"], true);
    }
}

#[tokio::test]
async fn an_item_that_cannot_be_read_spoils_the_request() {
    let api = Api::start().await;
    let problem = api
        .post("/leases/batch/acquire", json!({"items": [item("a"), item("")]}))
        .await
        .problem(400, "invalid_field");
    assert_eq!(problem["errors"][0]["field"], "items[1].key");
    api.get("/resources/job/a").await.problem(404, "not_found");
    let items: Vec<_> = (0..1_001).map(|n| item(&n.to_string())).collect();
    let problem =
        api.post("/leases/batch/acquire", json!({ "items": items })).await.problem(400, "invalid_field");
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains("1000")), "{problem}");
    for what in ["acquire", "renew", "release"] {
        for body in ["", "[]", "{", r#"{"items": 1}"#, r#"{"items": [{"colour": "red"}]}"#] {
            let answer = api.send("POST", &format!("/leases/batch/{what}"), body).await;
            assert_eq!(answer.status, 400, "{what} {body}");
        }
    }
    let both = json!({"items": [{"kind": "job", "key": "a", "lease_id": uuid::Uuid::nil()}]});
    api.post("/leases/batch/renew", both).await.problem(400, "invalid_field");
}

#[tokio::test]
async fn all_are_acquired_or_none() {
    let api = Api::start().await;
    let all = async |items: Vec<Value>| {
        api.post("/leases/batch/acquire", json!({"all_or_none": true, "items": items})).await
    };
    api.post("/resources/job/b/lease", json!({"holder": "other"})).await.is(201);
    let refused = all(vec![item("a"), item("b")]).await.problem(409, "held");
    assert!(refused["detail"].as_str().is_some_and(|detail| detail.contains("job/b")), "{refused}");
    let got = all(vec![item("a"), item("c")]).await.is(200);
    assert_eq!(statuses(&got), ["granted", "granted"], "a was left free");
    assert_eq!(all(vec![]).await.is(200)["results"], json!([]));
    let many = (0..101).map(|n| item(&format!("d{n}"))).collect();
    all(many).await.problem(400, "invalid_field");
}
