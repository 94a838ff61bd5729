//! `solehold run` and `solehold lock`: run a command only while holding a lease. `elect` does so again and again.

use std::{convert::Infallible, ffi::OsString, io, time::Duration};

use clap::Args;
use rustix::process::getpid;
use solehold_agent::keep::{ExitHook, Job, JobEnd, SignalStream};
use solehold_api::problem::ErrorCode;
use solehold_client::{ClientSession, Guard, LOCK_KIND, Lost, Policy};
use solehold_core::key::{Name, SessionId};
use solehold_process::manager;
use uuid::Uuid;

use crate::{
    client::{Client, ServerArgs},
    config::GIVEN,
    error::{CommandError, CommandResult, ValueError},
    exit::Exit,
    hold::{self, HeldAbove, Patience, Restart, Tenure, Terms, ending_signal},
    target::ResourceArg,
    times,
};

/// The longest default for `--term-before`.
const TERM_BEFORE_MAX: Duration = Duration::from_secs(10);
/// The variable that lists the leases of all enclosing `run` and `lock` commands, this one included.
const HELD: &str = "SOLEHOLD_HELD";

#[derive(Debug, Args)]
pub struct RunArgs {
    /// The resource to hold, as KIND/KEY
    #[arg(long, value_name = "KIND/KEY")]
    lease: ResourceArg,
    #[command(flatten)]
    hold: HoldArgs,
}

#[derive(Debug, Args)]
pub struct LockArgs {
    /// Name of the lock; `solehold lock ls` without a command lists the locks and their waiters
    #[arg(value_parser = lock_name)]
    name: String,
    #[command(flatten)]
    hold: HoldArgs,
}

impl LockArgs {
    /// Whether this is `lock ls`, which runs no command. A lock named `ls` can still be held, with a command.
    pub fn is_question(&self) -> bool {
        self.name == "ls" && self.hold.command.is_empty()
    }
}

/// How a lease is acquired and kept.
#[derive(Debug, Args)]
pub(super) struct LeaseTerms {
    /// Prefix of the holder's name; the pid and a random suffix are added to make it unique [default: the host name]
    #[arg(long, value_name = "NAME")]
    holder: Option<String>,
    /// Time that the lease lasts without renewal
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = times::ttl)]
    ttl: Duration,
    /// Share it: up to N holders at once, each on a slot of its own [default: alone]
    #[arg(long, value_name = "N", value_parser = super::slots::parser())]
    slots: Option<u32>,
    /// Time to wait for the lease [default: forever]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with = "no_wait")]
    wait: Option<Duration>,
    /// Exit with code 103 at once if the lease is held
    #[arg(long)]
    no_wait: bool,
    /// Time to wait for a server that cannot be reached yet [default: 0s]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    wait_server: Option<Duration>,
}

#[derive(Debug, Args)]
pub(super) struct HoldArgs {
    #[command(flatten)]
    lease: LeaseTerms,
    /// What to do when renewals fail: `immediate` stops the command at the first failure, `deadline` at the deadline,
    /// and `grace=TIME` at TIME after the deadline, for work whose every output goes through a gate
    #[arg(long, default_value = "deadline", value_parser = hold::policy)]
    policy: Policy,
    /// How long before the deadline to send SIGTERM if there was no renewal [default: a sixth of the ttl, at most 10s]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    term_before: Option<Duration>,
    /// Time from SIGTERM to SIGKILL when the lease is lost [default: until the deadline]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    on_lost_grace: Option<Duration>,
    /// Start the command again when it ends, under the same token, while the lease is held; pauses of up to 30s come in
    /// between
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "on-failure")]
    restart: Option<Restart>,
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(super) fn lock_name(text: &str) -> Result<String, ValueError> {
    let name = Name::new(text).map_err(|error| format!("the name {error}"))?;
    if matches!(name.as_str(), "." | "..") {
        return Err(format!("the name is {text:?}, which no URL can name").into());
    }
    Ok(text.to_owned())
}

pub async fn run(args: RunArgs, server: &ServerArgs) -> CommandResult<u8> {
    hold_and_run(args.lease, args.hold, server).await
}

pub async fn lock(args: LockArgs, server: &ServerArgs) -> CommandResult<u8> {
    let resource = ResourceArg { kind: LOCK_KIND.to_owned(), key: args.name };
    hold_and_run(resource, args.hold, server).await
}

async fn hold_and_run(resource: ResourceArg, args: HoldArgs, server: &ServerArgs) -> CommandResult<u8> {
    let mut errand = Errand::new(resource, args)?;
    let nothing = std::future::pending();
    match errand.run_once(server, &Client::new(server)?, nothing).await? {
        Turn::Interrupted(number) => Ok(Exit::of_signal(number)),
        Turn::Ended(end) => errand.told(end),
    }
}

/// A command to run while a lease is held, once or more often.
pub(super) struct Errand {
    terms: Terms,
    args: HoldArgs,
    pub(super) signals: SignalStream,
}

/// What came of it.
pub(super) enum Turn {
    /// By this signal, before the command was started.
    Interrupted(i32),
    Ended(TurnEnd),
}

/// How a command ended, and why its lease was lost, if it was.
pub(super) struct TurnEnd {
    ended: io::Result<JobEnd>,
    lost: Option<Lost>,
}

impl Errand {
    pub(super) fn new(resource: ResourceArg, args: HoldArgs) -> CommandResult<Self> {
        if args.command.is_empty() {
            let message = format!("no command is given to run while {resource} is held");
            return Err(CommandError::usage(message).hint("write it after two dashes, as in -- CMD ARG"));
        }
        let signals = take_signals()?;
        let terms = Terms {
            policy: args.policy,
            on_lost_grace: args.on_lost_grace.unwrap_or(Duration::MAX),
            warn: args.warn()?,
            has_command: true,
            ..args.lease.terms(resource)
        };
        Ok(Self { terms, args, signals })
    }

    /// Waits for the lease, and meanwhile for `beside`; then runs the command under it, and releases it.
    pub(super) async fn run_once(
        &mut self,
        server: &ServerArgs,
        client: &Client,
        beside: impl Future<Output = Infallible>,
    ) -> CommandResult<Turn> {
        let Self { terms, args, signals } = self;
        let (session, guard) = match args.lease.acquire(terms, server, client, signals, beside).await? {
            Ok(held) => held,
            Err(number) => return Ok(Turn::Interrupted(number)),
        };
        let job = Job {
            what: terms.resource.to_string(),
            command: args.command.clone(),
            env: variables(terms, guard.token().0),
            // What an outer `run` told is not for this command, nor is what a service manager told this process.
            env_remove: GIVEN.iter().chain(&manager::VARIABLES).map(|&name| name.to_owned()).collect(),
            warn: terms.warn,
            exit_hook: ExitHook {
                commands: session.id().map(close_session).into_iter().collect(),
                servers: server.urls()?.iter().map(ToString::to_string).collect(),
                env: server.variables(),
            },
            folder: None,
        };
        let tenure = Tenure::new(terms.clone(), session, guard);
        let ended = hold::supervise(|| job.clone(), &tenure, args.restart, signals).await;
        // Only now: nothing of the command is left.
        let lost = tenure.release(matches!(ended, Ok(JobEnd::Lost(_)))).await;
        Ok(Turn::Ended(TurnEnd { ended, lost }))
    }

    /// The exit code, or an error where the code is not the command's own.
    pub(super) fn told(&self, end: TurnEnd) -> CommandResult<u8> {
        told(end.ended, &self.terms.resource, end.lost)
    }
}

fn close_session(id: SessionId) -> Vec<String> {
    ["session", "close", &id.to_string()].map(str::to_owned).into()
}

/// The variables of the command that do not change while it runs.
fn variables(terms: &Terms, token: u64) -> Vec<(String, String)> {
    let Terms { resource, holder, above, .. } = terms;
    let lock = if resource.kind == LOCK_KIND { resource.key.clone() } else { resource.to_string() };
    let held = above.iter().cloned().chain([HeldAbove { token, holder: holder.clone() }]);
    let all = [
        ("SOLEHOLD_RESOURCE", resource.to_string()),
        ("SOLEHOLD_LOCK", lock),
        ("SOLEHOLD_HOLDER", holder.clone()),
        (HELD, HeldAbove::variable(&held.collect::<Vec<_>>())),
    ];
    all.map(|(name, value)| (name.to_owned(), value)).into()
}

/// Signals are kept to be read from now on. First of all: a thread that was there before would still be interrupted.
pub(super) fn take_signals() -> CommandResult<SignalStream> {
    SignalStream::take().map_err(|error| CommandError::broken(format!("cannot read signals: {error}")))
}

impl LeaseTerms {
    /// What is to be held, without a command.
    pub(super) fn terms(&self, resource: ResourceArg) -> Terms {
        Terms {
            resource,
            slots: self.slots,
            holder: unique_holder(self.holder.as_deref()),
            ttl: self.ttl,
            policy: Policy::Deadline,
            on_lost_grace: Duration::ZERO,
            warn: Duration::ZERO,
            above: HeldAbove::of_variable(&std::env::var(HELD).unwrap_or_default()),
            has_command: false,
        }
    }

    /// Opens a session and waits for the lease, and meanwhile for `beside`; or the signal that ended the wait.
    pub(super) async fn acquire(
        &self,
        terms: &Terms,
        server: &ServerArgs,
        client: &Client,
        signals: &mut SignalStream,
        beside: impl Future<Output = Infallible>,
    ) -> CommandResult<Result<(ClientSession, Guard), i32>> {
        let authority = server.authority()?;
        let session = tokio::select! {
            session = terms.open(authority, self.wait_server.unwrap_or_default()) => session?,
            number = ending_signal(signals) => return Ok(Err(number)),
        };
        let otherwise = tokio::select! {
            guard = terms.acquire(&session, self.patience(), client) => match guard {
                Ok(guard) => return Ok(Ok((session, guard))),
                Err(failure) => Err(failure),
            },
            number = ending_signal(signals) => Ok(Err(number)),
            never = beside => match never {},
        };
        hold::close(&session).await;
        otherwise
    }

    fn patience(&self) -> Patience {
        if self.no_wait { Patience::None } else { Patience::AtMost(self.wait.unwrap_or(Duration::MAX)) }
    }
}

impl HoldArgs {
    fn warn(&self) -> CommandResult<Duration> {
        let ttl = self.lease.ttl;
        let warn = self.term_before.unwrap_or_else(|| (ttl / 6).min(TERM_BEFORE_MAX));
        if warn < ttl / 2 {
            return Ok(warn);
        }
        let warn = humantime::format_duration(warn);
        let ttl = humantime::format_duration(ttl);
        Err(CommandError::usage(format!(
            "--term-before {warn} must be less than half of the ttl, {ttl}: otherwise the command would be stopped before its lease could be renewed"
        )))
    }
}

/// The exit code, or an error where the code is not the command's own.
fn told(ended: std::io::Result<JobEnd>, resource: &ResourceArg, lost: Option<Lost>) -> CommandResult<u8> {
    let failed = |message: String| Err(CommandError::broken(message));
    match ended {
        Ok(JobEnd::Exited(code)) => Ok(code),
        Ok(JobEnd::Lost(code)) => {
            let how = code.map_or_else(|| "was killed".to_owned(), |code| format!("ended with {code}"));
            let message = format!("{resource}: {}; the command {how}", lost.unwrap_or(Lost::Deadline));
            Err(CommandError { exit: Exit::LeaseLost, ..CommandError::new(ErrorCode::Lost, message) })
        }
        Ok(JobEnd::TooLate) => failed("the lease expired before the command could be started".to_owned()),
        Ok(JobEnd::NotStarted(why)) => failed(format!("cannot start the command: {why}")),
        Ok(JobEnd::KeeperDied) => failed("the keeper was killed, so the command was killed".to_owned()),
        Err(error) => failed(format!("cannot run the command: {error}")),
    }
}

/// A unique name: a session replaces an older one of the same holder.
fn unique_holder(begin: Option<&str>) -> String {
    let begin = begin.map_or_else(solehold_process::name::host, str::to_owned);
    let random = Uuid::new_v4().simple().to_string();
    format!("{begin}-{}-{}", getpid(), &random[..6])
}
