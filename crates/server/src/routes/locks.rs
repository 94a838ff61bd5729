//! Locks: resources of the kind `lock` that nobody declares. They exist for as long as someone holds them or waits in
//! line.

use axum::http::StatusCode;
use solehold_api::{
    locks::LockList,
    page::PageQuery,
    paths,
    resources::{AcquireResource, GrantBody, ReleaseResource, RenewResource, ResourceBody},
};
use solehold_core::{command::Footprint, key::ResourceKey};
use solehold_engine::store::ResourceQuery;

use super::resources;
use crate::{
    http::{ApiError, At, Body, Caller, Identity, Json, Params, Reply, StatusReply, TenantQuery, role},
    routes::resource_view::{ResourceView, of_kind, resource_key, resource_page},
};

/// The kind of a lock among resources.
const KIND: &str = "lock";

routes!["locks": list_locks, get_lock, acquire_lock, release_lock, renew_lock];

fn key(caller: &Identity, at: &At<String>) -> Result<ResourceKey, ApiError> {
    resource_key(caller.tenant(at.tenant.as_deref())?, KIND, "name", &at.path)
}

/// Lists the locks that are held, held back or waited for, with the first in line for each.
#[utoipa::path(
    get, path = paths::LOCKS, params(PageQuery),
    responses((status = 200, description = "A page of locks", body = LockList))
)]
async fn list_locks(caller: Caller<role::Reader>, Params(query): Params<PageQuery>) -> Reply<LockList> {
    let context = caller.context();
    let tenant = caller.tenant(query.tenant.as_deref())?;
    let asked = ResourceQuery { undeclared: true, ..of_kind(KIND)? };
    let (found, next) = resource_page(context, &tenant, asked, query.cursor.as_ref(), query.limit).await?;
    // Lists come without the lines.
    let footprint = Footprint { resources: found.keys, ..Default::default() };
    let loaded = context.engine().load(&footprint).await?;
    let seen = footprint.resources.iter().filter_map(|key| ResourceView::of(&loaded, key));
    let locks = seen.map(|seen| seen.shown().into()).collect();
    Ok(Json(LockList { locks, next }))
}

/// Returns the holder of a lock, and the first in line for it.
#[utoipa::path(
    get, path = paths::LOCK,
    params(("name" = String, Path, description = "The lock; a slash within it is `%2F`"), TenantQuery),
    responses(
        (status = 200, description = "The lock", body = ResourceBody),
        (status = 404, description = "Nobody holds the lock or waits for it"),
    )
)]
async fn get_lock(caller: Caller<role::Reader>, at: At<String>) -> Reply<ResourceBody> {
    resources::show(caller.context(), &key(&caller, &at)?).await
}

/// Acquires a lock, or waits in line for it: first come, first served, across replicas. A grant after waiting lapses
/// unless it is renewed itself within `confirm_within_ms`: a heartbeat of its session does not confirm it.
#[utoipa::path(
    post, path = paths::LOCK,
    params(("name" = String, Path, description = "The lock; a slash within it is `%2F`"), TenantQuery),
    request_body = AcquireResource,
    responses(
        (status = 200, description = "It had already been granted to the same request id", body = GrantBody),
        (status = 201, description = "It was granted", body = GrantBody),
        (status = 404, description = "There is no such session"),
        (status = 409, description = "It is held by another client, and the time to wait is over"),
    )
)]
async fn acquire_lock(
    caller: Caller<role::Runner>,
    at: At<String>,
    Body(body): Body<AcquireResource>,
) -> StatusReply<GrantBody> {
    resources::hold(caller.context(), key(&caller, &at)?, &body).await
}

/// Renews a lock.
#[utoipa::path(
    post, path = paths::LOCK_RENEW,
    params(("name" = String, Path, description = "The lock; a slash within it is `%2F`"), TenantQuery),
    request_body = RenewResource,
    responses(
        (status = 200, description = "It was renewed", body = GrantBody),
        (status = 404, description = "There is no such lock, lease or session"),
        (status = 409, description = "The lock was lost, or is held by another client"),
    )
)]
async fn renew_lock(
    caller: Caller<role::Runner>,
    at: At<String>,
    Body(body): Body<RenewResource>,
) -> Reply<GrantBody> {
    resources::keep(caller.context(), key(&caller, &at)?, &body).await
}

/// Releases a lock. The first in line gets it in the same step.
#[utoipa::path(
    delete, path = paths::LOCK,
    params(("name" = String, Path, description = "The lock; a slash within it is `%2F`"), TenantQuery),
    request_body = ReleaseResource,
    responses(
        (status = 204, description = "It was released; the first in line has it"),
        (status = 404, description = "There is no such lock or lease"),
        (status = 409, description = "The lock was lost, or is held by another client"),
    )
)]
async fn release_lock(
    caller: Caller<role::Runner>,
    at: At<String>,
    Body(body): Body<ReleaseResource>,
) -> Result<StatusCode, ApiError> {
    resources::let_go(caller.context(), key(&caller, &at)?, &body).await
}
