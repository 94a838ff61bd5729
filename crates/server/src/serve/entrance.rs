//! A listener that is open before the store is.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Router,
    extract::State,
    http::{HeaderValue, Uri, header},
    response::{IntoResponse, Response},
    routing::get,
};
use solehold_api::{
    paths,
    problem::{ErrorCode, Problem},
};
use solehold_engine::clock::BootTime;
use tokio::{net::TcpListener, sync::watch};

use super::{
    config::ServerConfig,
    listener::{Listener, StartError, bind},
    tls::Tls,
};
use crate::{
    http::{ApiError, Json},
    limits::ServerLimits,
    routes::{Liveness, liveness},
};

/// When a client should try again.
const RETRY_AFTER_MS: u64 = 1_000;

/// An open listener of a server that has no store yet. [`Server::start_behind`](crate::Server::start_behind) serves
/// there once it has one.
#[derive(Debug)]
pub struct Entrance {
    pub(super) listener: Arc<TcpListener>,
    pub(super) address: SocketAddr,
    pub(super) tls: Option<Tls>,
    limits: ServerLimits,
    node_id: String,
    began: BootTime,
}

/// The state of the handlers that run until the store is open.
#[derive(Clone)]
struct Meanwhile {
    node_id: String,
    engine: &'static str,
    began: BootTime,
    reason: watch::Receiver<String>,
}

impl Entrance {
    /// Starts to listen on the configured address.
    pub async fn open(config: &ServerConfig) -> Result<Self, StartError> {
        let tls = Tls::of(config).await?;
        let (address, listener) = bind(config.listen)?;
        Ok(Self {
            listener,
            address,
            tls,
            limits: config.limits,
            node_id: config.node_id.clone(),
            began: BootTime::now(),
        })
    }

    /// The base URL.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Serves health checks until `work` is done, and responds to every other request with `unavailable` and the last
    /// `reason`. `engine` is the kind of store that is being opened.
    pub async fn serve_until<T>(
        &self,
        engine: &'static str,
        reason: watch::Receiver<String>,
        work: impl Future<Output = T>,
    ) -> T {
        let state = Meanwhile { node_id: self.node_id.clone(), engine, began: self.began, reason };
        let router = Router::new()
            .route(paths::HEALTH, get(health))
            .route(paths::HEALTH_CHECK, get(health))
            .fallback(unavailable)
            .with_state(state);
        let listener = Listener {
            listener: self.listener.clone(),
            acceptor: self.tls.as_ref().map(Tls::acceptor),
            limits: self.limits,
            connections: Arc::default(),
            router,
        };
        let (stop, stopping) = watch::channel(false);
        // If this future is dropped, as on a signal, all connections close.
        let listener = listener.accept_until(stopping);
        let work = async {
            let done = work.await;
            stop.send_replace(true);
            done
        };
        tokio::join!(listener, work).1
    }
}

async fn health(State(meanwhile): State<Meanwhile>) -> Json<Liveness> {
    Json(liveness(&meanwhile.node_id, meanwhile.engine, meanwhile.began))
}

async fn unavailable(State(meanwhile): State<Meanwhile>, uri: Uri) -> Response {
    let reason = meanwhile.reason.borrow().clone();
    let problem = Problem::new(ErrorCode::Unavailable, reason).retry_after_ms(RETRY_AFTER_MS);
    let problem = problem.instance(uri.path());
    let text = serde_json::to_vec(&problem).unwrap_or_default();
    let mut response = ApiError::from(problem).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    *response.body_mut() = text.into();
    response
}
