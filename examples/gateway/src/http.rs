//! The HTTP interface for clients and operators.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Path, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use serde::Deserialize;
use serde_json::json;

use crate::{gateway::Gateway, store::Message};

/// Longest text, message id and session id, in bytes.
const TEXT_BYTES_MAX: usize = 16 * 1024;
const ID_BYTES_MAX: usize = 200;

pub fn router(gateway: Arc<Gateway>) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/route/{session}", get(route))
        .route("/sessions/{session}/messages", get(list).post(send))
        .with_state(gateway)
}

/// Why a request failed, as the client is told.
pub enum RequestError {
    Bad(String),
    Busy(String),
    Broken(anyhow::Error),
}

impl From<anyhow::Error> for RequestError {
    fn from(error: anyhow::Error) -> Self {
        Self::Broken(error)
    }
}

impl IntoResponse for RequestError {
    fn into_response(self) -> Response {
        let (status, error) = match self {
            Self::Bad(error) => (StatusCode::BAD_REQUEST, error),
            Self::Busy(error) => (StatusCode::SERVICE_UNAVAILABLE, error),
            Self::Broken(error) => {
                tracing::error!(error = format!("{error:#}"), "cannot answer a request");
                (StatusCode::SERVICE_UNAVAILABLE, "the gateway failed; send the message again".to_owned())
            }
        };
        // A message that is sent again under its id is the same message.
        let retry = [(header::RETRY_AFTER, "1")];
        (status, retry, Json(json!({"error": error}))).into_response()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Send {
    /// The client's own name for the message: sent again, it is the same message.
    id: String,
    text: String,
}

fn bounded(what: &str, text: &str, most: usize) -> Result<(), RequestError> {
    if (1..=most).contains(&text.len()) {
        return Ok(());
    }
    Err(RequestError::Bad(format!("the {what} has {} bytes; it must have 1 to {most}", text.len())))
}

/// Takes a message in and answers it, after all that came in before.
async fn send(
    State(gateway): State<Arc<Gateway>>,
    Path(session): Path<String>,
    Json(message): Json<Send>,
) -> Result<Json<Message>, RequestError> {
    bounded("session", &session, ID_BYTES_MAX)?;
    bounded("id", &message.id, ID_BYTES_MAX)?;
    bounded("text", &message.text, TEXT_BYTES_MAX)?;
    gateway.store().receive(&session, &message.id, &message.text, gateway.node_id()).await?;
    if let Some(answered) =
        gateway.store().message(&session, &message.id).await?.filter(|m| m.reply.is_some())
    {
        return Ok(Json(answered));
    }
    gateway.answer(&session).await.map_err(|busy| RequestError::Busy(busy.to_string()))?;
    let answered = gateway.store().message(&session, &message.id).await?.filter(|m| m.reply.is_some());
    answered.map(Json).ok_or_else(|| RequestError::Busy("the message is not answered yet".to_owned()))
}

/// The messages of a session, the last thousand.
async fn list(
    State(gateway): State<Arc<Gateway>>,
    Path(session): Path<String>,
) -> Result<Json<serde_json::Value>, RequestError> {
    bounded("session", &session, ID_BYTES_MAX)?;
    Ok(Json(json!({"messages": gateway.store().messages(&session).await?})))
}

/// The health of this node, and all other nodes.
async fn health(State(gateway): State<Arc<Gateway>>) -> Json<serde_json::Value> {
    Json(gateway.health().await)
}

/// The live node that should serve a session.
async fn route(
    State(gateway): State<Arc<Gateway>>,
    Path(session): Path<String>,
) -> Result<Json<serde_json::Value>, RequestError> {
    bounded("session", &session, ID_BYTES_MAX)?;
    let node_id = gateway.route(&session).await.map_err(|error| RequestError::Busy(error.to_string()))?;
    Ok(Json(json!({"session": session, "node_id": node_id})))
}
