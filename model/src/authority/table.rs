//! Lease tables as they are written by hand, each with its flaw.

use crate::{
    authority::Call,
    message::{Ask, GrantId, Reply},
    scope::Scope,
    variant::Variant,
};

/// The row of the one resource: `UPDATE ... SET holder, expires_at, token WHERE holder IS NULL OR expires_at <= now()`.
#[derive(Debug, Clone, Hash)]
pub struct TableRow {
    holder: Option<u8>,
    expires_ms: u64,
    token: u64,
    is_marked: bool,
    /// How many grants there were.
    grants: GrantId,
}

impl Default for TableRow {
    fn default() -> Self {
        Self { holder: None, expires_ms: 0, token: 1, is_marked: false, grants: 0 }
    }
}

impl TableRow {
    pub fn decide(&mut self, call: &Call, now_ms: u64, variant: Variant) -> Reply {
        let client = call.from.client;
        let caller_ms = (call.sent.as_ms()).saturating_add_signed(variant.wall_ahead_ms(client));
        let now_ms = if variant == Variant::CallerClockDecides { caller_ms } else { now_ms };
        match call.ask {
            Ask::Acquire { .. } => {
                if !self.is_free(now_ms, variant) {
                    return Reply::Refused;
                }
                self.holder = Some(client);
                self.expires_ms = now_ms + Scope::TTL_MS;
                self.token += u64::from(variant != Variant::TokenRaisedByRenewal);
                let left_ms = self.left_ms(now_ms, client, variant);
                self.grants += 1;
                Reply::Granted { token: self.token, left_ms, grant: self.grants }
            }
            Ask::Renew { .. } if self.holder == Some(client) && self.expires_ms > now_ms => {
                self.expires_ms = now_ms + Scope::TTL_MS;
                self.token += u64::from(variant == Variant::TokenRaisedByRenewal);
                Reply::Renewed { left_ms: self.left_ms(now_ms, client, variant) }
            }
            Ask::Release { .. } if variant == Variant::MarkSetAfterwards => {
                self.is_marked = true;
                Reply::Done
            }
            Ask::Release { token } if self.holder == Some(client) && self.token == token => {
                self.holder = None;
                Reply::Done
            }
            // `DELETE ... WHERE key = $1`, of a row that was found a while ago.
            Ask::Expire { .. } => {
                self.holder = None;
                Reply::Done
            }
            Ask::Revoke | Ask::Cancel { .. } | Ask::OpenSession => Reply::Done,
            Ask::Renew { .. } | Ask::Release { .. } => Reply::Lost,
        }
    }

    fn is_free(&self, now_ms: u64, variant: Variant) -> bool {
        match variant {
            Variant::MarkSetAfterwards => !self.is_marked,
            Variant::SweeperDecides => self.holder.is_none(),
            _ => self.holder.is_none() || self.expires_ms <= now_ms,
        }
    }

    pub fn granted(&self) -> Option<(GrantId, u64)> {
        (self.grants > 0).then_some((self.grants, self.token))
    }

    /// The time left as the caller will count it. One that compares the timestamp with a slow clock counts more.
    fn left_ms(&self, now_ms: u64, client: u8, variant: Variant) -> u64 {
        let left_ms = self.expires_ms - now_ms;
        match variant {
            Variant::TimestampCompared => left_ms.saturating_add_signed(-variant.wall_ahead_ms(client)),
            _ => left_ms,
        }
    }

    pub fn expired(&self, now_ms: u64) -> Option<u64> {
        (self.holder.is_some() && self.expires_ms <= now_ms).then_some(self.token)
    }
}
