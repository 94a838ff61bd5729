//! The quotas of tenants, and approximately how much of them is used.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use solehold_api::{
    admin::{QuotaChanges, Quotas},
    problem::{ErrorCode, Problem},
};
use solehold_core::{key::Name, record::Record};
use solehold_engine::{Engine, clock::BootTime, store::Usage};

use super::records::{self, collection, record};
use crate::error::ApiError;

/// The collection of tenants' quotas.
const TENANTS: &str = "tenant";
/// How long a count is used before it is read from the store again.
const FRESH_FOR: Duration = Duration::from_secs(1);
/// Tenants whose counts are kept; beyond it all are forgotten and read again.
const COUNTS_MAX: usize = 10_000;

/// A count that is limited for each tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quota {
    /// Resources, declared or held.
    Resources,
    /// Active sessions.
    Sessions,
}

impl Quota {
    fn name(self) -> &'static str {
        match self {
            Self::Resources => "tenant_resources",
            Self::Sessions => "tenant_sessions",
        }
    }

    fn of(self, quotas: Quotas) -> Option<u64> {
        match self {
            Self::Resources => quotas.resources,
            Self::Sessions => quotas.sessions,
        }
    }

    fn used(self, usage: &mut Usage) -> &mut u64 {
        match self {
            Self::Resources => &mut usage.resources,
            Self::Sessions => &mut usage.sessions,
        }
    }
}

/// The quotas that were set for tenants in place of the defaults.
pub(crate) async fn overrides(engine: &Engine) -> Result<BTreeMap<Name, QuotaChanges>, ApiError> {
    let records = engine.records(&collection(TENANTS)).await?;
    Ok(records.iter().filter_map(|record| Some((record.id.clone(), read(record)?))).collect())
}

fn read(record: &Record) -> Option<QuotaChanges> {
    let quotas = serde_json::from_str(record.document.as_str());
    let quotas = quotas.inspect_err(
        |error| tracing::error!(tenant = %record.id, %error, "cannot parse tenant quotas; using the defaults"),
    );
    quotas.ok()
}

/// Changes the quotas of a tenant that are named, and no others.
pub(crate) async fn change(engine: &Engine, tenant: &Name, changes: QuotaChanges) -> Result<(), ApiError> {
    if changes == QuotaChanges::default() {
        return Ok(());
    }
    records::change(engine, TENANTS, tenant, |found, _| {
        let set = found.and_then(read).unwrap_or_default();
        Ok((record(TENANTS, tenant.clone(), &set.and(changes))?, ()))
    })
    .await
}

/// The counts of each tenant: those in the store within the last second, plus those admitted here since.
#[derive(Debug, Default)]
pub(crate) struct QuotaBook {
    counts: Mutex<HashMap<Name, (BootTime, Usage)>>,
    watches: Arc<Watches>,
}

impl QuotaBook {
    /// Counts one more, or refuses it.
    pub async fn take(
        &self,
        engine: &Engine,
        tenant: &Name,
        quota: Quota,
        quotas: Quotas,
    ) -> Result<(), ApiError> {
        let Some(most) = quota.of(quotas) else { return Ok(()) };
        let has_room = match self.count(tenant, quota, most) {
            Some(has_room) => has_room,
            None => {
                let at = BootTime::now();
                let usage = engine.usage(Some(tenant)).await?;
                {
                    let mut counts = self.counts.lock();
                    if counts.len() >= COUNTS_MAX {
                        counts.clear();
                    }
                    counts.insert(tenant.clone(), (at, usage));
                }
                self.count(tenant, quota, most).unwrap_or(true)
            }
        };
        if has_room { Ok(()) } else { Err(exceeded(quota.name(), tenant, most)) }
    }

    /// Counts one more if there is room for it; none without a fresh count.
    fn count(&self, tenant: &Name, quota: Quota, most: u64) -> Option<bool> {
        let mut counts = self.counts.lock();
        let (at, usage) = counts.get_mut(tenant)?;
        if BootTime::now().since(*at) > FRESH_FOR {
            return None;
        }
        let used = quota.used(usage);
        let has_room = *used < most;
        *used += u64::from(has_room);
        Some(has_room)
    }

    /// The open watches.
    pub fn watches(&self) -> &Arc<Watches> {
        &self.watches
    }
}

/// The watches that are open at this node.
#[derive(Debug, Default)]
pub(crate) struct Watches(Mutex<OpenCounts>);

#[derive(Debug, Default)]
struct OpenCounts {
    all: u64,
    by_tenant: HashMap<Name, u64>,
}

impl Watches {
    /// Opens a watch, of one tenant with the limit of its quota, or of all tenants.
    pub fn open(
        self: &Arc<Self>,
        tenant: Option<(Name, Option<u64>)>,
        most: u64,
    ) -> Result<OpenWatch, ApiError> {
        let mut counts = self.0.lock();
        if counts.all >= most {
            let problem = Problem::new(
                ErrorCode::Overloaded,
                format!("this node already has {most} open watches, its maximum"),
            );
            return Err(problem.limit("watches", most).retry_after_ms(1_000).into());
        }
        if let Some((tenant, most)) = &tenant {
            let open = counts.by_tenant.entry(tenant.clone()).or_default();
            if let Some(most) = most.filter(|most| *open >= *most) {
                return Err(exceeded("tenant_watches", tenant, most));
            }
            *open += 1;
        }
        counts.all += 1;
        Ok(OpenWatch { watches: self.clone(), tenant: tenant.map(|(tenant, _)| tenant) })
    }

    /// The number of open watches.
    pub fn count(&self) -> u64 {
        self.0.lock().all
    }

    pub fn of(&self, tenant: &Name) -> u64 {
        self.0.lock().by_tenant.get(tenant).copied().unwrap_or(0)
    }
}

/// A watch that is open; dropping it closes it.
#[derive(Debug)]
pub(crate) struct OpenWatch {
    watches: Arc<Watches>,
    tenant: Option<Name>,
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        let mut counts = self.watches.0.lock();
        counts.all -= 1;
        if let Some(tenant) = &self.tenant
            && let Some(open) = counts.by_tenant.get_mut(tenant)
        {
            *open -= 1;
            if *open == 0 {
                counts.by_tenant.remove(tenant);
            }
        }
    }
}

fn exceeded(bound: &str, tenant: &Name, most: u64) -> ApiError {
    let what = bound.trim_start_matches("tenant_");
    let detail =
        format!("tenant {tenant} has reached its quota of {most} {what}; an administrator can raise it");
    Problem::new(ErrorCode::QuotaExceeded, detail).limit(bound, most).into()
}
