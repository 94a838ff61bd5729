//! What a handler fails with.
//!
//! ```text
//!   core::Refusal       (decided: no)              --Problem::from_refusal--+
//!   engine::EngineError (store: unknown, away)     --code, retry-after------+--> Problem --> ApiError --> response
//!   api::FieldError     (a field of the request)   --invalid_field----------+                   |
//!   Problem::new        (a key, a role, a quota, a path)  ------------------+                   v
//!                                                  around: a problem document, or within the pipeline's envelope
//! ```
//! The response of an [`ApiError`] has its status and headers, with the problem attached; `around`, which knows the
//! path and the request id, writes the document. A server that does not start fails with a `StartError` or a
//! `TlsError`.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use solehold_api::{
    field::FieldError,
    problem::{ErrorCode, Problem},
};
use solehold_core::outcome::{Answer, Refusal};
use solehold_engine::{EngineError, store::StoreError};

/// How long a client should wait while the store is unavailable.
const STORE_RETRY_AFTER_MS: u64 = 1_000;

/// A problem, on its way to the client.
#[derive(Debug, Clone, thiserror::Error)]
#[error(transparent)]
pub struct ApiError(pub Box<Problem>);

/// The error for an answer of the wrong type, which is a bug.
pub fn unexpected(answer: &Answer) -> ApiError {
    tracing::error!(?answer, "engine returned an answer of the wrong type; failing the request");
    Problem::new(ErrorCode::Internal, "the engine returned an unexpected answer; the server's log has it")
        .into()
}

impl From<Problem> for ApiError {
    fn from(problem: Problem) -> Self {
        Self(Box::new(problem))
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        Problem::from_refusal(&refusal).into()
    }
}

impl From<FieldError> for ApiError {
    fn from(error: FieldError) -> Self {
        Problem::from(error).into()
    }
}

impl From<Vec<FieldError>> for ApiError {
    fn from(errors: Vec<FieldError>) -> Self {
        Problem::from(errors).into()
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let code = code_of(&error);
        if code == ErrorCode::Internal {
            tracing::error!(%error, "store is unusable; failing the request");
        }
        let retry_after_ms = match error {
            EngineError::Store(StoreError::Barred { retry_after_ms }) => retry_after_ms,
            _ => STORE_RETRY_AFTER_MS,
        };
        Problem::new(code, error.to_string()).retry_after_ms(retry_after_ms).into()
    }
}

/// The code of a failure of the engine.
pub fn code_of(error: &EngineError) -> ErrorCode {
    match error {
        EngineError::Store(
            StoreError::Unavailable(_) | StoreError::Barred { .. } | StoreError::Retired { .. },
        )
        | EngineError::Stopping => ErrorCode::Unavailable,
        EngineError::Store(StoreError::Unknown(_)) => ErrorCode::UnknownOutcome,
        EngineError::Store(StoreError::Contended { .. }) | EngineError::Overloaded { .. } => {
            ErrorCode::Overloaded
        }
        EngineError::Store(StoreError::Unusable(_) | StoreError::InUse { .. } | StoreError::NotEmpty) => {
            ErrorCode::Internal
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = status.into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.0.retry_after_seconds() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"solehold\""));
        }
        response.extensions_mut().insert(self);
        response
    }
}
