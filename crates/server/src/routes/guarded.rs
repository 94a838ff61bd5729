//! Routes whose handlers say who may call them: `routes!` takes no others, and describes what they all have in common.

use utoipa::openapi::security::SecurityRequirement;
use utoipa_axum::router::UtoipaMethodRouter;

use super::openapi::{operations, problems};
use crate::http::{Admission, GuardedContext, GuardedHandler};

/// Defines `routes()`, the router of the handlers of one surface, each of which has the name of its operation. A
/// handler whose first argument is not an [`Admission`] does not compile.
macro_rules! routes {
    ($tag:literal: $($handler:ident),* $(,)?) => {
        pub fn routes() -> utoipa_axum::router::OpenApiRouter<$crate::http::GuardedContext> {
            utoipa_axum::router::OpenApiRouter::new()
                $(.routes($crate::routes::guarded::guard($tag, utoipa_axum::routes!($handler), $handler)))*
        }
    };
}

type Routes = UtoipaMethodRouter<GuardedContext>;

/// The route of one handler, described with the role that it requires and the problems that it shares with others.
pub fn guard<Arguments, H: GuardedHandler<Arguments>>(tag: &str, mut routes: Routes, _: H) -> Routes {
    for (path, item) in &mut routes.1.paths {
        for operation in operations(item).into_iter().flatten() {
            operation.tags = Some(vec![tag.to_owned()]);
            operation.security = Some(security::<H::Admission>());
            problems::describe(path, operation, H::Admission::ROLE.is_some());
        }
    }
    routes
}

/// For schemes other than OAuth's, the names in a requirement are roles.
fn security<A: Admission>() -> Vec<SecurityRequirement> {
    match A::ROLE {
        Some(role) => {
            let role = format!("{role:?}").to_lowercase();
            ["bearer", "key"].map(|scheme| SecurityRequirement::new(scheme, [role.clone()])).into()
        }
        None => vec![SecurityRequirement::default()],
    }
}
