//! Hand-overs: a held resource is offered to its next holder, who has it in the moment in which the present one
//! releases it (rule 16).

use axum::http::StatusCode;
use solehold_api::{
    hand_over::{NextHolder, OfferResource, OfferedLease},
    paths,
    problem::{ErrorCode, Problem},
};
use solehold_core::{
    command::{Claim, Command, HandOver, Target},
    key::{HolderKey, LeaseId, Name, ResourceKey, SessionId},
    outcome::{Answer, LeaseView, PendingView, Refusal},
    time::Token,
};

use super::{resource_view::ResourceView, resources::ResourcePath};
use crate::{
    context::commands::new_lease_id,
    error::unexpected,
    http::{ApiError, At, Body, Caller, Context, Json, Reply, StatusReply, TenantQuery, role},
    state::audit::Deed,
};

routes!["resources": get_hand_over, hand_over_resource, call_off_hand_over];

/// Offers a held resource to its next holder. Both sides are notified at once; when the present holder releases the
/// resource, the next one has it in the same moment, with a new token. If the present holder does not, the offer
/// lapses.
#[utoipa::path(
    post, path = paths::RESOURCE_HANDOVER, params(ResourcePath, TenantQuery), request_body = OfferResource,
    responses(
        (status = 201, description = "It is on offer", body = OfferedLease),
        (status = 404, description = "There is no such resource, next holder or session"),
        (status = 409, description = "Nobody holds it, it is on its way to another, the next holder has no room, or the budget is spent"),
    )
)]
async fn hand_over_resource(
    caller: Caller<role::Runner>,
    at: At<ResourcePath>,
    Body(body): Body<OfferResource>,
) -> StatusReply<OfferedLease> {
    let context = caller.context();
    let key = at.key(&caller)?;
    let terms = body.terms()?;
    if body.force {
        caller.must_meet::<role::Admin>()?;
    }
    let present = ResourceView::read(context, &key).await?.and_then(|seen| seen.live().cloned());
    let to = session_of(context, &key.tenant, terms.to).await?;
    let lease = body.request_id.map_or_else(|| new_lease_id(&key), |id| LeaseId::new(&key, id));
    let ask = HandOver {
        attributes: terms.attributes,
        budget: body.budget,
        planned: planned(context, &key, present.as_ref(), to).await?,
        ..HandOver::new(key.clone(), lease, to, terms.within_ms)
    };
    // A runner that takes over shows its own session.
    let is_operator = body.to.is_some() && caller.is_admin();
    let acting = context.audited_if(is_operator, deed(&key, &body, terms.within_ms));
    let pending = match acting.execute(Command::HandOver(ask)).await? {
        Answer::Offered(pending) => pending,
        other => return Err(unexpected(&other)),
    };
    if let Some(token) = present.as_ref().map(|lease| lease.lease.token).filter(|_| body.force) {
        let target = Target::Resource(key.clone());
        let claim = Claim { target, token: Some(token), session: None, holder: None };
        // Refused if the present holder was faster: then there is nothing left to revoke.
        let _ = context.submit(Command::Revoke { claim, fenced: body.fenced, reason: body.reason }).await?;
    }
    let now = pending.asked_at;
    let view = PendingView { key, pending, present: present.map(|lease| lease.lease.holder) };
    Ok((StatusCode::CREATED, Json(OfferedLease::of(&view, now))))
}

fn deed(key: &ResourceKey, body: &OfferResource, within_ms: u64) -> Deed {
    let deed = Deed::to_resource("hand_over", key).with_some("to", body.to.as_ref());
    let deed = deed.with("within_ms", within_ms).with_some("force", body.force.then_some(true));
    let deed = deed.with_some("fenced", body.force.then_some(body.fenced));
    deed.with_some("reason", body.reason.as_ref())
}

/// The token of the present lease, if a plan must speak for its holder and does: its key is not the caller's, and
/// placement says that the resource should move to that session now.
async fn planned(
    context: &Context,
    key: &ResourceKey,
    present: Option<&LeaseView>,
    to: SessionId,
) -> Result<Option<Token>, ApiError> {
    let Some(LeaseView { lease, .. }) = present else { return Ok(None) };
    if context.caller().actor().may_act_for(lease.by.as_ref()) {
        return Ok(None);
    }
    let plan = context.plans.plan(&key.tenant, None).await?;
    Ok(plan.speaks_for(key, lease, to))
}

async fn session_of(context: &Context, tenant: &Name, to: NextHolder) -> Result<SessionId, ApiError> {
    let name = match to {
        NextHolder::Session(id) => return Ok(id),
        NextHolder::Named(name) => name,
    };
    let key = HolderKey { tenant: tenant.clone(), name };
    let found = context.load_holder(&key).await?;
    let session = found.state.holder(&key).and_then(|holder| holder.session);
    let nobody = || {
        let detail = format!("{} has no session, so it cannot take over a resource", key.name);
        Problem::new(ErrorCode::NoSession, detail)
    };
    Ok(session.ok_or_else(nobody)?)
}

async fn find(context: &Context, key: &ResourceKey) -> Result<OfferedLease, ApiError> {
    let seen = ResourceView::read(context, key).await?;
    let seen = seen.ok_or_else(|| Refusal::NoResource(key.clone()))?;
    let nothing = || Problem::new(ErrorCode::NotFound, format!("{key} is not being handed over"));
    let view = PendingView::of(&seen.resource, seen.now).ok_or_else(nothing)?;
    Ok(OfferedLease::of(&view, seen.now))
}

/// Returns the pending lease on a resource.
#[utoipa::path(
    get, path = paths::RESOURCE_HANDOVER, params(ResourcePath, TenantQuery),
    responses(
        (status = 200, description = "The pending lease", body = OfferedLease),
        (status = 404, description = "There is no such resource, or it is not being handed over"),
    )
)]
async fn get_hand_over(caller: Caller<role::Reader>, at: At<ResourcePath>) -> Reply<OfferedLease> {
    let key = at.key(&caller)?;
    Ok(Json(find(caller.context(), &key).await?))
}

/// Calls a hand-over off: the present holder keeps the resource. Either side may do so.
#[utoipa::path(
    delete, path = paths::RESOURCE_HANDOVER, params(ResourcePath, TenantQuery),
    responses(
        (status = 204, description = "It was called off"),
        (status = 404, description = "There is no such resource, or it is not being handed over"),
    )
)]
async fn call_off_hand_over(
    caller: Caller<role::Runner>,
    at: At<ResourcePath>,
) -> Result<StatusCode, ApiError> {
    let context = caller.context();
    let key = at.key(&caller)?;
    let found = find(context, &key).await?;
    let deed = Deed::to_resource("call_off_hand_over", &key).with("to", found.holder);
    let target = Target::Lease { tenant: key.tenant, id: LeaseId(found.lease_id) };
    let claim = Claim { target, token: None, session: None, holder: None };
    context.audited_if(caller.is_admin(), deed).release(claim, None).await?;
    Ok(StatusCode::NO_CONTENT)
}
