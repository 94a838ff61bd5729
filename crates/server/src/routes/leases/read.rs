//! Reading leases: one by its id, also after its end; those of a runner; that of a camera; all of them.

use serde::Deserialize;
use solehold_api::{
    field, kind,
    leases::{Envelope, LeaseBody, LeaseHistory, LeaseList, LeaseQuery},
    limits::PAGE_SIZE_MAX,
    page::{HistoryQuery, PageCursor, PageQuery},
    paths,
};
use solehold_core::{
    command::{Claim, Footprint, Target},
    key::{LeaseId, Name},
    lease::LeaseStatus,
};
use solehold_engine::store::{EventQuery, ResourcePage, ResourceQuery};

use super::{lease_id, no_lease};
use crate::{
    context::tenants::Named,
    http::{ApiError, At, Caller, Context, Json, NamePath, Params, Reply, TenantQuery, role},
    routes::{
        history::event_page,
        resource_view::{ResourceView, nobody_holds, resource_key, resource_page},
        watch::wire_cursor,
    },
};

routes!["leases": list_leases, get_lease, lease_history, leases_of_runner, lease_of_camera];

/// Returns a lease. `success` says whether it is held; if it has ended, the answer says how.
#[utoipa::path(
    get, path = paths::LEASE, params(("lease_id" = String, Path, description = "The lease"), TenantQuery),
    responses(
        (status = 200, description = "The lease if `success` is true; otherwise how it ended", body = Envelope),
        (status = 404, description = "There is no such lease, and no event of one is kept"),
    )
)]
async fn get_lease(caller: Caller<role::Reader>, at: At<String>) -> Reply<Envelope> {
    let context = caller.context();
    let lease = lease_id(&at.path)?;
    let tenant = context.tenant_of(at.tenant.as_deref(), Named::Lease(lease)).await?;
    if let Some(held) = held(context, &tenant, lease).await? {
        return Ok(Json(Envelope::held(held)));
    }
    let past = context.find_past(&by_id(&tenant, lease)).await?;
    let past = past.ok_or_else(|| no_lease(&at.path))?;
    Ok(Json(Envelope::over(past.shown())))
}

/// A lease that is active or pending.
async fn held(context: &Context, tenant: &Name, id: LeaseId) -> Result<Option<LeaseBody>, ApiError> {
    let loaded = context.engine().load(&Footprint { leases: vec![id], ..Default::default() }).await?;
    let key = loaded.state.resource_of(id).filter(|key| key.tenant == *tenant);
    key.map_or(Ok(()), |key| context.caller().must_see(key))?;
    let Some(seen) = key.and_then(|key| ResourceView::of(&loaded, key)) else { return Ok(None) };
    let revision = loaded.cursor.revision;
    if let Some(pending) = seen.resource.pending.as_ref().filter(|pending| pending.id == id) {
        return Ok(Some(LeaseBody::pending(&seen.resource, pending, seen.now, revision)));
    }
    Ok(seen.live().filter(|lease| lease.lease.id == id).map(|lease| LeaseBody::of(lease, revision)))
}

fn by_id(tenant: &Name, id: LeaseId) -> Claim {
    Claim { target: Target::Lease { tenant: tenant.clone(), id }, token: None, session: None, holder: None }
}

/// Returns the events of a lease.
#[utoipa::path(
    get, path = paths::LEASE_HISTORY,
    params(("lease_id" = String, Path, description = "The lease"), HistoryQuery),
    responses(
        (status = 200, description = "The events, oldest or newest first, as far back as they are kept", body = LeaseHistory),
        (status = 404, description = "There is no such lease, and no event of one is kept"),
    )
)]
async fn lease_history(
    caller: Caller<role::Reader>,
    NamePath(id): NamePath<String>,
    Params(query): Params<HistoryQuery>,
) -> Reply<LeaseHistory> {
    let context = caller.context();
    let lease = lease_id(&id)?;
    let tenant = context.tenant_of(query.tenant.as_deref(), Named::Lease(lease)).await?;
    let asked = EventQuery { lease: Some(lease), ..Default::default() };
    let (events, next) = event_page(context, &tenant, asked, &query).await?;
    let is_known = async || -> Result<bool, ApiError> {
        let is_held = held(context, &tenant, lease).await?.is_some();
        Ok(is_held || context.find_past(&by_id(&tenant, lease)).await?.is_some())
    };
    if events.is_empty() && !is_known().await? {
        return Err(no_lease(&id));
    }
    Ok(Json(LeaseHistory { lease_id: lease.0, events, next }))
}

/// Lists the leases of a runner.
#[utoipa::path(
    get, path = paths::LEASES_OF_RUNNER,
    params(("runner_id" = String, Path, description = "The runner"), PageQuery),
    responses((status = 200, description = "Its leases; none, if the runner is unknown", body = LeaseList))
)]
async fn leases_of_runner(
    caller: Caller<role::Reader>,
    NamePath(runner): NamePath<String>,
    Params(query): Params<PageQuery>,
) -> Reply<LeaseList> {
    let tenant = caller.tenant_or_all(query.tenant.as_deref())?;
    let holder = field::maybe_name("runner_id", Some(&runner))?;
    let asked = ResourceQuery { holder, leased: Some(true), undeclared: true, ..Default::default() };
    // Existing clients do not page: without `limit` a list has the maximum page size.
    let limit = query.limit.or(Some(PAGE_SIZE_MAX as i64));
    let (found, next) =
        resource_page(caller.context(), tenant.as_ref(), asked, query.cursor.as_ref(), limit).await?;
    Ok(Json(shown(&found, next, LeaseStatus::Active)))
}

/// Returns the lease on a camera.
#[utoipa::path(
    get, path = paths::LEASE_OF_CAMERA,
    params(("camera_uuid" = String, Path, description = "The camera"), TenantQuery),
    responses(
        (status = 200, description = "The lease", body = Envelope),
        (status = 404, description = "Nobody holds it, or there is no such camera"),
    )
)]
async fn lease_of_camera(caller: Caller<role::Reader>, at: At<String>) -> Reply<Envelope> {
    let name = field::name("camera_uuid", &at.path)?;
    let tenant = caller.context().tenant_of(at.tenant.as_deref(), Named::Camera(&name)).await?;
    let key = resource_key(tenant, kind::CAMERA, "camera_uuid", &at.path)?;
    caller.must_see(&key)?;
    let loaded = caller.context().engine().resource(&key).await?;
    let seen = ResourceView::of(&loaded, &key);
    match seen.as_ref().and_then(ResourceView::live) {
        Some(lease) => Ok(Json(Envelope::held(LeaseBody::of(lease, loaded.cursor.revision)))),
        None => Err(nobody_holds(caller.context(), &key).await?.into()),
    }
}

/// Further filters of a list of leases.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
struct LeaseFilter {
    /// `active` if not given. `expired` lists leases that expired just now; leases that ended otherwise are not listed.
    #[param(value_type = Option<String>)]
    status: Option<LeaseStatus>,
}

/// Lists leases. A page may have fewer items than `limit`; the last has no `next`.
#[utoipa::path(
    get, path = paths::LEASES, params(LeaseQuery, LeaseFilter),
    responses((status = 200, description = "A page of leases", body = LeaseList))
)]
async fn list_leases(
    caller: Caller<role::Reader>,
    Params(query): Params<LeaseQuery>,
    Params(filter): Params<LeaseFilter>,
) -> Reply<LeaseList> {
    let tenant = caller.tenant_or_all(query.tenant.as_deref())?;
    let status = filter.status.unwrap_or(LeaseStatus::Active);
    let runner = query.runner_id.as_deref();
    let holder = query.holder.as_deref();
    let site_id = query.site_id.as_deref();
    let site = query.site.as_deref();
    let asked = ResourceQuery {
        kind: field::maybe_name("kind", query.kind.as_deref())?,
        holder: field::maybe_name("holder", holder)?.or(field::maybe_name("runner_id", runner)?),
        site: field::maybe_name("site", site)?.or(field::maybe_name("site_id", site_id)?),
        leased: Some(status != LeaseStatus::Expired).filter(|_| status != LeaseStatus::Pending),
        undeclared: true,
        ..Default::default()
    };
    let (found, next) =
        resource_page(caller.context(), tenant.as_ref(), asked, query.cursor.as_ref(), query.limit).await?;
    Ok(Json(shown(&found, next, status)))
}

/// The leases of that status on what was found.
fn shown(found: &ResourcePage, next: Option<PageCursor>, status: LeaseStatus) -> LeaseList {
    let revision = found.loaded.cursor.revision;
    let lease = |seen: ResourceView| match (status, &seen.resource.pending) {
        (LeaseStatus::Pending, Some(pending)) if seen.now < pending.deadline => {
            Some(LeaseBody::pending(&seen.resource, pending, seen.now, revision))
        }
        _ => seen.lease.filter(|lease| lease.status == status).map(|lease| LeaseBody::of(&lease, revision)),
    };
    let leases = ResourceView::all(found).filter_map(lease).collect();
    LeaseList { leases, next, cursor: wire_cursor(found.loaded.cursor) }
}
