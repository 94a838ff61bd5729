//! The floor: the same client and HTTP library with nothing behind them. No server that shares this machine with its
//! client can be faster, whatever it keeps its leases in.

use std::net::SocketAddr;

use anyhow::Result;
use axum::{Json, Router, body::Bytes, extract::Path, http::StatusCode, routing::post};
use tokio::{net::TcpListener, task::JoinHandle};

/// A server that answers every cycle and keeps nothing.
pub struct Bare {
    /// Where it listens.
    pub address: SocketAddr,
    server: JoinHandle<()>,
}

impl Bare {
    /// Serves the same calls as the others.
    pub async fn start() -> Result<Self> {
        let routes = Router::new().route("/api/v1/scenes/{id}/lease", post(acquire).delete(release));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let server = tokio::spawn(async move {
            // It runs until it is aborted.
            let _ = axum::serve(listener, routes).await;
        });
        Ok(Self { address, server })
    }

    /// Stops.
    pub fn stop(self) {
        self.server.abort();
    }
}

async fn acquire(Path(scene): Path<String>, body: Bytes) -> (StatusCode, Json<serde_json::Value>) {
    let answer = serde_json::json!({ "scene_id": scene, "version": body.len() });
    (StatusCode::CREATED, Json(answer))
}

async fn release(Path(_): Path<String>, _: Bytes) -> StatusCode {
    StatusCode::NO_CONTENT
}
