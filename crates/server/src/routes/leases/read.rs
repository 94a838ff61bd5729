//! Reading leases: one by its id, also after its end; those of a runner; that of a camera; all of them.

use serde::Deserialize;
use solehold_api::{
    field, kind,
    leases::{EndedLease, Envelope, FlatFields, Lease, LeaseHistory, LeaseList, LeaseQuery},
    limits::PAGE_SIZE_MAX,
    page::{PageCursor, PageQuery},
    paths,
};
use solehold_core::{
    command::Footprint,
    event::{Event, What},
    key::{LeaseId, Name},
    lease::LeaseStatus,
    time::StoreTime,
};
use solehold_engine::store::{EventQuery, ResourcePage, ResourceQuery};
use utoipa_axum::router::OpenApiRouter;

use super::{
    lease_id,
    reply::{self, Reply},
};
use crate::{
    Context,
    http::{ApiError, Caller, GuardedContext, Json, NamePath, Params, TenantQuery, role},
    routes::{
        history::event_page,
        resource_view::{ResourceView, is_live, nobody_holds, resource_key, resource_page},
        watch::wire_cursor,
    },
};

pub fn routes() -> OpenApiRouter<GuardedContext> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get))
        .routes(routes!(history))
        .routes(routes!(of_runner))
        .routes(routes!(of_camera))
}

/// Returns a lease. `success` says whether it is held; if it has ended, the answer says how.
#[utoipa::path(
    get, path = paths::LEASE, tag = "leases", operation_id = "get_lease",
    params(("lease_id" = String, Path, description = "The lease"), TenantQuery),
    responses(
        (status = 200, description = "The lease if `success` is true; otherwise how it ended", body = Envelope),
        (status = 404, description = "There is no such lease, and no event of one is kept"),
    )
)]
async fn get(
    caller: Caller<role::Reader>,
    NamePath(id): NamePath<String>,
    Params(query): Params<TenantQuery>,
) -> Reply {
    let context = caller.context();
    let tenant = caller.tenant(query.tenant.as_deref())?;
    let lease = lease_id(&id)?;
    match here(context, &tenant, lease).await? {
        Some(envelope) => Ok(Json(envelope)),
        None => remembered(context, &tenant, lease).await,
    }
}

/// A lease that is on its resource: held, expired but not swept yet, or pending.
async fn here(context: &Context, tenant: &Name, id: LeaseId) -> Result<Option<Envelope>, ApiError> {
    let loaded = context.engine().load(&Footprint { leases: vec![id], ..Default::default() }).await?;
    let key = loaded.state.resource_of(id).filter(|key| key.tenant == *tenant);
    key.map_or(Ok(()), |key| context.caller().must_see(key))?;
    let Some(seen) = key.and_then(|key| ResourceView::of(&loaded, key)) else { return Ok(None) };
    let revision = loaded.cursor.revision;
    if let Some(pending) = seen.resource.pending.as_ref().filter(|pending| pending.id == id) {
        return Ok(Some(Envelope::held(Lease::pending(&seen.resource, pending, seen.now, revision))));
    }
    let Some(lease) = seen.lease.as_ref().filter(|lease| lease.lease.id == id) else { return Ok(None) };
    if is_live(lease) {
        return Ok(Some(Envelope::held(Lease::of(lease, revision))));
    }
    let free_at = lease.deadline.plus_ms(seen.resource.lock_delay_ms());
    Ok(Some(ended(id, LeaseStatus::Expired, free_at.ms_after(seen.now))))
}

/// How a lease ended, as the audit trail has it.
async fn remembered(context: &Context, tenant: &Name, id: LeaseId) -> Reply {
    let page = context.engine().events(&EventQuery { lease: Some(id), ..all() }).await?;
    let events = page.events.iter().rev().filter(|event| event.key.tenant == *tenant);
    let end = events.filter_map(|event| end_of(event).map(|end| (event, end))).next();
    let end = end.filter(|(event, _)| context.caller().may_see(&event.key));
    let Some((event, (status, until))) = end else { return Err(reply::no_lease(&id.to_string())) };
    let now = context.engine().resource(&event.key).await?.now;
    Ok(Json(ended(id, status, until.map_or(0, |until| until.ms_after(now)))))
}

fn end_of(event: &Event) -> Option<(LeaseStatus, Option<StoreTime>)> {
    match &event.what {
        What::Released(ended) => Some((LeaseStatus::Released, ended.held_back_until)),
        What::Expired(ended) => Some((LeaseStatus::Expired, ended.held_back_until)),
        What::Revoked(ended) => Some((LeaseStatus::Revoked, ended.held_back_until)),
        _ => None,
    }
}

/// A lease that has ended: a client that only looks at `success` must not take it for held.
fn ended(id: LeaseId, status: LeaseStatus, held_back_ms: u64) -> Envelope {
    let how = match status {
        LeaseStatus::Released => "was released",
        LeaseStatus::Revoked => "was revoked",
        _ => "has expired",
    };
    Envelope {
        success: false,
        lease: None,
        error: Some(format!("lease {id} {how}")),
        retry_after_seconds: None,
        flat: FlatFields::Ended(EndedLease { lease_id: id.0, status, held_back_ms }),
    }
}

fn all() -> EventQuery {
    EventQuery { limit: PAGE_SIZE_MAX, ..Default::default() }
}

/// Returns the events of a lease.
#[utoipa::path(
    get, path = paths::LEASE_HISTORY, tag = "leases", operation_id = "lease_history",
    params(("lease_id" = String, Path, description = "The lease"), PageQuery),
    responses(
        (status = 200, description = "The events, oldest first, as far back as they are kept", body = LeaseHistory),
        (status = 404, description = "There is no such lease, and no event of one is kept"),
    )
)]
async fn history(
    caller: Caller<role::Reader>,
    NamePath(id): NamePath<String>,
    Params(query): Params<PageQuery>,
) -> Result<Json<LeaseHistory>, ApiError> {
    let context = caller.context();
    let tenant = caller.tenant(query.tenant.as_deref())?;
    let lease = lease_id(&id)?;
    let asked = EventQuery { lease: Some(lease), ..Default::default() };
    let (events, next) = event_page(context, &tenant, asked, &query).await?;
    if events.is_empty() && here(context, &tenant, lease).await?.is_none() {
        return Err(reply::no_lease(&id));
    }
    Ok(Json(LeaseHistory { lease_id: lease.0, events, next }))
}

/// Lists the leases of a runner.
#[utoipa::path(
    get, path = paths::LEASES_OF_RUNNER, tag = "leases", operation_id = "leases_of_runner",
    params(("runner_id" = String, Path, description = "The runner"), PageQuery),
    responses((status = 200, description = "Its leases; none, if the runner is unknown", body = LeaseList))
)]
async fn of_runner(
    caller: Caller<role::Reader>,
    NamePath(runner): NamePath<String>,
    Params(query): Params<PageQuery>,
) -> Result<Json<LeaseList>, ApiError> {
    let tenant = caller.tenant(query.tenant.as_deref())?;
    let holder = field::maybe_name("runner_id", Some(&runner))?;
    let asked = ResourceQuery { holder, leased: Some(true), undeclared: true, ..Default::default() };
    // Existing clients know no pages: a list is as long as a page may be, unless they ask for less.
    let limit = query.limit.or(Some(PAGE_SIZE_MAX as i64));
    let (found, next) = resource_page(caller.context(), &tenant, asked, query.cursor.as_ref(), limit).await?;
    Ok(Json(shown(&found, next, LeaseStatus::Active)))
}

/// Returns the lease on a camera.
#[utoipa::path(
    get, path = paths::LEASE_OF_CAMERA, tag = "leases", operation_id = "lease_of_camera",
    params(("camera_uuid" = String, Path, description = "The camera"), TenantQuery),
    responses(
        (status = 200, description = "The lease", body = Envelope),
        (status = 404, description = "Nobody holds it, or there is no such camera"),
    )
)]
async fn of_camera(
    caller: Caller<role::Reader>,
    NamePath(camera): NamePath<String>,
    Params(query): Params<TenantQuery>,
) -> Reply {
    let tenant = caller.tenant(query.tenant.as_deref())?;
    let key = resource_key(tenant, kind::CAMERA, "camera_uuid", &camera)?;
    caller.must_see(&key)?;
    let loaded = caller.context().engine().resource(&key).await?;
    let seen = ResourceView::of(&loaded, &key);
    let lease = seen.as_ref().and_then(ResourceView::live).ok_or_else(|| nobody_holds(&key))?;
    Ok(Json(Envelope::held(Lease::of(lease, loaded.cursor.revision))))
}

/// What else a list of leases may be asked for.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
struct LeaseFilter {
    /// The same as `runner_id`, for those that are no runners.
    holder: Option<String>,
    /// The same as `site_id`.
    site: Option<String>,
    /// `active` if not given. `expired` lists leases that expired just now; leases that ended otherwise are not listed.
    #[param(value_type = Option<String>)]
    status: Option<LeaseStatus>,
}

/// Lists leases. A page may have fewer items than `limit`; the last has no `next`.
#[utoipa::path(
    get, path = paths::LEASES, tag = "leases", operation_id = "list_leases", params(LeaseQuery, LeaseFilter),
    responses((status = 200, description = "A page of leases", body = LeaseList))
)]
async fn list(
    caller: Caller<role::Reader>,
    Params(query): Params<LeaseQuery>,
    Params(filter): Params<LeaseFilter>,
) -> Result<Json<LeaseList>, ApiError> {
    let tenant = caller.tenant(query.tenant.as_deref())?;
    let status = filter.status.unwrap_or(LeaseStatus::Active);
    let (runner, holder) = (query.runner_id.as_deref(), filter.holder.as_deref());
    let (site_id, site) = (query.site_id.as_deref(), filter.site.as_deref());
    let asked = ResourceQuery {
        kind: field::maybe_name("kind", query.kind.as_deref())?,
        holder: field::maybe_name("holder", holder)?.or(field::maybe_name("runner_id", runner)?),
        site: field::maybe_name("site", site)?.or(field::maybe_name("site_id", site_id)?),
        leased: Some(status != LeaseStatus::Expired).filter(|_| status != LeaseStatus::Pending),
        undeclared: true,
        ..Default::default()
    };
    let (found, next) =
        resource_page(caller.context(), &tenant, asked, query.cursor.as_ref(), query.limit).await?;
    Ok(Json(shown(&found, next, status)))
}

/// The leases of that status on what was found.
fn shown(found: &ResourcePage, next: Option<PageCursor>, status: LeaseStatus) -> LeaseList {
    let revision = found.loaded.cursor.revision;
    let lease = |seen: ResourceView| match (status, &seen.resource.pending) {
        (LeaseStatus::Pending, Some(pending)) if seen.now < pending.deadline => {
            Some(Lease::pending(&seen.resource, pending, seen.now, revision))
        }
        _ => seen.lease.filter(|lease| lease.status == status).map(|lease| Lease::of(&lease, revision)),
    };
    let leases = ResourceView::all(found).filter_map(lease).collect();
    LeaseList { leases, next, cursor: wire_cursor(found.loaded.cursor) }
}
