//! What all routes share: who calls, what a body says, how failures are answered, and what happens around every
//! request.

pub(crate) mod about;
mod around;
mod arrival;
mod auth;
mod caller;
mod error;
mod extract;
mod json;
mod local;
mod path;
mod rate;

pub(crate) use around::{around, body_late};
pub(crate) use auth::Peer;
pub use caller::{
    Admission, Anyone, Caller, GuardedContext, GuardedHandler, Identity, Role, TenantQuery, role,
};
pub use error::ApiError;
pub use extract::{Body, ChosenSession, NamePath, Params};
pub use json::Json;
pub(crate) use path::without_trailing_slash;
pub(crate) use rate::Rates;
