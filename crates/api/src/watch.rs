//! The watch: who owns what, then every change, in the one order of all changes.
//!
//! Without `from` the stream begins with `snapshot` frames, of which the last has `more: false`; then come `event`
//! frames after the snapshot's cursor, and `progress` marks. With `from` it begins after that cursor. `compacted` says
//! that the cursor is older than what is kept, and `resync` that this reader fell too far behind: begin again without
//! `from`. The stream ends after either.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use solehold_core::{
    event::{Event, EventName, What},
    key::{Document, ResourceKey},
    lease::{LeaseStatus, Resource, Tenure},
    outcome::LeaseView,
    time::Revision,
};
use uuid::Uuid;

pub use crate::cursor::Cursor;
use crate::{
    document::{LeaseAttributes, to_fields, to_value},
    kind,
    resources::shown_slot,
    sse,
    time::Timestamp,
};

/// The query of a watch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct WatchQuery {
    /// Only what came after this cursor. The header `Last-Event-ID` overrides it.
    #[cfg_attr(feature = "openapi", param(value_type = Option<String>))]
    pub from: Option<Cursor>,
    /// Only of this kind of resource.
    pub kind: Option<String>,
    /// Only of this holder.
    pub holder: Option<String>,
    /// Include renewals; they are never replayed.
    #[serde(default)]
    pub renewals: bool,
    /// The tenant, for a key that is not limited to one.
    pub tenant: Option<String>,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeaseEvent {
    /// The kind of event.
    #[cfg_attr(feature = "openapi", schema(schema_with = crate::schema::event_name))]
    pub event_type: EventName,
    /// Its place in the order of all changes; a renewal has that of the change before it.
    pub revision: u64,
    /// The cursor to resume from, after this change.
    pub cursor: Cursor,
    /// When it was decided.
    pub timestamp: Timestamp,
    pub tenant: String,
    pub kind: String,
    pub key: String,
    /// Which of its slots it is about, if it is shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    pub lease_id: Option<Uuid>,
    pub holder: Option<String>,
    pub token: Option<u64>,
    pub session_id: Option<Uuid>,
    /// The id of the key whose request caused it; null if time did, or if no keys are in use.
    pub by: Option<String>,
    /// Further fields, depending on `event_type`.
    pub details: BTreeMap<String, Value>,
    /// The key again, for cameras.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub camera_uuid: Option<String>,
    /// The holder again, for cameras.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner_id: Option<String>,
    /// The shard, for cameras.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard_id: Option<String>,
}

impl LeaseEvent {
    /// An event of the store's epoch.
    pub fn of(event: &Event, epoch: u64) -> Self {
        let bare = Self::bare(event.name(), &event.key, Cursor { epoch, revision: event.revision.0 });
        let (details, attributes) = details(&event.what);
        let told = Self {
            timestamp: event.at.into(),
            lease_id: event.lease().map(|id| id.0),
            holder: event.holder().map(ToString::to_string),
            token: event.token().map(|token| token.0),
            session_id: event.session().map(|id| id.0),
            by: event.by.as_ref().map(ToString::to_string),
            details,
            ..bare
        };
        told.named_for_cameras(attributes)
    }

    /// A renewal, for watchers that request them (rule 19).
    pub fn renewed(lease: &LeaseView, epoch: u64, revision: Revision) -> Self {
        let bare = Self::bare(EventName::LeaseRenewed, &lease.key, Cursor { epoch, revision: revision.0 });
        let expires_at = Timestamp::from(lease.deadline).to_string();
        let told = Self {
            timestamp: lease.renewed_at.unwrap_or(lease.now).into(),
            lease_id: Some(lease.lease.id.0),
            holder: Some(lease.lease.holder.to_string()),
            token: Some(lease.lease.token.0),
            session_id: lease.lease.tenure.session().map(|id| id.0),
            details: fields([("expires_at", json!(expires_at)), ("ttl_ms", json!(lease.ttl_left_ms()))]),
            ..bare
        };
        told.named_for_cameras(Some(&lease.lease.attributes))
    }

    fn bare(event_type: EventName, key: &ResourceKey, cursor: Cursor) -> Self {
        Self {
            event_type,
            revision: cursor.revision,
            cursor,
            timestamp: solehold_core::time::StoreTime(0).into(),
            tenant: key.tenant.to_string(),
            kind: key.kind.to_string(),
            key: key.key.to_string(),
            slot: shown_slot(key),
            lease_id: None,
            holder: None,
            token: None,
            session_id: None,
            by: None,
            details: BTreeMap::new(),
            camera_uuid: None,
            runner_id: None,
            shard_id: None,
        }
    }

    /// The pipeline's names for what it knows.
    fn named_for_cameras(mut self, attributes: Option<&Document>) -> Self {
        if self.kind == kind::CAMERA {
            self.camera_uuid = Some(self.key.clone());
            self.runner_id = self.holder.clone();
            self.shard_id = attributes.map(|attributes| LeaseAttributes::of(attributes).shard_id);
        }
        self
    }
}

fn fields<const N: usize>(fields: [(&str, Value); N]) -> BTreeMap<String, Value> {
    fields.into_iter().map(|(field, value)| (field.to_owned(), value)).collect()
}

/// What there is to say of an event beside what every event has, and the attributes of the lease that it is about.
fn details(what: &What) -> (BTreeMap<String, Value>, Option<&Document>) {
    let time = |time| json!(Timestamp::from(time).to_string());
    let attributes = |document| ("attributes", to_value(document));
    match what {
        What::Pending(pending) => {
            let deadline = ("expires_at", time(pending.deadline));
            (fields([attributes(&pending.attributes), deadline]), Some(&pending.attributes))
        }
        What::Acquired(lease) => {
            let ttl_ms = match lease.tenure {
                Tenure::Own { ttl_ms, .. } => json!(ttl_ms),
                Tenure::Session(_) => Value::Null,
            };
            (fields([attributes(&lease.attributes), ("ttl_ms", ttl_ms)]), Some(&lease.attributes))
        }
        What::Released(ended) | What::Expired(ended) | What::Revoked(ended) | What::Stolen(ended) => {
            let until = ended.held_back_until.map_or(Value::Null, time);
            let told =
                [attributes(&ended.attributes), ("held_back_until", until), ("reason", json!(ended.reason))];
            (fields(told), Some(&ended.attributes))
        }
        What::HoldBackLifted { reason, .. } => (fields([("reason", json!(reason))]), None),
        What::StateChanged(state) => {
            let document = ("document", to_value(&state.document));
            (fields([("sequence", json!(state.sequence)), document]), None)
        }
        What::Declared(declared) => {
            let told = [
                attributes(&declared.attributes),
                ("site", json!(declared.site)),
                ("labels", json!(declared.labels)),
                ("lock_delay_ms", json!(declared.lock_delay_ms)),
            ];
            (fields(told), None)
        }
        What::Deleted => (BTreeMap::new(), None),
        What::ConfigChanged(details) => (to_fields(details), None),
    }
}

/// The owner of a resource at a cursor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Ownership {
    pub tenant: String,
    pub kind: String,
    pub key: String,
    /// Which of its slots this is, if it is shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    pub site: Option<String>,
    /// The token of the present grant, or of the last one, of the resource or of one of its slots.
    pub token: u64,
    /// The lease, if it is held.
    pub lease_id: Option<Uuid>,
    pub holder: Option<String>,
    /// The session to attach the lease to; one of its own if not given.
    pub session_id: Option<Uuid>,
    /// When the lease expires by the store's clock, unless it is renewed.
    pub expires_at: Option<Timestamp>,
    /// Milliseconds until the lease expires.
    pub ttl_ms: u64,
}

impl Ownership {
    /// Who owns a resource; `lease` is the one on it, if there is one.
    pub fn of(resource: &Resource, lease: Option<&LeaseView>) -> Self {
        let live = lease.filter(|lease| lease.status == LeaseStatus::Active);
        let site = resource.declared.as_ref().and_then(|declared| declared.site.as_ref());
        Self {
            tenant: resource.key.tenant.to_string(),
            kind: resource.key.kind.to_string(),
            key: resource.key.key.to_string(),
            slot: shown_slot(&resource.key),
            site: site.map(ToString::to_string),
            token: resource.last_token.0,
            lease_id: live.map(|view| view.lease.id.0),
            holder: live.map(|view| view.lease.holder.to_string()),
            session_id: live.and_then(|view| view.lease.tenure.session()).map(|id| id.0),
            expires_at: live.map(|view| view.deadline.into()),
            ttl_ms: live.map_or(0, LeaseView::ttl_left_ms),
        }
    }
}

/// A part of who owns what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Snapshot {
    /// The point at which the whole snapshot was taken; resume from it only when `more` is false.
    pub cursor: Cursor,
    pub resources: Vec<Ownership>,
    /// Whether another part follows.
    pub more: bool,
}

/// All changes up to here have been sent. It follows a successful read of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Progress {
    pub cursor: Cursor,
    /// The store's time when it was read.
    pub timestamp: Timestamp,
}

/// The requested cursor is older than the oldest event that is kept, or of another epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Compacted {
    /// The oldest cursor that can be resumed from.
    pub floor: Cursor,
}

/// This reader fell too far behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Resync {
    /// The last cursor that was sent.
    pub cursor: Cursor,
    /// A reason in words.
    pub reason: String,
}

/// A frame of the watch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", content = "data", rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum WatchFrame {
    /// A part of who owns what.
    Snapshot(Snapshot),
    /// One change.
    Event(Box<LeaseEvent>),
    /// All changes up to here have been sent.
    Progress(Progress),
    /// Start again without a cursor: this one is too old.
    Compacted(Compacted),
    /// Start again without a cursor: this reader fell behind.
    Resync(Resync),
}

/// A frame of the stream that cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[error("a {event:?} frame of the watch cannot be read: {why}")]
pub struct BadFrame {
    pub event: String,
    #[source]
    pub why: serde_json::Error,
}

impl WatchFrame {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Snapshot(_) => "snapshot",
            Self::Event(_) => "event",
            Self::Progress(_) => "progress",
            Self::Compacted(_) => "compacted",
            Self::Resync(_) => "resync",
        }
    }

    /// The point that a reader may resume from once it has seen this frame.
    pub fn cursor(&self) -> Option<Cursor> {
        match self {
            Self::Snapshot(snapshot) => Some(snapshot.cursor).filter(|_| !snapshot.more),
            Self::Event(event) => Some(event.cursor),
            Self::Progress(progress) => Some(progress.cursor),
            Self::Compacted(_) | Self::Resync(_) => None,
        }
    }

    pub fn to_sse(&self) -> sse::Frame {
        let data = match self {
            Self::Snapshot(data) => serde_json::to_string(data),
            Self::Event(data) => serde_json::to_string(data),
            Self::Progress(data) => serde_json::to_string(data),
            Self::Compacted(data) => serde_json::to_string(data),
            Self::Resync(data) => serde_json::to_string(data),
        };
        sse::Frame {
            event: Some(self.name().to_owned()),
            id: self.cursor().map(|cursor| cursor.to_string()),
            data: data.expect("keys are strings and numbers finite, so it is JSON"),
        }
    }

    /// What a frame of the stream says; nothing, if it is of a sort that came later than this reader.
    pub fn from_sse(frame: &sse::Frame) -> Result<Option<Self>, BadFrame> {
        let event = frame.event.as_deref().unwrap_or("message");
        let data = &frame.data;
        let read = match event {
            "snapshot" => serde_json::from_str(data).map(Self::Snapshot),
            "event" => serde_json::from_str(data).map(Self::Event),
            "progress" => serde_json::from_str(data).map(Self::Progress),
            "compacted" => serde_json::from_str(data).map(Self::Compacted),
            "resync" => serde_json::from_str(data).map(Self::Resync),
            _ => return Ok(None),
        };
        read.map(Some).map_err(|why| BadFrame { event: event.to_owned(), why })
    }
}

#[cfg(test)]
mod tests;
