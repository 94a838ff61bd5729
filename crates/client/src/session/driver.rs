//! Drives the renewer: asks it what to do, does it, and tells how it went. It judges nothing.

use std::sync::{Arc, Weak};

use solehold_clock::BootTime;
use solehold_core::key::SessionId;

use super::{
    endings,
    inner::{Inner, Phase},
    reclaim,
};
use crate::{
    authority::{AuthorityError, HeartbeatAttempt, RefusalReason},
    renewer::{Lost, Policy, SentHeartbeat, Step},
};

/// Keeps the session for as long as anyone holds a handle to it.
pub(super) async fn drive(session: Weak<Inner>) {
    let mut failures = 0;
    loop {
        let Some(inner) = session.upgrade() else { return };
        let until = match inner.phase() {
            Phase::Over(_) => return,
            Phase::Live(_) => {
                failures = 0;
                step(&inner).await
            }
            Phase::Reopening => {
                failures += 1;
                reopen(&inner, failures).await
            }
        };
        let Some(until) = until else { continue };
        let clock = inner.clock_handle();
        let changed = inner.changed.clone();
        // Not kept meanwhile: a session without handles ends.
        drop(inner);
        tokio::select! {
            biased;
            () = clock.wait_until(until) => {}
            () = changed.notified() => {}
        }
    }
}

/// Does what the renewer says; gives the time to sleep until, if that is what it says.
async fn step(inner: &Arc<Inner>) -> Option<BootTime> {
    let now = inner.clock().now();
    match inner.with_renewer(|renewer| renewer.poll(now))? {
        Step::Beat(flight) => send(inner, flight),
        Step::Lost(lost) => lose(inner, &lost).await,
        Step::Sleep(until) => return Some(until),
    }
    None
}

/// Sends a heartbeat, and does not wait for it: another one may have to go out beside it.
fn send(inner: &Arc<Inner>, flight: SentHeartbeat) {
    let Phase::Live(session) = inner.phase() else { return };
    inner.spawn(beat(Arc::downgrade(inner), session, flight));
}

/// One heartbeat. It ends by its time, or when a later one was answered. It does not keep the session while it is under
/// way.
async fn beat(weak: Weak<Inner>, session: SessionId, flight: SentHeartbeat) {
    let Some(inner) = weak.upgrade() else { return };
    let authority = inner.authority.clone();
    let clock = inner.clock_handle();
    let metrics = inner.metrics.lock().clone();
    let cursor = inner.sealed_cursor();
    let known = inner.set().map(|known| known.beat).filter(|beat| beat.session == session);
    let is_alone = inner.timing().policy == Policy::Immediate;
    let mut answered = inner.answered_beats();
    drop(inner);
    let SentHeartbeat { sent, until, beside, .. } = flight;
    let attempt = HeartbeatAttempt { within: until.since(sent), beside, is_alone };
    let answer = tokio::select! {
        biased;
        answer = authority.heartbeat(session, &metrics, cursor.as_deref(), known.as_ref(), attempt) => answer,
        () = clock.wait_until(until) => Err(AuthorityError::Unknown("no answer in time".to_owned())),
        _ = answered.wait_for(|answered| *answered > sent) => return,
    };
    drop(answered);
    let Some(inner) = weak.upgrade() else { return };
    match answer {
        Ok(Ok(beat)) => {
            inner.answered(sent, &beat);
            endings::end_returned(&inner);
        }
        Ok(Err(refusal)) if refusal.ends_session() => {
            inner.with_renewer_of(session, |renewer| renewer.on_refusal(refusal));
        }
        // Such as a key that was revoked: it says nothing of the lease, so it is a renewal that failed.
        Ok(Err(refusal)) => failed(&inner, session, flight, &refusal.to_string()),
        Err(error) => failed(&inner, session, flight, error.why()),
    }
    inner.changed.notify_one();
}

fn failed(inner: &Inner, session: SessionId, flight: SentHeartbeat, why: &str) {
    let now = inner.clock().now();
    let unit = inner.unit();
    let counts = inner.with_renewer_of(session, |renewer| renewer.on_failure(flight.number, now, why, unit));
    if counts == Some(true) {
        let left = inner.trusted_until().since(now);
        tracing::warn!(holder = %inner.holder, why, ?left, "heartbeat failed; retrying");
        inner.lacks_contact(why);
    }
}

/// The session is lost: so are its guards, and another one is opened, unless someone else has taken the name.
async fn lose(inner: &Arc<Inner>, lost: &Lost) {
    tracing::warn!(holder = %inner.holder, %lost, "session lost");
    match lost {
        Lost::Refused(refusal) if may_reclaim(inner, refusal) => reclaim::reclaim(inner).await,
        Lost::Refused(refusal) if refusal.is_superseded() => {
            inner.lose_all(lost, Phase::Over(lost.clone()));
        }
        Lost::Closed => inner.lose_all(lost, Phase::Over(lost.clone())),
        _ => inner.lose_all(lost, Phase::Reopening),
    }
}

/// Rule 22: told that it expired, a holder with grace may acquire again at once.
fn may_reclaim(inner: &Inner, refusal: &RefusalReason) -> bool {
    let is_grace = matches!(inner.config.policy, Policy::Grace(_));
    is_grace && !refusal.is_superseded() && inner.clock().now() >= inner.trusted_until()
}

/// Tries to open another session; gives the time of the next attempt, if it did not work.
async fn reopen(inner: &Arc<Inner>, failures: u32) -> Option<BootTime> {
    let retry_after = match inner.try_open().await {
        Ok(Ok((sent, beat))) => match inner.begin(sent, &beat) {
            Ok(true) => {
                tracing::info!(holder = %inner.holder, session = %beat.session, "opened a new session");
                return None;
            }
            Ok(false) => {
                // Closed meanwhile. If this does not work, its time runs out.
                let _ = inner.authority.close(beat.session).await;
                return None;
            }
            Err(error) => {
                tracing::warn!(holder = %inner.holder, %error, "cannot reopen the session; retrying");
                error.retry_after()
            }
        },
        Ok(Err(refusal)) if refusal.is_superseded() => {
            let lost = Lost::Refused(refusal);
            tracing::warn!(holder = %inner.holder, %lost, "session superseded; giving up");
            inner.lose_all(&lost, Phase::Over(lost.clone()));
            return None;
        }
        Ok(Err(refusal)) => {
            tracing::warn!(holder = %inner.holder, %refusal, "server refused to reopen the session; retrying");
            inner.lacks_contact(&refusal.detail);
            refusal.retry_after
        }
        Err(error) => {
            inner.lacks_contact(error.why());
            error.retry_after()
        }
    };
    Some(inner.clock().now().plus(inner.backoff(failures, retry_after)))
}
