//! The lease itself: acquired, kept, followed and let go.

use std::{str::FromStr, sync::Arc, time::Duration};

use solehold_api::problem::{ErrorCode, Problem};
use solehold_client::{
    AcquireError, AuthorityError, Guard, Http, Lost, OpenError, Policy, Refusal, Session, SessionConfig,
};
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{LeaseTerm, Standing};
use crate::{
    client,
    error::{CommandError, CommandResult},
    output,
    target::ResourceArg,
};

/// How long the server may take to confirm the release; otherwise the lease runs out.
const LET_GO_MAX: Duration = Duration::from_secs(3);
/// How often the deadline is looked at: a part of the ttl, within these bounds.
const LOOKS_IN_TTL: u32 = 30;
const LOOK_EVERY_MIN: Duration = Duration::from_millis(20);
const LOOK_EVERY_MAX: Duration = Duration::from_secs(1);

/// What is held, by whom and how.
#[derive(Debug, Clone)]
pub struct Terms {
    /// What is held.
    pub resource: ResourceArg,
    /// Who holds it.
    pub holder: String,
    /// How long it lasts without renewal.
    pub ttl: Duration,
    /// What to do when renewals get no answer.
    pub policy: Policy,
    /// How long the command has between SIGTERM and SIGKILL when the lease is lost.
    pub on_lost_grace: Duration,
}

/// How long to wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Not at all.
    None,
    /// For at most this long.
    AtMost(Duration),
}

/// As people write it.
pub fn policy(text: &str) -> Result<Policy, String> {
    match text.split_once('=') {
        None if text == "immediate" => Ok(Policy::Immediate),
        None if text == "deadline" => Ok(Policy::Deadline),
        Some(("grace", time)) => {
            let time = humantime::Duration::from_str(time);
            time.map(|time| Policy::Grace(time.into())).map_err(|error| format!("the grace: {error}"))
        }
        _ => Err("write immediate, deadline or grace=TIME, as in grace=5m".to_owned()),
    }
}

impl Terms {
    /// Opens the session that the lease will be attached to. A server that does not answer is reported at once.
    pub async fn open(&self, authority: Http) -> CommandResult<Session> {
        let config = SessionConfig {
            ttl: self.ttl,
            policy: self.policy,
            open_timeout: Duration::ZERO,
            ..SessionConfig::new(&self.holder)
        };
        let opened = Session::open(Arc::new(authority), config).await;
        opened.map_err(|error| match error {
            OpenError::Config(_) | OpenError::Name(_) => CommandError::usage(error.to_string()),
            OpenError::Refused(refusal) => of_refusal(refusal),
            OpenError::Authority(error) => of_error(&error),
        })
    }

    /// Acquires, and says whom it waits for.
    pub async fn acquire(&self, session: &Session, patience: Patience) -> CommandResult<Guard> {
        let ResourceArg { kind, key } = &self.resource;
        let refusal = match (session.try_acquire(kind, key).await, patience) {
            (Ok(guard), _) => return Ok(guard),
            (Err(AcquireError::Refused { refusal, .. }), Patience::AtMost(wait))
                if refusal.is_worth_another_try() =>
            {
                (refusal, wait)
            }
            (Err(error), _) => return Err(self.of_acquire(error)),
        };
        let (refusal, wait) = refusal;
        let holder = refusal.holder.map(|holder| format!(", held by {holder}")).unwrap_or_default();
        output::note(format!("waiting for {}{holder}", self.resource));
        session.acquire_within(kind, key, wait).await.map_err(|error| self.of_acquire(error))
    }

    fn of_acquire(&self, error: AcquireError) -> CommandError {
        let failure = match error {
            AcquireError::Refused { refusal, .. } => of_refusal(refusal),
            AcquireError::Authority { error, .. } => of_error(&error),
            AcquireError::Name(error) => CommandError::usage(error.to_string()),
            AcquireError::TimedOut { holder, .. } => {
                let holder = holder.map(|holder| format!(": held by {holder}")).unwrap_or_default();
                CommandError::new(ErrorCode::Held, format!("it was not free in time{holder}"))
            }
            AcquireError::SessionOver(lost) => CommandError::new(ErrorCode::Lost, lost.to_string()),
        };
        failure.doing(format!("acquire {}", self.resource))
    }

    fn lasting(&self, guard: &Guard) -> LeaseTerm {
        let deadline = guard.deadline();
        let stop_at = match self.policy {
            Policy::Grace(grace) => deadline.plus(grace),
            Policy::Immediate | Policy::Deadline => deadline,
        };
        let variables = [
            ("SOLEHOLD_TOKEN", guard.token().0.to_string()),
            ("SOLEHOLD_LEASE_ID", guard.lease_id().to_string()),
            ("SOLEHOLD_DEADLINE_BOOTTIME_MS", deadline.as_ms().to_string()),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value));
        LeaseTerm { stop_at_ms: stop_at.as_ms(), variables: variables.into() }
    }
}

/// A lease that is held, followed by a task that tells how it stands.
#[derive(Debug)]
pub struct Tenure {
    terms: Terms,
    session: Session,
    standing: watch::Receiver<Standing>,
    stop: oneshot::Sender<()>,
    following: JoinHandle<(Guard, Option<Lost>)>,
}

impl Tenure {
    /// Follows what becomes of a lease.
    pub fn new(terms: Terms, session: Session, guard: Guard) -> Self {
        let (tell, standing) = watch::channel(Standing { lasting: terms.lasting(&guard), lost: None });
        let (stop, stopped) = oneshot::channel();
        let following = tokio::spawn(follow(terms.clone(), guard, tell, stopped));
        Self { terms, session, standing, stop, following }
    }

    /// How the lease stands, now and later.
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.clone()
    }

    /// Releases the lease, once nothing is left that works under it. Returns why it was lost, if it was.
    pub async fn release(self) -> Option<Lost> {
        let Self { terms, session, stop, following, .. } = self;
        let _ = stop.send(());
        let (guard, lost) = following.await.ok()?;
        let released = timeout(LET_GO_MAX, guard.release()).await;
        if lost.is_none() && !matches!(released, Ok(Ok(()))) {
            let ttl = humantime::format_duration(terms.ttl);
            output::note(format!("{} could not be released: it runs out within {ttl}", terms.resource));
        }
        close(&session).await;
        lost
    }
}

/// Closes a session of which nothing is held.
pub async fn close(session: &Session) {
    // It runs out otherwise.
    let _ = timeout(LET_GO_MAX, session.close()).await;
}

async fn follow(
    terms: Terms,
    guard: Guard,
    tell: watch::Sender<Standing>,
    mut stopped: oneshot::Receiver<()>,
) -> (Guard, Option<Lost>) {
    let every = (terms.ttl / LOOKS_IN_TTL).clamp(LOOK_EVERY_MIN, LOOK_EVERY_MAX);
    loop {
        tokio::select! {
            lost = guard.lost() => {
                tell.send_modify(|standing| standing.lost = Some(terms.on_lost_grace));
                return (guard, Some(lost));
            }
            _ = &mut stopped => return (guard, None),
            () = sleep(every) => {}
        }
        let lasting = terms.lasting(&guard);
        // Looked at after the deadline was read: that of a session after this one does not count.
        if !guard.cancellation().is_cancelled() {
            tell.send_if_modified(|standing| {
                let is_new = standing.lasting != lasting;
                standing.lasting = lasting;
                is_new
            });
        }
    }
}

fn of_refusal(refusal: Refusal) -> CommandError {
    CommandError::from(Problem {
        holder: refusal.holder,
        token: refusal.token.map(|token| token.0),
        retry_after_ms: refusal.retry_after.map(|time| time.as_millis() as u64),
        ..Problem::new(refusal.code, refusal.detail)
    })
}

fn of_error(error: &AuthorityError) -> CommandError {
    match error {
        AuthorityError::Unreachable { why, .. } => {
            let failure = CommandError::new(ErrorCode::Unavailable, why.clone());
            match client::hint(why) {
                Some(hint) => failure.hint(hint),
                None => failure,
            }
        }
        AuthorityError::Unknown(why) => CommandError::new(ErrorCode::UnknownOutcome, why.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_written_in_three_ways() {
        assert_eq!(policy("immediate"), Ok(Policy::Immediate));
        assert_eq!(policy("deadline"), Ok(Policy::Deadline));
        assert_eq!(policy("grace=5m"), Ok(Policy::Grace(Duration::from_secs(300))));
        for odd in ["", "grace", "grace=", "grace=x", "forever", "deadline=1s"] {
            assert!(policy(odd).is_err(), "{odd:?}");
        }
    }
}
