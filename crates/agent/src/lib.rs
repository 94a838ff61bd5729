//! Programs of any language as workers: each runs only while leases are held, and nothing of it is left afterwards.
//!
//! ```text
//!   config     agent.yaml, checked whole
//!   machine    what the agent does about resources and workers: events in, actions out; pure
//!   worker     one worker: the protocol, and when it is healthy
//!   keep       one command under one deadline: holder, keeper, shim; `solehold run` and `lock` use it, too
//! ```

pub mod config;
pub mod keep;
pub mod machine;
pub mod worker;
pub mod yaml;
