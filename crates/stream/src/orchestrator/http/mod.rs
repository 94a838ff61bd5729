//! Jobs, dead letters and inbox marks over HTTP, beside health and metrics.
//!
//! Reads come from the database and may be a moment old. What changes something is put into the mailbox of the job's
//! partition, so that any process may be asked: the owner does it.

mod views;

use std::{io, net::SocketAddr, sync::Arc};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path, Query, Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Json, Response},
    routing::{delete, get, post},
};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::{Value, json};
use solehold_api::problem::{ErrorCode, Problem};
use solehold_sql::{Error, inbox::PayloadHash};
use tokio::net::TcpListener;

use super::{
    Report,
    config::HttpSettings,
    dispatch::Reports,
    job::JobState,
    jobs::Jobs,
    limits::{PAGE_DEFAULT, PAGE_MAX, REQUEST_TIMEOUT},
    store::{JobFilter, LetterState, Mail, MailBody},
};

/// Why this process is not ready, if it is not.
pub type Readiness = Arc<dyn Fn() -> Option<String> + Send + Sync>;

#[derive(Clone)]
struct Shared {
    jobs: Jobs,
    key: Option<Arc<SecretString>>,
    readiness: Readiness,
}

/// What a request comes to.
type Answer = Result<Response, Refused>;

/// A problem, as an answer.
struct Refused(Box<Problem>);

fn refused<T>(code: ErrorCode, detail: impl Into<String>) -> Result<T, Refused> {
    Err(Refused::new(code, detail))
}

impl Refused {
    fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self(Box::new(Problem::new(code, detail.into())))
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        tracing::warn!(%error, "a request could not be answered");
        Self::new(ErrorCode::Unavailable, format!("the database cannot be asked: {error}"))
    }
}

impl From<deadpool_postgres::PoolError> for Refused {
    fn from(error: deadpool_postgres::PoolError) -> Self {
        Error::from(error).into()
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_string(&self.0).unwrap_or_default();
        (status, [(header::CONTENT_TYPE, "application/problem+json")], body).into_response()
    }
}

/// All routes.
pub fn routes(jobs: Jobs, settings: &HttpSettings, readiness: Readiness) -> Router {
    let shared = Shared { jobs, key: settings.api_key.clone().map(Arc::new), readiness };
    let guarded = Router::new()
        .route("/jobs", get(list_jobs))
        .route("/jobs/{id}", get(get_job))
        .route("/jobs/{id}/cancel", post(cancel))
        .route("/jobs/{id}/retry", post(retry))
        .route("/reports", post(report))
        .route("/letters", get(list_letters))
        .route("/letters/{id}", get(get_letter))
        .route("/letters/{id}/redrive", post(redrive))
        .route("/letters/{id}/discard", post(discard))
        .route("/marks", get(list_marks))
        .route("/marks/{id}", delete(clear_marks))
        .fallback(|| async { refused::<Response>(ErrorCode::NoSuchRoute, "there is no such path") })
        .method_not_allowed_fallback(|| async {
            refused::<Response>(ErrorCode::MethodNotAllowed, "this path has other methods")
        })
        .layer(middleware::from_fn_with_state(shared.clone(), guard));
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .merge(guarded)
        .with_state(shared)
}

/// Serves them from now on; the answer is where.
pub async fn serve(jobs: Jobs, settings: &HttpSettings, readiness: Readiness) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(settings.listen).await?;
    let address = listener.local_addr()?;
    let routes = routes(jobs, settings, readiness);
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, routes).await {
            tracing::error!(%error, "jobs are no longer served over HTTP");
        }
    });
    Ok(address)
}

/// Asks for the key where there is one, and bounds the time.
async fn guard(State(shared): State<Shared>, request: Request<Body>, next: Next) -> Response {
    if let Some(key) = &shared.key {
        let is_right = |given: &str| {
            // Hashes, so that how long it takes tells nothing.
            PayloadHash::of(given.as_bytes()) == PayloadHash::of(key.expose_secret().as_bytes())
        };
        if !shown(request.headers()).is_some_and(is_right) {
            let detail = "show the orchestrator's key as `Authorization: Bearer <key>` or `X-API-Key: <key>`";
            return Refused::new(ErrorCode::Unauthorized, detail).into_response();
        }
    }
    match tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            Refused::new(ErrorCode::UnknownOutcome, "the database did not answer in time").into_response()
        }
    }
}

fn shown(headers: &HeaderMap) -> Option<&str> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text("authorization").and_then(|value| value.split_once(' '));
    let bearer =
        bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, key)| key.trim());
    bearer.or_else(|| text("x-api-key").map(str::trim))
}

async fn ready(State(shared): State<Shared>) -> Response {
    match (shared.readiness)() {
        None => "ready\n".into_response(),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn metrics(State(shared): State<Shared>) -> Response {
    let Some(text) = shared.jobs.figures().text() else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let format = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, format)], text).into_response()
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Asked {
    state: Option<String>,
    after: Option<String>,
    limit: Option<i64>,
    id: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
}

impl Asked {
    fn limit(&self) -> Result<i64, Refused> {
        let limit = self.limit.unwrap_or(PAGE_DEFAULT);
        if (1..=PAGE_MAX).contains(&limit) {
            return Ok(limit);
        }
        refused(ErrorCode::OutOfBounds, format!("limit is {limit}; it must be 1 to {PAGE_MAX}"))
    }

    fn state(&self) -> Result<Option<JobState>, Refused> {
        let Some(name) = self.state.as_deref().filter(|name| !name.is_empty()) else { return Ok(None) };
        match JobState::ALL.into_iter().find(|state| state.name() == name) {
            Some(state) => Ok(Some(state)),
            None => {
                let known = JobState::ALL.map(JobState::name).join(", ");
                refused(ErrorCode::InvalidField, format!("state {name:?} is none of {known}"))
            }
        }
    }
}

/// Where the next page begins: after the last item, if there may be more.
fn next<T>(items: &[T], limit: i64, name: impl Fn(&T) -> String) -> Option<String> {
    (i64::try_from(items.len()).is_ok_and(|count| count >= limit)).then(|| items.last().map(name)).flatten()
}

async fn list_jobs(State(shared): State<Shared>, Query(asked): Query<Asked>) -> Answer {
    let filter = JobFilter { state: asked.state()?, after: asked.after.clone(), limit: asked.limit()? };
    let jobs = shared.jobs.store().list_jobs(&filter).await?;
    let next = next(&jobs, filter.limit, |job| job.id.clone());
    let jobs: Vec<Value> = jobs.iter().map(views::summary).collect();
    Ok(Json(json!({ "jobs": jobs, "next": next })).into_response())
}

async fn get_job(State(shared): State<Shared>, Path(id): Path<String>) -> Answer {
    match shared.jobs.store().job(&id).await? {
        Some((job, partition)) => Ok(Json(views::job(&job, partition)).into_response()),
        None => refused(ErrorCode::NotFound, format!("there is no job {id}")),
    }
}

async fn cancel(State(shared): State<Shared>, Path(id): Path<String>) -> Answer {
    let can = |state: JobState| state == JobState::Running;
    steer(&shared, &id, "cancel", MailBody::Cancel, can).await
}

async fn retry(State(shared): State<Shared>, Path(id): Path<String>) -> Answer {
    let can = |state: JobState| matches!(state, JobState::Failed | JobState::Cancelled);
    steer(&shared, &id, "retry", MailBody::Retry, can).await
}

async fn steer(
    shared: &Shared,
    id: &str,
    what: &str,
    body: MailBody,
    can: impl Fn(JobState) -> bool,
) -> Answer {
    let Some((job, _)) = shared.jobs.store().job(id).await? else {
        return refused(ErrorCode::NotFound, format!("there is no job {id}"));
    };
    if !can(job.state) {
        let state = match job.state {
            JobState::Running => "is running",
            JobState::Succeeded => "has succeeded",
            JobState::Failed => "has failed",
            JobState::Cancelled => "was cancelled",
        };
        return refused(ErrorCode::Conflict, format!("job {id} {state}: there is nothing to {what}"));
    }
    shared.jobs.desk().deliver_mail(vec![Mail::to_job(id, body)]).await?;
    Ok((StatusCode::ACCEPTED, Json(json!({ "job_id": id, "asked": what }))).into_response())
}

/// What a worker says, for workers behind HTTP.
async fn report(State(shared): State<Shared>, body: Bytes) -> Answer {
    let reports = match serde_json::from_slice::<Value>(&body) {
        Ok(Value::Array(reports)) => reports,
        Ok(report) => vec![report],
        Err(error) => return refused(ErrorCode::InvalidJson, format!("a report is JSON: {error}")),
    };
    let mut read = Vec::with_capacity(reports.len());
    for report in reports {
        match serde_json::from_value::<Report>(report) {
            Ok(report) => read.push(report),
            Err(error) => return refused(ErrorCode::InvalidField, format!("this is not a report: {error}")),
        }
    }
    shared.jobs.desk().deliver(read).await?;
    Ok(StatusCode::ACCEPTED.into_response())
}

async fn list_letters(State(shared): State<Shared>, Query(asked): Query<Asked>) -> Answer {
    let (after, limit) = (asked.after.as_deref().map(letter_id).transpose()?, asked.limit()?);
    let store = shared.jobs.store();
    let client = store.pool().get().await?;
    let letters = store.list_letters(&client, after.unwrap_or((-1, -1)), limit).await?;
    let next = next(&letters, limit, views::letter_id);
    let letters: Vec<Value> = letters.iter().map(views::letter).collect();
    Ok(Json(json!({ "letters": letters, "next": next })).into_response())
}

async fn get_letter(State(shared): State<Shared>, Path(id): Path<String>) -> Answer {
    let (partition, position) = letter_id(&id)?;
    let store = shared.jobs.store();
    let client = store.pool().get().await?;
    match store.letter(&client, partition, position).await? {
        Some(letter) => Ok(Json(views::letter(&letter)).into_response()),
        None => refused(ErrorCode::NotFound, format!("there is no letter {id}")),
    }
}

async fn redrive(State(shared): State<Shared>, Path(id): Path<String>) -> Answer {
    resolve(&shared, &id, "redrive", |position| MailBody::Redrive { position }).await
}

async fn discard(State(shared): State<Shared>, Path(id): Path<String>) -> Answer {
    resolve(&shared, &id, "discard", |position| MailBody::Discard { position }).await
}

async fn resolve(shared: &Shared, id: &str, what: &str, body: impl FnOnce(i64) -> MailBody) -> Answer {
    let (partition, position) = letter_id(id)?;
    let store = shared.jobs.store();
    let client = store.pool().get().await?;
    let Some(letter) = store.letter(&client, partition, position).await? else {
        return refused(ErrorCode::NotFound, format!("there is no letter {id}"));
    };
    match letter.state {
        LetterState::Redriven | LetterState::Discarded => {
            return refused(ErrorCode::Conflict, format!("letter {id} was {} before", letter.state.name()));
        }
        LetterState::Parked if what == "redrive" => {
            let first = store.open_letters(&client, partition, &letter.key, 1).await?;
            let first = first.first().map(views::letter_id).unwrap_or_default();
            let detail =
                format!("letter {id} is parked behind letter {first}: redrive or discard that one first");
            return refused(ErrorCode::Conflict, detail);
        }
        LetterState::Parked | LetterState::Dead => {}
    }
    store.deliver_to(&client, partition, &Mail::to_job("", body(position))).await?;
    drop(client);
    shared.jobs.desk().wakes().mail(&[partition]);
    Ok((StatusCode::ACCEPTED, Json(json!({ "letter": id, "asked": what }))).into_response())
}

/// `PARTITION-OFFSET`.
fn letter_id(text: &str) -> Result<(i32, i64), Refused> {
    let parts = text.split_once('-').and_then(|(partition, position)| {
        let (partition, position) = (partition.parse::<i32>().ok()?, position.parse::<i64>().ok()?);
        (partition >= 0 && position >= 0).then_some((partition, position))
    });
    match parts {
        Some(id) => Ok(id),
        None => refused(
            ErrorCode::InvalidField,
            format!("{text:?} is not a letter's id, PARTITION-OFFSET as in 3-1207"),
        ),
    }
}

async fn list_marks(State(shared): State<Shared>, Query(asked): Query<Asked>) -> Answer {
    let limit = asked.limit()?;
    let after = asked.after.clone().unwrap_or_default();
    let mut parts = after.splitn(3, '/');
    let after = (
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
    );
    let store = shared.jobs.store();
    let client = store.pool().get().await?;
    let marks = store.inbox().list_marks(&**client, asked.id.as_deref(), after, limit).await?;
    let next = next(&marks, limit, |mark| format!("{}/{}/{}", mark.scope, mark.command, mark.id));
    let marks: Vec<Value> = marks.iter().map(views::mark).collect();
    Ok(Json(json!({ "marks": marks, "next": next })).into_response())
}

async fn clear_marks(
    State(shared): State<Shared>,
    Path(id): Path<String>,
    Query(asked): Query<Asked>,
) -> Answer {
    let store = shared.jobs.store();
    let client = store.pool().get().await?;
    let cleared = store.inbox().clear_marks(&**client, &id, asked.kind.as_deref()).await?;
    if cleared == 0 {
        return refused(ErrorCode::NotFound, format!("there is no mark of {id}"));
    }
    Ok(Json(json!({ "id": id, "cleared": cleared })).into_response())
}
