//! The envelope in which this surface answers, success or not.

use axum::{
    Json,
    extract::{FromRequest, FromRequestParts, Request},
    http::{HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use solehold_api::{
    field::FieldError,
    leases::Envelope,
    problem::{ErrorCode, Problem},
};
use solehold_core::outcome::Refusal;
use solehold_engine::EngineError;

use crate::http::{Admission, ApiError, Role};

/// What a handler of this surface answers.
pub type Reply = Result<Json<Envelope>, EnvelopeError>;

/// A failure that is answered in the envelope: the problem document is flat beside it.
#[derive(Debug)]
pub struct EnvelopeError(ApiError);

impl From<ApiError> for EnvelopeError {
    fn from(failure: ApiError) -> Self {
        Self(failure)
    }
}

macro_rules! from_errors {
    ($($error:ty),*) => {$(
        impl From<$error> for EnvelopeError {
            fn from(error: $error) -> Self {
                Self(error.into())
            }
        }
    )*};
}
from_errors!(EngineError, FieldError, Problem, Refusal, Vec<FieldError>);

/// Any other extractor, whose failure is answered in the envelope, too.
#[derive(Debug)]
pub struct Enveloped<T>(pub T);

impl<T: Admission> Admission for Enveloped<T> {
    const ROLE: Option<Role> = T::ROLE;
    const REFUSAL: (&str, &str) = ("Envelope", "application/json");
}

impl<S: Send + Sync, T: FromRequestParts<S, Rejection = ApiError>> FromRequestParts<S> for Enveloped<T> {
    type Rejection = EnvelopeError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, EnvelopeError> {
        Ok(Self(T::from_request_parts(parts, state).await?))
    }
}

impl<S: Send + Sync, T: FromRequest<S, Rejection = ApiError>> FromRequest<S> for Enveloped<T> {
    type Rejection = EnvelopeError;

    async fn from_request(request: Request, state: &S) -> Result<Self, EnvelopeError> {
        Ok(Self(T::from_request(request, state).await?))
    }
}

impl IntoResponse for EnvelopeError {
    fn into_response(self) -> Response {
        let problem = *self.0.0;
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let retry_after = problem.retry_after_seconds();
        let mut response = (status, Json(Envelope::refused(problem))).into_response();
        if let Some(seconds) = retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// There is no lease of that id, or none that the caller may know of.
pub fn no_lease(id: &str) -> EnvelopeError {
    let shown: String = id.chars().take(64).collect();
    Problem::new(ErrorCode::NotFound, format!("there is no lease {shown}")).into()
}

/// An expired lease is as gone as one that was swept: to the holder, the difference means nothing.
pub fn over(failure: ApiError) -> EnvelopeError {
    let problem = &failure.0;
    if problem.code == ErrorCode::Lost && problem.holder.is_none() {
        return failure.0.recoded(ErrorCode::NotFound).into();
    }
    failure.into()
}
