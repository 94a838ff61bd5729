//! What the surfaces share: naming a thing, asking for it, and reading it as it stands.

use std::time::Duration;

use solehold_api::{
    field, page,
    page::{PageCursor, PageQuery},
    problem::{ErrorCode, Problem},
    resources::DeleteQuery,
    watch::{self, LeaseEvent},
};
use solehold_core::{
    command::{Acquire, Claim, Command, StateWrite, Target},
    key::{Document, LeaseId, Name, ResourceKey, SessionId},
    lease::{Declaration, Resource},
    outcome::{Answer, Grant, LeaseView, Refusal},
    time::{Revision, StoreTime},
};
use solehold_engine::{
    EngineError,
    store::{self, EventQuery, LoadedRows, ResourcePage, ResourceQuery},
};
use uuid::Uuid;

use crate::{
    Context, Quota,
    http::{Failure, submit},
};

/// The id of a lease on `key` that is about to be asked for.
pub fn fresh_lease(key: &ResourceKey) -> LeaseId {
    LeaseId::new(key, Uuid::new_v4())
}

/// The id of a session that is about to be opened.
pub fn fresh_session() -> SessionId {
    SessionId(Uuid::now_v7())
}

/// The resource of a kind that a path names by the parameter `field`.
pub fn key_of(tenant: Name, kind: &str, field: &str, key: &str) -> Result<ResourceKey, Failure> {
    Ok(ResourceKey { tenant, kind: field::name("kind", kind)?, key: field::name(field, key)? })
}

/// The name of a kind that has a surface of its own.
pub fn kind_name(kind: &str) -> Result<Name, Failure> {
    Ok(field::name("kind", kind)?)
}

/// A filter that may be left out.
pub fn maybe_name(field: &str, text: Option<&str>) -> Result<Option<Name>, Failure> {
    Ok(text.map(|text| field::name(field, text)).transpose()?)
}

/// A resource as it stood at a time, with the lease on it, run out or not.
#[derive(Debug)]
pub struct Seen {
    pub resource: Resource,
    pub lease: Option<LeaseView>,
    pub now: StoreTime,
}

impl Seen {
    /// The resource of that key, if it was loaded.
    pub fn of(loaded: &LoadedRows, key: &ResourceKey) -> Option<Self> {
        let resource = loaded.state.resource(key)?.clone();
        let lease = LeaseView::of(&loaded.state, &resource, loaded.now).ok().flatten();
        Some(Self { resource, lease, now: loaded.now })
    }

    /// The resources that were found, in order.
    pub fn all(found: &ResourcePage) -> impl Iterator<Item = Self> {
        found.keys.iter().filter_map(|key| Self::of(&found.loaded, key))
    }

    /// What was declared of it.
    pub fn declared(&self) -> Option<&Declaration> {
        self.resource.declared.as_deref()
    }

    /// The lease on it, while its time has not run out.
    pub fn live(&self) -> Option<&LeaseView> {
        self.lease.as_ref().filter(|lease| is_live(lease))
    }
}

/// Whether the time of a lease had not run out when it was read.
pub fn is_live(lease: &LeaseView) -> bool {
    lease.now < lease.deadline
}

/// Reads a resource, declared or not.
pub async fn see(context: &Context, key: &ResourceKey) -> Result<Option<Seen>, Failure> {
    let loaded = context.engine().resource(key).await?;
    Ok(Seen::of(&loaded, key))
}

/// Reads a declared resource; any other does not exist.
pub async fn see_declared(context: &Context, key: &ResourceKey) -> Result<Seen, Failure> {
    let seen = see(context, key).await?.filter(|seen| seen.declared().is_some());
    seen.ok_or_else(|| Refusal::NoResource(key.clone()).into())
}

/// A page of resources: what matches `query` after the cursor, and where the next page begins.
pub async fn page_of(
    context: &Context,
    tenant: &Name,
    query: ResourceQuery,
    cursor: Option<&PageCursor>,
    limit: Option<i64>,
) -> Result<(ResourcePage, Option<PageCursor>), Failure> {
    let after = cursor.map(|cursor| after(tenant, cursor)).transpose()?;
    let query = ResourceQuery { tenant: Some(tenant.clone()), after, limit: page::size(limit)?, ..query };
    let found = context.engine().find_resources(&query).await?;
    let last = found.keys.last().filter(|_| found.more);
    let next = last.map(|key| PageCursor(vec![key.kind.to_string(), key.key.to_string()]));
    Ok((found, next))
}

fn after(tenant: &Name, cursor: &PageCursor) -> Result<ResourceKey, Failure> {
    let [kind, key] = cursor.0.as_slice() else { return Err(odd_cursor()) };
    let (kind, key) = (Name::new(kind), Name::new(key));
    match (kind, key) {
        (Ok(kind), Ok(key)) => Ok(ResourceKey { tenant: tenant.clone(), kind, key }),
        _ => Err(odd_cursor()),
    }
}

/// The point in the watch as of which something was read.
pub fn cursor(cursor: store::Cursor) -> watch::Cursor {
    watch::Cursor { epoch: cursor.epoch, revision: cursor.revision.0 }
}

/// Nobody holds it, whether or not it is there.
pub fn nobody_holds(key: &ResourceKey) -> Problem {
    Problem::new(ErrorCode::NotFound, format!("nobody holds {key}"))
}

/// A page of a tenant's events, and where the next begins.
pub async fn events(
    context: &Context,
    tenant: &Name,
    asked: EventQuery,
    query: &PageQuery,
) -> Result<(Vec<LeaseEvent>, Option<PageCursor>), Failure> {
    let limit = page::size(query.limit)?;
    let after = query.cursor.as_ref().map_or(Ok(Revision(0)), after_event)?;
    let page = context.engine().events(&EventQuery { after, limit, ..asked }).await?;
    let last = page.events.last().filter(|_| page.events.len() == limit);
    let next = last.map(|event| PageCursor(vec![event.revision.0.to_string()]));
    let its = page.events.iter().filter(|event| event.key.tenant == *tenant);
    Ok((its.map(|event| LeaseEvent::of(event, page.head.epoch)).collect(), next))
}

fn after_event(cursor: &PageCursor) -> Result<Revision, Failure> {
    let [revision] = cursor.0.as_slice() else { return Err(odd_cursor()) };
    revision.parse().map(Revision).map_err(|_| odd_cursor())
}

/// A cursor that no page of this list gave.
pub fn odd_cursor() -> Failure {
    field::FieldError::new("cursor", "is not one that a page gave as its next").into()
}

/// An answer that is not one to what was asked.
pub fn odd(answer: &Answer) -> Failure {
    tracing::error!(?answer, "the engine answered something else than was asked");
    Problem::new(ErrorCode::Internal, "the engine answered something else than was asked").into()
}

pub async fn acquire(context: &Context, acquire: Acquire) -> Result<Grant, Failure> {
    match submit(context, Command::Acquire(acquire)).await? {
        Answer::Granted(grant) => Ok(grant),
        other => Err(odd(&other)),
    }
}

/// Acquires, waiting in line for at most so long. Whoever hangs up leaves the line, and so does everyone when the server
/// stops: another replica goes on from the same place in line, by the request id.
pub async fn acquire_waiting(context: &Context, acquire: Acquire, wait: Duration) -> Result<Grant, Failure> {
    let mut stopping = context.stopping();
    tokio::select! {
        answer = context.acquire_waiting(acquire, wait) => match answer?? {
            Answer::Granted(grant) => Ok(grant),
            other => Err(odd(&other)),
        },
        _ = stopping.wait_for(|stopping| *stopping) => Err(EngineError::Stopping.into()),
    }
}

pub async fn renew(
    context: &Context,
    claim: Claim,
    ttl_ms: Option<u64>,
    stats: Option<Document>,
) -> Result<Grant, Failure> {
    match submit(context, Command::Renew { claim, ttl_ms, stats }).await? {
        Answer::Renewed(grant) => Ok(grant),
        other => Err(odd(&other)),
    }
}

pub async fn release(context: &Context, claim: Claim, state: Option<StateWrite>) -> Result<LeaseId, Failure> {
    match submit(context, Command::Release { claim, state }).await? {
        Answer::Released(id) => Ok(id),
        other => Err(odd(&other)),
    }
}

/// Ends someone's lease; tells which, and for how long the resource is held back.
pub async fn revoke(
    context: &Context,
    claim: Claim,
    fenced: bool,
    reason: Option<String>,
) -> Result<(LeaseId, u64), Failure> {
    match submit(context, Command::Revoke { claim, fenced, reason }).await? {
        Answer::Revoked { lease, held_back_ms } => Ok((lease, held_back_ms)),
        other => Err(odd(&other)),
    }
}

/// Refuses a resource that nobody declared and that would be one more than the tenant may have. Only when the tenant seems
/// to have that many already is it read whether this is a new one: most acquires are of what is there.
pub async fn may_exist(context: &Context, key: &ResourceKey) -> Result<(), Failure> {
    match context.quota(&key.tenant, Quota::Resources).await {
        Err(failure) if see(context, key).await?.is_none() => Err(failure),
        _ => Ok(()),
    }
}

/// Declares a resource, if the tenant may have one more; tells whether it was not declared before.
pub async fn declare(
    context: &Context,
    key: ResourceKey,
    declaration: Declaration,
    only_new: bool,
) -> Result<(Resource, bool), Failure> {
    if see(context, &key).await?.is_none() {
        context.quota(&key.tenant, Quota::Resources).await?;
    }
    match submit(context, Command::Declare { key, declaration, only_new }).await? {
        Answer::Declared { resource, created } => Ok((resource, created)),
        other => Err(odd(&other)),
    }
}

pub async fn delete(context: &Context, key: ResourceKey, query: &DeleteQuery) -> Result<(), Failure> {
    let (force, fenced) = (query.force, query.fenced);
    submit(context, Command::Delete { key, force, fenced }).await.map(|_| ())
}

/// Sees to it that a lease id in a claim is that of a lease on `key`: a lease never changes its resource, so that this
/// can be told beforehand. Of a lease that is over nothing is said here; the engine refuses it.
pub async fn on_resource(context: &Context, key: &ResourceKey, claim: Claim) -> Result<Claim, Failure> {
    if let Target::Lease { id, .. } = claim.target
        && let Some(lease) = context.engine().lease(id).await?
        && lease.key != *key
    {
        return Err(Refusal::NoLease(id).into());
    }
    Ok(claim)
}
