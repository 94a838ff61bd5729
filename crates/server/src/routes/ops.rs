//! Health: whether the process is up, and whether it can serve; and its metrics. For everyone, without a key.

use axum::{
    http::header,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use solehold_api::{
    ops::{Health, Ready},
    paths,
    problem::{ErrorCode, Problem},
};
use solehold_core::command::Footprint;
use solehold_engine::{clock::BootTime, store::StoreError};

use crate::{
    http::{Anyone, ApiError, Json, Reply},
    routes::watch::wire_cursor,
};

routes!["operating": health, health_check, ready, metrics];

/// The content type of OpenMetrics text.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The process is up, and for how long.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Liveness {
    #[serde(flatten)]
    health: Health,
    /// How long it has been up.
    uptime_seconds: u64,
}

/// Returns 200 while the process is up; the store is not asked.
#[utoipa::path(
    get, path = paths::HEALTH, responses((status = 200, description = "The process is up", body = Liveness))
)]
async fn health(caller: Anyone) -> Json<Liveness> {
    Json(of(&caller))
}

/// The same as `/healthz`, where existing clients of a control plane look for it.
#[utoipa::path(
    get, path = paths::HEALTH_CHECK,
    responses((status = 200, description = "The process is up", body = Liveness))
)]
async fn health_check(caller: Anyone) -> Json<Liveness> {
    Json(of(&caller))
}

fn of(caller: &Anyone) -> Liveness {
    let context = caller.context();
    liveness(&context.node_id, context.engine().store_name(), context.began)
}

/// The answer of a node that is up since `began`.
pub fn liveness(node_id: &str, engine: &str, began: BootTime) -> Liveness {
    let health = Health {
        status: "ok".to_owned(),
        node_id: node_id.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        engine: engine.to_owned(),
    };
    Liveness { health, uptime_seconds: BootTime::now().since(began).as_secs() }
}

/// Returns 200 if the store answers and can be written. With `barred_ms`, it can be read, and grants and renews nothing
/// for that long, because it was restored or failed over.
#[utoipa::path(
    get, path = paths::READY,
    responses(
        (status = 200, description = "The server is ready", body = Ready),
        (status = 503, description = "The store does not answer, or can only be read"),
    )
)]
async fn ready(caller: Anyone) -> Reply<Ready> {
    let context = caller.context();
    context.engine().check_writable()?;
    let loaded = context.engine().load(&Footprint::default()).await?;
    let barred_ms = loaded.barred_ms();
    let reason = barred_ms.map(|retry_after_ms| StoreError::Barred { retry_after_ms }.to_string());
    Ok(Json(Ready {
        ready: true,
        node_id: context.node_id.clone(),
        reason,
        barred_ms,
        cursor: Some(wire_cursor(loaded.cursor)),
        store_time: Some(loaded.now.into()),
    }))
}

/// Returns all metrics as OpenMetrics text.
#[utoipa::path(
    get, path = paths::METRICS,
    responses((status = 200, description = "The metrics", body = String, content_type = "application/openmetrics-text"))
)]
async fn metrics(caller: Anyone) -> Result<Response, ApiError> {
    let text = caller.context().measured().await;
    let text = text.map_err(|e| Problem::new(ErrorCode::Internal, e.to_string()))?;
    Ok(([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response())
}
