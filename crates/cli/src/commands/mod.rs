//! The commands, a file each: thin, over the crates that do the work.

pub mod admin;
#[cfg(feature = "agent")]
pub mod agent;
pub mod completions;
pub mod deploy;
pub mod doctor;
#[cfg(feature = "agent")]
pub mod elect;
pub mod explain;
#[cfg(feature = "gate")]
pub mod gate;
pub mod health;
#[cfg(feature = "agent")]
pub mod hold;
pub mod job;
#[cfg(feature = "agent")]
pub mod keep;
pub mod lease;
#[cfg(feature = "agent")]
pub mod lock;
pub mod man;
pub mod node;
#[cfg(not(all(feature = "agent", feature = "gate", feature = "kafka", feature = "postgres")))]
pub mod not_built;
#[cfg(feature = "kafka")]
pub mod orchestrator;
pub mod placement;
pub mod resource;
#[cfg(feature = "postgres")]
pub mod rows;
pub mod runner;
pub mod serve;
pub mod session;
mod slots;
#[cfg(feature = "postgres")]
pub mod sql;
pub mod watch;

use solehold_process::signals::EndingSignals;

use crate::error::{CommandError, CommandResult};

/// Listens for SIGTERM and Ctrl-C from now on.
pub fn ending_signals() -> CommandResult<EndingSignals> {
    EndingSignals::new().map_err(|error| CommandError::broken(format!("cannot listen for signals: {error}")))
}
