//! An orchestrator that answers what a real one has answered.

use axum::{Json, Router, http::Uri};
use serde_json::Value;
use solehold_client::HttpConfig;
use solehold_server::ServerConfig;
use tokio::net::TcpListener;

use super::config;

/// The configuration of a server that passes on what a real orchestrator has answered: a test of the orchestrator
/// records it.
pub async fn configured() -> ServerConfig {
    let recorded: Value = serde_json::from_str(include_str!("orchestrator.json")).expect("JSON");
    let answer = async move |uri: Uri| Json(recorded[uri.path()].clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await });
    ServerConfig { orchestrator: Some(HttpConfig::new([url])), ..config() }
}
