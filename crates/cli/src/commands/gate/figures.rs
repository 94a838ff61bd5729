//! Health and metrics of the proxy, over HTTP.

use std::{io, net::SocketAddr, sync::Arc};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use prometheus_client::{encoding::text::encode, metrics::gauge::ConstGauge, registry::Registry};
use solehold_client::gate::{FlightsStatus, Gate};
use tokio::net::TcpListener;

/// Serves `/healthz`, `/readyz` and `/metrics` from now on; the answer is where.
pub async fn serve(listen: SocketAddr, gate: Arc<Gate>) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    let routes = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(gate);
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, routes).await {
            tracing::error!(%error, "health and metrics are no longer served");
        }
    });
    Ok(address)
}

async fn ready(State(gate): State<Arc<Gate>>) -> Response {
    let status = gate.status();
    match status.lag {
        Some(_) if !status.is_away => "ready\n".into_response(),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "the server does not answer\n").into_response(),
    }
}

async fn metrics(State(gate): State<Arc<Gate>>) -> Response {
    let mut text = String::new();
    if encode(&mut text, &registry(&gate)).is_err() {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let format = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, format)], text).into_response()
}

fn registry(gate: &Gate) -> Registry {
    let mut registry = Registry::with_prefix("solehold_gate");
    let FlightsStatus { running, unattended, lost, waiting, oldest } = gate.flights().status();
    let mut count = |name: &str, help: &str, count: usize| {
        registry.register(name, help, ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX)));
    };
    count(
        "requests_running",
        "Requests with tokens that are not known to have ended in the service",
        running,
    );
    count(
        "requests_unattended",
        "Of these, requests whose caller no longer waits for a response",
        unattended,
    );
    count(
        "requests_lost",
        "Of these, requests whose end cannot be known; newer tokens of their resources are refused",
        lost,
    );
    count("requests_waiting", "Requests that wait for requests with lower tokens to end", waiting);
    registry.register(
        "oldest_request_seconds",
        "How long the oldest of the running requests has been running",
        ConstGauge::new(oldest.as_secs_f64()),
    );
    if let Some(lag) = gate.lag() {
        let help = "How far behind the server the gate may be";
        registry.register("lag_seconds", help, ConstGauge::new(lag.as_secs_f64()));
    }
    let is_known = ConstGauge::new(i64::from(gate.lag().is_some()));
    registry.register("up_to_date", "Whether the gate knows how far behind it is", is_known);
    registry
}
