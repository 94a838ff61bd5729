//! Bounds in time for requests to other systems.

use std::{fmt, time::Duration};

/// A request that failed or was not answered in time. Its text names the request.
#[derive(Debug, thiserror::Error)]
pub enum DeadlineError<E: fmt::Display> {
    /// The request failed.
    #[error("{request}: {error}")]
    Failed {
        /// What was requested, such as "connecting".
        request: &'static str,
        /// Why it failed.
        error: E,
    },
    /// There was no answer.
    #[error("{request} took longer than {limit:?}")]
    TimedOut {
        /// What was requested.
        request: &'static str,
        /// How long it was waited for.
        limit: Duration,
    },
}

/// Waits for a request for at most `limit`.
pub async fn within<T, E: fmt::Display>(
    request: &'static str,
    limit: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, DeadlineError<E>> {
    match tokio::time::timeout(limit, work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(DeadlineError::Failed { request, error }),
        Err(_) => Err(DeadlineError::TimedOut { request, limit }),
    }
}
