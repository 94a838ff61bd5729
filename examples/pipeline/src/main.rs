//! The end of a camera pipeline: a sink that takes each frame of a camera once, in order, and only from the worker with
//! the newest fencing token. Workers are kept by `solehold agent` (`agent.yaml`, `worker.py`).
//!
//! ```text
//!   solehold serve <── leases ── solehold agent ── worker.py ── POST /frames {camera, token, frame} ──> sink ──> PostgreSQL
//!                                (three of them)   (several each)                 the mark moves in the same transaction
//! ```
//! A worker that lost its camera and does not know it yet shows an old token, and is refused. One that starts again
//! from an older checkpoint sends frames that are there already, and is told where to go on.

mod store;

use std::net::SocketAddr;

use anyhow::{Context, Result};
use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use clap::Parser;
use serde_json::json;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

use crate::store::{Frame, Store, Written};

/// Takes each frame of a camera once, from the worker with the newest token.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:7171")]
    listen: SocketAddr,
    /// The database of frames and marks: postgres://USER@HOST/DATABASE.
    #[arg(long, env = "PIPELINE_DATABASE")]
    database: String,
}

#[tokio::main]
async fn main() -> Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let args = Args::parse();
    let store = Store::open(&args.database).await?;
    let routes = Router::new()
        .route("/frames", post(write))
        .route("/marks", get(marks))
        .route("/health", get(|| async { "ok\n" }))
        .with_state(store);
    let listener = TcpListener::bind(args.listen).await.with_context(|| args.listen.to_string())?;
    println!("pipeline sink listening on http://{}", listener.local_addr()?);
    let mut terminate = signal(SignalKind::terminate())?;
    let ended = async move {
        terminate.recv().await;
    };
    Ok(axum::serve(listener, routes).with_graceful_shutdown(ended).await?)
}

/// A fault of the sink: the worker sends the frame again.
struct Broken(anyhow::Error);

impl IntoResponse for Broken {
    fn into_response(self) -> Response {
        tracing::error!(error = format!("{:#}", self.0), "a request failed");
        let error = json!({"error": "a fault of the sink; send the frame again"});
        (StatusCode::SERVICE_UNAVAILABLE, Json(error)).into_response()
    }
}

/// Takes a frame. The answer has the camera's mark: a frame that is there already is no error, and an older token is.
async fn write(State(store): State<Store>, Json(frame): Json<Frame>) -> Result<Response, Broken> {
    if frame.frame < 1 || frame.token < 1 {
        let error = json!({"error": "token and frame count from 1"});
        return Ok((StatusCode::BAD_REQUEST, Json(error)).into_response());
    }
    let written: Written = store.write(&frame).await.map_err(Broken)?;
    let status = if written.outcome == "fenced" { StatusCode::CONFLICT } else { StatusCode::OK };
    Ok((status, Json(written)).into_response())
}

/// The marks of all cameras.
async fn marks(State(store): State<Store>) -> Result<Json<serde_json::Value>, Broken> {
    Ok(Json(json!({"marks": store.marks().await.map_err(Broken)?})))
}
