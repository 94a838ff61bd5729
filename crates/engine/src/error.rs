//! Errors of the engine.

use crate::store::StoreError;

/// Why a command was not answered. A refusal is not an error: it is an outcome.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EngineError {
    /// The store could not do it, or its outcome is unknown.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Nothing was done: the lane has no room for this many more commands.
    #[error("the queue is full: {places} commands are already waiting")]
    Overloaded {
        /// The number of commands that a lane queues.
        places: usize,
    },
    /// Nothing was done: the engine is stopping.
    #[error("the engine is stopping")]
    Stopping,
}
