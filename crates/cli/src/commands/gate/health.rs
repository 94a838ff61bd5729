//! Health and metrics of a gate over HTTP, on a port of their own: `/healthz` says whether the gate runs, `/readyz`
//! whether it can judge, and `/metrics` has its metrics in the format of Prometheus.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use prometheus_client::{encoding::text::encode, metrics::gauge::ConstGauge, registry::Registry};
use solehold_api::problem::ErrorCode;
use solehold_client::gate::{FlightsStatus, Gate};
use solehold_mqtt_gate::mqtt;
use solehold_process::{
    health::{self, Health},
    manager::ServiceManager,
};

use super::refusals::Refusals;
use crate::{
    error::{CommandError, CommandResult},
    output,
};

/// How often a gate that is starting looks whether it is ready.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Tells the service manager when a gate is ready for the first time. Never ends.
pub async fn report_ready(
    manager: &ServiceManager,
    health: &impl Health,
    gate: &str,
) -> std::convert::Infallible {
    let mut reported = None;
    while let Some(why) = health.not_ready() {
        if reported.as_ref() != Some(&why) {
            manager.status(&why);
            reported = Some(why);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    manager.ready(&format!("the {gate} gate is up to date"));
    std::future::pending().await
}

/// Serves health and metrics of `gate http` or `gate mqtt` from now on, and prints the address.
pub async fn serve(gate: &str, listen: SocketAddr, health: impl Health) -> CommandResult {
    let address = health::serve(listen, health::routes(Arc::new(health))).await.map_err(|error| {
        let message = format!("--metrics-listen {listen}: {error}");
        CommandError::new(ErrorCode::Unavailable, message).hint("choose another address")
    })?;
    output::say(format!("solehold gate {gate} serves metrics on http://{address}"));
    Ok(())
}

#[derive(Clone)]
pub struct MqttHealth {
    pub metrics: Arc<mqtt::GateMetrics>,
    pub knowledge: mqtt::Knowledge,
}

impl Health for MqttHealth {
    fn not_ready(&self) -> Option<String> {
        self.metrics.not_ready(&self.knowledge)
    }

    fn metrics(&self) -> Option<String> {
        self.metrics.text(&self.knowledge)
    }
}

#[derive(Clone)]
pub struct HttpHealth {
    pub gate: Arc<Gate>,
    pub refusals: Arc<Refusals>,
}

impl Health for HttpHealth {
    fn not_ready(&self) -> Option<String> {
        let status = self.gate.status();
        let is_ready = status.lag.is_some() && !status.is_away && !status.is_denied;
        (!is_ready).then(|| self.gate.trouble().unwrap_or_else(|| "the server does not answer".to_owned()))
    }

    fn metrics(&self) -> Option<String> {
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
