//! Through `solehold-client`: locks of one session that all tasks share.

use std::time::Instant;

use anyhow::Result;
use solehold_client::Locks;

use super::Keys;
use crate::round::{Turn, Turned};

pub struct Cycle {
    locks: Locks,
    keys: Keys,
}

impl Cycle {
    pub fn new(locks: &Locks, keys: Keys) -> Self {
        Self { locks: locks.clone(), keys }
    }
}

impl Turn for Cycle {
    async fn turn(&mut self) -> Result<Turned> {
        let began = Instant::now();
        let guard = self.locks.try_acquire(self.keys.next()).await?;
        let latency = began.elapsed();
        guard.release().await?;
        Ok(Turned::whole(1, latency))
    }
}
