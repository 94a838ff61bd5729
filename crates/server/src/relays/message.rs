//! Messages: the events of the store, each with an id that is the same on every attempt.

use std::collections::BTreeMap;

use axum::body::Bytes;
use serde::Serialize;
use serde_json::{Value, json};
use solehold_api::{
    time::Timestamp,
    watch::{Cursor, LeaseEvent},
};
use solehold_core::{
    event::Event,
    key::{Name, ResourceKey},
    outcome::LeaseView,
    time::{Revision, StoreTime},
};
use uuid::Uuid;

/// The event type of the message that reports missing events.
pub const GAP: &str = "relay_gap";

#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// The same on every attempt, at every replica and for every relay: consumers drop duplicates by it.
    pub id: Uuid,
    pub event: &'static str,
    pub resource: ResourceKey,
    /// The site of the resource, if it is known.
    pub site: Option<Name>,
    pub at: StoreTime,
    /// Its place in the order of all events.
    pub revision: Revision,
    pub body: Bytes,
}

/// The JSON body. All events have one schema: a text that does not apply is empty.
#[derive(Debug, Serialize)]
struct MessageBody<'a> {
    event_id: Uuid,
    event_type: &'a str,
    #[serde(flatten)]
    resource: &'a ResourceKey,
    holder: String,
    token: Option<u64>,
    lease_id: String,
    #[serde(flatten)]
    camera: Option<CameraFields>,
    timestamp: Timestamp,
    details: BTreeMap<String, Value>,
}

/// The fields by which consumers of a camera pipeline identify an event, if it is of a camera.
#[derive(Debug, Serialize)]
struct CameraFields {
    camera_uuid: String,
    runner_id: String,
    shard_id: String,
}

impl Message {
    pub fn of(event: &Event, epoch: u64, site: Option<Name>) -> Self {
        let lease_event = LeaseEvent::of(event, epoch);
        Self::from_lease_event(event_id(event), lease_event, event.name().as_str(), &event.key, site)
    }

    /// A renewal, which has no place of its own in the history and so a fresh id (rule 19).
    pub fn renewed(lease: &LeaseView, cursor: Cursor, site: Option<Name>) -> Self {
        let lease_event = LeaseEvent::renewed(lease, cursor.epoch, Revision(cursor.revision));
        let name = lease_event.event_type.as_str();
        Self::from_lease_event(Uuid::now_v7(), lease_event, name, &lease.key, site)
    }

    /// Events after `after` up to `to` were dropped before they were sent.
    pub fn gap(relay: &ResourceKey, after: Revision, to: Revision, epoch: u64, at: StoreTime) -> Self {
        let id = id_of(at, to, GAP, relay);
        let reason = "events were dropped from the history before they were sent: read the present state";
        let details = fields([
            ("tenant", json!(relay.tenant)),
            ("kind", json!(relay.kind)),
            ("key", json!(relay.key)),
            ("epoch", json!(epoch)),
            ("revision", json!(to)),
            ("after", json!(after)),
            ("reason", json!(reason)),
        ]);
        let body = MessageBody {
            event_id: id,
            event_type: GAP,
            resource: relay,
            holder: String::new(),
            token: None,
            lease_id: String::new(),
            camera: None,
            timestamp: at.into(),
            details,
        };
        Self { id, event: GAP, resource: relay.clone(), site: None, at, revision: to, body: encode(&body) }
    }

    fn from_lease_event(
        id: Uuid,
        lease_event: LeaseEvent,
        event: &'static str,
        key: &ResourceKey,
        site: Option<Name>,
    ) -> Self {
        let mut details = lease_event.details;
        details.extend(fields([
            ("tenant", json!(lease_event.tenant)),
            ("site", json!(site)),
            ("kind", json!(lease_event.kind)),
            ("key", json!(lease_event.key)),
            ("epoch", json!(lease_event.cursor.epoch)),
            ("revision", json!(lease_event.revision)),
            ("token", json!(lease_event.token)),
            ("session_id", json!(lease_event.session_id)),
            ("by", json!(lease_event.by)),
        ]));
        let camera = lease_event.camera_uuid.map(|camera_uuid| CameraFields {
            camera_uuid,
            runner_id: lease_event.runner_id.unwrap_or_default(),
            shard_id: lease_event.shard_id.unwrap_or_default(),
        });
        let body = MessageBody {
            event_id: id,
            event_type: event,
            resource: key,
            holder: lease_event.holder.unwrap_or_default(),
            token: lease_event.token,
            lease_id: lease_event.lease_id.map(|id| id.to_string()).unwrap_or_default(),
            camera,
            timestamp: lease_event.timestamp,
            details,
        };
        let at = lease_event.timestamp.into();
        let revision = Revision(lease_event.revision);
        Self { id, event, resource: key.clone(), site, at, revision, body: encode(&body) }
    }
}

fn fields<const N: usize>(fields: [(&str, Value); N]) -> BTreeMap<String, Value> {
    fields.into_iter().map(|(field, value)| (field.to_owned(), value)).collect()
}

fn encode(body: &MessageBody<'_>) -> Bytes {
    serde_json::to_vec(body).expect("keys are strings and numbers finite, so it is JSON").into()
}

/// The id of an event: a UUIDv7 of its time, its revision and a hash of what it is about.
///
/// A revision is given once in the life of a store, restores included (rule 23), so the epoch is not part of it: an
/// event that was sent before a restore keeps its id after it. The hash tells apart the events of two stores.
pub fn event_id(event: &Event) -> Uuid {
    id_of(event.at, event.revision, event.name().as_str(), &event.key)
}

fn id_of(at: StoreTime, revision: Revision, name: &str, key: &ResourceKey) -> Uuid {
    const HASH_BITS: u32 = 21;
    let mut hasher = blake3::Hasher::new();
    for part in [name, key.tenant.as_str(), key.kind.as_str(), key.key.as_str()] {
        // No name has a NUL.
        hasher.update(part.as_bytes()).update(b"\0");
    }
    let [a, b, c, ..] = *hasher.finalize().as_bytes();
    let hash = u128::from(u32::from_be_bytes([0, a, b, c]) & ((1 << HASH_BITS) - 1));
    let ms = u128::from(at.0 & ((1 << 48) - 1));
    // 53 bits of revision and 21 of hash fill the 74 that a UUIDv7 leaves free, so ids sort as revisions do.
    let free = (u128::from(revision.0) << HASH_BITS) | hash;
    let high = (free >> 62) & 0xfff;
    let low = free & ((1 << 62) - 1);
    Uuid::from_u128((ms << 80) | (0x7 << 76) | (high << 64) | (0b10 << 62) | low)
}

#[cfg(test)]
mod tests {
    use solehold_core::{event::What, limits::REVISION_MAX};

    use super::*;

    fn key(key: &str) -> ResourceKey {
        let name = |text: &str| Name::new(text).expect("a short name");
        ResourceKey::new(name("acme"), name("camera"), name(key))
    }

    fn event(revision: u64, at: u64) -> Event {
        Event {
            revision: Revision(revision),
            at: StoreTime(at),
            key: key("cam-1"),
            by: None,
            holder_session: None,
            what: What::Deleted,
        }
    }

    #[test]
    fn an_id_is_a_version_7_uuid_that_depends_on_the_event_alone() {
        let id = event_id(&event(7, 1_701_424_800_123));
        assert_eq!(id, event_id(&event(7, 1_701_424_800_123)));
        assert_eq!((id.get_version_num(), id.get_variant()), (7, uuid::Variant::RFC4122));
        let (seconds, nanos) = id.get_timestamp().expect("a time").to_unix();
        assert_eq!((seconds, nanos / 1_000_000), (1_701_424_800, 123));
        assert!(event_id(&event(REVISION_MAX, 5)) > event_id(&event(REVISION_MAX - 1, 5)));
        assert!(event_id(&event(8, 5)) > event_id(&event(7, 5)));
        assert_eq!(event_id(&event(REVISION_MAX, 5)).get_version_num(), 7);
        let other = Event { key: key("cam-2"), ..event(7, 1_701_424_800_123) };
        assert_ne!(event_id(&other), id, "of another store");
    }

    #[test]
    fn the_body_has_the_pipelines_fields_as_text_if_it_is_of_a_camera() {
        let message = Message::of(&event(7, 0), 3, Some(Name::new("north").expect("a name")));
        let body: Value = serde_json::from_slice(&message.body).expect("JSON");
        for field in ["event_type", "lease_id", "camera_uuid", "runner_id", "shard_id", "timestamp"] {
            assert!(body[field].is_string(), "{field}: {body}");
        }
        assert_eq!(
            (&body["event_type"], &body["camera_uuid"]),
            (&json!("resource_deleted"), &json!("cam-1"))
        );
        let details = &body["details"];
        assert_eq!((&details["revision"], &details["epoch"]), (&json!(7), &json!(3)));
        assert_eq!((&details["site"], &details["kind"]), (&json!("north"), &json!("camera")));
        assert_eq!(body["event_id"], json!(message.id));
        assert_eq!((&body["kind"], &body["key"]), (&json!("camera"), &json!("cam-1")));

        let kind = Name::new("job").expect("a name");
        let of_job = Event { key: ResourceKey { kind, ..key("nightly") }, ..event(8, 0) };
        let body: Value = serde_json::from_slice(&Message::of(&of_job, 3, None).body).expect("JSON");
        for field in ["camera_uuid", "runner_id", "shard_id"] {
            assert_eq!(body.get(field), None, "{body}");
        }
        assert_eq!((&body["kind"], &body["key"]), (&json!("job"), &json!("nightly")));
        assert_eq!((&body["holder"], body.get("token")), (&json!(""), Some(&json!(null))));
    }
}
