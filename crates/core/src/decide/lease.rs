//! Decisions about leases: acquire, renew, release, revoke, hand over, write state, expire.

use std::collections::BTreeSet;

use super::{Draft, Stop, decide};
use crate::{
    apply::{apply, to_lease},
    call::Call,
    command::{Acquire, AskedTenure, Claim, Command, StateWrite, Target, Undeclared},
    event::{Change, Ended, What},
    key::{Document, LeaseId, Name, RequestKey, ResourceKey, SessionId},
    lease::{Lease, Resource, StateDocument, Tenure},
    limits,
    outcome::{Answer, Grant, LeaseView, Refusal, within},
    request::{Requester, SpentRequest},
    session::{Session, SessionOver, Standing},
    time::StoreTime,
};

impl Draft<'_> {
    pub(super) fn acquire(&mut self, ask: &Acquire) -> Result<Answer, Stop> {
        if let AskedTenure::Own { ttl_ms } = ask.tenure {
            within("ttl_ms", ttl_ms, limits::TTL_MS_MIN, limits::TTL_MS_MAX)?;
        }
        if let Some(slots) = ask.slots {
            within("slots", slots.into(), 1, limits::SLOTS_MAX.into())?;
        }
        self.refuse_unless_in_scope(&ask.key)?;
        if let Some(wait) = &ask.wait {
            self.check_wait(wait)?;
        }
        let mut resource = self.asked_for(ask)?;
        if let Some(again) = self.repeated(ask, &resource)? {
            return Ok(again);
        }
        let tenure = self.tenure(ask)?;
        let before = resource.lease.clone();
        self.settle(&mut resource)?;
        // It may have been this one's turn in line.
        if !self.changes.is_empty()
            && let Some(again) = self.repeated(ask, &resource)?
        {
            return Ok(again);
        }
        match (self.refuse_unless_free(&resource, ask.slots), ask.wait) {
            (Ok(()), _) => {}
            (Err(Stop::Refused(_)), Some(wait)) => return self.wait(ask, wait, &mut resource),
            (Err(stop), _) => return Err(stop),
        }
        if ask.slots.is_some() && !self.changes.is_empty() {
            // The same session or holder may just have been given another slot, by its place in line.
            self.tenure(ask)?;
        }
        self.refuse_request_of_another(ask, &resource)?;
        if let Some(before) = before.filter(|l| l.holder != ask.holder) {
            let mut ended = Ended::of(&before);
            ended.reason = Some(format!("taken over by {}", ask.holder));
            self.emit(&mut resource, What::Stolen(ended));
        }
        let by = self.by.key().cloned();
        let owner = self.owner_of(&tenure, by.as_ref());
        let attributes = ask.attributes.clone();
        let mut lease = Lease::new(ask.lease, ask.holder.clone(), owner, tenure, attributes, self.now());
        lease.request = ask.request.clone();
        lease.slots = ask.slots;
        if ask.slots.is_some() {
            let slot = self.grant_slot(&mut resource, lease, by)?;
            return Ok(Answer::Granted(self.view(&slot, false)?));
        }
        self.grant(&mut resource, lease, by);
        Ok(Answer::Granted(self.view(&resource, false)?))
    }

    /// Decides one acquire after the other, each on what the ones before have left, and refuses all if one is refused.
    pub(super) fn acquire_all(&mut self, asks: &[Acquire]) -> Result<Answer, Stop> {
        within("resources", asks.len() as u64, 1, limits::ACQUIRED_TOGETHER_MAX as u64)?;
        let mut after = self.ledger.clone();
        let mut moment = self.moment;
        let mut changes = Vec::new();
        let mut grants = Vec::new();
        for ask in asks {
            let ask = Acquire { wait: None, ..ask.clone() };
            let key = ask.key.clone();
            let call = Call::new(Command::Acquire(ask), self.by.clone());
            let decision = decide(&after, &call, moment)?;
            match decision.outcome {
                Ok(Answer::Granted(grant)) => grants.push(grant),
                Ok(other) => unreachable!("an acquire is answered with {other:?}"),
                Err(why) => return Err(Refusal::NotAll { key, why: Box::new(why) }.into()),
            }
            decision.changes.iter().for_each(|change| apply(&mut after, change));
            changes.extend(decision.changes);
            moment = decision.moment;
        }
        self.changes = changes;
        self.moment = moment;
        Ok(Answer::GrantedAll(grants))
    }

    fn asked_for(&self, ask: &Acquire) -> Result<Resource, Refusal> {
        match self.ledger.resource(&ask.key) {
            Some(resource) if resource.declared.is_some() => Ok(resource.clone()),
            found if ask.undeclared == Undeclared::Allow => {
                Ok(found.cloned().unwrap_or_else(|| Resource::new(ask.key.clone(), self.now())))
            }
            _ => Err(Refusal::NoResource(ask.key.clone())),
        }
    }

    /// The earlier grant of the same request; refused if that grant is over (rule 7). The fresh lease id that a driver
    /// puts into an acquire makes the driver's own retry after a lost COMMIT a repeat, too.
    pub(super) fn repeated(&self, ask: &Acquire, resource: &Resource) -> Result<Option<Answer>, Stop> {
        let spent = |request: &Name| Err(Refusal::RequestSpent(request.clone()).into());
        if let Some(request) = &ask.request {
            let resource = ask.key.clone();
            let holder = ask.holder.clone();
            let key = RequestKey { resource, holder, request: request.clone() };
            let is_spent = self.ledger.spent(&key).is_some_and(|spent| spent.until > self.now());
            // By the end of its lease just now, which was another key's.
            let is_spent_now =
                |change: &Change| matches!(change, Change::RequestSpent { request, .. } if *request == key);
            if is_spent || self.changes.iter().any(is_spent_now) {
                return spent(request);
            }
        }
        let is_asked_for =
            |l: &Lease| ask.request.is_some() && l.request == ask.request && l.holder == ask.holder;
        let is_own = |l: &Lease| self.by.may_act_for(l.by.as_ref());
        let is_got = |l: &Lease| (l.id == ask.lease || is_asked_for(l)) && is_own(l);
        let got = self.with_lease(resource, is_got)?;
        let Some((row, lease)) = got.as_ref().and_then(|row| Some((row, row.lease.as_ref()?))) else {
            return Ok(None);
        };
        if self.now() >= self.ledger.deadline_of(lease)? {
            return ask.request.as_ref().map_or(Ok(None), spent);
        }
        // A lease of a superseded session cannot be renewed, so it is no answer to the holder's new session, whose
        // request is spent, nor to the old session, which is told that it is over.
        let session = lease.tenure.session().and_then(|id| self.ledger.session(id));
        if session.is_some_and(|s| s.standing == Standing::Superseded) {
            let is_another = |id| ask.tenure != AskedTenure::Session(id);
            let request = ask.request.as_ref().filter(|_| lease.tenure.session().is_some_and(is_another));
            return request.map_or(Ok(None), spent);
        }
        Ok(Some(Answer::Granted(self.view(row, true)?)))
    }

    fn tenure(&self, ask: &Acquire) -> Result<Tenure, Stop> {
        let id = match ask.tenure {
            AskedTenure::Own { ttl_ms } => {
                self.refuse_if_holding_enough(ask)?;
                return Ok(Tenure::Own { ttl_ms, deadline: self.now().plus_ms(ttl_ms) });
            }
            AskedTenure::Session(id) => id,
        };
        let session = self.able_session(id, &ask.key)?;
        if session.holder.name != ask.holder {
            return Err(Refusal::NotYourSession { session: id, holder: ask.holder.clone() }.into());
        }
        self.refuse_unless_own("session", session.by.as_ref())?;
        self.refuse_if_at_capacity(session)?;
        Ok(Tenure::Session(id))
    }

    /// Refuses if a holder has as many live leases as the command allows, in whatever session.
    fn refuse_if_holding_enough(&self, ask: &Acquire) -> Result<(), Stop> {
        let Some(capacity) = ask.holds_at_most else { return Ok(()) };
        let holder = ask.holder_key();
        let changed = self.rows.keys().filter(|key| key.tenant == holder.tenant);
        let keys: BTreeSet<&ResourceKey> = self.ledger.held_by(&holder).chain(changed).collect();
        let mut held = 0;
        for lease in keys.into_iter().filter_map(|key| self.row(key)?.lease.as_ref()) {
            held += u32::from(lease.holder == holder.name && self.now() < self.ledger.deadline_of(lease)?);
        }
        if held >= capacity {
            return Err(Refusal::HolderAtCapacity { holder: ask.holder.clone(), capacity }.into());
        }
        Ok(())
    }

    /// A session of the resource's tenant that may acquire.
    pub(super) fn able_session(&self, id: SessionId, key: &ResourceKey) -> Result<&Session, Refusal> {
        let session = self.known_session(&key.tenant, id)?;
        match session.standing {
            Standing::Current => Ok(session),
            Standing::Draining => Err(Refusal::Draining(session.holder.name.clone())),
            Standing::Superseded => Err(Refusal::NoSession { session: id, why: SessionOver::Superseded }),
        }
    }

    fn refuse_unless_free(&self, resource: &Resource, slots: Option<u32>) -> Result<(), Stop> {
        let now = self.now();
        let token = resource.last_token;
        let held_back =
            |until: StoreTime| Refusal::HeldBack { token, retry_after_ms: until.ms_after(now).max(1) };
        if let Some(lease) = &resource.lease {
            let deadline = self.ledger.deadline_of(lease)?;
            if now >= deadline {
                return Err(held_back(deadline.plus_ms(resource.lock_delay_ms())).into());
            }
            let holder = lease.holder.clone();
            let retry_after_ms = deadline.ms_after(now);
            return Err(Refusal::Held { holder, token: lease.token, retry_after_ms }.into());
        }
        match resource.held_back_until.filter(|until| *until > now) {
            Some(until) => Err(held_back(until).into()),
            None => self.refuse_unless_shareable(resource, slots),
        }
    }

    pub(super) fn renew(
        &mut self,
        claim: &Claim,
        ttl_ms: Option<u64>,
        stats: Option<&Document>,
    ) -> Result<Answer, Stop> {
        if let Some(ttl_ms) = ttl_ms {
            within("ttl_ms", ttl_ms, limits::TTL_MS_MIN, limits::TTL_MS_MAX)?;
        }
        let at = self.now();
        let mut resource = self.claimed(claim)?.clone();
        let Some(lease) = &mut resource.lease else { return Err(lost(&resource).into()) };
        // A name alone does not prove that the waiter knows of the grant.
        let confirm_by = lease.confirm_by.filter(|_| proven(claim).is_err());
        let is_confirmed = confirm_by != lease.confirm_by;
        let mut session = None;
        match &mut lease.tenure {
            Tenure::Own { ttl_ms: kept, deadline } => {
                *kept = ttl_ms.unwrap_or(*kept);
                *deadline = (*deadline).max(at.plus_ms(*kept));
            }
            Tenure::Session(id) => {
                session = Some(self.renew_session(&resource.key.tenant, *id, None, None)?)
            }
        }
        if session.is_none() || stats.is_some() || is_confirmed {
            let key = resource.key.clone();
            let tenure = lease.tenure;
            let stats = stats.cloned();
            let change = Change::LeaseRenewed { key, at, tenure, stats, confirm_by };
            to_lease(lease, &change);
            self.changes.push(change);
        }
        let mut grant = self.view(&resource, false)?;
        if let Some(session) = session {
            grant.lease.deadline = grant.lease.lease.dead_from(session.deadline);
            grant.lease.renewed_at = Some(at);
        }
        Ok(Answer::Renewed(grant))
    }

    pub(super) fn release(&mut self, claim: &Claim, state: Option<&StateWrite>) -> Result<Answer, Stop> {
        if let Some(pending) = self.claimed_pending(claim)? {
            return self.call_off(pending);
        }
        if state.is_some() {
            proven(claim)?;
        }
        let mut resource = self.claimed(claim)?.clone();
        let Some(id) = resource.lease.as_ref().map(|l| l.id) else { return Err(lost(&resource).into()) };
        // The lease is live: only a pending one can have lapsed, and must not be granted then.
        self.settle(&mut resource)?;
        if let Some(write) = state {
            self.write(&mut resource, write)?;
        }
        self.end(&mut resource, What::Released, |_| ());
        self.activate(&mut resource)?;
        Ok(Answer::Released(id))
    }

    pub(super) fn revoke(
        &mut self,
        claim: &Claim,
        fenced: bool,
        reason: Option<String>,
    ) -> Result<Answer, Stop> {
        let (resource, _) = self.target(&claim.target)?;
        let mut resource = self.claimed_row(resource, claim)?.clone();
        if fenced && names_last_grant(&resource, claim) && self.lift_hold_back(&mut resource, &reason)? {
            self.activate(&mut resource)?;
            return Ok(Answer::HoldBackLifted);
        }
        self.matches(&resource, claim)?;
        self.settle(&mut resource)?;
        let lease = self.end_by_force(&mut resource, fenced, reason)?;
        self.activate(&mut resource)?;
        let held_back_ms = resource.held_back_until.map_or(0, |until| until.ms_after(self.now()));
        Ok(Answer::Revoked { lease, held_back_ms })
    }

    /// Ends a live lease for a caller other than its holder: the resource is held back until the old deadline and
    /// lock-delay have passed, since the holder may work until then (rule 12).
    pub(super) fn end_by_force(
        &mut self,
        resource: &mut Resource,
        fenced: bool,
        reason: Option<String>,
    ) -> Result<LeaseId, Stop> {
        let Some(lease) = &resource.lease else { return Err(lost(resource).into()) };
        let id = lease.id;
        let free_at = self.free_at(resource)?;
        let held_back_until = Some(free_at).filter(|at| !fenced && *at > self.now());
        self.end(resource, What::Revoked, |e| {
            e.held_back_until = held_back_until;
            e.reason = reason;
        });
        Ok(id)
    }

    /// Ends the hold-back of a resource that nobody holds, for someone who says that the old holder is fenced off (rule
    /// 12). False if it is held, or not held back.
    pub(super) fn lift_hold_back(
        &mut self,
        resource: &mut Resource,
        reason: &Option<String>,
    ) -> Result<bool, Stop> {
        let is_held = match &resource.lease {
            Some(lease) => self.now() < self.ledger.deadline_of(lease)?,
            None => false,
        };
        if is_held || self.free_at(resource)? <= self.now() {
            return Ok(false);
        }
        self.settle_wholly(resource)?;
        self.refuse_unless_own("hold-back", resource.held_back_by.as_ref())?;
        let token = resource.last_token;
        let reason = reason.clone();
        self.emit(resource, What::HoldBackLifted { token, reason });
        Ok(true)
    }

    pub(super) fn cancel_request(&mut self, request: &RequestKey) -> Result<Answer, Stop> {
        self.refuse_unless_in_scope(&request.resource)?;
        let is_its = |l: &Lease| l.request.as_ref() == Some(&request.request) && l.holder == request.holder;
        let got_it = match self.ledger.resource(&request.resource) {
            Some(resource) => self.with_lease(resource, is_its)?,
            None => None,
        };
        let Some(mut resource) = got_it else {
            let Some(waiter) = self.ledger.waiter_of_request(request) else {
                return self.cancel_unseen(request);
            };
            self.refuse_unless_own("place in line", waiter.by.as_ref())?;
            self.spend(request.clone(), waiter.by.clone(), false);
            self.leave_line(waiter)?;
            self.serve_line(&request.resource)?;
            return Ok(Answer::Spent);
        };
        self.refuse_unless_own("lease", resource.lease.as_ref().and_then(|l| l.by.as_ref()))?;
        self.settle_wholly(&mut resource)?;
        // If it had expired, the next in line holds the resource now, perhaps by a request of the same name.
        if resource.lease.as_ref().is_some_and(is_its) {
            self.end(&mut resource, What::Released, |e| {
                e.reason = Some("its request was cancelled".to_owned())
            });
            self.activate(&mut resource)?;
        }
        Ok(Answer::Spent)
    }

    /// Cancels a request that has neither a lease nor a place in line. Anyone can make up such requests, so they count
    /// for the key that cancels them, and displace nothing (rule 7).
    fn cancel_unseen(&mut self, request: &RequestKey) -> Result<Answer, Stop> {
        let now = self.now();
        let by = self.by.key().cloned();
        let counts = |(name, spent): &(&Name, &SpentRequest)| {
            spent.cancelled && spent.by == by && spent.until > now && **name != request.request
        };
        let requester = Requester::of(request);
        let of_holder = self.ledger.each_spent_by(&requester);
        let until: Vec<_> = of_holder.filter(counts).map(|(_, spent)| spent.until).collect();
        if until.len() >= limits::CANCELLED_REQUESTS_MAX {
            let retry_after_ms = until.iter().min().map_or(1, |first| first.ms_after(now).max(1));
            return Err(Refusal::TooManyCancelled { holder: request.holder.clone(), retry_after_ms }.into());
        }
        self.spend(request.clone(), by, true);
        Ok(Answer::Spent)
    }

    pub(super) fn write_state(&mut self, claim: &Claim, write: &StateWrite) -> Result<Answer, Stop> {
        proven(claim)?;
        let mut resource = self.claimed(claim)?.clone();
        let written = self.write(&mut resource, write)?;
        Ok(Answer::StateWritten(written))
    }

    fn write(&mut self, resource: &mut Resource, write: &StateWrite) -> Result<StateDocument, Stop> {
        if resource.key.is_slot() {
            return Err(Refusal::SharedState.into());
        }
        let token = resource.last_token;
        if let Some(stored) =
            resource.state.as_ref().filter(|s| s.token == token && s.sequence >= write.sequence)
        {
            return Err(Refusal::StaleSequence { given: write.sequence, stored: stored.sequence }.into());
        }
        let document = write.document.clone();
        let sequence = write.sequence;
        let written_at = self.now();
        let state = StateDocument { document, sequence, token, written_at };
        self.emit(resource, What::StateChanged(state.clone()));
        Ok(state)
    }

    pub(super) fn expire(&mut self, key: &ResourceKey) -> Result<Answer, Stop> {
        if let Some(resource) = self.ledger.resource(key) {
            self.settle(&mut resource.clone())?;
        }
        Ok(Answer::Judged { expired: !self.changes.is_empty() })
    }

    /// The resource whose live lease is claimed, with proof (rule 6).
    fn claimed(&self, claim: &Claim) -> Result<&Resource, Stop> {
        let (resource, by_id) = self.target(&claim.target)?;
        let resource = self.claimed_row(resource, claim)?;
        if by_id.is_none() && claim.token.is_none() && claim.session.is_none() && claim.holder.is_none() {
            return Err(Refusal::NoProof.into());
        }
        self.matches(resource, claim)?;
        Ok(resource)
    }

    /// Whether a claim is of the lease that lives on a resource now.
    fn matches(&self, resource: &Resource, claim: &Claim) -> Result<(), Stop> {
        let Some(lease) = &resource.lease else { return Err(lost(resource).into()) };
        if let Target::Lease { id, .. } = claim.target
            && lease.id != id
        {
            return Err(Refusal::NoLease(id).into());
        }
        if self.now() >= self.ledger.deadline_of(lease)? {
            return Err(Refusal::Lost { holder: None, last_token: resource.last_token }.into());
        }
        if claim.token.is_some_and(|token| token != lease.token) {
            let holder = Some(lease.holder.clone());
            return Err(Refusal::Lost { holder, last_token: resource.last_token }.into());
        }
        let not_yours = |what| Refusal::NotYours { what, holder: lease.holder.clone(), token: lease.token };
        if claim.session.is_some() && claim.session != lease.tenure.session() {
            return Err(not_yours("session").into());
        }
        if claim.holder.as_ref().is_some_and(|holder| *holder != lease.holder) {
            return Err(not_yours("holder").into());
        }
        Ok(self.refuse_unless_own("lease", lease.by.as_ref())?)
    }

    pub(super) fn view(&self, resource: &Resource, repeated: bool) -> Result<Grant, Stop> {
        let lease = LeaseView::of(self.ledger, resource, self.now())?.ok_or_else(|| lost(resource))?;
        Ok(Grant { lease, state: resource.state.clone(), revision: self.moment.revision, repeated })
    }
}

/// Whether a claim shows more than a name, which may renew and release but writes nothing (rule 6).
fn proven(claim: &Claim) -> Result<(), Refusal> {
    let by_id = matches!(claim.target, Target::Lease { .. });
    let is_proven = by_id || claim.token.is_some() || claim.session.is_some();
    if is_proven { Ok(()) } else { Err(Refusal::NoProof) }
}

/// Whether a claim is of the last grant of a resource, as far as its row can tell after the end of that grant.
fn names_last_grant(resource: &Resource, claim: &Claim) -> bool {
    let by_key = matches!(claim.target, Target::Resource(_));
    let is_last = claim.token.is_none_or(|token| token == resource.last_token);
    by_key && is_last && claim.session.is_none() && claim.holder.is_none()
}

fn lost(resource: &Resource) -> Refusal {
    Refusal::Lost { holder: None, last_token: resource.last_token }
}
