//! Resources and the leases on them.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    key::{Document, HolderKey, LeaseId, Name, ResourceKey, SessionId, is_zero},
    time::{StoreTime, Token},
};

/// How far a lease has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseStatus {
    /// Granted when the present holder is done; has no token yet.
    Pending,
    /// Held, and its time has not run out.
    Active,
    Expired,
    Released,
    /// Another caller ended it.
    Revoked,
}

/// What keeps a lease alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tenure {
    /// A session of its own, kept with the lease.
    Own {
        /// How long a renewal keeps it.
        ttl_ms: u64,
        /// It is dead from this time on, unless renewed before.
        deadline: StoreTime,
    },
    Session(SessionId),
}

impl Tenure {
    /// The session that it is attached to, if not one of its own.
    pub fn session(&self) -> Option<SessionId> {
        match self {
            Self::Own { .. } => None,
            Self::Session(id) => Some(*id),
        }
    }
}

/// A resource held by a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub id: LeaseId,
    pub token: Token,
    pub holder: Name,
    /// The key that it belongs to: its session's, or the one that took it (rule 26).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Name>,
    pub tenure: Tenure,
    pub acquired_at: StoreTime,
    /// When it was last renewed by itself.
    pub renewed_at: Option<StoreTime>,
    /// It was waited for, and is dead from this time on unless its holder renews it before (rule 15).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm_by: Option<StoreTime>,
    /// The client's name for the request that got it.
    pub request: Option<Name>,
    /// Of how many slots it has one, if it is a shared hold (rule 29).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// What the adapter keeps with it; opaque.
    pub attributes: Document,
    /// What its last heartbeat told; opaque.
    pub stats: Document,
}

impl Lease {
    /// A lease that is about to be granted: its token is that of the grant's event.
    pub(crate) fn new(
        id: LeaseId,
        holder: Name,
        by: Option<Name>,
        tenure: Tenure,
        attributes: Document,
        now: StoreTime,
    ) -> Self {
        Self {
            id,
            token: Token::default(),
            holder,
            by,
            tenure,
            acquired_at: now,
            renewed_at: None,
            confirm_by: None,
            request: None,
            slots: None,
            attributes,
            stats: Document::default(),
        }
    }

    /// From when on it is dead if its tenure ends at `deadline`: one that is still to be confirmed is dead without
    /// that, too.
    pub fn dead_from(&self, deadline: StoreTime) -> StoreTime {
        self.confirm_by.map_or(deadline, |by| by.min(deadline))
    }
}

/// A pending lease (rule 16): at most one per resource, without a token, attached to the next holder's session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// The identity that the grant will have.
    pub id: LeaseId,
    pub holder: Name,
    /// The session that it will be attached to.
    pub session: SessionId,
    pub asked_at: StoreTime,
    /// From this time on it has lapsed, and the holder keeps the resource.
    pub deadline: StoreTime,
    /// What the adapter keeps with it; opaque.
    pub attributes: Document,
}

/// The state document of a resource: written under a live token, given to the next holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateDocument {
    pub document: Document,
    /// Grows with each write under one token (rule 17).
    pub sequence: u64,
    /// The token that it was written under.
    pub token: Token,
    pub written_at: StoreTime,
}

/// What a resource is declared with.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Declaration {
    pub site: Option<Name>,
    /// What selects it.
    pub labels: BTreeMap<String, String>,
    /// What its adapter keeps with it; opaque.
    pub attributes: Document,
    /// How long it is held back after a lease that ran out (rule 12).
    pub lock_delay_ms: u64,
}

/// A thing that one holder at a time may work on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resource {
    pub key: ResourceKey,
    /// Its declaration; none if it exists only while it is held.
    pub declared: Option<Arc<Declaration>>,
    /// When it was declared. Without a declaration, since when its row is there, which is the store's own matter.
    pub created_at: StoreTime,
    /// The token of the last grant, of the resource or of one of its slots; 0 before the first.
    pub last_token: Token,
    /// It is held back until this time (rule 12).
    pub held_back_until: Option<StoreTime>,
    /// The key of the lease after which it is held back, which may say that its holder is fenced off (rule 26).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_back_by: Option<Name>,
    /// Its holder. An expired lease counts until it is swept.
    pub lease: Option<Lease>,
    /// Who gets it next. Few have one, so that it takes room only where there is.
    pub pending: Option<Box<Pending>>,
    /// What the last holder left for the next one.
    pub state: Option<StateDocument>,
    /// How many waiters are in line, dead ones that were not dropped yet included.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub queued: u32,
    /// How many of its slots are taken: held, or held back (rule 29).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub taken: u32,
    /// Of a slot: of how many it is one, by who holds it or held it last.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub slots: u32,
}

impl Resource {
    /// A resource that is not declared.
    pub fn new(key: ResourceKey, now: StoreTime) -> Self {
        Self {
            key,
            declared: None,
            created_at: now,
            last_token: Token::default(),
            held_back_until: None,
            held_back_by: None,
            lease: None,
            pending: None,
            state: None,
            queued: 0,
            taken: 0,
            slots: 0,
        }
    }

    /// How long it is held back after a lease that ran out.
    pub fn lock_delay_ms(&self) -> u64 {
        self.declared.as_ref().map_or(0, |d| d.lock_delay_ms)
    }

    /// Whether its row carries no information and can be dropped. A slot is counted by its resource, so its hold-back
    /// is ended by a decision, and not by time alone.
    pub fn is_forgettable(&self, now: StoreTime) -> bool {
        let is_free_by = |until: StoreTime| until <= now && !self.key.is_slot();
        self.declared.is_none()
            && self.lease.is_none()
            && self.pending.is_none()
            && self.state.is_none()
            && self.queued == 0
            && self.taken == 0
            && self.held_back_until.is_none_or(is_free_by)
    }

    /// Its holder. An expired lease counts until it is swept.
    pub fn holder(&self) -> Option<HolderKey> {
        let lease = self.lease.as_ref()?;
        Some(HolderKey { tenant: self.key.tenant.clone(), name: lease.holder.clone() })
    }

    /// The sessions that its lease and its pending lease are attached to.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> {
        let held = self.lease.as_ref().and_then(|l| l.tenure.session());
        held.into_iter().chain(self.pending.as_ref().map(|p| p.session))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_empty_line_is_left_out_of_what_is_stored() {
        assert!(is_zero(&0) && !is_zero(&1));
    }
}
