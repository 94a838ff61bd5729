//! What is done to a world. A fault begins and, after a while, is healed; the world then has to recover.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use solehold_testkit::{Proxy, SmallDisk, wait_for};

use crate::{
    patroni,
    store::{Replication, StoreKind},
    world::{CONNECTIONS, Replica, Setup, WRITERS, World},
};

/// How far PostgreSQL's clock jumps.
const CLOCK_JUMP_SECONDS: i64 = 600;
/// How long a cut connection may keep its place in PostgreSQL.
const PLACE_WITHIN: Duration = Duration::from_secs(30);
/// How late each packet is on a slow link, each way.
const SLOW: Duration = Duration::from_millis(300);
/// How many resources are granted anew while standbys get nothing of it.
const GRANTS_UNSEEN: usize = 2;
/// What a server logs when it cannot write, and when it can again.
const DISK_IS_FULL: &str = "the journal cannot be written";
const DISK_HAS_ROOM: &str = "the journal can be written again";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Nothing,
    ServerKilled,
    ServersKilled,
    ServerPaused,
    ServersRestarted,
    WriterKilled,
    WriterPaused,
    WriterCut,
    WritersSlow,
    WriterHalfOpen,
    HeartbeatsHeld,
    WritesLate,
    GateCut,
    GateKilled,
    DatabaseCut,
    DatabaseSlow,
    DatabaseHalfOpen,
    DatabaseKilled,
    ConnectionsExhausted,
    ClockJumps,
    SynchronousPromoted,
    AsynchronousPromoted,
    PatroniPostgresKilled,
    PatroniLeaderKilled,
    PatroniLeaderPaused,
    PatroniAsynchronousKilled,
    PatroniAsynchronousPaused,
    PatroniStandbysLate,
    PatroniStandbysLateServersKilled,
    DiskFull,
    CertificatesReplaced,
    AuthorityReplaced,
    Upgraded,
}

/// What a fault is done to. Two faults of one part would undo each other. A later part needs the earlier ones to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Nothing,
    Database,
    Links,
    Servers,
    Gate,
    Writers,
}

/// What a fault was done to, until it is healed.
pub struct Wound {
    server: usize,
    writer: usize,
    /// Connections to PostgreSQL that are kept open, so that there is none left for the servers.
    connections: Vec<tokio_postgres::Client>,
    /// The node that was Patroni's leader.
    leader: Option<usize>,
}

impl Fault {
    pub const ALL: [Self; 33] = [
        Self::Nothing,
        Self::ServerKilled,
        Self::ServersKilled,
        Self::ServerPaused,
        Self::ServersRestarted,
        Self::WriterKilled,
        Self::WriterPaused,
        Self::WriterCut,
        Self::WritersSlow,
        Self::WriterHalfOpen,
        Self::HeartbeatsHeld,
        Self::WritesLate,
        Self::GateCut,
        Self::GateKilled,
        Self::DatabaseCut,
        Self::DatabaseSlow,
        Self::DatabaseHalfOpen,
        Self::DatabaseKilled,
        Self::ConnectionsExhausted,
        Self::ClockJumps,
        Self::SynchronousPromoted,
        Self::AsynchronousPromoted,
        Self::PatroniPostgresKilled,
        Self::PatroniLeaderKilled,
        Self::PatroniLeaderPaused,
        Self::PatroniAsynchronousKilled,
        Self::PatroniAsynchronousPaused,
        Self::PatroniStandbysLate,
        Self::PatroniStandbysLateServersKilled,
        Self::DiskFull,
        Self::CertificatesReplaced,
        Self::AuthorityReplaced,
        Self::Upgraded,
    ];

    /// As the table and the command line have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::ServerKilled => "one server killed",
            Self::ServersKilled => "all servers killed",
            Self::ServerPaused => "one server paused",
            Self::ServersRestarted => "servers restarted in turn",
            Self::WriterKilled => "writer killed",
            Self::WriterPaused => "writer paused",
            Self::WriterCut => "writer cut from servers",
            Self::WritersSlow => "slow links of writers",
            Self::WriterHalfOpen => "writer hears no answers",
            Self::HeartbeatsHeld => "heartbeats held back",
            Self::WritesLate => "writes late, lease lost",
            Self::GateCut => "gate cut from servers",
            Self::GateKilled => "gate killed",
            Self::DatabaseCut => "one server cut from database",
            Self::DatabaseSlow => "slow links to database",
            Self::DatabaseHalfOpen => "no answers from database",
            Self::DatabaseKilled => "PostgreSQL killed",
            Self::ConnectionsExhausted => "connections exhausted",
            Self::ClockJumps => "PostgreSQL's clock jumps",
            Self::SynchronousPromoted => "synchronous standby promoted",
            Self::AsynchronousPromoted => "asynchronous standby promoted",
            Self::PatroniPostgresKilled => "Patroni: leader's PostgreSQL killed",
            Self::PatroniLeaderKilled => "Patroni: leader killed",
            Self::PatroniLeaderPaused => "Patroni: leader paused",
            Self::PatroniAsynchronousKilled => "Patroni, asynchronous: leader killed",
            Self::PatroniAsynchronousPaused => "Patroni, asynchronous: leader paused",
            Self::PatroniStandbysLate => "Patroni, asynchronous: standbys late, leader killed",
            Self::PatroniStandbysLateServersKilled => {
                "Patroni, asynchronous: standbys late, leader and servers killed"
            }
            Self::DiskFull => "disk full",
            Self::CertificatesReplaced => "certificates replaced",
            Self::AuthorityReplaced => "certificates and authority replaced",
            Self::Upgraded => "rolling upgrade and back",
        }
    }

    /// Whether it can be done to a world only once.
    pub fn is_final(self) -> bool {
        matches!(self, Self::SynchronousPromoted | Self::AsynchronousPromoted)
    }

    /// Whether no holder may lose a lease by it.
    pub fn keeps_leases(self) -> bool {
        matches!(self, Self::CertificatesReplaced | Self::AuthorityReplaced | Self::Upgraded)
    }

    /// Whether the two can be done at once.
    pub fn goes_with(self, other: Self) -> bool {
        self.part() != other.part() && [self, other].iter().all(|fault| !fault.is_alone())
    }

    /// Whether it goes with no other, since it waits for something that another would keep from happening.
    fn is_alone(self) -> bool {
        matches!(
            self,
            Self::Nothing
                | Self::DiskFull
                | Self::CertificatesReplaced
                | Self::AuthorityReplaced
                | Self::Upgraded
                | Self::PatroniStandbysLate
                | Self::PatroniStandbysLateServersKilled
        )
    }

    /// Adds what the fault needs.
    pub fn prepare(self, setup: Setup) -> Setup {
        match self {
            Self::ClockJumps => Setup { has_own_clock: true, ..setup },
            Self::CertificatesReplaced | Self::AuthorityReplaced => Setup { has_tls: true, ..setup },
            Self::Upgraded => Setup { starts_older: true, ..setup },
            _ => Setup { store: self.store().unwrap_or(setup.store), ..setup },
        }
    }

    /// The store that it needs, unless any would do.
    fn store(self) -> Option<StoreKind> {
        use Replication::{Asynchronous, Synchronous};
        match self {
            Self::SynchronousPromoted => Some(StoreKind::Standby(Synchronous)),
            Self::AsynchronousPromoted => Some(StoreKind::Standby(Asynchronous)),
            Self::PatroniPostgresKilled | Self::PatroniLeaderKilled | Self::PatroniLeaderPaused => {
                Some(StoreKind::Patroni(Synchronous))
            }
            Self::PatroniAsynchronousKilled
            | Self::PatroniAsynchronousPaused
            | Self::PatroniStandbysLate
            | Self::PatroniStandbysLateServersKilled => Some(StoreKind::Patroni(Asynchronous)),
            Self::DiskFull => Some(StoreKind::Embedded),
            _ => None,
        }
    }

    /// What this machine lacks for it, if anything.
    pub fn lacks(self, setup: &Setup) -> Option<String> {
        if self == Self::Upgraded && setup.older.is_none() {
            return Some("no older version: --older FILE".to_owned());
        }
        match self.store()? {
            StoreKind::Patroni(_) => {
                let packages = patroni::missing_packages();
                let is_missing = !packages.is_empty();
                is_missing.then(|| format!("not installed (Debian's packages): {}", packages.join(", ")))
            }
            StoreKind::Embedded => SmallDisk::mount(1 << 20).err().map(|error| format!("{error:#}")),
            StoreKind::Alone | StoreKind::Standby(_) => None,
        }
    }

    /// What it is done to.
    pub fn part(self) -> Part {
        match self {
            Self::Nothing => Part::Nothing,
            Self::ServerKilled
            | Self::ServersKilled
            | Self::ServerPaused
            | Self::ServersRestarted
            | Self::CertificatesReplaced
            | Self::AuthorityReplaced
            | Self::Upgraded => Part::Servers,
            Self::WriterKilled | Self::WriterPaused => Part::Writers,
            Self::WriterCut
            | Self::WritersSlow
            | Self::WriterHalfOpen
            | Self::HeartbeatsHeld
            | Self::WritesLate => Part::Links,
            Self::GateCut | Self::GateKilled => Part::Gate,
            Self::DatabaseCut
            | Self::DatabaseSlow
            | Self::DatabaseHalfOpen
            | Self::DatabaseKilled
            | Self::ConnectionsExhausted
            | Self::ClockJumps
            | Self::SynchronousPromoted
            | Self::AsynchronousPromoted
            | Self::PatroniPostgresKilled
            | Self::PatroniLeaderKilled
            | Self::PatroniLeaderPaused
            | Self::PatroniAsynchronousKilled
            | Self::PatroniAsynchronousPaused
            | Self::PatroniStandbysLate
            | Self::PatroniStandbysLateServersKilled
            | Self::DiskFull => Part::Database,
        }
    }

    /// Begins. `turn` counts the times, so that it is another server's turn each time. The writer is one that holds
    /// something, as otherwise nothing would happen.
    pub async fn begin(self, world: &mut World, turn: usize) -> Result<Wound> {
        let server = turn % world.servers.len();
        let writer = world.busiest_writer().await.unwrap_or(turn % WRITERS);
        let mut wound = Wound { server, writer, connections: Vec::new(), leader: None };
        match self {
            Self::Nothing => {}
            Self::ServerKilled => world.servers[server].kill().await?,
            Self::ServersKilled => kill_all(&mut world.servers).await?,
            Self::ServerPaused => world.servers[server].program()?.pause().await?,
            Self::ServersRestarted => {
                for server in &mut world.servers {
                    server.restart().await?;
                }
            }
            Self::WriterKilled => world.writers[writer].client.process.kill().await?,
            Self::WriterPaused => world.writers[writer].client.process.program()?.pause().await?,
            Self::WriterCut => cut(&world.writers[writer].client.servers).await,
            Self::WritersSlow => writer_links(world).for_each(|link| link.latency(SLOW)),
            Self::WriterHalfOpen => {
                world.writers[writer].client.servers.iter().for_each(Proxy::stall_responses)
            }
            Self::HeartbeatsHeld => {
                world.writers[writer].client.servers.iter().for_each(|link| link.hold_requests("/heartbeat"));
            }
            Self::WritesLate => {
                world.writers[writer].sink.stall();
                cut(&world.writers[writer].client.servers).await;
            }
            Self::GateCut => cut(&world.gate.servers).await,
            Self::GateKilled => world.gate.process.kill().await?,
            Self::DatabaseCut => cut(&world.servers[server].database).await,
            Self::DatabaseSlow => database_links(world).for_each(|link| link.latency(SLOW)),
            Self::DatabaseHalfOpen => database_links(world).for_each(Proxy::stall_responses),
            Self::DatabaseKilled => world.store.primary()?.kill9().await?,
            Self::ConnectionsExhausted => wound.connections = exhaust(world).await?,
            Self::ClockJumps => {
                let sign = if turn.is_multiple_of(2) { 1 } else { -1 };
                world.store.primary()?.set_clock_offset(sign * CLOCK_JUMP_SECONDS)?;
            }
            Self::SynchronousPromoted | Self::AsynchronousPromoted => {
                world.store.primary()?.kill9().await?;
                world.store.standby()?.promote().await?;
            }
            Self::PatroniPostgresKilled
            | Self::PatroniLeaderKilled
            | Self::PatroniLeaderPaused
            | Self::PatroniAsynchronousKilled
            | Self::PatroniAsynchronousPaused
            | Self::PatroniStandbysLate
            | Self::PatroniStandbysLateServersKilled => {
                wound.leader = Some(self.begin_at_leader(world).await?)
            }
            Self::CertificatesReplaced => world.replace_certificates().await?,
            Self::AuthorityReplaced => world.add_authority().await?,
            Self::Upgraded => world.upgrade().await?,
            Self::DiskFull => {
                let stops = world.printed(DISK_IS_FULL);
                world.store.disk()?.fill()?;
                world.prints(DISK_IS_FULL, stops + 1).await?;
            }
        }
        Ok(wound)
    }

    /// Does to Patroni's leader what the fault does, and gives the number of its node.
    async fn begin_at_leader(self, world: &mut World) -> Result<usize> {
        let cluster = world.store.patroni()?;
        let leader = cluster.leader().await?;
        match self {
            Self::PatroniPostgresKilled => cluster.kill_postgres(leader).await?,
            Self::PatroniLeaderPaused | Self::PatroniAsynchronousPaused => cluster.pause(leader).await?,
            Self::PatroniStandbysLate | Self::PatroniStandbysLateServersKilled => {
                cluster.hold_replication(leader);
                world.is_granted_anew(GRANTS_UNSEEN).await?;
                let unseen = cluster.newest_event(leader).await?;
                cluster.kill(leader).await?;
                if self == Self::PatroniStandbysLateServersKilled {
                    kill_all(&mut world.servers).await?;
                }
                let next = cluster.has_failed_over(leader).await?;
                let is_kept = cluster.has_event(next, &unseen).await?;
                ensure!(!is_kept, "the failover has lost no commit, so nothing is shown");
                // They have seen nothing of what is lost. Leases of holders that have may still be live.
                start_all(&mut world.servers).await?;
            }
            _ => cluster.kill(leader).await?,
        }
        Ok(leader)
    }

    /// Waits for what the fault brings about, where that is a takeover or a failover.
    pub async fn works(self, world: &World, wound: &Wound) -> Result<()> {
        if matches!(self.part(), Part::Writers | Part::Links) && self != Self::WritersSlow {
            world.is_taken_over(wound.writer).await;
        }
        // Where PostgreSQL alone was killed, Patroni starts it again, which is quicker than a failover.
        if let Some(leader) = wound.leader.filter(|_| self != Self::PatroniPostgresKilled) {
            world.store.patroni()?.has_failed_over(leader).await?;
        }
        Ok(())
    }

    /// Ends what [`Self::begin`] began.
    pub async fn heal(self, world: &mut World, wound: Wound) -> Result<()> {
        let Wound { server, writer, connections, leader } = wound;
        drop(connections);
        match self {
            Self::Nothing
            | Self::ServersRestarted
            | Self::SynchronousPromoted
            | Self::AsynchronousPromoted => {}
            Self::ServerKilled | Self::ServersKilled => {
                start_all(&mut world.servers).await?;
            }
            Self::ServerPaused => world.servers[server].program()?.resume()?,
            Self::WriterKilled => world.writers[writer].client.process.start().await?,
            Self::WriterPaused => world.writers[writer].client.process.program()?.resume()?,
            Self::WriterCut | Self::WritersSlow | Self::WriterHalfOpen | Self::HeartbeatsHeld => {
                restore(writer_links(world)).await?;
            }
            Self::WritesLate => {
                world.writers[writer].sink.unstall();
                restore(writer_links(world)).await?;
            }
            Self::GateCut => restore(world.gate.servers.iter()).await?,
            Self::GateKilled => world.gate.process.start().await?,
            Self::DatabaseCut | Self::DatabaseSlow | Self::DatabaseHalfOpen | Self::ConnectionsExhausted => {
                restore(database_links(world)).await?;
            }
            Self::DatabaseKilled => world.store.primary()?.start_again().await?,
            Self::ClockJumps => world.store.primary()?.set_clock_offset(0)?,
            Self::CertificatesReplaced => {}
            Self::AuthorityReplaced => world.drop_authority().await?,
            Self::Upgraded => world.go_back().await?,
            Self::DiskFull => {
                let starts = world.printed(DISK_HAS_ROOM);
                world.store.disk()?.free()?;
                // Without a restart.
                world.prints(DISK_HAS_ROOM, starts + 1).await?;
            }
            Self::PatroniPostgresKilled => world.store.patroni()?.is_whole().await?,
            Self::PatroniLeaderPaused | Self::PatroniAsynchronousPaused => {
                let cluster = world.store.patroni()?;
                cluster.resume(leader.context("a leader")?)?;
                cluster.is_whole().await?;
            }
            Self::PatroniLeaderKilled
            | Self::PatroniAsynchronousKilled
            | Self::PatroniStandbysLate
            | Self::PatroniStandbysLateServersKilled => {
                let cluster = world.store.patroni()?;
                let leader = leader.context("a leader")?;
                cluster.let_replicate(leader).await?;
                cluster.start_again(leader).await?;
                cluster.is_whole().await?;
            }
        }
        Ok(())
    }
}

async fn kill_all(servers: &mut [Replica]) -> Result<()> {
    try_join_all(servers.iter_mut().map(Replica::kill)).await.map(drop)
}

/// Starts those that do not run.
async fn start_all(servers: &mut [Replica]) -> Result<()> {
    try_join_all(servers.iter_mut().map(Replica::start_again)).await.map(drop)
}

fn writer_links(world: &World) -> impl Iterator<Item = &Proxy> {
    world.writers.iter().flat_map(|writer| &writer.client.servers)
}

fn database_links(world: &World) -> impl Iterator<Item = &Proxy> {
    world.servers.iter().flat_map(|server| &server.database)
}

async fn cut(links: &[Proxy]) {
    for link in links {
        link.cut().await;
    }
}

async fn restore<'l>(links: impl Iterator<Item = &'l Proxy>) -> Result<()> {
    for link in links {
        link.restore().await?;
    }
    Ok(())
}

/// Takes every place for a connection that there is, those of the servers too, which find none when they come back.
async fn exhaust(world: &World) -> Result<Vec<tokio_postgres::Client>> {
    for link in database_links(world) {
        link.cut().await;
    }
    let mut taken = Vec::new();
    let database = world.store.primary()?;
    while taken.len() < CONNECTIONS {
        // The places of connections that were cut are free a moment later.
        let place = wait_for("a place", PLACE_WITHIN, async || database.connect().await.ok());
        taken.push(place.await?);
    }
    restore(database_links(world)).await?;
    Ok(taken)
}
