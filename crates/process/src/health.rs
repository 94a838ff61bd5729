//! Health and metrics over HTTP: `/healthz` responds while the process runs, `/readyz` when it can do its work, and
//! `/metrics` has its metrics in the format of Prometheus.

use std::{io, net::SocketAddr, sync::Arc};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::net::{TcpListener, ToSocketAddrs};

/// The format of `/metrics`.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A process that reports its health.
pub trait Health: Send + Sync + 'static {
    /// Why it is not ready; none if it is.
    fn not_ready(&self) -> Option<String>;

    /// What else `/readyz` reports while it is ready, one line each.
    fn remarks(&self) -> Vec<String> {
        Vec::new()
    }

    /// Its metrics as OpenMetrics text; none if they cannot be encoded.
    fn metrics(&self) -> Option<String>;
}

/// The three routes.
pub fn routes(health: Arc<dyn Health>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(health)
}

/// Serves routes in the background until the process ends, and returns the address.
pub async fn serve(listen: impl ToSocketAddrs, routes: Router) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, routes).await {
            tracing::error!(%error, %address, "HTTP listener failed; health and metrics are no longer served");
        }
    });
    Ok(address)
}

async fn ready(State(health): State<Arc<dyn Health>>) -> Response {
    match health.not_ready() {
        None => {
            let lines = std::iter::once("ready".to_owned()).chain(health.remarks());
            lines.map(|line| line + "\n").collect::<String>().into_response()
        }
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn metrics(State(health): State<Arc<dyn Health>>) -> Response {
    match health.metrics() {
        Some(text) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
