//! The peer: a lease table in hand-written SQL, one transaction per request, over a pool of 32, behind the same HTTP
//! layer: the server's own, with all that goes around every request.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use axum::{
    Router,
    body::Bytes,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, RecyclingMethod};
use solehold_engine::{clock::BootClock, resident};
use solehold_server::{Running, Server};
use tokio_postgres::NoTls;

use super::load;

/// The size of its pool of connections.
const POOL_SIZE: usize = 32;

const SCHEMA: &str = "
DROP SCHEMA IF EXISTS solehold_bench_hand_written CASCADE;
CREATE SCHEMA solehold_bench_hand_written;
CREATE TABLE solehold_bench_hand_written.scene_leases (
    scene_id VARCHAR(64) PRIMARY KEY,
    holder_id VARCHAR(64),
    expires_at TIMESTAMP,
    version BIGINT DEFAULT 0
);";
pub const LOCK: &str =
    "SELECT * FROM solehold_bench_hand_written.scene_leases WHERE scene_id = $1 FOR UPDATE";
pub const ACQUIRE: &str = "UPDATE solehold_bench_hand_written.scene_leases
    SET holder_id = $2, expires_at = NOW() + INTERVAL '30 seconds', version = version + 1
    WHERE scene_id = $1 AND (holder_id IS NULL OR expires_at < NOW())";
pub const READ: &str =
    "SELECT version, expires_at::text FROM solehold_bench_hand_written.scene_leases WHERE scene_id = $1";
pub const RELEASE: &str = "UPDATE solehold_bench_hand_written.scene_leases
    SET holder_id = NULL, expires_at = NULL WHERE scene_id = $1 AND holder_id = $2";

#[derive(serde::Deserialize)]
struct Holder {
    holder_id: String,
}

/// A running server over the hand-written SQL.
pub struct HandWritten {
    server: Running,
    pool: Pool,
}

impl HandWritten {
    /// Creates the table and serves the calls.
    pub async fn start(url: &str, scenes: &[String]) -> Result<Self> {
        let manager = Manager::from_config(
            url.parse().context("the PostgreSQL address")?,
            NoTls,
            ManagerConfig { recycling_method: RecyclingMethod::Fast },
        );
        let pool = Pool::builder(manager).max_size(POOL_SIZE).build()?;
        let client = pool.get().await.context("connecting to PostgreSQL")?;
        create_table(&client, scenes).await?;
        drop(client);
        let path = format!("{}/{{id}}/lease", load::HAND_WRITTEN_SCENES);
        let routes = Router::new().route(&path, post(acquire).delete(release)).with_state(pool.clone());
        let server = Server::start_with(super::config(), resident::memory(BootClock)?, routes).await?;
        Ok(Self { server, pool })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// Stops, and drops the table.
    pub async fn stop(self) -> Result<()> {
        self.server.shutdown().await;
        self.pool.get().await?.batch_execute("DROP SCHEMA solehold_bench_hand_written CASCADE").await?;
        Ok(())
    }
}

/// Creates the table, with a row for each scene.
pub async fn create_table(client: &tokio_postgres::Client, scenes: &[String]) -> Result<()> {
    client.batch_execute(SCHEMA).await.context("creating the table of the hand-written SQL")?;
    let sql = "INSERT INTO solehold_bench_hand_written.scene_leases (scene_id) SELECT unnest($1::text[])";
    client.execute(sql, &[&scenes]).await?;
    Ok(())
}

async fn acquire(State(pool): State<Pool>, Path(scene): Path<String>, body: Bytes) -> Response {
    answer(try_acquire(&pool, &scene, &body).await)
}

async fn try_acquire(pool: &Pool, scene: &str, body: &[u8]) -> Result<Response> {
    let Holder { holder_id } = serde_json::from_slice(body)?;
    let mut client = pool.get().await?;
    let statements = prepare(&client, [LOCK, ACQUIRE, READ]).await?;
    let transaction = client.transaction().await?;
    transaction.query_opt(&statements[0], &[&scene]).await?;
    let updated = transaction.execute(&statements[1], &[&scene, &holder_id]).await?;
    let row = transaction.query_one(&statements[2], &[&scene]).await?;
    transaction.commit().await?;
    if updated == 0 {
        return Ok(StatusCode::CONFLICT.into_response());
    }
    let version: i64 = row.get(0);
    let expires_at: String = row.get(1);
    let body = serde_json::json!({ "version": version, "expires_at": expires_at });
    Ok((StatusCode::CREATED, axum::Json(body)).into_response())
}

async fn release(State(pool): State<Pool>, Path(scene): Path<String>, body: Bytes) -> Response {
    answer(try_release(&pool, &scene, &body).await)
}

async fn try_release(pool: &Pool, scene: &str, body: &[u8]) -> Result<Response> {
    let Holder { holder_id } = serde_json::from_slice(body)?;
    let client = pool.get().await?;
    let [statement] = prepare(&client, [RELEASE]).await?;
    client.execute(&statement, &[&scene, &holder_id]).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Prepared once per connection, as a good client would.
async fn prepare<const N: usize>(client: &Object, sql: [&str; N]) -> Result<[tokio_postgres::Statement; N]> {
    let mut statements = Vec::with_capacity(N);
    for text in sql {
        statements.push(client.prepare_cached(text).await?);
    }
    statements.try_into().map_err(|_| anyhow::anyhow!("as many statements as texts"))
}

fn answer(result: Result<Response>) -> Response {
    result.unwrap_or_else(|e| (StatusCode::INTERNAL_SERVER_ERROR, e.to_string()).into_response())
}
