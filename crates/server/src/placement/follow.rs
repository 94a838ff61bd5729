//! Waiting for another plan: as long as someone does, one task makes the tenant's plans as its events come.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt;
use solehold_core::key::{HolderKey, Name};
use solehold_engine::watch::{Filter, Watch};
use tokio::sync::watch;

use super::book::{FRESH_FOR, KnownRunner, Page, PlanBook, Planned};
use crate::{
    Context,
    http::{ApiError, about},
};

impl Context {
    /// The present plan, or the first within `wait` that has something else for a runner than the version that it
    /// knows.
    pub(crate) async fn other_plan(
        &self,
        runner: &HolderKey,
        asker: Option<&KnownRunner>,
        known: Option<&str>,
        wait: Duration,
    ) -> Result<Arc<Planned>, ApiError> {
        let is_known = |planned: &Planned| known == Some(planned.version(&runner.name).as_str());
        let planned = self.plan(&runner.tenant, asker).await?;
        if wait.is_zero() || !is_known(&planned) {
            return Ok(planned);
        }
        let (mut made, mut stopping) = (self.follow_plans(&runner.tenant).await, self.stopping());
        let other = async {
            loop {
                made.mark_unchanged();
                let planned = self.plan(&runner.tenant, None).await?;
                if !is_known(&planned) || made.changed().await.is_err() {
                    return Ok(planned);
                }
            }
        };
        let waiting = async {
            tokio::select! {
                other = tokio::time::timeout(wait, other) => other.unwrap_or(Ok(planned)),
                // Ask another one.
                _ = stopping.wait_for(|stopping| *stopping) => Ok(planned),
            }
        };
        about::waiting(wait, waiting).await
    }
}

impl PlanBook {
    /// Counts the plans that are made of a tenant, which follow what happens for as long as the counter is kept.
    pub async fn follow(&self, context: &Context, tenant: &Name) -> watch::Receiver<u64> {
        let page = self.page(tenant).await;
        let made = page.made.subscribe();
        if !std::mem::replace(&mut *page.is_followed.lock(), true) {
            tokio::spawn(make_plans(context.clone(), self.registry(), tenant.clone(), page.clone()));
        }
        made
    }
}

/// Makes plans for as long as anyone waits for them.
async fn make_plans(context: Context, mut registry: watch::Receiver<u64>, tenant: Name, page: Arc<Page>) {
    let mut stopping = context.stopping();
    let mut events = None;
    loop {
        {
            let mut is_followed = page.is_followed.lock();
            if page.made.receiver_count() == 0 || *stopping.borrow_and_update() {
                *is_followed = false;
                return;
            }
        }
        if events.is_none() {
            let engine = context.engine();
            let filter = Filter { tenant: Some(tenant.clone()), ..Filter::default() };
            // Without them the plan is made once a second.
            events = engine.watch(Some(engine.cursor()), filter).await.ok();
        }
        registry.mark_unchanged();
        let planned = context.plan(&tenant, None).await;
        tokio::select! {
            () = next(&mut events) => {}
            _ = registry.changed() => {}
            _ = stopping.changed() => {}
            () = tokio::time::sleep(FRESH_FOR) => {}
        }
        // What happens meanwhile is in the next plan, too. Counted from when the plan was made: one that is older than
        // that is replaced at once.
        let rest = match planned {
            Ok(planned) => planned.is_used_for(),
            // Those who wait ask for themselves, and are told why.
            Err(_) => FRESH_FOR,
        };
        tokio::time::sleep(rest).await;
        while next(&mut events).now_or_never().is_some() {}
    }
}

/// Waits for something to happen.
async fn next(events: &mut Option<Watch>) {
    let Some(watch) = events else { return std::future::pending().await };
    if watch.next().await.is_none() {
        *events = None;
    }
}
