//! Connection strings: where a database is, and whether to use TLS.

use std::{fmt, str::FromStr};

use tokio_postgres::{Config, config::SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::tls::TlsOptions;
use crate::{postgres::fault::words, store::StoreError};

/// What a connection string says, as libpq has them: `sslmode=verify-ca`, `verify-full` and `sslrootcert` too, which
/// tokio-postgres does not know.
#[derive(Clone)]
pub struct Target {
    /// Where, as whom, and with which bounds.
    pub config: Config,
    /// How, unless without TLS.
    pub tls: Option<MakeRustlsConnect>,
}

/// Without the password.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("hosts", &self.config.get_hosts()).finish_non_exhaustive()
    }
}

impl FromStr for Target {
    type Err = StoreError;

    /// Errors never show the string: there may be a password in it.
    fn from_str(url: &str) -> Result<Self, StoreError> {
        let (url, tls) = TlsOptions::split_off(url);
        let mut config: Config = url
            .parse()
            .map_err(|e| StoreError::Unusable(format!("invalid connection string: {}", words(&e))))?;
        if tls.verify.is_some() {
            config.ssl_mode(SslMode::Require);
        }
        let tls = match config.get_ssl_mode() {
            SslMode::Disable => None,
            _ => Some(MakeRustlsConnect::new(tls.client()?)),
        };
        Ok(Self { config, tls })
    }
}
