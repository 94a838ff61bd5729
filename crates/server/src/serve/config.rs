//! The configuration of a server.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use secrecy::SecretString;
use solehold_client::HttpConfig;
use solehold_engine::EngineOptions;

use crate::{limits::ServerLimits, relays::RelayConfig};

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
    pub limits: ServerLimits,
    pub engine: EngineOptions,
    pub relays: Vec<RelayConfig>,
    /// The processes of an orchestrator whose jobs are passed on to the dashboard; any of them can answer.
    pub orchestrator: Option<HttpConfig>,
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
            orchestrator: None,
        }
    }
}

impl ServerConfig {
    /// Whether only this machine can reach it: then it may run without keys.
    pub fn is_loopback(&self) -> bool {
        self.listen.ip().to_canonical().is_loopback()
    }
}

/// A certificate chain, its private key and the CA of client certificates, all PEM. The files are reloaded when they
/// change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, followed by its chain.
    pub cert: PathBuf,
    pub key: PathBuf,
    /// The CA that must have signed client certificates; without it none are requested. The name in a client
    /// certificate stands for the API key that was created with that name.
    pub client_ca: Option<PathBuf>,
}
