//! Errors of this crate. A lost claim is not an error but a [`ClaimOutcome`](crate::ClaimOutcome).

use std::{error::Error as _, ops::RangeInclusive};

/// Why an operation failed. Unless it is [`Error::Invalid`], it is not known whether a change was made outside a
/// transaction.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The arguments are invalid; nothing was sent to the database.
    #[error("invalid {what} {value:?}: {wanted}")]
    Invalid {
        /// The kind of argument, such as "column".
        what: &'static str,
        value: String,
        wanted: String,
    },
    /// PostgreSQL refused, or could not be reached.
    #[error("PostgreSQL: {}", words(.0))]
    Postgres(#[from] tokio_postgres::Error),
    /// The pool has no connection.
    #[error("no connection to PostgreSQL: {0}")]
    Connection(String),
    /// The application's own code failed inside a transaction, which was rolled back.
    #[error("the effect failed: {0}")]
    Effect(String),
    /// The application's own code could not reach something inside a transaction, which was rolled back.
    #[error("unreachable: {0}")]
    Unreachable(String),
}

impl Error {
    pub(crate) fn invalid(what: &'static str, value: impl Into<String>, wanted: impl Into<String>) -> Self {
        Self::Invalid { what, value: value.into(), wanted: wanted.into() }
    }

    pub(crate) fn unless_within<T: PartialOrd + std::fmt::Debug>(
        what: &'static str,
        value: T,
        bounds: RangeInclusive<T>,
    ) -> Result<(), Self> {
        if bounds.contains(&value) {
            return Ok(());
        }
        Err(Self::invalid(
            what,
            format!("{value:?}"),
            format!("use {:?} to {:?}", bounds.start(), bounds.end()),
        ))
    }

    /// The SQLSTATE, if PostgreSQL gave one.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Postgres(error) => error.code().map(|code| code.code()),
            _ => None,
        }
    }

    /// Whether concurrent transactions conflicted and nothing was done: a serialization failure (40001) or a deadlock
    /// (40P01). The whole transaction may be retried; [`retry::on_contention`](crate::retry::on_contention) does so.
    pub fn is_contention(&self) -> bool {
        matches!(self.code(), Some("40001" | "40P01"))
    }

    /// Whether the data or the statement is at fault, so that a retry cannot succeed: an argument is
    /// invalid, or a value, a constraint, a column, a limit of PostgreSQL's (such as the size of an index entry) or the
    /// application's own code refused it.
    pub fn is_of_the_data(&self) -> bool {
        let classes = ["21", "22", "23", "42", "44", "54", "P0"];
        match self {
            Self::Invalid { .. } | Self::Effect(_) => true,
            Self::Postgres(error) if error.code().is_none() => is_conversion(error),
            _ => self.code().is_some_and(|code| classes.iter().any(|class| code.starts_with(class))),
        }
    }
}

impl From<deadpool_postgres::PoolError> for Error {
    fn from(error: deadpool_postgres::PoolError) -> Self {
        match error {
            deadpool_postgres::PoolError::Backend(error) => Self::Postgres(error),
            other => Self::Connection(other.to_string()),
        }
    }
}

/// Whether a value does not fit its parameter or column. tokio-postgres shows the kind of an error in words only; what
/// is not known here counts as a failed connection, which is retried.
fn is_conversion(error: &tokio_postgres::Error) -> bool {
    let words = error.to_string();
    let kinds = ["error serializing parameter", "error deserializing column", "invalid column", "expected "];
    kinds.iter().any(|kind| words.starts_with(kind))
}

/// An error in PostgreSQL's own words, or with its causes.
fn words(error: &tokio_postgres::Error) -> String {
    if let Some(db) = error.as_db_error() {
        let detail = db.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
        return format!("{}: {}{detail} [{}]", db.severity(), db.message(), db.code().code());
    }
    match error.source() {
        Some(cause) if !error.to_string().contains(&cause.to_string()) => format!("{error}: {cause}"),
        _ => error.to_string(),
    }
}
