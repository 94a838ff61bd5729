//! `solehold lease keep`: holds a lease for a script, until the script is done or gone.

use std::{
    io::{IsTerminal as _, stdin},
    os::fd::{AsFd as _, OwnedFd},
    time::Duration,
};

use clap::Args;
use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::FileType,
    process::{Pid, PidfdFlags, pidfd_open},
};
use serde_json::json;
use solehold_api::problem::ErrorCode;
use solehold_client::Lost;
use tokio::io::AsyncReadExt as _;

use super::hold::{LeaseTerms, take_signals};
use crate::{
    client::{Client, ServerArgs},
    error::{CommandError, CommandResult},
    exit::Exit,
    global::GlobalArgs,
    hold::{Tenure, ending_signal},
    output,
    target::ResourceArg,
    times,
};

/// Shown below the options.
pub const AFTER_HELP: &str = "\
Examples:
  solehold lease keep job/nightly --no-wait --for 10m
  solehold lease keep job/nightly --holder report --pid $$ > token &

For a part of a script, in bash:
  coproc KEEP { exec solehold lease keep job/nightly; }
  PID=$KEEP_PID IN=${KEEP[1]}
  read -r TOKEN <&\"${KEEP[0]}\" || exit 1
  echo \"working under token $TOKEN\"
  exec {IN}>&-
  wait \"$PID\"";

#[derive(Debug, Args)]
pub struct KeepArgs {
    /// The resource to hold, as KIND/KEY
    #[arg(value_name = "KIND/KEY")]
    resource: ResourceArg,
    #[command(flatten)]
    lease: LeaseTerms,
    /// Release it after this time [default: never]
    #[arg(long = "for", value_name = "TIME", value_parser = times::duration)]
    for_time: Option<Duration>,
    /// Release it when this process has ended, as in --pid $$
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
}

/// Prints the token once it holds the lease, and releases it when stdin is closed, the time is over, the process has
/// ended or a signal comes. Ends with the code for a lost lease at the local deadline.
pub async fn run(args: KeepArgs, server: &ServerArgs, global: &GlobalArgs) -> CommandResult<u8> {
    let mut signals = take_signals()?;
    let process = args.pid.map(process).transpose()?;
    let terms = args.lease.terms(args.resource.clone());
    let client = Client::new(server)?;
    let nothing = std::future::pending();
    let (session, guard) = match args.lease.acquire(&terms, server, &client, &mut signals, nothing).await? {
        Ok(held) => held,
        Err(number) => return Ok(Exit::of_signal(number)),
    };
    let token = guard.token().0;
    let ResourceArg { kind, key } = &args.resource;
    // A reader that has gone away closes stdin, too, or is not needed.
    output::say(if global.json {
        let lease_id = guard.lease_id().to_string();
        let holder = &terms.holder;
        json!({ "kind": kind, "key": key, "token": token, "lease_id": lease_id, "holder": holder })
            .to_string()
    } else {
        token.to_string()
    });
    let tenure = Tenure::new(terms, session, guard);
    let mut standing = tenure.standing();
    let code = tokio::select! {
        () = input_closed() => Some(Exit::Done.code()),
        () = over(args.for_time) => Some(Exit::Done.code()),
        () = ended(process) => Some(Exit::Done.code()),
        number = ending_signal(&mut signals) => Some(Exit::of_signal(number)),
        _ = standing.wait_for(|status| status.lost.is_some()) => None,
    };
    match (tenure.release(code.is_none()).await, code) {
        (None, Some(code)) => Ok(code),
        (lost, _) => {
            let lost = lost.unwrap_or(Lost::Deadline);
            let message = format!("{}: {lost}; whatever works under token {token} must stop", args.resource);
            Err(CommandError { exit: Exit::LeaseLost, ..CommandError::new(ErrorCode::Lost, message) })
        }
    }
}

/// A handle on a process.
fn process(pid: u32) -> CommandResult<OwnedFd> {
    let odd = |why: String| CommandError::usage(format!("--pid {pid}: {why}"));
    let id = pid.try_into().ok().and_then(Pid::from_raw).ok_or_else(|| odd("not a process id".to_owned()))?;
    pidfd_open(id, PidfdFlags::empty()).map_err(|error| odd(error.to_string()))
}

/// Waits until a process has ended, on a thread of its own: the handle is readable then.
async fn ended(process: Option<OwnedFd>) {
    let Some(process) = process else { return std::future::pending().await };
    let wait = move || while poll(&mut [PollFd::new(&process, PollFlags::IN)], None).is_err() {};
    // It can only fail with the runtime.
    let _ = tokio::task::spawn_blocking(wait).await;
}

async fn over(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

/// Waits until stdin is closed. One that no process can close, such as /dev/null, which shells give to background jobs,
/// says nothing.
async fn input_closed() {
    let kind = rustix::fs::fstat(stdin()).map(|file| FileType::from_raw_mode(file.st_mode));
    let can_close = matches!(kind, Ok(FileType::Fifo | FileType::Socket)) || stdin().is_terminal();
    if !can_close {
        std::future::pending::<()>().await;
    }
    let Ok(input) = stdin().as_fd().try_clone_to_owned() else { return };
    let mut input = tokio::fs::File::from_std(input.into());
    let mut piece = [0; 1024];
    while let Ok(1..) = input.read(&mut piece).await {}
}
