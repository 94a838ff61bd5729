//! The configuration of a server.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use secrecy::SecretString;
use solehold_api::{admin::Quotas, limits::CAPACITY_MAX};
use solehold_engine::EngineOptions;

use crate::relays::RelayConfig;

/// The configuration of a server. The default is that of `solehold serve` without flags.
///
/// ```
/// use solehold_server::ServerConfig;
///
/// let config = ServerConfig { listen: "127.0.0.1:0".parse()?, ..ServerConfig::default() };
/// assert!(config.is_loopback() && config.tls.is_none());
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Serve TLS with these files; plain HTTP without.
    pub tls: Option<TlsFiles>,
    /// The name of this node, in health, logs and a response header.
    pub node_id: String,
    /// A key text that is stored, once, when the store has no keys: the value of `SOLEHOLD_BOOTSTRAP_KEY`.
    pub bootstrap_key: Option<SecretString>,
    /// Whether `/metrics` needs a key, one that is for no tenant in particular.
    pub guard_metrics: bool,
    /// Bounds.
    pub limits: ServerLimits,
    /// Options of the engine.
    pub engine: EngineOptions,
    /// Where events are relayed to.
    pub relays: Vec<RelayConfig>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 7070).into(),
            tls: None,
            node_id: solehold_process::name::unique(""),
            bootstrap_key: None,
            guard_metrics: false,
            limits: ServerLimits::default(),
            engine: EngineOptions::default(),
            relays: Vec::new(),
        }
    }
}

impl ServerConfig {
    /// Whether only this machine can reach it: then it may run without keys.
    pub fn is_loopback(&self) -> bool {
        self.listen.ip().to_canonical().is_loopback()
    }
}

/// A certificate chain and its private key, and who signs clients' certificates, all PEM. The files are read again when
/// they change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, followed by its chain.
    pub cert: PathBuf,
    /// The private key.
    pub key: PathBuf,
    /// Certificates that those of clients must be signed by; without it clients are not asked for any. The name in a
    /// client's certificate stands for the key that was created with it.
    pub client_ca: Option<PathBuf>,
}

/// Bounds of a server (rule 25); those of the surface are in [`solehold_api::limits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerLimits {
    /// Requests per second of one key, or of one address without a key; 0 for no limit.
    pub requests_per_second: u32,
    /// Requests that it may make in a burst after a pause.
    pub requests_burst: u32,
    /// Most capacity that a runner may register with, up to [`CAPACITY_MAX`].
    pub capacity_max: u32,
    /// What a tenant may have, unless its own quotas say otherwise.
    pub quotas: Quotas,
    /// Watches that may be open at this node.
    pub watches_max: u64,
    /// Connections that may be open at this node, as far as the limit on open files allows; further ones wait.
    pub connections_max: usize,
    /// A request that takes longer is answered with `unknown_outcome`.
    pub request_timeout: Duration,
    /// A connection on which no complete request head arrives for this long is closed.
    pub idle_timeout: Duration,
    /// Requests get this long to finish when the server stops.
    pub shutdown_grace: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            requests_per_second: 100_000,
            requests_burst: 100_000,
            capacity_max: CAPACITY_MAX,
            quotas: Quotas { resources: Some(1_000_000), sessions: Some(100_000), watches: Some(1_000) },
            watches_max: 10_000,
            connections_max: 16_384,
            request_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(75),
            shutdown_grace: Duration::from_secs(10),
        }
    }
}
