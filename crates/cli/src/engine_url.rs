//! The address of an engine that is not a folder: a PostgreSQL URL, or `memory:`. Shown without its password.

use std::{fmt, str::FromStr};

use serde::Deserialize;

use crate::error::{CommandError, CommandResult};

const MEMORY: &str = "memory:";
/// How a PostgreSQL URL is refused by a build without the feature.
#[cfg(not(feature = "postgres"))]
pub const NOT_BUILT: &str =
    "this solehold was built without PostgreSQL; build one with `cargo build --release --features postgres`";

#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct EngineUrl(String);

/// Why a text is not the address of an engine. The text itself is left out: it may have a password in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineUrlError {
    #[error("an engine is postgres://USER@HOST/DATABASE; for a data folder use the data dir")]
    Scheme,
    #[cfg(feature = "postgres")]
    #[error("the engine's URL names no database; write postgres://USER@HOST/DATABASE")]
    NoDatabase,
    #[cfg(feature = "postgres")]
    #[error("the engine's URL cannot be read ({0}); write postgres://USER@HOST/DATABASE")]
    Unreadable(String),
    #[cfg(not(feature = "postgres"))]
    #[error("{NOT_BUILT}")]
    NotBuilt,
}

impl FromStr for EngineUrl {
    type Err = EngineUrlError;

    fn from_str(text: &str) -> Result<Self, EngineUrlError> {
        if text == MEMORY {
            return Ok(Self(text.to_owned()));
        }
        if !["postgres://", "postgresql://"].iter().any(|scheme| text.starts_with(scheme)) {
            return Err(EngineUrlError::Scheme);
        }
        check(text)?;
        Ok(Self(text.to_owned()))
    }
}

#[cfg(feature = "postgres")]
fn check(url: &str) -> Result<(), EngineUrlError> {
    match url.parse::<tokio_postgres::Config>() {
        Ok(config) if config.get_dbname().is_none() => Err(EngineUrlError::NoDatabase),
        Ok(_) => Ok(()),
        Err(error) => {
            let source = std::error::Error::source(&error);
            let why = source.map_or_else(|| error.to_string(), ToString::to_string);
            Err(EngineUrlError::Unreadable(why))
        }
    }
}

#[cfg(not(feature = "postgres"))]
fn check(_: &str) -> Result<(), EngineUrlError> {
    Err(EngineUrlError::NotBuilt)
}

impl EngineUrl {
    /// The value of `--engine`. Not parsed by clap, which would show it, password and all, if it were wrong.
    pub fn of_flag(text: &str) -> CommandResult<Self> {
        text.parse().map_err(|error| CommandError::usage(format!("--engine: {error}")))
    }

    pub fn is_memory(&self) -> bool {
        self.0 == MEMORY
    }

    /// The URL itself, with its password.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

#[cfg(feature = "postgres")]
impl EngineUrl {
    fn config(&self) -> Option<tokio_postgres::Config> {
        self.0.parse().ok()
    }

    /// Hosts, ports and database, for an error.
    pub fn place(&self) -> String {
        let config = self.config().unwrap_or_default();
        let hosts = hosts(&config).map(|(host, port, is_socket)| {
            if is_socket { format!("{host} (port {port})") } else { format!("{host}:{port}") }
        });
        let hosts = hosts.collect::<Vec<_>>().join(",");
        format!("PostgreSQL at {hosts}, database {}", config.get_dbname().unwrap_or_default())
    }

    /// `text` without the password, should it be there.
    pub fn redacted(&self, text: &str) -> String {
        let config = self.config();
        let password = config.as_ref().and_then(|config| std::str::from_utf8(config.get_password()?).ok());
        match password.filter(|password| !password.is_empty()) {
            Some(password) => text.replace(&self.0, &self.to_string()).replace(password, "***"),
            None => text.to_owned(),
        }
    }
}

#[cfg(not(feature = "postgres"))]
impl EngineUrl {
    pub fn place(&self) -> String {
        self.to_string()
    }

    pub fn redacted(&self, text: &str) -> String {
        text.to_owned()
    }
}

/// Each host or folder of a socket, its port, and whether it is a socket.
#[cfg(feature = "postgres")]
fn hosts(config: &tokio_postgres::Config) -> impl Iterator<Item = (String, u16, bool)> {
    use tokio_postgres::config::Host;
    let ports = config.get_ports();
    config.get_hosts().iter().enumerate().map(move |(at, host)| {
        let port = *ports.get(at).or(ports.first()).unwrap_or(&5432);
        match host {
            Host::Tcp(host) => (host.clone(), port, false),
            Host::Unix(path) => (path.display().to_string(), port, true),
        }
    })
}

impl TryFrom<String> for EngineUrl {
    type Error = EngineUrlError;
    fn try_from(text: String) -> Result<Self, EngineUrlError> {
        text.parse()
    }
}

/// Without the password.
impl fmt::Debug for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Hosts and database, without user and password.
impl fmt::Display for EngineUrl {
    #[cfg(feature = "postgres")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(config) = self.config() else { return f.write_str(&self.0) };
        for (at, (host, port, _)) in hosts(&config).enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{host}")?;
            if port != 5432 {
                write!(f, ":{port}")?;
            }
        }
        write!(f, "/{}", config.get_dbname().unwrap_or_default())
    }

    #[cfg(not(feature = "postgres"))]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(all(test, feature = "postgres"))]
mod tests {
    use super::*;
    use crate::store::StoreChoice;

    fn shown(url: &str) -> String {
        url.parse::<EngineUrl>().expect(url).to_string()
    }

    #[test]
    fn an_engine_is_shown_without_its_password() {
        assert_eq!(shown("postgres://u:hunter2@db.local/orders"), "db.local/orders");
        assert_eq!(shown("postgresql://u:hunter2@a:5433,b:5434/o?connect_timeout=5"), "a:5433,b:5434/o");
        assert_eq!(shown("postgres://u@/o?host=/var/run/postgresql"), "/var/run/postgresql/o");
        assert_eq!(shown("postgres://me@localhost?dbname=x"), "localhost/x");
        let url: EngineUrl = "postgres://u:hunter2@db/o".parse().expect("a URL");
        let store = StoreChoice::Url(url.clone());
        let redacted = url.redacted("no postgres://u:hunter2@db/o");
        for text in [format!("{url:?}"), store.to_string(), store.arguments(), redacted] {
            assert!(!text.contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn a_text_that_is_no_engine_is_refused() {
        for odd in [
            "",
            "./folder",
            "mysql://db/o",
            "postgre://db/o",
            "postgres://db:port/o",
            "postgres://u@db/o?no=1",
            "postgres://me@localhost",
            "postgres://me@localhost/",
        ] {
            let error = odd.parse::<EngineUrl>().expect_err(odd).to_string();
            assert!(error.contains("postgres://USER@HOST/DATABASE"), "{error}");
        }
    }
}
