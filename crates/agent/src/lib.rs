//! Runs programs of any language as workers: each runs only while its leases are held, and leaves no process behind.
//!
//! ```text
//!   config     agent.yaml, checked whole          health   /healthz, /readyz, /metrics
//!   driver     performs the machine's actions, and reports their results to it as inputs
//!   machine    decides about resources and workers: inputs in, actions out; pure
//!   worker     one worker: the protocol, health checks, and one run of it
//!   keep       one command under one deadline: holder, keeper, shim; `solehold run` and `lock` use it, too
//! ```

#![allow(missing_docs, reason = "fields whose names say everything need no docs")]

pub mod config;
pub mod driver;
pub mod health;
pub mod keep;
pub mod machine;
pub mod worker;
