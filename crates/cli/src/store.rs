//! Which store: the folder of the embedded engine, or a PostgreSQL. Shown without its password.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use serde::Deserialize;
use solehold_engine::{
    clock::{BootClock, BootTime},
    embedded,
    history::TTL_MAX_MS,
    postgres::{Failover, PostgresOptions, PostgresStore},
    resident::{self, ResidentOptions, ResidentStore},
    store::{Store, StoreError},
};
use tokio_postgres::config::Host;

use crate::error::{CommandError, CommandResult};

/// How often a store that is not there yet is tried again.
const TRY_EVERY: Duration = Duration::from_millis(500);
/// The folder of the embedded engine, unless told otherwise.
pub const DATA_DIR: &str = "./solehold-data";

/// The address of an engine that is not a folder.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct EngineUrl(String);

impl FromStr for EngineUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "memory:" {
            return Ok(Self(text.to_owned()));
        }
        if !["postgres://", "postgresql://"].iter().any(|scheme| text.starts_with(scheme)) {
            return Err(
                "an engine is postgres://USER@HOST/DATABASE; for a data folder use the data dir".to_owned()
            );
        }
        match text.parse::<tokio_postgres::Config>() {
            Ok(config) if config.get_dbname().is_none() => {
                Err("the engine's URL names no database; write postgres://USER@HOST/DATABASE".to_owned())
            }
            Ok(_) => Ok(Self(text.to_owned())),
            Err(error) => {
                let why =
                    std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
                Err(format!("the engine's URL cannot be read ({why}); write postgres://USER@HOST/DATABASE"))
            }
        }
    }
}

impl EngineUrl {
    /// The value of `--engine`. Not parsed by clap, which would show it, password and all, if it were wrong.
    pub fn of_flag(text: &str) -> CommandResult<Self> {
        text.parse().map_err(|error| CommandError::usage(format!("--engine: {error}")))
    }

    /// Where it is, in full, for an error.
    fn place(&self) -> String {
        let config = self.0.parse::<tokio_postgres::Config>().unwrap_or_default();
        let ports = config.get_ports();
        let hosts = config.get_hosts().iter().enumerate().map(|(at, host)| {
            let port = ports.get(at).or(ports.first()).unwrap_or(&5432);
            match host {
                Host::Tcp(host) => format!("{host}:{port}"),
                Host::Unix(path) => format!("{} (port {port})", path.display()),
            }
        });
        let hosts = hosts.collect::<Vec<_>>().join(",");
        format!("PostgreSQL at {hosts}, database {}", config.get_dbname().unwrap_or_default())
    }

    /// The URL itself, password and all.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for EngineUrl {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// A password may be in it.
impl fmt::Debug for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Where it is, without who asks and by which password.
impl fmt::Display for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok(config) = self.0.parse::<tokio_postgres::Config>() else { return f.write_str(&self.0) };
        let ports = config.get_ports();
        for (at, host) in config.get_hosts().iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            match host {
                Host::Tcp(host) => write!(f, "{comma}{host}")?,
                Host::Unix(path) => write!(f, "{comma}{}", path.display())?,
            }
            match ports.get(at).or(ports.first()) {
                Some(port) if *port != 5432 => write!(f, ":{port}")?,
                _ => {}
            }
        }
        write!(f, "/{}", config.get_dbname().unwrap_or_default())
    }
}

/// How a store is opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreOptions {
    /// The longest ttl that may be asked for; the engine's default, if none.
    pub ttl_max_ms: Option<u64>,
    /// What becomes of commits when a standby of PostgreSQL takes over.
    pub failover: Failover,
}

/// What to do where there is no store yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfMissing {
    /// Make one.
    Create,
    /// Refuse: an empty store in a place that was mistyped would give tokens from 1 on again.
    Refuse,
}

/// The whole path, so that a folder can be found whatever the working directory was.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// A place where rows are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreChoice {
    /// The embedded engine, in this folder.
    Folder(PathBuf),
    /// Another engine.
    Url(EngineUrl),
}

impl StoreChoice {
    /// The one of the two that was given, if one was.
    pub fn given(data_dir: Option<&Path>, engine: Option<&EngineUrl>) -> Option<Self> {
        let folder = data_dir.map(|path| Self::Folder(path.to_owned()));
        folder.or_else(|| engine.cloned().map(Self::Url))
    }

    /// Opens it.
    pub async fn open(&self, options: StoreOptions, missing: IfMissing) -> CommandResult<Arc<dyn Store>> {
        self.try_open(options, missing).await.map_err(self.failure())
    }

    /// As [`Self::open`], for a store that may come up later: attempts are made for `wait`. Why the last one failed is
    /// given to `waiting`.
    pub async fn open_within(
        &self,
        wait: Duration,
        options: StoreOptions,
        mut waiting: impl FnMut(&CommandError),
    ) -> CommandResult<Arc<dyn Store>> {
        let until = BootTime::now().plus(wait);
        loop {
            let error = match self.try_open(options, IfMissing::Create).await {
                Ok(store) => return Ok(store),
                Err(error) => error,
            };
            let may_come = matches!(error, StoreError::Unavailable(_) | StoreError::Contended { .. });
            let failure = self.failure()(error);
            let left = until.since(BootTime::now());
            if !may_come || left.is_zero() {
                return Err(failure);
            }
            waiting(&failure);
            tokio::time::sleep(TRY_EVERY.min(left)).await;
        }
    }

    /// Whether it is there already. Connects, and changes nothing.
    pub async fn is_there(&self) -> CommandResult<bool> {
        match self {
            Self::Folder(path) if embedded::Folder::is_there(path) => {
                embedded::Lock::take(path).map_err(self.failure())?;
                Ok(true)
            }
            Self::Folder(_) => Ok(false),
            Self::Url(url) if url.0 == "memory:" => Ok(false),
            Self::Url(url) => {
                PostgresStore::is_there(&url.0, PostgresOptions::default()).await.map_err(self.failure())
            }
        }
    }

    fn failure(&self) -> impl Fn(StoreError) -> CommandError {
        |error| {
            let failure = CommandError::from(error);
            let message = self.redacted(&failure.message);
            let message = match self {
                Self::Url(url) if url.0 != "memory:" => format!("{}: {message}", url.place()),
                _ => message,
            };
            CommandError { message, ..failure }
        }
    }

    async fn try_open(
        &self,
        options: StoreOptions,
        missing: IfMissing,
    ) -> Result<Arc<dyn Store>, StoreError> {
        match self {
            Self::Folder(path) if missing == IfMissing::Refuse && !embedded::Folder::is_there(path) => {
                let text = format!("there is no store in {}: check --data-dir", absolute(path).display());
                Err(StoreError::Unusable(text))
            }
            Self::Folder(path) => {
                let ttl_max_ms = options.ttl_max_ms.unwrap_or(TTL_MAX_MS);
                let journal = embedded::Folder::open(path)?;
                let opened = ResidentStore::embedded_with(journal, BootClock, ResidentOptions { ttl_max_ms });
                Ok(opened.map_err(|error| embedded::or_full_disk(path, error))?)
            }
            Self::Url(url) if url.0 == "memory:" => Ok(resident::memory(BootClock)?),
            Self::Url(url) => {
                let StoreOptions { ttl_max_ms, failover } = options;
                let must_exist = missing == IfMissing::Refuse;
                let options = PostgresOptions { ttl_max_ms, failover, must_exist, ..Default::default() };
                Ok(PostgresStore::open(&url.0, options).await?)
            }
        }
    }

    /// The arguments that name it, for a hint.
    pub fn arguments(&self) -> String {
        match self {
            Self::Folder(path) => format!("--data-dir {}", path.display()),
            Self::Url(url) if url.0 == "memory:" => "--engine memory:".to_owned(),
            Self::Url(url) => format!("--engine postgres://{url}"),
        }
    }

    /// A text in which the password, should it be there, cannot be read.
    fn redacted(&self, text: &str) -> String {
        let Self::Url(url) = self else { return text.to_owned() };
        let config = url.0.parse::<tokio_postgres::Config>().ok();
        let password = config.as_ref().and_then(|config| std::str::from_utf8(config.get_password()?).ok());
        match password.filter(|password| !password.is_empty()) {
            Some(password) => text.replace(&url.0, &url.to_string()).replace(password, "***"),
            None => text.to_owned(),
        }
    }
}

/// As in `engine embedded, data /var/lib/solehold`.
impl fmt::Display for StoreChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => write!(f, "engine embedded, data {}", absolute(path).display()),
            Self::Url(url) if url.0 == "memory:" => f.write_str("engine memory, nothing is kept"),
            Self::Url(url) => write!(f, "engine postgres, {url}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for text in [
            format!("{url:?}"),
            store.to_string(),
            store.arguments(),
            store.redacted("no postgres://u:hunter2@db/o"),
        ] {
            assert!(!text.contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn what_is_no_engine_is_told() {
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
            let error = odd.parse::<EngineUrl>().expect_err(odd);
            assert!(error.contains("postgres://USER@HOST/DATABASE"), "{error}");
        }
    }
}
