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

use crate::{
    ServerConfig, ServerLimits, StartError,
    http::{ApiError, Json},
    routes::{Liveness, liveness},
    serve::{Door, bind},
    tls::Tls,
};

/// When a client should try again.
const RETRY_AFTER_MS: u64 = 1_000;

/// An open listener of a server that has no store yet. [`Server::start_behind`](crate::Server::start_behind) serves
/// there once it has one.
#[derive(Debug)]
pub struct Entrance {
    pub(crate) listener: Arc<TcpListener>,
    pub(crate) address: SocketAddr,
    pub(crate) tls: Option<Tls>,
    limits: ServerLimits,
    node_id: String,
    began: BootTime,
}

/// What is answered meanwhile.
#[derive(Clone)]
struct Meanwhile {
    node_id: String,
    engine: &'static str,
    began: BootTime,
    reason: watch::Receiver<String>,
}

impl Entrance {
    /// Listens.
    pub async fn open(config: &ServerConfig) -> Result<Self, StartError> {
        let tls = Tls::of(config).await?;
        let (address, listener) = bind(config.listen)?;
        let (limits, node_id, began) = (config.limits, config.node_id.clone(), BootTime::now());
        Ok(Self { listener, address, tls, limits, node_id, began })
    }

    /// The base URL.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Answers callers until `work` is done: that the process is up, that it is not ready, and to everything else that
    /// it is unavailable, with the last `reason`. `engine` is the kind of store that it waits for.
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
        let door = Door {
            listener: self.listener.clone(),
            acceptor: self.tls.as_ref().map(Tls::acceptor),
            limits: self.limits,
            connections: Arc::default(),
            router,
        };
        let (stop, stopping) = watch::channel(false);
        // Dropped with this future, as when a signal ends the wait: then all connections end.
        let door = door.keep(stopping);
        let work = async {
            let done = work.await;
            stop.send_replace(true);
            done
        };
        tokio::join!(door, work).1
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
