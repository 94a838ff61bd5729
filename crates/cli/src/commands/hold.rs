//! `solehold run` and `solehold lock`: run a command only while holding a lease.

use std::{ffi::OsString, time::Duration};

use clap::Args;
use nix::sys::signal::Signal as SignalName;
use rustix::process::getpid;
use solehold_agent::keep::{self, ExitHook, Job, JobEnd, SignalStream};
use solehold_api::problem::ErrorCode;
use solehold_client::{LOCK_KIND, Lost, Policy};
use solehold_core::key::{Name, SessionId};
use solehold_process::manager;
use uuid::Uuid;

use crate::{
    client::{Client, ServerArgs},
    config::GIVEN,
    error::{CommandError, CommandResult, ValueError},
    exit::Exit,
    hold::{self, HeldAbove, Patience, Tenure, Terms},
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

#[derive(Debug, Args)]
struct HoldArgs {
    /// Prefix of the holder's name; the pid and a random suffix are added to make it unique [default: the host name]
    #[arg(long, value_name = "NAME")]
    holder: Option<String>,
    /// Time that the lease lasts without renewal
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = times::ttl)]
    ttl: Duration,
    /// Time to wait for the lease [default: forever]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with = "no_wait")]
    wait: Option<Duration>,
    /// Exit with code 103 at once if the lease is held
    #[arg(long)]
    no_wait: bool,
    /// Time to wait for a server that cannot be reached yet [default: 0s]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    wait_server: Option<Duration>,
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
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

fn lock_name(text: &str) -> Result<String, ValueError> {
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
    if args.command.is_empty() {
        let message = format!("no command is given to run while {resource} is held");
        return Err(CommandError::usage(message).hint("write it after two dashes, as in -- CMD ARG"));
    }
    // First of all: a thread that was there before would still be interrupted by signals.
    let signals = SignalStream::take();
    let mut signals =
        signals.map_err(|error| CommandError::broken(format!("cannot read signals: {error}")))?;
    let terms = Terms {
        resource: resource.clone(),
        holder: unique_holder(args.holder.as_deref()),
        ttl: args.ttl,
        policy: args.policy,
        on_lost_grace: args.on_lost_grace.unwrap_or(Duration::MAX),
        warn: args.warn()?,
        above: HeldAbove::of_variable(&std::env::var(HELD).unwrap_or_default()),
    };
    let authority = server.authority()?;
    let client = Client::new(server)?;
    let interrupted = |number| Ok(Exit::of_signal(number));
    let session = tokio::select! {
        session = terms.open(authority, args.wait_server.unwrap_or_default()) => session?,
        number = ending_signal(&mut signals) => return interrupted(number),
    };
    let acquired = tokio::select! {
        guard = terms.acquire(&session, args.patience(), &client) => guard.map_err(Err),
        number = ending_signal(&mut signals) => Err(interrupted(number)),
    };
    let guard = match acquired {
        Ok(guard) => guard,
        Err(otherwise) => {
            hold::close(&session).await;
            return otherwise;
        }
    };
    let job = Job {
        what: resource.to_string(),
        command: args.command,
        env: variables(&terms, guard.token().0),
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
    let tenure = Tenure::new(terms, session, guard);
    let ended = keep::supervise(job, tenure.standing(), &mut signals).await;
    // Only now: nothing of the command is left.
    let lost = tenure.release(matches!(ended, Ok(JobEnd::Lost(_)))).await;
    told(ended, &resource, lost)
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

impl HoldArgs {
    fn warn(&self) -> CommandResult<Duration> {
        let warn = self.term_before.unwrap_or_else(|| (self.ttl / 6).min(TERM_BEFORE_MAX));
        if warn < self.ttl / 2 {
            return Ok(warn);
        }
        let warn = humantime::format_duration(warn);
        let ttl = humantime::format_duration(self.ttl);
        Err(CommandError::usage(format!(
            "--term-before {warn} must be less than half of the ttl, {ttl}: otherwise the command would be stopped before its lease could be renewed"
        )))
    }

    fn patience(&self) -> Patience {
        if self.no_wait { Patience::None } else { Patience::AtMost(self.wait.unwrap_or(Duration::MAX)) }
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

/// Waits for a signal that ends this process: the command is not running yet, so there is nothing to forward it to.
async fn ending_signal(signals: &mut SignalStream) -> i32 {
    let harmless = [SignalName::SIGCHLD, SignalName::SIGCONT, SignalName::SIGURG, SignalName::SIGWINCH];
    let stopping = [SignalName::SIGTSTP, SignalName::SIGTTIN, SignalName::SIGTTOU];
    let is_one = |named: &[SignalName], number| named.iter().any(|named| *named as i32 == number);
    loop {
        match signals.next().await {
            number if is_one(&harmless, number) => {}
            number if is_one(&stopping, number) => keep::stop_here(),
            number => return number,
        }
    }
}

/// A unique name: a session replaces an older one of the same holder.
fn unique_holder(begin: Option<&str>) -> String {
    let begin = begin.map_or_else(solehold_process::name::host, str::to_owned);
    let random = Uuid::new_v4().simple().to_string();
    format!("{begin}-{}-{}", getpid(), &random[..6])
}
