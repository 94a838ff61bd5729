//! What a service adds to be safe with many instances: sessions, guards and locks over Solehold's leases.
//!
//! # The trust window
//!
//! A lease is a promise with an end. Whoever decides (the [`Authority`]) counts that end by its own clock; a holder cannot
//! see that clock, only how long it was told that there is left. So the holder counts **from before it asked**:
//!
//! ```text
//!   holder     | sent                    answer: 30 s left |                          deadline |  stop
//!              |---------------------------------------------------------- trusted -------------|
//!   authority         | decided |------------------------------ 30 s ------------------------------| free
//!                                                                                               |margin|
//! ```
//! The local deadline is the time of sending plus the time left minus a margin ([`clock::deadline::local_deadline`]), by a clock
//! that keeps counting while the machine is suspended. Before it, nobody else holds the lease. At it, the work has stopped,
//! unless a heartbeat has moved it. What happens between is the [`Policy`]:
//!
//! | a renewal | `Immediate` | `Deadline` | `Grace(d)` |
//! |---|---|---|---|
//! | was refused | stop | stop | stop, unless it had expired and is won back at once (rule 22) |
//! | failed | stop | try again until the deadline, then stop | try again until `d` after it, then stop |
//!
//! Stopping is a courtesy: a process can be paused between the look at its deadline and the write that follows. Only a
//! *gate*, which refuses work that bears an old [token](Guard::token), is safety. Show the token wherever the work has an
//! effect.
//!
//! # What there is
//!
//! ```text
//!   Session (one heartbeat) ── acquire ──> Guard { token, deadline, lost(), run(), state() }
//!      |            └── Locks (wait in line) ──> Guard          Cluster: configuration, routing, presence
//!      Authority: Http (servers, failover) | Embedded (the engine in this process)       elect(): one leader
//! ```
//! ```
//! # tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
//! use std::{sync::Arc, time::Duration};
//! use solehold_client::{Embedded, Session, SessionConfig};
//!
//! let authority = Arc::new(Embedded::open("memory:").await?);
//! let config = SessionConfig { ttl: Duration::from_secs(10), ..SessionConfig::new("worker-1") };
//! let session = Session::open(authority, config).await?;
//!
//! let guard = session.acquire("report", "2026-11").await?;
//! let total = guard.run(async { 40 + 2 }).await?;
//! guard.release_with(&total).await?;
//!
//! // Whoever comes next gets what was left.
//! let next = session.acquire("report", "2026-11").await?;
//! assert_eq!(next.state(), Some(42.into()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).expect("it runs");
//! ```

pub mod authority;
pub mod chance;
mod cluster;
pub mod coalesce;
mod elect;
#[cfg(feature = "engine")]
mod embedded;
mod guard;
mod history;
mod http;
mod locks;
pub mod renewer;
mod session;

pub use authority::{Authority, AuthorityError, BadName, Metrics, Node, Refusal, Resource};
pub use cluster::{Cluster, ClusterConfig, ClusterError, ConfigError, LockSessionError, SessionLocksConfig};
#[cfg(feature = "legacy")]
pub use cluster::{LegacyError, LegacyTable};
pub use elect::{ROLE_KIND, elect};
#[cfg(feature = "engine")]
pub use embedded::{Embedded, EmbeddedError};
pub use guard::{Guard, GuardError};
pub use history::OlderHistory;
pub use http::{Http, HttpConfig, HttpError};
pub use locks::{LOCK_KIND, LockConfig, Locks};
pub use renewer::{Lost, Policy};
pub use session::{AcquireError, OpenError, Session, SessionConfig, Surroundings};
pub use solehold_clock as clock;
pub use solehold_core::{
    key::{LeaseId, SessionId},
    time::Token,
};
