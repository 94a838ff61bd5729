//! Options of the PostgreSQL store.

/// How a [`PostgresStore`](super::PostgresStore) is opened.
#[derive(Debug, Clone, Copy, Default)]
pub struct PostgresOptions {
    /// Accept a server with `fsync = off`, which can lose what it confirmed. For tests.
    pub allow_unsafe_durability: bool,
    pub failover: Failover,
    /// The longest ttl that may be asked for. Unless given, it is what is stored, or
    /// [`TTL_MAX_MS`](crate::history::TTL_MAX_MS). After a failover or a restore nothing is decided for the longest
    /// that any server of the store was given.
    pub ttl_max_ms: Option<u64>,
    /// Refuse a database in which there is no store, instead of making one.
    pub must_exist: bool,
}

/// Whether commits can be lost when a standby takes over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Failover {
    /// The standby may lack the last ones: nothing is granted until leases that were lost have run out.
    #[default]
    Lossy,
    /// Only a standby that every commit waited for is ever promoted: nothing is lost.
    Lossless,
}
