//! Why a gateway does not start.

use super::config::ConfigError;
use crate::session::OpenError;

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
    /// The authority did not answer whether there is another.
    #[error("cannot tell whether another gateway runs on this database: {0}")]
    Unknown(String),
}
