//! The signals by which people and service managers end a program.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::{CommandError, CommandResult};

/// SIGTERM and Ctrl-C.
#[derive(Debug)]
pub struct EndingSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl EndingSignals {
    /// Listens for them from now on.
    pub fn new() -> CommandResult<Self> {
        let listen = |kind| {
            signal(kind).map_err(|error| CommandError::broken(format!("cannot listen for signals: {error}")))
        };
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    /// Waits for the next one.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
