//! A server of its own for each test, over a store in memory whose clock stands still unless the test moves it.

use std::sync::Arc;

use reqwest::{Client, Method, Response};
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use solehold_core::{call::ResourceScope, key::Name};
use solehold_engine::{clock::ManualClock, resident};
use solehold_server::{
    Role, Running, Server, ServerConfig, ServerLimits,
    keys::{self, NewKey},
};

/// A server, and someone who asks it.
#[derive(Clone)]
pub struct Api {
    server: Arc<Running>,
    http: Client,
    ticks: Arc<ManualClock>,
    key: Option<String>,
}

/// What was answered.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Value,
    pub link: Option<String>,
    pub retry_after: Option<String>,
    pub content_type: String,
}

impl Answer {
    async fn of(response: Response) -> Self {
        let header = |name| response.headers().get(name).map(|v| v.to_str().expect("text").to_owned());
        let link = header("link");
        let retry_after = header("retry-after");
        let content_type = header("content-type").unwrap_or_default();
        let status = response.status().as_u16();
        let text = response.text().await.expect("a body");
        let body = if text.is_empty() { Value::Null } else { serde_json::from_str(&text).expect(&text) };
        Self { status, body, link, retry_after, content_type }
    }

    /// The body, if the status is as it should be.
    #[track_caller]
    pub fn is(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{:#}", self.body);
        self.body
    }

    /// Asserts a problem document of that status and code.
    #[track_caller]
    pub fn problem(self, status: u16, code: &str) -> Value {
        assert_eq!((self.status, self.body["code"].as_str()), (status, Some(code)), "{:#}", self.body);
        assert_eq!(self.body["status"], status, "the document repeats it");
        self.body
    }
}

impl Api {
    pub async fn start() -> Self {
        Self::start_with(ServerLimits::default()).await
    }

    pub async fn start_with(limits: ServerLimits) -> Self {
        let ticks = Arc::new(ManualClock::default());
        let store = resident::memory(ticks.clone()).expect("a store in memory");
        let listen = "127.0.0.1:0".parse().expect("an address");
        let config = ServerConfig { listen, limits, ..ServerConfig::default() };
        let server = Arc::new(Server::start(config, store).await.expect("a server"));
        Self { server, http: Client::new(), ticks, key: None }
    }

    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Lets time pass for the store.
    pub fn pass_seconds(&self, seconds: u64) {
        self.ticks.advance_ms(seconds * 1_000);
    }

    /// The same server, asked with a new key for that tenant.
    pub async fn keyed(&self, role: Role, tenant: Option<&str>) -> Self {
        let name = |text: &str| Name::new(text).expect("a short name");
        let new = NewKey { tenant: tenant.map(name), ..NewKey::new(name("test"), role) };
        let issued = keys::create(self.server.engine(), new).await.expect("a key");
        Self { key: Some(issued.text.expose_secret().to_owned()), ..self.clone() }
    }

    /// The same server, asked with a new key that may touch only some resources of a tenant, and the key's id.
    pub async fn limited(&self, role: Role, tenant: &str, scopes: Vec<ResourceScope>) -> (Self, String) {
        let name = |text: &str| Name::new(text).expect("a short name");
        let new = NewKey { tenant: Some(name(tenant)), scopes, ..NewKey::new(name("limited"), role) };
        let issued = keys::create(self.server.engine(), new).await.expect("a key");
        let key = Some(issued.text.expose_secret().to_owned());
        (Self { key, ..self.clone() }, issued.key.id.to_string())
    }

    /// Revokes a key.
    pub async fn revoke_key(&self, id: &str) {
        keys::revoke(self.server.engine(), &Name::new(id).expect("an id")).await.expect("a key");
    }

    /// Sends a body as it is, with no content type, to a path below `/api/v1`.
    pub async fn send(&self, method: &str, path: &str, body: impl Into<reqwest::Body>) -> Answer {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        let mut request = self.http.request(method, format!("{}/api/v1{path}", self.url())).body(body);
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        Answer::of(request.send().await.expect(path)).await
    }

    /// Opens or registers something with an id of the caller's choice.
    pub async fn post_as(&self, chosen: &str, path: &str, body: Value) -> Answer {
        let request = self.http.post(format!("{}/api/v1{path}", self.url()));
        let request = request.header("Idempotency-Key", chosen).body(body.to_string());
        Answer::of(request.send().await.expect(path)).await
    }

    pub async fn call(&self, method: &str, path: &str, body: Value) -> Answer {
        self.send(method, path, body.to_string()).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, "").await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.call("POST", path, body).await
    }

    pub async fn put(&self, path: &str, body: Value) -> Answer {
        self.call("PUT", path, body).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, "").await
    }
}

/// A path segment that is one name, whatever is in it.
pub fn segment(name: &str) -> String {
    solehold_api::paths::segment(name)
}

/// A camera with every field, with this id.
pub fn camera(id: &str) -> Value {
    json!({
        "camera_uuid": id,
        "rtsp_url": "rtsp://camera.local/stream",
        "tenant_id": "tenant-1",
        "site_id": "site-1",
        "zones": [{
            "zone_id": 1,
            "name": "driveway",
            "kind": "include",
            "priority": 100,
            "polygon": [[100, 100], [700, 100], [700, 500], [200, 500]],
            "allow_labels": ["person", "car"],
            "min_score": 0.25
        }],
        "motion_gating": {"enabled": true, "downscale": 0.5, "min_area_px": 1500, "cooldown_frames": 2},
        "allow_labels": ["person", "car", "truck"],
        "min_score": 0.30,
        "zone_test": "center",
        "iou_threshold": 0.10
    })
}

pub const CAMERAS: &str = "/tenants/tenant-1/sites/site-1/cameras/";

impl Api {
    /// Declares such a camera under this id.
    pub async fn declare_camera(&self, id: &str) {
        self.post(CAMERAS, camera(id)).await.is(200);
    }

    /// Acquires a camera for a runner.
    pub async fn acquire_camera(&self, camera: &str, runner: &str) -> Answer {
        self.post("/leases/acquire/", acquire(camera, runner)).await
    }
}

/// The body of such an acquire.
pub fn acquire(camera: &str, runner: &str) -> Value {
    json!({
        "camera_uuid": camera,
        "runner_id": runner,
        "shard_id": "shard-1",
        "tenant_id": "tenant-1",
        "site_id": "site-1",
        "ttl_seconds": 60,
        "config_version": "abc123",
        "zone_version": "def456"
    })
}

/// The body of a runner's registration.
pub fn runner(id: &str) -> Value {
    json!({
        "runner_id": id,
        "tenant_id": "tenant-1",
        "site_id": "site-1",
        "deployment_group": "production",
        "deployment_version": "v1.2.3",
        "host": "worker-01.example.com",
        "port": 8080,
        "capacity": 16,
        "metrics_port": 9108,
        "capabilities": ["rtsp", "motion_detection", "zone_filtering"]
    })
}
