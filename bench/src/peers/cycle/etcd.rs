//! etcd: a key that is created if absent, under a lease.

use std::time::Instant;

use anyhow::Result;

use super::{Keys, TTL};
use crate::{
    peers::etcd::{EtcdClient, LeaseNumber},
    round::{Turn, Turned},
};

/// Each lock has a lease of its own, and so a time to live of its own.
pub struct LeaseCycle {
    client: EtcdClient,
    keys: Keys,
}

impl LeaseCycle {
    pub fn new(client: &EtcdClient, keys: Keys) -> Self {
        Self { client: client.clone(), keys }
    }
}

impl Turn for LeaseCycle {
    async fn turn(&mut self) -> Result<Turned> {
        let began = Instant::now();
        let lease = self.client.grant(TTL).await?;
        self.client.create(self.keys.next(), "bench", lease).await?;
        let latency = began.elapsed();
        self.client.revoke(lease).await?;
        Ok(Turned::whole(1, latency))
    }
}

/// All locks are under one lease, as those of a session of its Go client.
pub struct KeyCycle {
    client: EtcdClient,
    lease: LeaseNumber,
    keys: Keys,
}

impl KeyCycle {
    pub fn new(client: &EtcdClient, lease: LeaseNumber, keys: Keys) -> Self {
        Self { client: client.clone(), lease, keys }
    }
}

impl Turn for KeyCycle {
    async fn turn(&mut self) -> Result<Turned> {
        let key = self.keys.next();
        let began = Instant::now();
        self.client.create(key, "bench", self.lease).await?;
        let latency = began.elapsed();
        self.client.delete(key).await?;
        Ok(Turned::whole(1, latency))
    }
}
