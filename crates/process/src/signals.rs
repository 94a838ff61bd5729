//! The signals by which people and service managers end a process.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and Ctrl-C.
#[derive(Debug)]
pub struct EndingSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl EndingSignals {
    /// Listens for them from now on.
    pub fn new() -> io::Result<Self> {
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self { terminate, interrupt })
    }

    /// Waits for the next one.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
