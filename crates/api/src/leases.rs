//! Leases by their ids, in a form that the clients of a camera pipeline know.
//!
//! Such a client takes only 200 with JSON for success and reads `{success, lease, error, retry_after_seconds}`, while
//! its documents show flat fields: an [`Envelope`] is both. A [`LeaseBody`] on a camera also has the fields of
//! [`CameraLease`]; no other has.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};
use solehold_core::{
    command::{Claim, StateWrite, Target},
    key::Document,
    lease::{LeaseStatus, Pending, Resource},
    outcome::{Grant, LeaseView},
    time::{Revision, StoreTime},
};
use uuid::Uuid;

#[cfg(feature = "openapi")]
use crate::config::CameraStatus;
use crate::{
    config::check_status,
    cursor::Cursor,
    document::{LeaseAttributes, to_document, to_fields},
    field::{Checked, Faults, reason},
    kind,
    limits::CAMERA_TTL,
    page::PageCursor,
    paths,
    problem::{EndedLease, Problem},
    resources::shown_slot,
    terms::{AcquireFields, AcquireTerms, FinalState, Proof},
    time::Timestamp,
    watch::LeaseEvent,
};

/// The paths on which every failure comes in an [`Envelope`], whatever failed.
pub const ENVELOPED: &[&str] = &[
    paths::LEASE_ACQUIRE,
    paths::LEASE,
    paths::LEASE_RENEW,
    paths::LEASE_HEARTBEAT,
    paths::LEASE_RELEASE,
    paths::LEASE_REVOKE,
    paths::LEASE_HISTORY,
    paths::LEASE_OF_CAMERA,
];

/// Acquires a camera.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AcquireLease {
    /// The camera, by any name.
    pub camera_uuid: String,
    /// The runner that acquires it.
    pub runner_id: String,
    /// The shard that will do the work.
    pub shard_id: Option<String>,
    /// The key's tenant if not given.
    pub tenant_id: Option<String>,
    pub site_id: Option<String>,
    /// Time to live in seconds, 1 to 86400; 60 if not given.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
    pub ttl_seconds: Option<Number>,
    /// Time to live in milliseconds.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
    pub ttl_ms: Option<Number>,
    /// The configuration that the runner knows.
    pub config_version: Option<String>,
    /// The zones that the runner knows.
    pub zone_version: Option<String>,
    /// The session to attach the lease to; one of its own if not given.
    pub session_id: Option<Uuid>,
    /// The client's name for this acquire: a repeat gets the same grant.
    pub request_id: Option<String>,
}

impl AcquireLease {
    /// The terms of the acquire; the camera's id, tenant and site are checked, too.
    pub fn terms(&self) -> Checked<AcquireTerms> {
        let mut faults = Faults::default();
        faults.name("camera_uuid", &self.camera_uuid);
        for (field, value) in [
            ("shard_id", &self.shard_id),
            ("tenant_id", &self.tenant_id),
            ("site_id", &self.site_id),
            ("config_version", &self.config_version),
            ("zone_version", &self.zone_version),
        ] {
            faults.maybe_name(field, value.as_deref().filter(|value| !value.is_empty()));
        }
        let about = LeaseAttributes {
            shard_id: self.shard_id.clone().unwrap_or_default(),
            config_version: self.config_version.clone().unwrap_or_default(),
            zone_version: self.zone_version.clone().unwrap_or_default(),
        };
        // Long texts are faults already, so that the document is small if it is used.
        let attributes = to_document("shard_id", &about).ok();
        let ask = AcquireFields {
            holder: ("runner_id", &self.runner_id),
            ttl_ms: self.ttl_ms.as_ref(),
            ttl_seconds: self.ttl_seconds.as_ref(),
            session_id: self.session_id,
            request_id: self.request_id.as_deref(),
            slots: None,
        };
        ask.checked(CAMERA_TTL, faults, attributes)
    }
}

/// The reported progress of the work, as the lease keeps it.
pub(crate) fn stats_document(given: Option<&BTreeMap<String, Value>>) -> Checked<Option<Document>> {
    given.map(|given| to_document("stats", given)).transpose().map_err(|fault| vec![fault])
}

/// Renews a lease. Its id in the path is the proof; everything else that is given must match.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RenewLease {
    /// The fencing token of the grant.
    pub token: Option<u64>,
    /// The holder.
    pub runner_id: Option<String>,
    /// A new time to live in seconds, 1 to 86400, for a lease with a session of its own.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
    pub ttl_seconds: Option<Number>,
    /// The same in milliseconds.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
    pub ttl_ms: Option<Number>,
    /// Any JSON about the progress of the work; without it the last report stays.
    pub stats: Option<BTreeMap<String, Value>>,
    /// The same.
    pub processing_stats: Option<BTreeMap<String, Value>>,
}

impl RenewLease {
    pub fn stats(&self) -> Checked<Option<Document>> {
        stats_document(self.stats.as_ref().or(self.processing_stats.as_ref()))
    }

    pub fn ttl_ms(&self) -> Checked<Option<u64>> {
        CAMERA_TTL.given(self.ttl_ms.as_ref(), self.ttl_seconds.as_ref()).map_err(|fault| vec![fault])
    }
}

/// Releases a lease, with the same proof as a renewal.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReleaseLease {
    /// The fencing token of the grant.
    pub token: Option<u64>,
    /// The holder.
    pub runner_id: Option<String>,
    /// The final state document for the next holder.
    pub state: Option<FinalState>,
}

impl ReleaseLease {
    pub fn state(&self) -> Checked<Option<StateWrite>> {
        self.state.as_ref().map(FinalState::write).transpose()
    }
}

/// Renews a lease and reports progress: as `stats`, as `processing_stats`, or as the body itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HeartbeatLease {
    /// The fencing token of the grant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// The holder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner_id: Option<String>,
    /// Any JSON about the progress of the work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stats: Option<BTreeMap<String, Value>>,
    /// The same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processing_stats: Option<BTreeMap<String, Value>>,
    /// How the camera is: `online`, `offline`, `error` or `maintenance`; kept with the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<CameraStatus>))]
    pub camera_status: Option<Value>,
    /// The same, if neither is given.
    #[serde(flatten)]
    pub rest: BTreeMap<String, Value>,
}

impl HeartbeatLease {
    pub fn stats(&self) -> Checked<Option<Document>> {
        let mut faults = Faults::default();
        check_status(&mut faults, "camera_status", self.camera_status.as_ref());
        faults.done()?;
        let rest = Some(&self.rest).filter(|rest| !rest.is_empty());
        let given = self.stats.as_ref().or(self.processing_stats.as_ref()).or(rest);
        let Some(status) = &self.camera_status else { return stats_document(given) };
        let mut given = given.cloned().unwrap_or_default();
        given.insert("camera_status".to_owned(), status.clone());
        stats_document(Some(&given))
    }
}

/// Revokes a lease.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RevokeLease {
    /// Only the grant with this token.
    pub token: Option<u64>,
    /// Only if this is the holder.
    pub runner_id: Option<String>,
    /// The old holder is known to be fenced off, so the next holder need not wait for the old deadline.
    #[serde(default)]
    pub fenced: bool,
    /// A reason in words, for the event.
    pub reason: Option<String>,
}

impl RevokeLease {
    pub fn reason(&self) -> Checked<Option<String>> {
        reason(&self.reason)
    }
}

macro_rules! claims {
    ($($request:ty),*) => {$(
        impl $request {
            /// The claim of the lease in the path, with the rest of the proof in the body.
            pub fn claim(&self, target: Target) -> Checked<Claim> {
                let holder = ("runner_id", self.runner_id.as_deref());
                Proof { holder, token: self.token, session_id: None }.claim(target)
            }
        }
    )*};
}
claims!(RenewLease, ReleaseLease, HeartbeatLease, RevokeLease);

/// A lease on a resource of any kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Lease))]
pub struct LeaseBody {
    pub lease_id: Uuid,
    pub tenant: String,
    pub site: Option<String>,
    pub kind: String,
    pub key: String,
    /// Which of its slots this is, if it is shared, from 1 on. A gate tells the slots of a resource apart by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// Of how many slots it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    pub holder: String,
    /// The fencing token; null while it is pending.
    pub token: Option<u64>,
    /// The session that it is attached to, if not one of its own.
    pub session_id: Option<Uuid>,
    #[cfg_attr(feature = "openapi", schema(schema_with = crate::schema::lease_status))]
    pub status: LeaseStatus,
    /// When it was granted; while it is pending, when it was requested.
    pub acquired_at: Timestamp,
    /// When it was last renewed, alone or with its session.
    pub renewed_at: Option<Timestamp>,
    /// When it expires by the store's clock, unless it is renewed.
    pub expires_at: Timestamp,
    /// Milliseconds until it expires.
    pub ttl_ms: u64,
    /// Any JSON that the holder keeps with it.
    pub attributes: BTreeMap<String, Value>,
    /// The progress reported by its last heartbeat.
    pub stats: BTreeMap<String, Value>,
    /// The revision at which this was read.
    pub revision: u64,
    /// The same in the words of a camera pipeline, if it is on a camera.
    #[serde(flatten)]
    #[cfg_attr(feature = "openapi", schema(value_type = CameraLease))]
    pub camera: Option<CameraLease>,
}

/// The fields that only a lease on a camera has: what the clients of a camera pipeline read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CameraLease {
    /// On a camera only: the key.
    #[cfg_attr(feature = "openapi", schema(required = false))]
    pub camera_uuid: String,
    /// On a camera only: the holder.
    #[cfg_attr(feature = "openapi", schema(required = false))]
    pub runner_id: String,
    /// On a camera only: the shard that does the work; empty if the holder gave none.
    #[cfg_attr(feature = "openapi", schema(required = false))]
    pub shard_id: String,
    /// On a camera only: the tenant.
    #[cfg_attr(feature = "openapi", schema(required = false))]
    pub tenant_id: String,
    /// On a camera only: the site; empty if none was given.
    #[cfg_attr(feature = "openapi", schema(required = false))]
    pub site_id: String,
    /// On a camera only: when its holder's last heartbeat arrived.
    #[cfg_attr(feature = "openapi", schema(required = false))]
    pub last_heartbeat: Timestamp,
    /// On a camera only: the stats.
    #[cfg_attr(feature = "openapi", schema(required = false))]
    pub processing_stats: BTreeMap<String, Value>,
    /// On a camera only: the configuration that the holder knew when it acquired; empty if it did not say.
    #[cfg_attr(feature = "openapi", schema(required = false))]
    pub config_version: String,
    /// On a camera only: the zones that the holder knew when it acquired; empty if it did not say.
    #[cfg_attr(feature = "openapi", schema(required = false))]
    pub zone_version: String,
}

impl LeaseBody {
    pub fn of(view: &LeaseView, revision: Revision) -> Self {
        let lease = &view.lease;
        let shown = Self {
            lease_id: lease.id.0,
            tenant: view.key.tenant.to_string(),
            site: view.site.as_ref().map(ToString::to_string),
            kind: view.key.kind.to_string(),
            key: view.key.key.to_string(),
            slot: shown_slot(&view.key),
            slots: lease.slots,
            holder: lease.holder.to_string(),
            token: Some(lease.token.0),
            session_id: lease.tenure.session().map(|id| id.0),
            status: view.status,
            acquired_at: lease.acquired_at.into(),
            renewed_at: view.renewed_at.map(Into::into),
            expires_at: view.deadline.into(),
            ttl_ms: view.ttl_left_ms(),
            attributes: to_fields(&lease.attributes),
            stats: to_fields(&lease.stats),
            revision: revision.0,
            camera: None,
        };
        shown.named_for_cameras(&lease.attributes)
    }

    /// A lease in waiting on that resource.
    pub fn pending(resource: &Resource, pending: &Pending, now: StoreTime, revision: Revision) -> Self {
        let site = resource.declared.as_ref().and_then(|declared| declared.site.as_ref());
        let shown = Self {
            lease_id: pending.id.0,
            tenant: resource.key.tenant.to_string(),
            site: site.map(ToString::to_string),
            kind: resource.key.kind.to_string(),
            key: resource.key.key.to_string(),
            slot: None,
            slots: None,
            holder: pending.holder.to_string(),
            token: None,
            session_id: Some(pending.session.0),
            status: LeaseStatus::Pending,
            acquired_at: pending.asked_at.into(),
            renewed_at: None,
            expires_at: pending.deadline.into(),
            ttl_ms: pending.deadline.ms_after(now),
            attributes: to_fields(&pending.attributes),
            stats: BTreeMap::new(),
            revision: revision.0,
            camera: None,
        };
        shown.named_for_cameras(&pending.attributes)
    }

    fn named_for_cameras(mut self, attributes: &Document) -> Self {
        if self.kind == kind::CAMERA {
            let LeaseAttributes { shard_id, config_version, zone_version } = LeaseAttributes::of(attributes);
            self.camera = Some(CameraLease {
                camera_uuid: self.key.clone(),
                runner_id: self.holder.clone(),
                shard_id,
                tenant_id: self.tenant.clone(),
                site_id: self.site.clone().unwrap_or_default(),
                last_heartbeat: self.renewed_at.unwrap_or(self.acquired_at),
                processing_stats: self.stats.clone(),
                config_version,
                zone_version,
            });
        }
        self
    }
}

/// The flat fields beside the envelope's own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum FlatFields {
    /// Those of the lease.
    Lease(Box<LeaseBody>),
    /// Those of the problem.
    Problem(Box<Problem>),
    /// Those of a lease that has ended.
    Ended(EndedLease),
}

/// The response to every request about one lease.
///
/// ```
/// use solehold_api::{leases::Envelope, problem::{ErrorCode, Problem}};
///
/// let refused = Envelope::refused(Problem::new(ErrorCode::Held, "held by runner-2").retry_after_ms(1_200));
/// let json = serde_json::to_value(&refused)?;
/// assert_eq!((&json["success"], &json["error"]), (&false.into(), &"held by runner-2".into()));
/// assert_eq!((&json["retry_after_seconds"], &json["code"]), (&2.into(), &"held".into()));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Envelope {
    pub success: bool,
    /// The lease, if it is active.
    pub lease: Option<Box<LeaseBody>>,
    /// Why it was refused.
    pub error: Option<String>,
    /// Seconds after which to try again.
    pub retry_after_seconds: Option<u64>,
    /// When the next heartbeat or renewal is due, by the store's clock: halfway to the deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_heartbeat_due: Option<Timestamp>,
    /// The same fields again, at the top level.
    #[serde(flatten)]
    pub flat: FlatFields,
}

impl Envelope {
    pub fn held(lease: LeaseBody) -> Self {
        let lease = Box::new(lease);
        let flat = FlatFields::Lease(lease.clone());
        Self { lease: Some(lease), ..Self::done(flat) }
    }

    pub fn granted(grant: &Grant) -> Self {
        let now = grant.lease.now;
        let left_ms = grant.lease.ttl_left_ms();
        let next_heartbeat_due = Some(now.plus_ms(left_ms / 2).into());
        Self { next_heartbeat_due, ..Self::held(LeaseBody::of(&grant.lease, grant.revision)) }
    }

    fn done(flat: FlatFields) -> Self {
        Self {
            success: true,
            lease: None,
            error: None,
            retry_after_seconds: None,
            next_heartbeat_due: None,
            flat,
        }
    }

    /// A lease that the request has ended.
    pub fn ended(lease: EndedLease) -> Self {
        Self::done(FlatFields::Ended(lease))
    }

    /// A lease that ended before the request: a client that only reads `success` must not take it for held.
    pub fn over(lease: EndedLease) -> Self {
        let error = Some(lease.to_string());
        Self { success: false, error, ..Self::ended(lease) }
    }

    /// A refusal: the problem document and the envelope in one.
    pub fn refused(problem: Problem) -> Self {
        Self {
            success: false,
            error: Some(problem.detail.clone()),
            retry_after_seconds: problem.retry_after_seconds(),
            ..Self::done(FlatFields::Problem(Box::new(problem)))
        }
    }
}

/// The query of a list of leases.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct LeaseQuery {
    /// Only on this kind of resource.
    pub kind: Option<String>,
    /// Only of this holder.
    pub holder: Option<String>,
    /// Only at this site.
    pub site: Option<String>,
    /// The same as `holder`, as camera pipelines call it.
    pub runner_id: Option<String>,
    /// The same as `site`, as camera pipelines call it.
    pub site_id: Option<String>,
    /// Where to begin: the `next` of the previous page.
    #[cfg_attr(feature = "openapi", param(value_type = Option<String>))]
    pub cursor: Option<PageCursor>,
    /// The largest number of items to return.
    pub limit: Option<i64>,
    /// The tenant, for a key that is not limited to one.
    pub tenant: Option<String>,
}

/// A page of leases.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeaseList {
    pub leases: Vec<LeaseBody>,
    /// Where the next page begins; null on the last.
    pub next: Option<PageCursor>,
    /// The point in the watch at which this was read.
    pub cursor: Cursor,
}

/// The events of a lease, oldest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeaseHistory {
    pub lease_id: Uuid,
    /// The events, as far back as they are kept.
    pub events: Vec<LeaseEvent>,
    /// Where the next page begins; null on the last.
    pub next: Option<PageCursor>,
}

#[cfg(test)]
mod tests;
