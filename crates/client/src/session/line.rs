//! Waiting in line for a resource: first come, first served.

use std::{sync::Arc, time::Duration};

use solehold_api::problem::ErrorCode;
use solehold_clock::BootTime;
use solehold_core::key::SessionId;
use tokio::task::JoinSet;

use super::{
    adopt::{adopt_instead, waits_for_itself},
    guard::Guard,
    inner::Inner,
    request::{self, AcquireError, Attempt, LeaseTerms, Request},
};
use crate::authority::{
    AuthorityError, Completion, GrantedLease, Operation, RefusalReason, Reply, ResourceName,
};

/// A wait that the authority should have ended by now is ended here.
const WAIT_LEEWAY: Duration = Duration::from_secs(1);

/// How often a waiter asks where there is no line to wait in, by default.
pub(super) const POLL_EVERY: Duration = Duration::from_secs(1);

/// Waits in line for a resource for at most `timeout`; where there is no line, asks every `poll_every`.
pub(crate) async fn wait_in_line(
    inner: &Arc<Inner>,
    resource: ResourceName,
    terms: LeaseTerms,
    timeout: Duration,
    poll_every: Duration,
) -> Result<Guard, AcquireError> {
    request::check(inner, &resource)?;
    let until = inner.clock().now().plus(timeout);
    let request = Request::new(inner, resource, terms);
    let mut wait = LineWait { request, until, poll_every, holder: None };
    wait.run().await
}

/// Waits for several resources, all or none, for at most `timeout` in all. They are acquired in the order of their
/// names, so that no two who do so wait for each other. What was acquired is released again if one is not. The guards
/// come in the order in which they were asked for.
pub(crate) async fn wait_for_all(
    inner: &Arc<Inner>,
    resources: Vec<ResourceName>,
    timeout: Duration,
    poll_every: Duration,
) -> Result<Vec<Guard>, AcquireError> {
    let until = inner.clock().now().plus(timeout);
    let mut in_order: Vec<_> = resources.into_iter().enumerate().collect();
    in_order.sort_by(|(_, one), (_, other)| (&one.kind, &one.key).cmp(&(&other.kind, &other.key)));
    if let Some(pair) = in_order.windows(2).find(|pair| pair[0].1 == pair[1].1) {
        return Err(AcquireError::Twice(pair[0].1.clone()));
    }
    let mut guards = Vec::new();
    for (place, resource) in in_order {
        let left = until.since(inner.clock().now());
        let guard = wait_in_line(inner, resource, LeaseTerms::default(), left, poll_every).await?;
        guards.push((place, guard));
    }
    guards.sort_by_key(|(place, _)| *place);
    Ok(guards.into_iter().map(|(_, guard)| guard).collect())
}

struct LineWait {
    request: Request,
    until: BootTime,
    poll_every: Duration,
    /// Who held it when last heard of.
    holder: Option<String>,
}

/// What a wait in line came to.
enum InLine {
    Answered(Box<Reply<GrantedLease>>),
    /// There is no line to wait in.
    NoLine,
    /// The session's own lease is in the way.
    WaitsForItself,
}

enum Next {
    Return(Box<Result<Guard, AcquireError>>),
    Again,
    After(Duration),
}

impl LineWait {
    async fn run(&mut self) -> Result<Guard, AcquireError> {
        for failures in 1.. {
            let session = tokio::select! {
                biased;
                ready = self.request.inner.ready() => ready.map_err(AcquireError::SessionOver)?,
                () = self.request.inner.clock().wait_until(self.until) => return Err(self.timed_out()),
            };
            let next = match self.in_line(session).await {
                InLine::Answered(answer) => self.after_line(session, *answer, failures).await,
                InLine::NoLine => self.by_polling(session).await,
                InLine::WaitsForItself => self.ask_again(session, failures).await,
            };
            let pause = match next {
                Next::Return(outcome) => return *outcome,
                Next::Again => Duration::ZERO,
                Next::After(pause) => pause,
            };
            let now = self.request.inner.clock().now();
            if now.plus(pause) >= self.until {
                return Err(self.timed_out());
            }
            self.request.inner.pause(pause).await;
        }
        unreachable!("it is tried until its time is out")
    }

    fn timed_out(&self) -> AcquireError {
        AcquireError::TimedOut { resource: self.request.resource.clone(), holder: self.holder.clone() }
    }

    /// Waits in line until granted or out of time.
    ///
    /// One call of the authority has a longest wait. Before it ends the next one is made under the same request, which
    /// keeps the place. The former is let run out: dropped, it would leave the line, and take a grant along that it has
    /// just got.
    async fn in_line(&mut self, session: SessionId) -> InLine {
        let inner = self.request.inner.clone();
        let ask = self.request.ask(session);
        self.request.mark_sent();
        let mut calls = JoinSet::new();
        let own_lease = self.own_lease();
        tokio::pin!(own_lease);
        loop {
            let left = self.until.since(inner.clock().now());
            let wait = left.min(inner.authority.wait_max());
            let authority = inner.authority.clone();
            let ask = ask.clone();
            calls.spawn(async move { authority.acquire_waiting(&ask, wait).await });
            let asked_again_in = if left > wait { wait * 2 / 3 } else { wait + WAIT_LEEWAY };
            let asked_again_at = inner.clock().now().plus(asked_again_in);
            loop {
                let answer = tokio::select! {
                    biased;
                    answer = calls.join_next() => answer,
                    () = inner.clock().wait_until(asked_again_at) => break,
                    () = &mut own_lease => {
                        // The lease may still be the grant of this call.
                        calls.detach_all();
                        return InLine::WaitsForItself;
                    }
                };
                let answer = match answer {
                    Some(Ok(Some(answer))) => answer,
                    Some(Ok(None)) => return InLine::NoLine,
                    Some(Err(_)) | None => Err(AuthorityError::Unknown("the wait was given up".to_owned())),
                };
                // Whatever else the former call says, the later one has its place.
                if matches!(answer, Ok(Ok(_))) || calls.is_empty() {
                    calls.detach_all();
                    return InLine::Answered(Box::new(answer));
                }
            }
            if inner.clock().now() >= self.until {
                let error = AuthorityError::Unknown("no answer in time".to_owned());
                return InLine::Answered(Box::new(Err(error)));
            }
        }
    }

    async fn after_line(&mut self, session: SessionId, answer: Reply<GrantedLease>, failures: u32) -> Next {
        match answer {
            Ok(Ok(granted)) => self.take_up(session, granted).await,
            Ok(Err(refusal)) => self.refused(refusal, failures),
            Err(error) => Next::After(self.request.inner.backoff(failures, error.retry_after())),
        }
    }

    /// Resolves when this waits for a lease of its own session, as far as can be told without an answer.
    fn own_lease(&self) -> impl Future<Output = ()> + use<> {
        let inner = self.request.inner.clone();
        let resource = self.request.resource.clone();
        let is_exclusive = self.request.terms().slots.is_none();
        async move {
            if is_exclusive {
                waits_for_itself(&inner, &resource).await
            } else {
                std::future::pending().await
            }
        }
    }

    /// Asks whether the session's lease is the grant of this request. If it is not, it is adopted instead.
    async fn ask_again(&mut self, session: SessionId, failures: u32) -> Next {
        let ask = Operation::Acquire(self.request.ask(session));
        let answer = match self.request.inner.coalescer.submit(ask).await {
            Ok(Ok(Completion::Held(granted))) => Ok(Ok(granted)),
            Ok(Ok(Completion::Released)) => Err(AuthorityError::Unknown("an unexpected answer".to_owned())),
            Ok(Err(refusal)) => Ok(Err(refusal)),
            Err(error) => Err(error),
        };
        let is_held = matches!(&answer, Ok(Err(refusal)) if refusal.code == ErrorCode::Held);
        if is_held && let Some(guard) = self.adopt_instead().await {
            return Next::Return(Box::new(Ok(guard)));
        }
        self.after_line(session, answer, failures).await
    }

    /// Adopts the session's own lease that it was refused for, if there is one and it can be had in time.
    async fn adopt_instead(&mut self) -> Option<Guard> {
        let inner = self.request.inner.clone();
        tokio::select! {
            biased;
            adopted = adopt_instead(&mut self.request) => adopted,
            () = inner.clock().wait_until(self.until) => None,
        }
    }

    /// The fallback: asks every `poll_every`.
    async fn by_polling(&mut self, session: SessionId) -> Next {
        let refusal = match self.request.attempt(session).await {
            Attempt::Won(guard) => return Next::Return(Box::new(Ok(guard))),
            Attempt::Refused(refusal) => refusal,
            Attempt::Unknown(_) => return Next::After(self.poll_every),
        };
        if refusal.code == ErrorCode::Held
            && let Some(guard) = self.adopt_instead().await
        {
            return Next::Return(Box::new(Ok(guard)));
        }
        match self.refused(refusal, 1) {
            Next::After(_) => Next::After(self.poll_every),
            next => next,
        }
    }

    fn refused(&mut self, refusal: RefusalReason, failures: u32) -> Next {
        let inner = &self.request.inner;
        match refusal.code {
            ErrorCode::Held | ErrorCode::HeldBack => {
                self.holder = refusal.holder.map(String::from);
                Next::After(inner.backoff(failures, None).min(self.poll_every))
            }
            // The session is over, and another is opened.
            ErrorCode::NoSession | ErrorCode::SessionSuperseded => Next::After(inner.backoff(failures, None)),
            // A grant that it got lapsed before it could be confirmed.
            ErrorCode::RequestSpent => {
                self.request.renew();
                Next::Again
            }
            _ => {
                let resource = self.request.resource.clone();
                Next::Return(Box::new(Err(AcquireError::Refused { resource, refusal })))
            }
        }
    }

    /// A grant that was waited for is trusted only after a renewal (rule 15): the time between is not known.
    async fn take_up(&mut self, session: SessionId, granted: GrantedLease) -> Next {
        let granted = match granted.confirm_within {
            None => granted,
            Some(within) => match confirmed(&self.request.inner, granted, within).await {
                Ok(granted) => granted,
                // It lapsed, or its outcome is unknown: either way it is spent, and the wait begins anew.
                Err(error) => {
                    tracing::debug!(%error, resource = %self.request.resource, "cannot confirm the granted lease; acquiring again");
                    self.request.renew();
                    return Next::Again;
                }
            },
        };
        match self.request.take_up(session, granted) {
            Some(guard) => Next::Return(Box::new(Ok(guard))),
            None => {
                self.request.renew();
                Next::Again
            }
        }
    }
}

/// Renews a grant at once, so that it does not lapse. That vouches for this lease alone, and moves no deadline: the
/// lease is trusted for as long as the last heartbeat says of its session.
async fn confirmed(
    inner: &Arc<Inner>,
    granted: GrantedLease,
    within: Duration,
) -> Result<GrantedLease, AuthorityError> {
    let give_up = inner.clock().now().plus(within);
    for failures in 1.. {
        let renewed = tokio::select! {
            biased;
            renewed = inner.coalescer.submit(Operation::Renew(granted.held.clone())) => renewed,
            () = inner.clock().wait_until(give_up) => break,
        };
        match renewed {
            Ok(Ok(Completion::Held(renewed))) => return Ok(GrantedLease { state: granted.state, ..renewed }),
            Ok(Ok(Completion::Released)) => break,
            Ok(Err(refusal)) => return Err(AuthorityError::Unknown(refusal.detail)),
            Err(_) => inner.pause(inner.backoff(failures, None).min(within / 8)).await,
        }
    }
    Err(AuthorityError::Unknown("it could not be confirmed in time".to_owned()))
}
