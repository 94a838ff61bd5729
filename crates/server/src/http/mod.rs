//! What all routes share: authentication, extractors, JSON and problem responses, and the middleware of every request.

mod around;
mod arrival;
mod auth;
mod caller;
mod extract;
mod json;
mod local;
mod path;

pub(crate) use around::{around, body_late};
pub(crate) use auth::Peer;
pub use caller::{Admission, Anyone, Caller, GuardedContext, GuardedHandler};
pub use extract::{At, Body, ChosenSession, NamePath, Params, TenantQuery};
pub use json::{Json, Reply, StatusReply};
pub(crate) use path::without_trailing_slash;

pub use crate::{
    context::Context,
    error::ApiError,
    state::{
        identity::{Identity, role},
        quota::Quota,
    },
};
