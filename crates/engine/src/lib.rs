//! Engines: where the lease machine of `solehold-core` runs.
//!
//! ```text
//!   submit -> driver (two lanes, batches) -> store: lock, load, clock -> core::decide -> commit once -> answer all
//!                                              |                                             |
//!   sweeper: what seems to have run out ------>+          watch hub: events in revision order <+
//! ```
//! A [`store::Store`] keeps rows and judges nothing; [`Engine`] drives it. Stores: [`resident`] (`memory`, and `embedded`
//! over [`embedded`]'s journal in one SQLite file) and [`postgres`].

pub mod driver;
pub mod embedded;
mod engine;
mod error;
pub mod flow;
pub mod health;
pub mod history;
mod lease_sets;
pub mod observe;
mod options;
pub mod postgres;
pub mod resident;
pub mod store;
mod sweeper;
mod waiting;
pub mod watch;

pub use driver::DriverLimits;
pub use engine::{Engine, open};
pub use error::EngineError;
pub use lease_sets::LeaseSet;
pub use options::EngineOptions;
pub use solehold_clock as clock;
