//! Leases that are over: when and how each ended, for as long as the history has its events.
//!
//! A refusal that says "not held any more" is explained here. The history is asked by lease or by resource, each of
//! which has an index, for a bounded number of events, and by a bounded number of requests at once: those that would
//! have to wait too long are answered without the explanation.

use std::time::Duration;

use solehold_api::problem::{EndedLease, ErrorCode, Problem};
use solehold_core::{
    command::{Claim, Command, Footprint, Target},
    event::{Ended, Event, What},
    key::{LeaseId, Name, ResourceKey},
    lease::LeaseStatus,
    outcome::{Answer, LeaseView, Refusal},
    time::{Revision, StoreTime, Token},
};
use solehold_engine::{EngineError, store::EventQuery};
use tokio::{sync::Semaphore, time::timeout};

use super::Context;
use crate::error::ApiError;

/// A lease has few events: that it is pending, was granted, has ended and was taken over.
const LEASE_EVENTS_MAX: usize = 8;
/// How many of the newest events of a resource are looked through for the last lease of a holder.
const RESOURCE_EVENTS_MAX: usize = 100;
/// How many requests look into the history at once, and how long another one waits for its turn.
static LOOKUPS: Semaphore = Semaphore::const_new(8);
const TURN_WITHIN: Duration = Duration::from_secs(1);

/// A lease that is over.
#[derive(Debug)]
pub struct PastLease {
    pub key: ResourceKey,
    pub ended: Ended,
    pub status: LeaseStatus,
    /// When it ended.
    pub at: StoreTime,
    /// For how long its resource is still held back after it.
    pub held_back_ms: u64,
    /// The key that it belonged to, if that is known: the history may have dropped its grant.
    owner: Option<Owner>,
}

/// The key that a lease belonged to; none, if it was everyone's (rule 26).
type Owner = Option<Name>;

impl PastLease {
    /// The ended lease in a response.
    pub fn shown(&self) -> EndedLease {
        EndedLease {
            kind: Some(self.key.kind.to_string()),
            key: Some(self.key.key.to_string()),
            holder: Some(self.ended.holder.to_string()),
            token: self.ended.token.map(|token| token.0),
            ended_at: Some(self.at.into()),
            reason: self.ended.reason.clone(),
            code: Some(ErrorCode::Lost),
            ..EndedLease::new(self.ended.lease.0, self.status, self.held_back_ms)
        }
    }

    /// Whether everything that a claim shows is of this lease.
    fn is_claimed_by(&self, claim: &Claim) -> bool {
        let Ended { token, session, holder, .. } = &self.ended;
        let is_there = match &claim.target {
            Target::Resource(key) => *key == self.key,
            Target::Lease { tenant, id } => *tenant == self.key.tenant && *id == self.ended.lease,
        };
        is_there
            && (claim.token.is_none() || claim.token == *token)
            && (claim.session.is_none() || claim.session == *session)
            && claim.holder.as_ref().is_none_or(|claimed| claimed == holder)
    }
}

impl Context {
    /// Why a command about a lease was refused: if the lease is over, when and how it ended.
    pub(crate) async fn explained(&self, claim: &Claim, refusal: Refusal) -> ApiError {
        let past = self.past_of(claim, &refusal).await;
        explain(past, refusal)
    }

    /// A release was refused. If the lease is over and its resource is held back after it, that ends now: its holder
    /// says that it has stopped, which is all that a release in time would say (rule 12). A name alone does not prove
    /// it (rule 6), and a lease that is over takes no final state.
    pub(crate) async fn released_late(
        &self,
        claim: &Claim,
        has_state: bool,
        refusal: Refusal,
    ) -> Result<LeaseId, ApiError> {
        let past = self.past_of(claim, &refusal).await;
        let by_id = matches!(claim.target, Target::Lease { .. });
        let is_proven = by_id || claim.token.is_some() || claim.session.is_some();
        match past {
            Some(past) if is_proven && !has_state => {
                let reason = format!("{} has stopped", past.ended.holder);
                self.lift(past, Some(reason), refusal).await
            }
            past => Err(explain(past, refusal)),
        }
    }

    /// A revoke with `fenced` was refused: if the lease is over, the hold-back after it ends.
    pub(crate) async fn fenced_late(
        &self,
        claim: &Claim,
        reason: Option<String>,
        refusal: Refusal,
    ) -> Result<LeaseId, ApiError> {
        match self.past_of(claim, &refusal).await {
            Some(past) => self.lift(past, reason, refusal).await,
            None => Err(refusal.into()),
        }
    }

    /// Ends the hold-back after a lease; refuses if there is none, or if the lease was another key's (rule 26).
    async fn lift(
        &self,
        past: PastLease,
        reason: Option<String>,
        refusal: Refusal,
    ) -> Result<LeaseId, ApiError> {
        if past.held_back_ms > 0 {
            let target = Target::Resource(past.key.clone());
            let claim = Claim { target, token: past.ended.token, session: None, holder: None };
            if let Ok(Answer::HoldBackLifted) =
                self.submit(Command::Revoke { claim, fenced: true, reason }).await?
            {
                return Ok(past.ended.lease);
            }
        }
        Err(explain(Some(past), refusal))
    }

    /// Refuses unless a claim is of the lease on a resource, or of one that ended less than `within_ms` ago, and the
    /// caller may act for its key (rule 26).
    pub(crate) async fn must_have_held(
        &self,
        key: &ResourceKey,
        claim: &Claim,
        within_ms: u64,
    ) -> Result<(), ApiError> {
        let loaded = self.engine().resource(key).await?;
        let resource = loaded.state.resource(key);
        let live = resource.and_then(|resource| LeaseView::of(&loaded.state, resource, loaded.now).ok()?);
        let live = live.filter(|view| view.status == LeaseStatus::Active);
        if let Some(view) = live.as_ref().filter(|view| is_claimed(view, claim)) {
            return self.must_act_for(view.lease.by.as_ref());
        }
        let past = self.find_past(claim).await?.filter(|past| past.key == *key);
        let last_token = resource.map_or(Token::default(), |resource| resource.last_token);
        let holder = live.as_ref().map(|view| view.lease.holder.clone());
        let refusal = match live {
            Some(view) if claim.holder.as_ref() == Some(&view.lease.holder) && claim.token.is_none() => {
                let holder = view.lease.holder;
                let token = view.lease.token;
                Refusal::NotYours { what: "proof", holder, token }
            }
            _ => Refusal::Lost { holder, last_token },
        };
        let Some(past) = past else { return Err(refusal.into()) };
        match self.owner_of(&past).await? {
            Some(owner) if loaded.now.ms_after(past.at) < within_ms => self.must_act_for(owner.as_ref()),
            _ => Err(explain(Some(past), refusal)),
        }
    }

    fn must_act_for(&self, owner: Option<&Name>) -> Result<(), ApiError> {
        match owner.filter(|_| !self.caller().actor().may_act_for(owner)) {
            Some(key) => Err(Refusal::OtherKeys { what: "lease", key: key.clone() }.into()),
            None => Ok(()),
        }
    }

    /// The key that a lease belonged to. If the history has dropped its grant, its session may still be there.
    async fn owner_of(&self, past: &PastLease) -> Result<Option<Owner>, EngineError> {
        let (None, Some(id)) = (&past.owner, past.ended.session) else { return Ok(past.owner.clone()) };
        let loaded = self.engine().load(&Footprint { sessions: vec![id], ..Default::default() }).await?;
        Ok(loaded.state.session(id).map(|session| session.by.clone()))
    }

    /// The lease that a refused claim is of, if it was refused because that lease is over.
    async fn past_of(&self, claim: &Claim, refusal: &Refusal) -> Option<PastLease> {
        let may_be_over = matches!(
            refusal,
            Refusal::NoLease(_) | Refusal::NoResource(_) | Refusal::Lost { .. } | Refusal::NotYours { .. }
        );
        if may_be_over { self.past_lease(claim).await } else { None }
    }

    /// The lease that a claim is of, if it is over and the history has its end.
    pub(crate) async fn past_lease(&self, claim: &Claim) -> Option<PastLease> {
        let _turn = timeout(TURN_WITHIN, LOOKUPS.acquire()).await.ok()?.ok()?;
        let found = self.find_past(claim).await;
        let log =
            |error: &EngineError| tracing::debug!(%error, "cannot read lease history; responding without it");
        found.inspect_err(log).ok()?
    }

    /// As [`Self::past_lease`], but an unreadable history is an error.
    pub(crate) async fn find_past(&self, claim: &Claim) -> Result<Option<PastLease>, EngineError> {
        let is_for_caller = |past: &PastLease| past.is_claimed_by(claim) && self.caller().may_see(&past.key);
        Ok(self.look_up(claim).await?.filter(is_for_caller))
    }

    async fn look_up(&self, claim: &Claim) -> Result<Option<PastLease>, EngineError> {
        let id = match &claim.target {
            Target::Lease { id, .. } => Some(*id),
            Target::Resource(key) => self.last_lease(key, claim).await?,
        };
        let Some(id) = id else { return Ok(None) };
        let query = EventQuery { lease: Some(id), limit: LEASE_EVENTS_MAX, ..Default::default() };
        let events = self.engine().events(&query).await?.events;
        match end_of(&events) {
            Some(past) => Ok(Some(self.with_hold_back(past).await?)),
            None => self.expired(id).await,
        }
    }

    /// The lease on a resource that a claim is of: the one with its token, or the newest of its session or holder.
    async fn last_lease(&self, key: &ResourceKey, claim: &Claim) -> Result<Option<LeaseId>, EngineError> {
        let of_resource = EventQuery { resource: Some(key.clone()), ..Default::default() };
        let query = match claim.token {
            // A token is the revision of its grant (rule 5).
            Some(Token(token)) => {
                EventQuery { after: Revision(token.saturating_sub(1)), limit: 1, ..of_resource }
            }
            None => EventQuery { limit: RESOURCE_EVENTS_MAX, ..of_resource }.newest(),
        };
        let events = self.engine().events(&query).await?.events;
        let is_meant = |event: &&Event| {
            let is_its = claim.holder.is_none() || claim.holder.as_ref() == event.holder();
            is_its
                && (claim.token.is_none() || claim.token == event.token())
                && (claim.session.is_none() || claim.session == event.session())
        };
        Ok(events.iter().filter(is_meant).find_map(Event::lease))
    }

    /// How long a resource is still held back: by its row, since the hold-back may have been lifted.
    async fn with_hold_back(&self, past: PastLease) -> Result<PastLease, EngineError> {
        if past.ended.held_back_until.is_none() {
            return Ok(past);
        }
        let loaded = self.engine().resource(&past.key).await?;
        let resource = loaded.state.resource(&past.key);
        let resource = resource.filter(|resource| Some(resource.last_token) == past.ended.token);
        let until = resource.filter(|resource| resource.lease.is_none()).and_then(|r| r.held_back_until);
        Ok(PastLease { held_back_ms: until.map_or(0, |until| until.ms_after(loaded.now)), ..past })
    }

    /// A lease whose time is over and that was not swept yet.
    async fn expired(&self, id: LeaseId) -> Result<Option<PastLease>, EngineError> {
        let loaded = self.engine().load(&Footprint { leases: vec![id], ..Default::default() }).await?;
        let resource = loaded.state.resource_of(id).and_then(|key| loaded.state.resource(key));
        let Some(resource) = resource else { return Ok(None) };
        let view = LeaseView::of(&loaded.state, resource, loaded.now).ok().flatten();
        let is_over = |view: &LeaseView| view.lease.id == id && view.status == LeaseStatus::Expired;
        Ok(view.filter(is_over).map(|view| PastLease {
            key: view.key,
            ended: Ended::of(&view.lease),
            status: LeaseStatus::Expired,
            at: view.deadline,
            held_back_ms: view.deadline.plus_ms(resource.lock_delay_ms()).ms_after(loaded.now),
            owner: Some(view.lease.by),
        }))
    }
}

/// Whether everything that a claim shows is of a live lease.
fn is_claimed(view: &LeaseView, claim: &Claim) -> bool {
    let by_id = match &claim.target {
        Target::Lease { id, .. } => *id == view.lease.id,
        Target::Resource(key) => *key == view.key,
    };
    by_id
        && claim.token.is_none_or(|token| token == view.lease.token)
        && (claim.session.is_none() || claim.session == view.lease.tenure.session())
        && claim.holder.as_ref().is_none_or(|holder| *holder == view.lease.holder)
}

/// The refusal, with how the lease ended if that is known, and who holds its resource now.
fn explain(past: Option<PastLease>, refusal: Refusal) -> ApiError {
    let Some(past) = past else { return refusal.into() };
    let present = match refusal {
        Refusal::NotYours { holder, token, .. }
        | Refusal::Lost { holder: Some(holder), last_token: token } => Some((holder.to_string(), token.0)),
        _ => None,
    };
    Problem::lost(past.shown(), present).into()
}

/// The end of a lease among its events.
fn end_of(events: &[Event]) -> Option<PastLease> {
    let end = events.iter().find_map(|event| {
        let (status, ended) = match &event.what {
            What::Released(ended) => (LeaseStatus::Released, ended),
            What::Expired(ended) => (LeaseStatus::Expired, ended),
            What::Revoked(ended) => (LeaseStatus::Revoked, ended),
            _ => return None,
        };
        let key = event.key.clone();
        let ended = ended.clone();
        Some(PastLease { key, ended, status, at: event.at, held_back_ms: 0, owner: None })
    })?;
    let owner = events.iter().find_map(|event| match &event.what {
        What::Acquired(lease) => Some(lease.by.clone()),
        _ => None,
    });
    let taken_over = events.iter().find_map(|event| match &event.what {
        What::Stolen(ended) => ended.reason.clone(),
        _ => None,
    });
    let reason = end.ended.reason.clone().or(taken_over);
    Some(PastLease { ended: Ended { reason, ..end.ended }, owner, ..end })
}
