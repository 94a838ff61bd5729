//! Locks: resources of the kind `lock` that nobody declares. They exist for as long as someone holds them or waits in line.

use axum::{Json, http::StatusCode};
use solehold_api::{
    paths,
    resources::{AcquireResource, Grant, ReleaseResource, RenewResource, Resource},
};
use solehold_core::key::ResourceKey;
use utoipa_axum::router::OpenApiRouter;

use super::{convert, resources};
use crate::http::{Body, Caller, Failure, GuardedContext, Identity, NamePath, Params, TenantQuery, role};

/// The kind of a lock among resources.
const KIND: &str = "lock";

pub fn routes() -> OpenApiRouter<GuardedContext> {
    OpenApiRouter::new().routes(routes!(get, acquire, release)).routes(routes!(renew))
}

fn key(caller: &Identity, query: &TenantQuery, name: &str) -> Result<ResourceKey, Failure> {
    convert::key_of(caller.tenant(query.tenant.as_deref())?, KIND, "name", name)
}

/// Shows who holds a lock, and how many stand in line for it.
#[utoipa::path(
    get, path = paths::LOCK, tag = "locks", operation_id = "get_lock",
    params(("name" = String, Path, description = "The lock; a slash within is `%2F`"), TenantQuery),
    responses(
        (status = 200, description = "The lock", body = Resource),
        (status = 404, description = "Nobody holds it or waits for it"),
    )
)]
async fn get(
    caller: Caller<role::Reader>,
    NamePath(name): NamePath<String>,
    Params(query): Params<TenantQuery>,
) -> Result<Json<Resource>, Failure> {
    resources::show(caller.context(), &key(&caller, &query, &name)?).await
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
        (status = 404, description = "There is no such session"),
        (status = 409, description = "Someone holds it, and the wait is over"),
    )
)]
async fn acquire(
    caller: Caller<role::Runner>,
    NamePath(name): NamePath<String>,
    Params(query): Params<TenantQuery>,
    Body(body): Body<AcquireResource>,
) -> Result<(StatusCode, Json<Grant>), Failure> {
    resources::hold(caller.context(), key(&caller, &query, &name)?, &body).await
}

/// Keeps a lock.
#[utoipa::path(
    post, path = paths::LOCK_RENEW, tag = "locks", operation_id = "renew_lock",
    params(("name" = String, Path, description = "The lock; a slash within is `%2F`"), TenantQuery),
    request_body = RenewResource,
    responses(
        (status = 200, description = "It is yours for longer", body = Grant),
        (status = 404, description = "There is no such lock, lease or session"),
        (status = 409, description = "The lock is lost, or not yours"),
    )
)]
async fn renew(
    caller: Caller<role::Runner>,
    NamePath(name): NamePath<String>,
    Params(query): Params<TenantQuery>,
    Body(body): Body<RenewResource>,
) -> Result<Json<Grant>, Failure> {
    resources::keep(caller.context(), key(&caller, &query, &name)?, &body).await
}

/// Lets go of a lock. The first in line gets it in the same step.
#[utoipa::path(
    delete, path = paths::LOCK, tag = "locks", operation_id = "release_lock",
    params(("name" = String, Path, description = "The lock; a slash within is `%2F`"), TenantQuery),
    request_body = ReleaseResource,
    responses(
        (status = 204, description = "It is free, or the next one's"),
        (status = 404, description = "There is no such lock or lease"),
        (status = 409, description = "The lock is lost, or not yours"),
    )
)]
async fn release(
    caller: Caller<role::Runner>,
    NamePath(name): NamePath<String>,
    Params(query): Params<TenantQuery>,
    Body(body): Body<ReleaseResource>,
) -> Result<StatusCode, Failure> {
    resources::let_go(caller.context(), key(&caller, &query, &name)?, &body).await
}
