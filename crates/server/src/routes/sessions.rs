//! Sessions: one heartbeat renews everything that is attached to a session, and returns all of it, unless its holder
//! names the set that it knows and that is the set still.

use axum::http::StatusCode;
use solehold_api::{
    field::Faults,
    hand_over::{AskNews, News, NewsTerms},
    limits::SEALED_CURSOR_BYTES_MAX,
    paths,
    problem::{ErrorCode, Problem},
    sessions::{ClosedSession, HeartbeatSession, OpenSession, SessionBody},
    watch::Cursor,
};
use solehold_core::{
    command::{self, Command, Footprint},
    key::{HolderKey, Name, ResourceKey, SessionId},
    outcome::{Refusal, SessionView},
    session::SessionOver,
};
use solehold_engine::{LeaseSet, news::SessionNews};

use crate::{
    context::{about, commands::new_session_id, tenants::Named},
    http::{
        ApiError, At, Body, Caller, ChosenSession, Context, Json, Params, Quota, Reply, StatusReply,
        TenantQuery, role,
    },
    routes::watch::{store_cursor, wire_cursor},
};

routes!["sessions": open_session, get_session, close_session, heartbeat_session, session_news];

/// The session that a path names. What is no id is no session.
fn session_id(id: &str) -> Result<SessionId, ApiError> {
    id.parse().map(SessionId).map_err(|_| no_session(id))
}

fn no_session(id: &str) -> ApiError {
    let shown: String = id.chars().take(64).collect();
    Problem::new(ErrorCode::NoSession, format!("session {shown} does not exist; open a new one")).into()
}

/// Everything attached to a session that was just opened or renewed. If the session is over by the time that this is
/// read, the answer says so, rather than giving an empty set.
pub async fn lease_set(context: &Context, view: &SessionView) -> Result<LeaseSet, ApiError> {
    let set = context.engine().lease_set(view).await?;
    Ok(set.map_err(|why| over(view, why))?)
}

fn over(view: &SessionView, why: SessionOver) -> Problem {
    Problem::from_refusal(&Refusal::NoSession { session: view.session.id, why })
}

/// A holder shows how far the history had come when it was last answered: a store that is behind that was set back.
pub async fn witness(context: &Context, sealed_cursor: Option<&str>) -> Result<(), ApiError> {
    let Some(sealed) = sealed_cursor else { return Ok(()) };
    let mut faults = Faults::default();
    faults.text("sealed_cursor", Some(sealed), SEALED_CURSOR_BYTES_MAX);
    faults.done()?;
    Ok(context.engine().witness(sealed).await?)
}

/// A session with everything attached to it; without that, if its holder knows it already. A limited key sees of the
/// sessions of others only what is on its resources (rule 26).
async fn shown(
    context: &Context,
    view: &SessionView,
    known: Option<Cursor>,
) -> Result<SessionBody, ApiError> {
    let engine = context.engine();
    let set =
        engine.changed_lease_set(view, known.map(store_cursor)).await?.map_err(|why| over(view, why))?;
    let cursor = engine.cursor();
    let body = SessionBody::of(&view.session, view.now, engine.clock_slack_ms());
    let caller = context.caller();
    let is_own = caller.actor().may_act_for(view.session.by.as_ref());
    let sees = |key: &ResourceKey| is_own || caller.may_see(key);
    let body = match set {
        // It is of the epoch that it was named with, whatever has become known meanwhile.
        None => SessionBody { epoch: known.map(|known| known.epoch), set_cursor: known, ..body },
        Some(set) => SessionBody {
            epoch: Some(cursor.epoch),
            revision: set.revision.0,
            set_cursor: set.cursor(cursor.epoch).map(wire_cursor),
            ..body.with_set(
                set.lasting(view).filter(|lease| sees(&lease.key)),
                set.lasting_pending(view).filter(|offer| sees(&offer.key)),
                view.now,
            )
        },
    };
    Ok(SessionBody { sealed_cursor: engine.seal(cursor), ..body })
}

/// Opens a session. The holder's former session is superseded: its leases expire, or are released at once with
/// `replace`.
#[utoipa::path(
    post, path = paths::SESSIONS, params(TenantQuery, ChosenSession), request_body = OpenSession,
    responses(
        (status = 201, description = "It was opened", body = SessionBody),
        (status = 409, description = "The session to be replaced belongs to another holder"),
    )
)]
async fn open_session(
    caller: Caller<role::Runner>,
    Params(query): Params<TenantQuery>,
    chosen: ChosenSession,
    Body(body): Body<OpenSession>,
) -> StatusReply<SessionBody> {
    let context = caller.context();
    let tenant = caller.tenant(query.tenant.as_deref())?;
    let asked = body.terms()?;
    context.quota(&tenant, Quota::Sessions).await?;
    let command = Command::OpenSession(command::OpenSession {
        id: chosen.id.unwrap_or_else(new_session_id),
        holder: HolderKey { tenant, name: asked.holder },
        ttl_ms: asked.ttl_ms,
        replace: body.replace.map(SessionId),
        fenced: body.fenced,
        follows: body.follows.map(SessionId),
        registration: None,
        metrics: asked.metrics,
    });
    let view = context.session(command).await?;
    Ok((StatusCode::CREATED, Json(shown(context, &view, None).await?)))
}

/// Renews a session and everything attached to it. One thing is not: a lease that was waited for and has
/// `confirm_within_ms` in the answer must be renewed itself once, or it lapses.
///
/// A holder that sends the last `set_cursor` as `known_set` gets no `leases` back while they are the same, which saves
/// most of the answer of a large session.
#[utoipa::path(
    put, path = paths::SESSION_HEARTBEAT,
    params(("id" = String, Path, description = "The session"), TenantQuery), request_body = HeartbeatSession,
    responses(
        (status = 200, description = "The session was renewed, with everything attached to it", body = SessionBody),
        (status = 404, description = "There is no such session, or it is over or superseded"),
    )
)]
async fn heartbeat_session(
    caller: Caller<role::Runner>,
    at: At<String>,
    Body(body): Body<HeartbeatSession>,
) -> Reply<SessionBody> {
    let context = caller.context();
    let id = session_id(&at.path)?;
    let metrics = body.metrics()?;
    let tenant = context.tenant_of(at.tenant.as_deref(), Named::Session(id)).await?;
    witness(context, body.sealed_cursor.as_deref()).await?;
    let command = Command::Heartbeat { tenant, session: id, holder: None, metrics };
    let view = context.session(command).await?;
    Ok(Json(shown(context, &view, body.known_set).await?))
}

/// Waits for news of sessions: a lease was revoked or has expired, a hand-over is asked for, a pending lease has become
/// active, or the declaration of a held resource has changed.
///
/// The answer comes as soon as there is news, and at the latest after `wait_ms`. It says only which sessions it is
/// about: their heartbeats say what happened. The id of a session is proof that it is yours. One request serves all
/// sessions of a process.
#[utoipa::path(
    post, path = paths::SESSION_NEWS, request_body = AskNews,
    responses((status = 200, description = "The sessions that something has happened to", body = News))
)]
async fn session_news(caller: Caller<role::Runner>, Body(body): Body<AskNews>) -> Reply<News> {
    let context = caller.context();
    let NewsTerms { sessions, wait } = body.terms()?;
    let from = body.from.map(store_cursor);
    let mut stopping = context.stopping();
    let waiting = async {
        tokio::select! {
            news = context.engine().session_news(&sessions, caller.scope(), from, wait) => news,
            // Ask another one.
            _ = stopping.wait_for(|stopping| *stopping) => Ok(SessionNews::default()),
        }
    };
    let news = about::waiting(wait, waiting).await?;
    let sessions = news.sessions.into_iter().map(|id| id.0).collect();
    Ok(Json(News { sessions, cursor: news.cursor.map(wire_cursor) }))
}

/// Returns an active session.
#[utoipa::path(
    get, path = paths::SESSION, params(("id" = String, Path, description = "The session"), TenantQuery),
    responses(
        (status = 200, description = "The session", body = SessionBody),
        (status = 404, description = "There is no such session, or it is over"),
    )
)]
async fn get_session(caller: Caller<role::Reader>, at: At<String>) -> Reply<SessionBody> {
    let context = caller.context();
    let session = session_id(&at.path)?;
    let tenant = context.tenant_of(at.tenant.as_deref(), Named::Session(session)).await?;
    let view = find(context, &tenant, session).await?.ok_or_else(|| no_session(&at.path))?;
    Ok(Json(shown(context, &view, None).await?))
}

async fn find(context: &Context, tenant: &Name, id: SessionId) -> Result<Option<SessionView>, ApiError> {
    let loaded = context.engine().load(&Footprint { sessions: vec![id], ..Default::default() }).await?;
    let session = loaded.state.session(id).filter(|s| s.holder.tenant == *tenant && s.is_live(loaded.now));
    Ok(session.map(|session| SessionView { session: session.clone(), holder: None, now: loaded.now }))
}

/// Closes a session and releases everything attached to it.
#[utoipa::path(
    delete, path = paths::SESSION, params(("id" = String, Path, description = "The session"), TenantQuery),
    responses(
        (status = 200, description = "It was closed", body = ClosedSession),
        (status = 404, description = "There is no such session, or it is over"),
    )
)]
async fn close_session(caller: Caller<role::Runner>, at: At<String>) -> Reply<ClosedSession> {
    let id = session_id(&at.path)?;
    let tenant = caller.context().tenant_of(at.tenant.as_deref(), Named::Session(id)).await?;
    let released = caller.context().close_session(tenant, id).await?;
    Ok(Json(ClosedSession { session_id: id.0, released: released as u64 }))
}
