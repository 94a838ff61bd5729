//! The things of a tenant, and every operation that the router describes as one that would harm them.

use std::collections::BTreeMap;

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use solehold_server::{Role, openapi_json};
use uuid::Uuid;

use super::{Asking, memory, orchestrator, serve_with};

/// One operation as it is described.
pub struct Operation {
    pub method: Method,
    pub path: String,
    pub id: String,
    /// What its key must allow; none, if it needs no key.
    pub role: Option<Role>,
    pub has_body: bool,
    /// Whether its query may name the tenant, which all keys may that are for no tenant.
    pub takes_tenant: bool,
    /// The surface that it belongs to.
    pub surface: String,
}

pub fn operations() -> Vec<Operation> {
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
                takes_tenant: takes_tenant(operation),
                surface: operation["tags"][0].as_str().expect("a tag").to_owned(),
            });
        }
    }
    assert!(all.len() > 80, "{} operations", all.len());
    all
}

impl Operation {
    /// The method and the path.
    pub fn label(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

fn takes_tenant(operation: &Value) -> bool {
    let mut parameters = operation["parameters"].as_array().into_iter().flatten();
    parameters.any(|parameter| parameter["name"] == "tenant" && parameter["in"] == "query")
}

/// What stands in the paths and the bodies of requests for the things of one tenant.
#[derive(Clone)]
pub struct Things {
    pub names: BTreeMap<&'static str, String>,
    pub session: String,
    pub lease: String,
    pub token: u64,
}

impl Things {
    /// The path of an operation, with the names of acme's things.
    pub fn path(&self, operation: &Operation) -> String {
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
    pub fn body(&self, operation: &Operation) -> String {
        let Self { session, lease, token, .. } = self;
        let [tenant, key, holder, runner, camera, zone] =
            ["tenant", "key", "holder", "runner_id", "camera_uuid", "zone_id"].map(|name| &self.names[name]);
        let item = json!({"lease_id": lease, "token": token});
        let ask =
            json!({"kind": "job", "key": key, "holder": holder, "session_id": session, "request_id": "r1"});
        let by_name = json!({"holder": holder});
        let body = match operation.id.as_str() {
            "import" => return "{}".to_owned(),
            "create_key" => json!({"name": "k", "role": "admin", "tenant": tenant}),
            "expire_key" => json!({"expires_in_seconds": 0}),
            "rotate_key" => json!({"grace_seconds": 0}),
            "raise_token" => json!({"above": 1_000}),
            "restored" => json!({}),
            "retire" => json!({"to": "elsewhere"}),
            "put_tenant" => json!({"quotas": {"resources": 0}}),
            "put_camera" | "create_camera" | "put_site_camera" => {
                json!({"camera_uuid": camera, "rtsp_url": "rtsp://stolen"})
            }
            "acquire_lease" => json!({"camera_uuid": camera, "runner_id": runner, "tenant_id": tenant}),
            "batch_acquire" => json!({"items": [ask]}),
            "batch_release" | "batch_renew" => json!({"items": [item]}),
            "heartbeat_lease" => json!({"stats": {"stolen": true}}),
            "release_lease" | "renew_lease" => json!({"token": token}),
            "revoke_lease" => json!({"fenced": true}),
            "acquire_lock" | "release_lock" | "renew_lock" => by_name,
            "put_resource" => json!({"site": "stolen"}),
            "report_failure" => json!({"runner_id": runner, "reason": "stolen"}),
            "put_quarantine" => json!({"reason": "stolen"}),
            "shift_deployment" => json!({"to": "stolen", "percent": 100}),
            "put_placement" => json!({"unplaced_kinds": ["stolen"]}),
            "acquire_resource" => json!({"holder": holder, "session_id": session, "request_id": "r1"}),
            "release_resource" | "renew_resource" => json!({"holder": holder, "token": token}),
            "revoke_resource" => json!({"token": token, "fenced": true}),
            "hand_over_resource" => json!({"to": runner}),
            "session_news" => json!({"sessions": [{"session_id": session, "revision": 0}]}),
            "cancel_request" => json!({"holder": holder, "request_id": "r1"}),
            "put_state" => json!({"token": token, "sequence": 9, "document": {"stolen": true}}),
            "register_runner" => json!({"runner_id": runner, "tenant_id": tenant}),
            "delete_runner" => json!({}),
            "heartbeat_runner" => json!({"metrics": {"stolen": true}}),
            "put_runner_status" => json!({"status": "draining"}),
            "put_scene" => json!({"name": "stolen"}),
            "acquire_scene" | "release_scene" | "renew_scene" => json!({"holder_id": holder}),
            "open_session" => json!({"holder": holder, "replace": session, "fenced": true}),
            "heartbeat_session" => json!({"metrics": {"stolen": true}}),
            "create_zone" | "put_zone" => zone_of(zone, 9),
            id => panic!("this test has no body for the operation {id}: give it one that would do harm"),
        };
        body.to_string()
    }

    /// The same things of a tenant that does not exist, under names and ids that do not exist either: `no-` before each
    /// name, but for kinds, which are words that everyone knows.
    pub fn absent(&self) -> Self {
        let session = Uuid::now_v7().to_string();
        let lease = Uuid::new_v4().to_string();
        let mut names: BTreeMap<_, _> =
            self.names.iter().map(|(name, value)| (*name, format!("no-{value}"))).collect();
        names.insert("kind", self.names["kind"].clone());
        names.insert("lease_id", lease.clone());
        names.insert("sessions.id", session.clone());
        Self { names, session, lease, token: self.token }
    }
}

/// The things of tenant acme, and the keys that try to get at them.
pub struct World {
    pub asking: Asking,
    /// Admin of all.
    pub root: Asking,
    /// By acme's key `one` all leases are held.
    pub one: Asking,
    /// Admin of acme.
    pub admin: Asking,
    pub things: Things,
}

/// What acme's things say of themselves.
pub const SECRET: &str = "secret-of-acme";
/// What its resources, leases and states say, which a key that is limited to others must not see either.
pub const SECRET_OF_RESOURCES: &str = "secret-of-acme-resources";

/// A zone with a corner that far away.
fn zone_of(id: &str, corner: u64) -> Value {
    json!({"zone_id": id, "name": SECRET_OF_RESOURCES, "polygon": [[0, 0], [1, 0], [corner, corner]]})
}

impl World {
    pub async fn new() -> Self {
        let asking = serve_with(orchestrator::configured().await, memory()).await;
        let root = asking.with_key(asking.make_key(Role::Admin, None).await.1);
        let (key, one) = issue(&root, "runner", Some("acme"), json!([])).await;
        let (_, admin) = issue(&root, "admin", Some("acme"), json!([])).await;
        for (method, path, body) in [
            (
                Method::PUT,
                "/api/v1/resources/job/nightly",
                json!({"attributes": {"note": SECRET_OF_RESOURCES}}),
            ),
            (Method::PUT, "/api/v1/scenes/s1", json!({"name": SECRET_OF_RESOURCES})),
            (
                Method::POST,
                "/api/v1/tenants/acme/sites/site-1/cameras",
                json!({"camera_uuid": "cam-c1", "rtsp_url": format!("rtsp://{SECRET_OF_RESOURCES}")}),
            ),
            (Method::POST, "/api/v1/tenants/acme/sites/site-1/zones", zone_of("z1", 1)),
        ] {
            let made = admin.send(method, path, &body.to_string()).await;
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
            "attributes": {"note": SECRET_OF_RESOURCES}});
        let job = ask("/api/v1/resources/job/nightly/lease", in_session).await;
        ask("/api/v1/scenes/s1/lease", json!({"holder_id": "w1", "ttl_seconds": 300})).await;
        ask("/api/v1/locks/l1", json!({"holder": "w1", "ttl_seconds": 300})).await;
        ask(
            "/api/v1/runners/register",
            json!({"runner_id": "w2", "session_ttl_seconds": 300, "host": SECRET}),
        )
        .await;
        let state = json!({"token": job["token"], "sequence": 1, "document": {"note": SECRET_OF_RESOURCES}})
            .to_string();
        let written = one.send(Method::PUT, "/api/v1/resources/job/nightly/state", &state).await;
        assert!(written.status.is_success(), "{written:?}");
        let camera = json!({"camera_uuid": "cam-c1", "runner_id": "w2", "ttl_seconds": 300});
        ask("/api/v1/leases/acquire", camera).await;
        let lease = job["lease_id"].as_str().expect("a lease").to_owned();
        let names = [
            ("tenant", "acme"),
            ("site", "site-1"),
            ("kind", "job"),
            ("key", "nightly"),
            ("name", "l1"),
            ("camera_uuid", "cam-c1"),
            ("zone_id", "z1"),
            ("holder", "w1"),
            ("runner_id", "w2"),
            ("lease_id", &lease),
            ("scenes.id", "s1"),
            ("runners.id", "w2"),
            ("sessions.id", &session),
            ("keys.id", &key),
            ("jobs.id", "video-17"),
        ];
        let names = names.map(|(name, value)| (name, value.to_owned())).into();
        let token = job["token"].as_u64().expect("a token");
        Self { asking, root, one, admin, things: Things { names, session, lease, token } }
    }

    /// Calls an operation on acme's things.
    pub async fn call(&self, who: &Asking, operation: &Operation, query: &str) -> (u16, String) {
        call(who, operation, &self.things, query).await
    }
}

/// Makes a key, which the server knows from then on; its id, and a client that shows it.
pub async fn issue(root: &Asking, role: &str, tenant: Option<&str>, only: Value) -> (String, Asking) {
    let ask = json!({"name": "test", "role": role, "tenant": tenant, "only": only}).to_string();
    let made = root.send(Method::POST, "/api/v1/admin/keys", &ask).await;
    assert_eq!(made.status, 201, "{made:?}");
    let made = made.json();
    let text = |field: &str| made[field].as_str().expect("text").to_owned();
    (text("id"), root.with_key(text("key")))
}

/// Calls an operation on these things; the status, and the body or, of a stream, its first piece.
pub async fn call(who: &Asking, operation: &Operation, things: &Things, query: &str) -> (u16, String) {
    let path = format!("{}{query}", things.path(operation));
    let mut request = who.request(operation.method.clone(), &path);
    if operation.has_body {
        request = request.header("content-type", "application/json").body(things.body(operation));
    }
    first_of(request).await
}

/// The status, and the body or, of a stream, its first piece.
pub async fn first_of(request: RequestBuilder) -> (u16, String) {
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
