//! Leases of a camera pipeline: acquire, renew, heartbeat, release, revoke; reading is in [`read`].
//!
//! Its client takes only 200 with JSON for success, so that is what every success is; whatever else happens comes in
//! the same envelope, with the status of its problem: it is put into it around the handler, as on every path of
//! [`solehold_api::leases::ENVELOPED`].

pub mod read;

use serde_json::json;
use solehold_api::{
    document::{read, to_document},
    field, kind,
    leases::{AcquireLease, Envelope, HeartbeatLease, ReleaseLease, RenewLease, RevokeLease},
    paths,
    problem::{EndedLease, ErrorCode, Problem},
    runners::RunnerAttributes,
    terms::AcquireTerms,
};
use solehold_core::{
    command::{Acquire, AskedTenure, Footprint, Target, Undeclared},
    key::{Document, HolderKey, LeaseId, ResourceKey},
    lease::LeaseStatus,
    outcome::Refusal,
    session::HolderStatus,
};

use super::config;
use crate::{
    context::{commands::new_lease_id, tenants::Named},
    http::{ApiError, At, Body, Caller, Context, Json, Reply, TenantQuery, role},
    routes::resource_view::{ResourceView, resource_key},
    state::audit::Deed,
};

routes!["leases": acquire_lease, renew_lease, heartbeat_lease, release_lease, revoke_lease];

/// The lease that a path names. What is no id is no lease.
async fn target(context: &Context, at: &At<String>) -> Result<Target, ApiError> {
    let id = lease_id(&at.path)?;
    Ok(Target::Lease { tenant: context.tenant_of(at.tenant.as_deref(), Named::Lease(id)).await?, id })
}

fn lease_id(id: &str) -> Result<LeaseId, ApiError> {
    id.parse().map(LeaseId).map_err(|_| no_lease(id))
}

/// Revoking a lease, for the audit trail: by its resource, if it is still there.
async fn revoking(context: &Context, target: &Target) -> Result<Deed, ApiError> {
    const ACTION: &str = "revoke_lease";
    let Target::Lease { tenant, id } = target else { return Ok(Deed::new(ACTION, "lease")) };
    let found = context.engine().lease(*id).await?.filter(|lease| lease.key.tenant == *tenant);
    Ok(match found {
        Some(lease) => Deed::to_resource(ACTION, &lease.key).with("token", lease.lease.token.0),
        None => Deed::new(ACTION, format!("lease/{id}")).of(tenant),
    })
}

/// There is no lease of that id, or none that the caller may know of.
pub fn no_lease(id: &str) -> ApiError {
    let shown: String = id.chars().take(64).collect();
    Problem::new(ErrorCode::NotFound, format!("there is no lease {shown}")).into()
}

/// A lease that has expired is answered as "gone", and one that is over otherwise as "not found", which is what
/// existing clients expect; its code says the rest.
fn over(failure: ApiError) -> ApiError {
    let problem = &failure.0;
    let is_over = problem.code == ErrorCode::Lost && (problem.ended.is_some() || problem.holder.is_none());
    match problem.ended.as_ref().map(|ended| ended.status) {
        Some(LeaseStatus::Expired) if is_over => failure.0.as_gone().into(),
        _ if is_over => failure.0.as_not_found().into(),
        _ => failure,
    }
}

/// Acquires a camera for a runner.
#[utoipa::path(
    post, path = paths::LEASE_ACQUIRE, request_body = AcquireLease,
    responses(
        (status = 200, description = "It was granted", body = Envelope),
        (status = 404, description = "There is no such camera or session"),
        (status = 409, description = "It is held by another client or held back, or the runner gets no more leases"),
    )
)]
async fn acquire_lease(caller: Caller<role::Runner>, Body(body): Body<AcquireLease>) -> Reply<Envelope> {
    let context = caller.context();
    let asked = body.terms()?;
    let said = body.tenant_id.as_deref().filter(|tenant| !tenant.is_empty());
    let camera = field::name("camera_uuid", &body.camera_uuid)?;
    let tenant = context.tenant_of(said, Named::Camera(&camera)).await?;
    let key = resource_key(tenant, kind::CAMERA, "camera_uuid", &body.camera_uuid)?;
    let (asked, holds_at_most) = prepare(context, &key, &body, asked).await?;
    let lease = new_lease_id(&key);
    let ask = Acquire { holds_at_most, ..asked.acquire(key, lease, Undeclared::Refuse) };
    let grant = match context.acquire(ask.clone(), None).await {
        Err(refused) if refused.0.code == ErrorCode::HeldBack => {
            context.acquire_from_former(ask, refused).await?
        }
        other => other?,
    };
    Ok(Json(Envelope::granted(&grant)))
}

/// Reads what an acquire needs to know beforehand: whether the runner drains (with a session the engine checks that
/// by itself) and how many leases it may hold, whether the camera is at that site, and which configuration a runner
/// means that does not say.
async fn prepare(
    context: &Context,
    key: &ResourceKey,
    body: &AcquireLease,
    asked: AcquireTerms,
) -> Result<(AcquireTerms, Option<u32>), ApiError> {
    let holder = HolderKey { tenant: key.tenant.clone(), name: asked.holder.clone() };
    let footprint =
        Footprint { resources: vec![key.clone()], holders: vec![holder.clone()], ..Default::default() };
    context.caller().must_see(key)?;
    let loaded = context.engine().load(&footprint).await?;
    let runner = loaded.state.holder(&holder).filter(|holder| holder.registered);
    let drains = runner.is_some_and(|runner| runner.status != HolderStatus::Active);
    if drains && matches!(asked.tenure, AskedTenure::Own { .. }) {
        return Err(Refusal::Draining(asked.holder).into());
    }
    let camera =
        ResourceView::of(&loaded, key).filter(|seen| seen.declared().is_some() && is_at(seen, &body.site_id));
    let camera = camera.ok_or_else(|| Refusal::NoResource(key.clone()))?;
    let about: Option<RunnerAttributes> = runner.and_then(|runner| read(&runner.attributes));
    let attributes = attributes(context, body, &camera).await?;
    Ok((AcquireTerms { attributes, ..asked }, about.map(|about| about.capacity)))
}

/// Whether a camera is where the runner thinks it is. One that was declared without a site is anywhere.
fn is_at(camera: &ResourceView, site: &Option<String>) -> bool {
    let declared = camera.declared().and_then(|declared| declared.site.as_ref());
    match (declared, site.as_deref().filter(|site| !site.is_empty())) {
        (Some(declared), Some(site)) => declared.as_str() == site,
        _ => true,
    }
}

/// The attributes that the pipeline keeps with the lease.
async fn attributes(
    context: &Context,
    body: &AcquireLease,
    camera: &ResourceView,
) -> Result<Document, ApiError> {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let mut config_version = given(&body.config_version);
    let mut zone_version = given(&body.zone_version);
    if config_version.is_none() || zone_version.is_none() {
        let present = config::version_of_camera(context, camera).await?;
        config_version.get_or_insert(present.config_version);
        zone_version.get_or_insert(present.zone_version);
    }
    let declared = camera.declared().and_then(|declared| declared.site.as_ref());
    let about = json!({
        "shard_id": body.shard_id.clone().unwrap_or_default(),
        "site_id": declared.map(ToString::to_string).or(given(&body.site_id)).unwrap_or_default(),
        "config_version": config_version,
        "zone_version": zone_version,
    });
    Ok(to_document("shard_id", &about)?)
}

/// Renews a lease. What is reported with it is stored and shown.
#[utoipa::path(
    put, path = paths::LEASE_RENEW,
    params(("lease_id" = String, Path, description = "The lease"), TenantQuery), request_body = RenewLease,
    responses(
        (status = 200, description = "It was renewed", body = Envelope),
        (status = 404, description = "There is no such lease, or it was released or revoked"),
        (status = 409, description = "The token or runner in the body is not that of the lease"),
        (status = 410, description = "It has expired"),
    )
)]
async fn renew_lease(
    caller: Caller<role::Runner>,
    at: At<String>,
    Body(body): Body<RenewLease>,
) -> Reply<Envelope> {
    let context = caller.context();
    let claim = body.claim(target(context, &at).await?)?;
    let renewed = context.renew(claim, body.ttl_ms()?, body.stats()?).await;
    Ok(Json(Envelope::granted(&renewed.map_err(over)?)))
}

/// Renews a lease and reports progress, which is stored and shown.
#[utoipa::path(
    post, path = paths::LEASE_HEARTBEAT,
    params(("lease_id" = String, Path, description = "The lease"), TenantQuery), request_body = HeartbeatLease,
    responses(
        (status = 200, description = "It was renewed", body = Envelope),
        (status = 404, description = "There is no such lease, or it was released or revoked"),
        (status = 409, description = "The token or runner in the body is not that of the lease"),
        (status = 410, description = "It has expired"),
    )
)]
async fn heartbeat_lease(
    caller: Caller<role::Runner>,
    at: At<String>,
    Body(body): Body<HeartbeatLease>,
) -> Reply<Envelope> {
    let context = caller.context();
    let claim = body.claim(target(context, &at).await?)?;
    let renewed = context.renew(claim, None, body.stats()?).await;
    Ok(Json(Envelope::granted(&renewed.map_err(over)?)))
}

/// Releases a lease.
#[utoipa::path(
    delete, path = paths::LEASE_RELEASE,
    params(("lease_id" = String, Path, description = "The lease"), TenantQuery), request_body = ReleaseLease,
    responses(
        (status = 200, description = "It was released", body = Envelope),
        (status = 404, description = "There is no such lease, or it was released or revoked"),
        (status = 409, description = "The token or runner in the body is not that of the lease"),
        (status = 410, description = "It has expired"),
    )
)]
async fn release_lease(
    caller: Caller<role::Runner>,
    at: At<String>,
    Body(body): Body<ReleaseLease>,
) -> Reply<Envelope> {
    let context = caller.context();
    let claim = body.claim(target(context, &at).await?)?;
    let released = context.release(claim, body.state()?).await.map_err(over)?;
    let status = LeaseStatus::Released;
    Ok(Json(Envelope::ended(EndedLease::new(released.0, status, 0))))
}

/// Revokes a lease. The resource is held back until the old deadline, unless the old holder is known to be fenced off.
#[utoipa::path(
    post, path = paths::LEASE_REVOKE,
    params(("lease_id" = String, Path, description = "The lease"), TenantQuery), request_body = RevokeLease,
    responses(
        (status = 200, description = "It was revoked", body = Envelope),
        (status = 404, description = "There is no such lease, or it was released or revoked"),
        (status = 409, description = "The token or runner in the body is not that of the lease"),
        (status = 410, description = "It has expired"),
    )
)]
async fn revoke_lease(
    caller: Caller<role::Admin>,
    at: At<String>,
    Body(body): Body<RevokeLease>,
) -> Reply<Envelope> {
    let context = caller.context();
    let lease_id = lease_id(&at.path)?.0;
    let target = target(context, &at).await?;
    let reason = body.reason()?;
    let deed = revoking(context, &target).await?.with("fenced", body.fenced);
    let deed = deed.with_some("reason", reason.as_ref());
    let claim = body.claim(target)?;
    let revoked = context.audited(deed).revoke(claim, body.fenced, reason).await;
    let (_, held_back_ms) = revoked.map_err(over)?;
    let status = LeaseStatus::Revoked;
    Ok(Json(Envelope::ended(EndedLease::new(lease_id, status, held_back_ms))))
}
