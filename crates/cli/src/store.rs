//! Which store: the folder of the embedded engine, or a PostgreSQL. Shown without its password.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

#[cfg(feature = "postgres")]
use solehold_engine::postgres::{PostgresOptions, PostgresStore};
use solehold_engine::{
    clock::{BootClock, BootTime},
    embedded,
    history::TTL_MAX_MS,
    resident::{self, ResidentOptions, ResidentStore},
    store::{Store, StoreError, Usage},
};

use crate::{
    config::Failover,
    engine_url::EngineUrl,
    error::{CommandError, CommandResult},
};

/// How often a store that is not there yet is tried again.
const TRY_EVERY: Duration = Duration::from_millis(500);
/// The folder of the embedded engine, unless told otherwise.
pub const DATA_DIR: &str = "./solehold-data";

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

    pub async fn open(&self, options: StoreOptions, missing: IfMissing) -> CommandResult<Arc<dyn Store>> {
        self.try_open(options, missing).await.map_err(self.failure())
    }

    /// As [`Self::open`], for a store that may come up later: attempts are made for `wait`, until it is open and has
    /// answered how much there is in it. Why the last one failed is given to `waiting`.
    pub async fn open_within(
        &self,
        wait: Duration,
        options: StoreOptions,
        mut waiting: impl FnMut(&CommandError),
    ) -> CommandResult<(Arc<dyn Store>, Usage)> {
        let until = BootTime::now().plus(wait);
        let try_once = async || {
            let store = self.try_open(options, IfMissing::Create).await?;
            let usage = store.usage(None).await?;
            Ok((store, usage))
        };
        loop {
            let error = match try_once().await {
                Ok(opened) => return Ok(opened),
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
            Self::Url(url) if url.is_memory() => Ok(false),
            #[cfg(feature = "postgres")]
            Self::Url(url) => PostgresStore::is_there(url.reveal(), PostgresOptions::default())
                .await
                .map_err(self.failure()),
            #[cfg(not(feature = "postgres"))]
            Self::Url(_) => Err(self.failure()(without_postgres())),
        }
    }

    fn failure(&self) -> impl Fn(StoreError) -> CommandError {
        |error| {
            let failure = CommandError::from(error);
            let message = self.redacted(&failure.message);
            let message = match self {
                Self::Url(url) if !url.is_memory() => format!("{}: {message}", url.place()),
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
                let opened = ResidentStore::embedded_with(
                    journal,
                    BootClock,
                    ResidentOptions { ttl_max_ms, ..ResidentOptions::default() },
                );
                Ok(opened.map_err(|error| embedded::or_full_disk(path, error))?)
            }
            Self::Url(url) if url.is_memory() => Ok(resident::memory(BootClock)?),
            #[cfg(feature = "postgres")]
            Self::Url(url) => {
                let options = PostgresOptions {
                    ttl_max_ms: options.ttl_max_ms,
                    failover: options.failover.into(),
                    must_exist: missing == IfMissing::Refuse,
                    ..Default::default()
                };
                Ok(PostgresStore::open(url.reveal(), options).await?)
            }
            #[cfg(not(feature = "postgres"))]
            Self::Url(_) => Err(without_postgres()),
        }
    }

    /// The arguments that name it, for a hint.
    pub fn arguments(&self) -> String {
        match self {
            Self::Folder(path) => format!("--data-dir {}", path.display()),
            Self::Url(url) if url.is_memory() => "--engine memory:".to_owned(),
            Self::Url(url) => format!("--engine postgres://{url}"),
        }
    }

    /// A text in which the password, should it be there, cannot be read.
    fn redacted(&self, text: &str) -> String {
        match self {
            Self::Folder(_) => text.to_owned(),
            Self::Url(url) => url.redacted(text),
        }
    }
}

#[cfg(not(feature = "postgres"))]
fn without_postgres() -> StoreError {
    StoreError::Unusable(crate::engine_url::NOT_BUILT.to_owned())
}

/// As in `engine embedded, data /var/lib/solehold`.
impl fmt::Display for StoreChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => write!(f, "engine embedded, data {}", absolute(path).display()),
            Self::Url(url) if url.is_memory() => f.write_str("engine memory, nothing is kept"),
            Self::Url(url) => write!(f, "engine postgres, {url}"),
        }
    }
}
