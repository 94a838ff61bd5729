//! A server, the client that must not suffer, and the measure of both.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use reqwest::Client;
use serde_json::{Value, json};
use solehold_testkit::{Solehold, wait_for};
use tokio::task::JoinHandle;

use crate::common::{SOON, server};

/// How often the honest client renews. Its ttl leaves room for a machine that has much else to do.
const RENEW_EVERY: Duration = Duration::from_millis(100);
const TTL_SECONDS: u64 = 20;

/// A server under attack, and an honest client of it.
pub struct World {
    pub server: Solehold,
    honest: JoinHandle<Result<()>>,
    renewed: Arc<AtomicU64>,
    resident_kib: u64,
}

impl World {
    pub async fn new() -> Result<Self> {
        Self::with_idle_timeout("75s").await
    }

    /// A server that closes connections after that long, and whose bound on open files is that of this process.
    pub async fn with_idle_timeout(timeout: &str) -> Result<Self> {
        let server = server().env("SOLEHOLD_LIMITS_IDLE_TIMEOUT", timeout).start().await?;
        let renewed = Arc::new(AtomicU64::new(0));
        let honest = Honest::open(server.url()).await?;
        let honest = tokio::spawn(honest.renew(renewed.clone()));
        let mut world = Self { server, honest, renewed, resident_kib: 0 };
        world.is_served().await?;
        // From here on, the peak is that of the attack.
        fs::write(format!("/proc/{}/clear_refs", world.server.pid()?), "5")?;
        world.resident_kib = world.status_kib("VmRSS:")?;
        Ok(world)
    }

    /// The address without its scheme.
    pub fn address(&self) -> &str {
        self.server.url().trim_start_matches("http://")
    }

    /// Sees to it that the honest client is served: it renews its lease twice more, and a new client gets an answer.
    pub async fn is_served(&self) -> Result<()> {
        let before = self.renewed.load(Ordering::SeqCst);
        let goes_on =
            || async { self.honest.is_finished() || self.renewed.load(Ordering::SeqCst) >= before + 2 };
        wait_for("the honest client to renew", SOON, goes_on).await?;
        ensure!(!self.honest.is_finished(), "the honest client has lost its lease, or was not answered");
        let stranger = reqwest::get(format!("{}/readyz", self.server.url())).await?;
        ensure!(stranger.status() == 200, "a new client is answered {}", stranger.status());
        Ok(())
    }

    /// Ends an attack: the honest client is served, and the server's memory has never grown beyond `mib_max`. Prints
    /// what was seen.
    pub async fn survives(self, attack: &str, mib_max: u64) -> Result<()> {
        self.is_served().await?;
        let grown_mib = self.status_kib("VmHWM:")?.saturating_sub(self.resident_kib) / 1_024;
        println!("| {attack} | {} MiB | {grown_mib} MiB | {mib_max} MiB |", self.resident_kib / 1_024);
        ensure!(
            grown_mib <= mib_max,
            "{attack}: the server has grown by {grown_mib} MiB, more than {mib_max}"
        );
        self.honest.abort();
        Ok(())
    }

    /// The number of connections that the server has open.
    pub async fn connections(&self) -> Result<u64> {
        let metrics = reqwest::get(format!("{}/metrics", self.server.url())).await?.text().await?;
        let line = metrics.lines().find_map(|line| line.strip_prefix("solehold_connections "));
        Ok(line.context("no such metric")?.parse()?)
    }

    fn status_kib(&self, field: &str) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.server.pid()?))?;
        let line = status.lines().find_map(|line| line.strip_prefix(field)).context("no such field")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }
}

/// A client that holds a lease by a session, and renews it.
struct Honest {
    http: Client,
    heartbeat: String,
    token: Value,
}

impl Honest {
    async fn open(url: &str) -> Result<Self> {
        let http = Client::new();
        let post = async |path: &str, body: Value| -> Result<Value> {
            let answer = http.post(format!("{url}/api/v1{path}")).body(body.to_string()).send().await?;
            Ok(serde_json::from_str(&answer.error_for_status()?.text().await?)?)
        };
        let session = post("/sessions", json!({"holder": "honest", "ttl_seconds": TTL_SECONDS})).await?;
        let id = session["session_id"].as_str().context("a session")?.to_owned();
        let ask = json!({"holder": "honest", "session_id": id});
        let lease = post("/resources/job/honest/lease", ask).await?;
        let heartbeat = format!("{url}/api/v1/sessions/{id}/heartbeat");
        Ok(Self { http, heartbeat, token: lease["token"].clone() })
    }

    /// Renews for as long as the lease is the same one.
    async fn renew(self, renewed: Arc<AtomicU64>) -> Result<()> {
        let mut turns = tokio::time::interval(RENEW_EVERY);
        loop {
            turns.tick().await;
            let answer = self.http.put(&self.heartbeat).body("{}").send().await?.error_for_status()?;
            let session: Value = serde_json::from_str(&answer.text().await?)?;
            ensure!(session["leases"][0]["token"] == self.token, "the lease is gone: {session}");
            renewed.fetch_add(1, Ordering::SeqCst);
        }
    }
}
