//! The server: how it starts, which tasks it runs, and how it stops.
//!
//! ```text
//!   mod (Server, Running) --> entrance (listens before the store is open) --> listener --> tls, files, reading --> config
//! ```

mod config;
mod entrance;
mod files;
mod listener;
mod reading;
mod tls;

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::Router;
use solehold_api::problem::ErrorCode;
use solehold_core::time::Revision;
use solehold_engine::{Engine, clock::BootTime, store::Store};
use tokio::task::{JoinHandle, JoinSet};

pub use config::{ServerConfig, TlsFiles};
pub use entrance::Entrance;
pub use listener::StartError;
use listener::{Listener, bind};
pub use tls::{Acceptor, Protocols, Tls, TlsError};

use crate::{
    context::Context, context::ContextOptions, error::ApiError, metrics::Metrics,
    orchestrator::OrchestratorClient, relays::Relays, routes, state::keys,
};

/// For how long the keys are asked for at the start, and how often.
const KEYS_WITHIN: Duration = Duration::from_secs(30);
const KEYS_RETRY_AFTER: Duration = Duration::from_millis(250);
const REFRESH_EVERY: Duration = Duration::from_secs(1);
/// The number of refreshes after which the rates of idle callers are dropped.
const FORGET_EVERY_REFRESHES: u32 = 60;

/// The REST control plane over a store.
///
/// ```
/// # tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
/// use solehold_engine::{clock::BootClock, resident};
/// use solehold_server::{Server, ServerConfig};
///
/// let config = ServerConfig { listen: "127.0.0.1:0".parse()?, ..ServerConfig::default() };
/// let running = Server::start(config, resident::memory(BootClock)?).await?;
/// println!("listening on {}", running.url());
/// running.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).expect("a server");
/// ```
#[derive(Debug)]
pub struct Server;

impl Server {
    /// Starts a server over a store, in the current runtime. It owns the store from now on, also if it does not start.
    pub async fn start(config: ServerConfig, store: Arc<dyn Store>) -> Result<Running, StartError> {
        Self::start_with(config, store, Router::new()).await
    }

    /// As [`Self::start`], with additional routes, which get the same middleware.
    pub async fn start_with(
        config: ServerConfig,
        store: Arc<dyn Store>,
        more: Router,
    ) -> Result<Running, StartError> {
        run(config, store, more, None).await
    }

    /// As [`Self::start`], behind an entrance that is open already.
    pub async fn start_behind(
        entrance: Entrance,
        config: ServerConfig,
        store: Arc<dyn Store>,
    ) -> Result<Running, StartError> {
        run(config, store, Router::new(), Some(entrance)).await
    }
}

async fn run(
    config: ServerConfig,
    store: Arc<dyn Store>,
    more: Router,
    entrance: Option<Entrance>,
) -> Result<Running, StartError> {
    let metrics = Arc::new(Metrics::new(&config.node_id));
    let mut options = config.engine;
    // Before the cursors are read, all events are kept from compaction.
    options.retention.unsent_after = (!config.relays.is_empty()).then_some(Revision(0));
    let engine = Engine::start(store, options, metrics.clone());
    let orchestrator = match config.orchestrator.as_ref().map(OrchestratorClient::new).transpose() {
        Ok(orchestrator) => orchestrator,
        Err(error) => {
            engine.stop().await;
            return Err(error.into());
        }
    };
    let context_options = ContextOptions {
        node_id: config.node_id.clone(),
        limits: config.limits,
        guards_metrics: config.guard_metrics,
        is_loopback: config.is_loopback(),
        orchestrator,
    };
    let context = Context::new(engine, context_options, metrics);
    match start(&config, &context, more, entrance).await {
        Ok(running) => Ok(running),
        Err(error) => {
            context.engine().stop().await;
            Err(error)
        }
    }
}

/// Stores the bootstrap key, if there is one, and reads the keys. A store that has just been opened may be slow to
/// answer, as while PostgreSQL recovers.
async fn read_keys(config: &ServerConfig, context: &Context) -> Result<(), ApiError> {
    let try_once = async || {
        if let Some(text) = &config.bootstrap_key
            && keys::bootstrap(context.engine(), text).await?
        {
            tracing::info!("stored the bootstrap key; SOLEHOLD_BOOTSTRAP_KEY is no longer needed");
        }
        context.refresh().await
    };
    let until = BootTime::now().plus(KEYS_WITHIN);
    loop {
        match try_once().await {
            Err(ApiError(failure)) if failure.code == ErrorCode::Unavailable && BootTime::now() < until => {
                tracing::warn!(error = %failure, "cannot read the keys yet; retrying");
            }
            read => return read,
        }
        tokio::time::sleep(KEYS_RETRY_AFTER).await;
    }
}

async fn start(
    config: &ServerConfig,
    context: &Context,
    more: Router,
    entrance: Option<Entrance>,
) -> Result<Running, StartError> {
    let (tls, bound) = match entrance {
        Some(entrance) => (entrance.tls, Some((entrance.address, entrance.listener))),
        None => (Tls::of(config).await?, None),
    };
    read_keys(config, context).await?;
    if context.ring.is_empty() && !config.is_loopback() {
        return Err(StartError::NoKeys(config.listen));
    }
    if tls.is_none() && !config.is_loopback() {
        tracing::warn!(
            listen = %config.listen,
            "serving plain HTTP on a non-loopback address: API keys are sent unencrypted; set --tls-cert and \
             --tls-key, or terminate TLS at a proxy"
        );
    }
    let (address, listener) = match bound {
        Some(bound) => bound,
        None => bind(config.listen)?,
    };
    let relays = Relays::start(&config.relays, context).await?;
    let acceptor = tls.as_ref().map(Tls::acceptor);
    let scheme = if tls.is_some() { "https" } else { "http" };
    let connections = context.connections.clone();
    let router = routes::router(context, more);
    let listener = Listener { listener, acceptor, limits: config.limits, connections, router };
    let mut tasks = JoinSet::new();
    tasks.spawn(keep_fresh(context.clone()));
    if let Some(tls) = tls {
        tasks.spawn(tls.follow());
    }
    let listener = tokio::spawn(listener.accept_until(context.stopping()));
    Ok(Running { context: context.clone(), address, scheme, listener, relays, _tasks: tasks })
}

/// A running server. Dropping it leaves connections open until the runtime ends; [`Self::shutdown`] stops cleanly.
#[derive(Debug)]
pub struct Running {
    context: Context,
    address: SocketAddr,
    scheme: &'static str,
    listener: JoinHandle<()>,
    relays: Relays,
    _tasks: JoinSet<()>,
}

impl Running {
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    pub fn engine(&self) -> &Engine {
        self.context.engine()
    }

    pub fn connections(&self) -> u64 {
        self.context.connections.load(Ordering::Relaxed)
    }

    /// Stops: accepts no more connections, lets requests finish within `shutdown_grace`, ends watches, and closes the
    /// store.
    pub async fn shutdown(self) {
        self.context.stop();
        if self.listener.await.is_err() {
            tracing::error!("listener task panicked; continuing shutdown");
        }
        self.relays.ended().await;
        self.context.engine().stop().await;
    }
}

/// Refreshes keys and quotas every second, until it is aborted.
async fn keep_fresh(context: Context) {
    let mut turns = tokio::time::interval(REFRESH_EVERY);
    turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for turn in 1u32.. {
        turns.tick().await;
        if let Err(failure) = context.refresh().await {
            // The engine has logged the error; the keys and quotas last read stay in effect.
            tracing::debug!(%failure, "cannot refresh API keys and quotas; keeping the last ones read");
        }
        if turn % FORGET_EVERY_REFRESHES == 0 {
            context.rates.forget();
        }
    }
}
