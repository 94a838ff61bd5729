//! Runners of a camera pipeline.
//!
//! Registering opens a session. A heartbeat that names it renews everything attached to it; one by name alone updates
//! the registry only (rule 6).

use futures_util::future::try_join_all;
use serde::Deserialize;
use solehold_api::{
    document::read,
    field::{self, Faults},
    kind,
    leases::LeaseBody,
    limits::CAPACITY_MIN,
    page::{self, PageQuery},
    paths,
    placement::Assignments,
    runners::{
        HeartbeatRunner, PutRunnerStatus, RegisterRunner, RegisteredRunner, RemoveRunner, RemovedRunner,
        Runner, RunnerAttributes, RunnerHeartbeat, RunnerList, RunnerStatus,
    },
    terms,
};
use solehold_core::{
    command::{Claim, Command, OpenSession, StatusBy, Target},
    key::{Document, HolderKey, Name, SessionId},
    outcome::{LeaseView, Refusal, SessionView},
    session::{Holder, HolderStatus, Session, Standing},
    time::Revision,
};
use solehold_engine::store::{LoadedRows, ResourceQuery};
use uuid::Uuid;

use super::{
    nodes::holders,
    sessions::{lease_set, witness},
};
use crate::{
    context::{commands::new_session_id, incarnation::is_own, tenants::Named},
    http::{
        ApiError, At, Body, Caller, ChosenSession, Context, Json, NamePath, Params, Quota, Reply,
        TenantQuery, role,
    },
    placement::KnownRunner,
    routes::resource_view::each_page,
    state::audit::Deed,
};

/// Of how many runners in a list it is read at once what they hold.
const LOADS_AT_ONCE: usize = 8;

routes! { "runners":
    list_runners, register_runner, get_runner, delete_runner, heartbeat_runner, put_runner_status,
    runner_assignments
}

/// The runner that a path names.
async fn runner_key(context: &Context, tenant: Option<&str>, id: &str) -> Result<HolderKey, ApiError> {
    let name = field::name("runner_id", id)?;
    Ok(HolderKey { tenant: context.tenant_of(tenant, Named::Runner(&name)).await?, name })
}

/// Reads a registered runner with its present session.
pub async fn find(context: &Context, key: &HolderKey) -> Result<(LoadedRows, Holder), ApiError> {
    let loaded = context.load_holder(key).await?;
    let holder = loaded.state.holder(key).filter(|holder| holder.registered).cloned();
    let holder = holder.ok_or_else(|| Refusal::NoHolder(key.name.clone()))?;
    Ok((loaded, holder))
}

fn present_session<'a>(loaded: &'a LoadedRows, holder: &Holder) -> Option<&'a Session> {
    holder.session.and_then(|id| loaded.state.session(id))
}

/// A runner with its load: everything that is held under its name.
async fn shown(context: &Context, loaded: &LoadedRows, holder: &Holder) -> Result<Runner, ApiError> {
    let (held, _) = held_by(context, &holder.key).await?;
    Ok(Runner::of(holder, present_session(loaded, holder), held.len() as u64, loaded.now))
}

async fn see(context: &Context, key: &HolderKey) -> Result<Runner, ApiError> {
    let (loaded, holder) = find(context, key).await?;
    shown(context, &loaded, &holder).await
}

async fn status_of(context: &Context, key: &HolderKey) -> Result<RunnerStatus, ApiError> {
    let (loaded, holder) = find(context, key).await?;
    Ok(RunnerStatus::of(&holder, present_session(&loaded, &holder), loaded.now))
}

/// Everything that is held under a runner's name, in whichever session or none.
async fn held_by(context: &Context, key: &HolderKey) -> Result<(Vec<LeaseView>, u64), ApiError> {
    let holder = Some(key.name.clone());
    let asked = ResourceQuery { holder, leased: Some(true), undeclared: true, ..Default::default() };
    let mut leases = Vec::new();
    let mut revision = 0;
    each_page(context, Some(&key.tenant), &asked, |found| {
        leases.extend(found.leases());
        revision = found.loaded.cursor.revision.0;
    })
    .await?;
    Ok((leases, revision))
}

/// Registers a runner. Registering it again opens a new session, and the former one can no longer be renewed. What it
/// held by its name alone is revoked: free for the runner itself at once, and for others after the old deadline.
#[utoipa::path(
    post, path = paths::RUNNER_REGISTER, params(ChosenSession), request_body = RegisterRunner,
    responses(
        (status = 200, description = "It was registered", body = RegisteredRunner),
        (status = 409, description = "The session to be replaced belongs to another runner"),
    )
)]
async fn register_runner(
    caller: Caller<role::Runner>,
    chosen: ChosenSession,
    Body(body): Body<RegisterRunner>,
) -> Reply<RegisteredRunner> {
    let context = caller.context();
    let asked = body.terms()?;
    check_capacity(context, asked.registration.capacity)?;
    let tenant = caller.tenant(body.tenant_id.as_deref())?;
    context.quota(&tenant, Quota::Sessions).await?;
    let key = HolderKey { tenant, name: asked.runner };
    let before = context.load_holder(&key).await?;
    let was_registered = before.state.holder(&key).is_some_and(|holder| holder.registered);
    let command = Command::OpenSession(OpenSession {
        id: chosen.id.unwrap_or_else(new_session_id),
        holder: key.clone(),
        ttl_ms: asked.session_ttl_ms,
        replace: body.replace.map(SessionId),
        fenced: body.fenced,
        follows: body.follows.map(SessionId),
        registration: Some(asked.registration),
        metrics: asked.metrics,
    });
    let view = context.session(command).await?;
    let holder = view.holder.as_ref().ok_or_else(|| Refusal::NoHolder(key.name.clone()))?;
    if was_registered {
        let (held, _) = held_by(context, &key).await?;
        context.end_former(&held, holder.registered_at, body.fenced).await?;
    }
    registered(context, holder, &view).await
}

/// The operator may allow less than the surface does.
fn check_capacity(context: &Context, asked: Option<u32>) -> Result<(), ApiError> {
    let most = context.limits.capacity_max;
    let Some(asked) = asked.filter(|asked| *asked > most) else { return Ok(()) };
    let mut faults = Faults::default();
    let told = format!("is {asked}; this server allows {CAPACITY_MIN} to {most} (limits.capacity_max)");
    faults.note("capacity", told);
    Ok(faults.done()?)
}

/// The answer to a registration. What is attached to a former session is not the new one's: it expires.
async fn registered(context: &Context, holder: &Holder, view: &SessionView) -> Reply<RegisteredRunner> {
    let (leases, _) = held_by(context, &holder.key).await?;
    let assigned_cameras = cameras_of(holder, leases.iter().filter(|lease| is_own(lease)));
    let runner = Runner::of(holder, Some(&view.session), leases.len() as u64, view.now);
    let answer = RegisteredRunner::of(runner, &view.session, view.now);
    Ok(Json(RegisteredRunner { assigned_cameras, ..answer }))
}

/// The cameras among some leases, unless the runner has registered for kinds of which `camera` is none.
fn cameras_of<'a>(holder: &Holder, leases: impl Iterator<Item = &'a LeaseView>) -> Option<Vec<String>> {
    let about: RunnerAttributes = read(&holder.attributes).unwrap_or_default();
    let takes_cameras = about.kinds.is_empty() || about.kinds.iter().any(|kind| kind == kind::CAMERA);
    let cameras = leases.filter(|lease| lease.key.kind.as_str() == kind::CAMERA);
    takes_cameras.then(|| cameras.map(|lease| lease.key.key.to_string()).collect())
}

/// Reports that a runner is alive.
#[utoipa::path(
    put, path = paths::RUNNER_HEARTBEAT,
    params(("id" = String, Path, description = "The runner"), TenantQuery), request_body = HeartbeatRunner,
    responses(
        (status = 200, description = "Everything that the runner holds", body = RunnerHeartbeat),
        (status = 404, description = "The runner is not registered, or its session is over"),
        (status = 409, description = "The session belongs to another runner"),
    )
)]
async fn heartbeat_runner(
    caller: Caller<role::Runner>,
    at: At<String>,
    Body(body): Body<HeartbeatRunner>,
) -> Reply<RunnerHeartbeat> {
    let context = caller.context();
    let key = match body.session_id {
        Some(session) => {
            let session = Named::Session(SessionId(session));
            let tenant = context.tenant_of(at.tenant.as_deref(), session).await?;
            HolderKey { tenant, name: field::name("runner_id", &at.path)? }
        }
        None => runner_key(context, at.tenant.as_deref(), &at.path).await?,
    };
    let metrics = body.metrics()?;
    witness(context, body.sealed_cursor.as_deref()).await?;
    match body.session_id {
        Some(session) => by_session(context, key, session, metrics).await,
        None => by_name(context, key, metrics).await,
    }
}

/// Renews everything attached to the session.
async fn by_session(
    context: &Context,
    key: HolderKey,
    id: Uuid,
    metrics: Option<Document>,
) -> Reply<RunnerHeartbeat> {
    let tenant = key.tenant.clone();
    let holder = Some(key.name.clone());
    let command = Command::Heartbeat { tenant, session: SessionId(id), holder, metrics };
    let view = context.session(command).await?;
    let set = lease_set(context, &view).await?;
    let cursor = context.engine().cursor();
    Ok(Json(RunnerHeartbeat {
        success: true,
        runner_id: key.name.to_string(),
        status: status(context, &key, view.session.standing).await?,
        session_id: Some(id),
        ttl_ms: Some(view.session.deadline.ms_after(view.now)),
        epoch: Some(cursor.epoch),
        revision: set.revision.0,
        sealed_cursor: context.engine().seal(cursor),
        leases: set.lasting(&view).map(|lease| LeaseBody::of(&lease, set.revision)).collect(),
    }))
}

/// The status of a runner whose session was just renewed. Only if it gets no more leases must it be looked up.
async fn status(context: &Context, key: &HolderKey, standing: Standing) -> Result<RunnerStatus, ApiError> {
    match standing {
        Standing::Current => Ok(RunnerStatus::Active),
        Standing::Draining | Standing::Superseded => status_of(context, key).await,
    }
}

/// Updates the registry, and renews nothing: a name is not proof.
async fn by_name(context: &Context, key: HolderKey, metrics: Option<Document>) -> Reply<RunnerHeartbeat> {
    context.execute(Command::HeardOf { holder: key.clone(), metrics }).await?;
    let (leases, revision) = held_by(context, &key).await?;
    Ok(Json(RunnerHeartbeat {
        success: true,
        runner_id: key.name.to_string(),
        status: status_of(context, &key).await?,
        session_id: None,
        ttl_ms: None,
        epoch: Some(context.engine().cursor().epoch),
        revision,
        sealed_cursor: None,
        leases: leases.iter().map(|lease| LeaseBody::of(lease, Revision(revision))).collect(),
    }))
}

/// Returns a runner.
#[utoipa::path(
    get, path = paths::RUNNER, params(("id" = String, Path, description = "The runner"), TenantQuery),
    responses((status = 200, description = "The runner", body = Runner))
)]
async fn get_runner(caller: Caller<role::Reader>, at: At<String>) -> Reply<Runner> {
    let key = runner_key(caller.context(), at.tenant.as_deref(), &at.path).await?;
    Ok(Json(see(caller.context(), &key).await?))
}

/// Removes a runner. With its session as proof, all that it holds is released. By its name alone, which is no proof
/// that it has stopped, all that it holds is revoked and held back until the deadline that the runner had.
#[utoipa::path(
    delete, path = paths::RUNNER,
    params(("id" = String, Path, description = "The runner"), TenantQuery), request_body = RemoveRunner,
    responses(
        (status = 200, description = "It was removed", body = RemovedRunner),
        (status = 404, description = "There is no such runner, or its session is over"),
        (status = 409, description = "The session belongs to another runner"),
    )
)]
async fn delete_runner(
    caller: Caller<role::Runner>,
    at: At<String>,
    Body(body): Body<RemoveRunner>,
) -> Reply<RemovedRunner> {
    let context = caller.context();
    let key = runner_key(context, at.tenant.as_deref(), &at.path).await?;
    let session = body.session_id.map(SessionId);
    let is_operator = session.is_none() && caller.is_admin();
    let acting = context.audited_if(is_operator, Deed::to_runner("remove_runner", &key));
    let (mut released, mut revoked) = acting.remove_holder(key.clone(), session).await?;
    let (held, _) = held_by(context, &key).await?;
    match session {
        Some(_) => released += release_own(context, &key, &held).await?,
        None => revoked += context.end_removed(&held).await?,
    }
    let runner_id = key.name.to_string();
    let leases_released = released + revoked;
    Ok(Json(RemovedRunner { success: true, runner_id, released, leases_released, revoked }))
}

/// Releases what is held under a name outside of any session, lease by lease; returns how many.
async fn release_own(context: &Context, key: &HolderKey, held: &[LeaseView]) -> Result<usize, ApiError> {
    let release = |lease: &LeaseView| {
        let target = Target::Lease { tenant: key.tenant.clone(), id: lease.lease.id };
        Command::Release { claim: Claim { target, token: None, session: None, holder: None }, state: None }
    };
    let commands = held.iter().filter(|lease| is_own(lease)).map(release).collect();
    let mut released = 0;
    for outcome in context.submit_all(commands).await {
        // If it is refused, the lease has ended in the meantime.
        released += usize::from(outcome?.is_ok());
    }
    Ok(released)
}

/// Sets the status of a runner: `active`, `draining` or `maintenance`. A runner may drain itself, by the key that it
/// works with; everything else needs an admin's key. A runner that drains itself does not end its maintenance.
#[utoipa::path(
    put, path = paths::RUNNER_STATUS,
    params(("id" = String, Path, description = "The runner"), TenantQuery), request_body = PutRunnerStatus,
    responses(
        (status = 200, description = "The runner as it is now", body = Runner),
        (status = 404, description = "There is no such runner, or that is not its present session"),
    )
)]
async fn put_runner_status(
    caller: Caller<role::Runner>,
    at: At<String>,
    Body(body): Body<PutRunnerStatus>,
) -> Reply<Runner> {
    let context = caller.context();
    let key = runner_key(context, at.tenant.as_deref(), &at.path).await?;
    let status = body.wanted()?;
    let is_admin = caller.must_meet::<role::Admin>();
    if status != HolderStatus::Draining {
        is_admin.clone()?;
    }
    let by = match body.session_id.map(SessionId) {
        None if is_admin.is_ok() => StatusBy::Operator,
        session => StatusBy::Itself(session),
    };
    let deed = Deed::to_runner("runner_status", &key).with("status", body.status);
    let acting = context.audited_if(by == StatusBy::Operator, deed);
    acting.execute(Command::SetStatus { holder: key.clone(), status, by }).await?;
    Ok(Json(see(context, &key).await?))
}

/// The query of a runner's assignments.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
struct AssignmentsQuery {
    /// The tenant, for a key that may access several.
    tenant: Option<String>,
    /// The `version` of an earlier answer: wait for another one.
    known: Option<String>,
    /// How long to wait for it, in milliseconds.
    wait_ms: Option<u64>,
}

/// Returns the assignments of a runner: the leases that it holds, and the resources to keep, acquire and release.
///
/// With `known` and `wait_ms` the answer comes as soon as something else is planned for the runner than in the answer
/// of that version, and at the latest after `wait_ms`.
#[utoipa::path(
    get, path = paths::RUNNER_ASSIGNMENTS,
    params(("id" = String, Path, description = "The runner"), AssignmentsQuery),
    responses((status = 200, description = "Its leases, and what is planned for it", body = Assignments))
)]
async fn runner_assignments(
    caller: Caller<role::Reader>,
    NamePath(id): NamePath<String>,
    Params(query): Params<AssignmentsQuery>,
) -> Reply<Assignments> {
    let context = caller.context();
    let known = field::maybe_name("known", query.known.as_deref())?;
    let wait = terms::wait(query.wait_ms.map(Into::into).as_ref()).map_err(|fault| vec![fault])?;
    let key = runner_key(context, query.tenant.as_deref(), &id).await?;
    let (found, holder) = find(context, &key).await?;
    let asker = KnownRunner::of(&found, &key);
    let planned = context.other_plan(&key, asker.as_ref(), known.as_ref().map(Name::as_str), wait).await?;
    // Read after the plan: what was acquired since then is kept, not acquired again.
    let (leases, revision) = held_by(context, &key).await?;
    let mut assignments = planned.assignments(&key.name, &leases, |key| context.caller().may_see(key));
    assignments.assigned_cameras = cameras_of(&holder, leases.iter());
    assignments.leases = leases.iter().map(|lease| LeaseBody::of(lease, Revision(revision))).collect();
    assignments.revision = revision;
    Ok(Json(assignments))
}

/// The query of a list of runners.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
struct RunnerFilter {
    /// Only at this site.
    site_id: Option<String>,
    /// Only with this status.
    status: Option<RunnerStatus>,
    /// Only of this deployment.
    deployment_group: Option<String>,
    /// Only of this version.
    deployment_version: Option<String>,
}

impl RunnerFilter {
    fn check(&self) -> Result<(), ApiError> {
        let mut faults = Faults::default();
        for (field, value) in [
            ("site_id", &self.site_id),
            ("deployment_group", &self.deployment_group),
            ("deployment_version", &self.deployment_version),
        ] {
            faults.maybe_name(field, value.as_deref());
        }
        Ok(faults.done()?)
    }

    fn admits(&self, runner: &Runner) -> bool {
        let is = |asked: &Option<String>, found: Option<&String>| {
            asked.as_ref().is_none_or(|asked| found == Some(asked))
        };
        is(&self.site_id, Some(&runner.site_id))
            && is(&self.deployment_group, runner.about.deployment_group.as_ref())
            && is(&self.deployment_version, runner.about.deployment_version.as_ref())
            && self.status.is_none_or(|status| status == runner.status)
    }
}

/// Lists runners. A page may have fewer items than `limit`; the last has no `next`.
#[utoipa::path(
    get, path = paths::RUNNERS, params(RunnerFilter, PageQuery),
    responses((status = 200, description = "A page of runners", body = RunnerList))
)]
async fn list_runners(
    caller: Caller<role::Reader>,
    Params(filter): Params<RunnerFilter>,
    Params(query): Params<PageQuery>,
) -> Reply<RunnerList> {
    let context = caller.context();
    let tenant = caller.tenant_or_all(query.tenant.as_deref())?;
    filter.check()?;
    let limit = page::size(query.limit)?;
    let (found, next) = holders(context, tenant.as_ref(), true, query.cursor.as_ref(), limit).await?;
    let holders: Vec<_> = found.keys.iter().filter_map(|key| found.loaded.state.holder(key)).collect();
    let mut runners = Vec::with_capacity(holders.len());
    for some in holders.chunks(LOADS_AT_ONCE) {
        let mut asked = Vec::with_capacity(some.len());
        for holder in some {
            asked.push(shown(context, &found.loaded, holder));
        }
        runners.extend(try_join_all(asked).await?);
    }
    runners.retain(|runner| filter.admits(runner));
    Ok(Json(RunnerList { runners, next }))
}
