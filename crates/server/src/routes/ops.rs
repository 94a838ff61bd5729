//! Operating: whether the server is up, whether it can serve, and what it has done. For everyone, without a key.

use axum::{
    Json,
    http::header,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use solehold_api::{
    ops::{Health, Ready},
    paths,
    problem::{ErrorCode, Problem},
    watch::Cursor,
};
use solehold_core::command::Footprint;
use solehold_engine::clock::BootTime;
use utoipa_axum::router::OpenApiRouter;

use crate::http::{Anyone, Failure, GuardedContext};

/// What OpenMetrics text is called.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub fn routes() -> OpenApiRouter<GuardedContext> {
    OpenApiRouter::new().routes(routes!(health)).routes(routes!(ready)).routes(routes!(metrics))
}

/// The process is up, and for how long.
#[derive(Debug, Serialize, utoipa::ToSchema)]
struct Alive {
    #[serde(flatten)]
    health: Health,
    /// How long it has been up.
    uptime_seconds: u64,
}

/// Tells that the process is up; the store is not asked.
#[utoipa::path(
    get, path = paths::HEALTH, tag = "operating", operation_id = "health",
    responses((status = 200, description = "The process is up", body = Alive))
)]
async fn health(caller: Anyone) -> Json<Alive> {
    let context = caller.context();
    let health = Health {
        status: "ok".to_owned(),
        node_id: context.node_id().to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        engine: context.engine().store_name().to_owned(),
    };
    Json(Alive { health, uptime_seconds: BootTime::now().since(context.began()).as_secs() })
}

/// Asks the store whether it answers.
#[utoipa::path(
    get, path = paths::READY, tag = "operating", operation_id = "ready",
    responses(
        (status = 200, description = "The server can serve", body = Ready),
        (status = 503, description = "The store does not answer"),
    )
)]
async fn ready(caller: Anyone) -> Result<Json<Ready>, Failure> {
    let context = caller.context();
    let loaded = context.engine().load(&Footprint::default()).await?;
    let cursor = Cursor { epoch: loaded.cursor.epoch, revision: loaded.cursor.revision.0 };
    Ok(Json(Ready {
        ready: true,
        node_id: context.node_id().to_owned(),
        reason: None,
        cursor: Some(cursor),
        store_time: Some(loaded.now.into()),
    }))
}

/// Everything that is measured, as OpenMetrics text.
#[utoipa::path(
    get, path = paths::METRICS, tag = "operating", operation_id = "metrics",
    responses((status = 200, description = "The metrics", body = String, content_type = "application/openmetrics-text"))
)]
async fn metrics(caller: Anyone) -> Result<Response, Failure> {
    let text =
        caller.context().measured().await.map_err(|e| Problem::new(ErrorCode::Internal, e.to_string()))?;
    Ok(([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response())
}
