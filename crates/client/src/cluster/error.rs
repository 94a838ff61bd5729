//! Why a gateway does not start, or does not lock a session.

use super::config::ConfigError;
use crate::session::{AcquireError, OpenError};

/// Why a gateway does not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// The configuration makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is another one, and there may be only one.
    #[error("gateway {other} runs on this database already{when}: {remedy}")]
    AnotherGateway {
        /// Its node id.
        other: String,
        /// Until when, if it is dead.
        when: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// No session could be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The authority did not say whether there is another.
    #[error("it is not known whether another gateway runs on this database: {0}")]
    Unknown(String),
}

/// Why a session is not locked.
#[derive(Debug, thiserror::Error)]
pub enum LockSessionError {
    /// The lock was not acquired.
    #[error(transparent)]
    Lock(#[from] AcquireError),
    /// The row of the old table was not.
    #[cfg(feature = "legacy")]
    #[error(transparent)]
    Legacy(#[from] LegacyError),
}

/// Why a row was not taken.
#[cfg(feature = "legacy")]
#[derive(Debug, thiserror::Error)]
#[error("the old table session_locks: {0}")]
pub struct LegacyError(pub(super) String);

#[cfg(feature = "legacy")]
impl From<tokio_postgres::Error> for LegacyError {
    fn from(error: tokio_postgres::Error) -> Self {
        // What the server says, or what went wrong with it; never the connection string.
        Self(error.as_db_error().map_or_else(|| error.to_string(), |error| error.message().to_owned()))
    }
}
