//! Every bound of this crate, by name.

use std::time::Duration;

/// The most rows of one batch.
pub const BATCH_ROWS_MAX: usize = 10_000;
/// The shortest lease: below it, the round trip alone uses it up.
pub const LEASE_MIN: Duration = Duration::from_millis(50);
/// The longest lease.
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

/// A full pass over the claim indexes may use one part in so many of the time. See [`Claims`](crate::Claims).
pub const FULL_PASS_SHARE: u32 = 20;
/// However long full passes take, the next one comes after this time.
pub const FULL_PASS_PAUSE_MAX: Duration = Duration::from_secs(60);

/// How often one operation is tried again after a serialization failure or a deadlock.
pub const CONTENTION_ATTEMPTS: u32 = 40;
