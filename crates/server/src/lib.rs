//! The REST control plane: parse, name, ask the engine, answer.
//!
//! ```text
//!   http (keys, limits, problems, metrics) -> routes (a module a surface: names keys and policy) -> engine -> core::decide
//! ```
//! Nothing here judges a lease, and nothing here writes but through the engine. [`Server`] starts it; [`keys`] works
//! without it.

mod config;
mod context;
mod files;
mod http;
pub mod keys;
mod metrics;
mod quota;
mod records;
mod ring;
mod routes;
mod serve;
mod tls;

pub use config::{ServerConfig, ServerLimits, TlsFiles};
pub use context::Context;
pub use http::{Failure, Role};
pub use quota::Quota;
pub use routes::{openapi_json, openapi_markdown};
pub use serve::{Running, Server, StartError};
pub use solehold_api::admin::Quotas;
pub use tls::TlsError;
