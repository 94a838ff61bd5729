//! Sessions, and the registry of holders that they belong to.

use serde::{Deserialize, Serialize};

use crate::{
    key::{Document, HolderKey, Name, SessionId},
    time::{Moment, Revision, StoreTime},
};

/// What a session may still do. Death by time is not a standing: it is judged by [`Session::is_live`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It may renew and acquire.
    Current,
    /// It may renew but not acquire: its holder is draining or under maintenance.
    Draining,
    /// Its holder has opened another session: this one may do nothing, and its leases run out (rule 13).
    Superseded,
}

/// One incarnation of a holder. One heartbeat keeps everything that is attached to it alive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Its identity, made by the engine, never reused.
    pub id: SessionId,
    pub holder: HolderKey,
    /// The key that opened it, to which it belongs (rule 26).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Name>,
    /// How long a heartbeat keeps it alive.
    pub ttl_ms: u64,
    pub opened_at: StoreTime,
    pub renewed_at: StoreTime,
    /// When it expires unless it is renewed.
    pub deadline: StoreTime,
    pub standing: Standing,
    /// The most leases that it may hold, if its holder registered a capacity.
    pub capacity: Option<u32>,
    /// How many leases are attached to it.
    pub lease_count: u32,
    /// How many places in line are attached to it, as their room or as their own session.
    #[serde(default)]
    pub waiting: u32,
    /// The revision of the last change to the set of leases that are attached to it (rule 9).
    pub lease_revision: Revision,
    /// What its last heartbeat reported; opaque.
    pub metrics: Document,
}

impl Session {
    /// A session that is opened at `moment`, and has nothing attached to it.
    pub(crate) fn new(id: SessionId, holder: HolderKey, ttl_ms: u64, moment: Moment) -> Self {
        Self {
            id,
            holder,
            by: None,
            ttl_ms,
            opened_at: moment.now,
            renewed_at: moment.now,
            deadline: moment.now.plus_ms(ttl_ms),
            standing: Standing::Current,
            capacity: None,
            lease_count: 0,
            waiting: 0,
            lease_revision: moment.revision,
            metrics: Document::default(),
        }
    }

    /// Whether its leases are live, which lasts until its deadline whatever its standing.
    pub fn is_live(&self, now: StoreTime) -> bool {
        now < self.deadline
    }

    /// Whether it is a replica's waiting room rather than a holder's session.
    pub fn is_room(&self) -> bool {
        self.holder.is_room()
    }

    /// Whether a heartbeat may still renew it.
    pub fn is_renewable(&self, now: StoreTime) -> bool {
        self.is_live(now) && self.standing != Standing::Superseded
    }
}

/// Why a session can do nothing more. Only a superseded holder must not simply open another session: it would end the
/// one that superseded it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SessionOver {
    /// No such session is known: it was never opened, or it was closed, or it ended and was forgotten.
    #[error("does not exist or has ended; open a new session")]
    Unknown,
    #[error("has expired; open a new session")]
    Expired,
    /// Its holder has opened another session (rule 13).
    #[error("was superseded: its holder has opened a newer session")]
    Superseded,
}

/// The status of a registered holder, set by an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HolderStatus {
    /// It may acquire.
    Active,
    /// It keeps its leases and acquires nothing.
    Draining,
    /// As draining, until an operator ends it: a new registration does not.
    Maintenance,
}

/// A holder that has registered, or that has a session under its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub key: HolderKey,
    /// Whether it registered. A holder that did not is forgotten with its session.
    pub registered: bool,
    /// Its present session, if one was opened and has not ended.
    pub session: Option<SessionId>,
    pub status: HolderStatus,
    /// When it registered, or first opened a session.
    pub registered_at: StoreTime,
    /// When it was last heard from, by session or by name.
    pub heard_at: StoreTime,
    /// Where it is, if it said.
    pub site: Option<Name>,
    /// What it registered with; opaque.
    pub attributes: Document,
    /// What it last reported by name alone; opaque.
    pub metrics: Document,
}
