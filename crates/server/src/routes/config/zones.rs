//! Zones of a site.

use axum::{Json, extract::State, http::StatusCode};
use serde::Deserialize;
use solehold_api::{
    config::{Zone, ZoneId, ZoneList},
    field::FieldError,
    kind,
    limits::PAGE_SIZE_MAX,
    page::PageQuery,
    paths,
    problem::Problem,
    resources::DeleteQuery,
};
use solehold_core::{key::ResourceKey, outcome::Refusal};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    super::convert::{self, Seen},
    Site, SitePath, keeping,
};
use crate::{
    Context,
    http::{Body, Caller, Failure, NamePath, Params, Role},
};

pub fn routes() -> OpenApiRouter<Context> {
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
    fn site(&self, caller: &Caller) -> Result<Site, Failure> {
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
    responses(
        (status = 200, description = "The zones", body = ZoneList),
        (status = 404, description = "There is no such tenant", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn list(
    State(context): State<Context>,
    caller: Caller,
    NamePath(path): NamePath<SitePath>,
    Params(query): Params<PageQuery>,
) -> Result<Json<ZoneList>, Failure> {
    caller.must_be(Role::Reader)?;
    let site = path.site(&caller)?;
    let (asked, limit) = (site.query(kind::ZONE)?, query.limit.or(Some(PAGE_SIZE_MAX as i64)));
    let (found, next) = convert::page_of(&context, &site.tenant, asked, query.cursor.as_ref(), limit).await?;
    let zones = Seen::all(&found).filter_map(|seen| Zone::of(&seen.resource)).collect();
    Ok(Json(ZoneList { zones, next }))
}

/// Declares a zone that is not there yet.
#[utoipa::path(
    post, path = paths::SITE_ZONES, tag = "config", operation_id = "create_zone",
    params(SitePath), request_body = Zone,
    responses(
        (status = 201, description = "It is declared", body = Zone),
        (status = 400, description = "The zone is wrong; every fault is named by its path", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such tenant", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "The site has a zone of that id", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn create(
    State(context): State<Context>,
    caller: Caller,
    NamePath(path): NamePath<SitePath>,
    Body(zone): Body<Zone>,
) -> Result<(StatusCode, Json<Zone>), Failure> {
    caller.must_be(Role::Admin)?;
    let site = path.site(&caller)?;
    let declaration = zone.declaration(&site.name)?;
    convert::declare(&context, zone_key(&site, &zone.zone_id)?, declaration, true).await?;
    Ok((StatusCode::CREATED, Json(zone)))
}

/// Shows a zone.
#[utoipa::path(
    get, path = paths::SITE_ZONE, tag = "config", operation_id = "get_zone",
    params(ZonePath),
    responses(
        (status = 200, description = "The zone", body = Zone),
        (status = 404, description = "There is no such zone at that site", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn get(
    State(context): State<Context>,
    caller: Caller,
    NamePath(path): NamePath<ZonePath>,
) -> Result<Json<Zone>, Failure> {
    caller.must_be(Role::Reader)?;
    let key = zone_key(&path.site(&caller)?, &ZoneId::from_path(&path.zone_id))?;
    let seen = convert::see_declared(&context, &key).await?;
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
        (status = 400, description = "The zone is wrong; every fault is named by its path", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such tenant", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn put(
    State(context): State<Context>,
    caller: Caller,
    NamePath(path): NamePath<ZonePath>,
    Body(zone): Body<Zone>,
) -> Result<(StatusCode, Json<Zone>), Failure> {
    caller.must_be(Role::Admin)?;
    let site = path.site(&caller)?;
    if zone.zone_id.to_string() != path.zone_id {
        return Err(FieldError::new("zone_id", "is not the one in the path").into());
    }
    let (key, declaration) = (zone_key(&site, &zone.zone_id)?, zone.declaration(&site.name)?);
    let declaration = keeping(convert::see(&context, &key).await?, declaration);
    let (_, created) = convert::declare(&context, key, declaration, false).await?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(zone)))
}

/// Removes a zone.
#[utoipa::path(
    delete, path = paths::SITE_ZONE, tag = "config", operation_id = "delete_zone",
    params(ZonePath, DeleteQuery),
    responses(
        (status = 204, description = "It is gone"),
        (status = 404, description = "There is no such zone at that site", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "Someone holds it, and `force` was not given", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn remove(
    State(context): State<Context>,
    caller: Caller,
    NamePath(path): NamePath<ZonePath>,
    Params(query): Params<DeleteQuery>,
) -> Result<StatusCode, Failure> {
    caller.must_be(Role::Admin)?;
    let key = zone_key(&path.site(&caller)?, &ZoneId::from_path(&path.zone_id))?;
    convert::delete(&context, key, &query).await?;
    Ok(StatusCode::NO_CONTENT)
}
