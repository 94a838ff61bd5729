//! The entry points of the command line. [`start`] reads the configuration, opens the database and assembles an
//! orchestrator; the others build on it.

pub mod anew;
pub mod check;
pub mod cutover;
pub mod run;
mod start;
