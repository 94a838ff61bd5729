//! What the servers keep leases in.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result};
use solehold_testkit::{Postgres, SmallDisk, wait_for};

use crate::{
    patroni::PatroniCluster,
    world::{CONNECTIONS, SERVERS, Setup},
};

/// More than the store and its log need in a minute.
const DISK_BYTES: usize = 96 << 20;
/// How long a standby may take to follow.
const FOLLOWS_WITHIN: Duration = Duration::from_secs(90);

/// Which store a world has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreKind {
    /// One PostgreSQL.
    Alone,
    /// One with a standby, which is promoted by hand.
    Standby(Replication),
    /// Three PostgreSQL that Patroni promotes.
    Patroni(Replication),
    /// The embedded store of one server, on a small disk.
    Embedded,
}

/// Whether commits wait for a standby.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replication {
    Synchronous,
    Asynchronous,
}

impl StoreKind {
    /// How many servers there can be: a data folder is one process's (rule 24).
    pub fn servers(self) -> usize {
        if self == Self::Embedded { 1 } else { SERVERS }
    }

    /// Whether everything that was answered is there after a failover.
    pub fn is_lossless(self) -> bool {
        matches!(self, Self::Standby(Replication::Synchronous) | Self::Patroni(Replication::Synchronous))
    }
}

/// A store that runs.
#[expect(clippy::large_enum_variant, reason = "a world has one")]
pub enum Store {
    Postgres { primary: Postgres, standby: Option<Postgres> },
    Patroni(PatroniCluster),
    Embedded(SmallDisk),
}

impl Store {
    /// Starts what a setup asks for.
    pub async fn start(setup: &Setup) -> Result<Self> {
        match setup.store {
            StoreKind::Alone => Ok(Self::Postgres { primary: primary(setup).await?, standby: None }),
            StoreKind::Standby(replication) => {
                let primary = primary(setup).await?;
                let standby = Some(standby(&primary, replication).await?);
                Ok(Self::Postgres { primary, standby })
            }
            StoreKind::Patroni(replication) => Ok(Self::Patroni(PatroniCluster::start(replication).await?)),
            StoreKind::Embedded => Ok(Self::Embedded(SmallDisk::mount(DISK_BYTES)?)),
        }
    }

    /// Where each PostgreSQL listens.
    pub fn hosts(&self) -> Vec<SocketAddr> {
        match self {
            Self::Postgres { primary, standby } => {
                std::iter::once(primary).chain(standby).map(Postgres::addr).collect()
            }
            Self::Patroni(cluster) => cluster.hosts().collect(),
            Self::Embedded(_) => Vec::new(),
        }
    }

    /// The PostgreSQL that runs alone, or the primary that has a standby.
    pub fn primary(&self) -> Result<&Postgres> {
        match self {
            Self::Postgres { primary, .. } => Ok(primary),
            _ => anyhow::bail!("the world has no PostgreSQL that runs alone"),
        }
    }

    /// The standby that is promoted by hand.
    pub fn standby(&self) -> Result<&Postgres> {
        match self {
            Self::Postgres { standby: Some(standby), .. } => Ok(standby),
            _ => anyhow::bail!("the world has no standby"),
        }
    }

    pub fn patroni(&self) -> Result<&PatroniCluster> {
        match self {
            Self::Patroni(cluster) => Ok(cluster),
            _ => anyhow::bail!("the world has no Patroni cluster"),
        }
    }

    pub fn disk(&self) -> Result<&SmallDisk> {
        match self {
            Self::Embedded(disk) => Ok(disk),
            _ => anyhow::bail!("the world has no embedded store"),
        }
    }

    /// What it has printed last, to look for the cause of a failure.
    pub fn logs(&self) -> Option<String> {
        self.patroni().ok().map(PatroniCluster::logs)
    }
}

async fn primary(setup: &Setup) -> Result<Postgres> {
    let builder = Postgres::builder().setting("max_connections", CONNECTIONS.to_string());
    let builder = if setup.has_own_clock { builder.fake_clock() } else { builder };
    builder.start().await
}

async fn standby(primary: &Postgres, replication: Replication) -> Result<Postgres> {
    let standby = Postgres::builder().setting("max_connections", CONNECTIONS.to_string());
    let standby = standby.standby_of(primary).start().await?;
    let client = primary.connect().await?;
    let wanted = match replication {
        Replication::Synchronous => {
            client.batch_execute("ALTER SYSTEM SET synchronous_standby_names = '*'").await?;
            client.batch_execute("SELECT pg_reload_conf()").await?;
            "sync"
        }
        Replication::Asynchronous => "async",
    };
    let sql = "SELECT 1 FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = $1";
    let follows = async || client.query_opt(sql, &[&wanted]).await.ok().flatten().is_some();
    wait_for("the standby to follow", FOLLOWS_WITHIN, follows).await.context("a standby")?;
    Ok(standby)
}
