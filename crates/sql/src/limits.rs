//! Every bound of this crate, by name.

use std::time::Duration;

/// The most rows of one batch.
pub const BATCH_ROWS_MAX: usize = 10_000;
/// The shortest lease: below it, the round trip alone uses it up.
pub const LEASE_MIN: Duration = Duration::from_millis(50);
pub const LEASE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest time for which a row may be deferred.
pub const DEFER_MAX: Duration = Duration::from_secs(366 * 24 * 60 * 60);
/// The longest name of a worker.
pub const OWNER_BYTES_MAX: usize = 255;
/// PostgreSQL cuts longer names off, silently.
pub const IDENTIFIER_BYTES_MAX: usize = 63;
/// The most columns in an order, a payload or a change.
pub const COLUMNS_MAX: usize = 64;
/// The longest reason that is stored with a buried row.
pub const REASON_BYTES_MAX: usize = 2_000;

/// How many claims of one [`Claims`](crate::Claims) are under way at the same time.
pub const CLAIMS_AT_ONCE: usize = 2;
/// A full pass over the claim indexes may use one part in this many of the time. See [`Claims`](crate::Claims).
pub const FULL_PASS_SHARE: u32 = 20;
/// However long full passes take, the next one comes after this time.
pub const FULL_PASS_PAUSE_MAX: Duration = Duration::from_secs(60);

/// How often one operation is tried again after a serialization failure or a deadlock.
pub const CONTENTION_ATTEMPTS: u32 = 40;

/// The most observations of one reconciler at the same time.
pub const OBSERVATIONS_MAX: usize = 4_096;
pub const POLL_INTERVAL_MIN: Duration = Duration::from_millis(10);
pub const POLL_INTERVAL_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// The smallest bound of the pauses while an observer is unreachable.
pub const UNREACHABLE_BACKOFF_MIN: Duration = Duration::from_millis(10);
/// The largest bound of the pauses while an observer is unreachable.
pub const UNREACHABLE_BACKOFF_MAX: Duration = Duration::from_secs(60 * 60);
/// The time in which burials are counted against their limit.
pub const BURIALS_WINDOW: Duration = Duration::from_secs(60 * 60);
/// The most buried rows that are listed at once.
pub const BURIED_PAGE_MAX: usize = 1_000;
/// The longest pause between two attempts to listen for wake-ups.
pub const LISTEN_PAUSE_MAX: Duration = Duration::from_secs(30);

/// The longest part of an inbox key.
pub const INBOX_KEY_BYTES_MAX: usize = 512;
/// The largest result that the inbox stores.
pub const INBOX_RESULT_BYTES_MAX: usize = 1024 * 1024;
/// The largest body of an HTTP request with an `Idempotency-Key`.
pub const IDEMPOTENT_BODY_BYTES_MAX: usize = 1024 * 1024;
/// Longest name of a fenced resource, `KIND/KEY`, in bytes.
pub const RESOURCE_BYTES_MAX: usize = 511;
/// Longest kind of a fenced resource, in bytes.
pub const KIND_BYTES_MAX: usize = 255;
/// Longest name of a topic or of a group of consumers, in bytes.
pub const PARTITION_NAME_BYTES_MAX: usize = 255;
/// How long a writer of a partition may pause in its transaction, in milliseconds; then PostgreSQL ends it.
pub const WRITER_PAUSE_MS_MAX: u32 = 1_500;
