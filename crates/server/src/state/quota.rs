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

use super::{
    audit::Deed,
    operator::Operator,
    records::{collection, record},
};
use crate::error::ApiError;

const TENANTS: &str = "tenant";
/// How long a count is used before it is read from the store again.
const FRESH_FOR: Duration = Duration::from_secs(1);
/// The same while less than a quarter of the quota is used. After that it is read again while requests go on.
const FRESH_FOR_WITH_PLENTY: Duration = Duration::from_secs(10);
/// A count that is older than this is not used at all.
const OLD_AT_MOST: Duration = Duration::from_secs(60);
/// Tenants whose counts are kept; beyond it all are forgotten and read again.
const COUNTS_MAX: usize = 10_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quota {
    Resources,
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
pub(crate) async fn change(by: &Operator, tenant: &Name, changes: QuotaChanges) -> Result<(), ApiError> {
    if changes == QuotaChanges::default() {
        return Ok(());
    }
    let deed = Deed::new("tenant_quotas", format!("tenant/{tenant}")).of(tenant).with_fields(&changes);
    by.change(TENANTS, tenant, &deed, |found, _| {
        let set = found.and_then(read).unwrap_or_default();
        Ok((record(TENANTS, tenant.clone(), &set.and(changes))?, ()))
    })
    .await
}

/// The counts of each tenant: those in the store when they were last read, plus those admitted here since.
#[derive(Debug, Default)]
pub(crate) struct QuotaBook {
    counts: Arc<Counts>,
    pub watches: Arc<Watches>,
}

#[derive(Debug, Default)]
struct Counts(Mutex<HashMap<Name, TenantCount>>);

#[derive(Debug, Default)]
struct TenantCount {
    last: Option<(BootTime, Usage)>,
    /// Held while the store is asked. On PostgreSQL a count reads all rows of the tenant, so that one at a time must
    /// do, however many requests come.
    reading: Arc<tokio::sync::Mutex<()>>,
}

/// What a count says about one more.
enum Verdict {
    HasRoom,
    /// So much that an old count will do, which is to be read again.
    HadPlenty(Arc<tokio::sync::Mutex<()>>),
    IsFull,
    /// There is no count, or an old one.
    Unknown(Arc<tokio::sync::Mutex<()>>),
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
        let read = {
            let engine = engine.clone();
            let tenant = tenant.clone();
            async move || Ok(engine.usage(Some(&tenant)).await?)
        };
        self.take_by(tenant, quota, quotas, read).await
    }

    /// As [`Self::take`], with the usage that `read` gives.
    async fn take_by<F, R>(
        &self,
        tenant: &Name,
        quota: Quota,
        quotas: Quotas,
        read: F,
    ) -> Result<(), ApiError>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Future<Output = Result<Usage, ApiError>> + Send + 'static,
    {
        let Some(most) = quota.of(quotas) else { return Ok(()) };
        let full = || exceeded(quota.name(), tenant, most);
        let reading = match self.counts.take(tenant, quota, most) {
            Verdict::HasRoom => return Ok(()),
            Verdict::IsFull => return Err(full()),
            Verdict::HadPlenty(reading) => {
                // Nobody waits for it.
                if let Ok(reading) = reading.try_lock_owned() {
                    let counts = self.counts.clone();
                    let tenant = tenant.clone();
                    tokio::spawn(async move {
                        let _reading = reading;
                        if let Err(error) = counts.refresh(&tenant, read()).await {
                            tracing::debug!(%tenant, %error, "cannot count what a tenant has; will retry");
                        }
                    });
                }
                return Ok(());
            }
            Verdict::Unknown(reading) => reading,
        };
        let _reading = reading.lock().await;
        // Another request may have read it meanwhile.
        let verdict = match self.counts.take(tenant, quota, most) {
            Verdict::Unknown(_) => {
                self.counts.refresh(tenant, read()).await?;
                self.counts.take(tenant, quota, most)
            }
            verdict => verdict,
        };
        if matches!(verdict, Verdict::IsFull) { Err(full()) } else { Ok(()) }
    }
}

impl Counts {
    /// Counts one more if there is room for it.
    fn take(&self, tenant: &Name, quota: Quota, most: u64) -> Verdict {
        let mut counts = self.0.lock();
        if counts.len() >= COUNTS_MAX && !counts.contains_key(tenant) {
            counts.clear();
        }
        let TenantCount { last, reading } = counts.entry(tenant.clone()).or_default();
        let Some((at, usage)) = last else { return Verdict::Unknown(reading.clone()) };
        let age = BootTime::now().since(*at);
        let used = quota.used(usage);
        let has_plenty = *used < most / 4;
        let is_fresh = age <= if has_plenty { FRESH_FOR_WITH_PLENTY } else { FRESH_FOR };
        if !is_fresh && (!has_plenty || age > OLD_AT_MOST) {
            return Verdict::Unknown(reading.clone());
        }
        if *used >= most {
            return Verdict::IsFull;
        }
        *used += 1;
        if is_fresh { Verdict::HasRoom } else { Verdict::HadPlenty(reading.clone()) }
    }

    async fn refresh(
        &self,
        tenant: &Name,
        read: impl Future<Output = Result<Usage, ApiError>>,
    ) -> Result<(), ApiError> {
        let at = BootTime::now();
        let usage = read.await?;
        self.0.lock().entry(tenant.clone()).or_default().last = Some((at, usage));
        Ok(())
    }
}

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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// However many requests come at once, the store is asked once, and no more are admitted than there is room for.
    #[tokio::test]
    async fn many_requests_at_once_are_counted_by_one_read() {
        let book = QuotaBook::default();
        let tenant = Name::new("acme").expect("a name");
        let quotas = Quotas { resources: Some(50), ..Quotas::default() };
        let reads = Arc::new(AtomicU64::new(0));
        let take = || {
            let reads = reads.clone();
            book.take_by(&tenant, Quota::Resources, quotas, async move || {
                reads.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                Ok(Usage { resources: 10, ..Usage::default() })
            })
        };
        let taken = futures_util::future::join_all((0..100).map(|_| take())).await;
        assert_eq!(taken.iter().filter(|taken| taken.is_ok()).count(), 40);
        assert_eq!(reads.load(Ordering::SeqCst), 1);
    }
}
