//! Resources of any kind: declared, leased, and handed over under their tokens. Scenes, cameras and zones are among
//! them.

use axum::http::StatusCode;
use serde::Deserialize;
use solehold_api::{
    field::{self, Faults, FieldError},
    limits::LABEL_QUERY_BYTES_MAX,
    page::HistoryQuery,
    paths,
    problem::{ErrorCode, Problem},
    resources::{
        AcquireResource, CancelRequest, DeleteQuery, GrantBody, HeldLease, PutResource, PutState,
        ReleaseResource, RenewResource, ResourceBody, ResourceHistory, ResourceList, ResourceQuery,
        RevokeResource, RevokedLease, StateDocument,
    },
};
use solehold_core::{
    command::{Claim, Command, Target, Undeclared},
    key::ResourceKey,
    outcome::Refusal,
};
use solehold_engine::store;

use crate::{
    context::commands::new_lease_id,
    http::{
        ApiError, At, Body, Caller, Context, Identity, Json, NamePath, Params, Reply, StatusReply,
        TenantQuery, role,
    },
    routes::resource_view::{ResourceView, event_page, nobody_holds, resource_key, resource_page},
    state::audit::Deed,
};

routes! { "resources":
    list_resources, list_resources_of_kind, get_resource, put_resource, delete_resource, get_resource_lease,
    acquire_resource, release_resource, renew_resource, revoke_resource, cancel_request, get_state,
    put_state, resource_history
}

/// The path of a resource.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
pub struct ResourcePath {
    /// The kind of the resource.
    kind: String,
    /// The key of the resource; a slash within it is `%2F`.
    key: String,
}

impl ResourcePath {
    pub fn key(&self, caller: &Identity, tenant: Option<&str>) -> Result<ResourceKey, ApiError> {
        resource_key(caller.tenant(tenant)?, &self.kind, "key", &self.key)
    }
}

impl At<ResourcePath> {
    pub fn key(&self, caller: &Identity) -> Result<ResourceKey, ApiError> {
        self.path.key(caller, self.tenant.as_deref())
    }
}

/// Reads a resource that is there, as the lists show it: declared, held or held back, waited for, or with a document
/// for its next holder.
async fn see(context: &Context, key: &ResourceKey) -> Result<ResourceView, ApiError> {
    let is_used = |s: &ResourceView| {
        let is_held_back = s.resource.held_back_until.is_some_and(|until| until > s.now);
        s.live().is_some()
            || is_held_back
            || s.resource.queued > 0
            || s.resource.taken > 0
            || s.resource.state.is_some()
    };
    let is_there = |s: &ResourceView| s.declared().is_some() || is_used(s);
    let seen = ResourceView::read(context, key).await?.filter(is_there);
    seen.ok_or_else(|| Refusal::NoResource(key.clone()).into())
}

/// Checks that a lease id in a claim is that of a lease on `key`, or on one of its slots: a lease never changes its
/// resource, so this can be told beforehand. A lease that has ended passes; the engine refuses it.
async fn on_resource(context: &Context, key: &ResourceKey, claim: Claim) -> Result<Claim, ApiError> {
    if let Target::Lease { id, .. } = claim.target
        && let Some(lease) = context.engine().lease(id).await?
        && lease.key.whole() != *key
    {
        return Err(Refusal::NoLease(id).into());
    }
    Ok(claim)
}

/// Lists resources, declared or held.
#[utoipa::path(
    get, path = paths::RESOURCES, params(ResourceQuery),
    responses((status = 200, description = "A page of resources", body = ResourceList))
)]
async fn list_resources(
    caller: Caller<role::Reader>,
    Params(query): Params<ResourceQuery>,
) -> Reply<ResourceList> {
    page(&caller, &query).await
}

/// Lists the resources of a kind, declared or held.
#[utoipa::path(
    get, path = paths::RESOURCES_OF_KIND,
    params(("kind" = String, Path, description = "The kind of resource"), ResourceQuery),
    responses((status = 200, description = "A page of resources", body = ResourceList))
)]
async fn list_resources_of_kind(
    caller: Caller<role::Reader>,
    NamePath(kind): NamePath<String>,
    Params(query): Params<ResourceQuery>,
) -> Reply<ResourceList> {
    // The path says it already.
    field::maybe_name("kind", query.kind.as_deref())?;
    page(&caller, &ResourceQuery { kind: Some(kind), ..query }).await
}

async fn page(caller: &Caller<role::Reader>, query: &ResourceQuery) -> Reply<ResourceList> {
    let context = caller.context();
    let tenant = caller.tenant(query.tenant.as_deref())?;
    let asked = store::ResourceQuery {
        kind: field::maybe_name("kind", query.kind.as_deref())?,
        site: field::maybe_name("site", query.site.as_deref())?,
        leased: query.leased,
        labels: labels(query.label.as_deref().unwrap_or_default())?,
        undeclared: true,
        ..Default::default()
    };
    let (found, next) = resource_page(context, &tenant, asked, query.cursor.as_ref(), query.limit).await?;
    let resources = ResourceView::all(&found).map(ResourceView::shown).collect();
    Ok(Json(ResourceList { resources, next }))
}

fn labels(text: &str) -> Result<Vec<(String, String)>, ApiError> {
    let mut faults = Faults::default();
    faults.text("label", Some(text), LABEL_QUERY_BYTES_MAX);
    faults.done()?;
    let pair = |pair: &str| {
        let fault = || FieldError::new("label", "is not name=value, or several of them separated by commas");
        let (label, value) = pair.split_once('=').ok_or_else(fault)?;
        field::name("label", label)?;
        field::maybe_name("label", Some(value).filter(|value| !value.is_empty()))?;
        Ok((label.to_owned(), value.to_owned()))
    };
    if text.is_empty() { Ok(Vec::new()) } else { text.split(',').map(pair).collect() }
}

/// Returns a resource, its holder, and the first in line for it.
#[utoipa::path(
    get, path = paths::RESOURCE, params(ResourcePath, TenantQuery),
    responses((status = 200, description = "The resource", body = ResourceBody))
)]
async fn get_resource(caller: Caller<role::Reader>, at: At<ResourcePath>) -> Reply<ResourceBody> {
    show(caller.context(), &at.key(&caller)?).await
}

pub async fn show(context: &Context, key: &ResourceKey) -> Reply<ResourceBody> {
    let seen = see(context, key).await?;
    Ok(Json(ResourceBody { epoch: Some(seen.epoch), ..seen.shown() }))
}

/// Declares a resource, or replaces its declaration.
#[utoipa::path(
    put, path = paths::RESOURCE, params(ResourcePath, TenantQuery), request_body = PutResource,
    responses(
        (status = 200, description = "It existed, and its declaration was replaced", body = ResourceBody),
        (status = 201, description = "It was created", body = ResourceBody),
    )
)]
async fn put_resource(
    caller: Caller<role::Admin>,
    at: At<ResourcePath>,
    Body(body): Body<PutResource>,
) -> StatusReply<ResourceBody> {
    let context = caller.context();
    let key = at.key(&caller)?;
    let (_, created) = context.declare(key.clone(), body.declaration()?, false).await?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, show(context, &key).await?))
}

/// Deletes a resource.
#[utoipa::path(
    delete, path = paths::RESOURCE, params(ResourcePath, DeleteQuery),
    responses(
        (status = 204, description = "It was deleted"),
        (status = 409, description = "It is held, and `force` was not given"),
    )
)]
async fn delete_resource(
    caller: Caller<role::Admin>,
    NamePath(path): NamePath<ResourcePath>,
    Params(query): Params<DeleteQuery>,
) -> Result<StatusCode, ApiError> {
    let key = path.key(&caller, query.tenant.as_deref())?;
    // Without force nothing is taken from anyone, and the resource's history has it.
    let deed = Deed::to_resource("delete_resource", &key).with("force", true).with("fenced", query.fenced);
    let acting = caller.context().audited_if(query.force, deed);
    acting.execute(Command::Delete { key, force: query.force, fenced: query.fenced }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the lease on a resource.
#[utoipa::path(
    get, path = paths::RESOURCE_LEASE, params(ResourcePath, TenantQuery),
    responses(
        (status = 200, description = "The lease", body = HeldLease),
        (status = 404, description = "The resource is not held; `ended` describes the end of the last lease, if there was one"),
    )
)]
async fn get_resource_lease(caller: Caller<role::Reader>, at: At<ResourcePath>) -> Reply<HeldLease> {
    let key = at.key(&caller)?;
    let seen = ResourceView::read(caller.context(), &key).await?;
    match seen.as_ref().and_then(ResourceView::live) {
        Some(lease) => Ok(Json(HeldLease::of(lease))),
        None => Err(nobody_holds(caller.context(), &key).await?.into()),
    }
}

/// Acquires a free resource, or waits in line for one that is held. A grant after waiting lapses unless it is renewed
/// itself within `confirm_within_ms`: a heartbeat of its session does not confirm it. An undeclared resource exists
/// only while it is held.
#[utoipa::path(
    post, path = paths::RESOURCE_LEASE, params(ResourcePath, TenantQuery), request_body = AcquireResource,
    responses(
        (status = 200, description = "It had already been granted to the same request id", body = GrantBody),
        (status = 201, description = "It was granted", body = GrantBody),
        (status = 404, description = "There is no such session"),
        (status = 409, description = "It is held by another client, or held back"),
    )
)]
async fn acquire_resource(
    caller: Caller<role::Runner>,
    at: At<ResourcePath>,
    Body(body): Body<AcquireResource>,
) -> StatusReply<GrantBody> {
    hold(caller.context(), at.key(&caller)?, &body).await
}

/// Acquires a resource, waiting in line for it if the body says so.
pub async fn hold(context: &Context, key: ResourceKey, body: &AcquireResource) -> StatusReply<GrantBody> {
    let asked = body.terms()?;
    let wait = body.wait()?;
    context.check_resource_quota(&key).await?;
    let lease = new_lease_id(&key);
    let ask = asked.acquire(key, lease, Undeclared::Allow);
    let grant = context.acquire(ask, wait).await?;
    let status = if grant.repeated { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(GrantBody::of(&grant, context.engine().clock_slack_ms()))))
}

/// Releases the lease on a resource.
#[utoipa::path(
    delete, path = paths::RESOURCE_LEASE, params(ResourcePath, TenantQuery), request_body = ReleaseResource,
    responses(
        (status = 204, description = "It was released"),
        (status = 404, description = "There is no such resource or lease"),
        (status = 409, description = "The lease was lost, or is held by another client"),
    )
)]
async fn release_resource(
    caller: Caller<role::Runner>,
    at: At<ResourcePath>,
    Body(body): Body<ReleaseResource>,
) -> Result<StatusCode, ApiError> {
    let_go(caller.context(), at.key(&caller)?, &body).await
}

pub async fn let_go(
    context: &Context,
    key: ResourceKey,
    body: &ReleaseResource,
) -> Result<StatusCode, ApiError> {
    let claim = on_resource(context, &key, body.claim(key.clone())?).await?;
    context.release(claim, body.state()?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Renews a lease.
#[utoipa::path(
    post, path = paths::RESOURCE_LEASE_RENEW, params(ResourcePath, TenantQuery), request_body = RenewResource,
    responses(
        (status = 200, description = "It was renewed", body = GrantBody),
        (status = 404, description = "There is no such resource, lease or session"),
        (status = 409, description = "The lease was lost, or is held by another client"),
    )
)]
async fn renew_resource(
    caller: Caller<role::Runner>,
    at: At<ResourcePath>,
    Body(body): Body<RenewResource>,
) -> Reply<GrantBody> {
    keep(caller.context(), at.key(&caller)?, &body).await
}

pub async fn keep(context: &Context, key: ResourceKey, body: &RenewResource) -> Reply<GrantBody> {
    let claim = on_resource(context, &key, body.claim(key.clone())?).await?;
    let grant = context.renew(claim, body.ttl_ms()?, None).await?;
    Ok(Json(GrantBody::of(&grant, context.engine().clock_slack_ms())))
}

/// Revokes a lease. The resource is held back until the old deadline, unless the old holder is known to be fenced off.
/// With `fenced`, a free resource stops being held back.
#[utoipa::path(
    post, path = paths::RESOURCE_LEASE_REVOKE,
    params(ResourcePath, TenantQuery), request_body = RevokeResource,
    responses(
        (status = 200, description = "It was revoked", body = RevokedLease),
        (status = 404, description = "There is no such resource or lease"),
        (status = 409, description = "Nobody holds it, or the lease is not the one that the body names"),
    )
)]
async fn revoke_resource(
    caller: Caller<role::Admin>,
    at: At<ResourcePath>,
    Body(body): Body<RevokeResource>,
) -> Reply<RevokedLease> {
    let context = caller.context();
    let key = at.key(&caller)?;
    let claim = on_resource(context, &key, body.claim(key.clone())?).await?;
    let reason = body.reason()?;
    let deed = Deed::to_resource("revoke_lease", &key).with_some("token", claim.token.map(|token| token.0));
    let deed = deed.with("fenced", body.fenced).with_some("reason", reason.as_ref());
    let (lease, held_back_ms) = context.audited(deed).revoke(claim, body.fenced, reason).await?;
    Ok(Json(RevokedLease { lease_id: lease.map(|lease| lease.0), held_back_ms }))
}

/// Returns the state document of a resource.
#[utoipa::path(
    get, path = paths::RESOURCE_STATE, params(ResourcePath, TenantQuery),
    responses(
        (status = 200, description = "The document", body = StateDocument),
        (status = 404, description = "There is no such resource, or it has no state document"),
    )
)]
async fn get_state(caller: Caller<role::Reader>, at: At<ResourcePath>) -> Reply<StateDocument> {
    let key = at.key(&caller)?;
    let seen = see(caller.context(), &key).await?;
    let nothing = || Problem::new(ErrorCode::NotFound, format!("{key} has no state document"));
    let state = seen.resource.state.as_ref().ok_or_else(nothing)?;
    Ok(Json(StateDocument::of(state)))
}

/// Writes the state document under an active lease.
#[utoipa::path(
    put, path = paths::RESOURCE_STATE, params(ResourcePath, TenantQuery), request_body = PutState,
    responses(
        (status = 200, description = "It was written", body = StateDocument),
        (status = 404, description = "There is no such resource or lease"),
        (status = 409, description = "The lease was lost, or the sequence number is not above the stored one"),
    )
)]
async fn put_state(
    caller: Caller<role::Runner>,
    at: At<ResourcePath>,
    Body(body): Body<PutState>,
) -> Reply<StateDocument> {
    let context = caller.context();
    let key = at.key(&caller)?;
    let claim = on_resource(context, &key, body.claim(key.clone())?).await?;
    Ok(Json(StateDocument::of(&context.write_state(claim, body.write()?).await?)))
}

/// Cancels an acquire by its request id, even one that has not arrived yet: it can no longer be granted, and a grant
/// that it already got is released.
#[utoipa::path(
    post, path = paths::RESOURCE_LEASE_CANCEL,
    params(ResourcePath, TenantQuery), request_body = CancelRequest,
    responses((status = 204, description = "It was cancelled"))
)]
async fn cancel_request(
    caller: Caller<role::Runner>,
    at: At<ResourcePath>,
    Body(body): Body<CancelRequest>,
) -> Result<StatusCode, ApiError> {
    let key = at.key(&caller)?;
    caller.context().execute(Command::CancelRequest(body.request(key)?)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the events of a resource and its leases.
#[utoipa::path(
    get, path = paths::RESOURCE_HISTORY, params(ResourcePath, HistoryQuery),
    responses(
        (status = 200, description = "The events, oldest or newest first, as far back as they are kept", body = ResourceHistory),
        (status = 404, description = "There is no such resource, and no event of one is kept"),
    )
)]
async fn resource_history(
    caller: Caller<role::Reader>,
    NamePath(path): NamePath<ResourcePath>,
    Params(query): Params<HistoryQuery>,
) -> Reply<ResourceHistory> {
    let context = caller.context();
    let key = path.key(&caller, query.tenant.as_deref())?;
    let asked = store::EventQuery { resource: Some(key.clone()), ..Default::default() };
    let (events, next) = event_page(context, &key.tenant, asked, &query).await?;
    if events.is_empty() && query.cursor.is_none() {
        see(context, &key).await?;
    }
    Ok(Json(ResourceHistory { events, next }))
}
