//! Keys: who is let in, as what, and for how long.

mod support;

use futures_util::future::join_all;
use reqwest::Method;
use secrecy::ExposeSecret;
use solehold_server::{Role, ServerConfig, keys};
use solehold_testkit::wait_for;
use support::{Answer, Asking, PATIENCE, config, flaky::Flaky, memory, name, serve, serve_with};
use tokio::time::Instant;

const KEYS: &str = "/api/v1/admin/keys";

/// A server with a key for everything; the client shows it.
async fn with_admin() -> Asking {
    let asking = serve().await;
    let (_, text) = asking.make_key(Role::Admin, None).await;
    asking.with_key(text)
}

#[tokio::test]
async fn without_keys_everyone_on_loopback_is_an_administrator_and_then_nobody() {
    let asking = serve().await;
    assert_eq!(asking.get(KEYS).await.status, 200);
    let made = asking.send(Method::POST, KEYS, r#"{"name": "first", "role": "admin"}"#).await;
    assert_eq!(made.status, 201, "{made:?}");
    let refused = asking.get(KEYS).await;
    refused.problem("unauthorized");
    assert_eq!(refused.header("www-authenticate"), "Bearer realm=\"solehold\"");
    asking.get("/api/v1/nowhere").await.problem("unauthorized");
    for public in ["/healthz", "/readyz", "/metrics", "/api/v1/openapi.json"] {
        assert_eq!(asking.get(public).await.status, 200, "{public}");
    }
    let key = made.json()["key"].as_str().expect("a key").to_owned();
    assert!(key.starts_with("shk_") && key.len() > 64, "{key}");
    assert_eq!(asking.with_key(&key).get(KEYS).await.status, 200);
}

#[tokio::test]
async fn a_key_is_shown_in_three_ways_and_a_wrong_one_in_none() {
    let asking = with_admin().await;
    let key = asking.key.clone().expect("a key");
    let stranger = Asking { key: None, ..asking };
    let shown = async |header: &str, value: String| {
        Answer::of(stranger.request(Method::GET, KEYS).header(header, value)).await
    };
    for scheme in ["Bearer", "Token", "bearer", "TOKEN"] {
        assert_eq!(shown("authorization", format!("{scheme} {key}")).await.status, 200, "{scheme}");
    }
    assert_eq!(shown("x-api-key", key.clone()).await.status, 200);
    let mut wrong = key.clone();
    wrong.replace_range(key.len() - 1.., if key.ends_with('0') { "1" } else { "0" });
    for odd in
        [wrong, key[..key.len() - 1].to_owned(), format!("{key}0"), "shk_".into(), "shk__".into(), "x".into()]
    {
        shown("x-api-key", odd.clone()).await.problem("unauthorized");
        shown("authorization", format!("Bearer {odd}")).await.problem("unauthorized");
    }
    shown("authorization", format!("Basic {key}")).await.problem("unauthorized");
}

#[tokio::test]
async fn a_key_that_was_just_made_elsewhere_works_at_once() {
    let asking = with_admin().await;
    for _ in 0..3 {
        let (_, text) = asking.make_key(Role::Admin, None).await;
        assert_eq!(asking.with_key(text).get(KEYS).await.status, 200);
    }
}

#[tokio::test]
async fn garbage_does_not_hammer_the_store() {
    let store = Flaky::over(memory());
    let asking = serve_with(config(), store.clone()).await;
    asking.make_key(Role::Admin, None).await;
    let began = Instant::now();
    let before = store.reads();
    let garbage = (0..200).map(|n| {
        let asking = asking.with_key(format!("shk_{n:016x}_{n:064x}"));
        async move { asking.get(KEYS).await.problem("unauthorized") }
    });
    join_all(garbage).await;
    // Three collections a read; five reads a second for strangers and one for the clock on the wall.
    let most = 3 * (4 + 6 * began.elapsed().as_millis() as usize / 1_000 + 6);
    assert!(store.reads() - before <= most, "{} reads, of {most}", store.reads() - before);
}

#[tokio::test]
async fn roles_allow_what_they_say() {
    let asking = with_admin().await;
    let (_, reader) = asking.make_key(Role::Reader, None).await;
    let (_, runner) = asking.make_key(Role::Runner, None).await;
    for key in [reader, runner] {
        let limited = asking.with_key(key);
        limited.get(KEYS).await.problem("forbidden");
        limited.send(Method::POST, KEYS, r#"{"name": "x", "role": "admin"}"#).await.problem("forbidden");
        limited.get("/api/v1/admin/export").await.problem("forbidden");
        limited.send(Method::POST, "/api/v1/admin/raise-token", r#"{"above": 1}"#).await.problem("forbidden");
    }
}

#[tokio::test]
async fn a_key_for_one_tenant_knows_nothing_of_another() {
    let asking = with_admin().await;
    let (_, text) = asking.make_key(Role::Admin, Some("blue")).await;
    let (red, _) = asking.make_key(Role::Reader, Some("red")).await;
    let (global, _) = asking.make_key(Role::Reader, None).await;
    let blue = asking.with_key(text);

    let keys = blue.get(KEYS).await.json();
    let tenants: Vec<_> = keys["keys"].as_array().expect("a list").iter().map(|key| &key["tenant"]).collect();
    assert_eq!(tenants, ["blue"]);
    for id in [&red.id, &global.id] {
        let path = format!("{KEYS}/{id}");
        blue.get(&path).await.problem("not_found");
        blue.send(Method::DELETE, &path, "").await.problem("not_found");
        blue.send(Method::PUT, &path, "{}").await.problem("not_found");
        blue.send(Method::POST, &format!("{path}/rotate"), "").await.problem("not_found");
        assert_eq!(asking.get(&path).await.status, 200);
    }
    blue.get(&format!("{KEYS}?tenant=red")).await.problem("not_found");
    blue.get("/api/v1/admin/tenants/red").await.problem("not_found");
    blue.get("/api/v1/watch?tenant=red").await.problem("not_found");
    assert_eq!(blue.get("/api/v1/admin/tenants").await.json()["tenants"][0]["tenant"], "blue");
    let elsewhere = r#"{"name": "x", "role": "admin", "tenant": "red"}"#;
    blue.send(Method::POST, KEYS, elsewhere).await.problem("not_found");
    let own = blue.send(Method::POST, KEYS, r#"{"name": "x", "role": "admin"}"#).await.json();
    assert_eq!(own["tenant"], "blue", "a scoped key makes scoped keys only");
    for (method, path) in [(Method::GET, "export"), (Method::POST, "import"), (Method::POST, "raise-token")] {
        blue.send(method, &format!("/api/v1/admin/{path}"), r#"{"above": 1}"#).await.problem("forbidden");
    }
    let raise = blue.send(Method::PUT, "/api/v1/admin/tenants/blue", "{}").await;
    raise.problem("forbidden");
}

#[tokio::test]
async fn a_rotated_key_changes_its_text_and_the_old_one_runs_out() {
    let asking = with_admin().await;
    let (key, old) = asking.make_key(Role::Admin, None).await;
    let rotate = format!("{KEYS}/{}/rotate", key.id);
    let rotated = asking.send(Method::POST, &rotate, r#"{"grace_seconds": 600}"#).await.json();
    let new = rotated["key"].as_str().expect("a key").to_owned();
    assert!(rotated["rotated_at"].is_string() && rotated["grace_until"].is_string(), "{rotated}");
    for text in [&old, &new] {
        assert_eq!(asking.with_key(text).get(KEYS).await.status, 200);
    }
    let again = asking.send(Method::POST, &rotate, r#"{"grace_seconds": 0}"#).await.json();
    let newest = again["key"].as_str().expect("a key");
    for text in [&old, &new] {
        asking.with_key(text).get(KEYS).await.problem("unauthorized");
    }
    assert_eq!(asking.with_key(newest).get(KEYS).await.status, 200);
}

#[tokio::test]
async fn expired_and_revoked_keys_open_nothing() {
    let asking = with_admin().await;
    let (key, text) = asking.make_key(Role::Admin, None).await;
    let path = format!("{KEYS}/{}", key.id);
    let theirs = asking.with_key(text);
    assert_eq!(theirs.get(KEYS).await.status, 200);
    asking.send(Method::PUT, &path, r#"{"expires_in_seconds": 0}"#).await.json();
    let refused = theirs.get(KEYS).await;
    assert!(refused.problem("unauthorized")["detail"].to_string().contains("expired"));
    asking.send(Method::PUT, &path, r#"{"expires_in_seconds": 1000}"#).await.json();
    assert_eq!(theirs.get(KEYS).await.status, 200);
    assert_eq!(asking.send(Method::DELETE, &path, "").await.status, 204);
    let refused = theirs.get(KEYS).await;
    assert!(refused.problem("unauthorized")["detail"].to_string().contains("revoked"));
    asking.get(&path).await.problem("not_found");
    asking.send(Method::PUT, &path, "{}").await.problem("not_found");
}

#[tokio::test]
async fn a_rotation_at_the_same_moment_does_not_undo_a_revocation() {
    let asking = serve().await;
    let (key, _) = asking.make_key(Role::Admin, None).await;
    let engine = asking.running.engine();
    let (rotated, revoked) =
        tokio::join!(keys::rotate(engine, &key.id, 0, None), keys::revoke(engine, &key.id));
    revoked.expect("revoked");
    let now = keys::get(engine, &key.id).await.expect("a key");
    assert!(now.revoked_at.is_some());
    if let Ok(issued) = rotated {
        let fault = now.check(issued.text.expose_secret(), now.created_at).expect_err("revoked");
        assert_eq!(fault, keys::KeyFault::Revoked);
    }
    keys::revoke(engine, &key.id).await.expect("once more changes nothing");
    assert!(keys::rotate(engine, &key.id, 0, None).await.is_err());
    assert!(keys::get(engine, &name("nobody")).await.is_err());
}

#[tokio::test]
async fn each_key_has_its_own_rate_limit() {
    let mut config = config();
    (config.limits.requests_per_second, config.limits.requests_burst) = (1, 20);
    let asking = serve_with(config, memory()).await;
    let (_, first) = asking.make_key(Role::Admin, None).await;
    let (_, second) = asking.make_key(Role::Admin, None).await;
    let exhausted = async || asking.with_key(&first).get(KEYS).await.status == 429;
    wait_for("the first key to have asked too often", PATIENCE, exhausted).await.expect("429");
    assert_eq!(asking.with_key(&second).get(KEYS).await.status, 200);
}

#[tokio::test]
async fn the_bootstrap_key_is_stored_once() {
    let secret = "bootstrap-0123456789-0123456789-0123456789";
    let store = memory();
    let asking = serve_with(ServerConfig { bootstrap_key: Some(secret.into()), ..config() }, store).await;
    let known = asking.with_key(secret);
    assert_eq!(known.get(KEYS).await.json()["keys"].as_array().map(Vec::len), Some(1));
    let again =
        keys::bootstrap(asking.running.engine(), &"another-secret-that-comes-much-too-late".into()).await;
    assert!(!again.expect("nothing to do"));
    let short = serve_with_error(ServerConfig { bootstrap_key: Some("short".into()), ..config() }).await;
    assert!(short.contains("32"), "{short}");
}

async fn serve_with_error(config: ServerConfig) -> String {
    solehold_server::Server::start(config, memory()).await.expect_err("a refusal").to_string()
}

#[tokio::test]
async fn no_secret_is_stored_or_printed() {
    let asking = serve().await;
    let (key, text) = asking.make_key(Role::Admin, None).await;
    let secret = text.rsplit('_').next().expect("a secret");
    let rows =
        format!("{:?}", asking.running.engine().export().expect("a store").collect().await.expect("rows"));
    assert!(rows.contains(key.id.as_str()) && !rows.contains(secret));
    assert!(!format!("{key:?} {:?}", keys::list(asking.running.engine()).await).contains(secret));
}

/// The published client of the camera pipeline always sends a default token, and was refused everywhere.
#[tokio::test]
async fn a_server_without_keys_ignores_one_that_is_shown() {
    let asking = serve().await;
    for text in ["dev-token", "shk_no_such"] {
        let odd = asking.with_key(text);
        for path in ["/api/v1/resources", "/api/v1/openapi.json", "/metrics", KEYS] {
            assert_eq!(odd.get(path).await.status, 200, "{text} {path}");
        }
        let from_elsewhere = odd.request(Method::GET, KEYS).header("origin", "http://evil.example");
        Answer::of(from_elsewhere).await.problem("forbidden");
    }
    // Made on the store, as by another replica: from then on keys count.
    let (_, text) = asking.make_key(Role::Admin, None).await;
    assert_eq!(asking.with_key(text).get(KEYS).await.status, 200);
    asking.with_key("dev-token").get(KEYS).await.problem("unauthorized");
}

#[tokio::test]
async fn a_wrong_key_is_refused_even_where_none_is_needed() {
    let wrong = with_admin().await.with_key("shk_no_such");
    wrong.get("/api/v1/resources").await.problem("unauthorized");
    wrong.get("/api/v1/openapi.json").await.problem("unauthorized");
    wrong.get("/metrics").await.problem("unauthorized");
    // A probe with a key that has expired must not make a healthy server look ill.
    assert_eq!(wrong.get("/healthz").await.status, 200);
    assert_eq!(wrong.get("/readyz").await.status, 200);
}

#[tokio::test]
async fn metrics_can_be_configured_to_need_a_key() {
    let asking = serve_with(ServerConfig { guard_metrics: true, ..config() }, memory()).await;
    let (_, reader) = asking.make_key(Role::Reader, None).await;
    let (_, of_tenant) = asking.make_key(Role::Reader, Some("acme")).await;
    asking.get("/metrics").await.problem("unauthorized");
    asking.with_key(of_tenant).get("/metrics").await.problem("forbidden");
    let shown = asking.with_key(reader).get("/metrics").await;
    assert!(shown.status == 200 && shown.text.contains("solehold_"), "{shown:?}");
}
