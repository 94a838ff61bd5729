//! Health and metrics of the agent and its workers, over HTTP.
//!
//! `/healthz` says whether the agent runs, `/readyz` whether it is registered, in contact and not draining, `/metrics`
//! has metrics in the format of Prometheus, and `/status` the same as JSON.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64},
    },
};

use axum::{
    Router,
    extract::State,
    response::{IntoResponse, Response},
    routing::get,
};
use parking_lot::Mutex;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};
use rustix::process::Pid;
use serde::Serialize;
use serde_json::{Map, Value, json};
use solehold_api::runners::FAILED_RESOURCES;
use solehold_process::health::{self, Health};

use crate::{
    keep::proc::{self, Usage},
    machine::{ResourceView, WorkerId, WorkerPhase, WorkerView},
};

#[derive(Debug, Default)]
pub struct Status(Mutex<Snapshot>);

/// How things stood when the driver last looked.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    pub runner_id: String,
    pub workers: Vec<WorkerView>,
    /// What it holds or wants.
    pub resources: Vec<ResourceView>,
    /// What its workers failed at lately, and why.
    pub failed: BTreeMap<String, String>,
    pub keepers: Vec<(WorkerId, Pid)>,
    pub is_registered: bool,
    /// It was asked to end.
    pub is_draining: bool,
    /// Why the server does not answer, if it does not.
    pub no_contact: Option<String>,
}

impl Snapshot {
    fn usage(&self, worker: WorkerId) -> Usage {
        let keeper = self.keepers.iter().find(|(id, _)| *id == worker);
        keeper.map_or_else(Usage::default, |(_, pid)| proc::usage_below(*pid))
    }

    fn held(&self) -> usize {
        self.resources.iter().filter(|resource| resource.token.is_some()).count()
    }

    fn not_ready(&self) -> Option<String> {
        if self.is_draining {
            return Some("draining".to_owned());
        }
        if !self.is_registered {
            return Some("not registered with a server".to_owned());
        }
        self.no_contact.clone()
    }
}

impl Status {
    pub fn set(&self, snapshot: Snapshot) {
        *self.0.lock() = snapshot;
    }

    pub fn heartbeat_metrics(&self) -> Map<String, Value> {
        let now = self.0.lock().clone();
        let mut cpu_ms = 0;
        let mut rss_bytes = 0;
        let mut restarts = 0;
        for worker in &now.workers {
            let usage = now.usage(worker.worker);
            cpu_ms += usage.cpu_ms;
            rss_bytes += usage.rss_bytes;
            restarts += worker.restarts;
        }
        let metrics = [
            ("workers", json!(now.workers.len())),
            ("worker_restarts", json!(restarts)),
            ("worker_cpu_ms", json!(cpu_ms)),
            ("worker_rss_bytes", json!(rss_bytes)),
            (FAILED_RESOURCES, json!(now.failed)),
        ];
        metrics.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

pub async fn serve(host: &str, port: u16, status: Arc<Status>) -> io::Result<()> {
    let routes = Router::new().route("/status", get(show)).with_state(status.clone());
    health::serve((host, port), routes.merge(health::routes(status))).await?;
    Ok(())
}

impl Health for Status {
    fn not_ready(&self) -> Option<String> {
        self.0.lock().not_ready()
    }

    fn metrics(&self) -> Option<String> {
        let now = self.0.lock().clone();
        let mut text = String::new();
        encode(&mut text, &registry(&now)).ok()?;
        Some(text)
    }
}

#[derive(Serialize)]
struct Shown {
    runner_id: String,
    ready: bool,
    draining: bool,
    workers: Vec<ShownWorker>,
    resources: Vec<ResourceView>,
}

#[derive(Serialize)]
struct ShownWorker {
    #[serde(flatten)]
    view: WorkerView,
    processes: usize,
    cpu_ms: u64,
    rss_bytes: u64,
}

async fn show(State(status): State<Arc<Status>>) -> Response {
    let now = status.0.lock().clone();
    let worker = |view: &WorkerView| {
        let usage = now.usage(view.worker);
        let Usage { processes, cpu_ms, rss_bytes } = usage;
        ShownWorker { view: view.clone(), processes, cpu_ms, rss_bytes }
    };
    let shown = Shown {
        runner_id: now.runner_id.clone(),
        ready: now.not_ready().is_none(),
        draining: now.is_draining,
        workers: now.workers.iter().map(worker).collect(),
        resources: now.resources.clone(),
    };
    axum::Json(shown).into_response()
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfWorker {
    worker: WorkerId,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InPhase {
    phase: &'static str,
}

type PerWorker = Family<OfWorker, Gauge<i64, AtomicI64>>;

fn registry(now: &Snapshot) -> Registry {
    let mut registry = Registry::with_prefix("solehold_agent");
    let mut one = |name: &str, help: &str, value: usize| {
        let gauge = Gauge::<u64, AtomicU64>::default();
        gauge.set(value as u64);
        registry.register(name, help, gauge);
    };
    one(
        "ready",
        "Whether the agent is registered, in contact and not draining",
        usize::from(now.not_ready().is_none()),
    );
    one("draining", "Whether the agent is draining", usize::from(now.is_draining));
    one("leases", "Resources that are held", now.held());
    one("resources_waiting", "Resources that are wanted and not held", now.resources.len() - now.held());
    let phases = Family::<InPhase, Gauge<u64, AtomicU64>>::default();
    for (phase, name) in [
        (WorkerPhase::Starting, "starting"),
        (WorkerPhase::Running, "running"),
        (WorkerPhase::Stopping, "stopping"),
        (WorkerPhase::Pausing, "pausing"),
    ] {
        let count = now.workers.iter().filter(|worker| worker.phase == phase).count();
        phases.get_or_create(&InPhase { phase: name }).set(count as u64);
    }
    registry.register("workers", "Workers by where they are in their life", phases);
    per_worker(&mut registry, now);
    registry
}

fn per_worker(registry: &mut Registry, now: &Snapshot) {
    let metrics: [(&str, &str, PerWorker); 6] = [
        ("worker_resources", "Resources that a worker works on", PerWorker::default()),
        ("worker_restarts", "How often a worker was started again", PerWorker::default()),
        ("worker_failures", "Failures of a worker in a row", PerWorker::default()),
        ("worker_processes", "Processes of a worker", PerWorker::default()),
        ("worker_cpu_milliseconds", "Processor time of a worker's processes", PerWorker::default()),
        ("worker_memory_bytes", "Memory of a worker's processes", PerWorker::default()),
    ];
    for view in &now.workers {
        let usage = now.usage(view.worker);
        let values = [
            view.resources as i64,
            view.restarts as i64,
            view.failures.into(),
            usage.processes as i64,
            usage.cpu_ms as i64,
            usage.rss_bytes as i64,
        ];
        for ((_, _, family), value) in metrics.iter().zip(values) {
            family.get_or_create(&OfWorker { worker: view.worker }).set(value);
        }
    }
    for (name, help, family) in metrics {
        registry.register(name, help, family);
    }
}
