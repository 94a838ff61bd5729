//! Jobs, dead letters and inbox marks over HTTP, with health and metrics.
//!
//! Reads come from the database and may be slightly outdated. Changes go through the mailbox of the job's partition, so
//! that every process accepts them: the owner applies them.

mod query;
mod views;

use std::{io, net::SocketAddr, sync::Arc};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, Request, State, rejection::BytesRejection},
    http::{HeaderMap, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Json, Response},
    routing::{delete, get, post},
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use solehold_api::problem::{ErrorCode, Problem};
use solehold_process::health::{self, Health};
use solehold_sql::{Error, inbox::PayloadHash};

use self::query::{Id, PAGE, QueryParameters};
use crate::{
    config::HttpSettings,
    dispatch::Reports,
    model::{
        command::CommandKind,
        job::JobState,
        limits::{REPORTS_BYTES_MAX, REQUEST_TIMEOUT},
        task::Report,
    },
    orchestrator::Orchestrator,
    store::{DeadLetterId, DeadLetterState, InvalidDeadLetterId, Mail, MailBody},
};

/// Why this process is not ready, if it is not.
pub type Readiness = Arc<dyn Fn() -> Option<String> + Send + Sync>;

#[derive(Clone)]
struct Shared {
    orchestrator: Orchestrator,
    key: Option<Arc<SecretString>>,
    readiness: Readiness,
}

type ApiResult = Result<Response, ProblemResponse>;

struct ProblemResponse(Box<Problem>);

fn problem<T>(code: ErrorCode, detail: impl Into<String>) -> Result<T, ProblemResponse> {
    Err(ProblemResponse::new(code, detail))
}

impl ProblemResponse {
    fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self(Box::new(Problem::new(code, detail.into())))
    }
}

impl From<Error> for ProblemResponse {
    fn from(error: Error) -> Self {
        tracing::warn!(%error, "request failed: cannot query the database of jobs");
        Self::new(ErrorCode::Unavailable, format!("cannot query the database of jobs: {error}"))
    }
}

impl From<deadpool_postgres::PoolError> for ProblemResponse {
    fn from(error: deadpool_postgres::PoolError) -> Self {
        Error::from(error).into()
    }
}

impl IntoResponse for ProblemResponse {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_string(&self.0).unwrap_or_default();
        (status, [(header::CONTENT_TYPE, "application/problem+json")], body).into_response()
    }
}

pub fn routes(orchestrator: Orchestrator, settings: &HttpSettings, readiness: Readiness) -> Router {
    let shared = Shared { orchestrator, key: settings.api_key.clone().map(Arc::new), readiness };
    let guarded = Router::new()
        .route("/jobs", get(list_jobs))
        .route("/jobs/{id}", get(get_job))
        .route("/jobs/{id}/cancel", post(cancel))
        .route("/jobs/{id}/retry", post(retry))
        .route("/reports", post(report).layer(DefaultBodyLimit::max(REPORTS_BYTES_MAX)))
        .route("/letters", get(list_letters))
        .route("/letters/{id}", get(get_letter))
        .route("/letters/{id}/redrive", post(redrive))
        .route("/letters/{id}/discard", post(discard))
        .route("/marks", get(list_marks))
        .route("/marks/{id}", delete(clear_marks))
        .fallback(|| async { problem::<Response>(ErrorCode::NoSuchRoute, "no such path") })
        .method_not_allowed_fallback(|| async {
            problem::<Response>(ErrorCode::MethodNotAllowed, "the path does not support this method")
        })
        .layer(middleware::from_fn_with_state(shared.clone(), guard));
    guarded.with_state(shared.clone()).merge(health::routes(Arc::new(shared)))
}

pub async fn serve(
    orchestrator: Orchestrator,
    settings: &HttpSettings,
    readiness: Readiness,
) -> io::Result<SocketAddr> {
    health::serve(settings.listen, routes(orchestrator, settings, readiness)).await
}

/// Checks the API key if one is set, rejects ids that PostgreSQL cannot store, and bounds the time.
async fn guard(State(shared): State<Shared>, request: Request<Body>, next: Next) -> Response {
    if let Some(key) = &shared.key {
        let is_right = |given: &str| {
            // Comparing hashes does not leak the key by timing.
            PayloadHash::of(given.as_bytes()) == PayloadHash::of(key.expose_secret().as_bytes())
        };
        if !given_key(request.headers()).is_some_and(is_right) {
            let detail =
                "send the orchestrator's API key as `Authorization: Bearer <key>` or `X-API-Key: <key>`";
            return ProblemResponse::new(ErrorCode::Unauthorized, detail).into_response();
        }
    }
    if request.uri().to_string().contains("%00") {
        return ProblemResponse::new(ErrorCode::InvalidField, "an id cannot contain a zero character (%00)")
            .into_response();
    }
    match tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let detail = format!("the request was not completed within {REQUEST_TIMEOUT:?}");
            ProblemResponse::new(ErrorCode::UnknownOutcome, detail).into_response()
        }
    }
}

fn given_key(headers: &HeaderMap) -> Option<&str> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text("authorization").and_then(|value| value.split_once(' '));
    let bearer =
        bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, key)| key.trim());
    bearer.or_else(|| text("x-api-key").map(str::trim))
}

impl Health for Shared {
    fn not_ready(&self) -> Option<String> {
        (self.readiness)()
    }

    fn remarks(&self) -> Vec<String> {
        let stopped = self.orchestrator.metrics.consumer.stopped();
        stopped.iter().map(|(number, why)| format!("partition {number} is stopped: {why}")).collect()
    }

    fn metrics(&self) -> Option<String> {
        self.orchestrator.metrics.text()
    }
}

/// The `after` of the next page, if there may be one.
fn next<T>(items: &[T], limit: i64, name: impl Fn(&T) -> String) -> Option<String> {
    (i64::try_from(items.len()).is_ok_and(|count| count >= limit)).then(|| items.last().map(name)).flatten()
}

async fn list_jobs(State(shared): State<Shared>, asked: QueryParameters) -> ApiResult {
    let asked = asked.only(&["state", PAGE[0], PAGE[1]])?;
    let state = asked.one_of("state", &JobState::ALL, |state| state.name())?;
    let limit = asked.limit()?;
    let after = asked.text("after").unwrap_or_default();
    let jobs = shared.orchestrator.store().list_jobs(state, after, limit).await?;
    let next = next(&jobs, limit, |job| job.id.clone());
    let jobs: Vec<Value> = jobs.iter().map(views::summary).collect();
    Ok(Json(json!({ "jobs": jobs, "next": next })).into_response())
}

async fn get_job(State(shared): State<Shared>, Id(id): Id) -> ApiResult {
    match shared.orchestrator.store().job(&id).await? {
        Some((job, partition)) => Ok(Json(views::job(&job, partition)).into_response()),
        None => problem(ErrorCode::NotFound, format!("there is no job {id}")),
    }
}

async fn cancel(State(shared): State<Shared>, Id(id): Id) -> ApiResult {
    let can = |state: JobState| state == JobState::Running;
    steer(&shared, &id, "cancel", MailBody::Cancel, can).await
}

async fn retry(State(shared): State<Shared>, Id(id): Id) -> ApiResult {
    let can = |state: JobState| matches!(state, JobState::Failed | JobState::Cancelled);
    steer(&shared, &id, "retry", MailBody::Retry, can).await
}

async fn steer(
    shared: &Shared,
    id: &str,
    what: &str,
    body: MailBody,
    can: impl Fn(JobState) -> bool,
) -> ApiResult {
    let Some((job, _)) = shared.orchestrator.store().job(id).await? else {
        return problem(ErrorCode::NotFound, format!("there is no job {id}"));
    };
    if !can(job.state) {
        let state = match job.state {
            JobState::Running => "is running",
            JobState::Succeeded => "has succeeded",
            JobState::Failed => "has failed",
            JobState::Cancelled => "was cancelled",
        };
        return problem(ErrorCode::Conflict, format!("job {id} {state}: there is nothing to {what}"));
    }
    shared.orchestrator.mailbox().deliver_mail(vec![Mail::to_job(id, body)]).await?;
    // Mail keeps its job from being deleted: a job that is gone now was deleted before the delivery.
    if shared.orchestrator.store().job(id).await?.is_none() {
        return problem(ErrorCode::NotFound, format!("job {id} was deleted meanwhile"));
    }
    Ok((StatusCode::ACCEPTED, Json(json!({ "job_id": id, "asked": what }))).into_response())
}

/// How many rejected reports a response lists.
const REJECTED_SHOWN: usize = 5;

/// Reports of workers: one, or an array. The response lists rejected reports; the others are accepted.
async fn report(State(shared): State<Shared>, body: Result<Bytes, BytesRejection>) -> ApiResult {
    let body = body.map_err(query::unread)?;
    let reports = match serde_json::from_slice::<Value>(&body) {
        Ok(Value::Array(reports)) => reports,
        Ok(report) => vec![report],
        Err(error) => return problem(ErrorCode::InvalidJson, format!("a report must be JSON: {error}")),
    };
    let count = reports.len();
    let mut read = Vec::with_capacity(count);
    let mut faults = Vec::new();
    let mut accepted = 0;
    let mut code = ErrorCode::PayloadTooLarge;
    for (at, report) in reports.into_iter().enumerate() {
        let which = format!("report {} of {count}", at + 1);
        let report = serde_json::from_value::<Report>(report).map_err(|error| error.to_string());
        match report.and_then(|report| report.fault().map_or(Ok(report), Err)) {
            Ok(report) => {
                let (report, excess) = report.bounded();
                accepted += usize::from(excess.is_none());
                faults.extend(excess.map(|what| format!("{which}: {what}; the attempt counts as failed")));
                read.push(report);
            }
            Err(what) => {
                code = ErrorCode::InvalidField;
                faults.push(format!("{which} is invalid: {what}"));
            }
        }
    }
    shared.orchestrator.mailbox().deliver(read).await?;
    if faults.is_empty() {
        return Ok(StatusCode::ACCEPTED.into_response());
    }
    let more = faults.len().saturating_sub(REJECTED_SHOWN);
    faults.truncate(REJECTED_SHOWN);
    faults.extend((more > 0).then(|| format!("{more} more were rejected")));
    faults.extend((accepted > 0).then(|| format!("the other reports ({accepted}) were accepted")));
    problem(code, faults.join(". "))
}

async fn list_letters(State(shared): State<Shared>, asked: QueryParameters) -> ApiResult {
    let asked = asked.only(&["payload", PAGE[0], PAGE[1]])?;
    let with_payload = asked.one_of("payload", &[true, false], |is| if is { "true" } else { "false" })?;
    let after = asked.text("after").map(letter_id).transpose()?;
    let limit = asked.limit()?;
    let store = shared.orchestrator.store();
    let client = store.pool.get().await?;
    let letters = store.list_dead_letters(&client, after, limit, with_payload.unwrap_or(true)).await?;
    let next = next(&letters, limit, |letter| letter.id.to_string());
    let letters: Vec<Value> = letters.iter().map(views::letter).collect();
    Ok(Json(json!({ "letters": letters, "next": next })).into_response())
}

async fn get_letter(State(shared): State<Shared>, Id(id): Id) -> ApiResult {
    let letter = letter_id(&id)?;
    let store = shared.orchestrator.store();
    let client = store.pool.get().await?;
    match store.dead_letter(&client, letter).await? {
        Some(letter) => Ok(Json(views::letter(&letter)).into_response()),
        None => problem(ErrorCode::NotFound, format!("there is no letter {id}")),
    }
}

async fn redrive(State(shared): State<Shared>, Id(id): Id) -> ApiResult {
    let body = |DeadLetterId { position, generation, .. }| MailBody::Redrive { position, generation };
    resolve(&shared, &id, "redrive", body).await
}

async fn discard(State(shared): State<Shared>, Id(id): Id) -> ApiResult {
    let body = |DeadLetterId { position, generation, .. }| MailBody::Discard { position, generation };
    resolve(&shared, &id, "discard", body).await
}

async fn resolve(
    shared: &Shared,
    id: &str,
    what: &str,
    body: impl FnOnce(DeadLetterId) -> MailBody,
) -> ApiResult {
    let named = letter_id(id)?;
    let partition = named.partition;
    let store = shared.orchestrator.store();
    let client = store.pool.get().await?;
    let Some(letter) = store.dead_letter(&client, named).await? else {
        return problem(ErrorCode::NotFound, format!("there is no letter {id}"));
    };
    match letter.state {
        DeadLetterState::Redriven | DeadLetterState::Discarded => {
            return problem(ErrorCode::Conflict, format!("letter {id} was already {}", letter.state.name()));
        }
        DeadLetterState::Parked if what == "redrive" => {
            let first = store.open_dead_letters(&client, partition, &letter.key, 1).await?;
            let first = first.first().map(|first| first.id.to_string()).unwrap_or_default();
            let detail =
                format!("letter {id} is parked behind letter {first}: redrive or discard that one first");
            return problem(ErrorCode::Conflict, detail);
        }
        DeadLetterState::Parked | DeadLetterState::Dead => {}
    }
    store.deliver_to(&client, partition, &Mail::to_job("", body(named))).await?;
    drop(client);
    shared.orchestrator.mailbox().notifier.mail(&[partition]);
    Ok((StatusCode::ACCEPTED, Json(json!({ "letter": id, "asked": what }))).into_response())
}

fn letter_id(text: &str) -> Result<DeadLetterId, ProblemResponse> {
    text.parse().map_err(|error: InvalidDeadLetterId| {
        ProblemResponse::new(ErrorCode::InvalidField, error.to_string())
    })
}

async fn list_marks(State(shared): State<Shared>, asked: QueryParameters) -> ApiResult {
    let asked = asked.only(&["id", PAGE[0], PAGE[1]])?;
    let limit = asked.limit()?;
    let mut parts = asked.text("after").unwrap_or_default().splitn(3, '/');
    let after = (
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
    );
    let store = shared.orchestrator.store();
    let client = store.pool.get().await?;
    let marks = store.inbox.list_marks(&**client, asked.text("id"), after, limit).await?;
    let next = next(&marks, limit, |mark| format!("{}/{}/{}", mark.scope, mark.command, mark.id));
    let marks: Vec<Value> = marks.iter().map(views::mark).collect();
    Ok(Json(json!({ "marks": marks, "next": next })).into_response())
}

async fn clear_marks(State(shared): State<Shared>, Id(id): Id, asked: QueryParameters) -> ApiResult {
    let kind = asked.only(&["type"])?.one_of("type", &CommandKind::ALL, |kind| kind.name())?;
    let store = shared.orchestrator.store();
    let client = store.pool.get().await?;
    let cleared = store.inbox.clear_marks(&**client, &id, kind.map(CommandKind::name)).await?;
    if cleared == 0 {
        let what = kind.map_or_else(String::new, |kind| format!(" of a {}", kind.name()));
        return problem(ErrorCode::NotFound, format!("there is no mark{what} of {id}"));
    }
    Ok(Json(json!({ "id": id, "cleared": cleared })).into_response())
}
