//! Many leases in one request. Items are decided one by one, in order; the response is 200 with one result for each.

use solehold_api::{
    batch::{AcquireBatch, Batch, BatchItem, BatchResults, ReleaseItem, RenewItem},
    paths,
    resources::GrantBody,
    terms::AcquireTerms,
};
use solehold_core::{
    command::{Claim, Command, Target, Undeclared},
    key::ResourceKey,
    outcome::{Answer, Outcome, Refusal},
};
use solehold_engine::EngineError;

use crate::{
    context::{commands::new_lease_id, tenants::Named},
    error::unexpected,
    http::{ApiError, Body, Caller, Context, Json, Params, Reply, TenantQuery, role},
};

/// For how many refused items of a batch the response explains how their leases ended: each reads the history.
const EXPLAINED_MAX: usize = 100;

routes!["batch": batch_acquire, batch_renew, batch_release];

/// Acquires many resources. If an item repeats an earlier one, the earlier one gets it. With `all_or_none` all of them
/// are acquired, or none.
#[utoipa::path(
    post, path = paths::BATCH_ACQUIRE, params(TenantQuery), request_body = AcquireBatch,
    responses(
        (status = 200, description = "The result of each item, in order", body = BatchResults),
        (status = 400, description = "An item is wrong, or there are too many items; nothing was done"),
        (status = 403, description = "The role, the tenant or the limits of the key do not allow it, it belongs to another key, or the tenant's quota is used up; nothing was done"),
        (status = 409, description = "With `all_or_none`: one of them, which is named, cannot be acquired; nothing was done"),
    )
)]
async fn batch_acquire(
    caller: Caller<role::Runner>,
    Params(query): Params<TenantQuery>,
    Body(batch): Body<AcquireBatch>,
) -> Reply<BatchResults> {
    let context = caller.context();
    let tenant = caller.tenant(query.tenant.as_deref())?;
    let asked = batch.terms(&tenant)?;
    for (key, _) in &asked {
        context.check_resource_quota(key).await?;
    }
    let acquire = |(key, asked): (ResourceKey, AcquireTerms)| {
        let lease = new_lease_id(&key);
        asked.acquire(key, lease, Undeclared::Allow)
    };
    let asks = asked.into_iter().map(acquire);
    if !batch.all_or_none || batch.items.is_empty() {
        return results(context, asks.map(Command::Acquire).collect()).await;
    }
    let grants = context.acquire_all(asks.collect()).await?;
    let slack_ms = context.engine().clock_slack_ms();
    let granted = |grant| BatchItem::Granted { lease: Box::new(GrantBody::of(grant, slack_ms)) };
    Ok(Json(BatchResults { results: grants.iter().map(granted).collect() }))
}

/// Renews many leases.
#[utoipa::path(
    post, path = paths::BATCH_RENEW, params(TenantQuery), request_body = Batch<RenewItem>,
    responses(
        (status = 200, description = "The result of each item, in order", body = BatchResults),
        (status = 400, description = "An item is wrong, or there are too many items; nothing was done"),
    )
)]
async fn batch_renew(
    caller: Caller<role::Runner>,
    Params(query): Params<TenantQuery>,
    Body(batch): Body<Batch<RenewItem>>,
) -> Reply<BatchResults> {
    let tenant = caller.tenant(query.tenant.as_deref())?;
    let commands = batch.checked(|item| {
        let (claim, ttl_ms) = item.claim(&tenant)?;
        Ok(Command::Renew { claim, ttl_ms, stats: item.stats()? })
    })?;
    results(caller.context(), in_their_tenants(caller.context(), &query, commands).await?).await
}

/// Releases many leases.
#[utoipa::path(
    post, path = paths::BATCH_RELEASE, params(TenantQuery), request_body = Batch<ReleaseItem>,
    responses(
        (status = 200, description = "The result of each item, in order", body = BatchResults),
        (status = 400, description = "An item is wrong, or there are too many items; nothing was done"),
    )
)]
async fn batch_release(
    caller: Caller<role::Runner>,
    Params(query): Params<TenantQuery>,
    Body(batch): Body<Batch<ReleaseItem>>,
) -> Reply<BatchResults> {
    let tenant = caller.tenant(query.tenant.as_deref())?;
    let commands = batch.checked(|item| {
        let (claim, state) = item.claim(&tenant)?;
        Ok(Command::Release { claim, state })
    })?;
    results(caller.context(), in_their_tenants(caller.context(), &query, commands).await?).await
}

/// A lease id also identifies its tenant, for a caller that has none and names none.
async fn in_their_tenants(
    context: &Context,
    query: &TenantQuery,
    mut commands: Vec<Command>,
) -> Result<Vec<Command>, ApiError> {
    for command in &mut commands {
        if let Command::Renew { claim, .. } | Command::Release { claim, .. } = command
            && let Target::Lease { tenant, id } = &mut claim.target
        {
            *tenant = context.tenant_of(query.tenant.as_deref(), Named::Lease(*id)).await?;
        }
    }
    Ok(commands)
}

async fn results(context: &Context, commands: Vec<Command>) -> Reply<BatchResults> {
    let claims: Vec<_> = commands.iter().map(claimed).collect();
    let outcomes = context.submit_all(commands).await;
    let slack_ms = context.engine().clock_slack_ms();
    let mut results = Vec::with_capacity(outcomes.len());
    let mut explained = 0;
    for (outcome, claimed) in outcomes.into_iter().zip(claims) {
        let result = match (outcome, claimed) {
            (Ok(Err(refusal)), Some(claimed)) if explained < EXPLAINED_MAX => {
                explained += 1;
                refused(context, claimed, refusal).await
            }
            (outcome, _) => result(outcome, slack_ms),
        };
        results.push(result);
    }
    Ok(Json(BatchResults { results }))
}

/// The lease that a command is about, and whether the command is a release, and then whether that leaves a state.
fn claimed(command: &Command) -> Option<(Claim, Option<bool>)> {
    match command {
        Command::Renew { claim, .. } => Some((claim.clone(), None)),
        Command::Release { claim, state } => Some((claim.clone(), Some(state.is_some()))),
        _ => None,
    }
}

async fn refused(context: &Context, (claim, released): (Claim, Option<bool>), refusal: Refusal) -> BatchItem {
    let failure = match released {
        Some(has_state) => match context.released_late(&claim, has_state, refusal).await {
            Ok(id) => return BatchItem::Released { lease_id: id.0 },
            Err(failure) => failure,
        },
        None => context.explained(&claim, refusal).await,
    };
    BatchItem::Refused { problem: failure.0 }
}

fn result(outcome: Result<Outcome, EngineError>, slack_ms: u64) -> BatchItem {
    match outcome {
        Ok(Ok(Answer::Granted(grant))) => {
            BatchItem::Granted { lease: Box::new(GrantBody::of(&grant, slack_ms)) }
        }
        Ok(Ok(Answer::Renewed(grant))) => {
            BatchItem::Renewed { lease: Box::new(GrantBody::of(&grant, slack_ms)) }
        }
        Ok(Ok(Answer::Released(id))) => BatchItem::Released { lease_id: id.0 },
        Ok(Ok(other)) => BatchItem::Failed { problem: unexpected(&other).0 },
        Ok(Err(refusal)) => BatchItem::Refused { problem: ApiError::from(refusal).0 },
        Err(error) => BatchItem::Failed { problem: ApiError::from(error).0 },
    }
}
