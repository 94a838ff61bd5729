//! What every long-running process of Solehold needs, whatever it does: `serve`, `agent`, `gate` and `orchestrator`
//! start and stop through this crate.
//!
//! - [`config`] reads a YAML file and reports mistakes with their line;
//! - [`name`] finds the host's name, and names that no other process has;
//! - [`resolver`] finds the addresses of a host, and keeps them while the name server is away;
//! - [`signals`] waits for SIGTERM and Ctrl-C;
//! - [`manager`] reports to the service manager: ready, alive, stopping;
//! - [`deadline`] bounds a request in time;
//! - `health` serves `/healthz`, `/readyz` and `/metrics`;
//! - `tls` loads the certificates to trust;
//! - `amqp` connects to RabbitMQ.

#[cfg(feature = "amqp")]
pub mod amqp;
pub mod config;
pub mod deadline;
#[cfg(feature = "health")]
pub mod health;
pub mod manager;
pub mod name;
pub mod resolver;
pub mod signals;
#[cfg(feature = "tls")]
pub mod tls;
