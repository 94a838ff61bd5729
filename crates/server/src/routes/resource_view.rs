//! Resources as the surfaces read them: one by its key, or a page of those that match a query.

use solehold_api::{
    field,
    page::{self, PageCursor},
    problem::{ErrorCode, Problem},
};
use solehold_core::{
    command::{Claim, Target},
    key::{Name, ResourceKey},
    lease::{Declaration, Resource},
    outcome::{LeaseView, Refusal},
    time::StoreTime,
};
use solehold_engine::store::{LoadedRows, ResourcePage, ResourceQuery};

use crate::http::{ApiError, Context};

/// The resource of a kind that a path names by the parameter `field`.
pub fn resource_key(tenant: Name, kind: &str, field: &str, key: &str) -> Result<ResourceKey, ApiError> {
    Ok(ResourceKey { tenant, kind: field::name("kind", kind)?, key: field::name(field, key)? })
}

/// A resource as it was at `now`, with the lease on it, expired or not.
#[derive(Debug)]
pub struct ResourceView {
    pub resource: Resource,
    pub lease: Option<LeaseView>,
    pub now: StoreTime,
    /// The epoch of the store's history.
    pub epoch: u64,
}

impl ResourceView {
    /// The resource of that key, if it was loaded.
    pub fn of(loaded: &LoadedRows, key: &ResourceKey) -> Option<Self> {
        let resource = loaded.state.resource(key)?.clone();
        let lease = LeaseView::of(&loaded.state, &resource, loaded.now).ok().flatten();
        Some(Self { resource, lease, now: loaded.now, epoch: loaded.cursor.epoch })
    }

    /// The resources that were found, in order.
    pub fn all(found: &ResourcePage) -> impl Iterator<Item = Self> {
        found.keys.iter().filter_map(|key| Self::of(&found.loaded, key))
    }

    /// Reads a resource, declared or not.
    pub async fn read(context: &Context, key: &ResourceKey) -> Result<Option<Self>, ApiError> {
        context.caller().must_see(key)?;
        let loaded = context.engine().resource(key).await?;
        Ok(Self::of(&loaded, key))
    }

    /// Reads a declared resource; any other does not exist.
    pub async fn read_declared(context: &Context, key: &ResourceKey) -> Result<Self, ApiError> {
        let view = Self::read(context, key).await?.filter(|view| view.declared().is_some());
        view.ok_or_else(|| Refusal::NoResource(key.clone()).into())
    }

    pub fn declared(&self) -> Option<&Declaration> {
        self.resource.declared.as_deref()
    }

    /// The lease on it, until it expires.
    pub fn live(&self) -> Option<&LeaseView> {
        self.lease.as_ref().filter(|lease| is_live(lease))
    }
}

/// Whether a lease had not expired when it was read.
pub fn is_live(lease: &LeaseView) -> bool {
    lease.now < lease.deadline
}

/// A page of resources: what matches `query` after the cursor, and where the next page begins. Of all tenants, if none
/// is given.
pub async fn resource_page(
    context: &Context,
    tenant: impl Into<Option<&Name>>,
    query: ResourceQuery,
    cursor: Option<&PageCursor>,
    limit: Option<i64>,
) -> Result<(ResourcePage, Option<PageCursor>), ApiError> {
    let tenant = tenant.into();
    let after = cursor.map(|cursor| after(tenant, cursor)).transpose()?;
    let query = ResourceQuery { tenant: tenant.cloned(), after, limit: page::size(limit)?, ..query };
    let mut found = context.engine().find_resources(&query).await?;
    let last = found.keys.last().filter(|_| found.more);
    let next = last.map(|key| {
        let of = tenant.is_none().then(|| key.tenant.to_string());
        PageCursor(of.into_iter().chain([key.kind.to_string(), key.key.to_string()]).collect())
    });
    // A page of a limited key may be short.
    found.keys.retain(|key| context.caller().may_see(key));
    Ok((found, next))
}

fn after(tenant: Option<&Name>, cursor: &PageCursor) -> Result<ResourceKey, ApiError> {
    let names = cursor.0.iter().map(Name::new).collect::<Result<Vec<_>, _>>();
    match (tenant, names.map_err(|_| page::unknown_cursor())?.as_slice()) {
        (Some(tenant), [kind, key]) | (None, [tenant, kind, key]) => {
            Ok(ResourceKey { tenant: tenant.clone(), kind: kind.clone(), key: key.clone() })
        }
        _ => Err(page::unknown_cursor().into()),
    }
}

/// Nobody holds it, whether or not it exists: how the last lease on it ended, if that is known.
pub async fn nobody_holds(context: &Context, key: &ResourceKey) -> Result<Problem, ApiError> {
    let target = Target::Resource(key.clone());
    let last = context.find_past(&Claim { target, token: None, session: None, holder: None }).await?;
    Ok(match last.map(|last| Box::new(last.shown())) {
        Some(ended) => {
            let problem = Problem::new(ErrorCode::NotFound, format!("nobody holds {key}: {ended}"));
            Problem { ended: Some(ended), ..problem }
        }
        None => Problem::new(ErrorCode::NotFound, format!("nobody holds {key}")),
    })
}
