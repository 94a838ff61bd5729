//! How this surface answers: in an envelope, success or not. What fails is put into it around the handler, as on every
//! path of [`solehold_api::leases::ENVELOPED`].

use solehold_api::{
    leases::Envelope,
    problem::{ErrorCode, Problem},
};

use crate::http::{ApiError, Json};

/// What a handler of this surface answers.
pub type Reply = Result<Json<Envelope>, ApiError>;

/// There is no lease of that id, or none that the caller may know of.
pub fn no_lease(id: &str) -> ApiError {
    let shown: String = id.chars().take(64).collect();
    Problem::new(ErrorCode::NotFound, format!("there is no lease {shown}")).into()
}

/// An expired lease is as gone as one that was swept: to the holder, the difference means nothing.
pub fn over(failure: ApiError) -> ApiError {
    let problem = &failure.0;
    if problem.code == ErrorCode::Lost && problem.holder.is_none() {
        return failure.0.recoded(ErrorCode::NotFound).into();
    }
    failure
}
