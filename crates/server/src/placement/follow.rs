//! Waiting for another plan: while any request waits, one task per tenant makes its plans as events arrive.

use std::sync::Arc;

use futures_util::FutureExt;
use solehold_core::key::Name;
use solehold_engine::{
    clock::BootTime,
    watch::{Filter, Watch},
};
use tokio::sync::watch;

use super::{
    book::{PlanBook, TenantPlans},
    planned::FRESH_FOR,
};

impl PlanBook {
    /// Counts the plans that are made of a tenant, which follow what happens for as long as the counter is kept.
    pub async fn follow(
        self: &Arc<Self>,
        tenant: &Name,
        stopping: watch::Receiver<bool>,
    ) -> watch::Receiver<u64> {
        let tenant_plans = self.tenant_plans(tenant).await;
        let made = tenant_plans.made.subscribe();
        let mut is_followed = tenant_plans.is_followed.lock();
        if !*is_followed {
            *is_followed = true;
            tokio::spawn(make_plans(self.clone(), stopping, tenant.clone(), tenant_plans.clone()));
        }
        drop(is_followed);
        made
    }
}

/// Makes plans for as long as anyone waits for them.
async fn make_plans(
    plans: Arc<PlanBook>,
    mut stopping: watch::Receiver<bool>,
    tenant: Name,
    tenant_plans: Arc<TenantPlans>,
) {
    let mut registry = plans.registry.subscribe();
    let mut events = None;
    loop {
        {
            let mut is_followed = tenant_plans.is_followed.lock();
            if tenant_plans.made.receiver_count() == 0 || *stopping.borrow_and_update() {
                *is_followed = false;
                return;
            }
        }
        if events.is_none() {
            let engine = &plans.engine;
            let filter = Filter { tenant: Some(tenant.clone()), ..Filter::default() };
            // Without a watch the plan is made once per second.
            events = engine.watch(Some(engine.cursor()), filter).await.ok();
        }
        registry.mark_unchanged();
        let planned = plans.plan(&tenant, None).await;
        tokio::select! {
            () = next(&mut events) => {}
            _ = registry.changed() => {}
            _ = stopping.changed() => {}
            () = tokio::time::sleep(FRESH_FOR) => {}
        }
        // What happens meanwhile is in the next plan, too. Counted from when the plan was made: one that is older than
        // that is replaced at once.
        let rest = match planned {
            Ok(planned) => planned.is_used_for(BootTime::now()),
            // Each waiter plans for itself next, and gets the error.
            Err(_) => FRESH_FOR,
        };
        tokio::time::sleep(rest).await;
        while next(&mut events).now_or_never().is_some() {}
    }
}

async fn next(events: &mut Option<Watch>) {
    let Some(watch) = events else { return std::future::pending().await };
    if watch.next().await.is_none() {
        *events = None;
    }
}
