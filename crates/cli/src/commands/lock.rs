//! `solehold lock ls`: who holds which lock, and who waits for it.

use solehold_api::{
    locks::{Lock, LockList},
    paths,
};

use crate::{
    client::Client,
    error::{CommandResult, Doing},
    global::GlobalArgs,
    human::duration_ms,
    output::{self, or_dash},
};

/// Lists the locks that are held or waited for.
pub async fn ls(client: &Client, global: &GlobalArgs) -> CommandResult {
    let locks = client.list::<LockList>(&paths::locks(), &[], None).await.doing("list the locks")?;
    output::list(global, "locks", &locks, "no locks are held", table)
}

/// A row for each lock, and below it one for each of the first in line.
fn table(locks: &[Lock]) -> String {
    let mut rows = Vec::new();
    for lock in locks {
        let lease = lock.lease.as_ref();
        let expires = match (lease, lock.held_back_ms) {
            (Some(lease), _) => format!("in {}", duration_ms(lease.ttl_ms)),
            (None, 0) => "-".to_owned(),
            (None, ms) => format!("held back {}", duration_ms(ms)),
        };
        let since = lease.map(|lease| lease.acquired_at);
        let holder = or_dash(lease.map(|l| &l.holder));
        let token = or_dash(lease.map(|l| l.token));
        if lock.shared.is_empty() {
            rows.push([lock.name.clone(), holder, token, or_dash(since), expires, lock.waiting.to_string()]);
        }
        for lease in &lock.shared {
            rows.push([
                lock.name.clone(),
                format!("{} (slot {} of {})", lease.holder, or_dash(lease.slot), or_dash(lease.slots)),
                lease.token.to_string(),
                lease.acquired_at.to_string(),
                format!("in {}", duration_ms(lease.ttl_ms)),
                lock.waiting.to_string(),
            ]);
        }
        for waiter in &lock.waiters {
            let dash = || "-".to_owned();
            rows.push([
                String::new(),
                format!("{} waits", waiter.holder),
                dash(),
                waiter.since.to_string(),
                dash(),
                String::new(),
            ]);
        }
    }
    output::table(["LOCK", "HOLDER", "TOKEN", "SINCE", "EXPIRES", "WAITING"], &["TOKEN", "WAITING"], rows)
}
