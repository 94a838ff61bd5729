//! Rule 22: a holder with grace that is told that its session expired may acquire again at once. Its work goes on only
//! for what it wins back, under the new token, and only where nobody else held it meanwhile.

use std::sync::Arc;

use solehold_api::problem::ErrorCode;
use solehold_core::key::SessionId;

use super::{
    claims::Claim,
    endings,
    holding::Holding,
    inner::{Inner, Phase},
};
use crate::{
    authority::{AcquireRequest, AuthorityError, Completion, Grant, Operation, Reply},
    coalesce::BATCH_MAX,
    renewer::Lost,
};

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
                Err(error) => tracing::warn!(holder = %inner.holder, %error, "no session is opened"),
            },
            Ok(Err(refusal)) => tracing::warn!(holder = %inner.holder, %refusal, "no session is opened"),
            Err(error) => tracing::debug!(%error, "no session yet"),
        }
        inner.pause(inner.backoff(failures, None)).await;
        if inner.phase() != Phase::Reopening {
            break;
        }
    }
    None
}

async fn win_back(inner: &Arc<Inner>, session: SessionId, holdings: &[Arc<Holding>]) {
    let renewals = holdings.iter().map(|holding| Operation::Renew(holding.held())).collect();
    let told = inner.authority.submit(renewals).await;
    let mut asked = Vec::new();
    for (holding, told) in holdings.iter().zip(told) {
        match no_successor(holding, told) {
            Ok(()) => asked.push((holding, inner.fresh_request())),
            Err(lost) => holding.lose(lost),
        }
    }
    let ask = |(holding, request): &(&Arc<Holding>, _)| {
        let (resource, holder) = (holding.resource.clone(), inner.holder.clone());
        Operation::Acquire(AcquireRequest { resource, holder, session, request: Clone::clone(request) })
    };
    let won = inner.authority.submit(asked.iter().map(ask).collect()).await;
    for ((holding, request), won) in asked.into_iter().zip(won) {
        let resource = holding.resource.clone();
        match granted(won) {
            Ok(grant) if inner.resume(holding, grant.clone()) => {
                tracing::info!(%resource, token = %holding.token(), "won back");
            }
            Ok(_) => endings::spend(Claim::new(inner, resource), request),
            Err(lost) => {
                holding.lose(lost);
                endings::spend(Claim::new(inner, resource), request);
            }
        }
    }
}

/// Whether the lease ran out and nobody has held the resource since.
fn no_successor(holding: &Holding, told: Reply<Completion>) -> Result<(), Lost> {
    let refusal = match told {
        Ok(Err(refusal)) => refusal,
        // A session that is over renews nothing; whatever this is, it proves nothing.
        Ok(Ok(_)) => return Err(Lost::Ended),
        Err(error) => return Err(failed(&error)),
    };
    let is_ours = refusal.code == ErrorCode::Lost && refusal.token == Some(holding.token());
    if is_ours && refusal.holder.is_none() { Ok(()) } else { Err(Lost::Refused(refusal)) }
}

fn granted(won: Reply<Completion>) -> Result<Grant, Lost> {
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
