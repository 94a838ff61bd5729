//! Where resources are placed, and the shift between deployment groups.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use solehold_api::{
    limits::FAILURE_REPORT_MS,
    paths,
    placement::{
        Deployment, DeploymentList, Explanation, Failures, Penalty, PlacementSettings, PostShift,
        PutPlacement, PutQuarantine, ReportFailure, ShiftState,
    },
    runners::{FAILED_RESOURCES, Runner, RunnerAttributes},
};
use solehold_core::{
    command::Footprint,
    key::{HolderKey, Name, ResourceKey},
    outcome::Refusal,
    placement::{Presence, newest_first},
    session::HolderStatus,
};

use crate::{
    http::{ApiError, At, Body, Caller, Context, Json, Params, Reply, TenantQuery, role},
    placement::{self, Planned},
    routes::{resource_view::ResourceView, resources::ResourcePath, runners},
};

routes! { "placement":
    explain_resource, report_failure, put_quarantine, clear_quarantine, list_deployments, shift_deployment,
    get_placement, put_placement
}

/// The key of a resource that must be declared.
async fn declared(context: &Context, at: &At<ResourcePath>) -> Result<ResourceKey, ApiError> {
    let key = at.key(context.caller())?;
    Ok(ResourceView::read_declared(context, &key).await?.resource.key)
}

/// Explains why a resource is where it is, why it is placed nowhere, and what happens if its holder dies now.
#[utoipa::path(
    get, path = paths::RESOURCE_EXPLAIN, params(ResourcePath, TenantQuery),
    responses((status = 200, description = "The explanation", body = Explanation))
)]
async fn explain_resource(caller: Caller<role::Reader>, at: At<ResourcePath>) -> Reply<Explanation> {
    let context = caller.context();
    let key = &at.key(&caller)?;
    let is_there = |seen: &ResourceView| seen.declared().is_some() || seen.live().is_some();
    let seen = ResourceView::read(context, key).await?.filter(is_there);
    let seen = seen.ok_or_else(|| Refusal::NoResource(key.clone()))?;
    let planned = context.plans.plan(&key.tenant, None).await?;
    let (failures, mut penalties) = placement::failures_of(context.engine(), key).await?;
    tell_who_declines(context, key, &mut penalties).await?;
    let holder = seen.live().map(|lease| lease.lease.holder.clone());
    Ok(Json(placement::explain(&planned, key, holder, failures, penalties).await?))
}

/// Adds why the runners themselves do not ask for the resource: an agent whose workers failed at it pauses, and says so
/// with its heartbeats.
async fn tell_who_declines(
    context: &Context,
    key: &ResourceKey,
    penalties: &mut [Penalty],
) -> Result<(), ApiError> {
    let names = penalties.iter().filter_map(|penalty| Name::new(&penalty.runner_id).ok());
    let holders: Vec<_> = names.map(|name| HolderKey { tenant: key.tenant.clone(), name }).collect();
    let loaded = context.engine().load(&Footprint { holders: holders.clone(), ..Default::default() }).await?;
    let resource = format!("{}/{}", key.kind, key.key);
    for holder in holders.iter().filter_map(|key| loaded.state.holder(key)) {
        let session = holder.session.and_then(|id| loaded.state.session(id));
        let runner = Runner::of(holder, session, 0, loaded.now);
        let why = runner.metrics.get(FAILED_RESOURCES).and_then(|failed| failed.get(&resource)?.as_str());
        let penalty = penalties.iter_mut().find(|penalty| penalty.runner_id == runner.runner_id);
        if let (Some(why), Some(penalty)) = (why, penalty) {
            penalty.declines = Some(why.to_owned());
        }
    }
    Ok(())
}

/// Reports that a runner failed to work on a resource, which it holds or has held until a minute ago. A failure counts
/// for an hour: other runners are preferred for as long; after five failures the resource is in quarantine, and placed
/// nowhere until it is cleared. Five failures in the deployment group that work is being shifted to halt the shift.
#[utoipa::path(
    post, path = paths::RESOURCE_FAILURES, params(ResourcePath, TenantQuery), request_body = ReportFailure,
    responses(
        (status = 200, description = "The failures of the resource", body = Failures),
        (status = 409, description = "The runner does not hold the resource, or what was shown is not of its lease"),
    )
)]
async fn report_failure(
    caller: Caller<role::Runner>,
    at: At<ResourcePath>,
    Body(body): Body<ReportFailure>,
) -> Reply<Failures> {
    let context = caller.context();
    let (runner, claim) = body.terms(&at.key(&caller)?)?;
    let key = declared(context, &at).await?;
    let group = group_of(context, &key.tenant, &runner).await?;
    context.must_have_held(&key, &claim, FAILURE_REPORT_MS).await?;
    let reason = body.reason.as_deref();
    Ok(Json(placement::fail(context.engine(), &key, &runner, group.as_deref(), reason).await?))
}

async fn group_of(context: &Context, tenant: &Name, runner: &Name) -> Result<Option<String>, ApiError> {
    let key = HolderKey { tenant: tenant.clone(), name: runner.clone() };
    let (_, holder) = runners::find(context, &key).await?;
    let about: Option<RunnerAttributes> = solehold_api::document::read(&holder.attributes);
    Ok(about.and_then(|about| about.deployment_group))
}

/// Puts a resource into quarantine: it is placed nowhere until it is cleared. Its present holder keeps it.
#[utoipa::path(
    put, path = paths::RESOURCE_QUARANTINE, params(ResourcePath, TenantQuery), request_body = PutQuarantine,
    responses((status = 200, description = "The failures of the resource", body = Failures))
)]
async fn put_quarantine(
    caller: Caller<role::Admin>,
    at: At<ResourcePath>,
    Body(body): Body<PutQuarantine>,
) -> Reply<Failures> {
    let context = caller.context();
    let reason = body.reason()?;
    let key = declared(context, &at).await?;
    Ok(Json(placement::quarantine(&context.operator(), &key, reason.as_deref()).await?))
}

/// Clears a resource: its failures are forgotten, and it is placed again.
#[utoipa::path(
    delete, path = paths::RESOURCE_QUARANTINE, params(ResourcePath, TenantQuery),
    responses((status = 204, description = "It was cleared, or there was nothing to clear"))
)]
async fn clear_quarantine(caller: Caller<role::Admin>, at: At<ResourcePath>) -> Result<StatusCode, ApiError> {
    let context = caller.context();
    let key = declared(context, &at).await?;
    placement::clear(&context.operator(), &key).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists the deployment groups of the registered runners, what each holds, and the present shift.
#[utoipa::path(
    get, path = paths::DEPLOYMENTS, params(TenantQuery),
    responses((status = 200, description = "The groups", body = DeploymentList))
)]
async fn list_deployments(
    caller: Caller<role::Reader>,
    Params(query): Params<TenantQuery>,
) -> Reply<DeploymentList> {
    let context = caller.context();
    let tenant = caller.tenant(query.tenant.as_deref())?;
    let planned = context.plans.plan(&tenant, None).await?;
    let shift = placement::tenant_record(context.engine(), &tenant).await?.shift;
    Ok(Json(DeploymentList { deployments: groups(&planned), shift, moves_left: planned.plan.moves() }))
}

fn groups(planned: &Planned) -> Vec<Deployment> {
    let mut groups: BTreeMap<Option<&str>, Deployment> = BTreeMap::new();
    let mut group_of = BTreeMap::new();
    for runner in &planned.snapshot.runners {
        let group = groups.entry(runner.group.as_deref()).or_default();
        group_of.insert(&runner.key.name, runner.group.as_deref());
        group.deployment_group = runner.group.clone();
        if let Presence::Away { .. } = runner.presence {
            continue;
        }
        group.runners += 1;
        group.active += usize::from(runner.status == HolderStatus::Active);
        group.capacity += u64::from(runner.capacity);
        group.versions.extend(runner.version.clone().filter(|version| !group.versions.contains(version)));
    }
    for resource in planned.snapshot.resources.iter().filter(|resource| resource.held) {
        let group = resource.holder.as_ref().and_then(|holder| group_of.get(holder));
        if let Some(group) = group.and_then(|group| groups.get_mut(group)) {
            group.held += 1;
        }
    }
    let mut groups: Vec<Deployment> = groups.into_values().collect();
    groups.iter_mut().for_each(|group| group.versions.sort_by(|a, b| newest_first(a, b)));
    groups
}

/// Shifts work to a deployment group: that percentage of the resources is handed over to its runners, the others to the
/// runners of the other groups. Which resources they are depends on their keys alone. `percent` 100 promotes the group,
/// 0 rolls the shift back.
#[utoipa::path(
    post, path = paths::DEPLOYMENT_SHIFT, params(TenantQuery), request_body = PostShift,
    responses((status = 200, description = "The shift", body = ShiftState))
)]
async fn shift_deployment(
    caller: Caller<role::Admin>,
    Params(query): Params<TenantQuery>,
    Body(body): Body<PostShift>,
) -> Reply<ShiftState> {
    let shift = body.terms()?;
    let tenant = caller.tenant(query.tenant.as_deref())?;
    placement::shift(&caller.context().operator(), &tenant, &shift).await?;
    Ok(Json(shift))
}

/// Returns the placement settings of a tenant.
#[utoipa::path(
    get, path = paths::PLACEMENT, params(TenantQuery),
    responses((status = 200, description = "The settings; what is null is as by default", body = PlacementSettings))
)]
async fn get_placement(
    caller: Caller<role::Reader>,
    Params(query): Params<TenantQuery>,
) -> Reply<PlacementSettings> {
    let tenant = caller.tenant(query.tenant.as_deref())?;
    Ok(Json(placement::tenant_record(caller.context().engine(), &tenant).await?.settings))
}

/// Changes what is tuned about the placement of a tenant's resources: what is left out stays as it is, and what is null
/// is as by default again.
#[utoipa::path(
    put, path = paths::PLACEMENT, params(TenantQuery), request_body = PutPlacement,
    responses((status = 200, description = "The settings as they are now", body = PlacementSettings))
)]
async fn put_placement(
    caller: Caller<role::Admin>,
    Params(query): Params<TenantQuery>,
    Body(body): Body<PutPlacement>,
) -> Reply<PlacementSettings> {
    let tenant = caller.tenant(query.tenant.as_deref())?;
    Ok(Json(placement::put_settings(&caller.context().operator(), &tenant, &body).await?))
}
