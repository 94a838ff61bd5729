//! Zones of a site.

use serde::Deserialize;
use solehold_api::{
    config::{Deleted, Zone, ZoneId, ZoneList},
    field::{self, FieldError},
    kind,
    limits::PAGE_SIZE_MAX,
    page::PageQuery,
    paths,
    resources::DeleteQuery,
};
use solehold_core::{command::Command, key::ResourceKey, outcome::Refusal};

use super::{Site, SitePath, all, changes, keeping};
use crate::{
    http::{ApiError, Body, Caller, Context, Identity, Json, NamePath, Params, Quota, Reply, role},
    routes::resource_view::{ResourceView, resource_page},
};

routes!["config": list_zones, create_zone, get_zone, put_zone, delete_zone];

/// The path of a zone.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
struct ZonePath {
    /// The tenant of the zone.
    tenant: String,
    /// The site that it is at.
    site: String,
    /// The number or name of the zone.
    zone_id: String,
}

fn zone_key(site: &Site, id: &ZoneId) -> Result<ResourceKey, ApiError> {
    let kind = field::name("kind", kind::ZONE)?;
    Ok(ResourceKey::new(site.tenant.clone(), kind, Zone::key(site.name.as_str(), id)?))
}

/// The cameras of a site that a zone applies to, as it was or as it is to be: also those that the caller may not see.
async fn cameras_of(
    context: &Context,
    site: &Site,
    zones: [Option<&Zone>; 2],
) -> Result<Vec<ResourceKey>, ApiError> {
    let unlimited = context.on_behalf_of(Identity::keyless());
    let cameras = all(&unlimited, Some(&site.tenant), site.query(kind::CAMERA)?).await?;
    let keys = cameras.into_iter().map(|seen| seen.resource.key);
    Ok(keys.filter(|key| zones.iter().flatten().any(|zone| zone.is_for(key.key.as_str()))).collect())
}

/// Declares a zone, and adds an event to each camera that it applies to.
async fn declare(context: &Context, site: &Site, zone: &Zone, only_new: bool) -> Result<(), ApiError> {
    let key = zone_key(site, &zone.zone_id)?;
    let declaration = zone.declaration(&site.name)?;
    let before = ResourceView::read(context, &key).await?;
    if before.is_none() {
        context.quota(&site.tenant, Quota::Resources).await?;
    }
    let former = before.as_ref().and_then(|seen| Zone::of(&seen.resource));
    let was_declared = before.as_ref().and_then(|seen| seen.declared().cloned());
    if only_new && was_declared.is_some() {
        return Err(Refusal::Exists.into());
    }
    let declaration = if only_new { declaration } else { keeping(before, declaration) };
    let is_change = was_declared.as_ref() != Some(&declaration);
    let cameras =
        if is_change { cameras_of(context, site, [former.as_ref(), Some(zone)]).await? } else { Vec::new() };
    changes::make(context, Command::Declare { key, declaration, only_new }, cameras).await?;
    if is_change {
        changes::note_time(context, &site.tenant, Some(&site.name)).await;
    }
    Ok(())
}

/// Lists the zones of a site.
#[utoipa::path(
    get, path = paths::SITE_ZONES, params(SitePath, PageQuery),
    responses((status = 200, description = "The zones", body = ZoneList))
)]
async fn list_zones(
    caller: Caller<role::Reader>,
    NamePath(path): NamePath<SitePath>,
    Params(query): Params<PageQuery>,
) -> Reply<ZoneList> {
    let site = Site::of(&caller, &path.tenant, &path.site)?;
    site.must_be_of(query.tenant.as_deref())?;
    let asked = site.query(kind::ZONE)?;
    let limit = query.limit.or(Some(PAGE_SIZE_MAX as i64));
    let (found, next) =
        resource_page(caller.context(), &site.tenant, asked, query.cursor.as_ref(), limit).await?;
    let zones = ResourceView::all(&found).filter_map(|seen| Zone::of(&seen.resource));
    Ok(Json(ZoneList { zones: zones.map(Zone::filled_in).collect(), next }))
}

/// Creates a zone.
#[utoipa::path(
    post, path = paths::SITE_ZONES, params(SitePath), request_body = Zone,
    responses(
        (status = 200, description = "It was created", body = Zone),
        (status = 409, description = "The site already has a zone with that id"),
    )
)]
async fn create_zone(
    caller: Caller<role::Admin>,
    NamePath(path): NamePath<SitePath>,
    Body(zone): Body<Zone>,
) -> Reply<Zone> {
    declare(caller.context(), &Site::of(&caller, &path.tenant, &path.site)?, &zone, true).await?;
    Ok(Json(zone.filled_in()))
}

/// Returns a zone.
#[utoipa::path(
    get, path = paths::SITE_ZONE, params(ZonePath),
    responses((status = 200, description = "The zone", body = Zone))
)]
async fn get_zone(caller: Caller<role::Reader>, NamePath(path): NamePath<ZonePath>) -> Reply<Zone> {
    let key = zone_key(&Site::of(&caller, &path.tenant, &path.site)?, &ZoneId::from_path(&path.zone_id))?;
    let seen = ResourceView::read_declared(caller.context(), &key).await?;
    let zone = Zone::of(&seen.resource).ok_or(Refusal::NoResource(key))?;
    Ok(Json(zone.filled_in()))
}

/// Creates or replaces a zone.
#[utoipa::path(
    put, path = paths::SITE_ZONE, params(ZonePath), request_body = Zone,
    responses((status = 200, description = "It was created, or its declaration was replaced", body = Zone))
)]
async fn put_zone(
    caller: Caller<role::Admin>,
    NamePath(path): NamePath<ZonePath>,
    Body(zone): Body<Zone>,
) -> Reply<Zone> {
    let site = Site::of(&caller, &path.tenant, &path.site)?;
    if zone.zone_id.to_string() != path.zone_id {
        return Err(FieldError::new("zone_id", "is not the one in the path").into());
    }
    declare(caller.context(), &site, &zone, false).await?;
    Ok(Json(zone.filled_in()))
}

/// Deletes a zone.
#[utoipa::path(
    delete, path = paths::SITE_ZONE, params(ZonePath, DeleteQuery),
    responses(
        (status = 200, description = "It was deleted", body = Deleted),
        (status = 409, description = "It is held, and `force` was not given"),
    )
)]
async fn delete_zone(
    caller: Caller<role::Admin>,
    NamePath(path): NamePath<ZonePath>,
    Params(query): Params<DeleteQuery>,
) -> Reply<Deleted> {
    let context = caller.context();
    let site = Site::of(&caller, &path.tenant, &path.site)?;
    let key = zone_key(&site, &ZoneId::from_path(&path.zone_id))?;
    let former = ResourceView::read(context, &key).await?.and_then(|seen| Zone::of(&seen.resource));
    let cameras = cameras_of(context, &site, [former.as_ref(), None]).await?;
    let delete = Command::Delete { key, force: query.force, fenced: query.fenced };
    changes::make(context, delete, cameras).await?;
    changes::note_time(context, &site.tenant, Some(&site.name)).await;
    Ok(Json(Deleted { success: true }))
}
