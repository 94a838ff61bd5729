//! Engines: where the lease machine of `solehold-core` runs.
//!
//! ```text
//!   submit -> driver (two lanes, batches) -> store: lock, load, clock -> core::decide -> commit once -> answer all
//!                                              |                                             |
//!   sweeper: what seems to have run out ------>+          watch hub: events in revision order <+
//! ```
//! A [`store::Store`] keeps rows and judges nothing; [`Engine`] drives it. Stores: [`resident`], which is `memory` or,
//! over the journal of the module `embedded` in one SQLite file, `embedded`; and `postgres`. The last two are features
//! of this crate, so that a database that is not used is not compiled.
//!
//! Errors, and how they become one another (`?` does it):
//!
//! ```text
//!   postgres: Fault (the connection, SQLSTATE)  --+
//!   embedded: rusqlite::Error, io::Error        --+-->  StoreError  -->  EngineError  -->  WatchError
//!   Export that cannot be read                  --+     what a store     + overloaded,     + a cursor ahead
//!                                                       could not do       stopping          of the history
//! ```
//! A refusal is none of these: it is an outcome (`solehold_core::outcome::Refusal`) of a command that was decided. Of
//! all errors only [`store::StoreError::Unknown`] leaves open whether something was done.
#![allow(missing_docs, reason = "items whose names say everything need no docs")]

pub mod driver;
#[cfg(feature = "embedded")]
pub mod embedded;
mod engine;
mod error;
pub mod flow;
pub mod health;
pub mod history;
mod lease_sets;
pub mod news;
pub mod observe;
mod open;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod resident;
pub mod store;
mod sweeper;
mod waiting;
pub mod watch;

pub use driver::DriverLimits;
pub use engine::{Engine, EngineOptions};
pub use error::EngineError;
pub use lease_sets::{LeaseSet, LeaseSetOutcome};
pub use open::open;
pub use solehold_clock as clock;
