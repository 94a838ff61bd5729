//! Extractors for the body, the query and the names in the path of a request.

use std::error::Error as _;

use axum::{
    body::{HttpBody, to_bytes},
    extract::{FromRequest, FromRequestParts, Path, Query, Request},
    http::request::Parts,
};
use http_body_util::LengthLimitError;
use serde::{Deserialize, de::DeserializeOwned};
use solehold_api::{
    body,
    limits::BODY_BYTES_MAX,
    problem::{ErrorCode, Problem},
    sessions::IDEMPOTENCY_KEY,
};
use solehold_core::key::SessionId;
use uuid::Uuid;

use crate::error::ApiError;

/// A JSON body, whatever its Content-Type says (`curl -d` sends a form's), on DELETE too. Empty counts as `{}`.
#[derive(Debug)]
pub struct Body<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let body = request.into_body();
        // A body whose announced length is too large is not read.
        if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
            return Err(too_large());
        }
        let bytes = to_bytes(body, BODY_BYTES_MAX).await.map_err(unread)?;
        Ok(Self(body::parse(&bytes)?))
    }
}

/// Why a body could not be read.
fn unread(error: axum::Error) -> ApiError {
    if error.source().is_some_and(|source| source.is::<LengthLimitError>()) {
        return too_large();
    }
    Problem::new(ErrorCode::BadRequest, format!("the body could not be read: {error}")).into()
}

fn too_large() -> ApiError {
    let detail = format!("the body has more than {BODY_BYTES_MAX} bytes; split the request");
    let problem = Problem::new(ErrorCode::PayloadTooLarge, detail);
    problem.limit("body_bytes", BODY_BYTES_MAX as u64).into()
}

/// The query of a request that has no other.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct TenantQuery {
    /// The tenant, for a key that may access several.
    pub tenant: Option<String>,
}

/// The query string; a field that is wrong is named.
#[derive(Debug)]
pub struct Params<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Query(params) = Query::<T>::from_request_parts(parts, state)
            .await
            .map_err(|rejection| Problem::new(ErrorCode::InvalidField, rejection.body_text()))?;
        Ok(Self(params))
    }
}

/// The id that the caller has chosen for the session that it opens.
#[derive(Debug, utoipa::IntoParams)]
#[into_params(parameter_in = Header)]
pub struct ChosenSession {
    /// The id of the session, a UUID that the caller chooses and uses for nothing else. A repeat of the request, even
    /// one that arrives late, then finds the session instead of opening another that supersedes it.
    #[param(rename = "Idempotency-Key", value_type = Uuid, required = false, nullable = false)]
    pub id: Option<SessionId>,
}

impl<S: Send + Sync> FromRequestParts<S> for ChosenSession {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let Some(chosen) = parts.headers.get(IDEMPOTENCY_KEY) else { return Ok(Self { id: None }) };
        let id = chosen.to_str().ok().and_then(|text| Uuid::try_parse(text).ok());
        let wrong = "the header Idempotency-Key must be a UUID that was used for nothing else";
        let id = id.ok_or_else(|| Problem::new(ErrorCode::InvalidField, wrong))?;
        Ok(Self { id: Some(SessionId(id)) })
    }
}

/// The names in the path, percent-decoded: a `%2F` is a slash within a name.
#[derive(Debug)]
pub struct NamePath<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for NamePath<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Path(names) = Path::<T>::from_request_parts(parts, state)
            .await
            .map_err(|rejection| Problem::new(ErrorCode::InvalidField, rejection.body_text()))?;
        Ok(Self(names))
    }
}

/// The names in the path, and the tenant that the query names.
#[derive(Debug)]
pub struct At<P> {
    pub path: P,
    pub tenant: Option<String>,
}

impl<P: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for At<P> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let NamePath(path) = NamePath::from_request_parts(parts, state).await?;
        let Params(TenantQuery { tenant }) = Params::from_request_parts(parts, state).await?;
        Ok(Self { path, tenant })
    }
}
