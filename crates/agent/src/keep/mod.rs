//! Runs a command only while a lease is held, and leaves no process of it behind.
//!
//! ```text
//!   holder   `solehold run` or the agent: session and renewals; sends every new deadline over a socket
//!     |        killed: the socket closes      stopped or hung: the deadline passes      either way the keeper ends all
//!     |        and then releases the leases of a holder that was killed
//!   keeper   one thread, its own process group or session: adopts every orphan below it, ends all of them at the deadline
//!     |        killed: the kernel kills the command, and the holder, which adopts the rest, kills that
//!   shim     asks the kernel to be killed with the keeper, enters its cgroup, takes the terminal, becomes the command
//!   command  its own process group or session, and whatever it starts, by `setsid` or a double fork too
//! ```
//!
//! Keeper and shim are this binary again. `plan` decides which process to signal, and when, and is pure; `proc` finds
//! and signals processes; `cgroup` kills them all at once where the kernel permits it; `wire` is the protocol between
//! holder and keeper. The kernel sends a parent-death signal when the *thread* ends that started a process. The keeper
//! has one thread, which lives as long as it does, so a command can rely on it whatever the threads of the holder do.

#[cfg(not(target_os = "linux"))]
compile_error!("keeping a command needs Linux: child subreapers, pidfd, timerfd and signalfd");

mod cgroup;
mod folder;
mod holder;
mod keeper;
mod keepers;
mod plan;
pub mod proc;
mod shim;
mod signals;
mod terminal;
mod wire;

use std::{env, ffi::OsString, time::Duration};

pub use folder::SharedFolder;
pub use holder::{Holder, Job, JobEnd, LeaseStatus, Streams, stop_here, supervise};
pub use keepers::Keepers;
pub use signals::{SignalStream, Signals};
pub use wire::{ExitHook, LeaseTerm};

/// First arguments that start this binary as a keeper or a shim. Not for users.
const KEEPER: &str = "__keeper";
const SHIM: &str = "__shim";
/// The name that the keeper shows: `pkill solehold` must not hit it together with its holder.
const KEEPER_NAME: &str = "lease-keeper";
/// The longest time that a command is killed before its deadline.
const KILL_BEFORE_MAX: Duration = Duration::from_millis(250);
/// The variable that names the socket to the agent that the command has inherited.
pub(crate) const WORKER_FD: &str = "SOLEHOLD_WORKER_FD";

/// Runs this process as keeper or shim if it was started as one, and does not return then. A program that keeps
/// commands must call this first.
pub fn play_role() {
    let mut args = env::args_os().skip(1);
    let role = args.next();
    match role.as_ref().and_then(|role| role.to_str()) {
        Some(KEEPER) => keeper::main(),
        Some(SHIM) => shim::main(args.collect::<Vec<OsString>>()),
        _ => {}
    }
}

/// How long before a deadline a command is killed, so that it has ended at the deadline also on a busy machine (rule
/// 4): a twentieth of the ttl, and at most this long.
pub fn kill_before(ttl: Duration) -> Duration {
    (ttl / 20).min(KILL_BEFORE_MAX)
}

/// The number for an end by a signal, as shells say it.
fn code_of_signal(signal: i32) -> u8 {
    128_u8.saturating_add(u8::try_from(signal).unwrap_or_default())
}
