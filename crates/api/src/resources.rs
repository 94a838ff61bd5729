//! Resources of any kind: declared, leased and handed over under their tokens. Ours, so unknown fields are refused.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};
use solehold_core::{
    command::{Claim, StateWrite, Target},
    key::{LeaseId, RequestKey, ResourceKey},
    lease as core, outcome,
    time::StoreTime,
};
use uuid::Uuid;

use crate::{
    document::{to_document, to_fields, to_value},
    field::{Checked, Faults, reason},
    hand_over::HandOver,
    limits::RESOURCE_TTL,
    locks::LockWaiter,
    page::PageCursor,
    placement::PlacementNeeds,
    terms::{self, AcquireFields, AcquireTerms, FinalState, Proof, lease_requests, state_write},
    time::Timestamp,
    watch::LeaseEvent,
};

/// The events of a resource and its leases, oldest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResourceHistory {
    /// The events, as far back as they are kept.
    pub events: Vec<LeaseEvent>,
    /// Where the next page begins; null on the last.
    pub next: Option<PageCursor>,
}

/// Declares a resource, or replaces its declaration: what is left out is cleared.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PutResource {
    pub site: Option<String>,
    /// Labels to select it by.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Any JSON that its users keep with it.
    #[serde(default)]
    pub attributes: BTreeMap<String, Value>,
    /// Milliseconds for which it is held back after a lease has expired.
    #[serde(default)]
    pub lock_delay_ms: u64,
}

impl PutResource {
    pub fn declaration(&self) -> Checked<core::Declaration> {
        let mut faults = Faults::default();
        let site = faults.maybe_name("site", self.site.as_deref());
        faults.labels("labels", &self.labels);
        PlacementNeeds::check(&self.attributes, &mut faults);
        let attributes = faults.take(to_document("attributes", &self.attributes));
        let labels = self.labels.clone();
        let lock_delay_ms = self.lock_delay_ms;
        faults.finish(|| {
            Some(core::Declaration { site: site?, labels, attributes: attributes?, lock_delay_ms })
        })
    }
}

/// Acquires a resource.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AcquireResource {
    pub holder: String,
    /// Time to live in milliseconds; 30 s if not given.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
    pub ttl_ms: Option<Number>,
    /// Time to live in seconds.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
    pub ttl_seconds: Option<Number>,
    /// The session to attach the lease to; its ttl counts then. If not given, the lease has a session of its own.
    pub session_id: Option<Uuid>,
    /// The client's name for this acquire: a repeat gets the same grant, or keeps its place in line.
    pub request_id: Option<String>,
    /// Milliseconds to wait in line, first come, first served, while it is held; at most 30000. Without it the
    /// acquire does not wait. A grant after waiting must be renewed itself within `confirm_within_ms`, also in a
    /// session.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
    pub wait_ms: Option<Number>,
    /// Share it with others: one of this many slots, each with a token of its own. Without it the lease is exclusive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u64>,
    /// Any JSON that the holder keeps with the lease.
    #[serde(default)]
    pub attributes: BTreeMap<String, Value>,
}

impl AcquireResource {
    pub fn terms(&self) -> Checked<AcquireTerms> {
        let mut faults = Faults::default();
        let attributes = faults.take(to_document("attributes", &self.attributes));
        let ask = AcquireFields {
            holder: ("holder", &self.holder),
            ttl_ms: self.ttl_ms.as_ref(),
            ttl_seconds: self.ttl_seconds.as_ref(),
            session_id: self.session_id,
            request_id: self.request_id.as_deref(),
            slots: self.slots,
        };
        ask.checked(RESOURCE_TTL, faults, attributes)
    }

    pub fn wait(&self) -> Checked<Option<Duration>> {
        let wait = terms::wait(self.wait_ms.as_ref()).map_err(|fault| vec![fault])?;
        Ok(Some(wait).filter(|wait| !wait.is_zero()))
    }
}

lease_requests! {
    /// Renews a lease, which is identified by token, lease id or session. A holder's name alone is no proof (rule 6).
    pub struct RenewResource {
        /// A new time to live in milliseconds, for a lease with a session of its own.
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub ttl_ms: Option<Number>,
        /// The same in seconds.
        #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
        pub ttl_seconds: Option<Number>,
    }
}

impl RenewResource {
    pub fn ttl_ms(&self) -> Checked<Option<u64>> {
        RESOURCE_TTL.given(self.ttl_ms.as_ref(), self.ttl_seconds.as_ref()).map_err(|fault| vec![fault])
    }
}

lease_requests! {
    /// Releases a lease, which is identified as on renewal.
    pub struct ReleaseResource {
        /// The final state document for the next holder, written in the same step.
        pub state: Option<FinalState>,
    }
}

impl ReleaseResource {
    pub fn state(&self) -> Checked<Option<StateWrite>> {
        self.state.as_ref().map(FinalState::write).transpose()
    }
}

/// Revokes a lease.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RevokeResource {
    /// Only the grant with this token.
    pub token: Option<u64>,
    /// Only the lease with this id.
    pub lease_id: Option<Uuid>,
    /// Only if it is attached to this session.
    pub session_id: Option<Uuid>,
    /// Only if this is the holder.
    pub holder: Option<String>,
    /// The old holder is known to be fenced off, so the next holder need not wait for the old deadline.
    #[serde(default)]
    pub fenced: bool,
    /// A reason in words, for the event.
    pub reason: Option<String>,
}

impl RevokeResource {
    fn proof(&self) -> Proof<'_> {
        Proof { holder: ("holder", self.holder.as_deref()), token: self.token, session_id: self.session_id }
    }

    pub fn reason(&self) -> Checked<Option<String>> {
        reason(&self.reason)
    }
}

/// Cancels an acquire whose answer was lost: it can no longer be granted, and a grant that it already got is released.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CancelRequest {
    pub holder: String,
    /// The name that the request was given.
    pub request_id: String,
}

impl CancelRequest {
    pub fn request(&self, resource: ResourceKey) -> Checked<RequestKey> {
        let mut faults = Faults::default();
        let holder = faults.name("holder", &self.holder);
        let request = faults.name("request_id", &self.request_id);
        faults.finish(|| Some(RequestKey { resource, holder: holder?, request: request? }))
    }
}

lease_requests! {
    /// Writes the state document under an active lease, which is identified by token, lease id or session.
    pub struct PutState {
        /// Must be above the stored one under the same token.
        pub sequence: u64,
        pub document: Value,
    }
}

impl PutState {
    pub fn write(&self) -> Checked<StateWrite> {
        state_write("", self.sequence, &self.document)
    }
}

/// A request that names a lease by these four fields, all of which must match what is given.
macro_rules! claims {
    ($($request:ty),*) => {$(
        impl $request {
            /// The claim of the lease on `key`, or of the given lease id; the caller checks that the id belongs to that
            /// resource.
            pub fn claim(&self, key: ResourceKey) -> Checked<Claim> {
                let target = match self.lease_id {
                    Some(id) => Target::Lease { tenant: key.tenant, id: LeaseId(id) },
                    None => Target::Resource(key),
                };
                self.proof().claim(target)
            }
        }
    )*};
}
claims!(RenewResource, ReleaseResource, RevokeResource, PutState);

/// A lease on a resource.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HeldLease {
    pub lease_id: Uuid,
    pub tenant: String,
    pub kind: String,
    pub key: String,
    /// Which of its slots this is, if it is shared, from 1 on. A gate tells the slots of a resource apart by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// Of how many slots it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    pub holder: String,
    /// The fencing token.
    pub token: u64,
    /// The session that it is attached to, if not one of its own.
    pub session_id: Option<Uuid>,
    /// When it was granted.
    pub acquired_at: Timestamp,
    /// When it was last renewed, alone or with its session.
    pub renewed_at: Option<Timestamp>,
    /// When it expires by the store's clock, unless it is renewed. Do not compare it with your own clock: count from
    /// `ttl_ms`.
    pub expires_at: Timestamp,
    /// Milliseconds until it expires.
    pub ttl_ms: u64,
    #[cfg_attr(feature = "openapi", schema(schema_with = crate::schema::lease_status))]
    pub status: core::LeaseStatus,
    /// Any JSON that the holder keeps with it.
    pub attributes: BTreeMap<String, Value>,
    /// The progress reported by its last heartbeat.
    pub stats: BTreeMap<String, Value>,
    /// The hand-over that its holder should complete by releasing it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hand_over: Option<HandOver>,
    /// Only after waiting in line, until it is confirmed: the lease lapses unless it is renewed itself within this many
    /// milliseconds, by the renew operation of the resource or lock, with its token, lease id or session id. A
    /// heartbeat of its session does not confirm it. Count your deadline from that renewal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm_within_ms: Option<u64>,
}

impl HeldLease {
    pub fn of(view: &outcome::LeaseView) -> Self {
        let lease = &view.lease;
        Self {
            lease_id: lease.id.0,
            tenant: view.key.tenant.to_string(),
            kind: view.key.kind.to_string(),
            key: view.key.key.to_string(),
            slot: shown_slot(&view.key),
            slots: lease.slots,
            holder: lease.holder.to_string(),
            token: lease.token.0,
            session_id: lease.tenure.session().map(|id| id.0),
            acquired_at: lease.acquired_at.into(),
            renewed_at: view.renewed_at.map(Into::into),
            expires_at: view.deadline.into(),
            ttl_ms: view.ttl_left_ms(),
            status: view.status,
            attributes: to_fields(&lease.attributes),
            stats: to_fields(&lease.stats),
            hand_over: view.next.as_ref().map(|next| HandOver::of(next, view.now)),
            confirm_within_ms: view.confirm_within_ms(),
        }
    }
}

/// The number of a slot; none for a resource itself.
pub(crate) fn shown_slot(key: &ResourceKey) -> Option<u32> {
    key.is_slot().then_some(key.slot)
}

/// The result of an acquire or renewal: the lease, and the state document of the former holder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Grant))]
pub struct GrantBody {
    #[serde(flatten)]
    pub lease: HeldLease,
    /// The state document; null if there is none.
    pub state: Option<StateDocument>,
    /// The epoch of the store's history that the grant belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// The revision at which this was read.
    pub revision: u64,
    /// Whether this grant was already given to the same request id.
    pub repeated: bool,
    /// How far the store's clock may run ahead of yours unnoticed: subtract it from `ttl_ms`, in addition to your own
    /// margin.
    pub slack_ms: u64,
}

impl GrantBody {
    pub fn of(grant: &outcome::Grant, slack_ms: u64) -> Self {
        Self {
            lease: HeldLease::of(&grant.lease),
            state: grant.state.as_ref().map(StateDocument::of),
            epoch: None,
            revision: grant.revision.0,
            repeated: grant.repeated,
            slack_ms,
        }
    }
}

/// The state document of a resource: what one holder leaves to the next.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StateDocument {
    /// Grows with each write under one token.
    pub sequence: u64,
    pub token: u64,
    pub written_at: Timestamp,
    /// The document; left out where only its existence is shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<Value>,
}

impl StateDocument {
    /// With the document.
    pub fn of(state: &core::StateDocument) -> Self {
        Self { document: Some(to_value(&state.document)), ..Self::summary(state) }
    }

    /// Without the document.
    pub fn summary(state: &core::StateDocument) -> Self {
        let core::StateDocument { sequence, token, written_at, .. } = *state;
        Self { sequence, token: token.0, written_at: written_at.into(), document: None }
    }
}

/// A pending lease: it takes over when the present holder releases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PendingLease {
    /// The identity that the grant will have.
    pub lease_id: Uuid,
    /// The next holder.
    pub holder: String,
    /// The session that it will be attached to.
    pub session_id: Uuid,
    /// When it lapses, unless the present holder releases before.
    pub expires_at: Timestamp,
}

/// A resource and its holder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Resource))]
pub struct ResourceBody {
    pub tenant: String,
    pub kind: String,
    pub key: String,
    /// Whether it was declared; if not, it exists only while a client holds it or waits for it.
    pub declared: bool,
    pub site: Option<String>,
    /// Labels to select it by.
    pub labels: BTreeMap<String, String>,
    /// Any JSON that its users keep with it.
    pub attributes: BTreeMap<String, Value>,
    /// Milliseconds for which it is held back after a lease has expired.
    pub lock_delay_ms: u64,
    /// When it was declared. One that is not declared has a row since then, which may be older than its lease.
    pub created_at: Timestamp,
    /// The token of the last grant, of the resource or of one of its slots; 0 before the first.
    pub last_token: u64,
    /// Milliseconds for which it cannot be acquired; 0 if it is not held back.
    pub held_back_ms: u64,
    /// The lease on it, until it expires.
    pub lease: Option<HeldLease>,
    /// The leases of those who share it, in the order of their slots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared: Vec<HeldLease>,
    /// The lease that takes over next.
    pub pending: Option<PendingLease>,
    /// The number of waiters in line.
    pub waiting: u32,
    /// The first of them, in order, where one resource is read; left out if nobody waits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiters: Vec<LockWaiter>,
    /// The state document of the last holder, without its content.
    pub state: Option<StateDocument>,
    /// The epoch of the store's history, where one resource is read. An answer with a lower one than was seen before
    /// comes from an older history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
}

impl ResourceBody {
    /// A resource at a time; `lease` is the one on it, if there is one.
    pub fn of(resource: &core::Resource, lease: Option<&outcome::LeaseView>, now: StoreTime) -> Self {
        let declared = resource.declared.as_deref().cloned().unwrap_or_default();
        let live = lease.filter(|lease| lease.status == core::LeaseStatus::Active);
        let until = match lease {
            // Expired and not swept yet: what the sweeper will write holds already.
            Some(lease) if live.is_none() => Some(lease.deadline.plus_ms(resource.lock_delay_ms())),
            _ => resource.held_back_until,
        };
        let pending = resource.pending.as_ref().filter(|pending| now < pending.deadline);
        Self {
            tenant: resource.key.tenant.to_string(),
            kind: resource.key.kind.to_string(),
            key: resource.key.key.to_string(),
            declared: resource.declared.is_some(),
            site: declared.site.map(String::from),
            labels: declared.labels,
            attributes: to_fields(&declared.attributes),
            lock_delay_ms: declared.lock_delay_ms,
            created_at: resource.created_at.into(),
            last_token: resource.last_token.0,
            held_back_ms: until.map_or(0, |until| until.ms_after(now)),
            waiting: resource.queued,
            waiters: Vec::new(),
            lease: live.map(HeldLease::of),
            shared: Vec::new(),
            pending: pending.map(|pending| PendingLease {
                lease_id: pending.id.0,
                holder: pending.holder.to_string(),
                session_id: pending.session.0,
                expires_at: pending.deadline.into(),
            }),
            state: resource.state.as_ref().map(StateDocument::summary),
            epoch: None,
        }
    }
}

/// The query of a list of resources.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct ResourceQuery {
    /// Only of this kind.
    pub kind: Option<String>,
    /// Only at this site.
    pub site: Option<String>,
    /// Only with these labels: `name=value`, several separated by commas.
    pub label: Option<String>,
    /// Only those that are held, or only those that are not.
    #[serde(alias = "held")]
    pub leased: Option<bool>,
    /// Where to begin: the `next` of the previous page.
    #[cfg_attr(feature = "openapi", param(value_type = Option<String>))]
    pub cursor: Option<PageCursor>,
    /// The largest number of items to return.
    pub limit: Option<i64>,
    /// The tenant, for a key that is not limited to one.
    pub tenant: Option<String>,
}

/// The query of a deletion.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct DeleteQuery {
    /// Delete it even if it is held: the lease is revoked.
    #[serde(default)]
    pub force: bool,
    /// The old holder is known to be fenced off, so the next holder need not wait for the old deadline.
    #[serde(default)]
    pub fenced: bool,
    /// The tenant, for a key that is not limited to one.
    pub tenant: Option<String>,
}

/// A page of resources.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResourceList {
    pub resources: Vec<ResourceBody>,
    /// Where the next page begins; null on the last.
    pub next: Option<PageCursor>,
}

/// A lease was revoked, or the resource is no longer held back after one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RevokedLease {
    /// The lease; null if the resource was free and only its hold-back was lifted.
    pub lease_id: Option<Uuid>,
    /// Milliseconds for which the resource cannot be acquired.
    pub held_back_ms: u64,
}

#[cfg(test)]
mod tests;
