//! The key that a request was admitted with, and what it allows.

use std::sync::Arc;

use solehold_api::{
    admin::Role,
    field,
    problem::{ErrorCode, Problem},
};
use solehold_core::{
    call::Actor,
    key::{Name, ResourceKey},
    outcome::Refusal,
};

use super::keys::Key;
use crate::error::ApiError;

/// Requirements of handlers on their callers.
pub mod role {
    use super::Role;

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

    /// One who may see all tenants and all resources.
    #[derive(Debug)]
    pub enum StoreReader {}

    impl Requirement for StoreReader {
        const ROLE: Role = Role::Reader;
        const ALL_TENANTS: bool = true;
    }

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

    /// The name of the key, for people.
    pub fn key_name(&self) -> Option<&Name> {
        self.0.as_ref().map(|key| &key.name)
    }

    /// The tenant that the key is for; none, if it may name any.
    pub fn scope(&self) -> Option<&Name> {
        self.0.as_ref()?.tenant.as_ref()
    }

    /// The actor to which core attributes this caller's commands.
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

    pub fn is_admin(&self) -> bool {
        self.role() == Role::Admin
    }

    pub fn must_meet<R: role::Requirement>(&self) -> Result<(), ApiError> {
        if self.role() < R::ROLE {
            let detail =
                format!("this request needs the role {:?}; your key has the role {:?}", R::ROLE, self.role());
            return Err(Problem::new(ErrorCode::Forbidden, detail.to_lowercase()).into());
        }
        if R::ALL_TENANTS {
            self.must_be_unscoped()?;
            self.must_be_unlimited()?;
        }
        Ok(())
    }

    /// Refuses a key that is limited to some resources, where something concerns all of them.
    fn must_be_unlimited(&self) -> Result<(), ApiError> {
        if self.0.as_ref().is_none_or(|key| key.role == Role::Admin || key.scopes.is_empty()) {
            return Ok(());
        }
        let detail = "this request concerns all resources; your key is limited to some of them";
        Err(Problem::new(ErrorCode::Forbidden, detail).into())
    }

    /// Refuses a key of one tenant, where something concerns all of them.
    pub fn must_be_unscoped(&self) -> Result<(), ApiError> {
        match self.scope() {
            None => Ok(()),
            Some(scope) => {
                let detail =
                    format!("this request concerns all tenants; your key is limited to tenant {scope}");
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
