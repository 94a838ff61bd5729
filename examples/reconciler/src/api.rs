//! The API of payment requests.

use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Json, Router,
    extract::{Path, Query, State},
    http::{StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
    routing::get,
};
use deadpool_postgres::Pool;
use prometheus_client::{encoding::text, registry::Registry};
use serde::Deserialize;
use serde_json::{Value, json};
use solehold_sql::{
    inbox::http::{IdempotencyLayer, Idempotent, StoredResponse},
    reconciler::Notifier,
};
use tokio_postgres::{Row, types::Type};
use uuid::Uuid;

use crate::{chain::Chain, observer::CHAIN, store};

/// The longest time that a payer may be given.
const EXPIRES_SECONDS_MAX: f64 = 30.0 * 86_400.0;
const EXPIRES_SECONDS: f64 = 3_600.0;
const PAGE: i64 = 50;
const PAGE_MAX: i64 = 500;

const COLUMNS: &str = "id, status, chain, address, amount, \
    to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') AS created, \
    to_char(expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') AS expires, \
    reconcile_dead_reason";

/// What the handlers need.
#[derive(Debug, Clone)]
pub struct Api {
    /// Connections.
    pub pool: Pool,
    /// Rung after each new request, if reconcilers listen.
    pub notifier: Option<Notifier>,
    /// The simulated node, for reconcilers in other languages.
    pub chain: Chain,
}

/// The routes.
pub fn router(api: Api, registry: Arc<Registry>) -> anyhow::Result<Router> {
    // All callers are one: this API knows no tenants.
    let scope = |_: &Parts| String::new();
    let idempotency = IdempotencyLayer::new(store::inbox()?, api.pool.clone(), scope).required();
    let requests = get(list).post(create).layer(idempotency);
    Ok(Router::new()
        .route("/payment-requests", requests)
        .route("/payment-requests/{id}", get(show))
        .route("/node/{address}", get(node))
        .with_state(api)
        .merge(operations(registry)))
}

/// `/healthz` and `/metrics`.
pub fn operations(registry: Arc<Registry>) -> Router {
    Router::new().route("/healthz", get(|| async { "ok\n" })).route(
        "/metrics",
        get(move || async move {
            let mut page = String::new();
            match text::encode(&mut page, &registry) {
                Ok(()) => {
                    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
                    ([(header::CONTENT_TYPE, kind)], page).into_response()
                }
                Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            }
        }),
    )
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Create {
    amount: i64,
    chain: Option<String>,
    expires_in_seconds: Option<f64>,
}

impl Create {
    fn check(&self) -> Result<f64, Problem> {
        let seconds = self.expires_in_seconds.unwrap_or(EXPIRES_SECONDS);
        if self.amount <= 0 {
            return Err(Problem::invalid("amount: use a positive number of the smallest unit"));
        }
        if !(seconds > 0.0 && seconds <= EXPIRES_SECONDS_MAX) {
            return Err(Problem::invalid(&format!("expires_in_seconds: use 0 to {EXPIRES_SECONDS_MAX}")));
        }
        match self.chain.as_deref() {
            Some("") => Err(Problem::invalid("chain: leave it out, or name one")),
            Some(name) if name.len() > 64 => Err(Problem::invalid("chain: a name has at most 64 bytes")),
            _ => Ok(seconds),
        }
    }
}

/// The request, its answer under its key: one transaction.
async fn create(
    State(api): State<Api>,
    Extension(idempotent): Extension<Idempotent>,
    body: axum::body::Bytes,
) -> Result<StoredResponse, Problem> {
    let wanted: Create =
        serde_json::from_slice(&body).map_err(|error| Problem::invalid(&error.to_string()))?;
    let expires_in = wanted.check()?;
    let mut client = api.pool.get().await?;
    let tx = client.transaction().await?;
    let sql = format!(
        "INSERT INTO app.payment_requests (id, chain, address, amount, expires_at) \
         VALUES ($1, $2, $3, $4, now() + $5 * interval '1 second') RETURNING {COLUMNS}"
    );
    let chain = wanted.chain.as_deref().unwrap_or(CHAIN);
    let address = format!("sim1{}", Uuid::new_v4().simple());
    let id = Uuid::now_v7();
    let row = tx
        .query_typed_one(
            &sql,
            &[
                (&id, Type::UUID),
                (&chain, Type::TEXT),
                (&address, Type::TEXT),
                (&wanted.amount, Type::INT8),
                (&expires_in, Type::FLOAT8),
            ],
        )
        .await?;
    let answer = StoredResponse::json(201, &shown(&row)?);
    if !idempotent.complete(&*tx, &answer).await.map_err(|error| Problem::unavailable(&error))?.is_done() {
        return Ok(StoredResponse::unavailable());
    }
    tx.commit().await?;
    if let Some(notifier) = &api.notifier {
        notifier.ring();
    }
    Ok(answer)
}

async fn show(State(api): State<Api>, Path(id): Path<Uuid>) -> Result<Json<Value>, Problem> {
    let client = api.pool.get().await?;
    let sql = format!("SELECT {COLUMNS} FROM app.payment_requests WHERE id = $1");
    let row = client.query_typed_opt(&sql, &[(&id, Type::UUID)]).await?;
    let row =
        row.ok_or_else(|| Problem::new(404, "not_found", &format!("there is no payment request {id}")))?;
    Ok(Json(shown(&row)?))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Node {
    /// How long ago the payment was requested.
    age_ms: u64,
}

/// What the simulated node answers, right or wrong.
async fn node(State(api): State<Api>, Path(address): Path<String>, Query(node): Query<Node>) -> Response {
    match api.chain.ask(&address, Duration::from_millis(node.age_ms)).await {
        Ok(answer) => answer.into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    status: Option<String>,
    /// The last id of the page before; ids are in the order of creation.
    after: Option<Uuid>,
    limit: Option<i64>,
}

async fn list(State(api): State<Api>, Query(list): Query<List>) -> Result<Json<Value>, Problem> {
    let limit = list.limit.unwrap_or(PAGE);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Problem::invalid(&format!("limit: use 1 to {PAGE_MAX}")));
    }
    let client = api.pool.get().await?;
    let sql = format!(
        "SELECT {COLUMNS} FROM app.payment_requests WHERE ($1::text IS NULL OR status = $1) AND ($2::uuid IS NULL OR id > $2) \
         ORDER BY id LIMIT $3"
    );
    let rows = client
        .query_typed(&sql, &[(&list.status, Type::TEXT), (&list.after, Type::UUID), (&limit, Type::INT8)])
        .await?;
    let next =
        if rows.len() as i64 == limit { rows.last().map(|row| row.get::<_, Uuid>("id")) } else { None };
    let shown = rows.iter().map(shown).collect::<Result<Vec<_>, _>>()?;
    Ok(Json(json!({"payment_requests": shown, "next": next})))
}

fn shown(row: &Row) -> Result<Value, tokio_postgres::Error> {
    let mut shown = json!({
        "id": row.try_get::<_, Uuid>("id")?,
        "status": row.try_get::<_, String>("status")?,
        "chain": row.try_get::<_, String>("chain")?,
        "address": row.try_get::<_, String>("address")?,
        "amount": row.try_get::<_, i64>("amount")?,
        "created_at": row.try_get::<_, String>("created")?,
        "expires_at": row.try_get::<_, String>("expires")?,
    });
    if let Some(reason) = row.try_get::<_, Option<String>>("reconcile_dead_reason")? {
        shown["dead_letter"] = reason.into();
    }
    Ok(shown)
}

/// An RFC 9457 document.
struct Problem(StoredResponse);

impl Problem {
    fn new(status: u16, code: &str, detail: &str) -> Self {
        let title = StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
        let body =
            json!({"type": "about:blank", "title": title, "status": status, "code": code, "detail": detail});
        let content_type = "application/problem+json".into();
        Self(StoredResponse { status, content_type, body: body.to_string() })
    }

    fn invalid(detail: &str) -> Self {
        Self::new(400, "invalid", detail)
    }

    fn unavailable(error: &dyn std::fmt::Display) -> Self {
        tracing::warn!(%error, "the database failed a request");
        Self(StoredResponse::unavailable())
    }
}

impl From<tokio_postgres::Error> for Problem {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::unavailable(&error)
    }
}

impl From<deadpool_postgres::PoolError> for Problem {
    fn from(error: deadpool_postgres::PoolError) -> Self {
        Self::unavailable(&error)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        self.0.into_response()
    }
}
