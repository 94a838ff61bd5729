//! Administration over HTTP: keys in pages, tenants and their quotas, tokens, export and import.

mod support;

use reqwest::Method;
use secrecy::ExposeSecret;
use serde_json::json;
use solehold_server::{Role, keys};
use support::{Asking, name, serve};

const KEYS: &str = "/api/v1/admin/keys";
const RAISE: &str = "/api/v1/admin/raise-token";

#[tokio::test]
async fn keys_come_in_pages() {
    let asking = serve().await;
    let mut admin = None;
    for n in 0..5 {
        let by = admin.as_ref().unwrap_or(&asking);
        let body = json!({"name": format!("key {n}"), "role": "admin", "expires_in_seconds": 60 + n});
        let made = by.send(Method::POST, KEYS, &body.to_string()).await.json();
        assert!(made["expires_at"].is_string());
        admin = admin.or(Some(asking.with_key(made["key"].as_str().expect("a key"))));
    }
    let admin = admin.expect("a key");
    let mut names = Vec::new();
    let mut next = String::new();
    loop {
        let page = admin.get(&format!("{KEYS}?limit=2{next}")).await.json();
        names.extend(page["keys"].as_array().expect("keys").iter().map(|key| key["name"].to_string()));
        let Some(cursor) = page["next"].as_str() else { break };
        next = format!("&cursor={cursor}");
    }
    names.sort();
    assert_eq!(names, ["\"key 0\"", "\"key 1\"", "\"key 2\"", "\"key 3\"", "\"key 4\""]);
    let wrong =
        admin.send(Method::POST, KEYS, r#"{"name": "", "role": "admin", "expires_in_seconds": 0}"#).await;
    assert_eq!(wrong.problem("invalid_field")["errors"].as_array().map(Vec::len), Some(2));
    admin.send(Method::POST, KEYS, r#"{"name": "x", "role": "king"}"#).await.problem("invalid_field");
}

#[tokio::test]
async fn a_tenant_has_quotas_of_its_own() {
    let asking = serve().await;
    let path = "/api/v1/admin/tenants/blue";
    let before = asking.get(path).await.json();
    assert_eq!(before["usage"], json!({"resources": 0, "sessions": 0, "watches": 0}));
    assert!(before["quotas"]["resources"].is_u64());
    let put = asking.send(Method::PUT, path, r#"{"quotas": {"resources": 2, "sessions": 1}}"#).await.json();
    let watches = &before["quotas"]["watches"];
    assert_eq!(put["quotas"], json!({"resources": 2, "sessions": 1, "watches": watches}));
    let declare = async |key: &str| {
        asking.send(Method::PUT, &format!("/api/v1/resources/job/{key}?tenant=blue"), "{}").await
    };
    assert!(declare("1").await.status.is_success());
    assert!(declare("2").await.status.is_success());
    let refused = declare("3").await;
    assert_eq!(refused.status, 403);
    assert_eq!(refused.problem("quota_exceeded")["limit"], json!({"name": "tenant_resources", "value": 2}));
    let usage = asking.get(path).await.json();
    assert_eq!(usage["usage"]["resources"], 2);
    let tenants = asking.get("/api/v1/admin/tenants").await.json();
    let names: Vec<_> =
        tenants["tenants"].as_array().expect("tenants").iter().map(|t| &t["tenant"]).collect();
    assert_eq!(names, ["blue", "default"]);
    asking.send(Method::PUT, path, r#"{"quotas": {"cameras": 2}}"#).await.problem("invalid_field");
}

#[tokio::test]
async fn a_put_of_a_tenant_changes_only_the_quotas_that_it_names() {
    let asking = serve().await;
    let put = async |body: &str| {
        asking.send(Method::PUT, "/api/v1/admin/tenants/blue", body).await.json()["quotas"].clone()
    };
    let default = asking.get("/api/v1/admin/tenants/blue").await.json()["quotas"].clone();
    assert!(default["sessions"].is_u64() && default["watches"].is_u64(), "{default}");
    let one = json!({"resources": 2, "sessions": default["sessions"], "watches": default["watches"]});
    assert_eq!(put(r#"{"quotas": {"resources": 2}}"#).await, one);
    let two = json!({"resources": 2, "sessions": 3, "watches": default["watches"]});
    assert_eq!(put(r#"{"quotas": {"sessions": 3}}"#).await, two, "naming one does not clear the other");
    for nothing in ["", "{}", r#"{"quotas": {}}"#] {
        assert_eq!(put(nothing).await, two, "{nothing:?} names none");
    }
    let cleared = json!({"resources": null, "sessions": 3, "watches": default["watches"]});
    assert_eq!(put(r#"{"quotas": {"resources": null}}"#).await, cleared, "null takes the bound away");
}

#[tokio::test]
async fn rotating_and_expiring_a_key_at_once_loses_neither() {
    let asking = serve().await;
    let engine = asking.running.engine();
    let new = keys::NewKey::new(name("ci"), Role::Admin);
    let made = keys::create(engine, new).await.expect("a key");
    for n in 1..=20 {
        let (rotated, expires) = tokio::join!(
            keys::rotate(engine, &made.key.id, 0, None),
            keys::expire(engine, &made.key.id, Some(n * 1_000_000)),
        );
        let rotated = rotated.expect("rotated");
        let expires = expires.expect("it expires");
        let stored = keys::get(engine, &made.key.id).await.expect("the key");
        assert_eq!(stored.expires_at, expires.expires_at, "the expiry is kept");
        let now = stored.rotated_at.expect("it was rotated");
        assert_eq!(stored.check(rotated.text.expose_secret(), now), Ok(()), "the new text works");
    }
}

#[tokio::test]
async fn tokens_can_be_raised_and_never_lowered() {
    let asking = serve().await;
    let raised =
        async |above: u64| asking.send(Method::POST, RAISE, &json!({"above": above}).to_string()).await;
    assert_eq!(raised(1_000).await.json()["above"], 1_000);
    assert_eq!(raised(10).await.json()["above"], 1_000);
    raised(u64::MAX).await.problem("out_of_bounds");
}

async fn used() -> Asking {
    let asking = serve().await;
    for n in 0..3 {
        let declared = asking.send(Method::PUT, &format!("/api/v1/resources/job/{n}"), "{}").await;
        assert!(declared.status.is_success(), "{declared:?}");
    }
    asking.send(Method::POST, RAISE, r#"{"above": 5000}"#).await;
    asking
}

#[tokio::test]
async fn an_export_comes_in_again_with_its_tokens() {
    let asking = used().await;
    let other = serve().await;
    let retired = asking.send(Method::POST, "/api/v1/admin/retire", r#"{"to": "the other one"}"#).await;
    assert_eq!(retired.status, 204);
    let refused = asking.get("/api/v1/resources/job/1").await;
    assert!(refused.problem("unavailable")["detail"].to_string().contains("its data moved to the other one"));
    let export = asking.get("/api/v1/admin/export").await;
    assert_eq!(export.header("content-type"), "application/jsonl");
    assert!(export.text.lines().count() >= 5 && export.text.ends_with('\n'));
    let imported = other.send(Method::POST, "/api/v1/admin/import", &export.text).await.json();
    assert_eq!(imported["revision"], 5000);
    assert_eq!(imported["rows"], export.text.lines().count() as u64 - 2);
    assert_eq!(other.get("/api/v1/resources/job/1").await.status, 200);
    let again = other.send(Method::POST, "/api/v1/admin/import", &export.text).await;
    assert!(again.problem("conflict")["detail"].to_string().contains("not empty"));
}

#[tokio::test]
async fn an_import_that_is_not_whole_is_refused() {
    let asking = used().await;
    let other = serve().await;
    let export = asking.get("/api/v1/admin/export").await.text;
    let import = async |body: &str| other.send(Method::POST, "/api/v1/admin/import", body).await;
    let cut = export.rsplit_once("\n{").expect("lines").0;
    import(cut).await.problem("conflict");
    import("").await.problem("conflict");
    let bad = import(&format!("{}\nnonsense\n", export.lines().next().expect("a header"))).await;
    assert!(bad.problem("invalid_json")["detail"].to_string().contains("line 2"));
    let long = import(&"x".repeat(1024 * 1024 + 1)).await;
    assert_eq!(long.problem("payload_too_large")["limit"]["name"], "export_line_bytes");
    assert_eq!(import(&export).await.status, 200, "nothing was taken in before");
}
