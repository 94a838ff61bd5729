//! The current plan of each tenant.
//!
//! A thousand runners that poll at once are answered from one plan. A plan is made again when the store or the registry
//! has changed, but not more often than planning can keep up with, and after one second in any case, since plans depend
//! on time, too. For requests that wait for another plan, one task per tenant makes it (`follow.rs`).

use std::{collections::HashMap, sync::Arc};

use solehold_api::problem::{ErrorCode, Problem};
use solehold_core::{key::Name, placement::ALGORITHM_VERSION};
use solehold_engine::{Engine, clock::BootTime};
use tokio::sync::{Mutex, watch};

use super::{
    facts::Rows,
    planned::{KnownRunner, Planned, RememberedPlan},
    records::ruling_algorithm,
};
use crate::error::ApiError;

/// Tenants whose plans are kept; beyond it all are forgotten and made again.
const TENANTS_MAX: usize = 1_000;

#[derive(Debug, Default)]
pub(super) struct TenantPlans {
    present: Mutex<RememberedPlan>,
    pub(super) made: watch::Sender<u64>,
    /// Whether a task makes plans for waiting requests.
    pub(super) is_followed: parking_lot::Mutex<bool>,
}

/// The plans of all tenants for which one was requested.
#[derive(Debug)]
pub(crate) struct PlanBook {
    pub(super) engine: Engine,
    node_id: String,
    tenants: Mutex<HashMap<Name, Arc<TenantPlans>>>,
    /// Counts changes of the registry for which there is no event.
    pub(super) registry: watch::Sender<u64>,
}

impl PlanBook {
    pub fn new(engine: Engine, node_id: String) -> Self {
        Self { engine, node_id, tenants: Mutex::default(), registry: watch::Sender::default() }
    }

    /// A runner has come, gone or changed its status, or the settings have changed: plans are made again.
    pub fn registry_changed(&self) {
        self.registry.send_modify(|count| *count += 1);
    }

    /// The present plan of a tenant; one that knows `asker` otherwise than it is now is made again. One caller at a
    /// time makes it; concurrent callers wait for that one.
    pub async fn plan(&self, tenant: &Name, asker: Option<&KnownRunner>) -> Result<Arc<Planned>, ApiError> {
        let plans = self.tenant_plans(tenant).await;
        let mut present = plans.present.lock().await;
        let registry = *self.registry.borrow();
        let began = BootTime::now();
        if let Some(planned) = present.recall(began, self.engine.cursor().revision.0, registry, asker) {
            return Ok(planned);
        }
        let rows = Rows::read(&self.engine, tenant).await?;
        check_algorithm(ruling_algorithm(&self.engine, &self.node_id, rows.now()).await?)?;
        // Shared with the thread, so that nothing is lost if the caller disconnects while it plans.
        let memory = present.memory();
        let made = in_background(move || Planned::make(rows, &mut memory.lock())).await?;
        let planned = present.keep(made, registry, began, BootTime::now());
        plans.made.send_modify(|count| *count += 1);
        Ok(planned)
    }

    pub(super) async fn tenant_plans(&self, tenant: &Name) -> Arc<TenantPlans> {
        let mut tenants = self.tenants.lock().await;
        if tenants.len() >= TENANTS_MAX && !tenants.contains_key(tenant) {
            tenants.clear();
        }
        tenants.entry(tenant.clone()).or_default().clone()
    }
}

/// There is one version so far; a later one will plan by an older one's rules.
fn check_algorithm(ruling: u32) -> Result<(), ApiError> {
    if ruling == ALGORITHM_VERSION {
        return Ok(());
    }
    let detail = format!(
        "another replica uses placement algorithm {ruling}, which this server does not support; upgrade this server"
    );
    Err(Problem::new(ErrorCode::Conflict, detail).into())
}

/// Runs `compute` on a thread for blocking work, so that it does not delay requests.
pub(super) async fn in_background<T: Send + 'static>(
    compute: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(compute).await;
    done.map_err(|error| Problem::new(ErrorCode::Internal, format!("planning failed: {error}")).into())
}
