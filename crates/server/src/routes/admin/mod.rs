//! Administration: keys, tenants, tokens. An administrator of one tenant sees and changes only that tenant's keys and
//! quotas; what concerns the whole store needs a key that is for no tenant. Export and import are in [`transfer`].

pub mod transfer;

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use solehold_api::{
    admin::{
        ApiKey, AuditList, CreateKey, KeyList, NewHistory, NewKey, PutTenant, RaiseToken, RaisedToken,
        RestoreNotice, RotateKey, Tenant, TenantList, Usage,
    },
    field::{self, Faults},
    limits::KEY_EXPIRY_SECONDS_MAX,
    page::{self, PageCursor, PageQuery},
    paths,
};
use solehold_core::{key::Name, outcome::Refusal};
use solehold_engine::history::Beginning;

use crate::{
    http::{ApiError, Body, Caller, Context, Json, NamePath, Params, Reply, StatusReply, role},
    state::{
        audit,
        keys::{self, Key},
        quota,
        records::collection,
    },
};

routes! { "administration":
    list_keys, create_key, get_key, expire_key, revoke_key, rotate_key, list_tenants, get_tenant,
    put_tenant, raise_token, restored, list_audit
}

/// Sets when a key expires.
#[derive(Debug, Deserialize, Serialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
struct ExpireKey {
    /// It expires after this many seconds; at once if 0, never if null.
    expires_in_seconds: Option<u64>,
}

impl ExpireKey {
    fn in_ms(&self) -> Result<Option<u64>, ApiError> {
        let mut faults = Faults::default();
        if let Some(seconds) = self.expires_in_seconds {
            faults.within("expires_in_seconds", seconds, 0, KEY_EXPIRY_SECONDS_MAX);
        }
        faults.done()?;
        Ok(self.expires_in_seconds.map(|seconds| seconds * 1_000))
    }
}

/// A key that the caller may know of: one of its tenant's, not revoked. Any other does not exist for it.
async fn known_key(caller: &Caller<role::Admin>, id: &str) -> Result<Key, ApiError> {
    let id = field::name("id", id)?;
    let key = keys::get(caller.context().engine(), &id).await?;
    let is_known =
        key.revoked_at.is_none() && (caller.scope().is_none() || key.tenant.as_ref() == caller.scope());
    if !is_known {
        return Err(Refusal::NoRecord { collection: collection("key"), id }.into());
    }
    Ok(key)
}

/// The name that the page before this one ended with.
fn page_after(query: &PageQuery) -> Result<Option<Name>, ApiError> {
    match query.cursor.as_ref().map(|cursor| cursor.0.as_slice()) {
        None => Ok(None),
        Some([name]) => Ok(Some(Name::new(name).map_err(|_| page::unknown_cursor())?)),
        Some(_) => Err(page::unknown_cursor().into()),
    }
}

/// A page of what is sorted by name: the items after the cursor, and where the next page begins.
fn page<T>(items: Vec<(Name, T)>, query: &PageQuery) -> Result<(Vec<T>, Option<PageCursor>), ApiError> {
    let size = page::size(query.limit)?;
    let after = page_after(query)?;
    let mut rest =
        items.into_iter().filter(|(name, _)| after.as_ref().is_none_or(|after| name > after)).peekable();
    let mut last = None;
    let page: Vec<_> = rest.by_ref().take(size).map(|(name, item)| (last = Some(name), item).1).collect();
    let next = rest.peek().and(last).map(|name| PageCursor(vec![name.to_string()]));
    Ok((page, next))
}

/// Lists the keys that are not revoked.
#[utoipa::path(
    get, path = paths::KEYS, params(PageQuery),
    responses((status = 200, description = "The keys, without their secrets", body = KeyList))
)]
async fn list_keys(caller: Caller<role::Admin>, Params(query): Params<PageQuery>) -> Reply<KeyList> {
    let tenant = caller.tenant_or_all(query.tenant.as_deref())?;
    let all = keys::list(caller.context().engine()).await?.into_iter();
    let known = all.filter(|key| key.revoked_at.is_none() && (tenant.is_none() || key.tenant == tenant));
    let (keys, next) = page(known.map(|key| (key.id.clone(), key.about())).collect(), &query)?;
    Ok(Json(KeyList { keys, next }))
}

/// Creates a key. Its secret is in this answer and nowhere else.
#[utoipa::path(
    post, path = paths::KEYS, request_body = CreateKey,
    responses((status = 201, description = "The key and its secret", body = NewKey))
)]
async fn create_key(caller: Caller<role::Admin>, Body(create): Body<CreateKey>) -> StatusReply<NewKey> {
    let context = caller.context();
    let tenant = caller.tenant_or_all(create.tenant.as_deref())?;
    let new = keys::NewKey::of(&create, tenant)?;
    let issued = keys::create(context.operator(), new).await?;
    context.refresh().await?;
    Ok((StatusCode::CREATED, Json(issued.shown_once())))
}

/// Returns a key, without its secret.
#[utoipa::path(
    get, path = paths::KEY, params(("id" = String, Path)),
    responses((status = 200, description = "The key, without its secret", body = ApiKey))
)]
async fn get_key(caller: Caller<role::Admin>, NamePath(id): NamePath<String>) -> Reply<ApiKey> {
    Ok(Json(known_key(&caller, &id).await?.about()))
}

/// Sets when a key expires.
#[utoipa::path(
    put, path = paths::KEY, params(("id" = String, Path)), request_body = ExpireKey,
    responses((status = 200, description = "The key as it is now", body = ApiKey))
)]
async fn expire_key(
    caller: Caller<role::Admin>,
    NamePath(id): NamePath<String>,
    Body(expire): Body<ExpireKey>,
) -> Reply<ApiKey> {
    let context = caller.context();
    let key = known_key(&caller, &id).await?;
    let key = keys::expire(context.operator(), &key.id, expire.in_ms()?).await?;
    context.refresh().await?;
    Ok(Json(key.about()))
}

/// Revokes a key permanently.
#[utoipa::path(
    delete, path = paths::KEY,
    params(("id" = String, Path)), responses((status = 204, description = "It was revoked"))
)]
async fn revoke_key(
    caller: Caller<role::Admin>,
    NamePath(id): NamePath<String>,
) -> Result<StatusCode, ApiError> {
    let context = caller.context();
    let key = known_key(&caller, &id).await?;
    keys::revoke(context.operator(), &key.id).await?;
    context.refresh().await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Gives a key a new secret. The old one still works for a grace period.
#[utoipa::path(
    post, path = paths::KEY_ROTATE, params(("id" = String, Path)), request_body = RotateKey,
    responses((status = 200, description = "The key and its new secret", body = NewKey))
)]
async fn rotate_key(
    caller: Caller<role::Admin>,
    NamePath(id): NamePath<String>,
    Body(rotate): Body<RotateKey>,
) -> Reply<NewKey> {
    let context = caller.context();
    let key = known_key(&caller, &id).await?;
    let grace_ms = rotate.grace_ms()?;
    let expires_in_ms = rotate.expires_in_seconds.map(|seconds| seconds * 1_000);
    let issued = keys::rotate(context.operator(), &key.id, grace_ms, expires_in_ms).await?;
    context.refresh().await?;
    Ok(Json(issued.shown_once()))
}

async fn tenant_as_it_is(context: &Context, tenant: &Name) -> Result<Tenant, ApiError> {
    let usage = context.engine().usage(Some(tenant)).await?;
    let watches = context.quotas.watches.of(tenant);
    let usage = Usage { resources: usage.resources, sessions: usage.sessions, watches };
    Ok(Tenant { tenant: tenant.to_string(), quotas: context.quotas_of(tenant), usage })
}

/// Lists the tenants that have keys or quotas of their own, and `default`.
#[utoipa::path(
    get, path = paths::TENANTS, params(PageQuery),
    responses((status = 200, description = "The tenants", body = TenantList))
)]
async fn list_tenants(caller: Caller<role::Admin>, Params(query): Params<PageQuery>) -> Reply<TenantList> {
    let context = caller.context();
    context.refresh().await?;
    let mut names = context.ring.tenants();
    names.insert(Name::new("default").expect("a short name"));
    let asked = caller.tenant_or_all(query.tenant.as_deref())?;
    let names = names.into_iter().filter(|name| asked.as_ref().is_none_or(|asked| asked == name));
    let (names, next) = page(names.map(|name| (name.clone(), name)).collect(), &query)?;
    let mut tenants = Vec::with_capacity(names.len());
    for name in &names {
        tenants.push(tenant_as_it_is(context, name).await?);
    }
    Ok(Json(TenantList { tenants, next }))
}

/// Returns the quotas of a tenant and their usage.
#[utoipa::path(
    get, path = paths::TENANT,
    params(("tenant" = String, Path)), responses((status = 200, description = "The tenant", body = Tenant))
)]
async fn get_tenant(caller: Caller<role::Admin>, NamePath(tenant): NamePath<String>) -> Reply<Tenant> {
    let tenant = caller.tenant(Some(&tenant))?;
    Ok(Json(tenant_as_it_is(caller.context(), &tenant).await?))
}

/// Sets the quotas of a tenant. Only those that are named change: a number sets one, `null` removes the limit. A key of
/// the tenant itself cannot do this.
#[utoipa::path(
    put, path = paths::TENANT, params(("tenant" = String, Path)), request_body = PutTenant,
    responses((status = 200, description = "The tenant as it is now", body = Tenant))
)]
async fn put_tenant(
    caller: Caller<role::Admin>,
    NamePath(tenant): NamePath<String>,
    Body(put): Body<PutTenant>,
) -> Reply<Tenant> {
    let context = caller.context();
    let tenant = caller.tenant(Some(&tenant))?;
    caller.must_be_unscoped()?;
    quota::change(&context.operator(), &tenant, put.quotas).await?;
    context.refresh().await?;
    Ok(Json(tenant_as_it_is(context, &tenant).await?))
}

/// Makes tokens continue above a number, for when a gate has seen larger ones than the store gives.
#[utoipa::path(
    post, path = paths::RAISE_TOKEN, request_body = RaiseToken,
    responses((status = 200, description = "Tokens continue above this number", body = RaisedToken))
)]
async fn raise_token(caller: Caller<role::StoreAdmin>, Body(raise): Body<RaiseToken>) -> Reply<RaisedToken> {
    let above = caller.context().raise_token(raise.above).await?;
    Ok(Json(RaisedToken { above }))
}

/// Declares that the store was restored from a backup. It continues as another history: tokens jump above all that can
/// have been given, and nothing is granted or renewed until the longest lease that may have been lost has expired,
/// unless all holders were stopped. A store that was retired works again.
#[utoipa::path(
    post, path = paths::RESTORED, request_body = RestoreNotice,
    responses((status = 200, description = "Where the new history begins", body = NewHistory))
)]
async fn restored(
    caller: Caller<role::StoreAdmin>,
    Body(restored): Body<RestoreNotice>,
) -> Reply<NewHistory> {
    let operator = caller.context().operator();
    let Beginning { cursor, barred_ms } = operator.restored(restored.holders_stopped).await?;
    Ok(Json(NewHistory { epoch: cursor.epoch, above: cursor.revision.0, barred_ms }))
}

/// Lists what operators did, the newest first: who, when, to what. What was refused is not among it. Of a key of one
/// tenant, what concerns that tenant.
#[utoipa::path(
    get, path = paths::AUDIT, params(PageQuery),
    responses((status = 200, description = "A page of the audit trail", body = AuditList))
)]
async fn list_audit(caller: Caller<role::Admin>, Params(query): Params<PageQuery>) -> Reply<AuditList> {
    let tenant = caller.tenant_or_all(query.tenant.as_deref())?;
    let before = page_after(&query)?;
    let size = page::size(query.limit)?;
    let engine = caller.context().engine();
    let mut entries = audit::list(engine, tenant.as_ref(), before.as_ref(), size + 1).await?;
    let is_last = entries.len() <= size;
    entries.truncate(size);
    let last = entries.last().filter(|_| !is_last);
    let next = last.map(|entry| PageCursor(vec![entry.id.clone()]));
    Ok(Json(AuditList { entries, next }))
}
