//! Why an operation of the orchestrator failed.

use solehold_process::config::ConfigError;

/// Why an orchestrator did not start, or stopped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The configuration is invalid, or does not match the topic, the database or the workers.
    #[error("{0}")]
    Usage(String),
    /// A broker, the database or a server cannot be reached.
    #[error("{0}")]
    Unavailable(String),
    /// A bug, or a failure of this process.
    #[error("{0}")]
    Failed(String),
}

impl RunError {
    pub(crate) fn database(error: impl Into<solehold_sql::Error>) -> Self {
        Self::Unavailable(format!("the database of jobs: {}", error.into()))
    }
}

impl From<ConfigError> for RunError {
    fn from(error: ConfigError) -> Self {
        Self::Usage(error.to_string())
    }
}
