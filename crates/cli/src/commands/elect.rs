//! `solehold elect`: leader election for any program. The command runs only while this process leads.

use std::{convert::Infallible, time::Duration};

use clap::Args;
use serde::Serialize;
use solehold_api::{paths, resources::ResourceBody, sse::Decoder, time::Timestamp, watch::WatchFrame};
use solehold_client::ROLE_KIND;
use solehold_clock::{Backoff, BootTime};
use tokio::time::sleep;

use super::{
    ending_signals,
    hold::{Errand, HoldArgs, Turn, lock_name},
};
use crate::{
    client::{Client, ServerArgs},
    error::{CommandError, CommandResult},
    exit::Exit,
    global::GlobalArgs,
    hold::ending_signal,
    human::one_line,
    output,
    target::ResourceArg,
};

/// The pauses before another campaign, after a term that was short.
const PAUSES: Backoff = Backoff { first: Duration::from_millis(500), cap: Duration::from_secs(30) };
/// A term of at least this time forgets the short ones before it.
const GOOD_TERM: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
pub struct ElectArgs {
    /// Name of the role; its lease is role/NAME
    #[arg(value_parser = lock_name)]
    name: String,
    /// Print the leader now and whenever it changes, and run no command
    #[arg(long, conflicts_with_all = ["command", "once"])]
    observe: bool,
    /// Exit when the command has ended or the role is lost, instead of standing for election again
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    hold: HoldArgs,
}

impl ElectArgs {
    pub fn is_question(&self) -> bool {
        self.observe
    }
}

pub async fn run(args: ElectArgs, server: &ServerArgs) -> CommandResult<u8> {
    let role = role(&args.name);
    let mut errand = Errand::new(role.clone(), args.hold)?;
    let client = Client::new(server)?;
    let mut failures = 0;
    loop {
        let began = BootTime::now();
        let why = match errand.run_once(server, &client, announce(&client, &role)).await {
            Ok(Turn::Interrupted(number)) => return Ok(Exit::of_signal(number)),
            Ok(Turn::Ended(end)) => match errand.told(end) {
                told if args.once || errand.signals.ending().is_some() => return told,
                Ok(code) => format!("the command ended with {code}"),
                Err(failure) if failure.exit == Exit::LeaseLost => failure.message,
                failed => return failed,
            },
            // Servers come back; a candidate that gave up would not.
            Err(failure) if failure.exit == Exit::Unavailable && !args.once => failure.message,
            Err(failure) => return Err(failure),
        };
        failures = if BootTime::now().since(began) >= GOOD_TERM { 1 } else { failures + 1 };
        output::note(format!("solehold: {why}; standing for {role} again"));
        tokio::select! {
            () = sleep(PAUSES.wait(failures, 0.5)) => {}
            number = ending_signal(&mut errand.signals) => return Ok(Exit::of_signal(number)),
        }
    }
}

fn role(name: &str) -> ResourceArg {
    ResourceArg { kind: ROLE_KIND.to_owned(), key: name.to_owned() }
}

/// Prints the leader and follows changes, until a signal ends it.
pub async fn observe(args: ElectArgs, client: &Client, global: &GlobalArgs) -> CommandResult<u8> {
    let role = role(&args.name);
    let mut signals = ending_signals()?;
    let show = |leader: &Leader| {
        if global.json { output::json_line(leader) } else { output::line(leader.line()) }
    };
    tokio::select! {
        ended = follow(client, &role, show) => ended.map(|never| match never {}),
        () = signals.next() => Ok(Exit::Interrupted.code()),
    }
}

/// Tells a candidate that waits who leads, whenever that changes.
async fn announce(client: &Client, role: &ResourceArg) -> Infallible {
    let tell = |leader: &Leader| {
        if leader.leader.is_some() {
            output::note(format!("solehold: {}", leader.line()));
        }
        Ok(())
    };
    match follow(client, role, tell).await {
        Ok(never) => never,
        // A key that may not watch can still be elected.
        Err(_) => std::future::pending().await,
    }
}

/// Who leads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Leader {
    role: String,
    leader: Option<String>,
    token: Option<u64>,
    since: Option<Timestamp>,
}

impl Leader {
    fn line(&self) -> String {
        let Self { role, leader, token, since } = self;
        match (leader, token, since) {
            (Some(leader), Some(token), Some(since)) => {
                one_line(&format!("{role} is led by {leader} with token {token}, since {since}"))
            }
            _ => format!("{role} has no leader"),
        }
    }

    async fn of(client: &Client, role: &ResourceArg) -> CommandResult<Self> {
        let found = client.get::<ResourceBody>(&paths::resource(&role.kind, &role.key), &[]).await;
        let lease = match found {
            Ok(resource) => resource.lease,
            // A role that no one has held yet, or not for long.
            Err(failure) if failure.exit == Exit::NotFound => None,
            Err(failure) => return Err(failure),
        };
        Ok(Self {
            role: role.key.clone(),
            leader: lease.as_ref().map(|lease| lease.holder.clone()),
            token: lease.as_ref().map(|lease| lease.token),
            since: lease.as_ref().map(|lease| lease.acquired_at),
        })
    }
}

/// Shows the leader, and again whenever it changes. While no server answers, the last one is taken to lead on.
async fn follow(
    client: &Client,
    role: &ResourceArg,
    mut show: impl FnMut(&Leader) -> CommandResult,
) -> CommandResult<Infallible> {
    let mut known = None;
    let mut failures = 0;
    loop {
        let followed = follow_stream(client, role, &mut known, &mut show).await;
        match followed {
            Ok(()) => failures = 0,
            Err(failure) if failure.exit == Exit::Unavailable => {}
            Err(failure) => return Err(failure),
        }
        failures += 1;
        sleep(Backoff { cap: Duration::from_secs(2), ..PAUSES }.wait(failures, 0.5)).await;
    }
}

/// Until the stream of changes ends. It is opened before the leader is read, so that no change is missed.
async fn follow_stream(
    client: &Client,
    role: &ResourceArg,
    known: &mut Option<Leader>,
    show: &mut impl FnMut(&Leader) -> CommandResult,
) -> CommandResult {
    let mut stream = client.stream(&paths::watch(), &[("kind", Some(role.kind.clone()))]).await?;
    let mut look = async || {
        let leader = Leader::of(client, role).await?;
        if known.as_ref() != Some(&leader) {
            show(&leader)?;
            *known = Some(leader);
        }
        CommandResult::Ok(())
    };
    look().await?;
    let broken =
        |why: &dyn std::fmt::Display| CommandError::broken(format!("the stream cannot be read: {why}"));
    let mut decoder = Decoder::default();
    while let Ok(Some(piece)) = stream.next().await {
        for frame in decoder.push(&piece).map_err(|error| broken(&error))? {
            match WatchFrame::from_sse(&frame).map_err(|error| broken(&error))? {
                Some(WatchFrame::Event(event)) if event.key == role.key => look().await?,
                Some(WatchFrame::Resync(_)) => return Ok(()),
                _ => {}
            }
        }
    }
    Ok(())
}
