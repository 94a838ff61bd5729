//! Acquiring without a place in line: once, or until it is granted.

use std::{sync::Arc, time::Duration};

use solehold_api::problem::ErrorCode;

use super::{
    adopt::{self, adopt_instead},
    guard::Guard,
    inner::Inner,
    request::{AcquireError, Attempt, LeaseTerms, Request, check},
};
use crate::authority::{AuthorityError, RefusalReason, ResourceName};

/// How often an acquire that should answer now is asked again when its answer was lost.
const ATTEMPTS_NOW: u32 = 3;

/// Acquires if it can be had now.
pub(super) async fn now(
    inner: &Arc<Inner>,
    resource: ResourceName,
    terms: LeaseTerms,
) -> Result<Guard, AcquireError> {
    check(inner, &resource)?;
    let mut request = Request::new(inner, resource.clone(), terms);
    for failures in 1.. {
        let session = inner.ready().await.map_err(AcquireError::SessionOver)?;
        let error = match request.attempt(session).await {
            Attempt::Won(guard) => return Ok(guard),
            Attempt::Refused(refusal) if refusal.ends_session() && failures < ATTEMPTS_NOW => {
                AuthorityError::Unknown(refusal.detail)
            }
            Attempt::Refused(refusal) => {
                request.give_up();
                let adopted = match refusal.code {
                    ErrorCode::Held => adopt::unclaimed(&request).await,
                    _ => None,
                };
                return adopted.ok_or(AcquireError::Refused { resource, refusal });
            }
            Attempt::Unknown(error) => error,
        };
        if failures >= ATTEMPTS_NOW {
            return Err(AcquireError::Authority { resource, error });
        }
        inner.pause(inner.backoff(failures, error.retry_after())).await;
    }
    unreachable!("attempts are bounded")
}

/// Acquires, with growing pauses between attempts, until it is granted or known that it never will be.
pub(super) async fn until_granted(inner: &Arc<Inner>, resource: ResourceName) -> Result<Guard, AcquireError> {
    check(inner, &resource)?;
    let mut request = Request::new(inner, resource.clone(), LeaseTerms::default());
    for failures in 1.. {
        let session = inner.ready().await.map_err(AcquireError::SessionOver)?;
        let wait = match request.attempt(session).await {
            Attempt::Won(guard) => return Ok(guard),
            Attempt::Refused(refusal) if refusal.code == ErrorCode::RequestSpent => {
                request.renew();
                continue;
            }
            Attempt::Refused(refusal) if refusal.is_worth_another_try() => {
                if refusal.code == ErrorCode::Held
                    && let Some(guard) = adopt_instead(&mut request).await
                {
                    return Ok(guard);
                }
                pause(inner, failures, &refusal)
            }
            Attempt::Refused(refusal) => {
                return Err(AcquireError::Refused { resource, refusal });
            }
            Attempt::Unknown(error) => inner.backoff(failures, error.retry_after()),
        };
        inner.pause(wait).await;
    }
    unreachable!("it is tried until it is granted")
}

/// How long to wait after a refusal. What is held back is so for the time told; what is held may be let go any time,
/// and is free at the latest then.
pub(crate) fn pause(inner: &Inner, failures: u32, refusal: &RefusalReason) -> Duration {
    let wait = inner.backoff(failures, None);
    match refusal.retry_after {
        Some(told) if refusal.code == ErrorCode::HeldBack => wait.max(told),
        Some(told) => wait.min(told),
        None => wait,
    }
}
