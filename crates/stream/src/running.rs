//! How the orchestrator is started, whether it was built in or not.

use std::path::PathBuf;

/// What the command line says besides the file: about the Solehold server that leases partitions.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    /// The servers.
    pub server: Option<String>,
    /// The key to show them.
    pub api_key: Option<String>,
    /// The tenant to act for.
    pub tenant: Option<String>,
    /// Certificates to trust besides the system's.
    pub ca_cert: Option<PathBuf>,
}

/// Why an orchestrator did not start, or ended by itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The configuration is wrong, or does not fit what was found.
    #[error("{0}")]
    Usage(String),
    /// Something cannot be reached.
    #[error("{0}")]
    Unavailable(String),
    /// It cannot go on.
    #[error("{0}")]
    Failed(String),
}
