//! The surfaces, one module each. A handler extracts, converts, asks the engine, and converts.

#[macro_use]
mod guarded;

mod admin;
mod batch;
mod config;
mod hand_over;
mod history;
mod leases;
mod locks;
#[cfg(feature = "metrics")]
mod metrics;
mod nodes;
mod openapi;
mod ops;
mod placement;
mod resource_view;
mod resources;
mod runners;
mod scenes;
mod sessions;
mod watch;

use axum::{Router, middleware};
use solehold_api::{
    paths,
    problem::{ErrorCode, Problem},
};
use utoipa_axum::router::OpenApiRouter;

use crate::{
    Context,
    http::{ApiError, GuardedContext, around},
};

pub use openapi::{openapi_json, openapi_markdown};
pub(crate) use ops::{Liveness, liveness};

/// All routes, and their description.
fn all() -> OpenApiRouter<GuardedContext> {
    // No router within a router: each would take the path of every request apart and put it together again.
    let router = OpenApiRouter::with_openapi(openapi::frame());
    #[cfg(feature = "metrics")]
    let router = router.merge(metrics::routes());
    router
        .merge(ops::routes())
        .merge(scenes::routes())
        .merge(leases::routes())
        .merge(runners::routes())
        .merge(sessions::routes())
        .merge(nodes::routes())
        .merge(config::routes())
        .merge(resources::routes())
        .merge(hand_over::routes())
        .merge(placement::routes())
        .merge(locks::routes())
        .merge(batch::routes())
        .merge(watch::routes())
        .merge(admin::routes())
        .merge(openapi::routes())
}

/// The router that serves it all, and `more`.
pub fn router(context: &Context, more: Router) -> Router {
    let (router, _) = all().split_for_parts();
    router
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
    Problem::new(
        ErrorCode::MethodNotAllowed,
        "the path exists, but not with this method; see the Allow header",
    )
    .into()
}
