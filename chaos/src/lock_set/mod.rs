//! The lock-set workload of Jepsen's tests of etcd: clients take one lock, read a set, work, and write it back with one
//! element more. A client that is paused for longer than its lease writes back what it read long ago, and everything
//! that others have added meanwhile is lost.
//!
//! The clients are the same for all; what differs is the lock, and whether the store is behind a gate. They do not look
//! at their lease again before they write: that makes the window smaller and does not close it.

mod client;
mod lock;
mod store;

use std::{fs, net::SocketAddr, path::Path, path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use futures_util::future::{join_all, try_join_all};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use solehold_clock::{AlarmClock as _, BootClock, BootTime};
use solehold_testkit::{Solehold, TempDir, free_port};

pub use self::{
    client::{ClientOptions, run as run_client},
    store::{StoreOptions, run as run_store},
};
use crate::{etcd, process::Process};

/// How long a lock outlives a client that is paused, as in Jepsen's test.
pub const TTL: Duration = Duration::from_secs(2);

const CLIENTS: usize = 5;
/// How long a client is paused, in milliseconds: beyond the ttl.
const PAUSE_MS: std::ops::Range<u64> = 2_500..4_000;
/// How long it runs between two pauses.
const RUN_MS: std::ops::Range<u64> = 500..4_000;

/// Which lock, and what is in front of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    Etcd,
    Unfenced,
    Fenced,
}

impl Subject {
    pub const ALL: [Self; 3] = [Self::Etcd, Self::Unfenced, Self::Fenced];

    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd: a key under a lease, created if absent",
            Self::Unfenced => "Solehold without a gate",
            Self::Fenced => "Solehold, the store behind its gate",
        }
    }
}

/// What became of the updates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Updates {
    pub acknowledged: usize,
    pub refused: usize,
    pub lost: usize,
}

/// Runs the workload; none if the subject is not installed.
pub async fn run(program: &Path, subject: Subject, lasts: Duration, seed: u64) -> Result<Option<Updates>> {
    let folder = TempDir::new()?;
    let authority = match subject {
        Subject::Etcd if !etcd::is_installed() => return Ok(None),
        Subject::Etcd => Authority::Etcd(etcd::EtcdServer::start().await?),
        Subject::Unfenced | Subject::Fenced => Authority::Ours(Solehold::builder().start().await?),
    };
    let (option, url) = authority.option();
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    let mut arguments = vec!["lock-set-store".to_owned(), "--listen".to_owned(), listen.to_string()];
    if subject == Subject::Fenced {
        arguments.extend(["--servers".to_owned(), url.clone()]);
    }
    let mut store = Process::new("store", program, arguments, store::READY);
    store.start().await?;
    let address = format!("http://{listen}");
    let mut clients: Vec<Client> = (1..=CLIENTS)
        .map(|number| Client::new(program, folder.path(), number, [option, &url], &address))
        .collect();
    try_join_all(clients.iter_mut().map(|client| client.process.start())).await?;
    pause_at_random(&clients, lasts, seed).await?;
    let ended = join_all(clients.iter_mut().map(|client| client.process.terminate())).await;
    ended.into_iter().collect::<Result<Vec<()>>>()?;
    let kept = store::StoreClient::new(&address)?.read().await?;
    let mut updates = Updates::default();
    for client in &clients {
        let log = fs::read_to_string(&client.log).with_context(|| format!("{}", client.log.display()))?;
        let added = log.lines().filter_map(|line| line.strip_prefix("added ")?.parse::<u64>().ok());
        let added: Vec<u64> = added.collect();
        updates.acknowledged += added.len();
        updates.lost += added.iter().filter(|element| !kept.contains(element)).count();
        updates.refused += log.lines().filter(|line| *line == "refused").count();
    }
    Ok(Some(updates))
}

/// The service that grants the lock. It ends with this value.
enum Authority {
    Ours(Solehold),
    Etcd(etcd::EtcdServer),
}

impl Authority {
    /// How a client is told of it.
    fn option(&self) -> (&'static str, String) {
        match self {
            Self::Ours(server) => ("--solehold", server.url().to_owned()),
            Self::Etcd(server) => ("--etcd", server.url().to_owned()),
        }
    }
}

struct Client {
    process: Process,
    log: PathBuf,
}

impl Client {
    fn new(program: &Path, folder: &Path, number: usize, authority: [&str; 2], store: &str) -> Self {
        let log = folder.join(format!("client-{number}"));
        let name = format!("client-{number}");
        let [option, url] = authority;
        let mut arguments: Vec<String> =
            ["lock-set-client", "--name", &name, option, url, "--store", store].map(str::to_owned).into();
        arguments.extend(["--log".to_owned(), log.display().to_string()]);
        Self { process: Process::new("lock-set-client", program, arguments, client::READY), log }
    }
}

/// Lets each client run for a moment and pauses it for longer than its lease lasts, again and again.
async fn pause_at_random(clients: &[Client], lasts: Duration, seed: u64) -> Result<()> {
    let until = BootTime::now().plus(lasts);
    let pauses = clients.iter().zip(0..).map(|(client, number)| async move {
        let mut chance = StdRng::seed_from_u64(seed.wrapping_add(number));
        let mut for_ms = |range| Duration::from_millis(chance.random_range(range));
        let program = client.process.program()?;
        while BootTime::now() < until {
            BootClock.wait_until(BootTime::now().plus(for_ms(RUN_MS))).await;
            program.pause().await?;
            BootClock.wait_until(BootTime::now().plus(for_ms(PAUSE_MS))).await;
            program.resume()?;
        }
        anyhow::Ok(())
    });
    try_join_all(pauses).await.map(drop)
}
