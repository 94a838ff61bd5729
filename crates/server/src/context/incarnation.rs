//! A runner that registers again under its id is a new incarnation (rule 13): what the former one held by name alone is
//! revoked. So it is when the runner is removed by its name. Others have to wait until the former incarnation's
//! deadline (rule 12). A runner that has registered since does not: it takes the place of its former incarnation, under
//! a new token. A name is not proof, and so this is the weaker promise.

use solehold_core::{
    command::{Acquire, Claim, Command, Target},
    key::ResourceKey,
    lease::{LeaseStatus, Tenure},
    outcome::{Answer, Grant, LeaseView},
    time::{StoreTime, Token},
};

use super::{Context, commands::granted, past::PastLease};
use crate::error::{ApiError, unexpected};

/// Why a lease that a runner held by name alone was revoked. It is stored as the reason of the event, and read back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FormerEnd {
    RegisteredAgain,
    RemovedByName,
}

impl FormerEnd {
    /// What is stored; releases that were made read it, too.
    const fn stored(self) -> &'static str {
        match self {
            Self::RegisteredAgain => "its runner has registered again",
            Self::RemovedByName => "its runner was removed by name",
        }
    }

    fn of(past: &PastLease) -> Option<Self> {
        let stored = past.ended.reason.as_deref()?;
        [Self::RegisteredAgain, Self::RemovedByName].into_iter().find(|end| end.stored() == stored)
    }
}

/// Whether a lease has a session of its own, as one that was taken by name alone.
pub(crate) fn is_own(lease: &LeaseView) -> bool {
    matches!(lease.lease.tenure, Tenure::Own { .. })
}

fn claim(key: &ResourceKey, token: Token) -> Claim {
    Claim { target: Target::Resource(key.clone()), token: Some(token), session: None, holder: None }
}

impl Context {
    /// Revokes what a runner held by name alone when it registered again. If the former incarnation is known to be
    /// fenced off, the next holder need not wait for its deadline.
    pub(crate) async fn end_former(
        &self,
        held: &[LeaseView],
        registered_at: StoreTime,
        fenced: bool,
    ) -> Result<(), ApiError> {
        let is_former = |lease: &&LeaseView| lease.lease.acquired_at <= registered_at;
        self.revoke_own(held.iter().filter(is_former), fenced, FormerEnd::RegisteredAgain).await?;
        Ok(())
    }

    /// Revokes what a runner held by name alone when it was removed by its name, which is no proof that it has stopped;
    /// returns how many leases.
    pub(crate) async fn end_removed(&self, held: &[LeaseView]) -> Result<usize, ApiError> {
        self.revoke_own(held.iter(), false, FormerEnd::RemovedByName).await
    }

    async fn revoke_own(
        &self,
        held: impl Iterator<Item = &LeaseView>,
        fenced: bool,
        why: FormerEnd,
    ) -> Result<usize, ApiError> {
        let revoke = |lease: &LeaseView| {
            let claim = claim(&lease.key, lease.lease.token);
            let reason = Some(why.stored().to_owned());
            Command::Revoke { claim, fenced, reason }
        };
        let commands = held.filter(|lease| is_own(lease)).map(revoke).collect();
        let mut revoked = 0;
        for outcome in self.submit_all(commands).await {
            // What is refused has ended meanwhile, or belongs to another key.
            revoked += usize::from(outcome?.is_ok());
        }
        Ok(revoked)
    }

    /// Whether a hold-back ends for a runner that has registered again, by the reason for it.
    async fn is_for_former(&self, past: &PastLease, ask: &Acquire) -> Result<bool, ApiError> {
        match FormerEnd::of(past) {
            Some(FormerEnd::RegisteredAgain) => Ok(true),
            Some(FormerEnd::RemovedByName) => {
                let key = ask.holder_key();
                let loaded = self.load_holder(&key).await?;
                let holder = loaded.state.holder(&key).filter(|holder| holder.registered);
                Ok(holder.is_some_and(|holder| holder.registered_at >= past.at))
            }
            None => Ok(false),
        }
    }

    /// An acquire was refused because the resource is held back. If that is so because its runner has registered again,
    /// or was removed by name and has registered since, the hold-back is lifted for it: in the same commit, so that
    /// no other client acquires it in between.
    pub(crate) async fn acquire_from_former(
        &self,
        ask: Acquire,
        refused: ApiError,
    ) -> Result<Grant, ApiError> {
        let target = Target::Resource(ask.key.clone());
        let held = Claim { target, token: None, session: None, holder: Some(ask.holder.clone()) };
        let is_held_back = |past: &PastLease| past.status == LeaseStatus::Revoked && past.held_back_ms > 0;
        let Some(past) = self.past_lease(&held).await.filter(is_held_back) else { return Err(refused) };
        if !self.is_for_former(&past, &ask).await? {
            return Err(refused);
        }
        let Some(token) = past.ended.token else { return Err(refused) };
        let reason = Some(format!("{} has registered again and takes its place", ask.holder));
        let lift = Command::Revoke { claim: claim(&ask.key, token), fenced: true, reason };
        let mut outcomes = self.submit_all(vec![lift, Command::Acquire(ask)]).await.into_iter();
        match (outcomes.next(), outcomes.next()) {
            (Some(lifted), Some(acquired)) => {
                // Another key's hold-back is not lifted, and then nothing is granted.
                let _ = lifted?;
                granted(acquired??)
            }
            _ => Err(unexpected(&Answer::HoldBackLifted)),
        }
    }
}
