//! Hand-overs: a held resource is offered to its next holder, who gets it in the moment in which the present one
//! releases it. And the news of a session, by which both sides learn of it at once. Ours, so unknown fields are
//! refused.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};
use solehold_core::{
    key::{Document, Name, SessionId},
    lease::Pending,
    outcome::PendingView,
    time::{Revision, StoreTime},
};
use uuid::Uuid;

use crate::{
    cursor::Cursor,
    document::{to_document, to_fields},
    field::{Checked, Faults},
    limits::{NEWS_SESSIONS_MAX, OFFER_TTL, REASON_BYTES_MAX},
    terms::wait,
    time::Timestamp,
};

/// Offers a held resource to its next holder.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OfferResource {
    /// The next holder, which must have a session. Either this or `session_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The next holder's session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<Uuid>,
    /// Your own name for the request: a repeat gets the same pending lease, never a second one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<Uuid>,
    /// The offer lapses after this many milliseconds, and the present holder keeps the resource; 30 s if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
    pub ttl_ms: Option<Number>,
    /// The same in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
    pub ttl_seconds: Option<Number>,
    /// Any JSON that is kept with the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<BTreeMap<String, Value>>,
    /// The move budget: refuse the offer if this many resources of the kind are being handed over already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<u32>,
    /// Revoke the present lease at once, rather than wait for its holder to release it. The resource is then held back
    /// until the holder reports that it has stopped, or its deadline has passed.
    #[serde(default)]
    pub force: bool,
    /// With `force`: the present holder is known to be fenced off, so the next one need not wait for its deadline.
    #[serde(default)]
    pub fenced: bool,
    /// With `force`: a reason for the event, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The next holder of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextHolder {
    /// The holder of this name, in its present session.
    Named(Name),
    Session(SessionId),
}

/// An offer that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferTerms {
    pub to: NextHolder,
    pub within_ms: u64,
    pub attributes: Document,
}

impl OfferResource {
    pub fn terms(&self) -> Checked<OfferTerms> {
        let mut faults = Faults::default();
        let to = match (&self.to, self.session_id) {
            (Some(name), None) => faults.name("to", name).map(NextHolder::Named),
            (None, Some(id)) => Some(NextHolder::Session(SessionId(id))),
            _ => {
                let message = "is missing: name the next holder, either by `to` or by `session_id`";
                faults.note("to", message);
                None
            }
        };
        let within_ms = faults.take(OFFER_TTL.resolve(self.ttl_ms.as_ref(), self.ttl_seconds.as_ref()));
        let attributes = self.attributes.as_ref().map(|a| to_document("attributes", a)).transpose();
        let attributes = faults.take(attributes.map(Option::unwrap_or_default));
        faults.text("reason", self.reason.as_deref(), REASON_BYTES_MAX);
        for (field, is_given) in [("fenced", self.fenced), ("reason", self.reason.is_some())] {
            faults.check(self.force || !is_given, field, "is only allowed with `force`");
        }
        faults.finish(|| Some(OfferTerms { to: to?, within_ms: within_ms?, attributes: attributes? }))
    }
}

/// A pending lease: it becomes active, with a token, when the present holder releases the resource or expires.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OfferedLease {
    /// The id that the lease will have. Releasing it calls the hand-over off.
    pub lease_id: Uuid,
    pub tenant: String,
    pub kind: String,
    pub key: String,
    /// The next holder.
    pub holder: String,
    /// The next holder's session.
    pub session_id: Uuid,
    /// The present holder; null while the resource is held back.
    pub present: Option<String>,
    pub asked_at: Timestamp,
    /// When it lapses by the store's clock.
    pub expires_at: Timestamp,
    /// Milliseconds until it lapses.
    pub ttl_ms: u64,
    /// Any JSON that is kept with the lease.
    pub attributes: BTreeMap<String, Value>,
}

impl OfferedLease {
    pub fn of(view: &PendingView, now: StoreTime) -> Self {
        let PendingView { key, pending, present } = view;
        Self {
            lease_id: pending.id.0,
            tenant: key.tenant.to_string(),
            kind: key.kind.to_string(),
            key: key.key.to_string(),
            holder: pending.holder.to_string(),
            session_id: pending.session.0,
            present: present.as_ref().map(ToString::to_string),
            asked_at: pending.asked_at.into(),
            expires_at: pending.deadline.into(),
            ttl_ms: pending.deadline.ms_after(now),
            attributes: to_fields(&pending.attributes),
        }
    }
}

/// A request to the holder of a lease to release it for the next one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HandOver {
    /// The pending lease of the next holder. Releasing it calls the hand-over off.
    pub lease_id: Uuid,
    /// The next holder.
    pub to: String,
    /// Milliseconds until the offer lapses.
    pub ttl_ms: u64,
}

impl HandOver {
    pub fn of(next: &Pending, now: StoreTime) -> Self {
        let to = next.holder.to_string();
        let ttl_ms = next.deadline.ms_after(now);
        Self { lease_id: next.id.0, to, ttl_ms }
    }
}

/// Asks for news of sessions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AskNews {
    /// The sessions, at most 1,000.
    #[cfg_attr(feature = "openapi", schema(max_items = 1000))]
    pub sessions: Vec<KnownSession>,
    /// Where the last answer ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub from: Option<Cursor>,
    /// How long to wait for news, in milliseconds, at most 30,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
    pub wait_ms: Option<Number>,
}

/// A session as its holder knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KnownSession {
    pub session_id: Uuid,
    /// The `revision` of its last heartbeat.
    pub revision: u64,
}

/// A question for news that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewsTerms {
    pub sessions: Vec<(SessionId, Revision)>,
    pub wait: Duration,
}

impl AskNews {
    pub fn terms(&self) -> Checked<NewsTerms> {
        let mut faults = Faults::default();
        let count = self.sessions.len();
        let message = format!("has {count} items; it must have at most {NEWS_SESSIONS_MAX}");
        faults.check(count <= NEWS_SESSIONS_MAX, "sessions", message);
        let wait = faults.take(wait(self.wait_ms.as_ref()));
        let sessions =
            self.sessions.iter().map(|known| (SessionId(known.session_id), Revision(known.revision)));
        faults.finish(|| Some(NewsTerms { sessions: sessions.collect(), wait: wait? }))
    }
}

/// News of sessions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct News {
    /// The sessions that something has happened to: send each a heartbeat, whose response has the details. Empty if
    /// there was no news within the time.
    pub sessions: Vec<Uuid>,
    /// The cursor for the next request; null if it is not known.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub cursor: Option<Cursor>,
}
