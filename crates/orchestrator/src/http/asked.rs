//! What a request says: its query, the id in its path, its body. What is wrong about it is a problem document.

use std::collections::BTreeMap;

use axum::{
    extract::{FromRequestParts, Path, Query, rejection::BytesRejection},
    http::{StatusCode, request::Parts},
};
use solehold_api::problem::ErrorCode;

use super::{Refused, refused};
use crate::limits::{PAGE_DEFAULT, PAGE_MAX, REPORTS_BYTES_MAX};

/// The parameters of every list.
pub(super) const PAGE: [&str; 2] = ["after", "limit"];

/// The parameters of a query. One that is empty counts as not given.
pub(super) struct Asked(BTreeMap<String, String>);

impl<S: Send + Sync> FromRequestParts<S> for Asked {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        match Query::from_request_parts(parts, state).await {
            Ok(Query(given)) => Ok(Self(given)),
            Err(rejection) => refused(ErrorCode::InvalidField, rejection.body_text()),
        }
    }
}

impl Asked {
    /// Refuses a parameter that nobody would look at: a filter with a typo must not list everything.
    pub fn only(self, known: &[&str]) -> Result<Self, Refused> {
        match self.0.keys().find(|name| !known.contains(&name.as_str())) {
            None => Ok(self),
            Some(name) => {
                let known = known.join(", ");
                refused(ErrorCode::InvalidField, format!("there is no parameter {name:?} here, only {known}"))
            }
        }
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|text| !text.is_empty())
    }

    /// How many entries a page may have.
    pub fn limit(&self) -> Result<i64, Refused> {
        let Some(text) = self.text("limit") else { return Ok(PAGE_DEFAULT) };
        match text.parse() {
            Ok(limit) if (1..=PAGE_MAX).contains(&limit) => Ok(limit),
            _ => refused(ErrorCode::OutOfBounds, format!("limit is {text:?}; it must be 1 to {PAGE_MAX}")),
        }
    }

    /// One of several words, if one is given.
    pub fn one_of<T: Copy>(
        &self,
        name: &str,
        all: &[T],
        word: impl Fn(T) -> &'static str,
    ) -> Result<Option<T>, Refused> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match all.iter().find(|known| word(**known) == text) {
            Some(found) => Ok(Some(*found)),
            None => {
                let known: Vec<&str> = all.iter().map(|known| word(*known)).collect();
                let detail = format!("{name} {text:?} is none of {}", known.join(", "));
                refused(ErrorCode::InvalidField, detail)
            }
        }
    }
}

/// The id in the path.
pub(super) struct Id(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(id)) => Ok(Self(id)),
            Err(rejection) => refused(ErrorCode::InvalidField, rejection.body_text()),
        }
    }
}

/// Why a body could not be read.
pub(super) fn unread(rejection: BytesRejection) -> Refused {
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        let detail = format!("the body has more than {REPORTS_BYTES_MAX} bytes: report less at a time");
        return Refused::new(ErrorCode::PayloadTooLarge, detail);
    }
    Refused::new(ErrorCode::BadRequest, format!("the body did not arrive: {}", rejection.body_text()))
}
