//! Who calls, and what the caller may do.

use axum::{extract::FromRequestParts, http::request::Parts};
use solehold_api::{
    field,
    problem::{ErrorCode, Problem},
};
use solehold_core::key::Name;

pub use solehold_api::admin::Role;

use super::Failure;
use crate::Context;

/// Who calls.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The tenant that the key is for; none, if it may name any.
    pub scope: Option<Name>,
    /// What the key allows.
    pub role: Role,
}

impl Caller {
    /// Refuses a caller whose key does not allow so much.
    pub fn must_be(&self, role: Role) -> Result<(), Failure> {
        if self.role >= role {
            return Ok(());
        }
        let detail =
            format!("this needs a key of role {role:?}, and yours is {:?}", self.role).to_lowercase();
        Err(Problem::new(ErrorCode::Forbidden, detail).into())
    }

    /// Refuses a caller whose key is for one tenant, where a matter concerns the whole store.
    pub fn must_be_unscoped(&self) -> Result<(), Failure> {
        match &self.scope {
            None => Ok(()),
            Some(scope) => {
                let detail = format!("this concerns all tenants, and your key is for tenant {scope}");
                Err(Problem::new(ErrorCode::Forbidden, detail).into())
            }
        }
    }

    /// The tenant that a request is about: the key's; the one that it names, if the key may; otherwise `default`.
    /// Another tenant than the key's does not exist for the caller.
    pub fn tenant(&self, named: Option<&str>) -> Result<Name, Failure> {
        let named = named.map(|text| field::name("tenant_id", text)).transpose()?;
        match (&self.scope, named) {
            (Some(scope), Some(named)) if *scope != named => {
                Err(Problem::new(ErrorCode::NotFound, format!("there is no tenant {named}")).into())
            }
            (Some(scope), _) => Ok(scope.clone()),
            (None, Some(named)) => Ok(named),
            (None, None) => Ok(field::name("tenant_id", "default")?),
        }
    }

    /// As [`Self::tenant`], but all tenants (none in particular) for a key that may see them and a request that names none.
    pub fn tenant_or_all(&self, named: Option<&str>) -> Result<Option<Name>, Failure> {
        match (&self.scope, named) {
            (None, None) => Ok(None),
            _ => self.tenant(named).map(Some),
        }
    }
}

impl FromRequestParts<Context> for Caller {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &Context) -> Result<Self, Failure> {
        // Whoever was let in stands here; a route that forgot to ask lets nobody in.
        let caller = parts.extensions.get::<Self>().cloned();
        caller.ok_or_else(|| Problem::new(ErrorCode::Unauthorized, "nobody was let in here").into())
    }
}
