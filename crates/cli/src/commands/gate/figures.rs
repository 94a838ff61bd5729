//! Health and metrics of a gate over HTTP, on a port of their own: `/healthz` says whether the gate runs, `/readyz`
//! whether it can judge, and `/metrics` has figures in the format of Prometheus.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use prometheus_client::{encoding::text::encode, metrics::gauge::ConstGauge, registry::Registry};
use solehold_api::problem::ErrorCode;
use solehold_client::gate::{FlightsStatus, Gate};
use solehold_stream::mqtt;
use tokio::net::TcpListener;

use super::refusals::Refusals;
use crate::{
    error::{CommandError, CommandResult},
    output,
};

/// What a gate reports of itself.
pub trait Figures: Send + Sync + 'static {
    /// Why it is not ready; none if it is.
    fn not_ready(&self) -> Option<String>;

    /// Its metrics as OpenMetrics text; none if they cannot be written.
    fn text(&self) -> Option<String>;
}

/// Serves the figures of `gate http` or `gate mqtt` from now on, and says where.
pub async fn serve(gate: &str, listen: SocketAddr, figures: impl Figures) -> CommandResult {
    let bound = async {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        std::io::Result::Ok((listener, address))
    };
    let (listener, address) = bound.await.map_err(|error| {
        let message = format!("--metrics-listen {listen}: {error}");
        CommandError::new(ErrorCode::Unavailable, message).hint("choose another address")
    })?;
    let routes = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(Arc::new(figures) as Arc<dyn Figures>);
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, routes).await {
            tracing::error!(%error, "health and metrics are no longer served");
        }
    });
    output::say(format!("solehold gate {gate} serves metrics on http://{address}"));
    Ok(())
}

async fn ready(State(figures): State<Arc<dyn Figures>>) -> Response {
    match figures.not_ready() {
        None => "ready\n".into_response(),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn metrics(State(figures): State<Arc<dyn Figures>>) -> Response {
    let Some(text) = figures.text() else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let format = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, format)], text).into_response()
}

/// The figures of `gate mqtt`.
pub struct MqttFigures {
    pub figures: Arc<mqtt::Figures>,
    pub knowledge: mqtt::Knowledge,
}

impl Figures for MqttFigures {
    fn not_ready(&self) -> Option<String> {
        self.figures.not_ready(&self.knowledge)
    }

    fn text(&self) -> Option<String> {
        self.figures.text(&self.knowledge)
    }
}

/// The figures of `gate http`.
pub struct HttpFigures {
    pub gate: Arc<Gate>,
    pub refusals: Arc<Refusals>,
}

impl Figures for HttpFigures {
    fn not_ready(&self) -> Option<String> {
        let status = self.gate.status();
        let is_ready = status.lag.is_some() && !status.is_away && !status.is_denied;
        (!is_ready).then(|| self.gate.trouble().unwrap_or_else(|| "the server does not answer".to_owned()))
    }

    fn text(&self) -> Option<String> {
        let mut text = String::new();
        let mut registry = registry(&self.gate);
        registry.register("requests_refused", "Requests that were refused, by code", self.refusals.counts());
        encode(&mut text, &registry).ok()?;
        Some(text)
    }
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
    let is_denied = ConstGauge::new(i64::from(gate.status().is_denied));
    registry.register("denied", "Whether the server refuses the gate, such as for its key", is_denied);
    registry
}
