//! The two sides of a move: leases by the SQL of a hand-written table, and by the routes that its clients know.

use anyhow::{Context, Result, ensure};
use reqwest::{Client as Http, Method, StatusCode};
use serde_json::{Value, json};
use tokio_postgres::{Client, NoTls};

/// How long a lease lasts without a renewal, on both sides.
pub const TTL_MS: u64 = 2_000;

/// Connects to a database; the connection ends with the client.
pub async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Where a worker gets its leases. A lease is named by its tenure: its version, or its id.
pub enum Plane {
    SceneTable(Client),
    Scenes(Http, String),
    CameraTable(Client),
    Cameras(Http, String),
}

/// The tables of the documents.
pub const TABLES: &str = "
    CREATE TABLE scene_leases (
        scene_id VARCHAR(64) PRIMARY KEY, holder_id VARCHAR(64), expires_at TIMESTAMP, version BIGINT DEFAULT 0);
    CREATE TABLE leases (
        lease_id UUID PRIMARY KEY DEFAULT gen_random_uuid(), camera_uuid VARCHAR(255) NOT NULL,
        runner_id VARCHAR(255) NOT NULL, shard_id VARCHAR(255) NOT NULL, tenant_id VARCHAR(255) NOT NULL,
        site_id VARCHAR(255) NOT NULL, acquired_at TIMESTAMPTZ NOT NULL DEFAULT NOW(), expires_at TIMESTAMPTZ NOT NULL,
        renewed_at TIMESTAMPTZ, last_heartbeat TIMESTAMPTZ NOT NULL DEFAULT NOW(),
        status VARCHAR(20) NOT NULL DEFAULT 'pending', processing_stats JSONB DEFAULT '{}',
        config_version VARCHAR(64) NOT NULL, zone_version VARCHAR(64) NOT NULL);
    CREATE UNIQUE INDEX one_active ON leases (camera_uuid) WHERE status = 'active';
    CREATE TABLE session_locks (
        session_id TEXT PRIMARY KEY, owner_id TEXT, acquired_at TIMESTAMPTZ, expires_at TIMESTAMPTZ);
    CREATE TABLE work (
        resource TEXT, n BIGINT, tenure TEXT NOT NULL, worker TEXT NOT NULL, PRIMARY KEY (resource, n));";

impl Plane {
    /// Acquires a resource if it is free.
    pub async fn acquire(&self, resource: &str, worker: &str) -> Result<Option<String>> {
        match self {
            Self::SceneTable(client) => {
                let sql = "UPDATE scene_leases SET holder_id = $2, version = version + 1, \
                    expires_at = NOW() + make_interval(secs => $3) \
                    WHERE scene_id = $1 AND (holder_id IS NULL OR expires_at < NOW()) RETURNING version";
                let row = client.query_opt(sql, &[&resource, &worker, &ttl_seconds()]).await?;
                Ok(row.map(|row| row.get::<_, i64>(0).to_string()))
            }
            Self::CameraTable(client) => {
                let expire = "UPDATE leases SET status = 'expired' \
                    WHERE camera_uuid = $1 AND status = 'active' AND expires_at < NOW()";
                client.execute(expire, &[&resource]).await?;
                let sql = "INSERT INTO leases (camera_uuid, runner_id, shard_id, tenant_id, site_id, expires_at, \
                    status, config_version, zone_version) SELECT $1, $2, 's', 'acme', $4, \
                    NOW() + make_interval(secs => $3), 'active', 'c', 'z' ON CONFLICT DO NOTHING RETURNING lease_id::text";
                let site = site(resource);
                let row = client.query_opt(sql, &[&resource, &worker, &ttl_seconds(), &site]).await?;
                Ok(row.map(|row| row.get(0)))
            }
            Self::Scenes(http, url) => {
                let url = format!("{url}/api/v1/scenes/{resource}/lease");
                let ask = json!({ "holder_id": worker, "ttl_ms": TTL_MS });
                let lease = send(http, Method::POST, url, &ask).await?;
                Ok(lease.and_then(|lease| lease["version"].as_u64()).map(|version| version.to_string()))
            }
            Self::Cameras(http, url) => {
                let url = format!("{url}/api/v1/leases/acquire/");
                let ask = json!({ "camera_uuid": resource, "runner_id": worker, "shard_id": "s",
                    "tenant_id": "acme", "site_id": site(resource), "ttl_seconds": TTL_MS / 1_000 });
                let lease = send(http, Method::POST, url, &ask).await?;
                Ok(lease.and_then(|lease| lease["lease_id"].as_str().map(str::to_owned)))
            }
        }
    }

    /// Renews a lease; false if it is lost.
    pub async fn renew(&self, resource: &str, worker: &str, tenure: &str) -> Result<bool> {
        match self {
            Self::SceneTable(client) => {
                let sql = "UPDATE scene_leases SET expires_at = NOW() + make_interval(secs => $3) \
                    WHERE scene_id = $1 AND holder_id = $2 AND expires_at > NOW()";
                Ok(client.execute(sql, &[&resource, &worker, &ttl_seconds()]).await? == 1)
            }
            Self::CameraTable(client) => {
                let sql = "UPDATE leases SET expires_at = NOW() + make_interval(secs => $2), renewed_at = NOW() \
                    WHERE lease_id::text = $1 AND status = 'active' AND expires_at > NOW()";
                Ok(client.execute(sql, &[&tenure, &ttl_seconds()]).await? == 1)
            }
            Self::Scenes(http, url) => {
                let url = format!("{url}/api/v1/scenes/{resource}/lease/renew");
                let ask = json!({ "holder_id": worker, "ttl_ms": TTL_MS });
                Ok(send(http, Method::POST, url, &ask).await?.is_some())
            }
            Self::Cameras(http, url) => {
                let url = format!("{url}/api/v1/leases/{tenure}/renew/");
                Ok(send(http, Method::PUT, url, &json!({})).await?.is_some())
            }
        }
    }
}

fn ttl_seconds() -> f64 {
    TTL_MS as f64 / 1_000.0
}

/// The site of a camera: the first part of its name.
pub fn site(camera: &str) -> &str {
    camera.split('-').next().unwrap_or(camera)
}

/// The answer to a request; none if it was refused.
async fn send(http: &Http, method: Method, url: String, body: &Value) -> Result<Option<Value>> {
    let answer = http.request(method, url).json(body).send().await?;
    let refused = [StatusCode::NOT_FOUND, StatusCode::CONFLICT, StatusCode::GONE];
    if refused.contains(&answer.status()) {
        return Ok(None);
    }
    let status = answer.status();
    let text = answer.text().await?;
    ensure!(status.is_success(), "{status}: {text}");
    Ok(Some(serde_json::from_str(&text).with_context(|| text.clone())?))
}
