//! The lease machine of Solehold. It is pure: clock, input, output and randomness are arguments.
//!
//! # The protocol in short
//!
//! A *resource* is held by one *session* at a time through a *lease*. A session is one incarnation of a *holder* and
//! lives until its deadline; one heartbeat keeps every lease that is attached to it alive. A lease that was acquired
//! outside a session has one of its own, kept in the lease itself ([`lease::Tenure`]).
//!
//! **States of a lease.** `pending` (granted when the present holder is done; has no token yet), `active`, then one of
//! `released` (by its holder), `expired` (time ran out) and `revoked` (by another caller). See the picture at
//! [`decide()`].
//!
//! **The clock rule.** One clock decides: [`time::StoreTime`], read by the store after a batch has taken its locks. It
//! never goes back, and a renewal never moves a deadline earlier. A lease is dead from its deadline on, whether or not
//! the sweeper has run; expiry is a command like any other.
//!
//! **The fencing rule.** A grant's [`time::Token`] is the [`time::Revision`] of its event. Revisions are one sequence
//! for the whole store, so the tokens of a resource grow through release, expiry, deletion, re-declaration and restart,
//! and none is ever used twice.
//!
//! **Waiting.** Clients that ask to wait form a line ([`waiter::Waiter`]), in order of arrival. When a lease ends, the
//! first live waiter gets the resource in the same step; that grant lapses unless a renewal soon confirms it.
//!
//! **Failures.** A lost answer is asked for again by request id, which returns the same grant or says that the
//! request is spent, never a second grant, and never a lease of a superseded session, which could not be renewed. When
//! anyone but its holder ends a lease, the resource is held back until the old deadline, since the holder may work
//! until then. A holder that restarts is a new session: its former one is superseded and can renew nothing.
//!
//! # Running it
//!
//! ```
//! use solehold_core::{apply, command::*, decide, key::*, outcome::Answer, ledger::Ledger, time::*};
//!
//! let mut ledger = Ledger::default();
//! let name = |n: &str| Name::new(n).expect("a short name");
//! let key = ResourceKey::new(name("default"), name("job"), name("nightly"));
//! let moment = Moment { now: StoreTime(1_000), revision: Revision(41) };
//! let acquire = Command::Acquire(Acquire {
//!     key,
//!     lease: LeaseId(uuid::Uuid::from_u128(1)),
//!     holder: name("worker-1"),
//!     tenure: AskedTenure::Own { ttl_ms: 30_000 },
//!     request: None,
//!     attributes: Document::default(),
//!     undeclared: Undeclared::Allow,
//!     wait: None,
//!     slots: None,
//!     holds_at_most: None,
//! });
//! let decision = decide(&ledger, &acquire.into(), moment)?;
//! for change in &decision.changes {
//!     apply(&mut ledger, change);
//! }
//! let Ok(Answer::Granted(grant)) = decision.outcome else { panic!("it was free") };
//! assert_eq!(grant.lease.lease.token, Token(42));
//! # Ok::<(), solehold_core::ledger::FoundLate>(())
//! ```
#![allow(missing_docs, reason = "items whose names say everything need no docs")]

mod apply;
pub mod call;
pub mod command;
mod decide;
pub mod event;
pub mod fence;
pub mod hashing;
pub mod key;
pub mod lease;
pub mod ledger;
pub mod limits;
pub mod outcome;
pub mod placement;
pub mod record;
pub mod request;
pub mod route;
pub mod session;
pub mod time;
pub mod waiter;

pub use apply::{apply, forget, resume};
pub use decide::{Decision, Decisions, decide, decide_all};
