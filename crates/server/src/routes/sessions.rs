//! Sessions: one heartbeat keeps everything that hangs on one, and answers with all of it.

use axum::{Json, http::StatusCode};
use solehold_api::{
    paths,
    problem::{ErrorCode, Problem},
    sessions::{ClosedSession, HeartbeatSession, OpenSession, Session},
};
use solehold_core::{
    command::{self, Command, Footprint},
    key::{HolderKey, Name, SessionId},
    outcome::{Answer, Refusal, SessionView},
};
use solehold_engine::LeaseSet;
use utoipa_axum::router::OpenApiRouter;

use super::convert;
use crate::{
    Context, Quota,
    http::{Body, Caller, Failure, GuardedContext, NamePath, Params, TenantQuery, role, submit},
};

pub fn routes() -> OpenApiRouter<GuardedContext> {
    OpenApiRouter::new().routes(routes!(open)).routes(routes!(get, close)).routes(routes!(heartbeat))
}

/// Opens or keeps a session.
pub async fn session(context: &Context, command: Command) -> Result<SessionView, Failure> {
    match submit(context, command).await? {
        Answer::Session(view) => Ok(view),
        other => Err(convert::odd(&other)),
    }
}

/// The session that a path names. What is no id is no session.
fn session_id(id: &str) -> Result<SessionId, Failure> {
    id.parse().map(SessionId).map_err(|_| no_session(id))
}

fn no_session(id: &str) -> Failure {
    let shown: String = id.chars().take(64).collect();
    Problem::new(ErrorCode::NoSession, format!("there is no session {shown}: open another one")).into()
}

/// Everything that hangs on a session that was just opened or renewed. If it is over by the time that this is read, the
/// answer is that, and not an empty set.
pub async fn lease_set(context: &Context, view: &SessionView) -> Result<LeaseSet, Failure> {
    let set = context.engine().lease_set(view).await?;
    let over = |why| Problem::from_refusal(&Refusal::NoSession { session: view.session.id, why });
    Ok(set.map_err(over)?)
}

/// A holder shows how far the history had come when it was last answered: a store that is behind that was set back.
pub async fn witness(context: &Context, sealed_cursor: Option<&str>) -> Result<(), Failure> {
    match sealed_cursor {
        Some(sealed) => Ok(context.engine().witness(sealed).await?),
        None => Ok(()),
    }
}

/// A session with everything that hangs on it.
async fn shown(context: &Context, view: &SessionView) -> Result<Session, Failure> {
    let set = lease_set(context, view).await?;
    let leases: Vec<_> = set.lasting(view).collect();
    let (slack_ms, cursor) = (context.engine().clock_slack_ms(), context.engine().cursor());
    Ok(Session {
        epoch: Some(cursor.epoch),
        revision: set.revision.0,
        sealed_cursor: context.engine().seal(cursor),
        ..Session::of(&view.session, &leases, view.now, slack_ms)
    })
}

/// Opens a session. Its holder's former one is superseded, and what hangs there runs out, or is closed with `replace`.
#[utoipa::path(
    post, path = paths::SESSIONS, tag = "sessions", operation_id = "open_session",
    params(TenantQuery), request_body = OpenSession,
    responses(
        (status = 201, description = "It is open", body = Session),
        (status = 409, description = "The session to be replaced is another holder's"),
    )
)]
async fn open(
    caller: Caller<role::Runner>,
    Params(query): Params<TenantQuery>,
    Body(body): Body<OpenSession>,
) -> Result<(StatusCode, Json<Session>), Failure> {
    let context = caller.context();
    let tenant = caller.tenant(query.tenant.as_deref())?;
    let asked = body.asked()?;
    context.quota(&tenant, Quota::Sessions).await?;
    let command = Command::OpenSession(command::OpenSession {
        id: convert::fresh_session(),
        holder: HolderKey { tenant, name: asked.holder },
        ttl_ms: asked.ttl_ms,
        replace: body.replace.map(SessionId),
        fenced: body.fenced,
        registration: None,
        metrics: asked.metrics,
    });
    let view = session(context, command).await?;
    Ok((StatusCode::CREATED, Json(shown(context, &view).await?)))
}

/// Keeps a session and everything that hangs on it.
#[utoipa::path(
    put, path = paths::SESSION_HEARTBEAT, tag = "sessions", operation_id = "heartbeat_session",
    params(("id" = String, Path, description = "The session"), TenantQuery), request_body = HeartbeatSession,
    responses(
        (status = 200, description = "It lasts longer, and so does all that hangs on it", body = Session),
        (status = 404, description = "It is not known, over or superseded"),
    )
)]
async fn heartbeat(
    caller: Caller<role::Runner>,
    NamePath(id): NamePath<String>,
    Params(query): Params<TenantQuery>,
    Body(body): Body<HeartbeatSession>,
) -> Result<Json<Session>, Failure> {
    let context = caller.context();
    let tenant = caller.tenant(query.tenant.as_deref())?;
    let (id, metrics) = (session_id(&id)?, body.metrics()?);
    witness(context, body.sealed_cursor.as_deref()).await?;
    let command = Command::Heartbeat { tenant, session: id, holder: None, metrics };
    let view = session(context, command).await?;
    Ok(Json(shown(context, &view).await?))
}

/// Shows a session that lives.
#[utoipa::path(
    get, path = paths::SESSION, tag = "sessions", operation_id = "get_session",
    params(("id" = String, Path, description = "The session"), TenantQuery),
    responses(
        (status = 200, description = "The session", body = Session),
        (status = 404, description = "It is not known, or over"),
    )
)]
async fn get(
    caller: Caller<role::Reader>,
    NamePath(id): NamePath<String>,
    Params(query): Params<TenantQuery>,
) -> Result<Json<Session>, Failure> {
    let context = caller.context();
    let tenant = caller.tenant(query.tenant.as_deref())?;
    let view = find(context, &tenant, session_id(&id)?).await?.ok_or_else(|| no_session(&id))?;
    Ok(Json(shown(context, &view).await?))
}

/// A tenant's session that lives.
async fn find(context: &Context, tenant: &Name, id: SessionId) -> Result<Option<SessionView>, Failure> {
    let loaded = context.engine().load(&Footprint { sessions: vec![id], ..Default::default() }).await?;
    let session = loaded.state.session(id).filter(|s| s.holder.tenant == *tenant && s.is_live(loaded.now));
    Ok(session.map(|session| SessionView { session: session.clone(), holder: None, now: loaded.now }))
}

/// Closes a session: everything that hangs on it is released.
#[utoipa::path(
    delete, path = paths::SESSION, tag = "sessions", operation_id = "close_session",
    params(("id" = String, Path, description = "The session"), TenantQuery),
    responses(
        (status = 200, description = "It is closed", body = ClosedSession),
        (status = 404, description = "It is not known, or over"),
    )
)]
async fn close(
    caller: Caller<role::Runner>,
    NamePath(id): NamePath<String>,
    Params(query): Params<TenantQuery>,
) -> Result<Json<ClosedSession>, Failure> {
    let tenant = caller.tenant(query.tenant.as_deref())?;
    let id = session_id(&id)?;
    match submit(caller.context(), Command::CloseSession { tenant, session: id }).await? {
        Answer::Closed { released } => {
            Ok(Json(ClosedSession { session_id: id.0, released: released as u64 }))
        }
        other => Err(convert::odd(&other)),
    }
}
