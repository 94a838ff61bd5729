//! Who calls, and what the caller may do.
//!
//! ```text
//!   headers --auth::admit--> Identity --(role checked)--> Caller<role::Runner> --context()--> engine
//! ```
//! The router's state is a [`GuardedContext`]. Only [`Caller`] and [`Anyone`] can open it, so a handler that takes
//! neither can do nothing; and the router's `routes!` accepts only handlers whose first argument is one of them.
//! Arguments are extracted in order, so the role is checked before a path, a query or a body is parsed.

use std::{marker::PhantomData, ops::Deref, sync::Arc};

use axum::{extract::FromRequestParts, http::request::Parts};
use serde::Deserialize;
use solehold_api::{
    field,
    problem::{ErrorCode, Problem},
};
use solehold_core::{
    call::Actor,
    key::{Name, ResourceKey},
    outcome::Refusal,
};

pub use solehold_api::admin::Role;

use super::ApiError;
use crate::{Context, keys::Key};

/// The router's state.
#[derive(Clone, Debug)]
pub struct GuardedContext(Context);

impl GuardedContext {
    pub fn new(context: Context) -> Self {
        Self(context)
    }
}

/// What a handler may require of its caller.
pub mod role {
    use super::Role;

    /// What the caller's key must allow.
    pub trait Requirement: Send + Sync + 'static {
        const ROLE: Role;
        /// Whether a key of one tenant is refused.
        const ALL_TENANTS: bool = false;
    }

    #[derive(Debug)]
    pub enum Reader {}

    #[derive(Debug)]
    pub enum Runner {}

    #[derive(Debug)]
    pub enum Admin {}

    /// An administrator of the whole store, whose key is for no tenant in particular.
    #[derive(Debug)]
    pub enum StoreAdmin {}

    impl Requirement for Reader {
        const ROLE: Role = Role::Reader;
    }

    impl Requirement for Runner {
        const ROLE: Role = Role::Runner;
    }

    impl Requirement for Admin {
        const ROLE: Role = Role::Admin;
    }

    impl Requirement for StoreAdmin {
        const ROLE: Role = Role::Admin;
        const ALL_TENANTS: bool = true;
    }
}

/// The key that a request was admitted with. None, while the store has no keys: then everything is allowed.
#[derive(Debug, Clone)]
pub struct Identity(Option<Arc<Key>>);

impl Identity {
    /// The caller of a server without keys.
    pub(crate) fn keyless() -> Self {
        Self(None)
    }

    pub(crate) fn of(key: Arc<Key>) -> Self {
        Self(Some(key))
    }

    pub fn key_id(&self) -> Option<&Name> {
        self.0.as_ref().map(|key| &key.id)
    }

    /// The tenant that the key is for; none, if it may name any.
    pub fn scope(&self) -> Option<&Name> {
        self.0.as_ref()?.tenant.as_ref()
    }

    /// Who gives this caller's commands.
    pub fn actor(&self) -> Actor {
        match &self.0 {
            None => Actor::Unnamed,
            Some(key) if key.role == Role::Admin => Actor::Admin(key.id.clone()),
            Some(key) => Actor::Key { id: key.id.clone(), scopes: key.scopes.clone() },
        }
    }

    /// Whether the caller may see a resource: its key is not limited, or not to others.
    pub fn may_see(&self, key: &ResourceKey) -> bool {
        self.actor().may_touch(key)
    }

    /// Refuses to show a resource that the key is not for.
    pub fn must_see(&self, key: &ResourceKey) -> Result<(), ApiError> {
        if self.may_see(key) { Ok(()) } else { Err(Refusal::OutOfScope(key.clone()).into()) }
    }

    fn role(&self) -> Role {
        self.0.as_ref().map_or(Role::Admin, |key| key.role)
    }

    /// Refuses a key whose role is not enough.
    pub fn must_meet<R: role::Requirement>(&self) -> Result<(), ApiError> {
        if self.role() < R::ROLE {
            let detail = format!("this needs a key of role {:?}, and yours is {:?}", R::ROLE, self.role());
            return Err(Problem::new(ErrorCode::Forbidden, detail.to_lowercase()).into());
        }
        if R::ALL_TENANTS { self.must_be_unscoped() } else { Ok(()) }
    }

    /// Refuses a key of one tenant, where something concerns all of them.
    pub fn must_be_unscoped(&self) -> Result<(), ApiError> {
        match self.scope() {
            None => Ok(()),
            Some(scope) => {
                let detail = format!("this concerns all tenants, and your key is for tenant {scope}");
                Err(Problem::new(ErrorCode::Forbidden, detail).into())
            }
        }
    }

    /// The tenant that a request is about: the key's; the one that it names, if the key may; otherwise `default`.
    /// Another tenant than the key's does not exist for the caller.
    pub fn tenant(&self, named: Option<&str>) -> Result<Name, ApiError> {
        let named = named.map(|text| field::name("tenant_id", text)).transpose()?;
        match (self.scope(), named) {
            (Some(scope), Some(named)) if *scope != named => {
                Err(Problem::new(ErrorCode::NotFound, format!("there is no tenant {named}")).into())
            }
            (Some(scope), _) => Ok(scope.clone()),
            (None, Some(named)) => Ok(named),
            (None, None) => Ok(field::name("tenant_id", "default")?),
        }
    }

    /// As [`Self::tenant`], but all tenants (none in particular) for a key that may see them and a request that names
    /// none.
    pub fn tenant_or_all(&self, named: Option<&str>) -> Result<Option<Name>, ApiError> {
        match (self.scope(), named) {
            (None, None) => Ok(None),
            _ => self.tenant(named).map(Some),
        }
    }
}

/// The query of a request that has no other.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct TenantQuery {
    /// Whose, for a key that may see several tenants.
    pub tenant: Option<String>,
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

/// Anyone who can reach the server, with a key or without.
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
    note = "take a `Caller<role::Reader>` (or `Runner`, `Admin`, `StoreAdmin`), or `Anyone`"
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
