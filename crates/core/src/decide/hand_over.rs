//! Decisions about hand-overs: a pending lease is made, or called off (rule 16). It becomes active in
//! [`Draft::activate`], with the end of the lease before it.

use super::{Draft, Stop};
use crate::{
    command::{Claim, HandOver, Target},
    event::{Ended, What},
    key::SessionId,
    lease::{Lease, Pending, Resource},
    limits,
    outcome::{Answer, Refusal, within},
    time::StoreTime,
};

impl Draft<'_> {
    pub(super) fn hand_over(&mut self, ask: &HandOver) -> Result<Answer, Stop> {
        let HandOver { key, lease, to, within_ms, attributes, budget, planned } = ask;
        within("within_ms", *within_ms, 1, limits::PENDING_MS_MAX)?;
        self.refuse_unless_in_scope(key)?;
        let mut resource = self.ledger.resource(key).ok_or_else(|| Refusal::NoResource(key.clone()))?.clone();
        self.settle(&mut resource)?;
        // A repeat, as the driver's own after a lost COMMIT, finds its own offer.
        if let Some(pending) = resource.pending.as_ref().filter(|p| p.id == *lease) {
            return Ok(Answer::Offered((**pending).clone()));
        }
        let last_token = resource.last_token;
        let held = resource.lease.as_ref().ok_or(Refusal::Lost { holder: None, last_token })?;
        if held.id == *lease {
            return Ok(Answer::Offered(accepted(held, *to, self.now())));
        }
        let session = self.able_session(*to, key)?;
        // A plan acts for the holder that it was made for, not for one that came after it; only its own key acts for
        // the next one.
        let is_planned = *planned == Some(held.token);
        let owner = if is_planned { session.by.as_ref() } else { held.by.as_ref() };
        self.refuse_unless_own(if is_planned { "session" } else { "lease" }, owner)?;
        self.refuse_if_at_capacity(session)?;
        if held.tenure.session() == Some(*to) {
            return Err(Refusal::AlreadyPending { holder: held.holder.clone() }.into());
        }
        if let Some(pending) = &resource.pending {
            return Err(Refusal::AlreadyPending { holder: pending.holder.clone() }.into());
        }
        let moves = self.ledger.moves(&key.tenant, &key.kind);
        if let Some(budget) = budget.filter(|budget| moves >= *budget) {
            return Err(Refusal::OverBudget { budget, kind: key.kind.clone() }.into());
        }
        let pending = Pending {
            id: *lease,
            holder: session.holder.name.clone(),
            session: *to,
            asked_at: self.now(),
            deadline: self.now().plus_ms(*within_ms),
            attributes: attributes.clone(),
        };
        self.emit(&mut resource, What::Pending(pending.clone()));
        Ok(Answer::Offered(pending))
    }

    /// The resource whose pending lease is named by its id.
    pub(super) fn claimed_pending(&self, claim: &Claim) -> Result<Option<Resource>, Refusal> {
        let Target::Lease { id, .. } = claim.target else { return Ok(None) };
        let (resource, _) = self.target(&claim.target)?;
        Ok(Some(resource).filter(|r| r.pending.as_ref().is_some_and(|p| p.id == id)).cloned())
    }

    /// Ends a pending lease before its time: either side may do so. The present holder keeps the resource.
    pub(super) fn call_off(&mut self, mut resource: Resource) -> Result<Answer, Stop> {
        self.settle(&mut resource)?;
        let last_token = resource.last_token;
        let Some(pending) = resource.pending.clone() else {
            return Err(Refusal::Lost { holder: None, last_token }.into());
        };
        let next = self.ledger.session(pending.session).and_then(|session| session.by.as_ref());
        if self.refuse_unless_own("session", next).is_err() {
            let present = resource.lease.as_ref().and_then(|lease| lease.by.as_ref());
            self.refuse_unless_own("lease", present.or(next))?;
        }
        self.emit(&mut resource, What::Released(Ended::of_pending(&pending, "its hand-over was called off")));
        self.activate(&mut resource)?;
        Ok(Answer::Released(pending.id))
    }
}

/// An offer that has become a lease already.
fn accepted(lease: &Lease, to: SessionId, now: StoreTime) -> Pending {
    Pending {
        id: lease.id,
        holder: lease.holder.clone(),
        session: to,
        asked_at: lease.acquired_at,
        deadline: now,
        attributes: lease.attributes.clone(),
    }
}
