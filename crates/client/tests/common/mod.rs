//! Authorities of every sort, each private to its test.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::{sync::Arc, time::Duration};

use solehold_client::{Authority, ClientSession, Embedded, Http, HttpConfig, SessionConfig};
use solehold_core::key::{Name, ResourceKey};
use solehold_engine::{
    Engine,
    clock::BootClock,
    postgres::{PostgresOptions, PostgresStore},
    resident,
    store::{Store, StoreError},
};
use solehold_server::{Running, Server, ServerConfig};
use solehold_testkit::{Postgres, TempDir, wait_for};

/// How long a test waits for what must come.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn memory() -> Arc<dyn Store> {
    resident::memory(BootClock).expect("memory")
}

/// A server in this process on a free port.
pub async fn serve(store: Arc<dyn Store>) -> Running {
    let config =
        ServerConfig { listen: "127.0.0.1:0".parse().expect("an address"), ..ServerConfig::default() };
    Server::start(config, store).await.expect("a server")
}

/// An opened store, or none while it cannot be reached: on a busy machine a new connection may take longer than a store
/// waits for it, and `solehold serve` tries again then, too.
fn if_reachable<T>(opened: Result<T, StoreError>) -> Option<T> {
    match opened {
        Err(StoreError::Unavailable(why)) => {
            eprintln!("the store is not reachable yet: {why}");
            None
        }
        opened => Some(opened.expect("a store")),
    }
}

pub async fn postgres_store(url: &str) -> Arc<dyn Store> {
    let open = async || if_reachable(PostgresStore::open(url, PostgresOptions::default()).await);
    wait_for("a store that answers", PATIENCE, open).await.expect("a store")
}

pub async fn database() -> String {
    Postgres::shared().await.expect("a server").create_database("client").await.expect("a database")
}

pub fn http(running: &[&Running]) -> Arc<Http> {
    Arc::new(Http::new(HttpConfig::new(running.iter().map(|running| running.url()))).expect("good URLs"))
}

/// What an authority needs to be there.
pub struct Behind {
    pub authority: Arc<dyn Authority>,
    pub engine: Engine,
    pub running: Option<Running>,
    _folder: Option<TempDir>,
}

async fn embedded(engine: &str) -> Behind {
    let open = async || if_reachable(Embedded::open(engine).await);
    let authority = Arc::new(wait_for("a store that answers", PATIENCE, open).await.expect("an engine"));
    Behind { engine: authority.engine().clone(), authority, running: None, _folder: None }
}

pub fn served(running: Running) -> Behind {
    let authority = http(&[&running]);
    let engine = running.engine().clone();
    Behind { authority, engine, running: Some(running), _folder: None }
}

/// Every sort of authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    Memory,
    Folder,
    Postgres,
    HttpMemory,
    HttpPostgres,
}

impl Sort {
    pub const ALL: [Self; 5] =
        [Self::Memory, Self::Folder, Self::Postgres, Self::HttpMemory, Self::HttpPostgres];

    pub async fn start(self) -> Behind {
        let folder = TempDir::new().expect("a folder");
        match self {
            Self::Memory => embedded("memory:").await,
            Self::Postgres => embedded(&database().await).await,
            Self::HttpMemory => served(serve(memory()).await),
            Self::HttpPostgres => served(serve(postgres_store(&database().await).await).await),
            Self::Folder => {
                let path = folder.path().join("data").to_string_lossy().into_owned();
                Behind { _folder: Some(folder), ..embedded(&path).await }
            }
        }
    }
}

impl Behind {
    pub async fn session(&self, holder: &str) -> ClientSession {
        self.session_with(SessionConfig::new(holder)).await
    }

    pub async fn session_with(&self, config: SessionConfig) -> ClientSession {
        ClientSession::open(self.authority.clone(), config).await.expect("a session")
    }

    /// How many stand in line for a resource; none if the store did not say.
    pub async fn queued(&self, kind: &str, key: &str) -> Option<u32> {
        let name = |text: &str| Name::new(text).expect("a name");
        let key = ResourceKey::new(name("default"), name(kind), name(key));
        let loaded = self.engine.resource(&key).await.ok()?;
        Some(loaded.state.resource(&key).map_or(0, |resource| resource.queued))
    }
}

/// What the harness does, for a test with a `main` of its own: tells its name when asked for a list, and runs it unless
/// others are meant.
pub fn only_test(name: &str, test: impl FnOnce()) {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    if has("--list") {
        if !has("--ignored") {
            println!("{name}: test");
        }
        return;
    }
    let mut filters = args.iter().filter(|arg| !arg.starts_with("--")).peekable();
    if filters.peek().is_none() || filters.any(|filter| name.contains(filter.as_str())) {
        test();
        println!("test {name} ... ok");
    }
}
