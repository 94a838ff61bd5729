//! The REST control plane: a request is read, turned into a command of the engine, and its outcome into a response.
//!
//! Each folder is a layer, and imports only from the layers below it:
//!
//! ```text
//!   serve      Server: configuration, listener, connections, TLS, start and shutdown
//!   routes     one module per surface: extracts, converts, submits, converts; the OpenAPI document
//!   dashboard  the page for people, static files that read the API (beside routes)
//!   relays     background tasks that pass events on to message brokers and webhooks (beside routes)
//!   http       around every request: id, caller and role, time limit, log, problem documents; extractors
//!   context    what handlers share; one function per command, with its answer --> engine --> core::decide
//!   orchestrator  asks an orchestrator for its jobs
//!   placement  plans of where resources should be
//!   state      what a node keeps between requests: API keys, quotas, rates; records in the store
//!   metrics, limits, error
//! ```
//!
//! Nothing here decides about a lease, and all writes go through the engine. [`Server`] starts it all; [`keys`] also
//! works without a server.

#![allow(missing_docs, reason = "an item whose name says everything needs no comment")]

mod context;
mod dashboard;
mod error;
mod http;
mod limits;
mod metrics;
mod orchestrator;
pub mod placement;
pub mod relays;
mod routes;
mod serve;
mod state;

pub use error::ApiError;
pub use limits::ServerLimits;
pub use routes::openapi_json;
pub use serve::{
    Acceptor, Entrance, Protocols, Running, Server, ServerConfig, StartError, Tls, TlsError, TlsFiles,
};
pub use solehold_api::admin::{Quotas, Role};
pub use state::{audit, keys, operator::Operator};
