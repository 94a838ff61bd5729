//! Scene leases, as trackers use them.
//!
//! The statuses are those that trackers expect: 201 or 409 for an acquire, 200 or 404 for a renewal, 204 for a release
//! whatever it changed. A holder's name is taken for proof where no `version` is given, which is the weaker promise of
//! rule 6.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use solehold_api::{
    field, kind, limits,
    page::PageCursor,
    paths,
    problem::{ErrorCode, Problem},
    resources::DeleteQuery,
    scenes::{PutScene, Scene, SceneFormat, SceneLease, SceneLeaseRequest, ScenePage, SceneQuery},
};
use solehold_core::{
    command::{Command, Target, Undeclared},
    key::{Name, ResourceKey},
};
use solehold_engine::store::{ResourcePage, ResourceQuery};

use crate::{
    context::commands::new_lease_id,
    http::{
        ApiError, At, Body, Caller, Context, Identity, Json, NamePath, Params, Reply, StatusReply,
        TenantQuery, role,
    },
    routes::resource_view::{ResourceView, each_page, resource_key, resource_page},
};

routes! { "scenes":
    list_scenes, get_scene, put_scene, delete_scene, get_scene_lease, acquire_scene, release_scene,
    renew_scene
}

fn scene(caller: &Identity, tenant: Option<&str>, id: &str) -> Result<ResourceKey, ApiError> {
    resource_key(caller.tenant(tenant)?, kind::SCENE, "id", id)
}

/// The scenes, as a bare array or as a page.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(untagged)]
enum Scenes {
    List(Vec<Scene>),
    Page(ScenePage),
}

/// Lists scenes: all of them, or those that are held, or those that are not.
#[utoipa::path(
    get, path = paths::SCENES, params(SceneQuery),
    responses((status = 200, description = "The scenes; with `format=page`, a page with the total count. The `Link` header has the next page", body = Scenes))
)]
async fn list_scenes(
    caller: Caller<role::Reader>,
    Params(query): Params<SceneQuery>,
) -> Result<Response, ApiError> {
    let context = caller.context();
    let tenant = caller.tenant(query.tenant.as_deref())?;
    // Existing clients do not page: without `limit` a list has the maximum page size.
    let limit = query.limit.unwrap_or(limits::PAGE_SIZE_MAX as i64);
    let (found, next) =
        resource_page(context, &tenant, asked(&query)?, query.cursor.as_ref(), Some(limit)).await?;
    let scenes =
        ResourceView::all(&found).map(|seen| Scene::of(&seen.resource, seen.lease.as_ref())).collect();
    let next = next.map(|cursor| next_path(&query, cursor));
    if query.format == Some(SceneFormat::Page) {
        let count = count(context, &tenant, &query, &found).await?;
        let page = ScenePage { count, next, previous: None, results: scenes };
        return Ok(Json(Scenes::Page(page)).into_response());
    }
    Ok(bare(scenes, next))
}

/// A bare array; clients that know pages find the next one in the `Link` header.
fn bare(scenes: Vec<Scene>, next: Option<String>) -> Response {
    let mut response = Json(Scenes::List(scenes)).into_response();
    let link = next.and_then(|path| HeaderValue::try_from(format!("<{path}>; rel=\"next\"")).ok());
    if let Some(link) = link {
        response.headers_mut().insert(header::LINK, link);
    }
    response
}

fn next_path(query: &SceneQuery, cursor: PageCursor) -> String {
    let mut path = format!("{}?cursor={}", paths::scenes(), paths::segment(&cursor.to_string()));
    if let Some(limit) = query.limit {
        path += &format!("&limit={limit}");
    }
    if let Some(leased) = query.leased {
        path += &format!("&leased={leased}");
    }
    if query.format == Some(SceneFormat::Page) {
        path += "&format=page";
    }
    if let Some(tenant) = &query.tenant {
        path += &format!("&tenant={}", paths::segment(tenant));
    }
    path
}

/// The number of scenes on all pages.
async fn count(
    context: &Context,
    tenant: &Name,
    query: &SceneQuery,
    page: &ResourcePage,
) -> Result<u64, ApiError> {
    if query.cursor.is_none() && !page.more {
        return Ok(page.keys.len() as u64);
    }
    let mut count = 0;
    each_page(context, Some(tenant), &asked(query)?, |found| count += found.keys.len() as u64).await?;
    Ok(count)
}

fn asked(query: &SceneQuery) -> Result<ResourceQuery, ApiError> {
    let kind = Some(field::name("kind", kind::SCENE)?);
    Ok(ResourceQuery { kind, leased: query.leased, ..Default::default() })
}

/// Returns a scene and its holder.
#[utoipa::path(
    get, path = paths::SCENE, params(("id" = String, Path, description = "The scene"), TenantQuery),
    responses((status = 200, description = "The scene", body = Scene))
)]
async fn get_scene(caller: Caller<role::Reader>, at: At<String>) -> Reply<Scene> {
    let key = scene(&caller, at.tenant.as_deref(), &at.path)?;
    let seen = ResourceView::read_declared(caller.context(), &key).await;
    let seen = seen.map_err(|failure| undeclared(&key, failure))?;
    Ok(Json(Scene::of(&seen.resource, seen.lease.as_ref())))
}

/// There is no such scene: how there can be one.
fn undeclared(key: &ResourceKey, failure: ApiError) -> ApiError {
    // What else may be missing is a session, which has a code of its own.
    if failure.0.code != ErrorCode::NotFound {
        return failure;
    }
    let detail = format!(
        "there is no scene {} of tenant {}: declare it with PUT {}",
        key.key,
        key.tenant,
        paths::scene(key.key.as_str())
    );
    Problem::new(ErrorCode::NotFound, detail).into()
}

/// Creates or replaces a scene.
#[utoipa::path(
    put, path = paths::SCENE,
    params(("id" = String, Path, description = "The scene"), TenantQuery), request_body = PutScene,
    responses(
        (status = 200, description = "It existed, and its declaration was replaced", body = Scene),
        (status = 201, description = "It was created", body = Scene),
    )
)]
async fn put_scene(
    caller: Caller<role::Admin>,
    at: At<String>,
    Body(body): Body<PutScene>,
) -> StatusReply<Scene> {
    let context = caller.context();
    let key = scene(&caller, at.tenant.as_deref(), &at.path)?;
    let (_, created) = context.declare(key.clone(), body.declaration()?, false).await?;
    let seen = ResourceView::read_declared(context, &key).await?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(Scene::of(&seen.resource, seen.lease.as_ref()))))
}

/// Deletes a scene.
#[utoipa::path(
    delete, path = paths::SCENE, params(("id" = String, Path, description = "The scene"), DeleteQuery),
    responses(
        (status = 204, description = "It was deleted"),
        (status = 409, description = "It is held, and `force` was not given"),
    )
)]
async fn delete_scene(
    caller: Caller<role::Admin>,
    NamePath(id): NamePath<String>,
    Params(query): Params<DeleteQuery>,
) -> Result<StatusCode, ApiError> {
    let key = scene(&caller, query.tenant.as_deref(), &id)?;
    caller.context().execute(Command::Delete { key, force: query.force, fenced: query.fenced }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the lease on a scene: what a gate compares tokens with.
#[utoipa::path(
    get, path = paths::SCENE_LEASE, params(("id" = String, Path, description = "The scene"), TenantQuery),
    responses((status = 200, description = "The lease. If the scene is free, `holder_id` is null and `version` is the last token", body = SceneLease))
)]
async fn get_scene_lease(caller: Caller<role::Reader>, at: At<String>) -> Reply<SceneLease> {
    let key = scene(&caller, at.tenant.as_deref(), &at.path)?;
    let seen = ResourceView::read_declared(caller.context(), &key).await;
    let seen = seen.map_err(|failure| undeclared(&key, failure))?;
    Ok(Json(SceneLease::of(&seen.resource, seen.lease.as_ref())))
}

/// Acquires the lease on a free scene.
#[utoipa::path(
    post, path = paths::SCENE_LEASE,
    params(("id" = String, Path, description = "The scene"), TenantQuery), request_body = SceneLeaseRequest,
    responses(
        (status = 201, description = "It was granted; `version` is the fencing token", body = SceneLease),
        (status = 404, description = "There is no such scene, or no such session"),
        (status = 409, description = "It is held by another client, or held back"),
    )
)]
async fn acquire_scene(
    caller: Caller<role::Runner>,
    at: At<String>,
    Body(body): Body<SceneLeaseRequest>,
) -> StatusReply<SceneLease> {
    let key = scene(&caller, at.tenant.as_deref(), &at.path)?;
    let lease = new_lease_id(&key);
    let ask = body.terms()?.acquire(key.clone(), lease, Undeclared::Refuse);
    let grant = caller.context().acquire(ask, None).await.map_err(|failure| undeclared(&key, failure))?;
    Ok((StatusCode::CREATED, Json(SceneLease::granted(&grant))))
}

/// Renews the lease on a scene. A tracker that gets 404 stops its work on the scene.
#[utoipa::path(
    post, path = paths::SCENE_LEASE_RENEW,
    params(("id" = String, Path, description = "The scene"), TenantQuery), request_body = SceneLeaseRequest,
    responses(
        (status = 200, description = "It was renewed", body = SceneLease),
        (status = 404, description = "The lease was lost, for any reason"),
    )
)]
async fn renew_scene(
    caller: Caller<role::Runner>,
    at: At<String>,
    Body(body): Body<SceneLeaseRequest>,
) -> Reply<SceneLease> {
    let key = scene(&caller, at.tenant.as_deref(), &at.path)?;
    let claim = body.claim(Target::Resource(key))?;
    let renewed = caller.context().renew(claim, body.renew_ttl_ms()?, None).await;
    let grant = renewed.map_err(
        |failure| {
            if is_lost(&failure) { failure.0.as_not_found().into() } else { failure }
        },
    )?;
    Ok(Json(SceneLease::granted(&grant)))
}

/// Releases the lease on a scene. If the caller does not hold it, nothing happens.
#[utoipa::path(
    delete, path = paths::SCENE_LEASE,
    params(("id" = String, Path, description = "The scene"), TenantQuery), request_body = SceneLeaseRequest,
    responses((status = 204, description = "The caller does not hold it"))
)]
async fn release_scene(
    caller: Caller<role::Runner>,
    at: At<String>,
    Body(body): Body<SceneLeaseRequest>,
) -> Result<StatusCode, ApiError> {
    let key = scene(&caller, at.tenant.as_deref(), &at.path)?;
    let claim = body.claim(Target::Resource(key))?;
    match caller.context().release(claim, None).await {
        Err(failure) if !is_lost(&failure) => Err(failure),
        _ => Ok(StatusCode::NO_CONTENT),
    }
}

/// Whether a refusal says that the caller does not hold what it claims.
fn is_lost(failure: &ApiError) -> bool {
    use ErrorCode::{Conflict, Lost, NoSession, NotFound, NotYours, SessionSuperseded};
    matches!(failure.0.code, Conflict | Lost | NoSession | NotFound | NotYours | SessionSuperseded)
}
