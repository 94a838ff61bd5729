//! The REST control plane: parse, name, ask the engine, answer.
//!
//! ```text
//!   http       who calls (key, role), limits, problems; around every request: id, timeout, metrics, log
//!    -> routes      one module per surface: names keys and policy, converts
//!    -> commands    one function per command, with its answer --> engine --> core::decide
//! ```
//! Beside the requests, [`relays`] pass events on to message brokers and webhooks.
//!
//! Nothing here judges a lease, and nothing here writes but through the engine. [`Server`] starts it; [`keys`] works
//! without it.

mod commands;
mod config;
mod context;
mod entrance;
mod files;
mod http;
mod incarnation;
pub mod keys;
mod metrics;
mod past;
mod placement;
mod quota;
mod records;
pub mod relays;
mod ring;
mod routes;
mod serve;
mod tenants;
mod tls;

pub use config::{ServerConfig, ServerLimits, TlsFiles};
pub use context::Context;
pub use entrance::Entrance;
pub use http::{ApiError, Role};
pub use quota::Quota;
pub use routes::{openapi_json, openapi_markdown};
pub use serve::{Running, Server, StartError};
pub use solehold_api::admin::Quotas;
pub use tls::{Acceptor, Protocols, Tls, TlsError};
