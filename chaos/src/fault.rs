//! What is done to a world. A fault begins and, after a while, is healed; the world then has to recover.

use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::future::try_join_all;
use solehold_testkit::{Proxy, wait_for};

use crate::world::{CONNECTIONS, SERVERS, Setup, Standby, WRITERS, World};

/// How far PostgreSQL's clock jumps.
const CLOCK_JUMP_SECONDS: i64 = 600;
/// How long a cut connection may keep its place in PostgreSQL.
const PLACE_WITHIN: Duration = Duration::from_secs(30);
/// How late each packet is on a slow link, each way.
const SLOW: Duration = Duration::from_millis(300);

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
}

impl Fault {
    pub const ALL: [Self; 22] = [
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
        }
    }

    /// Whether it can be done to a world only once.
    pub fn is_final(self) -> bool {
        matches!(self, Self::SynchronousPromoted | Self::AsynchronousPromoted)
    }

    /// Whether the two can be done at once.
    pub fn goes_with(self, other: Self) -> bool {
        self.part() != other.part() && self.part() != Part::Nothing && other.part() != Part::Nothing
    }

    /// Adds what the fault needs.
    pub fn prepare(self, setup: Setup) -> Setup {
        match self {
            Self::SynchronousPromoted => Setup { standby: Some(Standby::Synchronous), ..setup },
            Self::AsynchronousPromoted => Setup { standby: Some(Standby::Asynchronous), ..setup },
            Self::ClockJumps => Setup { has_own_clock: true, ..setup },
            _ => setup,
        }
    }

    /// What it is done to.
    pub fn part(self) -> Part {
        match self {
            Self::Nothing => Part::Nothing,
            Self::ServerKilled | Self::ServersKilled | Self::ServerPaused | Self::ServersRestarted => {
                Part::Servers
            }
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
            | Self::AsynchronousPromoted => Part::Database,
        }
    }

    /// Begins. `turn` counts the times, so that it is another server's turn each time. The writer is one that holds
    /// something, as otherwise nothing would happen.
    pub async fn begin(self, world: &mut World, turn: usize) -> Result<Wound> {
        let server = turn % SERVERS;
        let writer = world.busiest_writer().await.unwrap_or(turn % WRITERS);
        let mut wound = Wound { server, writer, connections: Vec::new() };
        match self {
            Self::Nothing => {}
            Self::ServerKilled => world.servers[server].kill().await?,
            Self::ServersKilled => {
                try_join_all(world.servers.iter_mut().map(|server| server.kill())).await?;
            }
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
            Self::DatabaseKilled => world.postgres.kill9().await?,
            Self::ConnectionsExhausted => wound.connections = exhaust(world).await?,
            Self::ClockJumps => {
                let sign = if turn.is_multiple_of(2) { 1 } else { -1 };
                world.postgres.set_clock_offset(sign * CLOCK_JUMP_SECONDS)?;
            }
            Self::SynchronousPromoted | Self::AsynchronousPromoted => {
                world.postgres.kill9().await?;
                world.standby.as_ref().context("a standby")?.promote().await?;
            }
        }
        Ok(wound)
    }

    /// Waits for what the fault brings about, where that is a takeover.
    pub async fn works(self, world: &World, wound: &Wound) {
        if matches!(self.part(), Part::Writers | Part::Links) && self != Self::WritersSlow {
            world.is_taken_over(wound.writer).await;
        }
    }

    /// Ends what [`Self::begin`] began.
    pub async fn heal(self, world: &mut World, wound: Wound) -> Result<()> {
        let Wound { server, writer, connections } = wound;
        drop(connections);
        match self {
            Self::Nothing
            | Self::ServersRestarted
            | Self::SynchronousPromoted
            | Self::AsynchronousPromoted => {}
            Self::ServerKilled | Self::ServersKilled => {
                try_join_all(world.servers.iter_mut().map(|server| server.start_again())).await?;
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
            Self::DatabaseKilled => world.postgres.start_again().await?,
            Self::ClockJumps => world.postgres.set_clock_offset(0)?,
        }
        Ok(())
    }
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
    while taken.len() < CONNECTIONS {
        // The places of connections that were cut are free a moment later.
        let place = wait_for("a place", PLACE_WITHIN, async || world.postgres.connect().await.ok());
        taken.push(place.await?);
    }
    restore(database_links(world)).await?;
    Ok(taken)
}
