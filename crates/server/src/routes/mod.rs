//! The surfaces, one module each. A handler extracts its arguments, converts them to a command, submits it to the
//! engine, and converts the outcome.

#[macro_use]
mod guarded;

mod admin;
mod batch;
mod config;
mod hand_over;
mod leases;
mod locks;
mod nodes;
mod openapi;
mod ops;
mod orchestrator;
mod placement;
mod resource_view;
mod resources;
mod runners;
mod scenes;
mod sessions;
mod watch;

use std::sync::LazyLock;

use axum::{
    Router,
    http::header,
    middleware,
    response::{IntoResponse, Response},
};
use solehold_api::{
    paths,
    problem::{ErrorCode, Problem},
};
use utoipa_axum::router::OpenApiRouter;

use crate::{
    dashboard,
    http::{Anyone, ApiError, Context, GuardedContext, around},
};

pub(crate) use ops::{Liveness, liveness};

/// All routes, and their description.
fn all() -> OpenApiRouter<GuardedContext> {
    // No router within a router: each would take the path of every request apart and put it together again.
    OpenApiRouter::with_openapi(openapi::frame())
        .merge(ops::routes())
        .merge(scenes::routes())
        .merge(leases::routes())
        .merge(leases::read::routes())
        .merge(runners::routes())
        .merge(sessions::routes())
        .merge(nodes::routes())
        .merge(config::routes())
        .merge(config::cameras::routes())
        .merge(config::zones::routes())
        .merge(resources::routes())
        .merge(hand_over::routes())
        .merge(placement::routes())
        .merge(locks::routes())
        .merge(batch::routes())
        .merge(watch::routes())
        .merge(orchestrator::routes())
        .merge(admin::routes())
        .merge(admin::transfer::routes())
        .routes(guarded::guard("operating", utoipa_axum::routes!(openapi), openapi))
}

/// The router that serves it all, and `more`.
pub fn router(context: &Context, more: Router) -> Router {
    let (router, _) = all().split_for_parts();
    router
        .merge(dashboard::routes())
        .merge(more.with_state(()))
        .fallback(no_such_route)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn_with_state(context.clone(), around))
        .with_state(GuardedContext::new(context.clone()))
}

async fn no_such_route() -> ApiError {
    let detail = format!("there is no such path; {} lists all paths", paths::OPENAPI);
    Problem::new(ErrorCode::NoSuchRoute, detail).into()
}

async fn method_not_allowed() -> ApiError {
    Problem::new(ErrorCode::MethodNotAllowed, "this path does not support the method; see the Allow header")
        .into()
}

/// The OpenAPI document of all routes, as JSON.
pub fn openapi_json() -> &'static str {
    static TEXT: LazyLock<String> =
        LazyLock::new(|| format!("{:#}\n", openapi::document(all().into_openapi())));
    &TEXT
}

/// This description.
#[utoipa::path(
    get, path = paths::OPENAPI,
    responses((status = 200, description = "The OpenAPI document", body = HashMap<String, serde_json::Value>))
)]
async fn openapi(_: Anyone) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], openapi_json()).into_response()
}
