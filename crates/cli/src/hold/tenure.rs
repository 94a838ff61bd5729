//! The lease itself: acquired, kept, followed and let go.

use std::{str::FromStr, sync::Arc, time::Duration};

use solehold_agent::keep::{LeaseStatus, LeaseTerm};
use solehold_api::problem::{ErrorCode, Problem};
use solehold_client::{
    AcquireError, Authority, AuthorityError, ClientSession, Contact, Guard, Http, Lost, Obstacle, OpenError,
    Policy, RefusalReason, SessionConfig,
};
use solehold_clock::{Backoff, BootTime};
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::notes::{self, Outage, Place};
use crate::{
    client::{self, Client},
    error::{CommandError, CommandResult, ValueError},
    human::duration_ms,
    output,
    target::ResourceArg,
};

/// The pauses between attempts to reach a server that is not there yet.
const OPEN_PAUSE_FIRST: Duration = Duration::from_millis(100);
const OPEN_PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long the server may take to confirm the release; otherwise the lease runs out.
const LET_GO_MAX: Duration = Duration::from_secs(3);
/// How often the deadline is looked at: a part of the ttl, within these bounds.
const LOOKS_IN_TTL: u32 = 30;
const LOOK_EVERY_MIN: Duration = Duration::from_millis(20);
const LOOK_EVERY_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub struct Terms {
    pub resource: ResourceArg,
    /// Of how many slots one is held; none to hold it alone.
    pub slots: Option<u32>,
    pub holder: String,
    pub ttl: Duration,
    pub policy: Policy,
    /// How long the command has between SIGTERM and SIGKILL when the lease is lost.
    pub on_lost_grace: Duration,
    /// How long before the deadline the command is asked to end if no renewal comes.
    pub warn: Duration,
    /// What the commands hold that this one runs under.
    pub above: Vec<HeldAbove>,
    /// Whether a command runs under it here; otherwise another process works under it.
    pub has_command: bool,
}

/// What a command holds that this one runs under: by whom, and under which token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldAbove {
    pub token: u64,
    pub holder: String,
}

impl HeldAbove {
    /// From the variable that lists them, a line each.
    pub fn of_variable(text: &str) -> Vec<Self> {
        let read = |line: &str| {
            let (token, holder) = line.split_once(' ')?;
            Some(Self { token: token.parse().ok()?, holder: holder.to_owned() })
        };
        text.lines().filter_map(read).collect()
    }

    /// The same for the next command: with what it runs under besides.
    pub fn variable(above: &[Self]) -> String {
        let lines = above.iter().map(|held| format!("{} {}", held.token, held.holder));
        lines.collect::<Vec<_>>().join("\n")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    None,
    AtMost(Duration),
}

pub fn policy(text: &str) -> Result<Policy, ValueError> {
    match text.split_once('=') {
        None if text == "immediate" => Ok(Policy::Immediate),
        None if text == "deadline" => Ok(Policy::Deadline),
        Some(("grace", time)) => {
            let time = humantime::Duration::from_str(time);
            time.map(|time| Policy::Grace(time.into())).map_err(|error| format!("the grace: {error}").into())
        }
        _ => Err("write immediate, deadline or grace=TIME, as in grace=5m".into()),
    }
}

impl Terms {
    /// Opens the session that the lease will be attached to. A server that does not answer is waited for that long.
    pub async fn open(&self, authority: Http, wait: Duration) -> CommandResult<ClientSession> {
        let config = SessionConfig {
            ttl: self.ttl,
            policy: self.policy,
            open_timeout: Duration::ZERO,
            ..SessionConfig::new(&self.holder)
        };
        let authority: Arc<dyn Authority> = Arc::new(authority);
        let began = BootTime::now();
        let pauses = Backoff { first: OPEN_PAUSE_FIRST, cap: OPEN_PAUSE_MAX };
        for attempt in 1.. {
            let error = match ClientSession::open(authority.clone(), config.clone()).await {
                Ok(session) => return Ok(session),
                Err(OpenError::Authority(error)) => error,
                Err(OpenError::Refused(refusal)) => return Err(of_refusal(refusal)),
                Err(error) => return Err(CommandError::usage(error.to_string())),
            };
            let pause = pauses.wait(attempt, 0.5);
            let is_in_time = BootTime::now().plus(pause) < began.plus(wait);
            let may_come_up = error.obstacle().is_none_or(Obstacle::may_pass);
            if !is_in_time || !may_come_up {
                return Err(of_error(&error));
            }
            if attempt == 1 {
                let wait = humantime::format_duration(wait);
                output::note(format!("waiting up to {wait} for a server: {}", error.why()));
            }
            sleep(pause).await;
        }
        unreachable!("it is tried until the time is over")
    }

    /// Acquires, and says whom it waits for.
    pub async fn acquire(
        &self,
        session: &ClientSession,
        patience: Patience,
        client: &Client,
    ) -> CommandResult<Guard> {
        let ResourceArg { kind, key } = &self.resource;
        let acquired = match self.slots {
            Some(slots) => session.acquire_shared(kind, key, slots, None).await,
            None => session.try_acquire(kind, key).await,
        };
        let (error, refusal) = match acquired {
            Ok(guard) => return Ok(guard),
            Err(AcquireError::Refused { resource, refusal }) => {
                (AcquireError::Refused { resource, refusal: refusal.clone() }, refusal)
            }
            Err(error) => return Err(self.of_acquire(error)),
        };
        self.check_not_held_above(&refusal)?;
        let wait = match patience {
            Patience::AtMost(wait) if refusal.is_worth_another_try() => wait,
            _ => return Err(self.of_acquire(error)),
        };
        let place = Place::next(client, &self.resource).await;
        let holder = refusal.holder.as_deref();
        let acquire = async {
            match self.slots {
                Some(slots) => session.acquire_shared(kind, key, slots, Some(wait)).await,
                None => session.acquire_within(kind, key, wait).await,
            }
        };
        tokio::select! {
            acquired = acquire => acquired.map_err(|error| self.of_acquire(error)),
            never = notes::waiting(&self.resource, holder, client, place, session.contact()) => match never {},
        }
    }

    /// What is held by a command that this one runs under is not free before this one ends.
    fn check_not_held_above(&self, refusal: &RefusalReason) -> CommandResult {
        let is_it = |held: &&HeldAbove| {
            refusal.token.is_some_and(|token| token.0 == held.token)
                && refusal.holder.as_deref() == Some(held.holder.as_str())
        };
        let Some(held) = self.above.iter().find(is_it) else { return Ok(()) };
        let message = format!(
            "cannot acquire {}: the command that this one runs under holds it already, as {} with token {}",
            self.resource, held.holder, held.token
        );
        Err(CommandError::new(ErrorCode::Held, message)
            .hint("it would wait for itself: run the inner command without it, or under another name"))
    }

    fn of_acquire(&self, error: AcquireError) -> CommandError {
        let failure = match error {
            AcquireError::Refused { refusal, .. } => of_refusal(refusal),
            AcquireError::Authority { error, .. } => of_error(&error),
            AcquireError::Name(error) => CommandError::usage(error.to_string()),
            error @ AcquireError::Twice(_) => CommandError::usage(error.to_string()),
            AcquireError::TimedOut { holder, .. } => {
                let holder = holder.map(|holder| format!(": held by {holder}")).unwrap_or_default();
                CommandError::new(ErrorCode::Held, format!("it was not free in time{holder}"))
            }
            AcquireError::SessionOver(lost) => CommandError::new(ErrorCode::Lost, lost.to_string()),
        };
        failure.doing(format!("acquire {}", self.resource))
    }

    /// What becomes of the command without a renewal.
    fn outlook(&self, guard: &Guard) -> String {
        let left_ms = self.lasting(guard).stop_at_ms.saturating_sub(BootTime::now().as_ms());
        if !self.has_command {
            return format!("trying again; without an answer it is lost in {}", duration_ms(left_ms));
        }
        let asked_ms = left_ms.saturating_sub(u64::try_from(self.warn.as_millis()).unwrap_or(u64::MAX));
        let asked = duration_ms(asked_ms);
        let killed = duration_ms(left_ms);
        format!("trying again; without an answer the command gets SIGTERM in {asked} and SIGKILL in {killed}")
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
        let slot = guard.slot().map(|slot| ("SOLEHOLD_SLOT", slot.to_string()));
        let variables = variables.into_iter().chain(slot).map(|(name, value)| (name.to_owned(), value));
        LeaseTerm { stop_at_ms: stop_at.as_ms(), variables: variables.collect() }
    }
}

/// A lease that is held, followed by a task that tells how it stands.
#[derive(Debug)]
pub struct Tenure {
    terms: Terms,
    session: ClientSession,
    standing: watch::Receiver<LeaseStatus>,
    stop: oneshot::Sender<()>,
    following: JoinHandle<(Guard, Option<Lost>)>,
}

impl Tenure {
    /// Follows what becomes of a lease.
    pub fn new(terms: Terms, session: ClientSession, guard: Guard) -> Self {
        let (tell, standing) =
            watch::channel(LeaseStatus { lasting: terms.lasting(&guard), lost: None, is_asked_for: false });
        let (stop, stopped) = oneshot::channel();
        let following = tokio::spawn(follow(terms.clone(), session.contact(), guard, tell, stopped));
        Self { terms, session, standing, stop, following }
    }

    /// How the lease stands, now and later.
    pub fn standing(&self) -> watch::Receiver<LeaseStatus> {
        self.standing.clone()
    }

    /// Releases the lease, once nothing is left that works under it. Returns why it was lost, if it was. That a lease
    /// which ran out cannot be released needs no word.
    pub async fn release(self, ran_out: bool) -> Option<Lost> {
        let Self { terms, session, stop, following, .. } = self;
        let _ = stop.send(());
        let (guard, lost) = following.await.ok()?;
        let released = timeout(LET_GO_MAX, guard.release()).await;
        if lost.is_none() && !ran_out && !matches!(released, Ok(Ok(()))) {
            let ttl = humantime::format_duration(terms.ttl);
            output::note(format!("{} could not be released: it runs out within {ttl}", terms.resource));
        }
        close(&session).await;
        lost
    }
}

/// Closes a session of which nothing is held.
pub async fn close(session: &ClientSession) {
    // It runs out otherwise.
    let _ = timeout(LET_GO_MAX, session.close()).await;
}

async fn follow(
    terms: Terms,
    mut contact: watch::Receiver<Contact>,
    guard: Guard,
    tell: watch::Sender<LeaseStatus>,
    mut stopped: oneshot::Receiver<()>,
) -> (Guard, Option<Lost>) {
    let every = (terms.ttl / LOOKS_IN_TTL).clamp(LOOK_EVERY_MIN, LOOK_EVERY_MAX);
    let mut outage = Outage::default();
    let mut was_asked = false;
    // Where the first failure is the end, there is nothing to be told before that.
    let is_told = terms.policy != Policy::Immediate;
    loop {
        tokio::select! {
            lost = guard.lost() => {
                tell.send_modify(|standing| standing.lost = Some(terms.on_lost_grace));
                return (guard, Some(lost));
            }
            _ = &mut stopped => return (guard, None),
            asked = guard.hand_over_asked(), if !was_asked => {
                was_asked = true;
                let within = duration_ms(u64::try_from(asked.within.as_millis()).unwrap_or(u64::MAX));
                let end = if terms.has_command { "the command gets SIGTERM" } else { "end the work" };
                output::note(format!(
                    "{} asks for {}: {end}; if it does not end within {within}, it goes on",
                    asked.to, terms.resource
                ));
                tell.send_modify(|standing| standing.is_asked_for = true);
            }
            Ok(()) = contact.changed(), if is_told => outage.follow(
                &contact.borrow_and_update().clone(),
                |why| format!("{} cannot be renewed: {why}; {}", terms.resource, terms.outlook(&guard)),
                |after| format!("{} is renewed again, after {after}", terms.resource),
            ),
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

fn of_refusal(refusal: RefusalReason) -> CommandError {
    let (errors, limit) = refusal.wrong.map(|wrong| (wrong.errors, wrong.limit)).unwrap_or_default();
    CommandError::from(Problem {
        holder: refusal.holder.map(String::from),
        token: refusal.token.map(|token| token.0),
        retry_after_ms: refusal.retry_after.map(|time| time.as_millis() as u64),
        errors,
        limit,
        ..Problem::new(refusal.code, refusal.detail)
    })
}

fn of_error(error: &AuthorityError) -> CommandError {
    match error {
        AuthorityError::Denied { why, .. } => CommandError::new(ErrorCode::Forbidden, why.clone()),
        AuthorityError::Unreachable { why, obstacle, .. } => client::unreachable(why, *obstacle),
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
