//! Moving over from a hand-written consumer that keeps its marks in Redis, and back to it.
//!
//! ```text
//!   there   import-marks: keys of the other system ──> marks in the inbox, in a scope of their own
//!   back    export-marks: marks in the inbox ──> keys of the other system
//!           drain: the jobs that were begun here are finished, and no command is taken
//! ```
//!
//! The first message to consume is known from the consumer group ([`solehold_kafka`]). Marks are for messages that took
//! effect before their offset was committed.

mod drain;
mod export;
mod import;
mod template;

use std::time::Duration;

use redis::{AsyncConnectionConfig, Client, aio::MultiplexedConnection};

use crate::running::RunError;

pub use self::{
    drain::drain,
    export::export_marks,
    import::import_marks,
    template::{Former, KeyTemplate},
};

/// Keys or marks that are moved at once.
const PAGE: usize = 1_000;
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How often an operator is told how far it is.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Connects to the Redis of the other system.
async fn connect(url: &str) -> Result<MultiplexedConnection, RunError> {
    let wrong = |error| RunError::Usage(format!("--redis, as in redis://HOST:PORT/DATABASE: {error}"));
    let client = Client::open(url).map_err(wrong)?;
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(ANSWER_WITHIN))
        .set_response_timeout(Some(ANSWER_WITHIN));
    client.get_multiplexed_async_connection_with_config(&config).await.map_err(unreachable)
}

fn unreachable(error: redis::RedisError) -> RunError {
    RunError::Unavailable(format!("Redis: {error}"))
}

fn of_database(error: impl Into<solehold_sql::Error>) -> RunError {
    RunError::Unavailable(format!("the database of jobs: {}", error.into()))
}
