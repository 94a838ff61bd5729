//! The domain without I/O: commands, jobs and their stages, tasks and reports, and the bounds of everything.
//!
//! [`job::decide`] is the state machine. The other modules describe its input and its output.

pub mod command;
pub mod job;
pub mod limits;
pub mod path;
pub mod pipeline;
pub mod task;
pub mod template;
