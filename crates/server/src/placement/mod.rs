//! Plans of where resources should be (rule 27). Every replica computes them from the store, on request, and remembers
//! the last one for a while.

mod assign;
mod book;
mod explain;
mod facts;
mod follow;
mod planned;
mod records;

pub(crate) use book::PlanBook;
pub(crate) use explain::explain;
pub use facts::{Memory, Rows};
pub use planned::{KnownRunner, Planned, RememberedPlan};
pub(crate) use records::{clear, fail, failures_of, put_settings, quarantine, shift, tenant_record};
