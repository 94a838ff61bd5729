//! How this surface answers: in an envelope, success or not. What fails is put into it around the handler, as on every
//! path of [`solehold_api::leases::ENVELOPED`].

use solehold_api::{
    leases::Envelope,
    problem::{ErrorCode, Problem},
};
use solehold_core::lease::LeaseStatus;

use crate::http::{ApiError, Json};

/// The result of a handler of this surface.
pub type Reply = Result<Json<Envelope>, ApiError>;

/// There is no lease of that id, or none that the caller may know of.
pub fn no_lease(id: &str) -> ApiError {
    let shown: String = id.chars().take(64).collect();
    Problem::new(ErrorCode::NotFound, format!("there is no lease {shown}")).into()
}

/// A lease that has expired is answered as "gone", and one that is over otherwise as "not found", which is what
/// existing clients expect; its code says the rest.
pub fn over(failure: ApiError) -> ApiError {
    let problem = &failure.0;
    let is_over = problem.code == ErrorCode::Lost && (problem.ended.is_some() || problem.holder.is_none());
    match problem.ended.as_ref().map(|ended| ended.status) {
        Some(LeaseStatus::Expired) if is_over => failure.0.as_gone().into(),
        _ if is_over => failure.0.as_not_found().into(),
        _ => failure,
    }
}
