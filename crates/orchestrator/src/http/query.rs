//! Reads the query, the id in the path and the body of a request. Mistakes become problem documents.

use std::collections::BTreeMap;

use axum::{
    extract::{FromRequestParts, Path, Query, rejection::BytesRejection},
    http::{StatusCode, request::Parts},
};
use solehold_api::problem::ErrorCode;

use crate::http::{ProblemResponse, problem};
use crate::model::limits::{PAGE_DEFAULT, PAGE_MAX, REPORTS_BYTES_MAX};

/// The parameters of every list.
pub(super) const PAGE: [&str; 2] = ["after", "limit"];

/// The parameters of a query. An empty one counts as missing.
pub(super) struct QueryParameters(BTreeMap<String, String>);

impl<S: Send + Sync> FromRequestParts<S> for QueryParameters {
    type Rejection = ProblemResponse;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ProblemResponse> {
        match Query::from_request_parts(parts, state).await {
            Ok(Query(given)) => Ok(Self(given)),
            Err(rejection) => problem(ErrorCode::InvalidField, rejection.body_text()),
        }
    }
}

impl QueryParameters {
    /// Rejects unknown parameters: a filter with a typo must not list everything.
    pub fn only(self, known: &[&str]) -> Result<Self, ProblemResponse> {
        match self.0.keys().find(|name| !known.contains(&name.as_str())) {
            None => Ok(self),
            Some(name) => {
                let known = known.join(", ");
                problem(ErrorCode::InvalidField, format!("unknown parameter {name:?}; this path has {known}"))
            }
        }
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|text| !text.is_empty())
    }

    pub fn limit(&self) -> Result<i64, ProblemResponse> {
        let Some(text) = self.text("limit") else { return Ok(PAGE_DEFAULT) };
        match text.parse() {
            Ok(limit) if (1..=PAGE_MAX).contains(&limit) => Ok(limit),
            _ => problem(ErrorCode::OutOfBounds, format!("limit is {text:?}; it must be 1 to {PAGE_MAX}")),
        }
    }

    /// The value of an enumeration, if the parameter is given.
    pub fn one_of<T: Copy>(
        &self,
        name: &str,
        all: &[T],
        word: impl Fn(T) -> &'static str,
    ) -> Result<Option<T>, ProblemResponse> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match all.iter().find(|known| word(**known) == text) {
            Some(found) => Ok(Some(*found)),
            None => {
                let known: Vec<&str> = all.iter().map(|known| word(*known)).collect();
                let detail = format!("invalid {name} {text:?}: use one of {}", known.join(", "));
                problem(ErrorCode::InvalidField, detail)
            }
        }
    }
}

pub(super) struct Id(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = ProblemResponse;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ProblemResponse> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(id)) => Ok(Self(id)),
            Err(rejection) => problem(ErrorCode::InvalidField, rejection.body_text()),
        }
    }
}

pub(super) fn unread(rejection: BytesRejection) -> ProblemResponse {
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        let detail = format!("the body has more than {REPORTS_BYTES_MAX} bytes: report less at a time");
        return ProblemResponse::new(ErrorCode::PayloadTooLarge, detail);
    }
    ProblemResponse::new(ErrorCode::BadRequest, format!("cannot read the body: {}", rejection.body_text()))
}
