//! Zones of a site.

use axum::{Json, http::StatusCode};
use serde::Deserialize;
use solehold_api::{
    config::{Zone, ZoneId, ZoneList},
    field::FieldError,
    kind,
    limits::PAGE_SIZE_MAX,
    page::PageQuery,
    paths,
    resources::DeleteQuery,
};
use solehold_core::{key::ResourceKey, outcome::Refusal};
use utoipa_axum::router::OpenApiRouter;

use super::{
    super::convert::{self, Seen},
    Site, SitePath, keeping,
};
use crate::http::{Body, Caller, Failure, GuardedContext, Identity, NamePath, Params, role};

pub fn routes() -> OpenApiRouter<GuardedContext> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(get, put, remove))
}

/// What the path of a zone names.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
struct ZonePath {
    /// Whose zone.
    tenant: String,
    /// The site that it is at.
    site: String,
    /// Which zone: its number or name.
    zone_id: String,
}

impl ZonePath {
    fn site(&self, caller: &Identity) -> Result<Site, Failure> {
        SitePath { tenant: self.tenant.clone(), site: self.site.clone() }.site(caller)
    }
}

fn zone_key(site: &Site, id: &ZoneId) -> Result<ResourceKey, Failure> {
    let kind = convert::kind_name(kind::ZONE)?;
    Ok(ResourceKey { tenant: site.tenant.clone(), kind, key: Zone::key(site.name.as_str(), id)? })
}

/// Lists the zones of a site.
#[utoipa::path(
    get, path = paths::SITE_ZONES, tag = "config", operation_id = "list_zones",
    params(SitePath, PageQuery),
    responses((status = 200, description = "The zones", body = ZoneList))
)]
async fn list(
    caller: Caller<role::Reader>,
    NamePath(path): NamePath<SitePath>,
    Params(query): Params<PageQuery>,
) -> Result<Json<ZoneList>, Failure> {
    let site = path.site(&caller)?;
    let (asked, limit) = (site.query(kind::ZONE)?, query.limit.or(Some(PAGE_SIZE_MAX as i64)));
    let (found, next) =
        convert::page_of(caller.context(), &site.tenant, asked, query.cursor.as_ref(), limit).await?;
    let zones = Seen::all(&found).filter_map(|seen| Zone::of(&seen.resource)).collect();
    Ok(Json(ZoneList { zones, next }))
}

/// Declares a zone that is not there yet.
#[utoipa::path(
    post, path = paths::SITE_ZONES, tag = "config", operation_id = "create_zone",
    params(SitePath), request_body = Zone,
    responses(
        (status = 201, description = "It is declared", body = Zone),
        (status = 409, description = "The site has a zone of that id"),
    )
)]
async fn create(
    caller: Caller<role::Admin>,
    NamePath(path): NamePath<SitePath>,
    Body(zone): Body<Zone>,
) -> Result<(StatusCode, Json<Zone>), Failure> {
    let site = path.site(&caller)?;
    let declaration = zone.declaration(&site.name)?;
    convert::declare(caller.context(), zone_key(&site, &zone.zone_id)?, declaration, true).await?;
    Ok((StatusCode::CREATED, Json(zone)))
}

/// Shows a zone.
#[utoipa::path(
    get, path = paths::SITE_ZONE, tag = "config", operation_id = "get_zone",
    params(ZonePath),
    responses((status = 200, description = "The zone", body = Zone))
)]
async fn get(
    caller: Caller<role::Reader>,
    NamePath(path): NamePath<ZonePath>,
) -> Result<Json<Zone>, Failure> {
    let key = zone_key(&path.site(&caller)?, &ZoneId::from_path(&path.zone_id))?;
    let seen = convert::see_declared(caller.context(), &key).await?;
    let zone = Zone::of(&seen.resource).ok_or(Refusal::NoResource(key))?;
    Ok(Json(zone))
}

/// Declares a zone, or declares it anew.
#[utoipa::path(
    put, path = paths::SITE_ZONE, tag = "config", operation_id = "put_zone",
    params(ZonePath), request_body = Zone,
    responses(
        (status = 200, description = "It was declared before; it is now as the body says", body = Zone),
        (status = 201, description = "It is new", body = Zone),
    )
)]
async fn put(
    caller: Caller<role::Admin>,
    NamePath(path): NamePath<ZonePath>,
    Body(zone): Body<Zone>,
) -> Result<(StatusCode, Json<Zone>), Failure> {
    let context = caller.context();
    let site = path.site(&caller)?;
    if zone.zone_id.to_string() != path.zone_id {
        return Err(FieldError::new("zone_id", "is not the one in the path").into());
    }
    let (key, declaration) = (zone_key(&site, &zone.zone_id)?, zone.declaration(&site.name)?);
    let declaration = keeping(convert::see(context, &key).await?, declaration);
    let (_, created) = convert::declare(context, key, declaration, false).await?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(zone)))
}

/// Removes a zone.
#[utoipa::path(
    delete, path = paths::SITE_ZONE, tag = "config", operation_id = "delete_zone",
    params(ZonePath, DeleteQuery),
    responses(
        (status = 204, description = "It is gone"),
        (status = 409, description = "Someone holds it, and `force` was not given"),
    )
)]
async fn remove(
    caller: Caller<role::Admin>,
    NamePath(path): NamePath<ZonePath>,
    Params(query): Params<DeleteQuery>,
) -> Result<StatusCode, Failure> {
    let key = zone_key(&path.site(&caller)?, &ZoneId::from_path(&path.zone_id))?;
    convert::delete(caller.context(), key, &query).await?;
    Ok(StatusCode::NO_CONTENT)
}
