//! Holding a lease for a command of the user's: what `run` and `lock` share. The command itself is kept by
//! [`solehold_agent::keep`]; `tenure` is the lease, and `notes` is what people are told.

mod notes;
mod tenure;

pub use tenure::{HeldAbove, Patience, Tenure, Terms, close, policy};
