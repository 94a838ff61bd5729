//! Why a resource is where it is, and what happens if its runner dies now.

use solehold_api::placement::{
    Explanation, Failures, IfHolderDies, Penalty, Settling, sentence, step_word, word,
};
use solehold_core::{
    key::{Name, ResourceKey},
    placement::{Placement, Presence, Snapshot, Step, plan},
};

use super::{book::in_background, planned::Planned};
use crate::error::ApiError;

/// How many runners that came back are shown.
const SETTLING_SHOWN_MAX: usize = 10;

/// Explains a resource. `holder` is who holds it, if it is not placed.
pub(crate) async fn explain(
    planned: &Planned,
    key: &ResourceKey,
    holder: Option<Name>,
    failures: Failures,
    penalties: Vec<Penalty>,
) -> Result<Explanation, ApiError> {
    let mut explanation = Explanation {
        tenant: key.tenant.to_string(),
        kind: key.kind.to_string(),
        key: key.key.to_string(),
        placed: false,
        holder: holder.map(String::from),
        target: None,
        step: step_word(Step::Nothing).to_owned(),
        reason: "not_placed".to_owned(),
        detail: "not placed: the resource is not declared, or it or its kind is excluded from placement"
            .to_owned(),
        if_holder_dies: None,
        failures: failures.failures,
        quarantined: failures.quarantined,
        last_failure: failures.last_failure,
        penalties,
        settle_ms: planned.snapshot.policy.settle_ms,
        settling: settling(&planned.snapshot),
        algorithm: planned.plan.algorithm,
        plan_revision: planned.revision,
    };
    if let Some(placement) = planned.plan.placement(key) {
        explanation.placed = true;
        explanation.holder = placement.holder.clone().map(String::from);
        explanation.target = placement.target.clone().map(String::from);
        explanation.step = step_word(placement.step).to_owned();
        explanation.reason = word(&placement.reason).to_owned();
        explanation.detail = detail(planned, placement);
        explanation.if_holder_dies = if_holder_dies(planned, placement).await?;
    }
    Ok(explanation)
}

fn detail(planned: &Planned, placement: &Placement) -> String {
    let loads = placement.target.iter().chain(&placement.holder).filter_map(|runner| load(planned, runner));
    let mut sentences: Vec<String> = loads.collect();
    sentences.sort();
    sentences.dedup();
    sentences.insert(0, sentence(placement));
    sentences.join("; ")
}

/// The runners that came back and get nothing for balance yet.
fn settling(snapshot: &Snapshot) -> Vec<Settling> {
    let settle_ms = snapshot.policy.settle_ms;
    let left = |presence| match presence {
        Presence::Here { up_ms, returned: true } if up_ms < settle_ms => Some(settle_ms - up_ms),
        Presence::Here { .. } | Presence::ByName | Presence::Away { .. } => None,
    };
    let runners = snapshot.runners.iter().filter_map(|runner| {
        Some(Settling { runner_id: runner.key.name.to_string(), for_ms: left(runner.presence)? })
    });
    runners.take(SETTLING_SHOWN_MAX).collect()
}

/// What a runner holds, and its share.
fn load(planned: &Planned, runner: &Name) -> Option<String> {
    let of = planned.snapshot.runners.iter().find(|of| of.key.name == *runner)?;
    let held = planned.snapshot.resources.iter();
    let held = held.filter(|resource| resource.held && resource.holder.as_ref() == Some(runner));
    let load: u32 = held.map(|resource| resource.weight).sum();
    let share = planned
        .plan
        .share(&of.key)
        .map(|share| format!(", and its fair share is {}.{}", share / 1_000, share % 1_000 / 100));
    Some(format!("{runner} holds {load} of {}{}", of.capacity, share.unwrap_or_default()))
}

/// Plans again without the holder.
async fn if_holder_dies(planned: &Planned, placement: &Placement) -> Result<Option<IfHolderDies>, ApiError> {
    let Some(holder) = &placement.holder else { return Ok(None) };
    let without = without(planned.snapshot.clone(), holder);
    let key = placement.key.clone();
    let then = in_background(move || plan(&without).placement(&key).cloned()).await?;
    let Some(then) = then else { return Ok(None) };
    let after_ms = planned.left_ms.get(&placement.key).copied().unwrap_or(0);
    Ok(Some(IfHolderDies {
        target: then.target.clone().map(String::from),
        after_ms,
        reason: word(&then.reason).to_owned(),
        detail: format!(
            "its lease runs out in {:.1} s unless it is renewed; then {}",
            after_ms as f64 / 1_000.0,
            sentence(&then)
        ),
    }))
}

/// The snapshot as it will be when a runner has died: long ago, so that nothing waits for it.
fn without(mut snapshot: Snapshot, holder: &Name) -> Snapshot {
    for runner in snapshot.runners.iter_mut().filter(|runner| runner.key.name == *holder) {
        runner.presence = Presence::Away { gone_ms: u64::MAX };
    }
    for resource in snapshot.resources.iter_mut().filter(|resource| resource.holder.as_ref() == Some(holder))
    {
        (resource.held, resource.pending) = (false, None);
    }
    snapshot
}
