//! Who may do what: every route that the router describes, with every role, by a foreign tenant and by a foreign key.

mod support;

use std::collections::BTreeMap;

use reqwest::Method;
use serde_json::{Value, json};
use solehold_core::call::ResourceScope;
use solehold_server::{Role, keys, openapi_json};
use support::{Asking, name, serve};

/// One operation as it is described.
struct Operation {
    method: Method,
    path: String,
    id: String,
    /// What its key must allow; none, if it needs no key.
    role: Option<Role>,
    has_body: bool,
}

fn operations() -> Vec<Operation> {
    let described: Value = serde_json::from_str(openapi_json()).expect("JSON");
    let mut all = Vec::new();
    for (path, item) in described["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("a path item") {
            let Ok(method) = method.to_uppercase().parse() else { continue };
            let Some(id) = operation["operationId"].as_str() else { continue };
            let role = operation["security"][0]["bearer"][0].as_str();
            all.push(Operation {
                method,
                path: path.clone(),
                id: id.to_owned(),
                role: role.map(|role| serde_json::from_value(json!(role)).expect("a role")),
                has_body: !operation["requestBody"].is_null(),
            });
        }
    }
    assert!(all.len() > 80, "{} operations", all.len());
    all
}

/// The things of tenant acme, and the keys that try to get at them.
struct World {
    asking: Asking,
    /// Admin of all.
    root: Asking,
    /// By acme's key `one` all leases are held.
    one: Asking,
    /// What stands in paths.
    names: BTreeMap<&'static str, String>,
    session: String,
    lease: String,
    token: u64,
}

/// What acme's things say of themselves.
const SECRET: &str = "secret-of-acme";
const ZONE: &str = r#"{"zone_id": "z1", "polygon": [[0, 0], [1, 0], [1, 1]]}"#;

impl World {
    async fn new() -> Self {
        let asking = serve().await;
        let root = asking.with_key(asking.make_key(Role::Admin, None).await.1);
        let (key, text) = asking.make_key(Role::Runner, Some("acme")).await;
        let one = asking.with_key(text);
        let admin = asking.with_key(asking.make_key(Role::Admin, Some("acme")).await.1);
        let site = "/api/v1/tenants/acme/sites/site-1";
        for (method, path, body) in [
            (
                Method::PUT,
                "/api/v1/resources/job/nightly".to_owned(),
                json!({"attributes": {"note": SECRET}}).to_string(),
            ),
            (Method::PUT, "/api/v1/scenes/s1".to_owned(), json!({"name": SECRET}).to_string()),
            (
                Method::POST,
                format!("{site}/cameras"),
                json!({"camera_uuid": "cam-c1", "rtsp_url": format!("rtsp://{SECRET}")}).to_string(),
            ),
            (Method::POST, format!("{site}/zones"), ZONE.to_owned()),
        ] {
            let made = admin.send(method, &path, &body).await;
            assert!(made.status.is_success(), "{path}: {made:?}");
        }
        let ask = async |path: &str, body: Value| {
            let answer = one.send(Method::POST, path, &body.to_string()).await;
            assert!(answer.status.is_success(), "{path}: {answer:?}");
            answer.json()
        };
        let session =
            ask("/api/v1/sessions", json!({"holder": "w1", "ttl_seconds": 300, "metrics": {"note": SECRET}}))
                .await;
        let session = session["session_id"].as_str().expect("a session").to_owned();
        let in_session = json!({"holder": "w1", "session_id": session, "request_id": "r1",
            "attributes": {"note": SECRET}});
        let job = ask("/api/v1/resources/job/nightly/lease", in_session).await;
        ask("/api/v1/scenes/s1/lease", json!({"holder_id": "w1", "ttl_seconds": 300})).await;
        ask("/api/v1/locks/l1", json!({"holder": "w1", "ttl_seconds": 300})).await;
        ask(
            "/api/v1/runners/register",
            json!({"runner_id": "w2", "session_ttl_seconds": 300, "host": SECRET}),
        )
        .await;
        let camera = json!({"camera_uuid": "cam-c1", "runner_id": "w2", "ttl_seconds": 300});
        ask("/api/v1/leases/acquire", camera).await;
        let lease = job["lease_id"].as_str().expect("a lease").to_owned();
        let names = [
            ("kind", "job"),
            ("key", "nightly"),
            ("name", "l1"),
            ("camera_uuid", "cam-c1"),
            ("tenant", "acme"),
            ("site", "site-1"),
            ("zone_id", "z1"),
            ("runner_id", "w2"),
            ("lease_id", &lease),
            ("scenes.id", "s1"),
            ("runners.id", "w2"),
            ("sessions.id", &session),
            ("keys.id", key.id.as_str()),
            ("jobs.id", "video-17"),
        ];
        let names = names.map(|(name, value)| (name, value.to_owned())).into();
        let token = job["token"].as_u64().expect("a token");
        Self { asking, root, one, names, session, lease, token }
    }

    /// The path of an operation, with the names of acme's things.
    fn path(&self, operation: &Operation) -> String {
        let parts: Vec<_> = operation.path.split('/').collect();
        let filled = parts.iter().enumerate().map(|(at, part)| {
            let Some(name) = part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) else {
                return (*part).to_owned();
            };
            let qualified = format!("{}.{name}", parts[at - 1]);
            let value = self.names.get(name).or_else(|| self.names.get(qualified.as_str()));
            value
                .unwrap_or_else(|| panic!("this test has no {qualified} for {}: give it one", operation.id))
                .clone()
        });
        filled.collect::<Vec<_>>().join("/")
    }

    /// A body with which the operation would harm acme's things, if it were allowed.
    fn body(&self, operation: &Operation) -> String {
        let session = &self.session;
        let lease = &self.lease;
        let token = self.token;
        let item =
            json!({"kind": "job", "key": "nightly", "holder": "w1", "lease_id": lease, "token": token});
        let ask = json!({"kind": "job", "key": "nightly", "holder": "w1", "session_id": session, "request_id": "r1"});
        let by_name = json!({"holder": "w1"});
        let body = match operation.id.as_str() {
            "import" => return "{}".to_owned(),
            "create_key" => json!({"name": "k", "role": "admin", "tenant": "acme"}),
            "expire_key" => json!({"expires_in_seconds": 0}),
            "rotate_key" => json!({"grace_seconds": 0}),
            "raise_token" => json!({"above": 1_000}),
            "restored" => json!({}),
            "retire" => json!({"to": "elsewhere"}),
            "put_tenant" => json!({"quotas": {"resources": 0}}),
            "put_camera" | "create_camera" | "put_site_camera" => {
                json!({"camera_uuid": "cam-c1", "rtsp_url": "rtsp://stolen"})
            }
            "acquire_lease" => json!({"camera_uuid": "cam-c1", "runner_id": "w2", "tenant_id": "acme"}),
            "batch_acquire" => json!({"items": [ask]}),
            "batch_release" | "batch_renew" => json!({"items": [item]}),
            "heartbeat_lease" => json!({"stats": {"stolen": true}}),
            "release_lease" | "renew_lease" => json!({"token": token}),
            "revoke_lease" => json!({"fenced": true}),
            "acquire_lock" | "release_lock" | "renew_lock" => by_name,
            "put_resource" => json!({"site": "stolen"}),
            "report_failure" => json!({"runner_id": "w2", "reason": "stolen"}),
            "put_quarantine" => json!({"reason": "stolen"}),
            "shift_deployment" => json!({"to": "stolen", "percent": 100}),
            "put_placement" => json!({"unplaced_kinds": ["stolen"]}),
            "acquire_resource" => json!({"holder": "w1", "session_id": session, "request_id": "r1"}),
            "release_resource" | "renew_resource" => json!({"holder": "w1", "token": token}),
            "revoke_resource" => json!({"token": token, "fenced": true}),
            "hand_over_resource" => json!({"session_id": session}),
            "session_news" => json!({"sessions": [{"session_id": session, "revision": 0}]}),
            "cancel_request" => json!({"holder": "w1", "request_id": "r1"}),
            "put_state" => json!({"token": token, "sequence": 9, "document": {"stolen": true}}),
            "register_runner" => json!({"runner_id": "w2", "tenant_id": "acme"}),
            "delete_runner" => json!({}),
            "heartbeat_runner" => json!({"metrics": {"stolen": true}}),
            "put_runner_status" => json!({"status": "draining"}),
            "put_scene" => json!({"name": "stolen"}),
            "acquire_scene" | "release_scene" | "renew_scene" => json!({"holder_id": "w1"}),
            "open_session" => json!({"holder": "w1", "replace": session, "fenced": true}),
            "heartbeat_session" => json!({"metrics": {"stolen": true}}),
            "create_zone" | "put_zone" => return ZONE.replace("[1, 1]", "[9, 9]"),
            id => panic!("this test has no body for the operation {id}: give it one that would do harm"),
        };
        body.to_string()
    }

    /// All that acme has, as the root sees it: what nobody else may change.
    async fn everything(&self) -> String {
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
            &format!("/api/v1/sessions/{}?tenant=acme", self.session),
        ] {
            all += &without_time(&self.root.get(path).await.text);
            all.push('\n');
        }
        assert!(all.contains("nightly") && all.contains("\"w1\"") && !all.contains("stolen"), "{all}");
        all
    }

    async fn call(&self, who: &Asking, operation: &Operation, query: &str) -> (u16, String) {
        let path = format!("{}{query}", self.path(operation));
        let mut request = who.request(operation.method.clone(), &path);
        if operation.has_body {
            request = request.header("content-type", "application/json").body(self.body(operation));
        }
        first_of(request).await
    }
}

/// The status, and the body or, of a stream, its first piece.
async fn first_of(request: reqwest::RequestBuilder) -> (u16, String) {
    let mut response = request.send().await.expect("an answer");
    let status = response.status().as_u16();
    let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok());
    let is_stream = kind.is_some_and(|kind| kind.contains("event-stream"));
    let text = if is_stream {
        String::from_utf8_lossy(&response.chunk().await.expect("a frame").unwrap_or_default()).into_owned()
    } else {
        response.text().await.expect("a body")
    };
    (status, text)
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
            let request = who.request(operation.method.clone(), &world.path(&operation));
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
    let before = world.everything().await;
    let (_, text) = world.asking.make_key(Role::Admin, Some("other")).await;
    let stranger = world.asking.with_key(text);
    for operation in operations().iter().filter(|operation| operation.role.is_some()) {
        for query in ["", "?tenant=acme"] {
            let (status, text) = world.call(&stranger, operation, query).await;
            assert!(status < 500, "{}: {status} {text}", operation.id);
            assert!(!text.contains(SECRET), "{}: {text}", operation.id);
        }
        assert_eq!(world.everything().await, before, "{}", operation.id);
    }
}

#[tokio::test]
async fn a_foreign_key_ends_nothing() {
    let world = World::new().await;
    let before = world.everything().await;
    let (_, text) = world.asking.make_key(Role::Runner, Some("acme")).await;
    // One more key of acme's.
    let before_keys = world.everything().await;
    assert_ne!(before, before_keys);
    let two = world.asking.with_key(text);
    for operation in operations().iter().filter(|operation| operation.role == Some(Role::Runner)) {
        let (status, text) = world.call(&two, operation, "").await;
        assert!(status < 500, "{}: {status} {text}", operation.id);
        assert_eq!(world.everything().await, before_keys, "{}: {status} {text}", operation.id);
    }
    // Its own key may, and an admin for all.
    let heartbeat = format!("/api/v1/sessions/{}/heartbeat", world.session);
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
        by.contains(&id("admin", &Value::Null)) && by.contains(&json!(world.names["keys.id"])),
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
    let former = json!({"status": "draining", "session_id": world.session});
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
        let lease = format!("/api/v1/leases/{}", world.lease);
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
