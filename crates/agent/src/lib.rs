//! Programs of any language as workers: each runs only while leases are held, and nothing of it is left afterwards.
//!
//! ```text
//!   config     agent.yaml, checked whole          health   /healthz, /readyz, /metrics
//!   driver     does what the machine says, and tells it what happened
//!   machine    what the agent does about resources and workers: events in, actions out; pure
//!   worker     one worker: the protocol, when it is healthy, and one run of it
//!   keep       one command under one deadline: holder, keeper, shim; `solehold run` and `lock` use it, too
//! ```

pub mod config;
pub mod driver;
pub mod health;
pub mod keep;
pub mod machine;
pub mod worker;
