//! The server: a listener, its connections, and how they end.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Body, http::Request, routing::future::RouteFuture};
use hyper::{body::Incoming, service::Service};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
};
use solehold_engine::{Engine, store::Store};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::{JoinHandle, JoinSet},
};
use tower::Service as _;

use crate::{
    Context, ServerConfig, ServerLimits,
    entrance::Entrance,
    files,
    http::{ApiError, Peer, without_trailing_slash},
    keys,
    metrics::Metrics,
    relays::{self, Relays},
    routes,
    tls::{self, Acceptor, Tls, TlsError},
};

/// How long a TLS handshake may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// How often the keys and quotas are read again.
const REFRESH_EVERY: Duration = Duration::from_secs(1);
/// The number of refreshes after which callers that have not asked for long are forgotten.
const FORGET_EVERY_REFRESHES: u32 = 60;
/// How long to wait after a connection could not be accepted, as when no more files can be opened.
const ACCEPT_RETRY_AFTER: Duration = Duration::from_millis(50);
/// The number of connections that may wait to be accepted; the kernel limits it, too. After a restart all holders
/// connect at once, and one that finds no place tries again only after a second or more.
const BACKLOG: u32 = 4_096;
/// How often an open HTTP/2 connection is asked whether its peer is still there.
const PING_EVERY: Duration = Duration::from_secs(30);

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Bind {
        /// Which address.
        address: SocketAddr,
        /// Why.
        error: std::io::Error,
    },
    /// Other machines could reach it, and would need no key.
    #[error(
        "refusing to listen on {0}, which others can reach, while the store has no keys: make the first one with \
         `solehold admin key create --engine <the same engine> --name <name> --role admin`, or start once with \
         SOLEHOLD_BOOTSTRAP_KEY set to a secret of {min} characters or more",
        min = keys::BOOTSTRAP_BYTES_MIN
    )]
    NoKeys(SocketAddr),
    /// The TLS files cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The keys could not be read, or the bootstrap key could not be stored.
    #[error("cannot read the keys: {0}")]
    Keys(#[from] ApiError),
    /// A relay cannot be set up.
    #[error("{0}")]
    Relay(String),
}

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

    /// As [`Self::start`], with additional routes, for which the same happens around every request.
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
    options.retention.unsent_after = relays::unsent_at_start(&config.relays);
    let engine = Engine::start(store, options, metrics.clone());
    let context = Context::new(engine, &config, metrics);
    match start(&config, &context, more, entrance).await {
        Ok(running) => Ok(running),
        Err(error) => {
            context.engine().stop().await;
            Err(error)
        }
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
    if let Some(text) = &config.bootstrap_key
        && keys::bootstrap(context.engine(), text).await?
    {
        tracing::info!("stored the bootstrap key: the variable is no longer needed");
    }
    context.refresh().await?;
    if context.ring().is_empty() && !config.is_loopback() {
        return Err(StartError::NoKeys(config.listen));
    }
    if tls.is_none() && !config.is_loopback() {
        tracing::warn!(
            listen = %config.listen,
            "plain HTTP beyond loopback: anyone on the way can read the keys; give --tls-cert and --tls-key, or leave \
             TLS to a proxy in front"
        );
    }
    let (address, listener) = match bound {
        Some(bound) => bound,
        None => bind(config.listen)?,
    };
    let relays = Relays::start(&config.relays, context).await.map_err(StartError::Relay)?;
    let acceptor = tls.as_ref().map(Tls::acceptor);
    let scheme = if tls.is_some() { "https" } else { "http" };
    let connections = context.connections().clone();
    let router = routes::router(context, more);
    let door = Door { listener, acceptor, limits: config.limits, connections, router };
    let mut helpers = JoinSet::new();
    helpers.spawn(keep_fresh(context.clone()));
    if let Some(tls) = tls {
        helpers.spawn(tls.follow());
    }
    let door = tokio::spawn(door.keep(context.stopping()));
    Ok(Running { context: context.clone(), address, scheme, door, relays, _helpers: helpers })
}

/// Listens, and says on which address.
pub(crate) fn bind(address: SocketAddr) -> Result<(SocketAddr, Arc<TcpListener>), StartError> {
    let bound = listen(address).and_then(|listener| Ok((listener.local_addr()?, Arc::new(listener))));
    bound.map_err(|error| StartError::Bind { address, error })
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // As after a restart, when connections of the former process are still about to end.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A running server. Dropping it leaves connections open until the runtime ends; [`Self::shutdown`] stops cleanly.
#[derive(Debug)]
pub struct Running {
    context: Context,
    address: SocketAddr,
    scheme: &'static str,
    door: JoinHandle<()>,
    relays: Relays,
    _helpers: JoinSet<()>,
}

impl Running {
    /// The address that it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Its base URL.
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// The engine that it runs on.
    pub fn engine(&self) -> &Engine {
        self.context.engine()
    }

    /// How many connections are open.
    pub fn connections(&self) -> u64 {
        self.context.connections().load(Ordering::Relaxed)
    }

    /// The name of this node.
    pub fn node_id(&self) -> &str {
        self.context.node_id()
    }

    /// Stops: accepts no more connections, lets requests finish within `shutdown_grace`, ends watches, and closes the
    /// store.
    pub async fn shutdown(self) {
        self.context.stop();
        if self.door.await.is_err() {
            tracing::error!("the listener had panicked");
        }
        self.relays.ended().await;
        self.context.engine().stop().await;
    }
}

/// Reads keys and quotas again every second, forever.
async fn keep_fresh(context: Context) {
    let mut turns = tokio::time::interval(REFRESH_EVERY);
    turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for turn in 1u32.. {
        turns.tick().await;
        if let Err(failure) = context.refresh().await {
            // The engine has logged why; what was read last stays in effect.
            tracing::debug!(%failure, "the keys could not be read");
        }
        if turn % FORGET_EVERY_REFRESHES == 0 {
            context.rates().forget();
        }
    }
}

/// Where connections come in.
pub(crate) struct Door {
    pub(crate) listener: Arc<TcpListener>,
    pub(crate) acceptor: Option<Acceptor>,
    pub(crate) limits: ServerLimits,
    /// How many are open.
    pub(crate) connections: Arc<AtomicU64>,
    pub(crate) router: Router,
}

impl Door {
    /// Accepts connections until the server stops, then lets them finish within `shutdown_grace`.
    pub(crate) async fn keep(self, mut stopping: watch::Receiver<bool>) {
        let seats = Arc::new(Semaphore::new(files::seats(self.limits.connections_max)));
        let graceful = GracefulShutdown::new();
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                _ = stopping.wait_for(|stopping| *stopping) => break,
                Some(_) = connections.join_next() => {}
                Some((stream, peer, seat)) = self.take(&seats) => {
                    connections.spawn(self.serve(stream, peer, seat, &graceful));
                }
            }
        }
        drop(self.listener);
        let grace = self.limits.shutdown_grace;
        if tokio::time::timeout(grace, graceful.shutdown()).await.is_err() {
            tracing::warn!(open = connections.len(), ?grace, "connections that had not finished were closed");
        }
        connections.shutdown().await;
    }

    /// The next connection, once there is a seat for it.
    async fn take(&self, seats: &Arc<Semaphore>) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
        let seat = seats.clone().acquire_owned().await.ok()?;
        match self.listener.accept().await {
            Ok((stream, peer)) => Some((stream, peer, seat)),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_RETRY_AFTER).await;
                None
            }
        }
    }

    /// Serves a connection to its end.
    fn serve(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        seat: OwnedSemaphorePermit,
        graceful: &GracefulShutdown,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (acceptor, watcher) = (self.acceptor.clone(), graceful.watcher());
        let connections = self.connections.clone();
        let idle_timeout = self.limits.idle_timeout;
        let (router, peer_ip) = (self.router.clone(), peer.ip());
        let app = move |names| App { router, peer: Peer { ip: peer_ip, names }, has_asked: Arc::default() };
        async move {
            connections.fetch_add(1, Ordering::Relaxed);
            // Small answers should be sent at once; a socket that cannot do that still works.
            let _ = stream.set_nodelay(true);
            match acceptor {
                None => converse(stream, app(Arc::default()), idle_timeout, watcher).await,
                Some(acceptor) => match tokio::time::timeout(HANDSHAKE_MAX, acceptor.accept(stream)).await {
                    Ok(Ok(stream)) => {
                        let app = app(tls::client_names(&stream));
                        converse(stream, app, idle_timeout, watcher).await
                    }
                    Ok(Err(error)) => tracing::debug!(%peer, %error, "a TLS handshake failed"),
                    Err(_) => tracing::debug!(%peer, "a TLS handshake took too long"),
                },
            }
            connections.fetch_sub(1, Ordering::Relaxed);
            drop(seat);
        }
    }
}

/// Serves the requests of one connection.
async fn converse<S>(
    stream: S,
    app: App,
    idle_timeout: Duration,
    watcher: hyper_util::server::graceful::Watcher,
) where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(idle_timeout);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(PING_EVERY);
    let has_asked = app.has_asked.clone();
    let connection = builder.serve_connection(TokioIo::new(stream), app).into_owned();
    tokio::select! {
        ended = watcher.watch(connection) => if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended with an error");
        },
        () = silence(&has_asked, idle_timeout) => tracing::debug!("a connection sent no request and was closed"),
    }
}

/// Ends if nothing was asked for `idle_timeout` from the beginning: until the version of the protocol is known, hyper
/// does not watch over that.
async fn silence(has_asked: &AtomicBool, idle_timeout: Duration) {
    tokio::time::sleep(idle_timeout).await;
    if has_asked.load(Ordering::Relaxed) {
        std::future::pending().await
    }
}

/// The router for the requests of one peer.
#[derive(Clone)]
struct App {
    router: Router,
    peer: Peer,
    has_asked: Arc<AtomicBool>,
}

impl Service<Request<Incoming>> for App {
    type Response = axum::response::Response;
    type Error = Infallible;
    type Future = RouteFuture<Infallible>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        self.has_asked.store(true, Ordering::Relaxed);
        without_trailing_slash(request.uri_mut());
        request.extensions_mut().insert(self.peer.clone());
        self.router.clone().call(request.map(Body::new))
    }
}
