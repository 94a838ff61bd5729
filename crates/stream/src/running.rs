//! How the orchestrator is started, whether it was built in or not.

use std::path::PathBuf;

use serde::Serialize;

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

/// What became of a topic that was made anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BegunAnew {
    /// The topic.
    pub topic: String,
    /// The group of its consumers.
    pub group: String,
    /// How many partitions begin with the first message that is there.
    pub partitions: u64,
    /// How many letters of the former topic are kept: commands that could not take effect.
    pub dead: i64,
    /// The same: commands that are parked behind those.
    pub parked: i64,
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
