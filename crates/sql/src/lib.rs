//! Leases on the rows of an application's own PostgreSQL tables, where a network hop to any server would only add a
//! failure.
//!
//! ```text
//!            claim(limit, owner, lease): one statement, FOR UPDATE SKIP LOCKED, epoch + 1
//!   open ───────────────────────────────────────────────────────────────> claimed (owner, epoch, until)
//!    ^  ^                                                                  │  │  │
//!    │  └──────── release; defer (not before a time); until has passed ────┘  │  └──> buried, with the reason
//!    └──────────────────────── transition(from, to, set...) <─────────────────┘
//! ```
//!
//! - *The database's clock decides.* No application clock takes part in any judgement.
//! - *A claim's proof is (owner, epoch, not expired)*, checked by every statement that changes a claimed row. The epoch
//!   grows with each claim and never goes back, so that a worker that slept through its lease cannot overwrite its
//!   successor's work.
//! - *Losing is an outcome*, [`ClaimOutcome::Lost`] with the reason; an error means that it is not known what happened.
//! - *Everything runs in the caller's transaction* if the caller has one: state, outbox and effects commit together.
//! - No session state, no named prepared statements, no advisory locks, no LISTEN unless asked for: it works through
//!   PgBouncer in transaction mode.
//!
//! [`ClaimTable`] describes a table, [`migrations`] prepares it, [`Claims`] claims, [`reconciler`] is the worker's
//! loop, [`inbox`] makes commands idempotent, [`fenced`] refuses writes under an old token, and [`partitions`] keeps
//! the position of a topic's consumer beside the effects of its messages. [`functions`] makes SQL functions of the
//! claims, for programs in other languages.
//!
//! ```
//! use solehold_sql::{ClaimTable, Claims};
//!
//! let table = ClaimTable::builder("app.payment_requests")
//!     .state("status")
//!     .claimable("status IN ('pending', 'detected')")
//!     .order(["created_at"])
//!     .payload(["address", "amount"])
//!     .build()?;
//! let claims = Claims::new(table);
//! assert!(claims.table().index_names()[0].contains("payment_requests"));
//! # Ok::<(), solehold_sql::Error>(())
//! ```
#![allow(missing_docs, reason = "items whose names say everything need no docs")]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that panics says where"))]

/// The code of the guide is compiled as it stands.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/row-claims.md")]
mod guide {}

mod buried;
pub mod claims;
mod error;
pub mod fenced;
mod floor;
pub mod functions;
mod ident;
pub mod inbox;
pub mod limits;
pub mod migrations;
mod outcome;
pub mod partitions;
pub mod reconciler;
pub mod retry;
mod row;
mod statements;
mod table;

pub use buried::BuriedRow;
pub use claims::{Attempts, Claims, Transition};
pub use error::Error;
pub use outcome::{ClaimOutcome, LossReason};
pub use reconciler::{Observation, Observer, ObserverError, Reconciler, ReconcilerConfig};
pub use row::{ClaimedRow, Owner, Proof, RowId};
pub use table::{ClaimTable, ClaimTableBuilder};
