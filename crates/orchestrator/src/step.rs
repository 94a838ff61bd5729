//! The outcome of one step of a partition owner's background work.

use solehold_clock::BootTime;
use solehold_sql::Error;

/// When the next step is due.
pub(crate) enum Next {
    /// At once: there may be more to do.
    Now,
    /// When a signal arrives, or at the next poll.
    Idle,
    /// After a short pause, signal or not.
    Paused,
    /// At this time, or when a signal arrives.
    At(BootTime),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    #[error("the partition has another owner")]
    Fenced,
    #[error(transparent)]
    Database(#[from] Error),
}

impl From<tokio_postgres::Error> for StepError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error.into())
    }
}

impl From<deadpool_postgres::PoolError> for StepError {
    fn from(error: deadpool_postgres::PoolError) -> Self {
        Self::Database(error.into())
    }
}
