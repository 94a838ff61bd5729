//! Failures of an attempt, before it is decided whether to retry.

use std::error::Error as _;

use solehold_core::ledger::FoundLate;
use tokio_postgres::{Error, error::Severity};

use crate::store::StoreError;

/// Why an attempt came to nothing, or to nothing known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// PostgreSQL, or the way to it, failed.
    #[error("{}", words(.0))]
    Postgres(#[from] Error),
    /// No connection could be made. Those that are open are as good as before.
    #[error("{0}")]
    Unconnected(Box<Fault>),
    /// The connection is given up.
    #[error("PostgreSQL did not answer in time: {0}")]
    Slow(&'static str),
    /// What was known before the locks were taken is no longer true: look again.
    #[error("rows changed while they were being locked")]
    Stale,
    /// Something to be judged was found late: begin again with it.
    #[error("{0}")]
    Late(#[from] FoundLate),
    /// To be corrected first.
    #[error("the clock of PostgreSQL was stepped")]
    Stepped,
    /// The store is behind what was seen of it.
    #[error("PostgreSQL was set back to an earlier state")]
    SetBack,
    /// A stored row cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// The error that the caller gets, as it is.
    #[error("{0}")]
    Told(#[from] StoreError),
}

impl Fault {
    /// The SQLSTATE, if PostgreSQL gave one.
    pub(crate) fn code(&self) -> Option<&str> {
        match self {
            Self::Postgres(error) => error.code().map(|code| code.code()),
            Self::Unconnected(why) => why.code(),
            _ => None,
        }
    }

    /// Whether others were in the way, and it may go well the next time: serialization failure, deadlock, a row that
    /// another transaction made first, a lock that took too long.
    pub(crate) fn is_contention(&self) -> bool {
        matches!(self.code(), Some("40001" | "40P01" | "23505" | "55P03"))
    }

    /// Whether the connection is lost, or the server says that it is about to be.
    pub(crate) fn is_lost_connection(&self) -> bool {
        match self {
            Self::Postgres(error) => {
                error.is_closed()
                    || error.as_db_error().map_or_else(
                        || error.source().is_some_and(|s| s.is::<std::io::Error>()),
                        |db| matches!(db.parsed_severity(), Some(Severity::Fatal | Severity::Panic)),
                    )
            }
            Self::Slow(_) => true,
            Self::Unconnected(why) => why.is_lost_connection(),
            _ => false,
        }
    }

    /// Whether PostgreSQL did not answer in time: to ask again would take as long.
    pub(crate) fn is_slow(&self) -> bool {
        match self {
            Self::Slow(_) => true,
            Self::Unconnected(why) => why.is_slow(),
            _ => false,
        }
    }

    /// Whether no other attempt at opening the store will do.
    fn is_final(&self) -> bool {
        match self {
            Self::Postgres(error) => match error.code() {
                Some(code) => !PASSING.iter().any(|start| code.code().starts_with(start)),
                None => is_final_without_code(error),
            },
            Self::Unconnected(why) => why.is_final(),
            _ => false,
        }
    }

    /// The error that the caller gets when a store cannot be opened: unavailable if it is worth while to try again.
    pub(crate) fn told_at_start(self) -> StoreError {
        if self.is_final() { StoreError::Unusable(self.to_string()) } else { self.told() }
    }

    /// The error that the caller gets when nothing was done.
    pub(crate) fn told(self) -> StoreError {
        match self {
            Self::Told(error) => error,
            Self::Unconnected(why) => why.told(),
            Self::Unreadable(what) => StoreError::Unusable(what),
            other => StoreError::Unavailable(other.to_string()),
        }
    }
}

/// What the SQLSTATEs of passing faults begin with: connections, a transaction that was ended because this process
/// stood still, contention, resources, locks, a server that starts or stops, its system, and its own faults. Others are
/// about the caller and its rights: a password, a role, a database.
const PASSING: [&str; 8] = ["08", "25P0", "40", "53", "55", "57", "58", "XX"];

/// Whether no other attempt will do: a certificate or a way to authenticate that one of the two sides does not accept.
fn is_final_without_code(error: &Error) -> bool {
    let text = error.to_string();
    let is_about_us =
        ["authentication error", "invalid configuration"].iter().any(|kind| text.starts_with(kind));
    let source = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    is_about_us || source.is_some_and(|source| source.kind() == std::io::ErrorKind::InvalidData)
}

/// An error in PostgreSQL's own words, or with its causes.
pub(crate) fn words(error: &Error) -> String {
    if let Some(db) = error.as_db_error() {
        let detail = db.detail().map(|d| format!(" ({d})")).unwrap_or_default();
        return format!("{}: {}{detail} [{}]", db.severity(), db.message(), db.code().code());
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}
