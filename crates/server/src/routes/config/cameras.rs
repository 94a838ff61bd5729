//! Cameras, by site and by id.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use solehold_api::{
    config::{AvailableCameras, Camera, CameraList, CameraQuery, Deleted},
    field, kind,
    limits::PAGE_SIZE_MAX,
    page::PageCursor,
    paths,
    resources::DeleteQuery,
};
use solehold_core::{
    command::Command,
    key::{Name, ResourceKey},
    outcome::Refusal,
};
use solehold_engine::store::{ResourcePage, ResourceQuery};

use super::{Site, SitePath, changes, is_at, keeping, shown, zones_at};
use crate::{
    context::tenants::Named,
    http::{ApiError, At, Body, Caller, Context, Json, NamePath, Params, Reply, TenantQuery, role},
    routes::resource_view::{ResourceView, resource_key, resource_page},
};

routes! { "config":
    list_site_cameras, create_camera, get_site_camera, put_site_camera, delete_camera, list_cameras,
    list_available_cameras, get_camera, put_camera
}

/// The path of a camera at a site.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
struct CameraPath {
    /// The tenant of the camera.
    tenant: String,
    /// The site that it is at.
    site: String,
    /// The id of the camera.
    camera_uuid: String,
}

fn camera_key(tenant: Name, uuid: &str) -> Result<ResourceKey, ApiError> {
    resource_key(tenant, kind::CAMERA, "camera_uuid", uuid)
}

/// Lists the cameras of a site.
#[utoipa::path(
    get, path = paths::SITE_CAMERAS, params(SitePath, CameraQuery),
    responses((status = 200, description = "The cameras", body = CameraList))
)]
async fn list_site_cameras(
    caller: Caller<role::Reader>,
    NamePath(path): NamePath<SitePath>,
    Params(query): Params<CameraQuery>,
) -> Reply<CameraList> {
    let site = Site::of(&caller, &path.tenant, &path.site)?;
    site.must_be_of(query.tenant.as_deref())?;
    let asked = site.query(kind::CAMERA)?;
    // No camera is at two sites.
    if field::maybe_name("site_id", query.site_id.as_deref())?.is_some_and(|id| id != site.name) {
        return Ok(Json(CameraList { cameras: Vec::new(), next: None }));
    }
    let (cameras, next) = page(caller.context(), Some(&site.tenant), asked, &query).await?;
    Ok(Json(CameraList { cameras, next }))
}

/// A page of cameras. The pipeline's clients do not page, so without `limit` it has the maximum page size.
async fn page(
    context: &Context,
    tenant: Option<&Name>,
    asked: ResourceQuery,
    query: &CameraQuery,
) -> Result<(Vec<Camera>, Option<PageCursor>), ApiError> {
    let limit = query.limit.or(Some(PAGE_SIZE_MAX as i64));
    let (found, next) = resource_page(context, tenant, asked, query.cursor.as_ref(), limit).await?;
    let mut cameras = all_shown(context, &found).await?;
    cameras.retain(|camera| query.status.is_none_or(|status| status == camera.status()));
    Ok((cameras, next))
}

/// The cameras that were found, with the zones that count for each; those of a site are read once.
async fn all_shown(context: &Context, found: &ResourcePage) -> Result<Vec<Camera>, ApiError> {
    let mut zones = BTreeMap::new();
    let mut cameras = Vec::new();
    for seen in ResourceView::all(found) {
        let mut camera = Camera::of(&seen.resource);
        if let Some(site) = seen.declared().and_then(|declared| declared.site.clone()) {
            let at = (seen.resource.key.tenant.clone(), site);
            if !zones.contains_key(&at) {
                zones.insert(at.clone(), zones_at(context, &at.0, &at.1).await?);
            }
            camera.zones = camera.effective_zones(&zones[&at]);
        }
        cameras.push(camera.filled_in());
    }
    Ok(cameras)
}

/// Creates a camera.
#[utoipa::path(
    post, path = paths::SITE_CAMERAS, params(SitePath), request_body = Camera,
    responses(
        (status = 200, description = "It was created", body = Camera),
        (status = 409, description = "The tenant already has a camera with that id"),
    )
)]
async fn create_camera(
    caller: Caller<role::Admin>,
    NamePath(path): NamePath<SitePath>,
    Body(mut camera): Body<Camera>,
) -> Reply<Camera> {
    let context = caller.context();
    let site = Site::of(&caller, &path.tenant, &path.site)?;
    site.must_be_of(camera.tenant_id.as_deref())?;
    camera.place(None, site.tenant.as_str(), Some(site.name.as_str()))?;
    let declaration = camera.declaration()?;
    let key = camera_key(site.tenant.clone(), &camera.camera_uuid)?;
    context.declare(key.clone(), declaration, true).await?;
    changes::note_time(context, &site.tenant, Some(&site.name)).await;
    answer(context, &ResourceView::read_declared(context, &key).await?).await
}

/// A camera as it is answered, with the zones that count for it.
async fn answer(context: &Context, seen: &ResourceView) -> Reply<Camera> {
    Ok(Json(shown(context, seen).await?.filled_in()))
}

/// A camera that must be at the site in the path.
async fn find(context: &Context, site: &Site, uuid: &str) -> Result<ResourceView, ApiError> {
    let key = camera_key(site.tenant.clone(), uuid)?;
    let seen = ResourceView::read_declared(context, &key).await?;
    if is_at(&seen, &site.name) { Ok(seen) } else { Err(Refusal::NoResource(key).into()) }
}

/// Returns a camera of a site.
#[utoipa::path(
    get, path = paths::SITE_CAMERA, params(CameraPath),
    responses((status = 200, description = "The camera", body = Camera))
)]
async fn get_site_camera(
    caller: Caller<role::Reader>,
    NamePath(path): NamePath<CameraPath>,
) -> Reply<Camera> {
    let site = Site::of(&caller, &path.tenant, &path.site)?;
    answer(caller.context(), &find(caller.context(), &site, &path.camera_uuid).await?).await
}

/// Creates or replaces a camera of a site. A camera that is at another site is not found here.
#[utoipa::path(
    put, path = paths::SITE_CAMERA, params(CameraPath), request_body = Camera,
    responses(
        (status = 200, description = "It was created, or its declaration was replaced", body = Camera),
        (status = 404, description = "There is no such tenant, or the camera is at another site"),
    )
)]
async fn put_site_camera(
    caller: Caller<role::Admin>,
    NamePath(path): NamePath<CameraPath>,
    Body(mut camera): Body<Camera>,
) -> Reply<Camera> {
    let context = caller.context();
    let site = Site::of(&caller, &path.tenant, &path.site)?;
    site.must_be_of(camera.tenant_id.as_deref())?;
    let key = camera_key(site.tenant.clone(), &path.camera_uuid)?;
    let before = ResourceView::read(context, &key).await?;
    if before.as_ref().is_some_and(|seen| seen.declared().is_some() && !is_at(seen, &site.name)) {
        return Err(Refusal::NoResource(key).into());
    }
    camera.place(Some(&path.camera_uuid), site.tenant.as_str(), Some(site.name.as_str()))?;
    replace(context, key, &camera, before).await
}

/// Declares a camera as `camera` says.
async fn replace(
    context: &Context,
    key: ResourceKey,
    camera: &Camera,
    before: Option<ResourceView>,
) -> Reply<Camera> {
    let former = before.as_ref().and_then(|seen| seen.declared().cloned());
    let declaration = keeping(before, camera.declaration()?);
    let is_change = former.as_ref() != Some(&declaration);
    let sites: BTreeSet<_> = former.into_iter().chain([declaration.clone()]).map(|d| d.site).collect();
    context.declare(key.clone(), declaration, false).await?;
    for site in sites.iter().filter(|_| is_change) {
        changes::note_time(context, &key.tenant, site.as_ref()).await;
    }
    answer(context, &ResourceView::read_declared(context, &key).await?).await
}

/// Deletes a camera of a site.
#[utoipa::path(
    delete, path = paths::SITE_CAMERA, params(CameraPath, DeleteQuery),
    responses(
        (status = 200, description = "It was deleted", body = Deleted),
        (status = 409, description = "It is held, and `force` was not given"),
    )
)]
async fn delete_camera(
    caller: Caller<role::Admin>,
    NamePath(path): NamePath<CameraPath>,
    Params(query): Params<DeleteQuery>,
) -> Reply<Deleted> {
    let context = caller.context();
    let site = Site::of(&caller, &path.tenant, &path.site)?;
    let key = find(context, &site, &path.camera_uuid).await?.resource.key;
    context.execute(Command::Delete { key, force: query.force, fenced: query.fenced }).await?;
    changes::note_time(context, &site.tenant, Some(&site.name)).await;
    Ok(Json(Deleted { success: true }))
}

/// Lists cameras of all sites.
#[utoipa::path(
    get, path = paths::CAMERAS, params(CameraQuery),
    responses((status = 200, description = "The cameras", body = CameraList))
)]
async fn list_cameras(caller: Caller<role::Reader>, Params(query): Params<CameraQuery>) -> Reply<CameraList> {
    let tenant = caller.tenant_or_all(query.tenant.as_deref())?;
    let (cameras, next) = page(caller.context(), tenant.as_ref(), asked(&query, None)?, &query).await?;
    Ok(Json(CameraList { cameras, next }))
}

/// Lists the free cameras.
#[utoipa::path(
    get, path = paths::CAMERAS_AVAILABLE, params(CameraQuery),
    responses((status = 200, description = "The cameras", body = AvailableCameras))
)]
async fn list_available_cameras(
    caller: Caller<role::Reader>,
    Params(query): Params<CameraQuery>,
) -> Reply<AvailableCameras> {
    let tenant = caller.tenant_or_all(query.tenant.as_deref())?;
    let asked = asked(&query, Some(false))?;
    let (items, next) = page(caller.context(), tenant.as_ref(), asked, &query).await?;
    let cameras = items.iter().map(|camera| camera.camera_uuid.clone()).collect();
    Ok(Json(AvailableCameras { cameras, items, next }))
}

fn asked(query: &CameraQuery, leased: Option<bool>) -> Result<ResourceQuery, ApiError> {
    let site = field::maybe_name("site_id", query.site_id.as_deref())?;
    Ok(ResourceQuery { kind: Some(field::name("kind", kind::CAMERA)?), site, leased, ..Default::default() })
}

/// Returns a camera.
#[utoipa::path(
    get, path = paths::CAMERA,
    params(("camera_uuid" = String, Path, description = "The camera"), TenantQuery),
    responses((status = 200, description = "The camera, with the zones that apply to it", body = Camera))
)]
async fn get_camera(caller: Caller<role::Reader>, at: At<String>) -> Reply<Camera> {
    let context = caller.context();
    let name = field::name("camera_uuid", &at.path)?;
    let tenant = context.tenant_of(at.tenant.as_deref(), Named::Camera(&name)).await?;
    answer(context, &ResourceView::read_declared(context, &camera_key(tenant, &at.path)?).await?).await
}

/// Creates or replaces a camera. It stays at its site unless the body names another.
#[utoipa::path(
    put, path = paths::CAMERA,
    params(("camera_uuid" = String, Path, description = "The camera"), TenantQuery), request_body = Camera,
    responses((status = 200, description = "It was created, or its declaration was replaced", body = Camera))
)]
async fn put_camera(
    caller: Caller<role::Admin>,
    at: At<String>,
    Body(mut camera): Body<Camera>,
) -> Reply<Camera> {
    let context = caller.context();
    caller.tenant(camera.tenant_id.as_deref())?;
    let name = field::name("camera_uuid", &at.path)?;
    let said = at.tenant.as_deref().or(camera.tenant_id.as_deref());
    let tenant = context.tenant_of(said, Named::Camera(&name)).await?;
    let key = camera_key(tenant.clone(), &at.path)?;
    let before = ResourceView::read(context, &key).await?;
    let site = before.as_ref().and_then(|seen| seen.declared()?.site.clone());
    let site = site.filter(|_| camera.site_id.is_none());
    camera.place(Some(&at.path), tenant.as_str(), site.as_ref().map(Name::as_str))?;
    replace(context, key, &camera, before).await
}
