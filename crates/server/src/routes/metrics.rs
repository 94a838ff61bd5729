//! The metrics of this node, for everyone, without a key.

use axum::{
    http::header,
    response::{IntoResponse, Response},
};
use solehold_api::{
    paths,
    problem::{ErrorCode, Problem},
};
use utoipa_axum::router::OpenApiRouter;

use crate::http::{Anyone, ApiError, GuardedContext};

/// The content type of OpenMetrics text.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub fn routes() -> OpenApiRouter<GuardedContext> {
    OpenApiRouter::new().routes(routes!(metrics))
}

/// Returns all metrics as OpenMetrics text.
#[utoipa::path(
    get, path = paths::METRICS, tag = "operating", operation_id = "metrics",
    responses((status = 200, description = "The metrics", body = String, content_type = "application/openmetrics-text"))
)]
async fn metrics(caller: Anyone) -> Result<Response, ApiError> {
    let text = caller.context().measured().await;
    let text = text.map_err(|e| Problem::new(ErrorCode::Internal, e.to_string()))?;
    Ok(([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response())
}
