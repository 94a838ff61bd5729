//! What an application implements for a reconciler.

use async_trait::async_trait;
use deadpool_postgres::tokio_postgres::Transaction;
use serde_json::{Map, Value};

use crate::{ClaimedRow, Transition};

/// Why an observation or an effect failed, in words for the log and the dead letter.
pub type ObserverError = Box<dyn std::error::Error + Send + Sync>;

/// Looks at a claimed row and decides what happens to it.
///
/// It may be called again for the same row, after a failure or a lost lease, here or elsewhere: what it does outside
/// the database must tolerate that. The epoch of [`ClaimedRow::proof`] is a fencing token for it.
#[async_trait]
pub trait Observer: Send + Sync + 'static {
    /// Looks at one row. A failure leaves the row open; it is tried again later.
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
    /// The change.
    pub transition: &'a Transition,
}

/// What an observer found.
#[derive(Debug, Clone, PartialEq)]
pub enum Observation {
    /// Nothing new: look again after the recheck interval.
    Unchanged,
    /// The row moves to another state.
    Moved {
        /// The state.
        to: String,
        /// Columns to set with it.
        set: Map<String, Value>,
    },
    /// It can never be processed: bury it at once.
    Hopeless {
        /// Why.
        reason: String,
    },
}

impl Observation {
    /// The row moves to another state.
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
