//! A batch: a thousand leases in one request, beside as many rows in one statement. Both are made by one task, and the
//! release is not part of the time.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use solehold_api::paths;
use solehold_client::{Http, ResourceName, SessionId};
use tokio_postgres::{Client, Statement};

use super::{
    ours,
    servers::{Ours, Servers},
    system::System,
};
use crate::round::{Round, Turn, Turned, measure};

pub const SYSTEMS: &[System] = &[System::Embedded, System::Postgres, System::Sql];
/// As many as one request may have.
pub const LEASES: usize = 1_000;

const KIND: &str = "bench";
const HOLDER: &str = "bench-batch";
const ACQUIRE: &str = "UPDATE solehold_bench_hand_written.scene_leases
    SET holder_id = $2, expires_at = NOW() + INTERVAL '30 seconds', version = version + 1
    WHERE scene_id = ANY($1) AND (holder_id IS NULL OR expires_at < NOW())
    RETURNING scene_id, version, expires_at::text";
const RELEASE: &str = "UPDATE solehold_bench_hand_written.scene_leases
    SET holder_id = NULL, expires_at = NULL WHERE scene_id = ANY($1) AND holder_id = $2";

/// The names of the resources, which are declared, and of the rows, which are there.
pub fn names() -> impl Iterator<Item = String> {
    (0..LEASES).map(|number| format!("batch-{number}"))
}

pub async fn round(servers: &Servers, system: System, duration: Duration) -> Result<Round> {
    let meter = servers.meter(system)?;
    if system.is_ours() {
        let server = servers.ours(system)?;
        let session = *server.batches.get_or_try_init(|| prepare(server)).await?;
        let resources = names().map(|name| ResourceName::new(KIND, name)).collect::<Result<_, _>>()?;
        let task = OurBatch { authority: server.authority.clone(), session, resources };
        return measure(&meter, vec![task], duration).await;
    }
    let client = servers.sql().await?;
    let acquire = client.prepare(ACQUIRE).await?;
    let release = client.prepare(RELEASE).await?;
    let task = SqlBatch { client, acquire, release, names: names().collect() };
    measure(&meter, vec![task], duration).await
}

/// Declares the resources and opens a session.
async fn prepare(server: &Ours) -> Result<SessionId> {
    for name in names() {
        let path = paths::resource(KIND, &name);
        ours::done(server.authority.put(path, &serde_json::json!({})).await)?;
    }
    ours::open(&server.authority, HOLDER).await
}

struct OurBatch {
    authority: Arc<Http>,
    session: SessionId,
    resources: Vec<ResourceName>,
}

impl Turn for OurBatch {
    async fn turn(&mut self) -> Result<Turned> {
        let prepared = Instant::now();
        let acquires = ours::acquires(&self.resources, HOLDER, self.session)?;
        let began = Instant::now();
        let held = ours::acquire(&self.authority, acquires).await?;
        let latency = began.elapsed();
        ours::release(&self.authority, held).await?;
        Ok(Turned { units: LEASES as u64, latency, aside: prepared.elapsed() - latency })
    }
}

struct SqlBatch {
    client: Client,
    acquire: Statement,
    release: Statement,
    names: Vec<String>,
}

impl Turn for SqlBatch {
    async fn turn(&mut self) -> Result<Turned> {
        let began = Instant::now();
        let rows = self.client.query(&self.acquire, &[&self.names, &HOLDER]).await?;
        let latency = began.elapsed();
        ensure!(rows.len() == LEASES, "{} of {LEASES} rows were free", rows.len());
        self.client.execute(&self.release, &[&self.names, &HOLDER]).await?;
        Ok(Turned { units: LEASES as u64, latency, aside: began.elapsed() - latency })
    }
}
