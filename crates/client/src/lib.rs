//! Sessions, guards and locks over Solehold's leases, for services that run in many instances.
//!
//! # The trust window
//!
//! A lease is a promise with an end. The [`Authority`] that decides counts that end by its own clock. A holder cannot
//! see that clock; it only learns how much time is left. So the holder counts **from before it sent the request**:
//!
//! ```text
//!   holder     | sent                    answer: 30 s left |                          deadline |  stop
//!              |---------------------------------------------------------- trusted -------------|
//!   authority         | decided |------------------------------ 30 s ------------------------------| free
//!                                                                                               |margin|
//! ```
//! The local deadline is the time of sending plus the time left minus a margin ([`clock::deadline::local_deadline`]),
//! by a clock that keeps counting while the machine is suspended. Before the deadline, no other holder has the lease.
//! At the deadline the work has stopped, unless a heartbeat has moved it. The [`Policy`] decides what happens in
//! between:
//!
//! | a renewal | `Immediate` | `Deadline` | `Grace(d)` |
//! |---|---|---|---|
//! | is refused | stop | stop | stop, unless the session had expired and the lease is reclaimed at once (rule 22) |
//! | fails | stop | try again until the deadline, then stop | try again until `d` after it, then stop |
//!
//! Stopping is a courtesy: a process can be paused between the check of its deadline and the write that follows. Only a
//! *gate*, which refuses work that bears an old [token](Guard::token), is safe. Show the token wherever the work has an
//! effect.
//!
//! # Overview
//!
//! ```text
//!   ClientSession (one heartbeat) ── acquire ──> Guard { token, deadline, lost(), run(), state() }
//!      |            └── Locks (wait in line) ──> Guard          Cluster: configuration, routing, presence
//!      Authority: Http (servers, failover) | Embedded (the engine in this process)       elect(): one leader
//!      Gate: refuses work that carries an old token            Runner: works on assigned resources
//! ```
//! ```
//! # tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
//! use std::{sync::Arc, time::Duration};
//! use solehold_client::{Embedded, ClientSession, SessionConfig};
//!
//! let authority = Arc::new(Embedded::open("memory:").await?);
//! let config = SessionConfig { ttl: Duration::from_secs(10), ..SessionConfig::new("worker-1") };
//! let session = ClientSession::open(authority, config).await?;
//!
//! let guard = session.acquire("report", "2026-11").await?;
//! let total = guard.run(async { 40 + 2 }).await?;
//! guard.release_with(&total).await?;
//!
//! // The next holder gets what was left.
//! let next = session.acquire("report", "2026-11").await?;
//! assert_eq!(next.state(), Some(42.into()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).expect("it runs");
//! ```
//!
//! # Layers
//!
//! Each module imports only those above it:
//!
//! ```text
//!   chance, history, news              randomness, the store's history, sessions that wait for notifications
//!   authority                          the trait, its requests and its errors
//!   http, embedded                     its two implementations
//!   renewer, coalesce                  when to send a heartbeat (pure); many operations in one request
//!   session                            one incarnation of this program, and its guards
//!   locks, elect, assignments          over a session, or over HTTP
//!   cluster, runner, gate              what services use as a whole
//! ```
//!
//! # Errors
//!
//! A [`RefusalReason`] is an outcome: nothing was changed. An [`AuthorityError`] means that there is no outcome, or
//! that it is unknown (rule 8). Each operation has one error type, which says which of the two it was:
//!
//! ```text
//!   setting up   HttpError (Http::new)      StoreError (Embedded::open)      ConfigError (ClusterConfig)
//!                                                                                 |
//!   opening      BadName, RefusalReason, AuthorityError ──> OpenError ─────────────> ClusterError
//!   acquiring    BadName, RefusalReason, AuthorityError ──> AcquireError
//!   holding      Lost,    RefusalReason, AuthorityError ──> GuardError           OlderHistory ──> AuthorityError
//! ```

#![allow(missing_docs, reason = "fields and variants whose names say everything need no docs")]

/// The code of the guides is compiled as it stands.
#[cfg(doctest)]
mod guides {
    #[doc = include_str!("../../../docs/guides/cluster.md")]
    mod cluster {}
    #[doc = include_str!("../../../docs/guides/gates.md")]
    mod gates {}
}

pub mod assignments;
pub mod authority;
pub mod chance;
#[cfg(feature = "cluster")]
mod cluster;
pub mod coalesce;
mod elect;
#[cfg(feature = "engine")]
mod embedded;
pub mod gate;
mod history;
mod http;
mod locks;
pub mod news;
pub mod renewer;
mod runner;
mod session;

pub use authority::{
    Attributes, Authority, AuthorityError, BadName, HandOver, HeldLease, LOCK_KIND, Metrics, Node, Obstacle,
    RefusalReason, ResourceName, WrongRequest,
};
#[cfg(feature = "cluster")]
pub use cluster::{Cluster, ClusterConfig, ClusterError, ConfigError, SessionLocksConfig};
pub use elect::{ROLE_KIND, elect};
#[cfg(feature = "engine")]
pub use embedded::Embedded;
pub use history::OlderHistory;
pub use http::{Http, HttpConfig, HttpError, ServerFault, pool, transport};
pub use locks::{LockConfig, Locks};
pub use renewer::{Lost, Policy};
pub use runner::{Assignment, Runner, RunnerConfig};
pub use session::{
    AcquireError, ClientSession, Contact, Guard, GuardError, OpenError, SessionConfig, Surroundings,
};
pub use solehold_clock as clock;
pub use solehold_core::{
    key::{LeaseId, SessionId},
    time::Token,
};
pub use solehold_trace as trace;
