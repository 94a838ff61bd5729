//! Many watchers, each with a connection of its own, and one change at a time. Measured is the time from before
//! the change is requested until the last watcher has it. Undoing the change is not part of the time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use solehold_api::{paths, sse};
use solehold_client::{
    HttpConfig, LOCK_KIND, Locks,
    pool::{Call, Effect, Method, Pool, PoolOptions, Response},
};
use tokio::{sync::watch, task::JoinSet, time::timeout};

use super::{
    etcd::{EtcdClient, LeaseNumber, Watch},
    ours,
    servers::Servers,
    system::System,
};
use crate::round::{Round, Turn, Turned, measure};

pub const SYSTEMS: &[System] = &[System::Embedded, System::Postgres, System::Etcd];

const KEY: &str = "watched";
/// How long a change may take to reach all of them.
const PATIENCE: Duration = Duration::from_secs(30);
/// Connections that are opened side by side.
const OPENED_AT_ONCE: usize = 50;

pub async fn round(servers: &Servers, system: System, watchers: usize, duration: Duration) -> Result<Round> {
    let meter = servers.meter(system)?;
    let mut audience = Audience::new(watchers);
    if system.is_ours() {
        let server = servers.ours(system)?;
        let pool = Arc::new(pool(server.server.url())?);
        audience.open(async |seen| Ok(follow_ours(open_ours(&pool).await?, seen))).await?;
        let task = OurChange { locks: server.locks.clone(), audience };
        return measure(&meter, vec![task], duration).await;
    }
    let server = servers.etcd()?;
    let mut client = server.client.clone();
    let lease = client.grant(ours::TTL).await?;
    audience
        .open(async |seen| {
            let mut client = server.connect().await?;
            let watch = client.watch(KEY).await?;
            Ok(follow_etcd(client, watch, seen))
        })
        .await?;
    measure(&meter, vec![EtcdChange { client, lease, audience }], duration).await
}

/// All watchers, and what they have seen.
struct Audience {
    watchers: JoinSet<Result<()>>,
    seen: Seen,
    /// Changes that were made.
    changes: u64,
}

/// What all watchers have seen together.
#[derive(Clone)]
struct Seen {
    watchers: u64,
    changes: Arc<AtomicU64>,
    /// Changes that all of them have seen.
    by_all: watch::Sender<u64>,
}

impl Seen {
    /// One watcher has seen one more. There is one change at a time, so they need not be told apart.
    fn one(&self) {
        let seen = self.changes.fetch_add(1, Ordering::SeqCst) + 1;
        if seen.is_multiple_of(self.watchers) {
            self.by_all.send_replace(seen / self.watchers);
        }
    }
}

impl Audience {
    fn new(watchers: usize) -> Self {
        let seen = Seen { watchers: watchers as u64, changes: Arc::default(), by_all: watch::Sender::new(0) };
        Self { watchers: JoinSet::new(), seen, changes: 0 }
    }

    /// Opens the streams, and follows each in a task.
    async fn open<F>(&mut self, open: impl AsyncFn(Seen) -> Result<F>) -> Result<()>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let mut left = self.seen.watchers as usize;
        while left > 0 {
            let count = left.min(OPENED_AT_ONCE);
            left -= count;
            let opening = (0..count).map(|_| open(self.seen.clone()));
            for watcher in futures_util::future::try_join_all(opening).await? {
                self.watchers.spawn(watcher);
            }
        }
        Ok(())
    }

    /// Waits until all have seen one change more.
    async fn sees_one(&mut self) -> Result<()> {
        self.changes += 1;
        let mut by_all = self.seen.by_all.subscribe();
        tokio::select! {
            seen = timeout(PATIENCE, by_all.wait_for(|seen| *seen >= self.changes)) => {
                seen.with_context(|| format!("not all watchers saw a change in {PATIENCE:?}"))??;
                Ok(())
            }
            Some(ended) = self.watchers.join_next() => {
                ended.context("a watcher ended badly")??;
                Err(anyhow!("a watch has ended"))
            }
        }
    }
}

fn pool(url: &str) -> Result<Pool> {
    let effect = |_: &_| Effect::Settled;
    let options =
        PoolOptions { connect_timeout: Some(PATIENCE), user_agent: "solehold-bench", races: false, effect };
    Ok(Pool::new(&HttpConfig::new([url]), options)?)
}

/// Opens a watch, and reads the snapshot that it begins with.
async fn open_ours(pool: &Pool) -> Result<(Response, sse::Decoder)> {
    let mut call = Call::new(Method::GET, paths::WATCH.to_owned(), PATIENCE);
    call.query.push(("kind", LOCK_KIND.to_owned()));
    let response = pool.stream(&call).await.map_err(|failures| anyhow!("opening a watch: {failures:?}"))?;
    let mut watch = (response, sse::Decoder::default());
    loop {
        let frames = next_frames(&mut watch).await?;
        let is_last = |frame: &sse::Frame| !is(frame, "snapshot") || frame.data.contains("\"more\":false");
        if frames.iter().any(is_last) {
            return Ok(watch);
        }
    }
}

async fn next_frames((response, decoder): &mut (Response, sse::Decoder)) -> Result<Vec<sse::Frame>> {
    let piece = response.chunk().await?.context("the server closed a watch")?;
    Ok(decoder.push(&piece)?)
}

fn is(frame: &sse::Frame, event: &str) -> bool {
    frame.event.as_deref() == Some(event)
}

async fn follow_ours(mut watch: (Response, sse::Decoder), seen: Seen) -> Result<()> {
    loop {
        for frame in next_frames(&mut watch).await? {
            if is(&frame, "event") {
                seen.one();
            }
        }
    }
}

async fn follow_etcd(_client: EtcdClient, mut watch: Watch, seen: Seen) -> Result<()> {
    loop {
        for _ in 0..watch.next().await? {
            seen.one();
        }
    }
}

struct OurChange {
    locks: Locks,
    audience: Audience,
}

impl Turn for OurChange {
    async fn turn(&mut self) -> Result<Turned> {
        let began = Instant::now();
        let guard = self.locks.try_acquire(KEY).await?;
        self.audience.sees_one().await?;
        let latency = began.elapsed();
        guard.release().await?;
        self.audience.sees_one().await?;
        Ok(Turned { units: 1, latency, aside: began.elapsed() - latency })
    }
}

struct EtcdChange {
    client: EtcdClient,
    lease: LeaseNumber,
    audience: Audience,
}

impl Turn for EtcdChange {
    async fn turn(&mut self) -> Result<Turned> {
        let began = Instant::now();
        self.client.create(KEY, "bench", self.lease).await?;
        self.audience.sees_one().await?;
        let latency = began.elapsed();
        self.client.delete(KEY).await?;
        self.audience.sees_one().await?;
        Ok(Turned { units: 1, latency, aside: began.elapsed() - latency })
    }
}
