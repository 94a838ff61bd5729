//! Running a command only while a lease is held, and leaving nothing of it behind.
//!
//! ```text
//!   holder   `solehold run`: session and renewals; tells every new deadline over a socket
//!     |        killed: the socket closes      stopped or hung: the deadline passes      either way the keeper ends all,
//!     |        and then the session of a holder that was killed
//!   keeper   one thread, its own process group: adopts every orphan below it, ends all of them at the deadline
//!     |        killed: the kernel kills the command, and the holder, which adopts the rest, kills that
//!   shim     asks the kernel to be killed with the keeper, takes the terminal, becomes the command
//!   command  its own process group, and whatever it starts, by `setsid` or a double fork too
//! ```
//!
//! Keeper and shim are this binary again. `plan` says when what is ended, and is pure; `proc` finds and signals
//! processes; `wire` is what holder and keeper tell each other; `tenure` is the lease itself; `notes` is what people
//! are told.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "`solehold run` and `solehold lock` need Linux: child subreapers, pidfd, timerfd and signalfd"
);

mod keeper;
mod notes;
mod plan;
mod proc;
mod shim;
mod signals;
mod supervise;
mod tenure;
mod terminal;
mod wire;

use std::{env, ffi::OsString};

pub use signals::SignalStream;
pub use supervise::{Job, JobEnd, Standing, stop_here, supervise};
pub use tenure::{HeldAbove, Patience, Tenure, Terms, close, policy};
pub use wire::{Farewell, LeaseTerm};

/// What a process of this binary is called that is not for people to start, by its first argument.
const KEEPER: &str = "__keeper";
const SHIM: &str = "__shim";
/// The name that the keeper shows: `pkill solehold` must not hit it together with its holder.
const KEEPER_NAME: &str = "lease-keeper";

/// Runs this process as keeper or shim if it was started as one; it does not come back then.
pub fn play_role() {
    let mut args = env::args_os().skip(1);
    let role = args.next();
    match role.as_ref().and_then(|role| role.to_str()) {
        Some(KEEPER) => keeper::main(),
        Some(SHIM) => shim::main(args.collect::<Vec<OsString>>()),
        _ => {}
    }
}
