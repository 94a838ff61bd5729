//! Spent requests beyond [`SPENT_REQUESTS_MAX`] of one holder for one resource: the oldest go before their time.
//!
//! Each replica counts what it has written itself, and removes the surplus when it does its housekeeping. A batch looks
//! nothing up: under an old snapshot that would be a walk over all that was removed before.

use std::collections::HashMap;

use solehold_core::{
    key::{Name, ResourceKey},
    ledger::{Dirty, Ledger},
    limits::SPENT_REQUESTS_MAX,
};

use crate::postgres::{PostgresStore, connection::pool::Conn, fault::Fault, statements::Sql};

/// Most pairs of a resource and a holder that are counted; past it, counting begins anew.
const COUNTED_MAX: usize = 16_384;
/// Most pairs that one statement looks at, and most requests that it removes of each.
const PAIRS_MAX: usize = 64;
const REMOVED_MAX: i64 = 256;

/// How many requests of each holder for each resource this replica has written since the surplus was last removed.
#[derive(Debug, Default)]
pub(crate) struct SpentRequests(HashMap<(ResourceKey, Name), usize>);

impl SpentRequests {
    /// Takes note of the requests that a batch has written.
    pub(crate) fn note(&mut self, state: &Ledger, dirty: &Dirty) {
        for request in dirty.requests.iter().filter(|request| state.spent_until(request).is_some()) {
            if self.0.len() >= COUNTED_MAX {
                self.0.clear();
            }
            *self.0.entry((request.resource.clone(), request.holder.clone())).or_default() += 1;
        }
    }

    /// The pairs that may have a surplus, some of them. They are counted anew.
    fn take_surplus(&mut self) -> Vec<(ResourceKey, Name)> {
        let has_surplus = |count: usize| count >= SPENT_REQUESTS_MAX;
        let pairs = self.0.iter().filter(|(_, count)| has_surplus(**count)).map(|(pair, _)| pair.clone());
        let pairs: Vec<_> = pairs.take(PAIRS_MAX).collect();
        for pair in &pairs {
            self.0.remove(pair);
        }
        pairs
    }
}

impl PostgresStore {
    /// Removes the surplus of what this replica has written.
    pub(crate) async fn forget_surplus(&self, conn: &Conn) -> Result<(), Fault> {
        let pairs = self.spent.lock().take_surplus();
        if pairs.is_empty() {
            return Ok(());
        }
        let column = |of: fn(&(ResourceKey, Name)) -> &Name| -> Vec<&str> {
            pairs.iter().map(|pair| of(pair).as_str()).collect()
        };
        let (tenants, kinds) = (column(|(key, _)| &key.tenant), column(|(key, _)| &key.kind));
        let (keys, holders) = (column(|(key, _)| &key.key), column(|(_, holder)| holder));
        let kept = SPENT_REQUESTS_MAX as i64;
        match conn
            .execute(Sql::ForgetSurplus, &[&tenants, &kinds, &keys, &holders, &kept, &REMOVED_MAX])
            .await
        {
            // Someone was in the way: they are counted anew, and go at the latest when their hour is over.
            Err(fault) if !fault.is_contention() => Err(fault),
            _ => Ok(()),
        }
    }
}
