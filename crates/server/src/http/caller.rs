//! The caller of a handler, whose role was checked.
//!
//! ```text
//!   headers --auth::admit--> Identity --(role checked)--> Caller<role::Runner> --context()--> engine
//! ```
//! The router's state is a [`GuardedContext`]. Only [`Caller`] and [`Anyone`] can open it, so a handler that takes
//! neither can do nothing; and the router's `routes!` accepts only handlers whose first argument is one of them.
//! Arguments are extracted in order, so the role is checked before a path, a query or a body is parsed.

use std::{marker::PhantomData, ops::Deref};

use axum::{extract::FromRequestParts, http::request::Parts};
use solehold_api::{
    admin::Role,
    problem::{ErrorCode, Problem},
};

use crate::{
    context::Context,
    error::ApiError,
    state::identity::{Identity, role},
};

#[derive(Clone, Debug)]
pub struct GuardedContext(Context);

impl GuardedContext {
    pub fn new(context: Context) -> Self {
        Self(context)
    }
}

/// A caller whose key allows what `R` requires, and the way to the engine.
#[derive(Debug)]
pub struct Caller<R> {
    context: Context,
    requirement: PhantomData<R>,
}

impl<R> Caller<R> {
    pub fn context(&self) -> &Context {
        &self.context
    }
}

impl<R> Deref for Caller<R> {
    type Target = Identity;

    fn deref(&self) -> &Identity {
        self.context.caller()
    }
}

impl<R: role::Requirement> FromRequestParts<GuardedContext> for Caller<R> {
    type Rejection = ApiError;

    async fn from_request_parts(
        parts: &mut Parts,
        GuardedContext(context): &GuardedContext,
    ) -> Result<Self, ApiError> {
        let identity = parts.extensions.get::<Identity>().cloned();
        let identity = identity
            .ok_or_else(|| Problem::new(ErrorCode::Unauthorized, "no key was checked for this path"))?;
        identity.must_meet::<R>()?;
        Ok(Self { context: context.on_behalf_of(identity), requirement: PhantomData })
    }
}

/// Any client that can reach the server, with a key or without.
#[derive(Debug)]
pub struct Anyone(Context);

impl Anyone {
    pub fn context(&self) -> &Context {
        &self.0
    }
}

impl FromRequestParts<GuardedContext> for Anyone {
    type Rejection = ApiError;

    async fn from_request_parts(
        _: &mut Parts,
        GuardedContext(context): &GuardedContext,
    ) -> Result<Self, ApiError> {
        Ok(Self(context.clone()))
    }
}

/// The first argument of every handler: it decides who may call.
pub trait Admission {
    /// The role that a key needs; none, if no key is needed.
    const ROLE: Option<Role>;
}

impl<R: role::Requirement> Admission for Caller<R> {
    const ROLE: Option<Role> = Some(R::ROLE);
}

impl Admission for Anyone {
    const ROLE: Option<Role> = None;
}

/// A handler whose first argument is an [`Admission`].
#[diagnostic::on_unimplemented(
    message = "the first argument of a handler must say who may call it",
    note = "take a `Caller<role::Reader>` (or `Runner`, `Admin`, `StoreAdmin`, `StoreReader`), or `Anyone`"
)]
pub trait GuardedHandler<Arguments> {
    type Admission: Admission;
}

macro_rules! guarded_handler {
    ($($rest:ident),*) => {
        impl<F, Output, E: Admission, $($rest),*> GuardedHandler<(E, $($rest,)*)> for F
        where
            F: Fn(E, $($rest),*) -> Output,
        {
            type Admission = E;
        }
    };
}
guarded_handler!();
guarded_handler!(A);
guarded_handler!(A, B);
guarded_handler!(A, B, C);
guarded_handler!(A, B, C, D);
