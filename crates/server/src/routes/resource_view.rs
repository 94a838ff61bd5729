//! Resources as the surfaces read them: one by its key, or a page of those that match a query; and pages of events.

use solehold_api::{
    field::{self, FieldError},
    limits::PAGE_SIZE_MAX,
    locks::LockWaiter,
    page::{self, HistoryQuery, PageCursor},
    problem::{ErrorCode, Problem},
    resources::{HeldLease, ResourceBody},
    watch::LeaseEvent,
};
use solehold_core::{
    command::{Claim, Target},
    event::Event,
    key::{Name, ResourceKey},
    lease::{Declaration, Resource},
    limits::WAITERS_LOADED,
    outcome::{LeaseView, Refusal},
    time::{Revision, StoreTime},
};
use solehold_engine::store::{EventQuery, LoadedRows, ResourcePage, ResourceQuery};

use crate::http::{ApiError, Context};

/// The resource of a kind that a path names by the parameter `field`.
pub fn resource_key(tenant: Name, kind: &str, field: &str, key: &str) -> Result<ResourceKey, ApiError> {
    Ok(ResourceKey::new(tenant, field::name("kind", kind)?, field::name(field, key)?))
}

/// The resources of a kind.
pub fn of_kind(kind: &str) -> Result<ResourceQuery, ApiError> {
    Ok(ResourceQuery { kind: Some(field::name("kind", kind)?), ..Default::default() })
}

/// A resource as it was at `now`, with the lease on it, expired or not.
#[derive(Debug)]
pub struct ResourceView {
    pub resource: Resource,
    pub lease: Option<LeaseView>,
    /// The leases of those who share it.
    pub shared: Vec<LeaseView>,
    /// The first in line, in order, if the line was loaded: lists come without it.
    pub waiters: Vec<LockWaiter>,
    pub now: StoreTime,
    /// The epoch of the store's history.
    pub epoch: u64,
}

impl ResourceView {
    /// The resource of that key, if it was loaded.
    pub fn of(loaded: &LoadedRows, key: &ResourceKey) -> Option<Self> {
        let resource = loaded.state.resource(key)?.clone();
        let lease = LeaseView::of(&loaded.state, &resource, loaded.now).ok().flatten();
        let slots = loaded.state.slots_of(key).unwrap_or_default().into_iter();
        let held = slots.filter_map(|slot| LeaseView::of(&loaded.state, slot, loaded.now).ok().flatten());
        let shared = held.filter(is_live).collect();
        let waiters = loaded.state.waiters_for(key).filter(|waiter| waiter.deadline > loaded.now);
        let waiters = waiters.take(WAITERS_LOADED).map(LockWaiter::of).collect();
        Some(Self { resource, lease, shared, waiters, now: loaded.now, epoch: loaded.cursor.epoch })
    }

    /// As the API shows it.
    pub fn shown(self) -> ResourceBody {
        let body = ResourceBody::of(&self.resource, self.lease.as_ref(), self.now);
        let shared = self.shared.iter().map(HeldLease::of).collect();
        ResourceBody { waiters: self.waiters, shared, ..body }
    }

    /// The resources that were found, in order.
    pub fn all(found: &ResourcePage) -> impl Iterator<Item = Self> {
        found.keys.iter().filter_map(|key| Self::of(&found.loaded, key))
    }

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
    let after = match cursor {
        Some(cursor) => {
            let (names, slot) = slot_in(cursor, tenant);
            let (tenant, [kind, key]) = names_in(&names, tenant)?;
            Some(ResourceKey { tenant, kind, key, slot })
        }
        None => None,
    };
    let query = ResourceQuery { tenant: tenant.cloned(), after, limit: page::size(limit)?, ..query };
    let mut found = context.engine().find_resources(&query).await?;
    let last = found.keys.last().filter(|_| found.more);
    let next = last.map(|key| {
        let mut next = cursor_after(tenant, &key.tenant, &[&key.kind, &key.key]);
        next.0.extend(key.is_slot().then(|| key.slot.to_string()));
        next
    });
    // A page of a limited key may be short.
    found.keys.retain(|key| context.caller().may_see(key));
    Ok((found, next))
}

/// Reads all resources that match `query`, page by page.
pub async fn each_page(
    context: &Context,
    tenant: Option<&Name>,
    query: &ResourceQuery,
    mut visit: impl FnMut(ResourcePage),
) -> Result<(), ApiError> {
    let mut cursor = None;
    loop {
        let limit = Some(PAGE_SIZE_MAX as i64);
        let (found, next) = resource_page(context, tenant, query.clone(), cursor.as_ref(), limit).await?;
        visit(found);
        match next {
            Some(_) => cursor = next,
            None => return Ok(()),
        }
    }
}

/// The cursor of a page that ends with the item of these names. On a page of all tenants it begins with the item's.
pub fn cursor_after(tenant: Option<&Name>, of: &Name, names: &[&Name]) -> PageCursor {
    let of = Some(of).filter(|_| tenant.is_none());
    PageCursor(of.into_iter().chain(names.iter().copied()).map(ToString::to_string).collect())
}

/// The number at the end of the cursor of a page that ends with a slot, and the cursor without it.
fn slot_in(cursor: &PageCursor, tenant: Option<&Name>) -> (PageCursor, u32) {
    let names = 2 + usize::from(tenant.is_none());
    let slot = cursor.0.get(names).and_then(|slot| slot.parse().ok());
    match slot.filter(|_| cursor.0.len() == names + 1) {
        Some(slot) => (PageCursor(cursor.0[..names].to_vec()), slot),
        None => (cursor.clone(), 0),
    }
}

/// The tenant and the names in the cursor of a page.
pub fn names_in<const N: usize>(
    cursor: &PageCursor,
    tenant: Option<&Name>,
) -> Result<(Name, [Name; N]), FieldError> {
    let names: Result<Vec<_>, _> = cursor.0.iter().map(Name::new).collect();
    let mut names = names.map_err(|_| page::unknown_cursor())?.into_iter();
    let tenant = tenant.cloned().or_else(|| names.next()).ok_or_else(page::unknown_cursor)?;
    let names = names.collect::<Vec<_>>().try_into().map_err(|_| page::unknown_cursor())?;
    Ok((tenant, names))
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

/// A page of a tenant's events, and where the next begins.
pub async fn event_page(
    context: &Context,
    tenant: &Name,
    of: EventQuery,
    query: &HistoryQuery,
) -> Result<(Vec<LeaseEvent>, Option<PageCursor>), ApiError> {
    let of = EventQuery { limit: page::size(query.limit)?, ..of };
    let seen = query.cursor.as_ref().map(revision).transpose()?;
    let asked = match (query.newest_first, seen) {
        (true, Some(_)) => EventQuery { newest_before: seen, ..of },
        (true, None) => of.newest(),
        (false, _) => EventQuery { after: seen.unwrap_or_default(), ..of },
    };
    let page = context.engine().events(&asked).await?;
    let last = page.events.last().filter(|_| page.events.len() == asked.limit);
    let next = last.map(|event| PageCursor(vec![event.revision.0.to_string()]));
    let is_its = |event: &&Event| event.key.tenant == *tenant && context.caller().may_see(&event.key);
    let its = page.events.iter().filter(is_its);
    Ok((its.map(|event| LeaseEvent::of(event, page.head.epoch)).collect(), next))
}

fn revision(cursor: &PageCursor) -> Result<Revision, ApiError> {
    let [revision] = cursor.0.as_slice() else { return Err(page::unknown_cursor().into()) };
    revision.parse().map(Revision).map_err(|_| page::unknown_cursor().into())
}
