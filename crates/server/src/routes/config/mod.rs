//! Configuration of a camera pipeline: cameras and zones of a tenant's sites, and versions of their content.
//!
//! A camera is a resource of kind `camera`, a zone one of kind `zone`; what they say are their attributes, so that a
//! change of either is an event like any other. A site is where they are, and has no life of its own.

pub mod cameras;
mod changes;
pub mod zones;

use std::collections::BTreeMap;

use serde::Deserialize;
use solehold_api::{
    config::{Camera, ConfigVersion, DatedConfigVersion, Zone},
    field, kind, paths,
    problem::{ErrorCode, Problem},
};
use solehold_core::{key::Name, lease::Declaration, time::StoreTime};
use solehold_engine::store::ResourceQuery;

use crate::{
    http::{ApiError, Caller, Context, Identity, Json, NamePath, Params, Reply, TenantQuery, role},
    routes::resource_view::{ResourceView, each_page},
};

routes!["config": config_version, config_version_of_all];

/// The path of a site.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
struct SitePath {
    /// The tenant of the site.
    tenant: String,
    /// The id of the site.
    site: String,
}

/// A tenant's site.
#[derive(Debug)]
struct Site {
    tenant: Name,
    name: Name,
}

impl Site {
    /// The site that a path names.
    fn of(caller: &Identity, tenant: &str, site: &str) -> Result<Self, ApiError> {
        Ok(Self { tenant: caller.tenant(Some(tenant))?, name: field::name("site", site)? })
    }

    /// Refuses a body that speaks of another tenant's things: they do not exist here.
    fn must_be_of(&self, tenant: Option<&str>) -> Result<(), ApiError> {
        match tenant.filter(|tenant| *tenant != self.tenant.as_str()) {
            Some(other) => {
                let detail =
                    format!("tenant {other} in the body does not match tenant {} in the path", self.tenant);
                Err(Problem::new(ErrorCode::NotFound, detail).into())
            }
            None => Ok(()),
        }
    }

    /// What is at the site, of that kind.
    fn query(&self, kind: &str) -> Result<ResourceQuery, ApiError> {
        let kind = Some(field::name("kind", kind)?);
        let site = Some(self.name.clone());
        Ok(ResourceQuery { kind, site, ..Default::default() })
    }
}

/// Whether a resource is declared to be at a site.
fn is_at(seen: &ResourceView, site: &Name) -> bool {
    seen.declared().and_then(|declared| declared.site.as_ref()) == Some(site)
}

/// What a document declares. What it cannot say, labels and lock-delay, stays as it was.
fn keeping(before: Option<ResourceView>, declaration: Declaration) -> Declaration {
    let kept = before.and_then(|seen| seen.declared().cloned()).unwrap_or_default();
    Declaration { site: declaration.site, attributes: declaration.attributes, ..kept }
}

/// Returns the versions of a site's configuration: the same content has the same version.
#[utoipa::path(
    get, path = paths::CONFIG_VERSION, params(SitePath),
    responses((status = 200, description = "The versions of its cameras and zones", body = DatedConfigVersion))
)]
async fn config_version(
    caller: Caller<role::Reader>,
    NamePath(path): NamePath<SitePath>,
) -> Reply<DatedConfigVersion> {
    let context = caller.context();
    let site = Site::of(&caller, &path.tenant, &path.site)?;
    let cameras = all(context, Some(&site.tenant), site.query(kind::CAMERA)?).await?;
    let zones = all(context, Some(&site.tenant), site.query(kind::ZONE)?).await?;
    let noted = changes::last_at_site(context, &site.tenant, &site.name).await?;
    let last_updated = noted.max(last_created(&cameras)).max(last_created(&zones)).into();
    let cameras: Vec<Camera> = cameras.iter().map(|seen| Camera::of(&seen.resource)).collect();
    let zones: Vec<Zone> = zones.iter().filter_map(|seen| Zone::of(&seen.resource)).collect();
    Ok(Json(DatedConfigVersion { version: ConfigVersion::of(&cameras, &zones), last_updated }))
}

/// Returns the versions of all configuration that the caller may see, over all sites.
#[utoipa::path(
    get, path = paths::CONFIG_VERSION_OF_ALL, params(TenantQuery),
    responses((status = 200, description = "The versions of all cameras and zones", body = DatedConfigVersion))
)]
async fn config_version_of_all(
    caller: Caller<role::Reader>,
    Params(query): Params<TenantQuery>,
) -> Reply<DatedConfigVersion> {
    let context = caller.context();
    let tenant = caller.tenant_or_all(query.tenant.as_deref())?;
    let cameras = all(context, tenant.as_ref(), of_kind(kind::CAMERA)?).await?;
    let zones = all(context, tenant.as_ref(), of_kind(kind::ZONE)?).await?;
    let noted = changes::last_of(context, tenant.as_ref()).await?;
    let last_updated = noted.max(last_created(&cameras)).max(last_created(&zones)).into();
    let mut sites: BTreeMap<(String, String), (Vec<Camera>, Vec<Zone>)> = BTreeMap::new();
    for seen in &cameras {
        sites.entry(whereabouts(seen)).or_default().0.push(Camera::of(&seen.resource));
    }
    for seen in &zones {
        sites.entry(whereabouts(seen)).or_default().1.extend(Zone::of(&seen.resource));
    }
    let version = |(cameras, zones): (Vec<Camera>, Vec<Zone>)| ConfigVersion::of(&cameras, &zones);
    let sites = sites.into_iter().map(|(site, found)| (site, version(found))).collect();
    Ok(Json(DatedConfigVersion { version: ConfigVersion::of_sites(&sites), last_updated }))
}

fn of_kind(kind: &str) -> Result<ResourceQuery, ApiError> {
    Ok(ResourceQuery { kind: Some(field::name("kind", kind)?), ..Default::default() })
}

/// The tenant and the site of a resource.
fn whereabouts(seen: &ResourceView) -> (String, String) {
    let site = seen.declared().and_then(|declared| declared.site.as_ref());
    (seen.resource.key.tenant.to_string(), site.map(ToString::to_string).unwrap_or_default())
}

/// When the newest of some resources was created: what another surface declares leaves no other note of its time.
fn last_created(seen: &[ResourceView]) -> StoreTime {
    seen.iter().map(|seen| seen.resource.created_at).max().unwrap_or_default()
}

/// The versions of one camera's configuration, with the zones that count for it.
pub async fn version_of_camera(context: &Context, camera: &ResourceView) -> Result<ConfigVersion, ApiError> {
    Ok(ConfigVersion::of(&[shown(context, camera).await?], &[]))
}

/// A camera with the zones that count for it, as its document says.
async fn shown(context: &Context, seen: &ResourceView) -> Result<Camera, ApiError> {
    let camera = Camera::of(&seen.resource);
    let Some(site) = seen.declared().and_then(|declared| declared.site.as_ref()) else { return Ok(camera) };
    let zones = camera.effective_zones(&zones_at(context, &seen.resource.key.tenant, site).await?);
    Ok(Camera { zones, ..camera })
}

/// The zones of a site.
async fn zones_at(context: &Context, tenant: &Name, site: &Name) -> Result<Vec<Zone>, ApiError> {
    let site = Site { tenant: tenant.clone(), name: site.clone() };
    let zones = all(context, Some(tenant), site.query(kind::ZONE)?).await?;
    Ok(zones.iter().filter_map(|seen| Zone::of(&seen.resource)).collect())
}

/// Everything that matches, page by page.
async fn all(
    context: &Context,
    tenant: Option<&Name>,
    query: ResourceQuery,
) -> Result<Vec<ResourceView>, ApiError> {
    let mut seen = Vec::new();
    each_page(context, tenant, &query, |found| seen.extend(ResourceView::all(&found))).await?;
    Ok(seen)
}
