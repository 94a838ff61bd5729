//! Moving over from a hand-written consumer that keeps its marks in Redis (the former system), and back to it.
//!
//! ```text
//!   before  shadow: decides without effect, and compares with what the former system did
//!   there   import-marks: keys of the former system ──> marks in the inbox, in a scope of their own
//!   back    export-marks: marks in the inbox ──> keys of the former system
//!           drain: finishes the running jobs without consuming commands
//! ```
//!
//! The consumer group knows the first message to consume ([`solehold_kafka`]). Marks cover messages that took effect
//! before their offset was committed.

mod drain;
mod export;
mod import;
mod shadow;
mod template;

use std::time::Duration;

use redis::{AsyncConnectionConfig, Client, aio::MultiplexedConnection};

use crate::error::RunError;

use self::template::KeyTemplate;
pub use self::{
    drain::drain,
    export::{ExportedMarks, export_marks},
    import::{ImportedMarks, SkippedKey, import_marks},
    shadow::{Difference, DifferenceKind, ShadowEnd, ShadowOrders, ShadowReport, shadow},
};

/// The keys of the former system.
#[derive(Debug, Clone)]
pub struct MarkOrders {
    /// Its Redis, as in `redis://HOST:PORT/DATABASE`.
    pub redis: String,
    /// The form of its keys, as in `job:processed:{job_id}`.
    pub pattern: String,
    /// Whether to count only.
    pub dry_run: bool,
}

/// How many keys or marks are read at once.
const PAGE: usize = 1_000;
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How often progress is shown.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// Connects to the Redis of the former system.
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
