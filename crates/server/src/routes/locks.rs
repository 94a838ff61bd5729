//! Locks: resources of the kind `lock` that nobody declares. They exist for as long as someone holds them or waits in line.

use axum::{Json, extract::State, http::StatusCode};
use solehold_api::{
    paths,
    problem::Problem,
    resources::{AcquireResource, Grant, ReleaseResource, RenewResource, Resource},
};
use solehold_core::key::ResourceKey;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    convert::{self, TenantQuery},
    resources,
};
use crate::{
    Context,
    http::{Body, Caller, Failure, NamePath, Params, Role},
};

/// The kind of a lock among resources.
const KIND: &str = "lock";

pub fn routes() -> OpenApiRouter<Context> {
    OpenApiRouter::new().routes(routes!(get, acquire, release)).routes(routes!(renew))
}

fn key(caller: &Caller, query: &TenantQuery, name: &str) -> Result<ResourceKey, Failure> {
    convert::key_of(caller.tenant(query.tenant.as_deref())?, KIND, "name", name)
}

/// Shows who holds a lock, and how many stand in line for it.
#[utoipa::path(
    get, path = paths::LOCK, tag = "locks", operation_id = "get_lock",
    params(("name" = String, Path, description = "The lock; a slash within is `%2F`"), TenantQuery),
    responses(
        (status = 200, description = "The lock", body = Resource),
        (status = 404, description = "Nobody holds it or waits for it", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn get(
    State(context): State<Context>,
    caller: Caller,
    NamePath(name): NamePath<String>,
    Params(query): Params<TenantQuery>,
) -> Result<Json<Resource>, Failure> {
    caller.must_be(Role::Reader)?;
    resources::show(&context, &key(&caller, &query, &name)?).await
}

/// Takes a lock, or waits in line for it: first come, first served, across replicas. A grant that was waited for lapses
/// unless it is renewed within `confirm_within_ms`.
#[utoipa::path(
    post, path = paths::LOCK, tag = "locks", operation_id = "acquire_lock",
    params(("name" = String, Path, description = "The lock; a slash within is `%2F`"), TenantQuery),
    request_body = AcquireResource,
    responses(
        (status = 200, description = "It was yours already, by the same request id", body = Grant),
        (status = 201, description = "It is yours", body = Grant),
        (status = 400, description = "The body or the name is wrong", body = Problem, content_type = "application/problem+json"),
        (status = 403, description = "The key may not, or the tenant's quota is used up", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "Someone holds it, and the wait is over", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn acquire(
    State(context): State<Context>,
    caller: Caller,
    NamePath(name): NamePath<String>,
    Params(query): Params<TenantQuery>,
    Body(body): Body<AcquireResource>,
) -> Result<(StatusCode, Json<Grant>), Failure> {
    caller.must_be(Role::Runner)?;
    resources::hold(&context, key(&caller, &query, &name)?, &body).await
}

/// Keeps a lock.
#[utoipa::path(
    post, path = paths::LOCK_RENEW, tag = "locks", operation_id = "renew_lock",
    params(("name" = String, Path, description = "The lock; a slash within is `%2F`"), TenantQuery),
    request_body = RenewResource,
    responses(
        (status = 200, description = "It is yours for longer", body = Grant),
        (status = 400, description = "The lease is not named, or the body is wrong", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such lock, lease or session", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "The lock is lost, or not yours", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn renew(
    State(context): State<Context>,
    caller: Caller,
    NamePath(name): NamePath<String>,
    Params(query): Params<TenantQuery>,
    Body(body): Body<RenewResource>,
) -> Result<Json<Grant>, Failure> {
    caller.must_be(Role::Runner)?;
    resources::keep(&context, key(&caller, &query, &name)?, &body).await
}

/// Lets go of a lock. The first in line gets it in the same step.
#[utoipa::path(
    delete, path = paths::LOCK, tag = "locks", operation_id = "release_lock",
    params(("name" = String, Path, description = "The lock; a slash within is `%2F`"), TenantQuery),
    request_body = ReleaseResource,
    responses(
        (status = 204, description = "It is free, or the next one's"),
        (status = 400, description = "The lease is not named, or the body is wrong", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such lock or lease", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "The lock is lost, or not yours", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn release(
    State(context): State<Context>,
    caller: Caller,
    NamePath(name): NamePath<String>,
    Params(query): Params<TenantQuery>,
    Body(body): Body<ReleaseResource>,
) -> Result<StatusCode, Failure> {
    caller.must_be(Role::Runner)?;
    resources::let_go(&context, key(&caller, &query, &name)?, &body).await
}
