//! Rule 22: a holder with grace that is told that its session expired may acquire again at once. Its work goes on only
//! for what it wins back, under the new token, and only where nobody else held it meanwhile.

use std::sync::Arc;

use solehold_api::problem::ErrorCode;
use solehold_core::{
    key::{Name, SessionId},
    time::Token,
};
use tokio::task::JoinSet;

use super::{
    claim::ResourceClaim,
    endings,
    holding::Holding,
    inner::{Inner, Phase},
};
use crate::{
    authority::{AcquireRequest, AuthorityError, Completion, GrantedLease, Operation, Reply},
    coalesce::BATCH_MAX,
    renewer::Lost,
};

/// How often the history of a resource is asked for.
const ATTEMPTS: u32 = 3;

/// Wins back what can be won back until the grace is over; the rest is lost.
pub(super) async fn reclaim(inner: &Arc<Inner>) {
    let stop_at = inner.stop_at();
    let holdings = inner.suspend();
    let all = async {
        let session = open(inner).await?;
        for some in holdings.chunks(BATCH_MAX) {
            win_back(inner, session, some).await;
        }
        Some(())
    };
    tokio::select! {
        biased;
        () = inner.clock().wait_until(stop_at) => {}
        _ = all => {}
    }
    for holding in holdings {
        if !inner.holds(&holding) {
            holding.lose(Lost::Deadline);
        }
    }
}

/// Opens a session for what is to be won back.
async fn open(inner: &Arc<Inner>) -> Option<SessionId> {
    for failures in 1.. {
        match inner.try_open().await {
            Ok(Ok((sent, beat))) => match inner.begin(sent, &beat) {
                Ok(is_open) => return is_open.then_some(beat.session),
                Err(error) => {
                    tracing::warn!(holder = %inner.holder, %error, "cannot reopen the session; retrying")
                }
            },
            Ok(Err(refusal)) if refusal.is_superseded() => {
                let lost = Lost::Refused(refusal);
                tracing::warn!(holder = %inner.holder, %lost, "session superseded; giving up");
                inner.lose_all(&lost, Phase::Over(lost.clone()));
                return None;
            }
            Ok(Err(refusal)) => {
                tracing::warn!(holder = %inner.holder, %refusal, "server refused to reopen the session; retrying")
            }
            Err(error) => {
                tracing::debug!(holder = %inner.holder, %error, "cannot reopen the session yet; retrying")
            }
        }
        inner.pause(inner.backoff(failures, None)).await;
        if inner.phase() != Phase::Reopening {
            break;
        }
    }
    None
}

/// A lease that was asked for anew. Dropped before the work goes on under it, it is released again.
struct Asked {
    holding: Arc<Holding>,
    request: Name,
    /// None when the guard has it.
    claim: Option<ResourceClaim>,
}

impl Asked {
    fn new(inner: &Arc<Inner>, holding: &Arc<Holding>) -> Self {
        let claim = ResourceClaim::new(inner, holding.resource.clone());
        Self { holding: holding.clone(), request: inner.fresh_request(), claim: Some(claim) }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            endings::spend(claim, self.request.clone());
        }
    }
}

async fn win_back(inner: &Arc<Inner>, session: SessionId, holdings: &[Arc<Holding>]) {
    let renewals = holdings.iter().map(|holding| Operation::Renew(holding.held())).collect();
    let told = inner.authority.submit(renewals).await;
    let mut asked = Vec::new();
    for (holding, told) in holdings.iter().zip(told) {
        match no_successor(holding, told) {
            Ok(()) => asked.push(Asked::new(inner, holding)),
            Err(lost) => holding.lose(lost),
        }
    }
    let ask = |asked: &Asked| {
        let resource = asked.holding.resource.clone();
        let holder = inner.holder.clone();
        let request = asked.request.clone();
        let attributes = asked.holding.attributes.clone();
        Operation::Acquire(AcquireRequest { resource, holder, session, request, attributes, slots: None })
    };
    let won = inner.authority.submit(asked.iter().map(ask).collect()).await;
    let mut judged = JoinSet::new();
    for (asked, won) in asked.into_iter().zip(won) {
        judged.spawn(judge(inner.clone(), asked, won));
    }
    while judged.join_next().await.is_some() {}
}

/// Goes on with the work under a new grant, unless another holder came before it.
async fn judge(inner: Arc<Inner>, mut asked: Asked, won: Reply<Completion>) {
    let proven = match granted(won) {
        Ok(grant) => came_next(&inner, asked.holding.token(), grant).await,
        Err(lost) => Err(lost),
    };
    match proven {
        Err(lost) => asked.holding.lose(lost),
        Ok(grant) => {
            // Otherwise its guard was dropped meanwhile.
            if inner.resume(&asked.holding, grant) {
                asked.claim = None;
                tracing::info!(resource = %asked.holding.resource, token = %asked.holding.token(), "reclaimed an expired lease; work continues");
            }
        }
    }
}

/// Whether a grant is the next one after `former`. That the resource had no other holder before the request was sent
/// does not prove it: one may have come and gone before it arrived. What happened before the grant no longer changes.
async fn came_next(inner: &Inner, former: Token, grant: GrantedLease) -> Result<GrantedLease, Lost> {
    for failures in 1.. {
        match inner.authority.token_before(&grant.held.resource, grant.held.token).await {
            Ok(Ok(before)) if before == Some(former) => return Ok(grant),
            Ok(Ok(_)) => return Err(Lost::Ended),
            Ok(Err(refusal)) => return Err(Lost::Refused(refusal)),
            Err(error) if failures >= ATTEMPTS => return Err(failed(&error)),
            Err(error) => inner.pause(inner.backoff(failures, error.retry_after())).await,
        }
    }
    unreachable!("attempts are bounded")
}

/// Whether the lease ran out and nobody has held the resource since.
fn no_successor(holding: &Holding, told: Reply<Completion>) -> Result<(), Lost> {
    let refusal = match told {
        Ok(Err(refusal)) => refusal,
        // A session that is over renews nothing; whatever this is, it proves nothing.
        Ok(Ok(_)) => return Err(Lost::Ended),
        Err(error) => return Err(failed(&error)),
    };
    // Its slot may have gone to another and come back: what others share proves nothing about it.
    if holding.held().slot.is_some() {
        return Err(Lost::Refused(refusal));
    }
    let is_ours = refusal.code == ErrorCode::Lost && refusal.token == Some(holding.token());
    if is_ours && refusal.holder.is_none() { Ok(()) } else { Err(Lost::Refused(refusal)) }
}

fn granted(won: Reply<Completion>) -> Result<GrantedLease, Lost> {
    match won {
        Ok(Ok(Completion::Held(grant))) => Ok(grant),
        Ok(Ok(Completion::Released)) => Err(Lost::Ended),
        Ok(Err(refusal)) => Err(Lost::Refused(refusal)),
        Err(error) => Err(failed(&error)),
    }
}

fn failed(error: &AuthorityError) -> Lost {
    Lost::Failed(error.to_string())
}
