//! `Idempotency-Key` for axum.
//!
//! The layer begins the command and puts an [`Idempotent`] into the request's extensions; the handler completes it in
//! the transaction of its effect. A repeat gets the stored answer. What the handler does not complete may be tried
//! again.
//!
//! ```no_run
//! use axum::{Extension, Router, http::request::Parts, routing::post};
//! use solehold_sql::inbox::{Inbox, http::{Idempotent, IdempotencyLayer, StoredResponse}};
//!
//! # #[derive(Clone)]
//! # struct Tenant(String);
//! # fn example(pool: deadpool_postgres::Pool) -> Result<Router, solehold_sql::Error> {
//! async fn create(Extension(idempotent): Extension<Idempotent>, Extension(pool): Extension<deadpool_postgres::Pool>) -> StoredResponse {
//!     let mut client = pool.get().await.expect("a connection");
//!     let tx = client.transaction().await.expect("a transaction");
//!     // ... the effect, in `tx` ...
//!     let answer = StoredResponse::json(201, &serde_json::json!({"id": 7}));
//!     match idempotent.complete(&*tx, &answer).await {
//!         Ok(outcome) if outcome.is_done() => tx.commit().await.map(|()| answer).unwrap_or_else(|_| StoredResponse::unavailable()),
//!         _ => StoredResponse::unavailable(),
//!     }
//! }
//! // Keys of different tenants are different keys. The tenant comes from whatever has authenticated the caller.
//! let tenant = |request: &Parts| request.extensions.get::<Tenant>().map(|tenant| tenant.0.clone()).unwrap_or_default();
//! let layer = IdempotencyLayer::new(Inbox::new("app.inbox")?, pool.clone(), tenant);
//! Ok(Router::new().route("/payments", post(create)).layer(layer).layer(Extension(pool)))
//! # }
//! ```

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, to_bytes},
    http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use deadpool_postgres::Pool;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_postgres::GenericClient;
use tower::{Layer, Service};

use super::{CommandStatus, Inbox, Key, PayloadHash, Ticket};
use crate::{ClaimOutcome, Error, limits::IDEMPOTENT_BODY_BYTES_MAX};

/// The request header.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Set on an answer that was stored.
pub const IDEMPOTENCY_REPLAYED: &str = "idempotency-replayed";

/// How long a request may take before another one with its key may begin.
const LEASE: Duration = Duration::from_secs(60);

type Scope = Arc<dyn Fn(&Parts) -> String + Send + Sync>;

/// Gives `Idempotency-Key` to POST and PATCH.
#[derive(Clone)]
pub struct IdempotencyLayer {
    inbox: Inbox,
    pool: Pool,
    scope: Scope,
    required: bool,
    lease: Duration,
}

impl IdempotencyLayer {
    /// Keys are optional. `scope` says whose key it is, such as the caller's tenant: keys of different scopes never
    /// collide, and within one scope a key that another caller chose gives away the answer that is stored under it.
    pub fn new(inbox: Inbox, pool: Pool, scope: impl Fn(&Parts) -> String + Send + Sync + 'static) -> Self {
        Self { inbox, pool, scope: Arc::new(scope), required: false, lease: LEASE }
    }

    /// Refuses requests without a key.
    pub fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// How long a request may take before another one with its key may begin.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }
}

impl std::fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdempotencyLayer").field("required", &self.required).finish_non_exhaustive()
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        IdempotencyService { layer: self.clone(), inner }
    }
}

/// A service behind [`IdempotencyLayer`].
#[derive(Debug, Clone)]
pub struct IdempotencyService<S> {
    layer: IdempotencyLayer,
    inner: S,
}

impl<S> Service<Request<Body>> for IdempotencyService<S>
where
    S: Service<Request<Body>, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // The one that was polled ready is the one that is called.
        let next = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, next);
        let layer = self.layer.clone();
        Box::pin(async move { Ok(layer.handle(inner, request).await) })
    }
}

impl IdempotencyLayer {
    async fn handle<S>(&self, mut inner: S, request: Request<Body>) -> Response
    where
        S: Service<Request<Body>, Response = Response, Error = Infallible>,
    {
        let guarded = [Method::POST, Method::PATCH].contains(request.method());
        let key = match key_of(request.headers()) {
            Ok(Some(key)) if guarded => key,
            Ok(None) if guarded && self.required => {
                return problem(400, "idempotency_key_missing", "send an Idempotency-Key header", None);
            }
            Err(detail) if guarded => return problem(400, "idempotency_key_invalid", detail, None),
            _ => return call(&mut inner, request).await,
        };
        match self.begin(request, &key).await {
            Err(answer) => *answer,
            Ok((mut request, ticket)) => {
                let idempotent = Idempotent { inbox: self.inbox.clone(), ticket, completed: Arc::default() };
                request.extensions_mut().insert(idempotent.clone());
                let answer = call(&mut inner, request).await;
                // After a failure it is not known whether the handler committed; to abandon what is done changes
                // nothing.
                let done = idempotent.completed.load(Ordering::Relaxed) && answer.status().is_success();
                if !done {
                    self.abandon(&idempotent).await;
                }
                answer
            }
        }
    }

    async fn begin(
        &self,
        request: Request<Body>,
        id: &str,
    ) -> Result<(Request<Body>, Ticket), Box<Response>> {
        let (parts, body) = request.into_parts();
        let Ok(body) = to_bytes(body, IDEMPOTENT_BODY_BYTES_MAX).await else {
            let detail =
                format!("with an Idempotency-Key, a body has at most {IDEMPOTENT_BODY_BYTES_MAX} bytes");
            return Err(Box::new(problem(413, "body_too_large", &detail, None)));
        };
        let command = format!("{} {}", parts.method, parts.uri.path());
        let payload =
            PayloadHash::of(&[parts.uri.query().unwrap_or_default().as_bytes(), b"\0", &body].concat());
        let begun = async {
            let key = Key::new(&(self.scope)(&parts), &command, id)?;
            let client = self.pool.get().await?;
            let client: &tokio_postgres::Client = &client;
            self.inbox.begin(client, &key, payload, self.lease).await
        };
        match begun.await {
            Ok(CommandStatus::Started(ticket)) => Ok((Request::from_parts(parts, Body::from(body)), ticket)),
            Ok(CommandStatus::Done(stored)) => Err(Box::new(StoredResponse::replay(stored))),
            Ok(CommandStatus::InProgress { retry_after }) => {
                let detail = "a request with this Idempotency-Key is being carried out";
                Err(Box::new(problem(409, "idempotency_in_progress", detail, Some(retry_after))))
            }
            Ok(CommandStatus::Conflict) => {
                let detail = "this Idempotency-Key was used for another request: send a new one";
                Err(Box::new(problem(409, "idempotency_key_reused", detail, None)))
            }
            Err(error @ Error::Invalid { .. }) => {
                Err(Box::new(problem(400, "idempotency_key_invalid", &error.to_string(), None)))
            }
            Err(error) => {
                tracing::warn!(%error, "cannot reach the inbox; responding 503");
                Err(Box::new(StoredResponse::unavailable().into_response()))
            }
        }
    }

    /// Lets the command be retried at once, unless it is done. If that fails, its lease expires later.
    async fn abandon(&self, idempotent: &Idempotent) {
        let abandoned = async {
            let client = self.pool.get().await?;
            let client: &tokio_postgres::Client = &client;
            self.inbox.abandon(client, &idempotent.ticket).await
        };
        if let Err(error) = abandoned.await {
            tracing::debug!(%error, "cannot release an unfinished command; it can be retried when its lease expires");
        }
    }
}

async fn call<S>(inner: &mut S, request: Request<Body>) -> Response
where
    S: Service<Request<Body>, Response = Response, Error = Infallible>,
{
    match inner.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// The command of this request, to be completed by its handler.
#[derive(Debug, Clone)]
pub struct Idempotent {
    inbox: Inbox,
    ticket: Ticket,
    completed: Arc<AtomicBool>,
}

impl Idempotent {
    /// Stores the answer in the transaction of the effect. If the outcome is lost, roll back: another worker carries
    /// out the command.
    pub async fn complete(
        &self,
        client: &(impl GenericClient + Sync),
        answer: &StoredResponse,
    ) -> Result<ClaimOutcome, Error> {
        let outcome = self.inbox.complete(client, &self.ticket, &json!(answer)).await?;
        self.completed.store(outcome.is_done(), Ordering::Relaxed);
        Ok(outcome)
    }
}

/// An answer that can be stored and given again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredResponse {
    pub status: u16,
    pub content_type: String,
    pub body: String,
}

impl StoredResponse {
    pub fn json(status: u16, body: &Value) -> Self {
        Self { status, content_type: "application/json".into(), body: body.to_string() }
    }

    /// 503: it is not known whether the command was carried out; the same request may be sent again.
    pub fn unavailable() -> Self {
        Self::problem(503, "unavailable", "the database cannot be reached: send the same request again")
    }

    fn problem(status: u16, code: &str, detail: &str) -> Self {
        let title = StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
        let body =
            json!({"type": "about:blank", "title": title, "status": status, "code": code, "detail": detail});
        Self { status, content_type: "application/problem+json".into(), body: body.to_string() }
    }

    fn replay(stored: Value) -> Response {
        let Ok(stored) = serde_json::from_value::<Self>(stored) else {
            return problem(500, "stored_answer_unreadable", "the stored answer cannot be read", None);
        };
        let mut response = stored.into_response();
        response.headers_mut().insert(IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
        response
    }
}

impl IntoResponse for StoredResponse {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, [(header::CONTENT_TYPE, self.content_type)], self.body).into_response()
    }
}

/// The key: with or without the quotes of a structured header.
fn key_of(headers: &HeaderMap) -> Result<Option<String>, &'static str> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err("send one Idempotency-Key header, not several");
    }
    let text = value.to_str().map_err(|_| "an Idempotency-Key has visible ASCII characters only")?.trim();
    let key = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    match key.len() {
        1..=255 => Ok(Some(key.to_owned())),
        _ => Err("an Idempotency-Key has 1 to 255 characters"),
    }
}

fn problem(status: u16, code: &str, detail: &str, retry_after: Option<Duration>) -> Response {
    let mut response = StoredResponse::problem(status, code, detail).into_response();
    if let Some(after) = retry_after {
        let seconds = HeaderValue::from(after.as_secs() + 1);
        response.headers_mut().insert(header::RETRY_AFTER, seconds);
    }
    response
}
