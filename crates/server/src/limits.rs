//! The limits of one server.

use std::time::Duration;

use solehold_api::{admin::Quotas, limits::CAPACITY_MAX};

/// Largest head of an HTTP/1 request, in bytes: its first line and its headers. A client needs no key to have that much
/// kept for it on each of its connections.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Limits of a server (rule 25); those of the API are in [`solehold_api::limits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerLimits {
    /// Requests per second of one key, or of one address without a key; 0 for no limit.
    pub requests_per_second: u32,
    /// Requests that the same caller may make in a burst after a pause.
    pub requests_burst: u32,
    /// The largest capacity that a runner may register with, up to [`CAPACITY_MAX`].
    pub capacity_max: u32,
    pub quotas: Quotas,
    /// Watches that may be open at this node.
    pub watches_max: u64,
    /// Connections that may be open at this node, as far as the limit on open files allows; further ones wait.
    pub connections_max: usize,
    /// A request that takes longer is answered with `unknown_outcome`.
    pub request_timeout: Duration,
    /// A connection on which no complete request head arrives for this long is closed, and one whose client takes
    /// nothing of an answer for this long.
    pub idle_timeout: Duration,
    /// Requests get this long to finish when the server stops.
    pub shutdown_grace: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            requests_per_second: 100_000,
            requests_burst: 100_000,
            capacity_max: CAPACITY_MAX,
            quotas: Quotas { resources: Some(1_000_000), sessions: Some(100_000), watches: Some(1_000) },
            watches_max: 10_000,
            connections_max: 16_384,
            request_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(75),
            shutdown_grace: Duration::from_secs(10),
        }
    }
}
