//! The trait that an application implements for a reconciler.

use async_trait::async_trait;
use deadpool_postgres::tokio_postgres::Transaction;
use serde_json::{Map, Value};

use crate::{ClaimedRow, Error, Transition};

/// What an [`ObserverError`] was caused by, in words for the log and the dead letter.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why an observation or an effect failed. The variant decides what the failure costs the row, so there is no
/// conversion from any error: an observer states which of the two it is.
#[derive(Debug, thiserror::Error)]
pub enum ObserverError {
    /// What the observer looks at cannot be reached now, or gives no usable answer; that is not the row's fault. The
    /// row stays open, the attempt is not counted, and the reconciler backs off.
    #[error("unreachable: {0}")]
    Unreachable(Cause),
    /// The row's own data is wrong, or cannot be processed. The attempt counts, and after
    /// [`attempts_max`](super::ReconcilerConfig::attempts_max) of them the row is buried.
    #[error("{0}")]
    Row(Cause),
}

impl ObserverError {
    /// Not the row's fault: a connection that was refused, a timeout, a 503, an answer that makes no sense.
    pub fn unreachable(cause: impl Into<Cause>) -> Self {
        Self::Unreachable(cause.into())
    }

    /// The row's own fault.
    pub fn row(cause: impl Into<Cause>) -> Self {
        Self::Row(cause.into())
    }

    /// The failure of an effect as an error of its transaction. PostgreSQL's own errors are judged like those of the
    /// reconciler's statements: contention is retried, and so is a lost connection.
    pub(super) fn of_an_effect(self) -> Error {
        let (cause, is_unreachable) = match self {
            Self::Unreachable(cause) => (cause, true),
            Self::Row(cause) => (cause, false),
        };
        match cause.downcast::<Error>() {
            Ok(error) => *error,
            Err(cause) if is_unreachable => Error::Unreachable(cause.to_string()),
            Err(cause) => Error::Effect(cause.to_string()),
        }
    }
}

impl From<Error> for ObserverError {
    /// What PostgreSQL refuses for its data is the row's fault; a connection that failed is not.
    fn from(error: Error) -> Self {
        if error.is_of_the_data() { Self::row(error) } else { Self::unreachable(error) }
    }
}

impl From<tokio_postgres::Error> for ObserverError {
    fn from(error: tokio_postgres::Error) -> Self {
        Error::from(error).into()
    }
}

/// Looks at a claimed row and decides what happens to it.
///
/// It may be called again for the same row, after a failure or a lost lease, here or elsewhere: what it does outside
/// the database must tolerate that. The epoch of [`ClaimedRow::proof`] is a fencing token for it.
#[async_trait]
pub trait Observer: Send + Sync + 'static {
    /// Looks at one row. A failure leaves the row open; it is tried again later. Give every request a timeout: an
    /// observation that never ends keeps its row claimed.
    async fn observe(&self, row: &ClaimedRow) -> Result<Observation, ObserverError>;

    /// What commits together with changes, such as outbox rows: called in their transaction with those that were made.
    /// A failure rolls them back, and they are tried one by one.
    async fn effects(
        &self,
        tx: &Transaction<'_>,
        applied: &[AppliedTransition<'_>],
    ) -> Result<(), ObserverError> {
        let _ = (tx, applied);
        Ok(())
    }
}

/// A change that was made and commits with its effects.
#[derive(Debug, Clone, Copy)]
pub struct AppliedTransition<'a> {
    /// The row, as it was claimed.
    pub row: &'a ClaimedRow,
    pub transition: &'a Transition,
}

/// What an observer found.
#[derive(Debug, Clone, PartialEq)]
pub enum Observation {
    /// Nothing new: look again after the recheck interval.
    Unchanged,
    /// The row moves to another state.
    Moved {
        to: String,
        /// Columns to set with it.
        set: Map<String, Value>,
    },
    /// It can never be processed: bury it at once.
    Hopeless { reason: String },
}

impl Observation {
    pub fn moved(to: &str) -> Self {
        Self::Moved { to: to.to_owned(), set: Map::new() }
    }

    /// The row moves, and a column is set with it.
    pub fn with(mut self, column: &str, value: impl Into<Value>) -> Self {
        if let Self::Moved { set, .. } = &mut self {
            set.insert(column.to_owned(), value.into());
        }
        self
    }
}
