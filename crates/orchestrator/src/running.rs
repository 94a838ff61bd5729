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

/// Where the keys of the other system are, and how they are named.
#[derive(Debug, Clone)]
pub struct MarkOrders {
    /// Its Redis, as in `redis://HOST:PORT/DATABASE`.
    pub redis: String,
    /// The form of its keys, as in `job:processed:{job_id}`.
    pub pattern: String,
    /// Only count.
    pub dry_run: bool,
}

/// What became of the keys of the other system.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ImportedMarks {
    /// Whether nothing was written.
    pub dry_run: bool,
    /// What Redis was asked for.
    pub pattern: String,
    /// Keys that Redis has. One that it lists twice counts twice.
    pub found: u64,
    /// Marks that are new.
    pub imported: u64,
    /// Marks that were there.
    pub known: u64,
    /// Keys that name no command.
    pub skipped: u64,
    /// The first of them.
    pub examples: Vec<SkippedKey>,
}

/// A key that names no command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkippedKey {
    /// The key, or its beginning.
    pub key: String,
    /// Why.
    pub reason: String,
}

/// What became of the inbox marks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ExportedMarks {
    /// Whether nothing was written.
    pub dry_run: bool,
    /// Marks of commands that took effect here.
    pub marks: u64,
    /// Keys that are new.
    pub exported: u64,
    /// Keys that were there.
    pub known: u64,
    /// Marks that the other system can have no key for.
    pub skipped: u64,
}

/// What is left when an orchestrator has finished its jobs, or was told to end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Drained {
    /// Jobs that are under way.
    pub running: i64,
    /// Tasks, events and copies of letters that were not sent.
    pub unsent: i64,
    /// Commands that could not take effect, and those that are parked behind them.
    pub letters: i64,
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
