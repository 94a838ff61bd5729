//! Requests that leases spent beyond [`SPENT_REQUESTS_MAX`] of one key and holder for one resource: the oldest go
//! before their time.
//!
//! Each replica counts what it has written itself, and removes the surplus when it does its housekeeping. A batch looks
//! nothing up: under an old snapshot that would be a walk over all that was removed before.

use std::collections::HashMap;

use solehold_core::{
    key::{Name, ResourceKey},
    ledger::{Dirty, Ledger},
    limits::SPENT_REQUESTS_MAX,
};

use crate::postgres::{
    PostgresStore, batch::wanted::of_keys, connection::pool::Conn, fault::Fault, statements::Sql,
    tables::part::Param,
};

/// Most users that are counted; past it, counting starts over.
const COUNTED_MAX: usize = 16_384;
/// Most users that one statement looks at, and most requests that it removes of each.
const USERS_MAX: usize = 64;
const REMOVED_MAX: i64 = 256;

/// Whose requests count together: those of a holder for a resource, by a key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct User {
    resource: ResourceKey,
    holder: Name,
    by: Option<Name>,
}

/// How many requests of each user this replica has written since the surplus was last removed.
#[derive(Debug, Default)]
pub(crate) struct SpentRequests(HashMap<User, usize>);

impl SpentRequests {
    /// Takes note of the requests that a batch has written.
    pub(crate) fn note(&mut self, state: &Ledger, dirty: &Dirty) {
        for request in &dirty.requests {
            let Some(spent) = state.spent(request).filter(|spent| !spent.cancelled) else { continue };
            if self.0.len() >= COUNTED_MAX {
                self.0.clear();
            }
            let resource = request.resource.clone();
            let holder = request.holder.clone();
            *self.0.entry(User { resource, holder, by: spent.by.clone() }).or_default() += 1;
        }
    }

    /// The users that may have a surplus, some of them. They are counted again.
    fn take_surplus(&mut self) -> Vec<User> {
        let has_surplus = |count: usize| count >= SPENT_REQUESTS_MAX;
        let users = self.0.iter().filter(|(_, count)| has_surplus(**count)).map(|(user, _)| user.clone());
        let users: Vec<_> = users.take(USERS_MAX).collect();
        for user in &users {
            self.0.remove(user);
        }
        users
    }
}

impl PostgresStore {
    /// Removes the surplus of what this replica has written.
    pub(crate) async fn forget_surplus(&self, conn: &Conn) -> Result<(), Fault> {
        let users = self.spent.lock().take_surplus();
        if users.is_empty() {
            return Ok(());
        }
        let [tenants, kinds, keys] = of_keys(users.iter().map(|user| &user.resource));
        let holders: Vec<&str> = users.iter().map(|user| user.holder.as_str()).collect();
        let by: Vec<Option<&str>> = users.iter().map(|user| user.by.as_ref().map(Name::as_str)).collect();
        let kept = SPENT_REQUESTS_MAX as i64;
        let params: [Param<'_>; 7] = [&tenants, &kinds, &keys, &holders, &by, &kept, &REMOVED_MAX];
        match conn.execute(Sql::ForgetSurplus, &params).await {
            // A conflict: they are counted again, and are deleted at the latest when their hour is over.
            Err(fault) if !fault.is_contention() => Err(fault),
            _ => Ok(()),
        }
    }
}
