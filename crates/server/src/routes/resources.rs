//! Resources of any kind: declared, leased, and handed over under their tokens. Scenes, cameras and zones are among them.

use axum::{Json, http::StatusCode};
use serde::Deserialize;
use solehold_api::{
    field::FieldError,
    page::PageQuery,
    paths,
    problem::{ErrorCode, Problem},
    resources::{
        AcquireResource, CancelRequest, DeleteQuery, Grant, HeldLease, PutResource, PutState,
        ReleaseResource, RenewResource, Resource, ResourceHistory, ResourceList, ResourceQuery,
        RevokeResource, Revoked, State as HandoverState,
    },
};
use solehold_core::{
    command::{Command, Undeclared},
    key::ResourceKey,
    outcome::{Answer, Refusal},
};
use solehold_engine::store;
use utoipa_axum::router::OpenApiRouter;

use super::convert::{self, Seen};
use crate::{
    Context,
    http::{Body, Caller, Failure, GuardedContext, Identity, NamePath, Params, TenantQuery, role, submit},
};

pub fn routes() -> OpenApiRouter<GuardedContext> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(list_of_kind))
        .routes(routes!(get, put, remove))
        .routes(routes!(get_lease, acquire, release))
        .routes(routes!(renew))
        .routes(routes!(revoke))
        .routes(routes!(cancel))
        .routes(routes!(get_state, put_state))
        .routes(routes!(history))
}

/// What the path of a resource names.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
struct ResourcePath {
    /// What sort of thing.
    kind: String,
    /// Which one of that sort; a slash within is `%2F`.
    key: String,
}

impl ResourcePath {
    fn key(&self, caller: &Identity, tenant: Option<&str>) -> Result<ResourceKey, Failure> {
        convert::key_of(caller.tenant(tenant)?, &self.kind, "key", &self.key)
    }
}

fn shown(seen: &Seen) -> Resource {
    Resource::of(&seen.resource, seen.lease.as_ref(), seen.now)
}

/// Reads a resource that is there: declared, held, waited for, or with a document for its next holder. What is only held
/// back is not.
async fn see(context: &Context, key: &ResourceKey) -> Result<Seen, Failure> {
    let is_used = |s: &Seen| s.live().is_some() || s.resource.queued > 0 || s.resource.state.is_some();
    let is_there = |s: &Seen| s.declared().is_some() || is_used(s);
    let seen = convert::see(context, key).await?.filter(is_there);
    seen.ok_or_else(|| Refusal::NoResource(key.clone()).into())
}

/// Lists resources, declared or held.
#[utoipa::path(
    get, path = paths::RESOURCES, tag = "resources", operation_id = "list_resources", params(ResourceQuery),
    responses((status = 200, description = "A page of resources", body = ResourceList))
)]
async fn list(
    caller: Caller<role::Reader>,
    Params(query): Params<ResourceQuery>,
) -> Result<Json<ResourceList>, Failure> {
    page(&caller, &query).await
}

/// Lists the resources of a kind, declared or held.
#[utoipa::path(
    get, path = paths::RESOURCES_OF_KIND, tag = "resources", operation_id = "list_resources_of_kind",
    params(("kind" = String, Path, description = "What sort of thing"), ResourceQuery),
    responses((status = 200, description = "A page of resources", body = ResourceList))
)]
async fn list_of_kind(
    caller: Caller<role::Reader>,
    NamePath(kind): NamePath<String>,
    Params(query): Params<ResourceQuery>,
) -> Result<Json<ResourceList>, Failure> {
    page(&caller, &ResourceQuery { kind: Some(kind), ..query }).await
}

async fn page(caller: &Caller<role::Reader>, query: &ResourceQuery) -> Result<Json<ResourceList>, Failure> {
    let context = caller.context();
    let tenant = caller.tenant(query.tenant.as_deref())?;
    let asked = store::ResourceQuery {
        kind: convert::maybe_name("kind", query.kind.as_deref())?,
        site: convert::maybe_name("site", query.site.as_deref())?,
        leased: query.leased,
        labels: labels(query.label.as_deref().unwrap_or_default())?,
        undeclared: true,
        ..Default::default()
    };
    let (found, next) = convert::page_of(context, &tenant, asked, query.cursor.as_ref(), query.limit).await?;
    let resources = Seen::all(&found).map(|seen| shown(&seen)).collect();
    Ok(Json(ResourceList { resources, next }))
}

fn labels(text: &str) -> Result<Vec<(String, String)>, Failure> {
    let pair = |pair: &str| {
        let fault = || FieldError::new("label", "is not name=value, or several of them separated by commas");
        let (label, value) = pair.split_once('=').ok_or_else(fault)?;
        Ok((label.to_owned(), value.to_owned()))
    };
    text.split(',').filter(|pair| !pair.is_empty()).map(pair).collect()
}

/// Shows a resource and who holds it.
#[utoipa::path(
    get, path = paths::RESOURCE, tag = "resources", operation_id = "get_resource",
    params(ResourcePath, TenantQuery),
    responses((status = 200, description = "The resource", body = Resource))
)]
async fn get(
    caller: Caller<role::Reader>,
    NamePath(path): NamePath<ResourcePath>,
    Params(query): Params<TenantQuery>,
) -> Result<Json<Resource>, Failure> {
    show(caller.context(), &path.key(&caller, query.tenant.as_deref())?).await
}

/// Shows a resource that is there.
pub async fn show(context: &Context, key: &ResourceKey) -> Result<Json<Resource>, Failure> {
    Ok(Json(shown(&see(context, key).await?)))
}

/// Declares a resource, or declares it anew.
#[utoipa::path(
    put, path = paths::RESOURCE, tag = "resources", operation_id = "put_resource",
    params(ResourcePath, TenantQuery), request_body = PutResource,
    responses(
        (status = 200, description = "It was declared before; it is now as the body says", body = Resource),
        (status = 201, description = "It is new", body = Resource),
    )
)]
async fn put(
    caller: Caller<role::Admin>,
    NamePath(path): NamePath<ResourcePath>,
    Params(query): Params<TenantQuery>,
    Body(body): Body<PutResource>,
) -> Result<(StatusCode, Json<Resource>), Failure> {
    let context = caller.context();
    let key = path.key(&caller, query.tenant.as_deref())?;
    let (_, created) = convert::declare(context, key.clone(), body.declaration()?, false).await?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, show(context, &key).await?))
}

/// Removes a resource.
#[utoipa::path(
    delete, path = paths::RESOURCE, tag = "resources", operation_id = "delete_resource",
    params(ResourcePath, DeleteQuery),
    responses(
        (status = 204, description = "It is gone"),
        (status = 409, description = "Someone holds it, and `force` was not given"),
    )
)]
async fn remove(
    caller: Caller<role::Admin>,
    NamePath(path): NamePath<ResourcePath>,
    Params(query): Params<DeleteQuery>,
) -> Result<StatusCode, Failure> {
    let key = path.key(&caller, query.tenant.as_deref())?;
    convert::delete(caller.context(), key, &query).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Shows the lease on a resource.
#[utoipa::path(
    get, path = paths::RESOURCE_LEASE, tag = "resources", operation_id = "get_resource_lease",
    params(ResourcePath, TenantQuery),
    responses(
        (status = 200, description = "The lease", body = HeldLease),
        (status = 404, description = "There is no such resource, or nobody holds it"),
    )
)]
async fn get_lease(
    caller: Caller<role::Reader>,
    NamePath(path): NamePath<ResourcePath>,
    Params(query): Params<TenantQuery>,
) -> Result<Json<HeldLease>, Failure> {
    let key = path.key(&caller, query.tenant.as_deref())?;
    let seen = see(caller.context(), &key).await?;
    let lease = seen.live().ok_or_else(|| convert::nobody_holds(&key))?;
    Ok(Json(HeldLease::of(lease)))
}

/// Acquires a resource that nobody holds. One that nobody declared exists for as long as it is held.
#[utoipa::path(
    post, path = paths::RESOURCE_LEASE, tag = "resources", operation_id = "acquire_resource",
    params(ResourcePath, TenantQuery), request_body = AcquireResource,
    responses(
        (status = 200, description = "It was yours already, by the same request id", body = Grant),
        (status = 201, description = "It is yours", body = Grant),
        (status = 404, description = "There is no such session"),
        (status = 409, description = "Someone holds it, or it is held back"),
    )
)]
async fn acquire(
    caller: Caller<role::Runner>,
    NamePath(path): NamePath<ResourcePath>,
    Params(query): Params<TenantQuery>,
    Body(body): Body<AcquireResource>,
) -> Result<(StatusCode, Json<Grant>), Failure> {
    let key = path.key(&caller, query.tenant.as_deref())?;
    hold(caller.context(), key, &body).await
}

/// Acquires a resource, waiting in line for it if the body says so.
pub async fn hold(
    context: &Context,
    key: ResourceKey,
    body: &AcquireResource,
) -> Result<(StatusCode, Json<Grant>), Failure> {
    let (asked, wait) = (body.asked()?, body.wait()?);
    convert::may_exist(context, &key).await?;
    let lease = convert::fresh_lease(&key);
    let ask = asked.acquire(key, lease, Undeclared::Allow);
    let grant = match wait {
        Some(wait) => convert::acquire_waiting(context, ask, wait).await?,
        None => convert::acquire(context, ask).await?,
    };
    let status = if grant.repeated { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(Grant::of(&grant, context.engine().clock_slack_ms()))))
}

/// Lets go of a resource.
#[utoipa::path(
    delete, path = paths::RESOURCE_LEASE, tag = "resources", operation_id = "release_resource",
    params(ResourcePath, TenantQuery), request_body = ReleaseResource,
    responses(
        (status = 204, description = "It is free"),
        (status = 404, description = "There is no such resource or lease"),
        (status = 409, description = "The lease is lost, or not yours"),
    )
)]
async fn release(
    caller: Caller<role::Runner>,
    NamePath(path): NamePath<ResourcePath>,
    Params(query): Params<TenantQuery>,
    Body(body): Body<ReleaseResource>,
) -> Result<StatusCode, Failure> {
    let_go(caller.context(), path.key(&caller, query.tenant.as_deref())?, &body).await
}

/// Releases the lease on a resource.
pub async fn let_go(
    context: &Context,
    key: ResourceKey,
    body: &ReleaseResource,
) -> Result<StatusCode, Failure> {
    let claim = convert::on_resource(context, &key, body.claim(key.clone())?).await?;
    convert::release(context, claim, body.state()?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Keeps a lease.
#[utoipa::path(
    post, path = paths::RESOURCE_LEASE_RENEW, tag = "resources", operation_id = "renew_resource",
    params(ResourcePath, TenantQuery), request_body = RenewResource,
    responses(
        (status = 200, description = "It is yours for longer", body = Grant),
        (status = 404, description = "There is no such resource, lease or session"),
        (status = 409, description = "The lease is lost, or not yours"),
    )
)]
async fn renew(
    caller: Caller<role::Runner>,
    NamePath(path): NamePath<ResourcePath>,
    Params(query): Params<TenantQuery>,
    Body(body): Body<RenewResource>,
) -> Result<Json<Grant>, Failure> {
    keep(caller.context(), path.key(&caller, query.tenant.as_deref())?, &body).await
}

/// Renews the lease on a resource.
pub async fn keep(context: &Context, key: ResourceKey, body: &RenewResource) -> Result<Json<Grant>, Failure> {
    let claim = convert::on_resource(context, &key, body.claim(key.clone())?).await?;
    let grant = convert::renew(context, claim, body.ttl_ms()?, None).await?;
    Ok(Json(Grant::of(&grant, context.engine().clock_slack_ms())))
}

/// Ends someone's lease. The resource is held back until the old deadline, unless the old holder is known to be fenced.
#[utoipa::path(
    post, path = paths::RESOURCE_LEASE_REVOKE, tag = "resources", operation_id = "revoke_resource",
    params(ResourcePath, TenantQuery), request_body = RevokeResource,
    responses(
        (status = 200, description = "It is ended", body = Revoked),
        (status = 404, description = "There is no such resource or lease"),
        (status = 409, description = "Nobody holds it, or not as the body says"),
    )
)]
async fn revoke(
    caller: Caller<role::Admin>,
    NamePath(path): NamePath<ResourcePath>,
    Params(query): Params<TenantQuery>,
    Body(body): Body<RevokeResource>,
) -> Result<Json<Revoked>, Failure> {
    let context = caller.context();
    let key = path.key(&caller, query.tenant.as_deref())?;
    let claim = convert::on_resource(context, &key, body.claim(key.clone())?).await?;
    let (lease, held_back_ms) = convert::revoke(context, claim, body.fenced, body.reason()?).await?;
    Ok(Json(Revoked { lease_id: lease.0, held_back_ms }))
}

/// Reads the hand-over document of a resource.
#[utoipa::path(
    get, path = paths::RESOURCE_STATE, tag = "resources", operation_id = "get_state",
    params(ResourcePath, TenantQuery),
    responses(
        (status = 200, description = "The document", body = HandoverState),
        (status = 404, description = "There is no such resource, or nothing was written"),
    )
)]
async fn get_state(
    caller: Caller<role::Reader>,
    NamePath(path): NamePath<ResourcePath>,
    Params(query): Params<TenantQuery>,
) -> Result<Json<HandoverState>, Failure> {
    let key = path.key(&caller, query.tenant.as_deref())?;
    let seen = see(caller.context(), &key).await?;
    let nothing = || Problem::new(ErrorCode::NotFound, format!("no state was written of {key}"));
    let state = seen.resource.state.as_ref().ok_or_else(nothing)?;
    Ok(Json(HandoverState::of(state)))
}

/// Writes the hand-over document under a live lease.
#[utoipa::path(
    put, path = paths::RESOURCE_STATE, tag = "resources", operation_id = "put_state",
    params(ResourcePath, TenantQuery), request_body = PutState,
    responses(
        (status = 200, description = "It is written", body = HandoverState),
        (status = 404, description = "There is no such resource or lease"),
        (status = 409, description = "The lease is lost, or the sequence number is not above the stored"),
    )
)]
async fn put_state(
    caller: Caller<role::Runner>,
    NamePath(path): NamePath<ResourcePath>,
    Params(query): Params<TenantQuery>,
    Body(body): Body<PutState>,
) -> Result<Json<HandoverState>, Failure> {
    let context = caller.context();
    let key = path.key(&caller, query.tenant.as_deref())?;
    let claim = convert::on_resource(context, &key, body.claim(key.clone())?).await?;
    match submit(context, Command::WriteState { claim, write: body.write()? }).await? {
        Answer::StateWritten(state) => Ok(Json(HandoverState::of(&state))),
        other => Err(convert::odd(&other)),
    }
}

/// Spends a request id, seen or not: it can get nothing any more, and a grant that it got is released.
#[utoipa::path(
    post, path = paths::RESOURCE_LEASE_CANCEL, tag = "resources", operation_id = "cancel_request",
    params(ResourcePath, TenantQuery), request_body = CancelRequest,
    responses((status = 204, description = "It is spent"))
)]
async fn cancel(
    caller: Caller<role::Runner>,
    NamePath(path): NamePath<ResourcePath>,
    Params(query): Params<TenantQuery>,
    Body(body): Body<CancelRequest>,
) -> Result<StatusCode, Failure> {
    let key = path.key(&caller, query.tenant.as_deref())?;
    submit(caller.context(), Command::CancelRequest(body.request(key)?)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Shows what happened to a resource and its leases.
#[utoipa::path(
    get, path = paths::RESOURCE_HISTORY, tag = "resources", operation_id = "resource_history",
    params(ResourcePath, PageQuery),
    responses(
        (status = 200, description = "What happened, oldest first, as far back as the audit trail goes", body = ResourceHistory),
        (status = 404, description = "There is no such resource, and nobody remembers one"),
    )
)]
async fn history(
    caller: Caller<role::Reader>,
    NamePath(path): NamePath<ResourcePath>,
    Params(query): Params<PageQuery>,
) -> Result<Json<ResourceHistory>, Failure> {
    let context = caller.context();
    let key = path.key(&caller, query.tenant.as_deref())?;
    let asked = store::EventQuery { resource: Some(key.clone()), ..Default::default() };
    let (events, next) = convert::events(context, &key.tenant, asked, &query).await?;
    if events.is_empty() && query.cursor.is_none() {
        see(context, &key).await?;
    }
    Ok(Json(ResourceHistory { events, next }))
}
