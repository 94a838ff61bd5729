//! JSON answers.

use axum::{
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use solehold_api::problem::{ErrorCode, Problem};

use super::ApiError;

/// What most answers take at most, in bytes.
const USUAL_BYTES: usize = 1_024;

/// A JSON answer. It ends with a newline, so that a prompt does not stand behind it in a terminal.
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
                tracing::error!(%error, "an answer cannot be written as JSON");
                let detail = "the answer could not be written; the server's log has more";
                ApiError::from(Problem::new(ErrorCode::Internal, detail)).into_response()
            }
        }
    }
}

/// JSON with a newline at its end.
pub(super) fn json_line(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(USUAL_BYTES);
    serde_json::to_writer(&mut text, value)?;
    text.push(b'\n');
    Ok(text)
}
