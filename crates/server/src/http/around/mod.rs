//! The middleware of every request: assigns an id, authenticates, enforces the time limit, measures and logs, and turns
//! every error into a problem document.

use std::{
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    body::{Body, HttpBody},
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures_util::FutureExt;
use serde::Serialize;
use solehold_api::{
    leases::{ENVELOPED, Envelope},
    limits::WAIT_MS_MAX,
    paths,
    problem::{ErrorCode, Problem},
};
use solehold_core::key::Name;
use solehold_engine::clock::BootTime;
use solehold_trace::{Span, SpanKind};

use super::{
    Peer,
    arrival::Arrival,
    auth::{admit, is_probe, is_public, shown},
    json::json_line,
};
use crate::{
    context::Context,
    context::about::{self, Notes},
    error::ApiError,
    metrics::Route,
};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const NODE: HeaderName = HeaderName::from_static("x-solehold-node");
/// The longest request id that is accepted from a client, in bytes.
const REQUEST_ID_BYTES_MAX: usize = 128;
/// A request that takes longer is logged as a warning.
const SLOW: Duration = Duration::from_secs(1);

/// The data about a request that its log line and metrics need after it was served.
struct RequestRecord {
    began: BootTime,
    id: HeaderValue,
    method: Method,
    uri: Uri,
    route: Route,
    key: Option<Name>,
    notes: Notes,
    /// The code of the problem that it was answered with.
    code: Option<ErrorCode>,
}

pub(crate) async fn around(State(context): State<Context>, mut request: Request, next: Next) -> Response {
    let mut record = RequestRecord {
        began: BootTime::now(),
        id: request_id(request.headers()),
        method: request.method().clone(),
        uri: request.uri().clone(),
        route: Route(request.extensions().get::<MatchedPath>().cloned()),
        key: None,
        notes: Notes::default(),
        code: None,
    };
    let mut span = span(&record, request.headers());
    let arrival = Arrival::of(&mut request);
    let answer = match let_in(&context, &mut request, &mut record).await {
        Ok(()) => {
            let served = about::noted(serve(&context, &record, &arrival, request, next));
            let (answer, notes) = solehold_trace::within(span.context(), served).await;
            record.notes = notes;
            answer
        }
        Err(failure) => failure.into_response(),
    };
    record.code = about::code_of(&answer);
    let mut response = as_problem(answer, &record);
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, record.id.clone());
    headers.insert(NODE, context.node_header.clone());
    describe(&mut span, &record, response.status());
    log_response(&context, record, response.status());
    response
}

/// The span of a request, below that of its sender. Probes have none.
fn span(record: &RequestRecord, headers: &HeaderMap) -> Span {
    if !solehold_trace::is_on() || is_probe(record.uri.path()) || record.uri.path() == paths::METRICS {
        return Span::default();
    }
    let parent = headers.get(solehold_trace::TRACEPARENT).and_then(|value| value.to_str().ok());
    let parent = parent.and_then(|value| value.parse().ok());
    Span::begin(SpanKind::Server, parent, || format!("{} {}", record.method, record.route.as_str()).into())
}

/// Describes a request as its log line does: never the query, the headers or the body.
fn describe(span: &mut Span, record: &RequestRecord, status: StatusCode) {
    if !span.is_recorded() {
        return;
    }
    span.set("http.request.method", record.method.to_string());
    span.set("http.route", record.route.as_str().to_owned());
    span.set("http.response.status_code", u64::from(status.as_u16()));
    span.set("solehold.request_id", record.id.to_str().unwrap_or_default().to_owned());
    if let Some(tenant) = &record.notes.about.tenant {
        span.set("solehold.tenant", tenant.to_string());
    }
    if let Some(code) = record.code {
        span.set("solehold.code", code.as_str());
    }
    if status.is_server_error() {
        span.fail();
    }
}

/// Admits the caller, and attaches its identity to the request.
async fn let_in(
    context: &Context,
    request: &mut Request,
    record: &mut RequestRecord,
) -> Result<(), ApiError> {
    let path = record.uri.path();
    let peer = request.extensions().get::<Peer>().cloned();
    let peer = peer.ok_or_else(|| Problem::new(ErrorCode::Internal, "the peer has no address"))?;
    let is_guarded = path == paths::METRICS && context.guards_metrics;
    // A wrong key is refused even where none is needed.
    let is_free = is_public(path) && !is_guarded && shown(request.headers(), &peer).is_none();
    if is_probe(path) || is_free {
        return Ok(());
    }
    let identity = admit(context, &record.uri, request.headers(), &peer).await?;
    if is_guarded {
        identity.must_be_unscoped()?;
    }
    record.key = identity.key_id().cloned();
    request.extensions_mut().insert(identity);
    Ok(())
}

/// Serves the request within its timeout. A panic of the handler does not end the connection.
async fn serve(
    context: &Context,
    record: &RequestRecord,
    arrival: &Arrival,
    request: Request,
    next: Next,
) -> Response {
    let served = AssertUnwindSafe(next.run(request)).catch_unwind();
    let timeout = context.limits.request_timeout;
    let served = match (record.route.as_str(), &record.method) {
        // An import takes as long as its body takes to arrive, and enforces a timeout between chunks itself.
        (paths::IMPORT, _) => Ok(served.await),
        // Waiting in line is not a timeout, nor is waiting for news.
        (paths::LOCK | paths::RESOURCE_LEASE | paths::SESSION_NEWS, &Method::POST) => {
            in_time(served, arrival, timeout, Duration::from_millis(WAIT_MS_MAX)).await
        }
        _ => in_time(served, arrival, timeout, Duration::ZERO).await,
    };
    match served {
        Ok(Ok(response)) => response,
        Ok(Err(panic)) => panicked(record, &*panic),
        Err(failure) => failure.into_response(),
    }
}

/// Awaits the response for `timeout`, and for `more` if the whole body has arrived by then.
async fn in_time<T>(
    served: impl Future<Output = T>,
    arrival: &Arrival,
    timeout: Duration,
    more: Duration,
) -> Result<T, ApiError> {
    let mut served = pin!(served);
    if let Ok(served) = tokio::time::timeout(timeout, &mut served).await {
        return Ok(served);
    }
    if !arrival.is_complete() {
        return Err(body_late(timeout));
    }
    tokio::time::timeout(more, served).await.map_err(|_| timed_out(timeout + more))
}

fn panicked(record: &RequestRecord, panic: &(dyn std::any::Any + Send)) -> Response {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    let route = record.route.as_str();
    tracing::error!(request_id = ?record.id, route, panic = text, "request handler panicked; responding with 500");
    let detail = "internal error; see the server's log for this request id";
    ApiError::from(Problem::new(ErrorCode::Internal, detail)).into_response()
}

fn timed_out(timeout: Duration) -> ApiError {
    let detail = format!("no response within {timeout:?}; the request may or may not have taken effect");
    let problem = Problem::new(ErrorCode::UnknownOutcome, detail).retry_after_ms(1_000);
    problem.limit("request_timeout_ms", timeout.as_millis() as u64).into()
}

pub(crate) fn body_late(timeout: Duration) -> ApiError {
    let detail =
        format!("the request body did not arrive within {timeout:?}; nothing was changed, send it again");
    let problem = Problem::new(ErrorCode::RequestTimeout, detail);
    problem.limit("request_timeout_ms", timeout.as_millis() as u64).into()
}

/// A failure with the request id, which handlers do not know.
#[derive(Serialize)]
struct FailureDocument<'a, T> {
    #[serde(flatten)]
    failure: T,
    request_id: &'a str,
}

/// A failure as it is written on that route, and its content type.
fn written(problem: Problem, record: &RequestRecord) -> (Vec<u8>, &'static str) {
    let request_id = record.id.to_str().unwrap_or_default();
    let (text, kind) = if ENVELOPED.contains(&record.route.as_str()) {
        let failure = Envelope::refused(problem);
        (json_line(&FailureDocument { failure, request_id }), "application/json")
    } else {
        (json_line(&FailureDocument { failure: problem, request_id }), "application/problem+json")
    };
    (text.unwrap_or_default(), kind)
}

/// Writes an error as a problem document, or within an envelope where the route answers in one. An error that a library
/// answered as plain text becomes one, too.
fn as_problem(mut response: Response, record: &RequestRecord) -> Response {
    let status = response.status();
    let problem = match response.extensions_mut().remove::<ApiError>() {
        Some(ApiError(problem)) => *problem,
        None if is_bare_error(&response) => bare_problem(status),
        None => return response,
    };
    let (text, kind) = written(problem.instance(record.uri.path()), record);
    *response.body_mut() = Body::from(text);
    let headers = response.headers_mut();
    headers.remove(header::CONTENT_LENGTH);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn is_bare_error(response: &Response) -> bool {
    let is_error = response.status().is_client_error() || response.status().is_server_error();
    let has_json = || {
        let kind = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        kind.is_some_and(|kind| kind.contains("json")) && !response.body().is_end_stream()
    };
    is_error && !has_json()
}

fn bare_problem(status: StatusCode) -> Problem {
    let code = ErrorCode::ALL.iter().copied().find(|code| code.status() == status.as_u16());
    let detail = status.canonical_reason().unwrap_or("an error").to_lowercase();
    let fallback = if status.is_server_error() { ErrorCode::Internal } else { ErrorCode::BadRequest };
    Problem { status: status.as_u16(), ..Problem::new(code.unwrap_or(fallback), detail) }
}

/// Measures and logs a response: its subject, and the problem code if it is an error. Never the query, the headers or
/// the body, since they may contain secrets. The log itself adds the name of the node.
fn log_response(context: &Context, record: RequestRecord, status: StatusCode) {
    let took = BootTime::now().since(record.began);
    macro_rules! log {
        ($level:ident) => {
            tracing::$level!(
                method = %record.method,
                route = record.route.as_str(),
                status = status.as_u16(),
                took_us = took.as_micros() as u64,
                request_id = record.id.to_str().unwrap_or_default(),
                by = record.key.as_ref().map(Name::as_str),
                tenant = record.notes.about.tenant,
                resource = record.notes.about.resource,
                holder = record.notes.about.holder,
                code = record.code.map(ErrorCode::as_str),
                "request"
            )
        };
    }
    let is_slow = took.saturating_sub(record.notes.waited) >= SLOW;
    if status.is_server_error() || is_slow {
        log!(warn)
    } else {
        log!(debug)
    }
    context.metrics.request(record.route, &record.method, status.as_u16(), took);
}

/// The client's own id, if it is acceptable; otherwise a unique one of ours.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    static PROCESS: LazyLock<u32> = LazyLock::new(rand::random);
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let is_sane = |id: &&HeaderValue| {
        let is_plain = |b: &u8| b.is_ascii_alphanumeric() || b"-_.:/+=".contains(b);
        (1..=REQUEST_ID_BYTES_MAX).contains(&id.len()) && id.as_bytes().iter().all(is_plain)
    };
    if let Some(id) = headers.get(REQUEST_ID).filter(is_sane) {
        return id.clone();
    }
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    HeaderValue::try_from(format!("{:08x}-{count:x}", *PROCESS)).expect("hexadecimal digits")
}

#[cfg(test)]
mod tests;
