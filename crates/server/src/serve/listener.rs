//! Accepts connections and serves them until the server stops.

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
use solehold_client::HttpError;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
};
use tower::Service as _;

use super::{
    files,
    reading::ReadingPeer,
    tls::{self, Acceptor, TlsError},
};
use crate::{
    error::ApiError,
    http::{Peer, without_trailing_slash},
    limits::{HEAD_BYTES_MAX, ServerLimits},
    relays::StartRelayError,
    state::keys,
};

const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// How long to wait after a connection could not be accepted, as when no more files can be opened.
const ACCEPT_RETRY_AFTER: Duration = Duration::from_millis(50);
/// The number of connections that may wait to be accepted; the kernel limits it, too. After a restart all holders
/// connect at once, and one that finds no place tries again only after a second or more.
const BACKLOG: u32 = 4_096;
/// The interval of HTTP/2 pings, which detect a peer that has gone away.
const PING_EVERY: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields of a variant are named in its message")]
pub enum StartError {
    #[error("cannot listen on {address}: {error}")]
    Bind { address: SocketAddr, error: std::io::Error },
    /// Other machines could reach it, and would need no key.
    #[error(
        "refusing to listen on {0}, which others can reach, while the store has no keys: make the first one with \
         `solehold admin key create --engine <the same engine> --name <name> --role admin`, or start once with \
         SOLEHOLD_BOOTSTRAP_KEY set to a secret of {min} characters or more",
        min = keys::BOOTSTRAP_BYTES_MIN
    )]
    NoKeys(SocketAddr),
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The keys could not be read, or the bootstrap key could not be stored.
    #[error("cannot read the keys: {0}")]
    Keys(#[from] ApiError),
    #[error(transparent)]
    Relay(#[from] StartRelayError),
    /// No URL of it can be used, or its certificates.
    #[error("orchestrator: {0}")]
    Orchestrator(#[from] HttpError),
}

/// Listens on `address`; returns the address with the port that was chosen.
pub(super) fn bind(address: SocketAddr) -> Result<(SocketAddr, Arc<TcpListener>), StartError> {
    let bound = listen(address).and_then(|listener| Ok((listener.local_addr()?, Arc::new(listener))));
    bound.map_err(|error| StartError::Bind { address, error })
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // After a restart, connections of the previous process may still be closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts connections and serves their requests with `router`.
pub(super) struct Listener {
    pub(super) listener: Arc<TcpListener>,
    pub(super) acceptor: Option<Acceptor>,
    pub(super) limits: ServerLimits,
    pub(super) connections: Arc<AtomicU64>,
    pub(super) router: Router,
}

impl Listener {
    /// Accepts connections until the server stops, then lets them finish within `shutdown_grace`.
    pub(super) async fn accept_until(self, mut stopping: watch::Receiver<bool>) {
        let seats = Arc::new(Semaphore::new(files::seats(self.limits.connections_max)));
        let graceful = GracefulShutdown::new();
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                _ = stopping.wait_for(|stopping| *stopping) => break,
                Some(_) = connections.join_next() => {}
                Some((stream, peer, seat)) = self.accept(&seats) => {
                    connections.spawn(self.serve(stream, peer, seat, &graceful));
                }
            }
        }
        drop(self.listener);
        let grace = self.limits.shutdown_grace;
        if tokio::time::timeout(grace, graceful.shutdown()).await.is_err() {
            tracing::warn!(
                open = connections.len(),
                ?grace,
                "shutdown grace period ended; closing the remaining connections"
            );
        }
        connections.shutdown().await;
    }

    /// Accepts the next connection once fewer than the maximum are open.
    async fn accept(&self, seats: &Arc<Semaphore>) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
        let seat = seats.clone().acquire_owned().await.ok()?;
        match self.listener.accept().await {
            Ok((stream, peer)) => Some((stream, peer, seat)),
            Err(error) => {
                tracing::warn!(%error, "cannot accept connection; retrying");
                tokio::time::sleep(ACCEPT_RETRY_AFTER).await;
                None
            }
        }
    }

    fn serve(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        seat: OwnedSemaphorePermit,
        graceful: &GracefulShutdown,
    ) -> impl Future<Output = ()> + Send + use<> {
        let acceptor = self.acceptor.clone();
        let watcher = graceful.watcher();
        let connections = self.connections.clone();
        let idle_timeout = self.limits.idle_timeout;
        let router = self.router.clone();
        let peer_ip = peer.ip();
        let app = move |names| App { router, peer: Peer { ip: peer_ip, names }, has_request: Arc::default() };
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
                    Ok(Err(error)) => {
                        tracing::debug!(%peer, %error, "TLS handshake failed; closing connection")
                    }
                    Err(_) => tracing::debug!(%peer, "TLS handshake timed out; closing connection"),
                },
            }
            connections.fetch_sub(1, Ordering::Relaxed);
            drop(seat);
        }
    }
}

async fn converse<S>(
    stream: S,
    app: App,
    idle_timeout: Duration,
    watcher: hyper_util::server::graceful::Watcher,
) where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(idle_timeout).max_buf_size(HEAD_BYTES_MAX);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(PING_EVERY);
    let has_request = app.has_request.clone();
    let stream = TokioIo::new(ReadingPeer::new(stream, idle_timeout));
    let connection = builder.serve_connection(stream, app).into_owned();
    tokio::select! {
        ended = watcher.watch(connection) => if let Err(error) = ended {
            tracing::debug!(%error, "connection closed with an error");
        },
        () = silence(&has_request, idle_timeout) => {
            tracing::debug!("connection sent no request within the idle timeout; closing it");
        }
    }
}

/// Ends if no request arrived within `idle_timeout` of the connection. Hyper enforces no timeout until it knows the
/// protocol version.
async fn silence(has_request: &AtomicBool, idle_timeout: Duration) {
    tokio::time::sleep(idle_timeout).await;
    if has_request.load(Ordering::Relaxed) {
        std::future::pending().await
    }
}

/// The router for the requests of one peer.
#[derive(Clone)]
struct App {
    router: Router,
    peer: Peer,
    has_request: Arc<AtomicBool>,
}

impl Service<Request<Incoming>> for App {
    type Response = axum::response::Response;
    type Error = Infallible;
    type Future = RouteFuture<Infallible>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        self.has_request.store(true, Ordering::Relaxed);
        without_trailing_slash(request.uri_mut());
        request.extensions_mut().insert(self.peer.clone());
        self.router.clone().call(request.map(Body::new))
    }
}
