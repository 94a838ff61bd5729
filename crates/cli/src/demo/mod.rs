//! `solehold demo`: a server, a gate and three agents in a temporary folder, and what happens when things go wrong.
//!
//! ```text
//!   world    real processes: `solehold serve`, `solehold agent` with its keepers and workers; killed, paused, added
//!   storage  where the workers write, behind the gate of `solehold-client`, which refuses old tokens
//!   model    pure: who owns what, what is under way, what was refused; fed by the watch and the storage
//!   view     a person looks, and presses keys         tour    a script does, and says what it measured
//! ```

mod incident;
mod model;
mod play;
mod storage;
mod tour;
mod view;
mod worker;
mod world;

use std::io::{IsTerminal, stdin, stdout};

use clap::{Args, Subcommand};
use solehold_clock::wall_ms;

use self::play::Play;
use crate::{
    commands::ending_signals,
    error::{CommandError, CommandResult},
    exit::Exit,
    live::screen::Screen,
    output,
};

/// The kind of the resources.
const KIND: &str = "counter";
const RESOURCES: usize = 24;
const RUNNERS: usize = 3;
/// How long a lease lasts without renewal: how long the others wait for a runner that has gone silent.
const TTL_SECONDS: u64 = 4;
/// For how long workers go on without a server. The gate refuses what they must not do.
const GRACE_SECONDS: u64 = 60;

#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Show what happens step by step as text, without asking for keys, and exit with 1 if a step did not show what it
    /// should; this is the default where there is no terminal
    #[arg(long)]
    tour: bool,
    #[command(subcommand)]
    part: Option<DemoPart>,
}

/// Other processes of the demo. Not for users.
#[derive(Debug, Subcommand)]
enum DemoPart {
    /// Run the worker of an agent of the demo
    #[command(hide = true)]
    Worker(worker::WorkerArgs),
    /// Run another command of this binary that is killed if the demo ends
    #[command(hide = true)]
    Part(world::PartArgs),
}

pub async fn run(args: DemoArgs) -> CommandResult<u8> {
    match args.part {
        Some(DemoPart::Worker(args)) => return worker::run(args).await.map(|()| Exit::Done.code()),
        Some(DemoPart::Part(args)) => return Err(world::become_part(&args)),
        None => {}
    }
    let mut signals = ending_signals()?;
    let mut play = Play::open()?;
    let is_tour = args.tour || !stdout().is_terminal() || !stdin().is_terminal();
    let ended = tokio::select! {
        ended = async {
            if is_tour { tour::run(&mut play).await } else { watch(&mut play).await }
        } => ended.map(|()| Exit::Done.code()),
        () = signals.next() => Ok(Exit::Interrupted.code()),
    };
    if let Err(failure) = &ended
        && failure.exit == Exit::Failed
    {
        output::note(play.logs());
    }
    play.close().await;
    if is_tour {
        output::note("solehold demo: all processes have ended, and the temporary folder is gone");
    }
    ended
}

/// Shows what happens until the person has seen enough.
async fn watch(play: &mut Play) -> CommandResult {
    output::note("solehold demo: starting a server, a gate and three agents ...");
    play.start().await?;
    let mut screen = Screen::open()?;
    loop {
        screen.draw(|frame| view::draw(frame, &play.model, wall_ms()))?;
        let press = tokio::select! {
            press = screen.press() => press,
            told = play.step() => {
                told?;
                continue;
            }
        };
        let Some(wish) = play.model.press(press) else { continue };
        match wish {
            model::Deed::Quit => return Ok(()),
            deed => {
                let failed = |failure: CommandError| failure.message;
                if let Err(why) = play.act(deed).await.map_err(failed) {
                    play.model.note_trouble(&why, wall_ms());
                }
            }
        }
    }
}
