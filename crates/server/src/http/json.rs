//! JSON responses.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use solehold_api::problem::{ErrorCode, Problem};

use crate::error::ApiError;

/// The size of most responses, in bytes.
const USUAL_BYTES: usize = 1_024;

/// A JSON response. It ends with a newline, so that a shell prompt begins on a line of its own.
#[derive(Debug, Clone, Copy)]
pub struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match json_line(&self.0) {
            Ok(text) => {
                let kind = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
                ([kind], text).into_response()
            }
            Err(error) => {
                tracing::error!(%error, "cannot serialize response as JSON; responding with an internal error");
                let detail = "the response could not be serialized; see the server's log";
                ApiError::from(Problem::new(ErrorCode::Internal, detail)).into_response()
            }
        }
    }
}

/// What most handlers return: JSON, or a problem.
pub type Reply<T> = Result<Json<T>, ApiError>;
/// The same where success has more than one status, or another than 200.
pub type StatusReply<T> = Result<(StatusCode, Json<T>), ApiError>;

/// JSON with a newline at its end.
pub(super) fn json_line(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(USUAL_BYTES);
    serde_json::to_writer(&mut text, value)?;
    text.push(b'\n');
    Ok(text)
}
