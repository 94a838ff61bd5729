//! A Patroni cluster of three nodes with an etcd of its own. Each node replicates from the leader through a proxy.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result};
use futures_util::future::{join_all, try_join_all};
use solehold_testkit::{PatroniNode, PatroniOptions, Proxy, wait_for};
use tokio_postgres::NoTls;

use crate::{
    etcd::{self, EtcdServer},
    store::Replication,
    world::CONNECTIONS,
};

const NODES: usize = 3;
/// How long a leader that falls silent stays the leader. Patroni's default is 30.
const TTL_SECONDS: u32 = 6;
/// Copies of the data are made within this, too.
const WHOLE_WITHIN: Duration = Duration::from_secs(90);
/// How long a node may take to answer about itself: a paused one never does.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// Lines of each node in a report of a failure.
const TAIL: usize = 60;
/// What Patroni says each time it looks and does nothing.
const IDLE: &str = "INFO: no action.";

/// The nodes, in no order of rank: each of them may be the leader.
pub struct PatroniCluster {
    members: Vec<Member>,
    replication: Replication,
    http: reqwest::Client,
    // Dropped last: the nodes ask it.
    _etcd: EtcdServer,
}

struct Member {
    node: PatroniNode,
    options: PatroniOptions,
    /// Between this node's PostgreSQL and those that replicate from it.
    replicas: Proxy,
}

/// An event of the servers, as PostgreSQL writes it.
pub struct Event {
    revision: i64,
    text: String,
}

/// The Debian packages that are missing for a cluster.
pub fn missing_packages() -> Vec<&'static str> {
    let packages = [("patroni", PatroniNode::is_installed()), ("etcd-server", etcd::is_installed())];
    packages.into_iter().filter(|(_, is_there)| !is_there).map(|(name, _)| name).collect()
}

impl PatroniCluster {
    /// Starts the nodes, and waits until there are a leader and two standbys that follow it.
    pub async fn start(replication: Replication) -> Result<Self> {
        let etcd = EtcdServer::start().await?;
        let members = (1..=NODES).map(|number| Member::new(number, etcd.addr(), replication));
        let members = try_join_all(members).await?;
        let http = reqwest::Client::builder().timeout(ANSWERS_WITHIN).build()?;
        let cluster = Self { members, replication, http, _etcd: etcd };
        // Whichever comes first makes the data.
        try_join_all((0..NODES).map(|number| cluster.start_again(number))).await?;
        cluster.is_whole().await?;
        Ok(cluster)
    }

    /// Where PostgreSQL listens on each node.
    pub fn hosts(&self) -> impl Iterator<Item = SocketAddr> {
        self.members.iter().map(|member| member.node.postgres())
    }

    /// The number of the node that is the leader; an error if there is none, or if two say that they are.
    pub async fn leader(&self) -> Result<usize> {
        match self.answering("leader").await[..] {
            [leader] => Ok(leader),
            ref others => anyhow::bail!("{} nodes say that they are the leader", others.len()),
        }
    }

    /// Waits until another node than this one is the leader, and gives its number.
    pub async fn has_failed_over(&self, from: usize) -> Result<usize> {
        let other = async || self.answering("leader").await.into_iter().find(|leader| *leader != from);
        wait_for("a new leader", WHOLE_WITHIN, other).await.with_context(|| self.logs())
    }

    /// Waits until there is one leader, and all others follow it, one of them synchronously if one must.
    pub async fn is_whole(&self) -> Result<()> {
        let is_whole = async || {
            let Ok(leader) = self.leader().await else { return false };
            // Patroni says of a standby that waits for its next attempt to connect that it is fine.
            self.answering("replica").await.len() == NODES - 1
                && self.followers(leader).await.is_ok_and(|followers| followers == NODES as i64 - 1)
                && (self.replication == Replication::Asynchronous || self.answering("sync").await.len() == 1)
        };
        wait_for("a whole Patroni cluster", WHOLE_WITHIN, is_whole).await.with_context(|| self.logs())
    }

    /// How many standbys get what a node writes.
    async fn followers(&self, node: usize) -> Result<i64> {
        let sql = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
        Ok(self.connect(node).await?.query_one(sql, &[]).await?.get(0))
    }

    /// The newest event of the servers that a node has.
    pub async fn newest_event(&self, node: usize) -> Result<Event> {
        let sql = "SELECT revision, h::text FROM solehold.history h ORDER BY revision DESC LIMIT 1";
        let row = self.connect(node).await?.query_one(sql, &[]).await?;
        Ok(Event { revision: row.get(0), text: row.get(1) })
    }

    /// Whether a node has this very event; another one may have its revision.
    pub async fn has_event(&self, node: usize, event: &Event) -> Result<bool> {
        let sql = "SELECT h::text FROM solehold.history h WHERE revision = $1";
        let row = self.connect(node).await?.query_opt(sql, &[&event.revision]).await?;
        Ok(row.is_some_and(|row| row.get::<_, &str>(0) == event.text))
    }

    async fn connect(&self, node: usize) -> Result<tokio_postgres::Client> {
        let url = format!("postgres://postgres@{}/postgres", self.members[node].node.postgres());
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// SIGKILL to PostgreSQL on a node. Patroni starts it again.
    pub async fn kill_postgres(&self, node: usize) -> Result<()> {
        self.members[node].node.kill_postgres().await
    }

    /// SIGKILL to a node: to Patroni and PostgreSQL.
    pub async fn kill(&self, node: usize) -> Result<()> {
        self.members[node].node.kill9().await
    }

    /// SIGSTOP to a node, right after its Patroni has looked at the cluster. A leader that is paused in the middle of a
    /// look goes on as the leader when it is resumed, if it is Patroni 3.0.2, which is Debian 12's: it writes its key
    /// again without comparing (patroni/patroni#2689).
    pub async fn pause(&self, node: usize) -> Result<()> {
        let node = &self.members[node].node;
        let last_look = || node.logs().lines().rfind(|line| line.contains(IDLE)).map(str::to_owned);
        let before = last_look();
        wait_for("Patroni to look", ANSWERS_WITHIN * TTL_SECONDS, async || last_look() != before).await?;
        node.pause().await
    }

    /// Lets it go on after [`Self::pause`].
    pub fn resume(&self, node: usize) -> Result<()> {
        self.members[node].node.resume()
    }

    /// Starts a node after [`Self::kill`].
    pub async fn start_again(&self, node: usize) -> Result<()> {
        let Member { node, options, .. } = &self.members[node];
        node.start(options).await
    }

    /// From now on the standbys get nothing from this node, and do not notice.
    pub fn hold_replication(&self, node: usize) {
        self.members[node].replicas.stall_responses();
    }

    /// Ends [`Self::hold_replication`].
    pub async fn let_replicate(&self, node: usize) -> Result<()> {
        // What was held back is dropped with its connections.
        self.members[node].replicas.cut().await;
        self.members[node].replicas.restore().await
    }

    /// What the nodes have printed last.
    pub fn logs(&self) -> String {
        let logs = self.members.iter().map(|member| {
            let logs = member.node.logs();
            let lines: Vec<&str> = logs.lines().filter(|line| !line.contains(IDLE)).collect();
            format!("{}:\n{}", member.options.name, lines[lines.len().saturating_sub(TAIL)..].join("\n"))
        });
        logs.collect::<Vec<_>>().join("\n---\n")
    }

    /// The nodes whose Patroni says yes to a question about itself.
    async fn answering(&self, question: &str) -> Vec<usize> {
        let answers = self.members.iter().map(async |member| {
            let url = format!("http://{}/{question}", member.node.rest());
            self.http.get(url).send().await.is_ok_and(|answer| answer.status().is_success())
        });
        let answers = join_all(answers).await.into_iter().enumerate();
        answers.filter(|(_, is_yes)| *is_yes).map(|(number, _)| number).collect()
    }
}

impl Member {
    async fn new(number: usize, etcd: SocketAddr, replication: Replication) -> Result<Self> {
        let node = PatroniNode::new()?;
        let replicas = Proxy::start(node.postgres()).await?;
        let options = PatroniOptions {
            name: format!("node-{number}"),
            etcd,
            reached_at: replicas.addr(),
            is_synchronous: replication == Replication::Synchronous,
            ttl_seconds: TTL_SECONDS,
            max_connections: CONNECTIONS.try_into()?,
        };
        Ok(Self { node, options, replicas })
    }
}
