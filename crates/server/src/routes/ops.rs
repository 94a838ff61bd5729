//! Health: whether the process is up, and whether it can serve. For everyone, without a key.

use serde::Serialize;
use solehold_api::{
    ops::{Health, Ready},
    paths,
};
use solehold_core::command::Footprint;
use solehold_engine::{clock::BootTime, store::StoreError};
use utoipa_axum::router::OpenApiRouter;

use crate::{
    http::{Anyone, ApiError, GuardedContext, Json},
    routes::watch::wire_cursor,
};

pub fn routes() -> OpenApiRouter<GuardedContext> {
    OpenApiRouter::new().routes(routes!(health)).routes(routes!(health_check)).routes(routes!(ready))
}

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
    get, path = paths::HEALTH, tag = "operating", operation_id = "health",
    responses((status = 200, description = "The process is up", body = Liveness))
)]
async fn health(caller: Anyone) -> Json<Liveness> {
    Json(of(&caller))
}

/// The same as `/healthz`, where existing clients of a control plane look for it.
#[utoipa::path(
    get, path = paths::HEALTH_CHECK, tag = "operating", operation_id = "health_check",
    responses((status = 200, description = "The process is up", body = Liveness))
)]
async fn health_check(caller: Anyone) -> Json<Liveness> {
    Json(of(&caller))
}

fn of(caller: &Anyone) -> Liveness {
    let context = caller.context();
    liveness(context.node_id(), context.engine().store_name(), context.began())
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

/// Returns 200 if the store answers. With `barred_ms`, it can be read, and grants and renews nothing for that long,
/// because it was restored or failed over.
#[utoipa::path(
    get, path = paths::READY, tag = "operating", operation_id = "ready",
    responses(
        (status = 200, description = "The server is ready", body = Ready),
        (status = 503, description = "The store does not answer"),
    )
)]
async fn ready(caller: Anyone) -> Result<Json<Ready>, ApiError> {
    let context = caller.context();
    let loaded = context.engine().load(&Footprint::default()).await?;
    let barred_ms = loaded.barred_ms();
    let reason = barred_ms.map(|retry_after_ms| StoreError::Barred { retry_after_ms }.to_string());
    Ok(Json(Ready {
        ready: true,
        node_id: context.node_id().to_owned(),
        reason,
        barred_ms,
        cursor: Some(wire_cursor(loaded.cursor)),
        store_time: Some(loaded.now.into()),
    }))
}
