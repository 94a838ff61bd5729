//! Plans of where resources should be (rule 27). Every replica computes them from the store, on request.

mod assign;
mod book;
mod explain;
mod facts;
mod follow;
mod records;

pub(crate) use book::{KnownRunner, PlanBook, Planned};
pub(crate) use explain::explain;
pub(crate) use records::{clear, fail, failures_of, put_settings, quarantine, shift, tenant_record};
