//! Why the engine did not answer a command.

use crate::store::StoreError;

/// Why a command was not answered. A refusal is not an error: it is an outcome.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EngineError {
    /// The store could not do it, or its outcome is unknown.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Nothing was done: the lane has no room for this many more commands.
    #[error("too many commands wait already: a lane has places for {places}")]
    Overloaded {
        /// How many commands a lane has places for.
        places: usize,
    },
    /// Nothing was done: the engine is stopping.
    #[error("the engine is stopping")]
    Stopping,
}
