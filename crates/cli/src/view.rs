//! A lease as this program shows it, wherever it was read.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use solehold_api::{leases, resources, time::Timestamp};
use solehold_core::{lease::LeaseStatus, time::StoreTime};
use uuid::Uuid;

use crate::{
    human::{ago, duration_ms, one_line},
    output::{facts, or_dash, table},
};

/// Those who share a resource, in one line; none if nobody does.
pub fn shared_by(shared: &[resources::HeldLease]) -> Option<String> {
    let one = |lease: &resources::HeldLease| {
        let slot = lease.slot.zip(lease.slots);
        let slot = slot.map(|(slot, slots)| format!("slot {slot} of {slots}, ")).unwrap_or_default();
        format!("{} ({slot}token {})", lease.holder, lease.token)
    };
    let all: Vec<String> = shared.iter().map(one).collect();
    Some(all.join(", ")).filter(|all| !all.is_empty())
}

/// A lease: one shape for all commands, though the server has several.
#[derive(Debug, Clone, Serialize)]
pub struct LeaseView {
    pub lease_id: Uuid,
    pub tenant: String,
    pub kind: String,
    pub key: String,
    /// Which of its slots, if it is shared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// Of how many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    pub holder: String,
    /// None while it is pending.
    pub token: Option<u64>,
    pub session_id: Option<Uuid>,
    pub status: LeaseStatus,
    pub acquired_at: Timestamp,
    pub renewed_at: Option<Timestamp>,
    /// By the store's clock.
    pub expires_at: Timestamp,
    pub ttl_ms: u64,
    pub stats: BTreeMap<String, Value>,
}

macro_rules! views {
    ($($lease:ty),*) => {$(
        impl From<$lease> for LeaseView {
            fn from(lease: $lease) -> Self {
                Self {
                    lease_id: lease.lease_id,
                    tenant: lease.tenant,
                    kind: lease.kind,
                    key: lease.key,
                    slot: lease.slot,
                    slots: lease.slots,
                    holder: lease.holder,
                    token: lease.token.into(),
                    session_id: lease.session_id,
                    status: lease.status,
                    acquired_at: lease.acquired_at,
                    renewed_at: lease.renewed_at,
                    expires_at: lease.expires_at,
                    ttl_ms: lease.ttl_ms,
                    stats: lease.stats,
                }
            }
        }
    )*};
}
views!(leases::LeaseBody, resources::HeldLease);

/// What an acquire or renewal got: the lease, and what the former holder left.
#[derive(Debug, Clone, Serialize)]
pub struct GrantView {
    #[serde(flatten)]
    pub lease: LeaseView,
    pub state: Option<resources::StateDocument>,
    /// The revision as of which this is so.
    pub revision: u64,
    /// Whether this grant was given before, to the same request id.
    pub repeated: bool,
}

impl From<resources::GrantBody> for GrantView {
    fn from(grant: resources::GrantBody) -> Self {
        let resources::GrantBody { lease, state, revision, repeated, .. } = grant;
        Self { lease: lease.into(), state, revision, repeated }
    }
}

impl LeaseView {
    pub fn resource(&self) -> String {
        format!("{}/{}", self.kind, self.key)
    }

    /// How long it has left, or how it ended.
    pub fn left(&self) -> String {
        match self.status {
            LeaseStatus::Active | LeaseStatus::Pending => format!("in {}", duration_ms(self.ttl_ms)),
            LeaseStatus::Expired => "expired".to_owned(),
            LeaseStatus::Released => "released".to_owned(),
            LeaseStatus::Revoked => "revoked".to_owned(),
        }
    }

    /// The store's time when this was read: no clock of this machine is asked.
    pub fn read_at_ms(&self) -> u64 {
        StoreTime::from(self.expires_at).0.saturating_sub(self.ttl_ms)
    }

    fn held_for(&self) -> String {
        duration_ms(self.read_at_ms().saturating_sub(StoreTime::from(self.acquired_at).0))
    }

    /// All that is known of it, line by line.
    pub fn facts(&self) -> String {
        let is_over = !matches!(self.status, LeaseStatus::Active | LeaseStatus::Pending);
        let expires = if is_over { self.left() } else { format!("{} ({})", self.left(), self.expires_at) };
        let stats = serde_json::to_string(&self.stats).ok();
        facts(&[
            ("lease", Some(self.lease_id.to_string())),
            ("token", Some(or_dash(self.token))),
            ("slot", self.slot.zip(self.slots).map(|(slot, slots)| format!("{slot} of {slots}"))),
            ("holder", Some(self.holder.clone())),
            ("session", self.session_id.map(|id| id.to_string())),
            ("expires", Some(expires)),
            (
                "acquired",
                Some(format!("{} ({})", ago(self.acquired_at, self.read_at_ms()), self.acquired_at)),
            ),
            ("renewed", self.renewed_at.map(|at| at.to_string())),
            ("tenant", Some(self.tenant.clone()).filter(|tenant| tenant != "default")),
            ("stats", stats.filter(|_| !self.stats.is_empty())),
        ])
    }

    /// Many of them, a line each.
    pub fn table(leases: &[Self]) -> String {
        let row = |lease: &Self| {
            let for_how_long = lease.held_for();
            let token = or_dash(lease.token);
            let left = lease.left();
            [lease.resource(), one_line(&lease.holder), token, left, for_how_long, lease.lease_id.to_string()]
        };
        let headings = ["RESOURCE", "HOLDER", "TOKEN", "EXPIRES", "HELD FOR", "LEASE"];
        table(headings, &["TOKEN"], leases.iter().map(row).collect())
    }
}
