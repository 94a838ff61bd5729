//! One request to acquire, with an id of our own, so that an answer that was lost is asked for again and never granted
//! twice.

use std::sync::Arc;

use solehold_api::problem::ErrorCode;
use solehold_core::key::{Name, SessionId};

use super::{claim::ResourceClaim, endings, guard::Guard, inner::Inner};
use crate::{
    authority::{
        AcquireRequest, Attributes, AuthorityError, BadName, Completion, GrantedLease, Operation,
        RefusalReason, ResourceName,
    },
    coalesce::Sent,
    renewer::Lost,
};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    #[error(transparent)]
    Name(#[from] BadName),
    #[error("{resource} was not acquired: {refusal}")]
    Refused { resource: ResourceName, refusal: RefusalReason },
    /// There is no answer. The request is cancelled, so that no lease is held by accident.
    #[error("{resource} was not acquired: {error}")]
    Authority { resource: ResourceName, error: AuthorityError },
    #[error("{resource} was not acquired in time{}", held_by(holder))]
    TimedOut {
        resource: ResourceName,
        /// Who held it last, as far as is known.
        holder: Option<String>,
    },
    /// It would wait for itself.
    #[error("{0} is named twice among what is acquired together")]
    Twice(ResourceName),
    /// The session is over and there will be no other.
    #[error("cannot acquire: {0}")]
    SessionOver(Lost),
}

fn held_by(holder: &Option<String>) -> String {
    holder.as_ref().map(|holder| format!(": {holder} holds it")).unwrap_or_default()
}

/// What is asked for beside the resource.
#[derive(Debug, Clone, Default)]
pub(crate) struct LeaseTerms {
    pub attributes: Attributes,
    /// Of how many slots one is asked for; none for an exclusive lease.
    pub slots: Option<u32>,
}

impl LeaseTerms {
    pub fn with(attributes: Attributes) -> Self {
        Self { attributes, slots: None }
    }

    pub fn shared(slots: u32) -> Self {
        Self { attributes: Attributes::new(), slots: Some(slots) }
    }
}

/// One acquire, from its first attempt to its guard. Dropped before that, it is spent if it may have been granted, or
/// may still be: what it got is released.
pub(crate) struct Request {
    pub inner: Arc<Inner>,
    pub resource: ResourceName,
    pub id: Name,
    terms: LeaseTerms,
    /// None when it has gone on to the guard, or is given up.
    claim: Option<ResourceClaim>,
    /// The attempt that is under way.
    sent: Sent,
    /// An attempt was sent that may still be granted, or was.
    is_in_doubt: bool,
}

pub(crate) enum Attempt {
    Won(Guard),
    Refused(RefusalReason),
    Unknown(AuthorityError),
}

impl Request {
    pub fn new(inner: &Arc<Inner>, resource: ResourceName, terms: LeaseTerms) -> Self {
        let id = inner.fresh_request();
        let claim = Some(ResourceClaim::of_acquire(inner, resource.clone()));
        let inner = inner.clone();
        Self { inner, resource, id, terms, claim, sent: Sent::default(), is_in_doubt: false }
    }

    pub fn ask(&self, session: SessionId) -> AcquireRequest {
        let resource = self.resource.clone();
        let holder = self.inner.holder.clone();
        let request = self.id.clone();
        let LeaseTerms { attributes, slots } = self.terms.clone();
        AcquireRequest { resource, holder, session, request, attributes, slots }
    }

    pub async fn attempt(&mut self, session: SessionId) -> Attempt {
        let ask = Operation::Acquire(self.ask(session));
        self.sent = Sent::default();
        let outcome = self.inner.coalescer.submit_marked(ask, self.sent.clone()).await;
        self.sent = Sent::default();
        self.is_in_doubt |= matches!(outcome, Err(AuthorityError::Unknown(_)));
        match outcome {
            Ok(Ok(Completion::Held(granted))) => match self.take_up(session, granted) {
                Some(guard) => Attempt::Won(guard),
                // Granted to a session that is over by now: it is spent with this request.
                None => {
                    Attempt::Unknown(AuthorityError::Unknown("the session was lost meanwhile".to_owned()))
                }
            },
            Ok(Ok(Completion::Released)) => {
                self.is_in_doubt = true;
                Attempt::Unknown(AuthorityError::Unknown("an unexpected answer: released".to_owned()))
            }
            Ok(Err(refusal)) => {
                // However late an earlier attempt arrives, a spent request gets nothing.
                self.is_in_doubt &= refusal.code != ErrorCode::RequestSpent;
                Attempt::Refused(refusal)
            }
            Err(error) => Attempt::Unknown(error),
        }
    }

    /// Makes a guard of what was granted; none if the session is no longer the present one.
    pub fn take_up(&mut self, session: SessionId, granted: GrantedLease) -> Option<Guard> {
        self.is_in_doubt = true;
        let holding = self.inner.hold(session, granted, self.terms.attributes.clone())?;
        let mut claim = self.claim.take()?;
        claim.end_acquire();
        Some(Guard::new(holding, claim))
    }

    /// Another request in its place: this one got what it could get.
    pub fn renew(&mut self) {
        let next = Self::new(&self.inner, self.resource.clone(), self.terms.clone());
        drop(std::mem::replace(self, next));
    }

    /// It may have been sent by another way than [`Self::attempt`].
    pub fn mark_sent(&mut self) {
        self.is_in_doubt = true;
    }

    /// Its outcome is no longer wanted. Until it is known to be over, its claim goes on.
    pub fn give_up(&mut self) {
        let Some(claim) = self.claim.take() else { return };
        if self.is_in_doubt || self.sent.is_set() {
            endings::spend(claim, self.id.clone());
        }
    }

    pub fn terms(&self) -> &LeaseTerms {
        &self.terms
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Refuses to acquire anything while too many requests are in doubt.
pub(super) fn check(inner: &Inner, resource: &ResourceName) -> Result<(), AcquireError> {
    inner.claims.check_room().map_err(|full| AcquireError::Authority {
        resource: resource.clone(),
        error: AuthorityError::unreachable(full.to_string()),
    })
}
