//! The tables of the five designs that Solehold replaces (docs/origins.md), statement by statement. Where a design says
//! nothing, it is taken to do the right thing, and where it is right, it is right here.

use crate::{
    authority::{Call, Held},
    message::{Ask, GrantId, Reply, Shown},
    scope::Scope,
    variant::Variant,
};

/// The row of the one resource. Each design has some of the columns.
#[derive(Debug, Clone, Default, Hash)]
pub struct OriginRow {
    /// The holder's name. Of a partition, the process that is its consumer.
    owner: Option<u8>,
    expires_ms: u64,
    /// The trackers' version, or the payment's status, which is a number that grows.
    number: u64,
    /// Whether the orchestrator has marked its command as done.
    is_marked: bool,
    /// What the holder was given as its token.
    token: u64,
    /// How many grants there were. It is the id of a camera's lease, and the generation of a consumer group.
    grants: GrantId,
}

impl OriginRow {
    pub fn decide(&mut self, call: &Call, now_ms: u64, scope: &Scope, variant: Variant) -> Reply {
        match variant {
            Variant::SceneTrackers => self.scene_trackers(call, now_ms, scope),
            Variant::PaymentReconciler => self.payment_reconciler(call, scope),
            Variant::CameraPipeline => self.camera_pipeline(call, now_ms),
            Variant::ChatGateway => self.chat_gateway(call, now_ms, scope),
            _ => self.video_orchestrator(call, now_ms),
        }
    }

    /// Acquire, after `SELECT ... FOR UPDATE`: `SET holder_id, expires_at = NOW() + ttl, version = version + 1 WHERE
    /// holder_id IS NULL OR expires_at < NOW()`. Renew: `SET expires_at WHERE holder_id = :holder_id AND expires_at >
    /// NOW()`. Release: `SET holder_id = NULL WHERE holder_id = :holder_id`.
    fn scene_trackers(&mut self, call: &Call, now_ms: u64, scope: &Scope) -> Reply {
        let name = scope.name_of(call.from.client);
        match call.ask {
            Ask::Acquire { .. } if self.owner.is_none() || self.expires_ms < now_ms => {
                self.number += 1;
                self.granted_to(name, now_ms, self.number)
            }
            Ask::Acquire { .. } => Reply::Refused,
            Ask::Renew(_) if self.owner == Some(name) && self.expires_ms > now_ms => self.renewed(now_ms),
            Ask::Release(_) if self.owner == Some(name) => self.freed(),
            Ask::Release(_) => Reply::Done,
            _ => Reply::Lost,
        }
    }

    /// Claim, with `FOR UPDATE SKIP LOCKED`: owner and until are set `WHERE` the row has no lease or an expired one, by
    /// the time that the worker passes. A change of status: `WHERE status = :current AND owner = :owner`, which clears
    /// the lease. There is no renewal.
    fn payment_reconciler(&mut self, call: &Call, scope: &Scope) -> Reply {
        let name = scope.name_of(call.from.client);
        let now_ms = call.sent.as_ms().saturating_add_signed(scope.wall_ahead_ms(call.from.client));
        match call.ask {
            Ask::Acquire { .. } if self.owner.is_none() || self.expires_ms <= now_ms => {
                self.granted_to(name, now_ms, self.number)
            }
            Ask::Acquire { .. } => Reply::Refused,
            Ask::Advance(Shown { token, .. }) if self.number == token && self.owner == Some(name) => {
                self.number += 1;
                self.freed()
            }
            _ => Reply::Lost,
        }
    }

    /// A unique index allows one active lease per camera, and each lease has an id, by which it is renewed and
    /// released. What makes an expired lease inactive is not said: here it is the next acquire.
    fn camera_pipeline(&mut self, call: &Call, now_ms: u64) -> Reply {
        let is_active = self.owner.is_some() && now_ms < self.expires_ms;
        let is_meant = |shown: Shown| is_active && shown.token == self.token;
        match call.ask {
            Ask::Acquire { .. } if is_active => Reply::Refused,
            Ask::Acquire { .. } => self.granted_to(call.from.client, now_ms, u64::from(self.grants) + 1),
            Ask::Renew(shown) if is_meant(shown) => self.renewed(now_ms),
            Ask::Release(shown) if is_meant(shown) => self.freed(),
            _ => Reply::Lost,
        }
    }

    /// Lock: `INSERT ... ON CONFLICT DO UPDATE` if the lock has expired. Renew: by its owner. Unlock: `DELETE` if the
    /// owner matches. The owner is a node.
    fn chat_gateway(&mut self, call: &Call, now_ms: u64, scope: &Scope) -> Reply {
        let node = scope.name_of(call.from.client);
        match call.ask {
            Ask::Acquire { .. } if self.owner.is_none() || self.expires_ms <= now_ms => {
                self.granted_to(node, now_ms, 0)
            }
            Ask::Acquire { .. } => Reply::Refused,
            Ask::Renew(_) if self.owner == Some(node) => self.renewed(now_ms),
            Ask::Release(_) if self.owner == Some(node) => self.freed(),
            _ => Reply::Lost,
        }
    }

    /// The broker gives the partition to one consumer per generation, and accepts what the present one sends. The mark
    /// is a key of another store: `GET` before the work, `SETEX` after it. The position is committed after that, and
    /// protects nothing here.
    fn video_orchestrator(&mut self, call: &Call, now_ms: u64) -> Reply {
        let is_assigned = self.owner.is_some() && now_ms < self.expires_ms;
        let is_present = |shown: Shown| is_assigned && shown.token == self.token;
        match call.ask {
            Ask::Acquire { .. } if is_assigned => Reply::Refused,
            Ask::Acquire { .. } => self.granted_to(call.from.client, now_ms, u64::from(self.grants) + 1),
            Ask::Renew(shown) if is_present(shown) => self.renewed(now_ms),
            Ask::LookUp => Reply::Found(self.is_marked),
            Ask::Mark => {
                self.is_marked = true;
                Reply::Done
            }
            _ => Reply::Lost,
        }
    }

    fn granted_to(&mut self, owner: u8, now_ms: u64, token: u64) -> Reply {
        self.owner = Some(owner);
        self.token = token;
        self.expires_ms = now_ms + Scope::TTL_MS;
        self.grants += 1;
        Reply::Granted { token, left_ms: Scope::TTL_MS, grant: self.grants }
    }

    fn renewed(&mut self, now_ms: u64) -> Reply {
        self.expires_ms = now_ms + Scope::TTL_MS;
        Reply::Renewed { left_ms: Scope::TTL_MS }
    }

    fn freed(&mut self) -> Reply {
        self.owner = None;
        Reply::Done
    }

    pub fn held(&self) -> Option<Held> {
        let shown = Shown { token: self.token, grant: self.grants };
        self.owner.map(|_| Held { shown, dead_from_ms: self.expires_ms })
    }

    /// What `GET /scenes/{id}/lease` shows to those who compare tokens.
    pub fn version(&self) -> u64 {
        self.number
    }
}
