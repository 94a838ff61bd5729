//! How things stand, for metrics and health.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};

use super::{LeaseState, Machine, WorkerId, workers::Phase};

/// How many failures are told: they go with every heartbeat.
const FAILED_SHOWN_MAX: usize = 32;

/// A worker as others see it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkerView {
    pub worker: WorkerId,
    pub phase: WorkerPhase,
    pub resources: usize,
    pub restarts: u64,
    /// Failures in a row.
    pub failures: u32,
    /// What it last said about itself.
    pub stats: Map<String, Value>,
}

/// Where a worker is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerPhase {
    /// Not ready yet.
    Starting,
    /// Ready, or a plain process.
    Running,
    /// On its way out.
    Stopping,
    /// It ended, and is started again after a pause.
    Pausing,
}

/// A resource as others see it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ResourceView {
    pub resource: String,
    /// The token, while it is held.
    pub token: Option<u64>,
    pub worker: Option<WorkerId>,
    pub lease: &'static str,
}

impl Machine {
    pub fn workers(&self) -> Vec<WorkerView> {
        let view = |(id, worker): (&WorkerId, &super::Worker)| WorkerView {
            worker: *id,
            phase: match worker.phase {
                Phase::Running if worker.care.is_ready() => WorkerPhase::Running,
                Phase::Running => WorkerPhase::Starting,
                Phase::Stopping(..) => WorkerPhase::Stopping,
                Phase::Pausing(_) | Phase::Starved => WorkerPhase::Pausing,
            },
            resources: worker.resources.len(),
            restarts: worker.restarts,
            failures: worker.care.failures(),
            stats: worker.stats.clone(),
        };
        self.workers.iter().map(view).collect()
    }

    /// What its workers failed at lately, and why: for the server, which prefers other runners for it.
    pub fn failed_resources(&self) -> BTreeMap<String, String> {
        let failed = self.failed.iter().take(FAILED_SHOWN_MAX);
        failed.map(|(resource, (why, _))| (resource.to_string(), why.clone())).collect()
    }

    pub fn resources(&self) -> Vec<ResourceView> {
        let view = |(resource, slot): (&solehold_client::ResourceName, &super::Slot)| {
            let (lease, token) = match &slot.lease {
                LeaseState::None => ("waiting", None),
                LeaseState::Preparing(_) => ("preparing", None),
                LeaseState::Asked => ("asked", None),
                LeaseState::Held(holding) => ("held", Some(holding.granted.token)),
                LeaseState::Ending(ending) => ("ending", Some(ending.holding.granted.token)),
                LeaseState::Releasing => ("releasing", None),
            };
            ResourceView { resource: resource.to_string(), token, worker: slot.worker, lease }
        };
        self.slots.iter().map(view).collect()
    }
}
