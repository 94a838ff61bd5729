//! What tests of conversions share: core's rows, made short.

use std::sync::Arc;

use serde::{Serialize, de::DeserializeOwned};
use solehold_core::{
    key::{Document, HolderKey, LeaseId, Name, ResourceKey, SessionId},
    lease::{Declaration, Lease, LeaseStatus, Resource, Tenure},
    outcome::LeaseView,
    session::{Session, Standing},
    time::{Revision, StoreTime, Token},
};
use uuid::Uuid;

pub fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

pub fn key(key: &str) -> ResourceKey {
    ResourceKey::new(name("t"), name("job"), name(key))
}

pub fn document(json: &str) -> Document {
    Document::new(json).expect("a document")
}

pub fn session_id() -> SessionId {
    SessionId(Uuid::from_u128(5))
}

/// A lease of `worker` on `key`, token 42, granted at 1000 for 30 s.
pub fn lease_view(key: ResourceKey, attributes: &str) -> LeaseView {
    LeaseView {
        key,
        site: Some(name("site-1")),
        lease: Lease {
            id: LeaseId(Uuid::from_u128(9)),
            token: Token(42),
            holder: name("worker"),
            by: None,
            tenure: Tenure::Session(session_id()),
            acquired_at: StoreTime(1_000),
            renewed_at: None,
            confirm_by: None,
            request: None,
            slots: None,
            attributes: document(attributes),
            stats: document(r#"{"fps":25}"#),
        },
        status: LeaseStatus::Active,
        deadline: StoreTime(31_000),
        ttl_ms: 30_000,
        renewed_at: None,
        next: None,
        now: StoreTime(2_000),
    }
}

/// A resource with that lease on it, declared with these attributes.
pub fn resource(view: &LeaseView, attributes: &str) -> Resource {
    Resource {
        declared: Some(Arc::new(Declaration {
            site: Some(name("site-1")),
            attributes: document(attributes),
            ..Declaration::default()
        })),
        last_token: view.lease.token,
        lease: Some(view.lease.clone()),
        ..Resource::new(view.key.clone(), StoreTime(500))
    }
}

/// Asserts that a value survives the wire.
pub fn round_trip<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T) {
    let json = serde_json::to_string(value).expect("a wire type");
    assert_eq!(&serde_json::from_str::<T>(&json).expect(&json), value, "{json}");
}

/// A session of `worker`, opened at 1000 for 30 s, with two leases.
pub fn session() -> Session {
    Session {
        id: session_id(),
        holder: HolderKey { tenant: name("t"), name: name("worker") },
        by: None,
        ttl_ms: 30_000,
        opened_at: StoreTime(1_000),
        renewed_at: StoreTime(1_000),
        deadline: StoreTime(31_000),
        standing: Standing::Current,
        capacity: None,
        lease_count: 2,
        waiting: 0,
        lease_revision: Revision(44),
        metrics: document(r#"{"cpu":0.5}"#),
    }
}
