//! Lease tables as they are written by hand, each with its flaw.

use crate::{
    authority::{Call, Held},
    message::{Ask, GrantId, Reply, Shown},
    scope::Scope,
    variant::Variant,
};

/// The row of the one resource: `UPDATE ... SET holder, expires_at, token WHERE holder IS NULL OR expires_at <= now()`.
#[derive(Debug, Clone, Hash)]
pub struct TableRow {
    holder: Option<u8>,
    expires_ms: u64,
    token: u64,
    /// How many grants there were.
    grants: GrantId,
}

impl Default for TableRow {
    fn default() -> Self {
        Self { holder: None, expires_ms: 0, token: 1, grants: 0 }
    }
}

impl TableRow {
    pub fn decide(&mut self, call: &Call, now_ms: u64, scope: &Scope, variant: Variant) -> Reply {
        let client = call.from.client;
        let caller_ms = call.sent.as_ms().saturating_add_signed(scope.wall_ahead_ms(client));
        let now_ms = if variant == Variant::CallerClockDecides { caller_ms } else { now_ms };
        match call.ask {
            Ask::Acquire { .. } => {
                if !self.is_free(now_ms, variant) {
                    return Reply::Refused;
                }
                self.holder = Some(client);
                self.expires_ms = now_ms + Scope::TTL_MS;
                self.token += u64::from(variant != Variant::TokenRaisedByRenewal);
                let left_ms = self.left_ms(now_ms, client, scope, variant);
                self.grants += 1;
                Reply::Granted { token: self.token, left_ms, grant: self.grants }
            }
            Ask::Renew(_) if self.holder == Some(client) && self.expires_ms > now_ms => {
                self.expires_ms = now_ms + Scope::TTL_MS;
                self.token += u64::from(variant == Variant::TokenRaisedByRenewal);
                Reply::Renewed { left_ms: self.left_ms(now_ms, client, scope, variant) }
            }
            Ask::Release(Shown { token, .. }) if self.holder == Some(client) && self.token == token => {
                self.holder = None;
                Reply::Done
            }
            // `DELETE ... WHERE key = $1`, of a row that was found a while ago.
            Ask::Expire { .. } => {
                self.holder = None;
                Reply::Done
            }
            Ask::Renew(_) | Ask::Release(_) => Reply::Lost,
            _ => Reply::Done,
        }
    }

    fn is_free(&self, now_ms: u64, variant: Variant) -> bool {
        match variant {
            Variant::SweeperDecides => self.holder.is_none(),
            _ => self.holder.is_none() || self.expires_ms <= now_ms,
        }
    }

    pub fn held(&self) -> Option<Held> {
        let shown = Shown { token: self.token, grant: self.grants };
        self.holder.map(|_| Held { shown, dead_from_ms: self.expires_ms })
    }

    /// The time left as the caller will count it. One that compares the timestamp with a slow clock counts more.
    fn left_ms(&self, now_ms: u64, client: u8, scope: &Scope, variant: Variant) -> u64 {
        let left_ms = self.expires_ms - now_ms;
        match variant {
            Variant::TimestampCompared => left_ms.saturating_add_signed(-scope.wall_ahead_ms(client)),
            _ => left_ms,
        }
    }
}
