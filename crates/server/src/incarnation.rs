//! A runner that registers again under its id is a new incarnation (rule 13): what the former one held by name alone is
//! revoked. Others have to wait until the former one's deadline (rule 12). The runner itself does not: it takes the
//! place of its former incarnation, under a new token. A name is not proof, and so this is the weaker promise.

use solehold_core::{
    command::{Acquire, Claim, Command, Target},
    key::ResourceKey,
    lease::{LeaseStatus, Tenure},
    outcome::{Answer, Grant, LeaseView},
    time::{StoreTime, Token},
};

use crate::{
    Context,
    commands::{granted, unexpected},
    http::ApiError,
};

/// Why a lease was revoked that a former incarnation held.
const REGISTERED_AGAIN: &str = "its runner has registered again";

/// Whether a lease has a session of its own, as one that was taken by name alone.
pub(crate) fn is_own(lease: &LeaseView) -> bool {
    matches!(lease.lease.tenure, Tenure::Own { .. })
}

fn claim(key: &ResourceKey, token: Token) -> Claim {
    Claim { target: Target::Resource(key.clone()), token: Some(token), session: None, holder: None }
}

impl Context {
    /// Revokes what a runner held by name alone when it registered again. If the former incarnation is known to be
    /// fenced off, nobody has to wait for its deadline.
    pub(crate) async fn end_former(
        &self,
        held: &[LeaseView],
        registered_at: StoreTime,
        fenced: bool,
    ) -> Result<(), ApiError> {
        let is_former = |lease: &&LeaseView| is_own(lease) && lease.lease.acquired_at <= registered_at;
        let revoke = |lease: &LeaseView| {
            let (claim, reason) = (claim(&lease.key, lease.lease.token), Some(REGISTERED_AGAIN.to_owned()));
            Command::Revoke { claim, fenced, reason }
        };
        let commands = held.iter().filter(is_former).map(revoke).collect();
        for outcome in self.submit_all(commands).await {
            // What is refused has ended meanwhile, or belongs to another key.
            let _ = outcome?;
        }
        Ok(())
    }

    /// An acquire was refused because the resource is held back. If that is so because its runner has registered again,
    /// the hold-back is lifted for it: in the same commit, so that nobody else comes first.
    pub(crate) async fn acquire_from_former(
        &self,
        ask: Acquire,
        refused: ApiError,
    ) -> Result<Grant, ApiError> {
        let target = Target::Resource(ask.key.clone());
        let held = Claim { target, token: None, session: None, holder: Some(ask.holder.clone()) };
        let is_former = |reason: Option<&str>| reason == Some(REGISTERED_AGAIN);
        let Some(past) = self.past_lease(&held).await.filter(|past| {
            past.status == LeaseStatus::Revoked
                && is_former(past.ended.reason.as_deref())
                && past.held_back_ms > 0
        }) else {
            return Err(refused);
        };
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
