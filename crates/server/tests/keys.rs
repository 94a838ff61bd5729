//! Who may do what: every route that the router describes, with every role, by a foreign tenant and by a foreign key.

mod support;

use reqwest::Method;
use serde_json::{Value, json};
use solehold_core::call::ResourceScope;
use solehold_server::{Role, keys};
use support::{
    Asking, name,
    world::{SECRET, World, first_of, issue, operations},
};

/// All that acme has, as the root sees it: what nobody else may change.
async fn everything(world: &World) -> String {
    let mut all = String::new();
    for path in [
        "/api/v1/resources?tenant=acme",
        "/api/v1/runners?tenant=acme",
        "/api/v1/scenes?tenant=acme",
        "/api/v1/admin/keys?tenant=acme",
        "/api/v1/admin/tenants/acme",
        "/api/v1/admin/audit?tenant=acme",
        "/api/v1/tenants/acme/sites/site-1/cameras",
        "/api/v1/tenants/acme/sites/site-1/zones",
        "/api/v1/resources/job/nightly/state?tenant=acme",
        "/api/v1/resources/job/nightly/history?tenant=acme",
        "/api/v1/placement?tenant=acme",
        "/api/v1/deployments?tenant=acme",
        &format!("/api/v1/sessions/{}?tenant=acme", world.things.session),
    ] {
        all += &without_time(&world.root.get(path).await.text);
        all.push('\n');
    }
    assert!(all.contains("nightly") && all.contains("\"w1\"") && !all.contains("stolen"), "{all}");
    all
}

/// What changes by itself, or with what anyone does.
const MOVING: [&str; 7] = ["ttl_left_ms", "left_ms", "ttl_ms", "now", "usage", "sealed_cursor", "request_id"];

/// Without the fields that change by themselves.
fn without_time(text: &str) -> String {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.retain(|name, _| !MOVING.contains(&name.as_str()) && !name.ends_with("_seconds"));
                fields.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let mut value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    strip(&mut value);
    value.to_string()
}

/// Below the role that is needed the answer is 403, and the body is not even looked at.
#[tokio::test]
async fn every_route_checks_the_role_before_it_reads_the_body() {
    let world = World::new().await;
    let roles = [Role::Reader, Role::Runner, Role::Admin];
    let mut by_role = Vec::new();
    for role in roles {
        by_role.push((role, world.asking.with_key(world.asking.make_key(role, Some("acme")).await.1)));
    }
    for operation in operations() {
        let ask = async |who: &Asking| {
            let request = who.request(operation.method.clone(), &world.things.path(&operation));
            let request = request.header("content-type", "application/json").body("{ this is not JSON");
            first_of(request).await
        };
        let wrong = ask(&world.asking.with_key("shk_no_such")).await;
        let is_probe = ["health", "health_check", "ready"].contains(&operation.id.as_str());
        assert_eq!(wrong.0, if is_probe { 200 } else { 401 }, "a wrong key at {}: {}", operation.id, wrong.1);
        let stranger = ask(&world.asking).await;
        let Some(needed) = operation.role else {
            assert!(stranger.0 < 300, "{}: {stranger:?}", operation.id);
            continue;
        };
        assert_eq!(stranger.0, 401, "no key at {}: {}", operation.id, stranger.1);
        for (role, who) in by_role.iter().filter(|(role, _)| *role < needed) {
            let refused = ask(who).await;
            assert_eq!(refused.0, 403, "{role:?} at {}: {}", operation.id, refused.1);
        }
    }
}

#[tokio::test]
async fn a_foreign_tenant_sees_and_changes_nothing() {
    let world = World::new().await;
    let before = everything(&world).await;
    let (_, text) = world.asking.make_key(Role::Admin, Some("other")).await;
    let stranger = world.asking.with_key(text);
    for operation in operations().iter().filter(|operation| operation.role.is_some()) {
        for query in ["", "?tenant=acme"] {
            let (status, text) = world.call(&stranger, operation, query).await;
            assert!(status < 500, "{}: {status} {text}", operation.id);
            assert!(!text.contains(SECRET), "{}: {text}", operation.id);
        }
        assert_eq!(everything(&world).await, before, "{}", operation.id);
    }
}

#[tokio::test]
async fn a_foreign_key_ends_nothing() {
    let world = World::new().await;
    let before = everything(&world).await;
    let (_, text) = world.asking.make_key(Role::Runner, Some("acme")).await;
    // One more key of acme's.
    let before_keys = everything(&world).await;
    assert_ne!(before, before_keys);
    let two = world.asking.with_key(text);
    for operation in operations().iter().filter(|operation| operation.role == Some(Role::Runner)) {
        let (status, text) = world.call(&two, operation, "").await;
        assert!(status < 500, "{}: {status} {text}", operation.id);
        assert_eq!(everything(&world).await, before_keys, "{}: {status} {text}", operation.id);
    }
    // Its own key may, and an admin for all.
    let heartbeat = format!("/api/v1/sessions/{}/heartbeat", world.things.session);
    assert_eq!(two.send(Method::PUT, &heartbeat, "{}").await.problem("forbidden")["status"], 403);
    assert_eq!(world.one.send(Method::PUT, &heartbeat, "{}").await.status, 200);
    drains_itself_only(&world, &two).await;
    let release = json!({"holder": "w1"}).to_string();
    let released = world.root.send(Method::DELETE, "/api/v1/locks/l1?tenant=acme", &release).await;
    assert!(released.status.is_success(), "{released:?}");
    let history = world.root.get("/api/v1/resources/lock/l1/history?tenant=acme").await.json();
    let by: Vec<_> = history["events"].as_array().expect("events").iter().map(|e| e["by"].clone()).collect();
    let keys = world.root.get("/api/v1/admin/keys").await.json();
    let id = |role: &str, tenant: &Value| {
        let keys = keys["keys"].as_array().expect("keys");
        keys.iter().find(|key| key["role"] == role && key["tenant"] == *tenant).expect("the key")["id"]
            .clone()
    };
    assert_eq!(by.len(), 2, "{history}");
    assert!(
        by.contains(&id("admin", &Value::Null)) && by.contains(&json!(world.things.names["keys.id"])),
        "{history}"
    );
}

/// A runner may say of itself that it drains, by its key; anything else is for admins.
async fn drains_itself_only(world: &World, foreign: &Asking) {
    let path = "/api/v1/runners/w2/status";
    let put = async |who: &Asking, body: Value| who.send(Method::PUT, path, &body.to_string()).await;
    let draining = json!({"status": "draining"});
    put(foreign, draining.clone()).await.problem("forbidden");
    for status in ["active", "maintenance"] {
        put(&world.one, json!({"status": status})).await.problem("forbidden");
    }
    let former = json!({"status": "draining", "session_id": world.things.session});
    assert_eq!(put(&world.one, former).await.problem("session_superseded")["status"], 404, "another session");
    let session = world.one.get("/api/v1/runners/w2").await.json()["session_id"].clone();
    let own = json!({"status": "draining", "session_id": session});
    assert_eq!(put(&world.one, own.clone()).await.json()["status"], "draining");
    let under = put(&world.root, json!({"status": "maintenance"})).await;
    assert_eq!(under.json()["status"], "maintenance", "an operator's word");
    for body in [draining, own] {
        assert_eq!(
            put(&world.one, body).await.json()["status"],
            "maintenance",
            "which the runner does not end"
        );
    }
}

#[tokio::test]
async fn a_limited_key_sees_and_touches_only_its_resources() {
    let world = World::new().await;
    let limited = async |role| {
        let scopes = vec![ResourceScope { kind: name("lock"), key_prefix: "nightly-".to_owned() }];
        let new =
            keys::NewKey { tenant: Some(name("acme")), scopes, ..keys::NewKey::new(name("limited"), role) };
        let issued = keys::create(world.asking.running.engine(), new).await.expect("a key");
        world.asking.with_key(secrecy::ExposeSecret::expose_secret(&issued.text))
    };
    let runner = limited(Role::Runner).await;
    let reader = limited(Role::Reader).await;
    let ask = json!({"holder": "w3"}).to_string();
    assert_eq!(runner.send(Method::POST, "/api/v1/locks/nightly-1", &ask).await.status, 201);
    let refused = runner.send(Method::POST, "/api/v1/locks/weekly", &ask).await.problem("forbidden");
    assert!(refused["detail"].as_str().expect("text").contains("lock/weekly"), "{refused}");
    for who in [&runner, &reader] {
        for path in [
            "/api/v1/resources",
            "/api/v1/resources/lock",
            "/api/v1/leases",
            "/api/v1/scenes",
            "/api/v1/leases/runner/w1",
            "/api/v1/cameras",
            "/api/v1/cameras/available",
            "/api/v1/tenants/acme/sites/site-1/cameras",
        ] {
            let list = who.get(path).await;
            assert_eq!(list.status, 200, "{path}: {list:?}");
            for hidden in ["\"nightly\"", "\"l1\"", "\"s1\"", "\"cam-c1\""] {
                assert!(!list.text.contains(hidden), "{path} shows {hidden}: {}", list.text);
            }
        }
        assert!(who.get("/api/v1/resources/lock").await.text.contains("nightly-1"));
        let lease = format!("/api/v1/leases/{}", world.things.lease);
        for path in [
            "/api/v1/resources/job/nightly",
            "/api/v1/resources/job/nightly/lease",
            "/api/v1/resources/job/nightly/state",
            "/api/v1/resources/job/nightly/history",
            "/api/v1/locks/l1",
            "/api/v1/scenes/s1/lease",
            "/api/v1/cameras/cam-c1",
            "/api/v1/leases/camera/cam-c1",
            &lease,
            &format!("{lease}/history"),
        ] {
            let one = who.get(path).await;
            let shown = ["w1", "w2"].iter().any(|holder| one.text.contains(holder));
            assert!(!shown && !one.text.contains("\"revision\""), "{path}: {one:?}");
        }
        let (_, snapshot) = first_of(who.request(Method::GET, "/api/v1/watch")).await;
        assert!(snapshot.contains("nightly-1") && !snapshot.contains("\"l1\""), "{snapshot}");
    }
    let admin = json!({"name": "x", "role": "admin", "only": [{"kind": "lock"}]}).to_string();
    let wrong = world.root.send(Method::POST, "/api/v1/admin/keys", &admin).await.problem("invalid_field");
    assert_eq!(wrong["errors"][0]["field"], "only");
}

/// A session of another key showed all its leases, with their tokens, to a key that is for other resources.
#[tokio::test]
async fn a_limited_key_sees_only_its_resources_of_a_session() {
    let world = World::new().await;
    let path = format!("/api/v1/sessions/{}", world.things.session);
    for (key_prefix, count) in [("weekly", 0), ("night", 1)] {
        let only = json!([{"kind": "job", "key_prefix": key_prefix}]);
        let (_, limited) = issue(&world.root, "reader", Some("acme"), only).await;
        let session = limited.get(&path).await.json();
        assert_eq!(session["leases"].as_array().map(Vec::len), Some(count), "{session}");
    }
}
