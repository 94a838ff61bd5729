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

use crate::http::{Admission, Failure, Role};

/// What a handler of this surface answers.
pub type Reply = Result<Json<Envelope>, Refused>;

/// A failure that is answered in the envelope: the problem document is flat beside it.
#[derive(Debug)]
pub struct Refused(Failure);

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self(failure)
    }
}

macro_rules! refused_by {
    ($($error:ty),*) => {$(
        impl From<$error> for Refused {
            fn from(error: $error) -> Self {
                Self(error.into())
            }
        }
    )*};
}
refused_by!(EngineError, FieldError, Problem, Refusal, Vec<FieldError>);

/// Any other extractor, whose failure is answered in the envelope, too.
#[derive(Debug)]
pub struct Enveloped<T>(pub T);

impl<T: Admission> Admission for Enveloped<T> {
    const ROLE: Option<Role> = T::ROLE;
    const REFUSAL: (&str, &str) = ("Envelope", "application/json");
}

impl<S: Send + Sync, T: FromRequestParts<S, Rejection = Failure>> FromRequestParts<S> for Enveloped<T> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        Ok(Self(T::from_request_parts(parts, state).await?))
    }
}

impl<S: Send + Sync, T: FromRequest<S, Rejection = Failure>> FromRequest<S> for Enveloped<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refused> {
        Ok(Self(T::from_request(request, state).await?))
    }
}

impl IntoResponse for Refused {
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
pub fn no_lease(id: &str) -> Refused {
    let shown: String = id.chars().take(64).collect();
    Problem::new(ErrorCode::NotFound, format!("there is no lease {shown}")).into()
}

/// A lease whose time has run out is as gone as one that was swept: which of the two it is says nothing to a holder.
pub fn over(failure: Failure) -> Refused {
    let problem = &failure.0;
    if problem.code == ErrorCode::Lost && problem.holder.is_none() {
        return failure.0.recoded(ErrorCode::NotFound).into();
    }
    failure.into()
}
