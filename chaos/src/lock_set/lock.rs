//! The locks: ours, and the one that etcd's clients make of a lease and a key.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use solehold_client::{ClientSession, Guard, Http, SessionConfig};
use tokio::{task::JoinHandle, time::interval};

use super::TTL;

/// The resource.
pub const KIND: &str = "lock";
/// Its key.
pub const KEY: &str = "set";

/// How long to wait for the lock at a time.
const WAIT: Duration = Duration::from_secs(10);
/// How often a client of etcd asks for a key that is there.
const POLL: Duration = Duration::from_millis(50);

/// A lock whose holder loses it when it does not renew it.
pub trait Lock {
    type Held;

    async fn acquire(&self) -> Result<Self::Held>;
    /// What a gate can compare; 0 if there is nothing.
    fn token(&self, held: &Self::Held) -> u64;
    /// Releases it. A lock that was lost meanwhile counts as released.
    async fn release(&self, held: Self::Held);
}

pub struct OurLock(ClientSession);

impl OurLock {
    pub async fn open(url: &str, name: &str) -> Result<Self> {
        let config = SessionConfig { ttl: TTL, ..SessionConfig::new(name) };
        Ok(Self(ClientSession::open(Arc::new(Http::to(url)?), config).await?))
    }
}

impl Lock for OurLock {
    type Held = Guard;

    async fn acquire(&self) -> Result<Guard> {
        Ok(self.0.acquire_within(KIND, KEY, WAIT).await?)
    }

    fn token(&self, held: &Guard) -> u64 {
        held.token().0
    }

    async fn release(&self, held: Guard) {
        let _ = held.release().await;
    }
}

/// By etcd's gateway from JSON to gRPC: a lease, a key under it that is created if absent, and a renewal every third of
/// the ttl.
pub struct EtcdLock {
    client: reqwest::Client,
    url: String,
}

/// A lease with the key. It is renewed until it is dropped.
pub struct EtcdLease {
    id: String,
    renewals: JoinHandle<()>,
}

impl Drop for EtcdLease {
    fn drop(&mut self) {
        self.renewals.abort();
    }
}

/// `set` in base64, which the gateway wants.
const KEY_BASE64: &str = "c2V0";

impl EtcdLock {
    pub fn new(url: &str) -> Result<Self> {
        let client = reqwest::Client::builder().timeout(WAIT).build()?;
        Ok(Self { client, url: url.to_owned() })
    }

    async fn ask(client: &reqwest::Client, url: &str, path: &str, body: &Value) -> Result<Value> {
        let response = client.post(format!("{url}/v3/{path}")).json(body).send().await?;
        let status = response.status();
        let text = response.text().await?;
        ensure!(status.is_success(), "etcd answered {path} with {status}: {text}");
        serde_json::from_str(&text).with_context(|| format!("etcd's answer to {path}: {text}"))
    }

    async fn grant(&self) -> Result<EtcdLease> {
        let body = json!({ "TTL": TTL.as_secs().to_string() });
        let granted = Self::ask(&self.client, &self.url, "lease/grant", &body).await?;
        let id = granted["ID"].as_str().context("etcd granted no lease")?.to_owned();
        let client = self.client.clone();
        let url = self.url.clone();
        let body = json!({ "ID": id });
        let renewals = tokio::spawn(async move {
            let mut every = interval(TTL / 3);
            loop {
                every.tick().await;
                // etcd's own client ignores failures here, too: a caller that wants to know asks about the lease.
                let _ = Self::ask(&client, &url, "lease/keepalive", &body).await;
            }
        });
        Ok(EtcdLease { id, renewals })
    }

    /// Whether the key was absent and is there now.
    async fn create(&self, lease: &EtcdLease) -> Result<bool> {
        let body = json!({
            "compare": [{ "key": KEY_BASE64, "target": "CREATE", "result": "EQUAL", "createRevision": "0" }],
            "success": [{ "requestPut": { "key": KEY_BASE64, "value": KEY_BASE64, "lease": lease.id } }],
        });
        let created = Self::ask(&self.client, &self.url, "kv/txn", &body).await?;
        Ok(created["succeeded"].as_bool().unwrap_or(false))
    }
}

impl Lock for EtcdLock {
    type Held = EtcdLease;

    async fn acquire(&self) -> Result<EtcdLease> {
        let mut poll = interval(POLL);
        let mut lease = self.grant().await?;
        loop {
            poll.tick().await;
            match self.create(&lease).await {
                Ok(true) => return Ok(lease),
                Ok(false) => {}
                // The lease ran out while this client was paused.
                Err(_) => lease = self.grant().await?,
            }
        }
    }

    fn token(&self, _: &EtcdLease) -> u64 {
        0
    }

    async fn release(&self, held: EtcdLease) {
        let _ = Self::ask(&self.client, &self.url, "lease/revoke", &json!({ "ID": held.id })).await;
    }
}
